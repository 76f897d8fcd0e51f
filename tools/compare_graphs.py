#!/usr/bin/env python3
"""PEFT's LoRA on one plain linear, on this GPU: what bench_graphs' microseconds stand beside.

For every row of bench_graphs' output (a shape and a rank) times PEFT's forward and its backward with the gradients of x,
A and B, on a weight of that base's dtype, and prints one line of JSON; last the mean and the best of ours over PEFT's.

  bench_graphs bf16 >bf16.json
  tools/compare_graphs.py bf16.json
  tools/compare_graphs.py bf16.json --device cpu --limit 1

Times are medians by CUDA events. Before each call the card is kept busy for longer than the host takes to launch it, so
that PEFT's launches cost nothing. Adapters have the weight's dtype, dropout is 0, fp32 is not TF32: as on our side.

Needs torch and peft (tools/compare_deps).
"""
import argparse
import json
import statistics

SLEEP = 4_000_000  # cycles, some 2 ms


def make_linear(torch, row, dtype, device):
    from peft import LoraConfig, get_peft_model

    class One(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(row["in"], row["out"], bias=False, dtype=dtype, device=device)

        def forward(self, x):
            return self.linear(x)

    config = LoraConfig(r=row["r"], lora_alpha=2 * row["r"], lora_dropout=0.0, target_modules=["linear"],
                        init_lora_weights=False)
    return get_peft_model(One(), config, autocast_adapter_dtype=False).to(dtype)


def timed(torch, device, call):
    """Milliseconds of the call on the device; None on a CPU."""
    if device == "cpu":
        call()
        return None
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(SLEEP)
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def measure(torch, row, dtype, a):
    torch.manual_seed(0)
    model = make_linear(torch, row, dtype, a.device)
    x = torch.randn(row["tokens"], row["in"], dtype=dtype, device=a.device, requires_grad=True)
    dy = torch.randn(row["tokens"], row["out"], dtype=dtype, device=a.device)
    forward, backward = [], []
    for i in range(a.warmup + a.iterations):
        y = []
        t = timed(torch, a.device, lambda: y.append(model(x)))
        u = timed(torch, a.device, lambda: y[0].backward(dy))
        model.zero_grad(set_to_none=True)
        x.grad = None
        if i >= a.warmup and t is not None:
            forward.append(t)
            backward.append(u)
    if not forward:
        return {}
    return {"forward_us": 1e3 * statistics.median(forward), "backward_us": 1e3 * statistics.median(backward)}


def ours(row):
    return sum(row[way + "_us"][row[way + "_chosen"]] for way in ("forward", "backward"))


def parse():
    p = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    p.add_argument("ours", help="what `bench_graphs bf16` or `bench_graphs fp32` printed")
    p.add_argument("--iterations", type=int, default=12)
    p.add_argument("--warmup", type=int, default=3)
    p.add_argument("--limit", type=int, default=None, help="rows at most")
    p.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    a = p.parse_args()
    with open(a.ours) as f:
        a.bench = json.load(f)
    if a.bench.get("base") not in ("bf16", "fp32"):
        p.error("%s: base is %s; PEFT has no counterpart but for bf16 and fp32" % (a.ours, a.bench.get("base")))
    return a


def main():
    a = parse()
    import peft
    import torch
    dtype = torch.bfloat16 if a.bench["base"] == "bf16" else torch.float32
    ratios = []
    for row in a.bench["rows"][:a.limit]:
        out = {"bench": "peft_linear", "base": a.bench["base"], **{k: row[k] for k in ("tokens", "in", "out", "r")}}
        out.update(measure(torch, row, dtype, a))
        if "forward_us" in out:
            out["ours_of_peft"] = ours(row) / (out["forward_us"] + out["backward_us"])
            ratios.append(out["ours_of_peft"])
        print(json.dumps(out, separators=(",", ":")), flush=True)
    print(json.dumps({"bench": "peft_linears", "base": a.bench["base"], "rows": len(ratios),
                      "mean_of_peft": statistics.mean(ratios) if ratios else None,
                      "best_of_peft": min(ratios, default=None), "worst_of_peft": max(ratios, default=None),
                      "versions": {m.__name__: m.__version__ for m in (torch, peft)},
                      "device": torch.cuda.get_device_name() if a.device == "cuda" else "cpu"},
                     separators=(",", ":")), flush=True)


main()
