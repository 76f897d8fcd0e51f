#!/usr/bin/env python3
"""Errors of Tessera's bf16 step, and of PEFT + bitsandbytes' on the same weights, against float64.

For each shape a checkpoint of --layers layers is made: bf16, weights N(0, 0.02), norms 1, --vocabulary rows instead of
the model's own to save memory; and for each case a PEFT adapter with B != 0 and, for DoRA, magnitudes a little off the
row norms. Its A and B are exact in bf16, so nobody's rounding of them counts. One step on random tokens that are all
labels is then computed three times:

  reference   tools/fp64_model.py in float64 on the fp32 values of the NF4 codes
  PEFT        bitsandbytes' 4-bit layers holding the same codes, fp32 adapter weights under bf16 autocast, the rest bf16
  ours        tools/step_dump: the program's own job reads the bf16 checkpoint, quantizes it and runs one step

An error is ||x - reference|| / ||reference||, and for the worst element max |x - reference| / max |reference|; of
gradients the first is the root mean square over the tensors of a kind (A, B, m), each counted alike, the second the
largest over them. It fails (exit status 1) where
  - the error of logits or of a kind of gradient is above PEFT's, or a worst logit or element of a gradient above 1.25
    times PEFT's (a largest of many draws moves that much by itself);
  - the error of the labels' losses ("nll") is above 1 + 2 / sqrt(tokens) times PEFT's: two standard deviations of the
    ratio of two such errors over so few numbers;
  - the mean loss is further off than PEFT's and than 3 times what PEFT's token errors leave in a mean, rms /
    sqrt(tokens): it is one number, in which errors cancel by luck; the losses of the labels are the sharp test;
  - cases "gate<r>", DoRA with g within 1e-3 of 1: the worst logit is above that of the paper's stable form,
    base + ((g - 1) base + g (s lora)) in fp32 from bf16 terms and rounded once, put into the same PEFT model with
    an exact fp32 g; logits of both are computed in float64 from the rows before the head;
  - with dtype float32 (--check cases) an error is above 1e-5 and above 1.5 times that of PyTorch in float32: the
    reference's own formulas with everything, but the tables of the rotary embedding, in float32 without TF32. See
    FLOAT32_SLACK.
Ours' logits are the rows before the head times the head in float64: the program holds no logits, its own are fp32 sums.
PEFT's are the bf16 logits its users get; "rows" (told, not judged) is the error just before the head.

With --fp8 ours is computed with base_compute: fp8, and all are held against another reference, with the weights as they
were before NF4: no error but the loss's may be above FP8_SLACK times that of the float64 reference on NF4's values,
which is what NF4 alone costs.

  tools/accuracy_gpu.py --build build-gpu --out accuracy.json
  tools/accuracy_gpu.py --build build --backend cpu --device cpu --shapes tiny --peft plain --dtypes float32
Needs torch and safetensors; without --fp8 also transformers, peft and bitsandbytes (tools/compare_deps).
"""
import argparse
import gc
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

SHAPES = {  # hidden, intermediate, heads, key heads, vocabulary
    "llama3-8b": (4096, 14336, 32, 8, 128256),
    "llama3-70b": (8192, 28672, 64, 8, 128256),
    "tiny": (256, 704, 4, 2, 4096),
    "wide": (256, 28672, 4, 2, 4096),  # the longest sums of a 70B, for a CPU
}
PARTS = {"lora_A.weight": "dA", "lora_B.weight": "dB", "lora_magnitude_vector": "dm"}
WORST_SLACK = 1.25
LOSS_DEVIATIONS = 3
FLOAT32_LIMIT = 1e-5
# What is left in float32 is the rounding of long sums: K terms added one after the other are off by about
# 2^-24 sqrt(K / 12) of their size (3e-6 for a down_proj of a 70B), in s parts by 1 / sqrt(s) of that; all else is
# below 1e-6 (--backend cpu --device cpu --shapes wide: sums in blocks). So the error of a right program is a matter of
# the order in which its matmuls add, which the library chooses: no fixed limit fits all widths, but PyTorch's matmuls
# are of the same library on the same card. Of two kernels one may add in two parts and the other in one: sqrt(2),
# rounded up.
FLOAT32_SLACK = 1.5
# e4m3 adds about 3.7 % of independent error (2.6 % of the weights, as much of x) to the 10 % of NF4: 1.07.
FP8_SLACK = 1.15


# ---- inputs ----

def model_config(a, shape):
    hidden, intermediate, heads, kv, vocabulary = SHAPES[shape]
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
            "intermediate_size": intermediate, "num_hidden_layers": a.layers, "num_attention_heads": heads,
            "num_key_value_heads": kv, "head_dim": hidden // heads, "vocab_size": min(vocabulary, a.vocabulary),
            "max_position_embeddings": 8192, "hidden_act": "silu", "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}, "tie_word_embeddings": False,
            "attention_bias": False, "mlp_bias": False, "dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1}


def linears(config):
    """{module: (out, in)} of all layers."""
    d, f = config["hidden_size"], config["intermediate_size"]
    q, kv = (config[n] * config["head_dim"] for n in ("num_attention_heads", "num_key_value_heads"))
    shapes = {"self_attn.q_proj": (q, d), "self_attn.k_proj": (kv, d), "self_attn.v_proj": (kv, d),
              "self_attn.o_proj": (d, q), "mlp.gate_proj": (f, d), "mlp.up_proj": (f, d), "mlp.down_proj": (d, f)}
    return {"model.layers.%d.%s" % (i, n): s for i in range(config["num_hidden_layers"]) for n, s in shapes.items()}


def random_weights(torch, a, config):
    generator = torch.Generator(a.device).manual_seed(a.seed)

    def normal(*shape):
        return torch.empty(shape, dtype=torch.bfloat16, device=a.device).normal_(0, 0.02, generator=generator)

    d, vocabulary = config["hidden_size"], config["vocab_size"]
    out = {"model.embed_tokens.weight": normal(vocabulary, d), "lm_head.weight": normal(vocabulary, d)}
    out |= {module + ".weight": normal(*shape) for module, shape in linears(config).items()}
    norms = ["model.norm"] + ["model.layers.%d.%s_layernorm" % (i, n) for i in range(config["num_hidden_layers"])
                              for n in ("input", "post_attention")]
    return out | {n + ".weight": torch.ones(d, dtype=torch.bfloat16, device=a.device) for n in norms}


def write_checkpoint(directory, config, weights):
    from safetensors.torch import save_file
    os.makedirs(directory)
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(config, f)
    save_file({k: v.cpu() for k, v in weights.items()}, os.path.join(directory, "model.safetensors"),
              metadata={"format": "pt"})


def make_adapter(torch, a, case, reference, config):
    """{module: {"A", "B", "m", "scale"}} in float64, values exact in fp32 (A and B in bf16)."""
    from fp64_model import norm_of_rows
    generator = torch.Generator(a.device).manual_seed(a.seed + 1)
    r, out = case["r"], {}

    def uniform(*shape):
        return torch.rand(shape, device=a.device, generator=generator) * 2 - 1

    for module, (rows, columns) in linears(config).items():
        w = reference.w[module + ".weight"]
        A = (uniform(r, columns) * columns**-0.5).bfloat16().double()
        B = (torch.empty(rows, r, device=a.device).normal_(0, 0.02, generator=generator)).bfloat16().double()
        adapter = {"A": A, "B": B, "m": None, "scale": 2.0}
        if case["kind"] == "dora":
            adapter["m"] = (torch.linalg.vector_norm(w, dim=1) * (1 + 0.01 * uniform(rows))).float().double()
        if case["kind"] == "gate":
            adapter["m"] = (norm_of_rows(w, adapter) * (1 + 1e-3 * uniform(rows))).float().double()
        out[module] = adapter
    return out


def adapter_options(case):
    from peft_bnb import KINDS
    return {"task_type": "CAUSAL_LM", "r": case["r"], "lora_alpha": 2 * case["r"], "lora_dropout": 0.0,
            "target_modules": list(KINDS), "use_dora": case["kind"] != "lora"}


def peft_config(case):
    import peft
    return peft.LoraConfig(**adapter_options(case))


def named(adapters):
    """{the name that PEFT writes: value}"""
    from peft_bnb import PREFIX
    names = {"A": "lora_A.weight", "B": "lora_B.weight", "m": "lora_magnitude_vector"}
    return {"%s%s.%s" % (PREFIX, module, names[part]): adapter[part]
            for module, adapter in adapters.items() for part in "ABm" if adapter[part] is not None}


def write_adapter(directory, case, adapters):
    from safetensors.torch import save_file
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "adapter_config.json"), "w") as f:
        json.dump({"peft_type": "LORA"} | adapter_options(case), f)
    save_file({k: v.float().cpu().contiguous() for k, v in named(adapters).items()},
              os.path.join(directory, "adapter_model.safetensors"), metadata={"format": "pt"})


# ---- the three ----

def run_reference(reference, adapters, ids):
    """A step by the formulas, in the dtype that the model and the adapters have."""
    from fp64_model import losses
    trained = {name: value.requires_grad_() for name, value in named(adapters).items()}
    rows = reference.label_rows(ids, adapters)
    logits = reference.logits(rows)
    nll = losses(logits, ids)
    nll.mean().backward()
    out = {"rows": rows.detach(), "logits": logits.detach(), "nll": nll.detach(),
           "loss": nll.detach().double().mean().item(),
           "gradients": {name: value.grad for name, value in trained.items()}}
    for value in trained.values():
        value.requires_grad_(False).grad = None
    return out


def run_float32(torch, reference, adapters, ids):
    """The same in PyTorch's float32."""
    from fp64_model import Model
    torch.set_float32_matmul_precision("highest")
    single = Model(reference.config, {name: w.float() for name, w in reference.w.items()})
    return run_reference(single, {module: {key: value if key == "scale" or value is None else value.detach().float()
                                           for key, value in adapter.items()}
                                  for module, adapter in adapters.items()}, ids)


def run_peft(torch, a, base, case, adapters, ids):
    import peft_bnb
    from fp64_model import losses
    model = peft_bnb.with_adapter(base, peft_config(case), named(adapters))
    kept = {}
    hook = model.get_base_model().model.norm.register_forward_hook(
        lambda module, args, output: kept.update(rows=output.detach()))
    with peft_bnb.autocast(a.device):
        output = model(input_ids=ids, labels=ids, use_cache=False)
    output.loss.backward()
    hook.remove()
    logits = output.logits.detach()[:, :-1].flatten(0, 1)
    out = {"rows": kept["rows"][:, :-1].flatten(0, 1), "logits": logits, "nll": losses(logits.double(), ids),
           "loss": output.loss.item(),
           "gradients": {name: p.grad.detach() for name, p in peft_bnb.tensor_names(model).items()}}
    model.unload()
    return out


def run_stable(torch, a, base, adapters, ids, reference):
    """The rows before the head where every linear is composed in the paper's stable form."""
    import peft_bnb
    from fp64_model import norm_of_rows
    saved = {}
    for module, adapter in adapters.items():
        layer = base.get_submodule(module)
        g = (adapter["m"] / norm_of_rows(reference.w[module + ".weight"], adapter)).float()
        A, B, s = adapter["A"].bfloat16(), adapter["B"].bfloat16(), adapter["scale"]

        def forward(x, plain=layer.forward, A=A, B=B, g=g, s=s):
            x = x.bfloat16()
            terms, lora = plain(x).float(), (x @ A.T @ B.T).float()
            return (terms + ((g - 1) * terms + g * (s * lora))).bfloat16()

        saved[module], layer.forward = layer.forward, forward
    try:
        with torch.no_grad(), peft_bnb.autocast(a.device):
            rows = base.model(input_ids=ids, use_cache=False).last_hidden_state
    finally:
        for module in saved:
            del base.get_submodule(module).forward  # the instance's: the class's is back
    return rows[:, :-1].flatten(0, 1)


def run_ours(torch, a, files, dtype, ids, reference):
    from safetensors.torch import load_file
    job = os.path.join(files, "job.yaml")
    with open(job, "w") as f:
        f.write("model_name_or_path: \"%s/model\"\ninit_adapter: \"%s/adapter\"\n" % (files, files))
        f.write("dataset: \"%s/rows.jsonl\"\neval_dataset: \"%s/rows.jsonl\"\n" % (files, files))
        f.write("dataset_format: pretokenized\nshuffle: false\nmax_length: %d\n" % ids.shape[1])
        f.write("per_device_train_batch_size: %d\ntotal_batch_size: %d\n" % (ids.shape[0], ids.shape[0]))
        f.write("max_steps: 1\nlr_scheduler_type: constant\nmax_grad_norm: 0\ngradient_checkpointing: none\n")
        f.write("backend: %s\ndtype: %s\nbase_compute: %s\n" % (a.backend, dtype, "fp8" if a.fp8 else "dtype"))
        f.write("output_dir: \"%s/out\"\noverwrite_output_dir: true\n" % files)
    dump = os.path.join(files, "step.safetensors")
    if a.device == "cuda":
        torch.cuda.empty_cache()  # the card is shared with the program
    command = [os.path.join(a.build, "tools", "step_dump"), dump, job] + a.keys
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    if done.returncode:
        sys.exit("%s\n%s" % (" ".join(command), done.stderr))
    t = load_file(dump, device=a.device)
    os.unlink(dump)
    rows, loss = t.pop("label_rows"), t.pop("loss").tolist()
    nll, _ = t.pop("nll"), t.pop("grad_norm")
    out = {"rows": rows, "logits": reference.logits(rows.double()), "nll": nll, "loss": loss[1], "gradients": t}
    if abs(loss[0] - loss[1]) > 1e-9 * abs(loss[1]):
        print("note: the loss of the evaluation is %.10g, of the step %.10g" % tuple(loss), file=sys.stderr)
    return out


# ---- comparison ----

def error(x, want):
    """(norm of the difference, worst element), as shares of the reference's norm and largest element."""
    if x.shape != want.shape:
        sys.exit("a tensor is %s, the reference's %s" % (tuple(x.shape), tuple(want.shape)))
    d = x.to(want.device).double() - want
    pair = ((d.norm() / want.norm()).item(), (d.abs().max() / want.abs().max()).item())
    return pair if all(map(math.isfinite, pair)) else (math.inf, math.inf)


def errors(got, want):
    """{group: (error, worst)} and {tensor: error} of the gradients."""
    out = {group: error(got[group], want[group]) for group in ("rows", "logits", "nll")}
    out["loss"] = (abs(got["loss"] - want["loss"]) / abs(want["loss"]),) * 2
    # What the errors of tokens leave in their mean, were they independent.
    d = (got["nll"].to(want["nll"].device).double() - want["nll"]).square().mean().sqrt().item()
    out["loss by chance"] = (d / math.sqrt(want["nll"].numel()) / abs(want["loss"]),) * 2
    tensors = {}
    if got["gradients"].keys() != want["gradients"].keys():
        sys.exit("not the same gradients: %s" % sorted(got["gradients"].keys() ^ want["gradients"].keys())[:4])
    for name, w in want["gradients"].items():
        tensors[name] = error(got["gradients"][name], w)
    for ending, part in PARTS.items():
        of_part = [e for name, e in tensors.items() if name.endswith(ending)]
        if of_part:
            out[part] = (math.sqrt(sum(e[0]**2 for e in of_part) / len(of_part)), max(e[1] for e in of_part))
    return out, tensors


def judge(case, ours, theirs, tokens):
    """Texts of what is worse than PEFT's; tokens: how many labels there are."""
    worse = []
    for group in ("logits", "nll", "dA", "dB", "dm"):
        if group not in ours:
            continue
        slack = 1 + 2 / math.sqrt(tokens) if group == "nll" else 1
        if not ours[group][0] <= slack * theirs[group][0]:
            worse.append("%s: %s %.3e, PEFT's %.3e" % (case, group, ours[group][0], theirs[group][0]))
        if group != "nll" and not ours[group][1] <= WORST_SLACK * theirs[group][1]:
            worse.append("%s: worst %s %.3e, PEFT's %.3e" % (case, group, ours[group][1], theirs[group][1]))
    chance = LOSS_DEVIATIONS * theirs["loss by chance"][0]
    if not ours["loss"][0] <= max(theirs["loss"][0], chance):
        worse.append("%s: loss %.3e, PEFT's %.3e, by chance %.3e" % (case, ours["loss"][0], theirs["loss"][0], chance))
    return worse


def judge_float32(case, ours, pytorch):
    """Texts of what is further off than PyTorch's float32 and the limit allow."""
    worse = []
    for group, (norm, _) in ours.items():
        allowed = max(FLOAT32_LIMIT, FLOAT32_SLACK * pytorch[group][0])
        if group != "loss by chance" and not norm <= allowed:
            worse.append("%s float32: %s %.3e, allowed %.3e, PyTorch's %.3e" % (
                case, group, norm, allowed, pytorch[group][0]))
    return worse


def judge_fp8(case, ours, nf4):
    """Texts of what is further off than NF4 alone allows."""
    return ["%s fp8: %s %.3e, NF4 alone %.3e" % (case, group, norm, nf4[group][0])
            for group, (norm, _) in ours.items()
            if not group.startswith("loss") and not norm <= FP8_SLACK * nf4[group][0]]


def show(name, ours, theirs, tensors):
    """Lines of the table."""
    for group in ("rows", "logits", "nll", "loss", "dA", "dB", "dm"):
        if group not in ours:
            continue
        line = "%-24s %-6s %.3e  %.3e" % (name, group, ours[group][0], ours[group][1])
        if theirs:
            line += "   %.3e  %.3e   %5.2f %5.2f" % (*theirs[group], *(
                o / t if t else math.inf for o, t in zip(ours[group], theirs[group])))
            ending = {part: e for e, part in PARTS.items()}.get(group)
            ratios = {n: o[0] / p[0] for n, (o, p) in tensors.items() if ending and n.endswith(ending)}
            if ratios:
                most = max(ratios, key=ratios.get)
                where = re.sub(r".*layers\.(\d+)\.\w+\.(\w+)\.lora.*", r"\2 \1", most)
                line += "   most %.2f %s" % (ratios[most], where)
        print(line, flush=True)


def numbers(group_errors):
    return {k: {"norm": v[0], "worst": v[1]} for k, v in group_errors.items()}


# ---- a case ----

def one_fp8_case(torch, a, state, name, case, adapters, of_nf4):
    """The same with an fp8 base."""
    ids, begin = state["ids"], time.perf_counter()
    want = run_reference(state["unquantized"], adapters, ids)
    nf4, nf4_tensors = errors(of_nf4, want)
    got = run_ours(torch, a, state["files"], "bfloat16" if a.backend == "cuda" else "float32", ids, state["reference"])
    ours, tensors = errors(got, want)
    show(name + " fp8, NF4", ours, nf4, {n: (tensors[n], nf4_tensors[n]) for n in tensors})
    return {"case": name, "reference_loss": want["loss"], "fp8": numbers(ours), "nf4": numbers(nf4),
            "worse": judge_fp8(name, ours, nf4), "seconds": time.perf_counter() - begin}


def one_case(torch, a, state, shape, case):
    """Runs it, prints its lines, returns its record."""
    begin = time.perf_counter()
    reference, base, ids, files = state["reference"], state["base"], state["ids"], state["files"]
    name = "%s %s%d" % (shape, case["kind"], case["r"])
    adapters = make_adapter(torch, a, case, reference, state["config"])
    write_adapter(os.path.join(files, "adapter"), case, adapters)
    want = run_reference(reference, adapters, ids)
    if a.fp8:
        return one_fp8_case(torch, a, state, name, case, adapters, want)
    record = {"shape": shape, "case": case["kind"] + str(case["r"]), "reference_loss": want["loss"], "worse": []}
    theirs, their_tensors = None, {}
    if base is not None:
        got = run_peft(torch, a, base, case, adapters, ids)
        theirs, their_tensors = errors(got, want)
        theirs_rows = got["rows"]
        record["peft"] = numbers(theirs)
        del got
    dtypes = [d for d in a.dtypes if d == "bfloat16" or record["case"] in a.check]
    for dtype in dtypes:
        got = run_ours(torch, a, files, dtype, ids, reference)
        ours, tensors = errors(got, want)
        record[dtype] = numbers(ours)
        if dtype == "float32":
            pytorch, _ = errors(run_float32(torch, reference, adapters, ids), want)
            record["pytorch float32"] = numbers(pytorch)
            show(name + " fp32", ours, pytorch, {})
            record["worse"] += judge_float32(name, ours, pytorch)
            continue
        both = {n: (tensors[n], their_tensors[n]) for n in tensors} if theirs else {}
        record["tensors"] = {n: {"ours": o[0], "peft": p[0]} for n, (o, p) in both.items()}
        show(name, ours, theirs, both)
        if theirs:
            record["worse"] += judge(name, ours, theirs, want["nll"].numel())
        if theirs and case["kind"] == "gate":
            stable = run_stable(torch, a, base, adapters, ids, reference)
            forms = {"ours": got["rows"], "stable": stable, "peft": theirs_rows}
            record["gate"] = {k: error(reference.logits(v.double()), want["logits"]) for k, v in forms.items()}
            for form, (norm, worst) in record["gate"].items():
                print("%-24s logits in float64 after %-6s  %.3e  worst %.3e" % (name, form, norm, worst), flush=True)
            if not record["gate"]["ours"][1] <= record["gate"]["stable"][1]:
                record["worse"].append("%s: worst logit %.3e, the stable form's %.3e" % (
                    name, record["gate"]["ours"][1], record["gate"]["stable"][1]))
    record["seconds"] = time.perf_counter() - begin
    return record


def prepare(torch, a, shape, files):
    """Checkpoint, reference, PEFT's base, tokens."""
    import peft_bnb
    from fp64_model import Model
    config = model_config(a, shape)
    weights = random_weights(torch, a, config)
    write_checkpoint(os.path.join(files, "model"), config, weights)
    quantized = peft_bnb.quantize(weights, a.device)
    if a.peft == "bitsandbytes":
        wrong = peft_bnb.check_bitsandbytes(quantized)
        if wrong:  # its kernels' own affair: they are what users get
            print("note: bitsandbytes dequantizes %d elements of %s to other bf16 values" % (wrong, shape))
    generator = torch.Generator().manual_seed(a.seed + 2)
    ids = torch.randint(config["vocab_size"], (a.batch, a.length), generator=generator)
    with open(os.path.join(files, "rows.jsonl"), "w") as f:
        for row in ids.tolist():
            f.write(json.dumps({"input_ids": row}) + "\n")
    base = None
    if a.peft != "none":
        base = peft_bnb.base_model(os.path.join(files, "model"), weights, quantized, a.device, a.peft)
    exact = {n: (quantized[n].dequantized() if n in quantized else w).double() for n, w in weights.items()}
    unquantized = Model(config, {n: w.double() for n, w in weights.items()}) if a.fp8 else None
    return {"config": config, "reference": Model(config, exact), "unquantized": unquantized, "base": base,
            "ids": ids.to(a.device), "files": files}


def parse():
    p = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    p.add_argument("--build", required=True, help="build directory with tools/step_dump")
    p.add_argument("--shapes", default="llama3-8b,llama3-70b")
    p.add_argument("--cases", default="lora16,dora16,lora384,dora384,gate384")
    p.add_argument("--check", default="dora16", help="cases that are run in float32 too")
    p.add_argument("--dtypes", default="bfloat16,float32")
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--batch", type=int, default=2)
    p.add_argument("--length", type=int, default=512)
    p.add_argument("--vocabulary", type=int, default=32768)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--device", default="cuda", help="of PyTorch")
    p.add_argument("--backend", default="cuda", help="of Tessera")
    p.add_argument("--peft", default="bitsandbytes", choices=("bitsandbytes", "plain", "none"),
                   help="plain: bf16 linears of the same values")
    p.add_argument("--fp8", action="store_true", help="base_compute: fp8, against what NF4 alone costs")
    p.add_argument("--scratch", help="parent of the run's files [$TMPDIR or /tmp]")
    p.add_argument("--out")
    p.add_argument("keys", nargs="*", metavar="key=value", help="more of the job's configuration")
    a = p.parse_args()
    cases = [re.fullmatch(r"(lora|dora|gate)(\d+)", c) or p.error("--cases: %s" % c) for c in a.cases.split(",")]
    a.cases = [{"kind": c[1], "r": int(c[2])} for c in cases]
    a.peft = "none" if a.fp8 else a.peft
    a.check, a.dtypes, a.shapes = a.check.split(","), a.dtypes.split(","), a.shapes.split(",")
    return a


def main():
    a, begin = parse(), time.perf_counter()
    import peft_bnb
    import torch
    versions = peft_bnb.versions() if a.peft != "none" else peft_bnb.versions(())
    all_ = {"bench": "accuracy", "versions": versions, "layers": a.layers, "batch": a.batch,
            "length": a.length, "vocabulary": a.vocabulary, "seed": a.seed, "peft": a.peft, "keys": a.keys,
            "device": torch.cuda.get_device_name() if a.device == "cuda" else a.device, "cases": [], "worse": []}
    print("%-24s %-6s %-20s   %-20s   %s" % (
        "||x - fp64|| / ||fp64||", "", "ours, worst element", "PEFT, worst element", "ours / PEFT (fp32: PyTorch)"))
    for shape in a.shapes:
        with tempfile.TemporaryDirectory(dir=a.scratch) as files:
            state = prepare(torch, a, shape, files)
            print("note: %s is prepared after %.1f s" % (shape, time.perf_counter() - begin), file=sys.stderr)
            for case in a.cases:
                if shape == "llama3-70b" and case["kind"] == "gate":
                    continue  # the paper's shapes are those of 8B to 32B models
                record = one_case(torch, a, state, shape, case)
                all_["cases"].append(record)
                all_["worse"] += record["worse"]
                if a.out:
                    with open(a.out, "w") as f:
                        json.dump(all_, f, indent=1)
                gc.collect()
            del state
            gc.collect()
    for text in all_["worse"]:
        print("WORSE " + text)
    right = "nothing is worse than %s" % ("NF4 allows" if a.fp8 else "PEFT's, or PyTorch's in fp32")
    print("accuracy: %s" % ("%d worse" % len(all_["worse"]) if all_["worse"] else right))
    return bool(all_["worse"])


if __name__ == "__main__":
    sys.exit(main())
