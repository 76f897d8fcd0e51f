#!/usr/bin/env python3
"""Steps of PEFT + bitsandbytes NF4 on this GPU: what bench_model's milliseconds stand beside.

A slice of a model (Llama-3-8B's shape, --layers of it) with random weights made on the GPU, NF4 with double
quantization, bf16 compute; LoRA or DoRA on all seven linears; batches of random tokens that are all labels; fused
AdamW on the adapter, clipping to 1. Each case runs twice, with PEFT's fp32 adapters under autocast and with bf16
adapters without it; the faster is its figure. Writes --out after every case and prints a table last.

  tools/compare_gpu.py --layers 8 --cases lora16,dora16,dora384 --checkpointing off,on --out peft.json
  tools/compare_gpu.py --layers 8 --adapter-dtypes bfloat16 --runs bench/runs/sweep

With --runs the cases are the lines of a list that bench_model takes, one line of JSON on stdout for each as it is done;
a line with something that PEFT has no counterpart for is left out. Documents are what a user of padded batches has:
rows of their lengths, padded to the longest.

Also measures, as a second opinion on the roofs: a bf16 matmul of 8192^3, cuDNN's attention at the shape, the copy,
and bitsandbytes' dequantization. Needs torch, transformers, peft, bitsandbytes (tools/compare_deps).
"""
import argparse
import gc
import json
import re
import statistics
import sys
import time

SHAPES = {  # hidden, intermediate, layers, heads, key heads, vocabulary
    "llama3-8b": (4096, 14336, 32, 32, 8, 128256),
    "llama2-7b": (4096, 11008, 32, 32, 32, 32000),
    "llama3-70b": (8192, 28672, 80, 64, 8, 128256),
    "tiny": (256, 704, 6, 4, 2, 4096),
}
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def sync(torch, device):
    if device == "cuda":
        torch.cuda.synchronize()


def quantize(torch, bnb, model, device):
    """Every linear of a layer becomes bitsandbytes' NF4, in place, one at a time."""
    for module in model.model.layers.modules():
        for name, child in list(module.named_children()):
            if name not in LINEARS:
                continue
            new = bnb.nn.Linear4bit(child.in_features, child.out_features, bias=False, compute_dtype=torch.bfloat16,
                                    compress_statistics=True, quant_type="nf4", device="meta")
            new.weight = bnb.nn.Params4bit(child.weight.data, requires_grad=False, compress_statistics=True,
                                           quant_type="nf4", module=new).to(device)
            setattr(module, name, new)
            child.weight = None
    model.is_loaded_in_4bit = True  # what tells PEFT to take its bitsandbytes layers


def build(torch, bnb, transformers, a):
    hidden, intermediate, layers, heads, kv, vocabulary = SHAPES[a.shape]
    config = transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=a.layers or layers,
        num_attention_heads=heads, num_key_value_heads=kv, vocab_size=vocabulary, rms_norm_eps=1e-5,
        max_position_embeddings=131072, tie_word_embeddings=False, use_cache=False)
    config._attn_implementation = "sdpa"
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(a.device):
        model = transformers.LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    for p in model.parameters():
        p.requires_grad_(False)
    quantize(torch, bnb, model, a.device)
    gc.collect()
    if a.device == "cuda":
        torch.cuda.empty_cache()
    return model.train()


def mix(x):
    """src/base/philox.h: what bench_model draws lengths with."""
    whole = 2**64 - 1
    x = (x + 0x9E3779B97F4A7C15) & whole
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & whole
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & whole
    return x ^ (x >> 31)


def document_lengths(a):
    """bench_rows_make of bench/model_files.c."""
    left, lengths = a.batch * a.length, []
    if not a.documents:
        return [a.length] * a.batch
    least, most = map(int, a.documents.split(":"))
    while left > 0:
        length = least + mix(len(lengths) + 1) % (most - least + 1)
        length = left if left - length < least else length
        lengths.append(length)
        left -= length
    return lengths


def make_batches(torch, a):
    """Four batches of random tokens, all of them labels; what pads a row is none."""
    generator = torch.Generator().manual_seed(0)
    lengths = document_lengths(a)
    longest = max(lengths)
    batches = []
    for _ in range(4):
        ids = torch.randint(SHAPES[a.shape][5], (len(lengths), longest), generator=generator)
        batch = {"input_ids": ids.to(a.device), "labels": ids.to(a.device)}
        if min(lengths) < longest:
            seen = torch.arange(longest)[None, :] < torch.tensor(lengths)[:, None]
            batch["attention_mask"] = seen.long().to(a.device)
            batch["labels"] = torch.where(seen, ids, -100).to(a.device)
        batches.append(batch)
    return batches


def run_steps(torch, model, a, autocast):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4, weight_decay=0.0, fused=a.device == "cuda")
    batches = make_batches(torch, a)
    seconds, losses = [], []
    for step in range(a.warmup + a.steps):
        batch = batches[step % len(batches)]
        sync(torch, a.device)
        begin = time.perf_counter()
        with torch.autocast(a.device, dtype=torch.bfloat16, enabled=autocast):
            loss = model(**batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        sync(torch, a.device)
        if step >= a.warmup:
            seconds.append(time.perf_counter() - begin)
        losses.append(loss.item())
    return {"trained": sum(p.numel() for p in trained), "step_ms": 1e3 * statistics.median(seconds),
            "step_ms_min": 1e3 * min(seconds), "step_ms_max": 1e3 * max(seconds),
            "tokens_per_s": a.batch * a.length / statistics.median(seconds),
            "steps_ms": [1e3 * s for s in seconds], "first_loss": losses[0], "last_loss": losses[-1]}


def run_case(torch, peft, base, a, adapter, r, checkpointing, adapter_dtype):
    if checkpointing:
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    else:
        base.gradient_checkpointing_disable()
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=r, lora_alpha=2 * r, lora_dropout=a.dropout,
                             target_modules=list(LINEARS), use_dora=adapter == "dora")
    fp32 = adapter_dtype == "float32"
    model = peft.get_peft_model(base, config, autocast_adapter_dtype=fp32)
    if not fp32:
        for p in model.parameters():
            if p.requires_grad:
                p.data = p.data.to(torch.bfloat16)
    model.train()
    kinds = {type(m).__module__ for n, m in model.named_modules() if n.endswith("q_proj")}
    assert kinds == {"peft.tuners.lora.bnb"}, kinds
    out = {"adapter": adapter, "r": r, "checkpointing": checkpointing, "adapter_dtype": adapter_dtype}
    if a.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        out.update(run_steps(torch, model, a, autocast=fp32))
        if a.device == "cuda":
            out["peak_allocated_gib"] = torch.cuda.max_memory_allocated() / 2**30
            out["peak_reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30
    except Exception as error:  # out of memory, say: the other cases are still wanted
        out["error"] = "%s: %s" % (type(error).__name__, str(error)[:300])
    model.unload()
    for p in base.parameters():
        p.grad = None
    del model
    gc.collect()
    if a.device == "cuda":
        torch.cuda.empty_cache()
    return out


# ---- a second opinion on the roofs ----

def median_ms(torch, call, count=20, warmup=5):
    times = []
    for i in range(warmup + count):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        if i >= warmup:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


def attention_roof(torch, a):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    hidden, _, _, heads, kv, _ = SHAPES[a.shape]
    dim = hidden // heads
    q, k, v, do = (torch.randn(a.batch, h, a.length, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                   for h in (heads, kv, kv, heads))
    attend = torch.nn.functional.scaled_dot_product_attention
    flops = 2 * a.batch * a.length * (a.length + 1) / 2 * hidden
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        def forward():
            return attend(q, k, v, is_causal=True, enable_gqa=heads != kv)
        o = forward()
        f = median_ms(torch, forward)
        b = median_ms(torch, lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True))
    return {"forward_tflop_s": 2 * flops / f * 1e-9, "backward_tflop_s": 5 * flops / b * 1e-9}


def roofs(torch, bnb, a):
    out = {}
    x, y = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out["gemm_8192_tflop_s"] = 2 * 8192**3 / median_ms(torch, lambda: x @ y, 200) * 1e-9
    big = torch.empty(2**30, device="cuda", dtype=torch.uint8).random_()
    other = torch.empty_like(big)
    copy = 2 * 2**30 / median_ms(torch, lambda: other.copy_(big)) * 1e-6
    out["copy_gb_s"] = copy
    del big, other
    try:
        out["attention_cudnn"] = attention_roof(torch, a)
    except Exception as error:
        out["attention_cudnn"] = "%s: %s" % (type(error).__name__, str(error)[:200])
    out["bitsandbytes_dequantize"] = []
    for rows, columns in ((4096, 4096), (14336, 4096), (4096, 14336)):
        w = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
        code, state = bnb.functional.quantize_4bit(w, quant_type="nf4", compress_statistics=True)
        ms = median_ms(torch, lambda: bnb.functional.dequantize_4bit(code, state), 50)
        rate = rows * columns * (2.5 + 1 / 64) / ms * 1e-6
        out["bitsandbytes_dequantize"].append(
            {"rows": rows, "columns": columns, "us": 1e3 * ms, "gb_s": rate, "of_copy": rate / copy})
    return out


def parse():
    p = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    p.add_argument("--shape", default="llama3-8b", choices=sorted(SHAPES))
    p.add_argument("--layers", type=int, default=8, help="0: all")
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--length", type=int, default=2048)
    p.add_argument("--cases", default="lora16,dora16,dora384")
    p.add_argument("--checkpointing", default="off,on")
    p.add_argument("--adapter-dtypes", default="float32,bfloat16")
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--warmup", type=int, default=3)
    p.add_argument("--device", default="cuda")
    p.add_argument("--no-roofs", action="store_true")
    p.add_argument("--runs", help="a list of bench/runs instead of --cases")
    p.add_argument("--out")
    a = p.parse_args()
    a.documents, a.dropout = None, 0.0
    a.cases = [re.fullmatch(r"(lora|dora)(\d+)", c) or p.error("--cases: %s" % c) for c in a.cases.split(",")]
    return a


# ---- a list of bench_model's ----

def parse_line(line, a):
    """The run of a line: what it changes of `a`, adapter, rank, checkpointing. None: not for PEFT, or not all of it."""
    run = argparse.Namespace(**vars(a))
    adapter, r, checkpointing = "lora", 16, False
    words = line.split()
    while words:
        word = words.pop(0)
        if word.startswith("lora_dropout="):
            run.dropout = float(word.split("=")[1])
        elif word == "--timeline" or "=" in word:
            return None
        elif word in ("--batch", "--length"):
            setattr(run, word[2:], int(words.pop(0)))
        elif word == "--documents":
            run.documents = words.pop(0)
        elif word == "--adapter":
            adapter = words.pop(0)
        elif word == "--rank":
            r = int(words.pop(0))
        elif word == "--recompute":
            checkpointing = words.pop(0) == "full"
        elif word == "--steps":
            words.pop(0)
        else:
            return None
    return run, adapter, r, checkpointing


def run_lines(torch, peft, base, a):
    with open(a.runs) as f:
        lines = [line.split("#")[0].strip() for line in f]
    for line in filter(None, lines):
        parsed = parse_line(line, a)
        if not parsed:
            continue
        run, adapter, r, checkpointing = parsed
        for dtype in a.adapter_dtypes.split(","):
            out = {"bench": "peft", "line": line, "shape": a.shape, "layers": a.layers, "batch": run.batch,
                   "length": run.length, "documents": run.documents, "rows": len(document_lengths(run)), "nf4": True,
                   "dropout": run.dropout, "recompute": "full" if checkpointing else "none"}
            out = {k: v for k, v in out.items() if v is not None}
            out.update(run_case(torch, peft, base, run, adapter, r, checkpointing, dtype))
            print(json.dumps(out, separators=(",", ":")), flush=True)


def main():
    a = parse()
    import bitsandbytes as bnb
    import peft
    import torch
    import transformers
    torch.manual_seed(0)
    all_ = {"bench": "peft_bitsandbytes", "shape": a.shape, "layers": a.layers, "batch": a.batch, "length": a.length,
            "versions": {m.__name__: m.__version__ for m in (torch, transformers, peft, bnb)},
            "device": torch.cuda.get_device_name() if a.device == "cuda" else a.device, "cases": []}

    def save():
        if a.out:
            with open(a.out, "w") as f:
                json.dump(all_, f, indent=1)

    if a.device == "cuda" and not a.no_roofs:
        all_["roofs"] = roofs(torch, bnb, a)
        save()
        gc.collect()
        torch.cuda.empty_cache()
    begin = time.perf_counter()
    base = build(torch, bnb, transformers, a)
    all_["build_s"] = time.perf_counter() - begin
    if a.runs:
        print("built in %.1f s" % all_["build_s"], file=sys.stderr)
        return run_lines(torch, peft, base, a)
    for checkpointing in a.checkpointing.split(","):
        for case in a.cases:
            for dtype in a.adapter_dtypes.split(","):
                r = run_case(torch, peft, base, a, case[1], int(case[2]), checkpointing == "on", dtype)
                all_["cases"].append(r)
                save()
                print("%s%d checkpointing %s adapters %s: %s" % (
                    case[1], r["r"], checkpointing, dtype, r.get("error") or "%.1f ms (%.1f to %.1f), %.1f GiB" % (
                        r["step_ms"], r["step_ms_min"], r["step_ms_max"], r.get("peak_allocated_gib", 0))),
                    file=sys.stderr, flush=True)
    best = {}
    for r in all_["cases"]:
        if "step_ms" in r:
            key = "%s%d%s" % (r["adapter"], r["r"], "_checkpointed" if r["checkpointing"] else "")
            best[key] = min(best.get(key, 1e30), r["step_ms"])
    all_["best_step_ms"] = best
    save()
    print(json.dumps(all_ if not a.out else {"best_step_ms": best, "roofs": all_.get("roofs")}))


if __name__ == "__main__":
    main()
