#!/usr/bin/env python3
"""Times steps of Unsloth and of transformers + PEFT on this GPU, and kernels of torch and flash-linear-attention, to compare
with the lines of bench/runs/moe and bench/runs/long. PEFT + bitsandbytes on dense models: tools/compare_gpu.py.

  tools/peer_steps.py --runs bench/runs/peer_steps      each line in a process of its own, one line of JSON on stdout each
  tools/peer_steps.py unsloth qwen3-30b-a3b --layers 4 --targets all-linear --nf4
  tools/peer_steps.py kernels

Unsloth reads a model folder, so one with random bf16 weights is written first and kept in --scratch. Every token of a batch
is random and a label. The optimizer is torch's fused AdamW. Adapters are fp32 under bf16 autocast, both programs' default.
Unsloth takes --nf4; PEFT's target_parameters keeps experts in bf16.
Needs torch, transformers, peft, unsloth, unsloth_zoo, bitsandbytes, flash-linear-attention (tools/compare_deps DIR unsloth).
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys

from compare_gpu import median_ms

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
EXPERT_PARAMETERS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "UNSLOTH_DISABLE_STATISTICS": "1", "DO_NOT_TRACK": "1",
           "UNSLOTH_DISABLE_LLM_COMPRESSOR_AUTOINSTALL": "1", "TOKENIZERS_PARALLELISM": "false"}


def parse():
    p = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    p.add_argument("peer", nargs="?", choices=["unsloth", "peft", "kernels", "write"])
    p.add_argument("shape", nargs="?", choices=["qwen3-30b-a3b", "llama3-8b"])
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--length", type=int, default=2048)
    p.add_argument("--rank", type=int, default=16)
    p.add_argument("--targets", default="all-linear", choices=["all-linear", "attention"])
    p.add_argument("--nf4", action="store_true")
    p.add_argument("--checkpointing", action="store_true", help="Unsloth's own: activations in host memory")
    p.add_argument("--warmup", type=int, default=6)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--scratch", default="/tmp/peer_steps")
    p.add_argument("--runs", help="a list of lines of these arguments")
    return p.parse_args()


# ---- the model ----

def config_of(a):
    import transformers
    common = {"num_hidden_layers": a.layers, "tie_word_embeddings": False, "use_cache": False, "bos_token_id": 1,
              "eos_token_id": 2, "pad_token_id": 3}
    if a.shape == "llama3-8b":
        return transformers.LlamaConfig(hidden_size=4096, intermediate_size=14336, num_attention_heads=32,
                                        num_key_value_heads=8, vocab_size=128256, rope_theta=5e5,
                                        max_position_embeddings=131072, **common)
    return transformers.Qwen3MoeConfig(hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768,
                                       num_experts=128, num_experts_per_tok=8, num_attention_heads=32,
                                       num_key_value_heads=4, head_dim=128, vocab_size=151936, norm_topk_prob=True,
                                       max_position_embeddings=40960, rope_theta=1e6, **common)


def folder_of(a):
    return os.path.join(a.scratch, "%s-%d" % (a.shape, a.layers))


def write_model(a):
    """A model folder with a tokenizer of single characters."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config_of(a))
    words = ["<unk>", "<s>", "</s>", "<pad>"] + [chr(c) for c in range(33, 127)]
    tokens = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokens, unk_token="<unk>", bos_token="<s>",
                                                     eos_token="</s>", pad_token="<pad>")
    part = folder_of(a) + ".part"
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    os.rename(part, folder_of(a))


def unsloth_model(a):
    from unsloth import FastLanguageModel  # before torch, transformers and peft: it patches them
    import torch
    checkpointing = "unsloth" if a.checkpointing else False
    model, _ = FastLanguageModel.from_pretrained(
        folder_of(a), max_seq_length=a.length, dtype=torch.bfloat16, load_in_4bit=a.nf4, load_in_16bit=not a.nf4,
        use_exact_model_name=True, local_files_only=True, use_gradient_checkpointing=checkpointing)
    targets = ATTENTION + ["gate_proj", "up_proj", "down_proj"] * (a.targets == "all-linear")
    if a.shape == "qwen3-30b-a3b" and a.targets == "all-linear":
        targets.append("gate_up_proj")
    model = FastLanguageModel.get_peft_model(
        model, r=a.rank, lora_alpha=2 * a.rank, lora_dropout=0.0, target_modules=targets, bias="none", random_state=0,
        use_gradient_checkpointing=checkpointing)
    FastLanguageModel.for_training(model, use_gradient_checkpointing=checkpointing)
    return model


def peft_model(a):
    import peft
    import torch
    import transformers
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder_of(a), dtype=torch.bfloat16, attn_implementation="sdpa", device_map={"": 0})
    parameters = {"target_parameters": EXPERT_PARAMETERS} if a.targets == "all-linear" else {}
    return peft.get_peft_model(model, peft.LoraConfig(r=a.rank, lora_alpha=2 * a.rank, target_modules=ATTENTION,
                                                      **parameters))


# ---- its steps ----

def train(a, model):
    import torch
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    ids = torch.randint(0, model.config.vocab_size, (a.batch, a.length), device="cuda")
    times = []
    for step in range(a.warmup + a.steps):
        if step == a.warmup:
            torch.cuda.reset_peak_memory_stats()  # the first steps tune kernels, in memory of their own
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    times = times[a.warmup:]
    return {"trained": sum(p.numel() for p in trained), "step_ms": round(statistics.median(times), 2),
            "step_ms_min": round(min(times), 2), "step_ms_max": round(max(times), 2),
            "peak_allocated_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2), "last_loss": loss.item()}


def versions():
    import importlib.metadata as metadata
    names = ("torch", "triton", "transformers", "peft", "bitsandbytes", "unsloth", "unsloth_zoo", "fla-core")
    return {n: metadata.version(n) for n in names if any(metadata.distributions(name=n))}


def run_model(a):
    if not os.path.isdir(folder_of(a)):
        os.makedirs(a.scratch, exist_ok=True)
        subprocess.run([sys.executable, os.path.abspath(__file__), "write", a.shape, "--layers", str(a.layers),
                        "--scratch", a.scratch], check=True)
    model = unsloth_model(a) if a.peer == "unsloth" else peft_model(a)
    out = {k: getattr(a, k) for k in ("shape", "layers", "batch", "length", "rank", "targets", "nf4", "checkpointing")}
    return dict(out, **train(a, model))


# ---- single kernels ----

def grouped_rates(torch, random):
    """torch's matmul over 128 experts, 8192 tokens x 8: forward and dX of gate_up and down (test_kernels_cuda_grouped)."""
    experts, rows, out = 128, 65536, {}
    shares = [1 / (e + 1) for e in range(experts)]
    zipf = [int(rows * s / sum(shares)) for s in shares]
    zipf[0] += rows - sum(zipf)
    grouped = getattr(torch, "_grouped_mm", None) or torch.nn.functional.grouped_mm
    for loads, counts in (("even", [rows // experts] * experts), ("Zipf", zipf)):
        ends = torch.tensor(counts, device="cuda").cumsum(0).to(torch.int32)
        for name, k, n in (("gate_up", 2048, 1536), ("gate_up backward", 1536, 2048), ("down", 768, 2048),
                           ("down backward", 2048, 768)):
            # Weights lie as files have them, [n, k] of each expert; dX reads the same ones.
            backward = name.endswith("backward")
            weights = random(experts, k, n) if backward else random(experts, n, k).transpose(1, 2)
            x = random(rows, k)
            ms = median_ms(torch, lambda: grouped(x, weights, offs=ends))
            out["%s %s" % (name, loads)] = {"ms": ms, "tflop_s": 2e-9 * rows * k * n / ms}
    return out


def delta_times(torch, random):
    """flash-linear-attention's gated delta rule, 8192 tokens in 4 documents, 32 heads of 128 (Qwen3.5's shape)."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    tokens, heads = 8192, 32
    q, k, v = (random(1, tokens, heads, 128).requires_grad_() for _ in range(3))
    beta = torch.rand(1, tokens, heads, device="cuda").bfloat16().requires_grad_()
    decay = torch.nn.functional.logsigmoid(torch.rand(1, tokens, heads, device="cuda")).requires_grad_()
    ends = torch.arange(0, tokens + 1, tokens // 4, device="cuda")

    def forward():
        return chunk_gated_delta_rule(q, k, v, decay, beta, use_qk_l2norm_in_kernel=True, cu_seqlens=ends)[0]
    with torch.no_grad():
        out = {"forward_ms": median_ms(torch, forward)}
    try:
        o = forward()
        d_o = torch.randn_like(o)
        out["backward_ms"] = median_ms(
            torch, lambda: torch.autograd.grad(o, (q, k, v, decay, beta), d_o, retain_graph=True))
    except Exception as error:  # it refuses some versions of Triton
        out["backward"] = "%s: %s" % (type(error).__name__, str(error)[:200])
    return out


def run_kernels():
    import torch
    generator = torch.Generator("cuda").manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, generator=generator)
    x, y = random(8192, 8192), random(8192, 8192)
    return {"gemm_8192_tflop_s": 2e-9 * 8192**3 / median_ms(torch, lambda: x @ y, 200),
            "grouped_mm": grouped_rates(torch, random), "delta_rule": delta_times(torch, random)}


def run_lines(a):
    code = 0
    with open(a.runs) as f:
        lines = [line.split("#")[0].strip() for line in f]
    for line in filter(None, lines):
        child = subprocess.run([sys.executable, os.path.abspath(__file__), *shlex.split(line), "--scratch", a.scratch],
                               stdout=subprocess.PIPE, text=True)
        results = [x for x in child.stdout.splitlines() if x.startswith('{"bench"')]
        result = json.loads(results[-1]) if results else {"bench": "peer_steps", "error": "exit %d" % child.returncode}
        print(json.dumps(dict(result, line=line), separators=(",", ":")), flush=True)
        code |= "error" in result
    return code


def main():
    a = parse()
    for name, value in OFFLINE.items():
        os.environ.setdefault(name, value)
    for name in ("HF_HOME", "UNSLOTH_COMPILE_LOCATION", "TORCHINDUCTOR_CACHE_DIR"):
        os.environ.setdefault(name, os.path.join(a.scratch, name.lower()))
    if a.runs:
        return run_lines(a)
    if a.peer == "write":
        return write_model(a)
    out = run_kernels() if a.peer == "kernels" else run_model(a)
    print(json.dumps({"bench": "peer_steps", "peer": a.peer, **out, "versions": versions()}))


if __name__ == "__main__":
    sys.exit(main())
