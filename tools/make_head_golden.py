"""Writes tests/golden/head_tiny_llama.json: what Transformers and TRL make of the head and the embedding of one step.

    PYTHONPATH=TRL python tools/make_head_golden.py tests/golden/head_tiny_llama.json

TRL is the unpacked wheel of trl 1.16. In float64, examples/tiny-llama with the adapter tests/golden/traces/init/lora_r8,
six rows in micro-batches of two, padded: the loss of Transformers' LabelSmoother, the entropy and the accuracy of TRL's
fused head, the norm of the adapter's gradient; all without and with NEFTune's own hook, whose numbers come from
src/kernels/noise.h's generator, written again here. An evaluation of the same rows, one at a time.
"""
import json
import sys

import numpy
import peft
import torch
import transformers
from transformers.integrations.neftune import neftune_post_forward_hook
from transformers.trainer_pt_utils import LabelSmoother
from trl.kernels.chunked_logprob import ChunkedLogProbFunction

MODEL, ADAPTER = "examples/tiny-llama", "tests/golden/traces/init/lora_r8"
SEED, EPOCH, MICRO, TAG = 42, 0, 2, 0x4E45
M64 = (1 << 64) - 1


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & M64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & M64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & M64
    return x ^ (x >> 31)


def philox(key, high, low):
    """Philox4x32-10 of (key, high:low) for an array of `low`: [n, 4] words (Salmon et al. 2011)."""
    low = low.astype(numpy.uint64)
    mask, k0, k1 = numpy.uint64(0xFFFFFFFF), key & 0xFFFFFFFF, key >> 32
    c = [low & mask, low >> numpy.uint64(32), numpy.full_like(low, high & 0xFFFFFFFF), numpy.full_like(low, high >> 32)]
    for _ in range(10):
        p0, p1 = numpy.uint64(0xD2511F53) * c[0], numpy.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> numpy.uint64(32)) ^ c[1] ^ numpy.uint64(k0), p1 & mask,
             (p0 >> numpy.uint64(32)) ^ c[3] ^ numpy.uint64(k1), p0 & mask]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return numpy.stack(c, axis=1)


def uniform(sample, positions, columns):
    """[positions, columns] numbers in [-1, 1)."""
    key = mix(mix(mix(SEED) ^ EPOCH) ^ TAG)
    calls = (numpy.arange(positions, dtype=numpy.uint64)[:, None] << numpy.uint64(32)) + numpy.arange(
        columns // 4, dtype=numpy.uint64)
    words = philox(key, sample, calls.reshape(-1)).astype(numpy.uint32).view(numpy.int32)
    return (words >> 8).astype(numpy.float64).reshape(positions, columns) * 2.0**-23


def rows_of(tokenizer):
    out = []
    for i, line in enumerate(open("examples/data/gsm8k_eval.jsonl").read().splitlines()[:6]):
        messages = json.loads(line)["messages"]
        ids = tokenizer(messages[0]["content"] + "\n" + messages[1]["content"])["input_ids"][: 60 + 9 * i]
        out.append({"input_ids": ids, "labels": [-100] * (5 + 4 * i) + ids[5 + 4 * i:]})
    return out


class Noise:
    """Transformers' hook calls uniform_ on zeros like the embeddings; it gets the numbers of these rows."""

    def __init__(self, model, alpha):
        embedding = model.get_input_embeddings()
        embedding.neftune_noise_alpha = alpha
        self.handle = embedding.register_forward_hook(neftune_post_forward_hook)
        self.plain = torch.Tensor.uniform_
        torch.Tensor.uniform_ = lambda tensor, low, high: self.fill(tensor, low, high)

    def fill(self, tensor, low, high):
        assert float(low) == -float(high)
        for i, sample in enumerate(self.samples):
            tensor[i] = float(high) * torch.from_numpy(uniform(sample, tensor.shape[1], tensor.shape[2]))
        return tensor

    def remove(self):
        self.handle.remove()
        torch.Tensor.uniform_ = self.plain


def padded(rows):
    length = max(len(row["input_ids"]) for row in rows)

    def pad(key, value):
        return torch.tensor([row[key] + [value] * (length - len(row[key])) for row in rows])

    mask = torch.tensor([[1] * len(row["input_ids"]) + [0] * (length - len(row["input_ids"])) for row in rows])
    return pad("input_ids", 0), mask, pad("labels", -100)


def reported(model, hidden, labels):
    """TRL's entropy and hits, each summed over the labels."""
    valid = labels[:, 1:] != -100
    head = model.get_output_embeddings()
    out = ChunkedLogProbFunction.apply(hidden[:, :-1][valid], head.weight, None, labels[:, 1:][valid], 1.0, 32768, None,
                                       1.0, ("log_probs", "entropy", "is_top1"))
    return out[1].double().sum().item(), out[4].sum().item(), valid.sum().item()


def step(model, rows, epsilon, alpha):
    model.train()
    model.zero_grad()
    noise = Noise(model, alpha) if alpha else None
    count = sum(label != -100 for row in rows for label in row["labels"][1:])
    total = {"loss": 0.0, "entropy": 0.0, "mean_token_accuracy": 0.0}
    for begin in range(0, len(rows), MICRO):
        ids, mask, labels = padded(rows[begin:begin + MICRO])
        if noise:
            noise.samples = range(begin, begin + MICRO)
        out = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        loss = LabelSmoother(epsilon=epsilon)(out, labels, shift_labels=True, num_items_in_batch=count)
        loss.backward()
        entropy, correct, _ = reported(model, out.hidden_states[-1].detach(), labels)
        for key, value in (("loss", loss.item()), ("entropy", entropy / count), ("mean_token_accuracy", correct / count)):
            total[key] += value
    if noise:
        noise.remove()
    norm = sum(p.grad.square().sum() for p in model.parameters() if p.grad is not None).sqrt().item()
    return {"label_smoothing_factor": epsilon, "neftune_noise_alpha": alpha, **total, "grad_norm": norm}


def evaluation(model, rows, epsilon):
    model.eval()
    out, count, entropy, correct = [], 0, 0.0, 0
    with torch.no_grad():
        for row in rows:
            ids, mask, labels = padded([row])
            result = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
            mean = LabelSmoother(epsilon=epsilon)(result, labels, shift_labels=True).item()
            e, c, n = reported(model, result.hidden_states[-1], labels)
            out.append(mean * n)
            count, entropy, correct = count + n, entropy + e, correct + c
    return {"label_smoothing_factor": epsilon, "loss": sum(out) / count, "row_loss_sum": out, "label_tokens": count,
            "entropy": entropy / count, "mean_token_accuracy": correct / count}


def main(path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    rows = rows_of(tokenizer)
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float64)
    model = peft.PeftModel.from_pretrained(model, ADAPTER, is_trainable=True, autocast_adapter_dtype=False).double()
    steps = [step(model, rows, epsilon, alpha) for epsilon in (0.0, 0.1, 0.6) for alpha in (None, 5.0)]
    noise = uniform(3, 2, 256)
    result = {"made_by": "tools/make_head_golden.py",
              "versions": {"torch": torch.__version__, "transformers": transformers.__version__,
                           "peft": peft.__version__, "trl": "1.16.0"},
              "rows": rows, "steps": steps, "evaluations": [evaluation(model, rows, e) for e in (0.0, 0.1)],
              "uniform": {"seed": SEED, "epoch": EPOCH, "sample": 3, "position": 1,
                          "columns": noise[1, :8].tolist(), "last_columns": noise[1, -3:].tolist()}}
    with open(path, "w") as file:
        json.dump(result, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
