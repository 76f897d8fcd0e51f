#!/usr/bin/env python3
"""Trains adapters with Tessera, loads them in PEFT and compares logits and losses on the fp32 dequantized base.

  tools/check_peft.py --build build [--model examples/tiny-llama]     adapters of several kinds on one model
  tools/check_peft.py --build build --families                        a DoRA of all linears on a small model of every family
                                                                      and class of docs/models.md
  tools/check_peft.py --build build --experts                         adapters on experts, of every family with experts
All need tools/requirements.txt. PEFT's model must have every tensor of the adapter, with the same bits, and no other. Prints
the largest differences for each adapter, and of logits of the base; exit status 1 if one of logits is above 3e-4, or of a loss above 1e-5. The first
also executes, as they are, the Python that a training prints and that its README.md shows.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

TREE = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
ROWS = os.path.join(TREE, "tests/golden/families/phi3/train.jsonl")  # of tokens below 256

ADAPTERS = {
    "lora": ["lora_r=8"],
    "dora": ["lora_r=8", "use_dora=true"],
    "dora patterns": ["lora_r=16", "use_dora=true", "lora_target_modules=[q_proj,v_proj,up_proj,down_proj]",
                      "rank_pattern={down_proj: 4}", "alpha_pattern={up_proj: 8}"],
    "pissa": ["lora_r=8", "init_lora_weights=pissa"],
    "pissa dora": ["lora_r=8", "use_dora=true", "init_lora_weights=pissa_niter_4", "rank_pattern={down_proj: 4}"],
    "pissa rslora": ["lora_r=16", "use_rslora=true", "init_lora_weights=pissa"],
    "rslora of two layers": ["lora_r=16", "use_rslora=true", "layers_to_transform=[1, 4]"],
}


EXPERTS = ["lora_target_modules=[o_proj]", "lora_target_parameters=[mlp.experts.gate_up_proj,mlp.experts.down_proj]"]
WERE_LINEARS = ("mixtral", "qwen3_moe", "glm4_moe", "deepseek_v3")  # before Transformers 5; PEFT still takes their names
GATE_UP = "lora_target_parameters=[gate_up_proj]"
EXPERT_ADAPTERS = {
    "experts": EXPERTS,
    "no linears": ["lora_target_modules=null", *EXPERTS[1:]],
    "gate_up_proj": [*EXPERTS[:1], GATE_UP],
    "down_proj of a layer": [*EXPERTS[:1], "lora_target_parameters=[layers.2.mlp.experts.down_proj]"],
    "experts' rank": [*EXPERTS, "expert_lora_r=6", "expert_lora_alpha=9"],
    "rslora, patterns": [*EXPERTS, "use_rslora=true", "expert_lora_r=3", "alpha_pattern={experts.down_proj: 5}"],
    "all linears and experts": [],
    "all linears, patterns": ["rank_pattern={gate_proj: 2}", "alpha_pattern={shared_experts.up_proj: 5, mlp.up_proj: 9}"],
    "linears by an expression": ["lora_target_modules=.*(gate|o)_proj", "lora_target_parameters=[]", "use_rslora=true"],
    "layers": ["layers_to_transform=[0]", "expert_lora_r=2"],
    "all-linear-peft": ["lora_target_modules=all-linear-peft"],
}


def run(*command):
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return done


def execute(source, directory):
    done = subprocess.run([sys.executable, "-c", source], cwd=directory, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{source}\n{done.stderr}")


def load_in_peft(model, adapter, kind):
    """PEFT's model; it has the adapter's tensors, bit for bit, and no others."""
    import peft
    import torch
    from nf4_numpy import load_base
    from safetensors.torch import load_file
    base = load_base(model, TREE, kind, attn_implementation="eager",
                     experts_implementation="eager")  # SDPA cannot cap scores, as Gemma 2 does
    loaded = peft.PeftModel.from_pretrained(base, adapter).eval()
    theirs, ours = peft.get_peft_model_state_dict(loaded), load_file(os.path.join(adapter, "adapter_model.safetensors"))
    if theirs.keys() != ours.keys():
        sys.exit(f"{adapter}: PEFT's model has other tensors: {sorted(theirs.keys() ^ ours.keys())}")
    wrong = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    if wrong:
        sys.exit(f"{adapter}: PEFT's model has other values: {wrong}")
    return loaded


def write_old(model, directory):
    """An adapter as PEFT wrote it when each expert's parts were linears, of random values."""
    import peft
    import torch
    from safetensors.torch import save_file
    with open(os.path.join(model, "config.json")) as f:
        config = json.load(f)
    mixtral = config["model_type"] == "mixtral"
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    block, r = "block_sparse_moe" if mixtral else "mlp", 3
    h, width = config["hidden_size"], config["intermediate_size" if mixtral else "moe_intermediate_size"]
    experts, tensors, dense = config.get("num_local_experts") or config["num_experts"], {}, []
    torch.manual_seed(3)
    for layer in range(config["num_hidden_layers"]):
        if layer in config.get("mlp_only_layers", []) or (layer + 1) % config.get("decoder_sparse_step", 1):
            dense += [f"model.layers.{layer}.mlp.{name}" for name in names]
            continue
        for expert in range(experts):
            for name in names:
                sizes = (h, width) if name == names[2] else (width, h)
                place = f"base_model.model.model.layers.{layer}.{block}.experts.{expert}.{name}"
                tensors[f"{place}.lora_A.weight"] = torch.randn(r, sizes[1]) * 0.2
                tensors[f"{place}.lora_B.weight"] = torch.randn(sizes[0], r) * 0.2
    peft.LoraConfig(r=r, lora_alpha=6, target_modules=list(names), exclude_modules=dense or None, task_type="CAUSAL_LM",
                    inference_mode=True, base_model_name_or_path=model).save_pretrained(directory)
    save_file(tensors, os.path.join(directory, "adapter_model.safetensors"), {"format": "pt"})


def check_old(a, family, model, ids, work):
    """What PEFT makes of it, and what a run that goes on from it without learning writes, and the logits of both."""
    import peft
    import torch
    from nf4_numpy import load_base
    from safetensors.torch import load_file
    old, out = os.path.join(work, f"{family}_old"), os.path.join(work, f"{family}_new")
    write_old(model, old)
    run(f"{a.build}/tessera", "train", "/dev/null", f"model_name_or_path={model}", f"output_dir={out}", f"init_adapter={old}",
        f"dataset={ROWS}", "per_device_train_batch_size=4", "max_steps=1", "learning_rate=1e-30")
    base = load_base(model, TREE, attn_implementation="eager", experts_implementation="eager")
    theirs = peft.get_peft_model_state_dict(peft.PeftModel.from_pretrained(base, old))
    ours = load_file(os.path.join(out, "adapter_model.safetensors"))
    same = theirs.keys() == ours.keys() and all((theirs[name] - ours[name]).abs().max() <= 1e-29 for name in ours)
    row = os.path.join(work, "row.jsonl")
    run(f"{a.build}/tools/logits", f"{old}.safetensors", "/dev/null", f"model_name_or_path={model}", f"init_adapter={old}",
        f"eval_dataset={row}")
    base = load_base(model, TREE, attn_implementation="eager", experts_implementation="eager")
    with torch.no_grad():
        wanted = peft.PeftModel.from_pretrained(base, old)(input_ids=ids[None], use_cache=False).logits[0, :-1]
    apart = (load_file(f"{old}.safetensors")["logits"] - wanted).abs().max().item()
    print(f"{family} with linears of experts: {'the tensors that PEFT makes of them' if same else 'OTHER TENSORS than PEFT'}, largest "
          f"difference of logits {apart:.1e}", flush=True)
    return same and apart <= 3e-4


def compare(a, name, model, ids, work, *keys):
    """Trains on `model` and compares on the row `ids`. What the training printed, and whether all is near."""
    import torch
    from safetensors.torch import load_file
    out, row = os.path.join(work, name.replace(" ", "_")), os.path.join(work, "row.jsonl")
    with open(row, "w") as f:
        f.write(json.dumps({"input_ids": ids.tolist()}) + "\n")
    said = run(f"{a.build}/tessera", "train", "/dev/null", f"model_name_or_path={model}", f"output_dir={out}",
               "per_device_train_batch_size=4", *keys).stderr
    same = [f"model_name_or_path={model}", f"init_adapter={out}", f"eval_dataset={row}"]
    run(f"{a.build}/tools/logits", f"{out}.safetensors", "/dev/null", *same)
    loss = json.loads(run(f"{a.build}/tessera", "eval", "/dev/null", *same, "--json").stdout)["eval_loss"]
    ours = load_file(f"{out}.safetensors")["logits"]
    run(f"{a.build}/tools/logits", f"{out}.base.safetensors", "/dev/null", f"model_name_or_path={model}", f"eval_dataset={row}")
    own_base = load_file(f"{out}.base.safetensors")["logits"]
    loaded = load_in_peft(model, out, re.search(r"AutoModelFor\w+", said)[0])
    with torch.no_grad():
        theirs = loaded(input_ids=ids[None], use_cache=False).logits[0, :-1]
        with loaded.disable_adapter():
            base = loaded(input_ids=ids[None], use_cache=False).logits[0, :-1]
    logits = (ours - theirs).abs().max().item()
    losses = abs(torch.nn.functional.cross_entropy(theirs.double(), ids[1:]).item() - loss)
    print(f"{name:32} largest difference of logits {logits:.1e}, of the base's {(own_base - base).abs().max().item():.1e}, of the "
          f"loss {losses:.1e} (the adapter moves logits by {(theirs - base).abs().max().item():.2f})", flush=True)
    return said, logits <= 3e-4 and losses <= 1e-5


def check_kinds(a, work):
    import torch
    good = True
    ids = torch.arange(7, 7 + 97) * 37 % 4096
    for name, keys in ADAPTERS.items():
        said, near = compare(a, name, a.model, ids, work, "dataset=examples/data/gsm8k_train.jsonl", "learning_rate=5e-3",
                             "max_steps=10", *keys)
        good &= near
        if name == "dora":
            execute(re.search("^python   (.*)$", said, re.M)[1], "/")
            with open(os.path.join(work, name, "README.md")) as f:
                execute(re.search("```python\n(.*?)```", f.read(), re.S)[1], os.path.join(work, name))
            print("the Python that is printed, and that of README.md, load the adapter")
    return good


def check_families(a, work):
    import torch
    from tiny_models import families
    ids, good = torch.arange(1, 1 + 57) * 37 % 256, True
    for model_type, directory in families(TREE, work).items():
        keys = ["lora_r=4", "use_dora=true"]
        if model_type in WERE_LINEARS:  # PEFT takes these names for the experts', without DoRA
            keys.append("exclude_modules=[gate_proj,up_proj,down_proj]")
        good &= compare(a, model_type, directory, ids, work, f"dataset={ROWS}", "learning_rate=1e-2", "max_steps=8", *keys)[1]
    return good


def check_experts(a, work):
    import torch
    golden, good = os.path.join(TREE, "tests/golden/families"), True
    ids = torch.arange(1, 1 + 57) * 37 % 256
    for family in sorted(f for f in os.listdir(golden) if os.path.isdir(os.path.join(golden, f, "b_lora_experts"))):
        kinds = EXPERT_ADAPTERS if family in WERE_LINEARS else {"experts": EXPERT_ADAPTERS["experts"]}
        for name, keys in kinds.items():
            model = os.path.join(golden, family, "checkpoint")
            if family == "gemma4_moe":
                keys = [key.replace("mlp.experts", "experts") for key in keys]
            good &= compare(a, f"{family} {name}", model, ids, work, f"dataset={ROWS}", "learning_rate=1e-2", "max_steps=8",
                            "lora_r=4", *keys)[1]
        if family in ("mixtral", "qwen3_moe"):
            good &= check_old(a, family, model, ids, work)
    return good


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", required=True)
    p.add_argument("--model", default="examples/tiny-llama")
    p.add_argument("--families", action="store_true")
    p.add_argument("--experts", action="store_true")
    a = p.parse_args()
    import transformers
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as work:
        return not (check_families if a.families else check_experts if a.experts else check_kinds)(a, work)


sys.exit(main())
