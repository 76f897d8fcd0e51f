#!/usr/bin/env python3
"""What `tessera merge` and `tessera quantize` write, in Transformers, PEFT and bitsandbytes.

  tools/check_models.py --build build [--model examples/tiny-llama]   (needs tools/requirements.txt; bitsandbytes 0.50 for the
                                                                       second half)
Merged: AutoModelForCausalLM loads the directory; each weight is PEFT's merge_and_unload in fp32 rounded to bf16, up to
one step of bf16 where the two fp32 values lie on both sides of a rounding's edge (at most 0.1 % of the elements).
Quantized: Transformers loads the directory with bitsandbytes; each weight that bitsandbytes dequantizes from it is the
one that FORMATS 1 gives, bit for bit, its codes are those of bitsandbytes' own quantization on load, and the logits are
those of this tree on the same directory (3e-4). Exit status 1 if anything differs.
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


def check_merge(tessera, model, name, directory):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer
    adapter = os.path.join(TREE, "tests/golden", name)
    run(tessera, "merge", "/dev/null", f"model_name_or_path={model}", f"init_adapter={adapter}", f"output_dir={directory}")
    ours = AutoModelForCausalLM.from_pretrained(directory)
    AutoTokenizer.from_pretrained(directory)
    judge(f"{name}: loaded in bf16", ours.dtype == torch.bfloat16)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    peer = PeftModel.from_pretrained(base, adapter).merge_and_unload().state_dict()
    worst, off, total = 0, 0, 0
    for key, weight in ours.state_dict().items():
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


def check_quantize(tessera, build, model, nested, directory):
    import bitsandbytes as bnb
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig
    nf4 = os.path.join(directory, f"nf4-{nested}")
    run(tessera, "quantize", "/dev/null", f"model_name_or_path={model}", f"output_dir={nf4}", f"use_bnb_nested_quant={nested}")
    ours = AutoModelForCausalLM.from_pretrained(nf4, device_map="cpu", dtype=torch.float32)
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=nested == "true",
                                bnb_4bit_compute_dtype=torch.float32)
    peer = AutoModelForCausalLM.from_pretrained(model, device_map="cpu", dtype=torch.bfloat16, quantization_config=config)
    count, codes, values = 0, True, True
    for name, module in ours.named_modules():
        if not isinstance(module, bnb.nn.Linear4bit):
            continue
        count += 1
        codes &= torch.equal(module.weight.data.view(torch.uint8).flatten(),
                             peer.get_submodule(name).weight.data.view(torch.uint8).flatten())
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
        values &= torch.equal(bnb.functional.dequantize_4bit(module.weight.data, state).view(state.shape), by_hand)
        module.weight = torch.nn.Parameter(by_hand, requires_grad=False)
        module.forward = lambda x, m=module: torch.nn.functional.linear(x, m.weight, m.bias)
    judge(f"nested {nested}: {count} weights loaded", count == 7 * ours.config.num_hidden_layers)
    judge(f"nested {nested}: codes are those of quantizing on load", codes)
    judge(f"nested {nested}: bitsandbytes dequantizes what FORMATS 1 says", values)
    row = [(7919 * i) % (ours.config.vocab_size - 10) + 5 for i in range(96)]
    with torch.no_grad():
        expected = ours(torch.tensor([row])).logits[0, :-1]
    deviation = float((logits_here(build, nf4, row, directory) - expected).abs().max())
    judge(f"nested {nested}: logits differ by {deviation:.1e}", deviation < 3e-4)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", required=True)
    p.add_argument("--model", default="examples/tiny-llama")
    a = p.parse_args()
    import transformers
    transformers.utils.logging.disable_progress_bar()
    build, model = os.path.abspath(a.build), os.path.abspath(a.model)
    tessera = os.path.join(build, "tessera")
    with tempfile.TemporaryDirectory() as directory:
        for i, adapter in enumerate(ADAPTERS):
            check_merge(tessera, model, adapter, os.path.join(directory, f"merged{i}"))
        try:
            import bitsandbytes
        except ImportError:
            sys.exit("bitsandbytes is not installed: what `quantize` writes was not checked")
        print(f"bitsandbytes {bitsandbytes.__version__}")
        for nested in "true", "false":
            check_quantize(tessera, build, model, nested, directory)
    sys.exit(1 if failures else 0)


main()
