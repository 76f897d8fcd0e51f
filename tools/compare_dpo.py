#!/usr/bin/env python3
"""Steps of DPO by TRL's DPOTrainer on this GPU: what bench_model's milliseconds of DPO stand beside.

A slice of Llama-3-8B's shape (--layers of it) with random weights made on the GPU, NF4 with double quantization, LoRA
on all seven linears, and TRL's defaults except where an option says otherwise. Every step takes the same 16 preference
pairs of GSM8K's lengths and random tokens, made from a fixed seed. TRL's tokenizing alone is left out: the collator,
the reference by the disabled adapter, the loss and the optimizer are its own. Prints one line of JSON.

  tools/compare_dpo.py --layers 8
  tools/compare_dpo.py --layers 8 --precompute 1 --ckpt 0
  tools/compare_dpo.py --device cpu --shape tiny --quant none

step_ms is the median time from on_step_begin to on_step_end, with the device idle at both: forward, reference,
backward, clipping and optimizer. loop_ms, from one on_step_end to the next, adds the collator and the copy to the
device. reference_ms is compute_ref_log_probs alone, a part of step_ms with --precompute 0.

Needs tools/requirements.txt and, for NF4, bitsandbytes 0.50.
"""
import argparse
import gc
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from compare_gpu import LINEARS, quantize, sync  # noqa: E402

SHAPES = {  # hidden, intermediate, heads, key heads, vocabulary
    "llama3-8b": (4096, 14336, 32, 8, 128256),
    "tiny": (128, 352, 4, 2, 512),
}
SPECIAL = {"<unk>": 0, "<s>": 1, "</s>": 2, "<pad>": 3}
PAIRS = 16


# ---- the pairs ----

def draw_length(generator, mean, least, most):
    length = round(generator.lognormvariate(math.log(mean) - 0.08, 0.4))  # exp(mu + 0.4^2 / 2) is the mean
    return max(least, min(most, length))


def make_pairs(vocabulary):
    """The lengths are drawn before the tokens: they are the same for every vocabulary."""
    generator = random.Random(0)
    lengths = []
    for _ in range(PAIRS):
        prompt = draw_length(generator, 102, 40, 220)
        chosen = draw_length(generator, 130, 60, 250)
        rejected = draw_length(generator, 130, 60, 250)
        lengths.append({"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected})
    return [{name: [generator.randrange(len(SPECIAL), vocabulary) for _ in range(length)]
             for name, length in pair.items()} for pair in lengths]


def count_tokens(pairs):
    """What the collator makes of the pairs: a row for each answer, behind its prompt, padded to the longest."""
    rows = [len(pair["prompt_ids"]) + len(pair[answer]) for pair in pairs for answer in ("chosen_ids", "rejected_ids")]
    return {"pairs": len(pairs), "rows": len(rows), "longest_row": max(rows), "tokens": sum(rows),
            "padded_tokens": max(rows) * len(rows),
            "completion_tokens": sum(len(pair["chosen_ids"]) + len(pair["rejected_ids"]) for pair in pairs)}


# ---- the model ----

def build(torch, a):
    from transformers import LlamaConfig, LlamaForCausalLM
    hidden, intermediate, heads, kv, vocabulary = SHAPES[a.shape]
    config = LlamaConfig(
        hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=a.layers, num_attention_heads=heads,
        num_key_value_heads=kv, vocab_size=vocabulary, max_position_embeddings=8192, rope_theta=500000.0,
        tie_word_embeddings=False, use_cache=False, bos_token_id=SPECIAL["<s>"], eos_token_id=SPECIAL["</s>"],
        pad_token_id=SPECIAL["<pad>"])
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(a.device):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    for p in model.parameters():
        p.requires_grad_(False)
    if a.quant == "nf4":
        import bitsandbytes
        quantize(torch, bitsandbytes, model, a.device)
    gc.collect()
    if a.device == "cuda":
        torch.cuda.empty_cache()
    return model


def make_tokenizer():
    """The trainer asks it for its special tokens and no more."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    words = Tokenizer(models.WordLevel(SPECIAL, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>",
                                   pad_token="<pad>")


def check_layers(model, a):
    from peft.tuners.lora.bnb import Linear4bit
    found = sum(isinstance(module, Linear4bit) for module in model.modules())
    assert found == a.layers * len(LINEARS), "%d linears have PEFT's layer for 4 bits" % found


# ---- the steps ----

def make_clock(torch, a):
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def __init__(self):
            self.begin = 0.0
            self.steps = []
            self.ends = []

        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == a.warmup and a.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            sync(torch, a.device)
            self.begin = time.perf_counter()

        def on_step_end(self, args, state, control, **kwargs):
            sync(torch, a.device)
            self.ends.append(time.perf_counter())
            self.steps.append(1e3 * (self.ends[-1] - self.begin))

        def loops(self):
            return [1e3 * (end - begin) for begin, end in zip(self.ends, self.ends[1:])]

    return Clock()


def make_trainer(model, pairs, clock, directory, a):
    from datasets import Dataset, disable_progress_bars
    from peft import LoraConfig
    from transformers import PrinterCallback
    from trl import DPOConfig, DPOTrainer

    class Trainer(DPOTrainer):
        def _prepare_dataset(self, dataset, *args, **kwargs):  # the rows are tokens already
            return dataset

    disable_progress_bars()
    steps = a.warmup + a.steps
    config = DPOConfig(
        output_dir=directory, per_device_train_batch_size=len(pairs), max_steps=steps,
        precompute_ref_log_probs=bool(a.precompute), gradient_checkpointing=bool(a.ckpt), save_strategy="no",
        report_to="none", disable_tqdm=True, train_sampling_strategy="sequential", use_cpu=a.device == "cpu")
    lora = LoraConfig(task_type="CAUSAL_LM", r=a.r, lora_alpha=2 * a.r, lora_dropout=0.0, target_modules=list(LINEARS))
    trainer = Trainer(model=model, args=config, train_dataset=Dataset.from_list(pairs * steps),
                      processing_class=make_tokenizer(), callbacks=[clock], peft_config=lora)
    trainer.remove_callback(PrinterCallback)  # stdout has the line of JSON alone
    return trainer


def reference_ms(torch, trainer, pairs, a):
    batch = trainer._prepare_inputs(trainer.data_collator(pairs))
    trainer.model.train()
    times = []
    for _ in range(1 + a.steps):
        sync(torch, a.device)
        begin = time.perf_counter()
        trainer.compute_ref_log_probs(trainer.model_wrapped, batch)
        sync(torch, a.device)
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[1:])


def measure(torch, trainer, pairs, clock, a):
    trained = [p for p in trainer.model.parameters() if p.requires_grad]
    result = trainer.train()
    steps = clock.steps[a.warmup:]
    out = {"trained": sum(p.numel() for p in trained), "adapter_dtypes": sorted({str(p.dtype) for p in trained}),
           "optimizer": trainer.args.optim.value, "bf16": trainer.args.bf16, "step_ms": statistics.median(steps),
           "step_ms_min": min(steps), "step_ms_max": max(steps), "steps_ms": steps,
           "loop_ms": statistics.median(clock.loops()[-a.steps:]), "train_loss": result.training_loss}
    if a.device == "cuda":
        out["peak_allocated_gib"] = torch.cuda.max_memory_allocated() / 2**30
    out["reference_ms"] = reference_ms(torch, trainer, pairs, a)
    return out


def parse():
    p = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    p.add_argument("--shape", default="llama3-8b", choices=sorted(SHAPES))
    p.add_argument("--layers", type=int, default=8)
    p.add_argument("--r", type=int, default=16)
    p.add_argument("--quant", default="nf4", choices=["nf4", "none"])
    p.add_argument("--precompute", type=int, default=0, choices=[0, 1], help="1: the reference before the steps")
    p.add_argument("--ckpt", type=int, default=1, choices=[0, 1], help="1: gradient checkpointing, TRL's default")
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--warmup", type=int, default=3)
    p.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    a = p.parse_args()
    if a.steps < 1 or a.warmup < 1:
        p.error("--steps and --warmup are 1 at least")
    return a


def main():
    a = parse()
    for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "TQDM_DISABLE"):
        os.environ.setdefault(name, "1")
    import peft
    import torch
    import transformers
    import trl
    out = {"bench": "trl_dpo", "shape": a.shape, "layers": a.layers, "r": a.r, "quant": a.quant,
           "precompute": bool(a.precompute), "checkpointing": bool(a.ckpt),
           "versions": {m.__name__: m.__version__ for m in (torch, transformers, peft, trl)},
           "device": torch.cuda.get_device_name() if a.device == "cuda" else a.device}
    pairs = make_pairs(SHAPES[a.shape][-1])
    out.update(count_tokens(pairs))
    clock = make_clock(torch, a)
    with tempfile.TemporaryDirectory() as directory:
        trainer = make_trainer(build(torch, a), pairs, clock, directory, a)
        if a.quant == "nf4":
            check_layers(trainer.model, a)
        out.update(measure(torch, trainer, pairs, clock, a))
    print(json.dumps(out, separators=(",", ":")), flush=True)


main()
