#!/usr/bin/env python3
"""Trains LoRA and DoRA adapters with Tessera, loads them in PEFT and compares the logits on the fp32 dequantized base.

  tools/check_peft.py --build build [--model examples/tiny-llama]     (needs tools/requirements.txt; ninja logits)
Prints the largest difference for each adapter; exit status 1 if one is above 3e-4. And executes, as they are, the Python
that the training prints and that the adapter's README.md shows.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

TREE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

ADAPTERS = {
    "lora": ["lora_r=8"],
    "dora": ["lora_r=8", "use_dora=true"],
    "dora patterns": ["lora_r=16", "use_dora=true", "lora_target_modules=[q_proj,v_proj,up_proj,down_proj]",
                      "rank_pattern={down_proj: 4}", "alpha_pattern={up_proj: 8}"],
    "rslora of two layers": ["lora_r=16", "use_rslora=true", "layers_to_transform=[1, 4]"],
}


def run(*command):
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return done.stderr


def execute(source, directory):
    done = subprocess.run([sys.executable, "-c", source], cwd=directory, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{source}\n{done.stderr}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", required=True)
    p.add_argument("--model", default="examples/tiny-llama")
    a = p.parse_args()
    import peft
    import torch
    from nf4_numpy import load_base
    from safetensors.torch import load_file
    worst = 0.0
    ids = torch.arange(7, 7 + 96) * 37 % 4096
    with tempfile.TemporaryDirectory() as work:
        row = os.path.join(work, "row.jsonl")
        with open(row, "w") as f:
            f.write(json.dumps({"input_ids": ids.tolist() + [0]}) + "\n")
        job = os.path.join(work, "job.yaml")
        with open(job, "w") as f:
            f.write(f"model_name_or_path: {a.model}\ndataset: examples/data/gsm8k_train.jsonl\nlearning_rate: 5e-3\n"
                    "max_steps: 10\nper_device_train_batch_size: 4\n")
        for name, keys in ADAPTERS.items():
            out = os.path.join(work, name.replace(" ", "_"))
            said = run(f"{a.build}/tessera", "train", job, f"output_dir={out}", *keys)
            if name == "dora":
                execute(re.search("^python   (.*)$", said, re.M)[1], "/")
                with open(os.path.join(out, "README.md")) as f:
                    execute(re.search("```python\n(.*?)```", f.read(), re.S)[1], out)
                print("the Python that is printed, and that of README.md, load the adapter")
            run(f"{a.build}/tools/logits", f"{out}.safetensors", job, f"init_adapter={out}", f"eval_dataset={row}")
            ours = load_file(f"{out}.safetensors")["logits"]
            model = peft.PeftModel.from_pretrained(load_base(os.path.join(TREE, a.model), TREE), out).eval()
            with torch.no_grad():
                theirs = model(input_ids=ids[None], use_cache=False).logits[0]
                with model.disable_adapter():
                    base = model(input_ids=ids[None], use_cache=False).logits[0]
            difference = (ours - theirs).abs().max().item()
            worst = max(worst, difference)
            print(f"{name:22} largest difference of logits {difference:.2e} (the adapter moves them by "
                  f"{(theirs - base).abs().max().item():.2f})")
    return worst > 3e-4


sys.exit(main())
