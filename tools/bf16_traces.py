#!/usr/bin/env python3
"""Losses of PEFT + bitsandbytes in bf16 on golden traces: tests/golden/traces/<trace>/bf16.json.

The traces a_lora and c1_dora (settings, batches and first adapter as the golden files have them: 20 steps of 4 padded
rows, AdamW, lr 2e-3, no clipping) on tiny-llama's NF4 base, as users of PEFT + bitsandbytes train: 4-bit layers that
dequantize to bf16, fp32 adapter weights under torch.autocast to bf16, norms, embedding and head in bf16. The base is
quantized by the rule of the golden files, so its codes are theirs.

One such run is one draw: where its loss comes out near the golden fp32 loss, that is luck. So --runs runs are made,
which differ in the order of the rows of a batch and so in roundings alone. "runs" holds the loss of every step of each,
"fp32" the golden losses; tests/multi/traces_bf16.c says what is made of them.

  tools/bf16_traces.py [--out tests/golden/traces] [--device cuda] [--peft bitsandbytes|plain]
"""
import argparse
import itertools
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
TREE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
GOLDEN = os.path.join(TREE, "tests/golden/traces")
MODEL = os.path.join(TREE, "examples/tiny-llama")


def read_weights(directory, device):
    from safetensors.torch import load_file
    out = {}
    for name in sorted(os.listdir(directory)):
        if name.endswith(".safetensors"):
            out |= load_file(os.path.join(directory, name), device=device)
    return out


def read_batches(settings, device):
    """[(ids, labels, attention mask)] of the trace's batch set, one micro-batch each."""
    import torch
    from safetensors.torch import load_file
    tensors = load_file(os.path.join(GOLDEN, "batches.safetensors"))
    out = []
    while True:
        at = "%s.step%d.micro0." % (settings["batches"], len(out))
        if at + "input_ids" not in tensors:
            return out
        ids, labels, lengths = (tensors[at + n].long() for n in ("input_ids", "labels", "lengths"))
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        out.append(tuple(t.to(device) for t in (ids, labels, mask)))


def row_orders(rows, count):
    """The first `count` of the orders of the rows, the file's first."""
    return [list(order) for order in itertools.islice(itertools.permutations(range(rows)), count)]


def train(a, base, settings, order):
    """The loss of each step."""
    import peft
    import peft_bnb
    import torch
    from safetensors.torch import load_file
    init = os.path.join(GOLDEN, "init", settings["init"])
    config = peft.LoraConfig.from_pretrained(init)
    config.inference_mode = False
    config.base_model_name_or_path = None
    model = peft_bnb.with_adapter(base, config, load_file(os.path.join(init, "adapter_model.safetensors")))
    optimizer = torch.optim.AdamW(list(peft_bnb.tensor_names(model).values()), lr=settings["lr"],
                                  betas=(0.9, 0.999), eps=1e-8, weight_decay=settings["weight_decay"])
    batches, losses = read_batches(settings, a.device), []
    assert not settings["clip"] and not settings["schedule"]
    for step in range(settings["steps"]):
        ids, labels, mask = (t[order] for t in batches[step % len(batches)])
        with peft_bnb.autocast(a.device):
            loss = model(input_ids=ids, labels=labels, attention_mask=mask, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    model.unload()
    return losses


def one_trace(a, base, trace):
    import peft_bnb
    import torch
    with open(os.path.join(GOLDEN, trace, "trace.json")) as f:
        golden = json.load(f)
    orders = row_orders(4, a.runs)
    runs = [{"rows": order, "loss": train(a, base, golden["settings"], order)} for order in orders]
    want = [s["loss"] for s in golden["steps"]]
    out = os.path.join(a.out, trace)
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "bf16.json"), "w") as f:
        json.dump({"made_by": "tools/bf16_traces.py", "versions": peft_bnb.versions(),
                   "device": torch.cuda.get_device_name() if a.device == "cuda" else a.device,
                   "base": {"bitsandbytes": "bitsandbytes NF4, dequantized to bf16",
                            "plain": "bf16 linears of the dequantized NF4 values"}[a.peft],
                   "compute": "bf16 autocast, fp32 adapter weights", "fp32": want, "runs": runs}, f, indent=1)
        f.write("\n")
    for run in runs:
        distance = [abs(x - w) for x, w in zip(run["loss"], want)]
        print("%-8s rows %s: PEFT bf16 from fp32 %.2e in the mean, at most %.2e" % (
            trace, run["rows"], sum(distance) / len(distance), max(distance)), flush=True)


def main():
    p = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    p.add_argument("--out", default=GOLDEN)
    p.add_argument("--traces", default="a_lora,c1_dora")
    p.add_argument("--device", default="cuda")
    p.add_argument("--peft", default="bitsandbytes", choices=("bitsandbytes", "plain"))
    p.add_argument("--runs", type=int, default=24, help="up to 24, the orders of four rows")
    a = p.parse_args()
    import peft_bnb
    weights = read_weights(MODEL, a.device)
    base = peft_bnb.base_model(MODEL, weights, peft_bnb.quantize(weights, a.device), a.device, a.peft)
    for trace in a.traces.split(","):
        one_trace(a, base, trace)


if __name__ == "__main__":
    main()
