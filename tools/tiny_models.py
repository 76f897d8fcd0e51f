"""A small model of every family and class of docs/models.md: those of tests/golden/families, and random ones of the others."""
import json
import os
import re
import sys

TEXT = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "initializer_range": 0.15,
        "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GEMMA = {"sliding_window": 16, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
         "tie_word_embeddings": True}
QWEN2 = {key: value for key, value in TEXT.items() if key != "head_dim"}
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}

QWEN3_5 = {**TEXT, "layer_types": ["linear_attention", "linear_attention", "full_attention"], "linear_num_key_heads": 2,
           "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 24}

TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 14,
         "image_size": 28}
QWEN_TOWER = {"depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64}
QWEN_IDS = {"image_token_id": 290, "video_token_id": 291, "vision_start_token_id": 292, "vision_end_token_id": 293,
            "tie_word_embeddings": False}

# Their configs by model_type, beside the defaults. Tokens from 290 on stand for images; rows have none.
MODELS = {
    "llama": TEXT,
    "mistral": {**TEXT, "sliding_window": 16},
    "qwen2": QWEN2,
    "qwen3": TEXT,
    "qwen3_5_text": QWEN3_5,
    "qwen3_5_moe_text": {**QWEN3_5, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16,
                         "shared_expert_intermediate_size": 24},
    "gemma3": {"text_config": {**TEXT, **GEMMA, "query_pre_attn_scalar": 16}, "vision_config": TOWER,
               "mm_tokens_per_image": 4, "image_token_index": 290, "boi_token_index": 291, "eoi_token_index": 292},
    "gemma4": {"text_config": {**TEXT, **GEMMA, "vocab_size_per_layer_input": 300, "hidden_size_per_layer_input": 8},
               "vision_config": {**TOWER, "model_type": "gemma4_vision", "num_key_value_heads": 2, "head_dim": 16},
               "image_token_id": 290, "boi_token_id": 291, "eoi_token_id": 292, "video_token_id": 293,
               "boa_token_id": 294, "eoa_token_index": 295, "audio_token_id": 296},
    "mistral3": {"text_config": {**TEXT, "model_type": "mistral"},
                 "vision_config": {**TOWER, "model_type": "pixtral", "head_dim": 16}, "image_token_index": 290,
                 "tie_word_embeddings": False},
    "qwen2_5_vl": {"text_config": {**QWEN2, **MROPE}, "vision_config": {**QWEN_TOWER, "fullatt_block_indexes": [0]},
                   **QWEN_IDS},
    "qwen3_vl": {"text_config": {**TEXT, **MROPE},
                 "vision_config": {**QWEN_TOWER, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}, **QWEN_IDS},
}


def auto_class(directory):
    """Transformers' auto class of the model in `directory`."""
    import transformers
    with open(os.path.join(directory, "config.json")) as f:
        beside_towers = "vision_config" in json.load(f)
    return transformers.AutoModelForImageTextToText if beside_towers else transformers.AutoModelForCausalLM


def make(model_type, directory):
    """Writes MODELS[model_type] into `directory`, in bf16."""
    import torch
    import transformers
    torch.manual_seed(17)
    config = transformers.AutoConfig.for_model(model_type, **MODELS[model_type])
    config.save_pretrained(directory)
    model = auto_class(directory).from_config(config)
    model.to(torch.bfloat16).save_pretrained(directory)


def families(tree, work):
    """The directory of each model_type in the tables of docs/models.md; random models are made in `work`."""
    models = {}
    golden = os.path.join(tree, "tests/golden/families")
    with open(os.path.join(tree, "docs/models.md")) as f:
        listed = re.findall(r"^\| `(\w+)` \| `\w+`", f.read(), re.M)
    for name in sorted(os.listdir(golden)):
        directory = os.path.join(golden, name, "checkpoint")
        with open(os.path.join(directory, "config.json")) as f:
            model_type = json.load(f)["model_type"]
        if model_type in listed:  # there are golden files of families to come
            models.setdefault(model_type, directory)
    for model_type in MODELS:
        models[model_type] = os.path.join(work, "models", model_type)
        make(model_type, models[model_type])
    if sorted(models) != sorted(listed):
        sys.exit(f"not in both, the tables of docs/models.md and the models here: {sorted(set(models) ^ set(listed))}")
    return models
