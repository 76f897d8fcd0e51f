#!/usr/bin/env python3
"""tests/golden/peft: what PEFT trains beside plain LoRA, on tests/golden/prequantized-tiny-llama dequantized to fp32.

lora.safetensors  A and B of q_proj, v_proj, the embedding and the head, exact in bf16 and nowhere zero: the start of every case
<case>.json       input_ids; targets beside q_proj and v_proj; spread; tied (the head is the embedding); loraplus (create_loraplus_optimizer's arguments);
                  loss and gradient norm of three AdamW steps (lr 0.002, no decay, without loraplus); of each trained tensor samples
                  (elements i * n // SAMPLES) after them. spread: of how many rows each row of the base's vocabulary is
                  made (spread_rows), so that there are more than one chunk has

Usage: tools/make_peft_golden.py   (needs torch, transformers, peft, bitsandbytes: tools/requirements.txt)
"""
import json
import os
import warnings

import bitsandbytes.functional as functional
import peft
import torch
import transformers
from peft.optimizers import create_loraplus_optimizer
from safetensors.torch import load_file, save_file

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
GOLDEN = os.path.join(ROOT, "tests", "golden")
BASE = os.path.join(GOLDEN, "prequantized-tiny-llama")
OUT = os.path.join(GOLDEN, "peft")
SAMPLES = 48
TARGETS = ["q_proj", "v_proj"]


def spread_rows(weight, spread):
    """Row v becomes rows spread v + k: itself, and halved and rotated by k columns."""
    rows = [weight] + [0.5 * torch.roll(weight, k, dims=1) for k in range(1, spread)]
    return torch.stack(rows, dim=1).reshape(-1, weight.shape[1])


def base_model(spread, tied):
    """The checkpoint with its NF4 weights dequantized in place."""
    config = transformers.AutoConfig.from_pretrained(BASE)
    del config.quantization_config
    config._attn_implementation = "eager"
    config.vocab_size *= spread
    config.tie_word_embeddings = tied
    model = transformers.LlamaForCausalLM(config).float()
    tensors = load_file(os.path.join(BASE, "model.safetensors"))
    for name, parameter in model.named_parameters():
        state = {k[len(name) + 1:]: v for k, v in tensors.items() if k.startswith(name + ".")}
        if state:
            quantized = functional.QuantState.from_dict(state, device=torch.device("cpu"))
            quantized.dtype = torch.float32
            parameter.data.copy_(functional.dequantize_4bit(tensors[name], quantized).float())
        else:
            weight = tensors[name].float()
            table = name.endswith(("embed_tokens.weight", "lm_head.weight"))
            parameter.data.copy_(spread_rows(weight, spread) if table else weight)
        parameter.requires_grad_(False)
    model.config.use_cache = False
    return model.eval()


def stored_name(name):
    """A parameter's name in adapter_model.safetensors."""
    return name.replace(".modules_to_save.default", "").replace(".default", "")


def start(model, lora, spread):
    """The common A and B, the head's B spread as its rows are; a whole module begins as the base has it."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and stored_name(name) in lora:
            values = lora[stored_name(name)].float()
            parameter.data.copy_(spread_rows(values, spread) if "lm_head.lora_B" in name else values)


def train(model, ids, loraplus):
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if loraplus:
        optimizer = create_loraplus_optimizer(model, torch.optim.AdamW, **loraplus)
    else:
        optimizer = torch.optim.AdamW(trained.values(), lr=0.002, weight_decay=0.0)
    steps = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(ids, labels=ids).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained.values(), 1e9)
        optimizer.step()
        steps.append({"loss": loss.item(), "grad_norm": norm.item()})
    samples = {}
    for name, parameter in trained.items():
        flat = parameter.detach().flatten()
        samples[stored_name(name)] = flat[torch.arange(SAMPLES) * flat.numel() // SAMPLES].tolist()
        samples[stored_name(name)] = [float(f"{x:.8g}") for x in samples[stored_name(name)]]
    return steps, samples


def main():
    warnings.simplefilter("ignore")
    os.makedirs(OUT, exist_ok=True)
    generator = torch.Generator().manual_seed(11)
    ids = torch.randint(6, 384, (2, 12), generator=generator)
    ids[0, 3], ids[0, 9], ids[1, 5], ids[1, 7] = 300, 17, 300, 101
    cases = {
        "lora": {},
        "head": {"modules_to_save": ["lm_head"]},
        "embedding": {"modules_to_save": ["embed_tokens"]},
        "head_and_embedding": {"modules_to_save": ["lm_head", "embed_tokens"]},
        "tokens": {"trainable_token_indices": [300, 17, 101, 350]},
        "tokens_both": {"trainable_token_indices": {"embed_tokens": [300, 17, 101], "lm_head": [101, 300]}},
        "tokens_head": {"trainable_token_indices": {"lm_head": [17, 300, 5]}},
        "tokens_tied": {"trainable_token_indices": [300, 17, 101, 350], "tied": True},
        "tokens_untied": {"trainable_token_indices": {"embed_tokens": [300, 17], "lm_head": [101, 300]}, "tied": True},
        "head_of_tied": {"modules_to_save": ["lm_head"], "tied": True},
        "embedding_of_tied": {"modules_to_save": ["embed_tokens"], "tied": True},
        "head_lora": {"targets": ["lm_head"], "spread": 90},
        "head_lora_of_tied": {"targets": ["lm_head"], "tied": True},
        "embedding_lora": {"targets": ["embed_tokens"], "loraplus": {"lr": 0.0005, "loraplus_lr_ratio": 16, "loraplus_weight_decay": 0.01,
                                        "loraplus_lr_embedding": 0.0001}},
        "chunks": {"modules_to_save": ["lm_head", "embed_tokens"], "spread": 90},
    }
    lora = None
    for name, keys in cases.items():
        loraplus, targets = keys.pop("loraplus", None), keys.pop("targets", [])
        spread, tied = keys.pop("spread", 1), keys.pop("tied", False)
        config = peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=6, target_modules=TARGETS + targets,
                                 **keys)
        torch.manual_seed(12)
        model = peft.get_peft_model(base_model(spread, tied), config)
        if lora is None:
            lora = {stored_name(n): torch.randn(p.shape, generator=generator).mul(0.03).bfloat16()
                    for n, p in model.named_parameters() if p.requires_grad}
            for name_of, shape in (("model.embed_tokens.lora_embedding_A", (4, 384)),
                                   ("model.embed_tokens.lora_embedding_B", (256, 4)),
                                   ("lm_head.lora_A.weight", (4, 256)), ("lm_head.lora_B.weight", (384, 4))):
                lora["base_model.model." + name_of] = torch.randn(shape, generator=generator).mul(0.03).bfloat16()
            save_file(lora, os.path.join(OUT, "lora.safetensors"))
        start(model, lora, spread)
        steps, samples = train(model, ids * spread, loraplus)
        with open(os.path.join(OUT, name + ".json"), "w", encoding="utf-8") as file:
            json.dump({"input_ids": (ids * spread).tolist(), "targets": targets, "spread": spread, "tied": tied, "loraplus": loraplus, **keys, "steps": steps, "samples": samples}, file)
            file.write("\n")
        print(name, steps[0], steps[-1])


main()
