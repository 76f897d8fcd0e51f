"""What PEFT + bitsandbytes users run, on weights whose NF4 codes are given: bf16 compute on a 4-bit base.

NF4 with double quantization in torch by the rule of tools/nf4_numpy.py (the same codes, on any device), bitsandbytes'
4-bit layers holding those very codes, and a PEFT adapter with given values on top: fp32 adapter weights under
torch.autocast to bf16, everything else in bf16.
"""
import importlib
import os
import sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from nf4_numpy import KINDS, LEVELS, nested_map  # noqa: E402

TREE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PREFIX = "base_model.model."  # of PEFT's tensor names


def is_quantized(name):
    return name.endswith(".weight") and name.split(".")[-2] in KINDS


# ---- NF4 ----

class Nf4:
    """One quantized weight: codes packed two a byte, the first in the high half, and the nested scales."""

    def __init__(self, w, table):
        self.shape = w.shape
        self.levels = torch.from_numpy(LEVELS).to(w.device)
        self.table = table.to(w.device)
        x = w.float().reshape(-1, 64)  # rows of every shape here fill blocks
        absmax = x.abs().amax(1)
        scaled = torch.where(absmax[:, None] > 0, x * (1 / absmax)[:, None], 0)
        codes = torch.bucketize(scaled, middles(self.levels), out_int32=True).to(torch.uint8).reshape(-1, 2)
        self.packed = (codes[:, :1] << 4) | codes[:, 1:]
        self.quantize_scales(absmax)

    def quantize_scales(self, absmax):
        self.offset = absmax.double().mean().float()
        blocks = -(-absmax.numel() // 256)
        rest = torch.zeros(blocks * 256, device=absmax.device)
        rest[:absmax.numel()] = absmax - self.offset
        rest = rest.reshape(blocks, 256)
        self.nested = rest.abs().amax(1)
        codes = torch.bucketize(rest * (1 / self.nested)[:, None], middles(self.table), out_int32=True)
        self.scales = codes.to(torch.uint8).reshape(-1)[:absmax.numel()].contiguous()

    def dequantized(self, dtype=torch.float32):
        """RN(level * scale) in fp32, the scale of two fp32 roundings; then rounded to dtype."""
        scale = self.table[self.scales.int()] * self.nested.repeat_interleave(256)[:self.scales.numel()]
        scale = scale + self.offset
        codes = torch.cat((self.packed >> 4, self.packed & 15), dim=1).reshape(-1, 64)
        return (self.levels[codes.int()] * scale[:, None]).to(dtype).reshape(self.shape)


def middles(values):
    return (values[:-1] + values[1:]) / 2


def dynamic_map():
    return torch.from_numpy(nested_map(TREE))


def quantize(weights, device):
    """{name: Nf4} of the seven linears of each layer."""
    table = dynamic_map()
    return {name: Nf4(w.to(device), table) for name, w in weights.items() if is_quantized(name)}


# ---- the model ----

def bitsandbytes_linear(q):
    import bitsandbytes as bnb
    F = bnb.functional
    out, columns = q.shape
    state = F.QuantState(absmax=q.scales, shape=q.shape, code=q.levels, blocksize=64, quant_type="nf4",
                         dtype=torch.bfloat16, offset=q.offset,
                         state2=F.QuantState(absmax=q.nested, code=q.table, blocksize=256, dtype=torch.float32))
    layer = bnb.nn.Linear4bit(columns, out, bias=False, compute_dtype=torch.bfloat16, compress_statistics=True,
                              quant_type="nf4", device="meta")
    layer.weight = bnb.nn.Params4bit(q.packed, requires_grad=False, quant_state=state, blocksize=64,
                                     compress_statistics=True, quant_type="nf4", module=layer, bnb_quantized=True)
    layer.quant_state = state
    return layer


def plain_linear(q):
    """A bf16 linear of what bitsandbytes dequantizes: for machines without it."""
    layer = torch.nn.Linear(q.shape[1], q.shape[0], bias=False, device="meta")
    layer.weight = torch.nn.Parameter(q.dequantized(torch.bfloat16), requires_grad=False)
    return layer


def check_bitsandbytes(quantized):
    """Its layers must give the bf16 values of the codes: tells how many elements do not."""
    import bitsandbytes as bnb
    wrong = 0
    for q in quantized.values():
        w = bitsandbytes_linear(q).weight
        theirs = bnb.functional.dequantize_4bit(w.data, w.quant_state)
        wrong += int((theirs != q.dequantized(torch.bfloat16)).sum())
    return wrong


def base_model(config_dir, weights, quantized, device, layers="bitsandbytes"):
    """The Transformers model in bf16 on these weights, its linears 4-bit ("bitsandbytes") or bf16 ("plain")."""
    import transformers
    config = transformers.AutoConfig.from_pretrained(config_dir)
    config.use_cache = False
    config._attn_implementation = "sdpa"
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config)
    torch.set_default_dtype(torch.float32)
    model.requires_grad_(False)
    for name, parameter in list(model.named_parameters()):
        if not is_quantized(name):
            parameter.copy_(weights[name])
            continue
        parent, _, child = name.removesuffix(".weight").rpartition(".")
        make = bitsandbytes_linear if layers == "bitsandbytes" else plain_linear
        setattr(model.get_submodule(parent), child, make(quantized[name]))
    model.is_loaded_in_4bit = layers == "bitsandbytes"  # what tells PEFT to take its bitsandbytes layers
    return model.train()


def tensor_names(model):
    """{the name that PEFT writes: parameter} of the adapter."""
    out = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            name = name.replace(".default", "")
            out[name.removesuffix(".weight") if "magnitude" in name else name] = parameter
    return out


def with_adapter(base, config, tensors):
    """PEFT's model with the adapter's tensors in place, in fp32."""
    import peft
    model = peft.get_peft_model(base, config)
    names = tensor_names(model)
    assert names.keys() == tensors.keys(), sorted(names.keys() ^ tensors.keys())[:4]
    for name, parameter in names.items():
        parameter.data = tensors[name].to(parameter.device, torch.float32).reshape(parameter.shape).clone()
    return model.train()


def autocast(device):
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16)


def versions(names=("transformers", "peft", "bitsandbytes")):
    """{module: version, None where it is not there} of torch and these, which takes as long as importing them."""
    out = {"torch": torch.__version__}
    for name in names:
        try:
            out[name] = importlib.import_module(name).__version__
        except ImportError:
            out[name] = None
    return out
