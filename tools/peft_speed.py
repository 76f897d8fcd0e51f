#!/usr/bin/env python3
"""Tokens a second of Hugging Face PEFT on this machine's CPU: the reference of bench/run_cpu.

fp32, the same dequantized NF4 weights, the batches of a pretokenized .jsonl in file order, AdamW, every token a
label. Prints one JSON object. Needs torch, transformers, peft (tools/requirements.txt).
  tools/peft_speed.py --model examples/tiny-llama --data rows.jsonl --batch 4 --r 8 [--dora] --steps 12 --threads 2
"""
import argparse
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", required=True)
    p.add_argument("--data", required=True)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--r", type=int, default=8)
    p.add_argument("--dora", action="store_true")
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--warmup", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    import peft
    import torch
    import transformers
    from nf4_numpy import KINDS, load_base
    torch.manual_seed(0)
    torch.set_num_threads(a.threads)
    model = load_base(a.model, os.path.join(os.path.dirname(__file__), ".."))
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=a.r, lora_alpha=2 * a.r, lora_dropout=0.0,
                             target_modules=list(KINDS), use_dora=a.dora)
    model = peft.get_peft_model(model, config).train()
    optimizer = torch.optim.AdamW([q for q in model.parameters() if q.requires_grad], lr=2e-4, weight_decay=0.0)
    with open(a.data) as f:
        rows = [json.loads(line)["input_ids"] for line in f]
    seconds, losses = [], []
    for step in range(a.warmup + a.steps):
        batch = torch.tensor([rows[(step * a.batch + i) % len(rows)] for i in range(a.batch)])
        begin = time.perf_counter()
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_([q for q in model.parameters() if q.requires_grad], 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if step >= a.warmup:
            seconds.append(time.perf_counter() - begin)
    median = statistics.median(seconds)
    print(json.dumps({"peer": "peft", "versions": {m.__name__: m.__version__ for m in (torch, transformers, peft)},
                      "adapter": "dora" if a.dora else "lora", "r": a.r, "threads": a.threads,
                      "tokens_per_step": batch.numel(), "step_s": median, "step_s_min": min(seconds),
                      "step_s_max": max(seconds), "tokens_per_s": batch.numel() / median, "losses": losses}))


main()
