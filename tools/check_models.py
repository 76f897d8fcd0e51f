#!/usr/bin/env python3
"""What `tessera merge` and `tessera quantize` write, in Transformers, PEFT and bitsandbytes.

  tools/check_models.py --build build [--model examples/tiny-llama]   adapters of several kinds, with and without nesting
  tools/check_models.py --build build --families                      a small model of every family and class of
                                                                      docs/models.md, with a trained DoRA of all linears,
                                                                      or where there are experts a LoRA on them too
Needs tools/requirements.txt and bitsandbytes 0.50.
Merged: the model's auto class loads the directory; each weight is PEFT's merge_and_unload in fp32 rounded to bf16, up to
one step of bf16 where the two fp32 values lie on both sides of a rounding's edge (at most 0.1 % of the elements).
Quantized: Transformers loads the directory with bitsandbytes, the linears of the decoder in 4 bits and no others; each
weight that bitsandbytes dequantizes from it is the one that FORMATS 1 gives, bit for bit, its codes are those of
bitsandbytes' own quantization on load, and the logits are those of this tree on the same directory (3e-4). Exit status 1 if
anything differs.
"""
import argparse
import os
import subprocess
import sys
import tempfile

TREE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
ADAPTERS = ["traces/c1_dora/final", "traces/a_lora/final", "traces/init/dora_patterns", "traces/init/rslora_r16"]
failures = 0


def run(*command):
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")


def judge(what, good):
    global failures
    failures += not good
    print(f"{what}: {'as expected' if good else 'DIFFERS'}")


def check_merge(tessera, model, adapter, name, directory):
    import torch
    from peft import PeftModel
    from tiny_models import auto_class
    from transformers import AutoTokenizer
    run(tessera, "merge", "/dev/null", f"model_name_or_path={model}", f"init_adapter={adapter}", f"output_dir={directory}")
    ours, loaded = auto_class(directory).from_pretrained(directory, output_loading_info=True)
    absent = set(loaded["missing_keys"])  # golden files have no towers: Transformers makes random ones
    judge(f"{name}: the decoder is all there", all(key.startswith("model.visual.") for key in absent))
    if os.path.exists(os.path.join(model, "tokenizer.json")):
        AutoTokenizer.from_pretrained(directory)
    judge(f"{name}: loaded in bf16", ours.dtype == torch.bfloat16)
    base = auto_class(model).from_pretrained(model, dtype=torch.float32)
    peer = PeftModel.from_pretrained(base, adapter).merge_and_unload().state_dict()
    worst, off, total = 0, 0, 0
    for key, weight in ours.state_dict().items():
        if key in absent:
            continue
        if weight.dtype == torch.float32:  # which Transformers keeps so, of a router's correction bias
            judge(f"{name}: {key}", torch.equal(weight, peer[key]))
            continue
        expected = peer[key].to(torch.bfloat16)
        steps = (weight.view(torch.int16).int() - expected.view(torch.int16).int()).abs()
        worst, off, total = max(worst, int(steps.max())), off + int((steps > 0).sum()), total + steps.numel()
    judge(f"{name}: {off} of {total} elements off PEFT's, at most {worst} step of bf16", worst <= 1 and off < 1e-3 * total)


def logits_here(build, model, row, directory):
    import json
    from safetensors.torch import load_file
    data, out = os.path.join(directory, "row.jsonl"), os.path.join(directory, "logits.safetensors")
    with open(data, "w") as f:
        json.dump({"input_ids": row}, f)
    run(os.path.join(build, "tools/logits"), out, "/dev/null", f"model_name_or_path={model}", f"eval_dataset={data}",
        "dataset_format=pretokenized", "backend=cpu")
    return load_file(out)["logits"]


def check_quantize(tessera, build, model, nested, name, directory):
    import bitsandbytes as bnb
    import torch
    from tiny_models import auto_class
    from transformers import BitsAndBytesConfig
    nf4 = os.path.join(directory, "nf4")
    run(tessera, "quantize", "/dev/null", f"model_name_or_path={model}", f"output_dir={nf4}", f"use_bnb_nested_quant={nested}")
    ours = auto_class(nf4).from_pretrained(nf4, device_map="cpu", dtype=torch.float32, attn_implementation="eager")
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=nested == "true",
                                bnb_4bit_compute_dtype=torch.float32)
    peer = auto_class(model).from_pretrained(model, device_map="cpu", dtype=torch.bfloat16, quantization_config=config)
    decoder = {id(module) for module in ours.get_decoder().modules()}
    count, only, codes, values = 0, True, True, True
    for path, module in ours.named_modules():
        if not isinstance(module, bnb.nn.Linear4bit):
            only &= not isinstance(module, torch.nn.Linear) or id(module) not in decoder
            continue
        count += 1
        only &= id(module) in decoder
        codes &= torch.equal(module.weight.data.view(torch.uint8).flatten(),
                             peer.get_submodule(path).weight.data.view(torch.uint8).flatten())
        state = module.weight.quant_state
        absmax = state.absmax
        if state.nested:
            inner = state.state2
            absmax = (inner.code[absmax.long()] * inner.absmax.repeat_interleave(inner.blocksize)[:absmax.numel()]) + state.offset
        packed = module.weight.data.view(torch.uint8).flatten()
        index = torch.stack((packed >> 4, packed & 15), 1).flatten().long()
        by_hand = (state.code[index] * absmax.repeat_interleave(64)).view(state.shape)
        # fp32, whatever dtype the state was quantized from
        state.dtype = torch.float32
        if state.shape[1] % 64 == 0:  # else 0.50.2 on a CPU does not undo even its own quantization
            values &= torch.equal(bnb.functional.dequantize_4bit(module.weight.data, state).view(state.shape), by_hand)
        module.weight = torch.nn.Parameter(by_hand, requires_grad=False)
        module.forward = lambda x, m=module: torch.nn.functional.linear(x, m.weight, m.bias)
    judge(f"{name}: {count} weights loaded, the decoder's linears alone", count > 0 and only)
    judge(f"{name}: codes are those of quantizing on load", codes)
    judge(f"{name}: bitsandbytes dequantizes what FORMATS 1 says", values)
    for parameter in ours.parameters():  # of a model with towers Transformers keeps the file's dtype
        if parameter.dtype == torch.bfloat16:
            parameter.data = parameter.data.float()
    row = [7919 * i % 250 + 5 for i in range(57)]
    with torch.no_grad():
        expected = ours(torch.tensor([row])).logits[0, :-1]
    deviation = float((logits_here(build, nf4, row, directory) - expected).abs().max())
    judge(f"{name}: logits differ by {deviation:.1e}", deviation < 3e-4)


def check_kinds(tessera, build, model, directory):
    for i, name in enumerate(ADAPTERS):
        check_merge(tessera, model, os.path.join(TREE, "tests/golden", name), name, os.path.join(directory, f"merged{i}"))
    for nested in "true", "false":
        check_quantize(tessera, build, model, nested, f"nested {nested}", os.path.join(directory, f"nested-{nested}"))


def has_experts(model):
    import json
    with open(os.path.join(model, "config.json")) as f:
        config = json.load(f)
    config = config.get("text_config", config)
    return any(config.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts"))


def check_families(tessera, build, directory):
    from tiny_models import families
    for name, model in families(TREE, directory).items():
        work = os.path.join(directory, name)
        experts = has_experts(model)
        run(tessera, "train", "/dev/null", f"model_name_or_path={model}", f"output_dir={work}/adapter", "lora_r=4",
            f"use_dora={'false' if experts else 'true'}", "dataset=tests/golden/families/phi3/train.jsonl", "learning_rate=1e-2",
            "max_steps=8")
        check_merge(tessera, model, f"{work}/adapter", name, f"{work}/merged")
        if not experts:  # Transformers loads none of theirs in 4 bits
            check_quantize(tessera, build, model, "true", name, work)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", required=True)
    p.add_argument("--model", default="examples/tiny-llama")
    p.add_argument("--families", action="store_true")
    a = p.parse_args()
    import bitsandbytes
    import transformers
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    print(f"bitsandbytes {bitsandbytes.__version__}")
    build = os.path.abspath(a.build)
    with tempfile.TemporaryDirectory() as directory:
        if a.families:
            check_families(os.path.join(build, "tessera"), build, directory)
        else:
            check_kinds(os.path.join(build, "tessera"), build, os.path.abspath(a.model), directory)
    return failures > 0


sys.exit(main())
