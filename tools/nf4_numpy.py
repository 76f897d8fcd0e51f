"""NF4 with double quantization in NumPy, from the formulas: what the maintainers' scripts hold Tessera against."""
import os

import numpy as np

LEVELS = np.array([-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                   -0.18477343022823334, -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725,
                   0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
                   0.7229568362236023, 1], np.float32)
KINDS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def nested_map(tree):
    """The 256 constants of the 8-bit map, from the golden file in the tree."""
    from safetensors import safe_open
    with safe_open(os.path.join(tree, "tests/golden/nf4_dq.safetensors"), "np") as f:
        return f.get_tensor("nested_quant_map")


def dequantized(w, dynamic_map):
    """The fp32 values of a weight (fp32 array) after NF4 with double quantization."""
    flat = w.astype(np.float32).ravel()
    blocks = -(-flat.size // 64)
    x = np.zeros(blocks * 64, np.float32)
    x[:flat.size] = flat
    x = x.reshape(blocks, 64)
    absmax = np.abs(x).max(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(absmax[:, None] > 0, x * (np.float32(1) / absmax)[:, None], np.float32(0))
    codes = np.searchsorted((LEVELS[:-1] + LEVELS[1:]) / np.float32(2), scaled, side="left")
    offset = np.float32(absmax.astype(np.float64).sum() / blocks)
    rest = absmax - offset
    nested = np.array([np.abs(rest[i:i + 256]).max() for i in range(0, blocks, 256)], np.float32)
    inverse = np.repeat(np.float32(1) / nested, 256)[:blocks]
    q = np.searchsorted((dynamic_map[:-1] + dynamic_map[1:]) / np.float32(2), rest * inverse, side="left")
    scale = (dynamic_map[q] * np.repeat(nested, 256)[:blocks]).astype(np.float32) + offset
    return (LEVELS[codes] * scale[:, None]).astype(np.float32).ravel()[:flat.size].reshape(w.shape)


def dequantize_experts(module, table):
    """Each expert's gate, up and down is a matrix of its own, of which gpt_oss has the transpose, gate and up by turns."""
    import torch
    turned = getattr(module, "is_transposed", False)
    for e in range(module.down_proj.shape[0]):
        gate_up, down = module.gate_up_proj.data[e], module.down_proj.data[e]
        if turned:
            parts = [gate_up[:, 0::2].T, gate_up[:, 1::2].T, down.T]
        else:
            parts = [*gate_up.chunk(2), down]
        for part in parts:
            part.copy_(torch.from_numpy(dequantized(part.contiguous().numpy(), table)))


def load_base(model_dir, tree, kind="AutoModelForCausalLM", **options):
    """The Transformers model in fp32 whose decoder's linears and experts hold their dequantized NF4 values; kind: its auto
    class."""
    import torch
    import transformers
    transformers.utils.logging.disable_progress_bar()
    model = getattr(transformers, kind).from_pretrained(model_dir, dtype=torch.float32, **options)
    model.config.use_cache = False
    table = nested_map(tree)
    for module in model.get_decoder().modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data.copy_(torch.from_numpy(dequantized(module.weight.data.numpy(), table)))
        if getattr(getattr(module, "gate_up_proj", None), "ndim", 0) == 3:
            dequantize_experts(module, table)
    for p in model.parameters():
        p.requires_grad_(False)
    return model
