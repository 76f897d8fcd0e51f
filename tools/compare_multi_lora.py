#!/usr/bin/env python3
"""LoRAFusion's kernels on one linear of several adapters, on this GPU: what bench_mixed's milliseconds stand beside.

A bf16 linear with LoRA adapters, each with its own block of tokens, forward and backward by LoRAFusion's own functions
(lorafusion/ops/multi_lora.py) and its own configuration for the card, or the H100's where it has none for it. Prints
one line of JSON for every shape and dropout.

  git clone https://github.com/CentML/lorafusion && git -C lorafusion checkout c48d7fd
  tools/compare_multi_lora.py --source lorafusion
  tools/compare_multi_lora.py --source lorafusion --device cpu --tokens 128 --shapes 256x512

forward_ms and backward_ms are medians of single calls, by CUDA events; *_graph_ms are medians of a replay of the call
as a CUDA graph, where the host's launches cost nothing. base_* are torch's products with the weight alone. errors are
relative to fp32, in L2, the largest of all adapters, without dropout only. On the CPU, Triton's interpreter runs the
kernels in fp16 and nothing is timed.

Needs --source, a checkout of LoRAFusion's repository, and torch with Triton and numpy (tools/requirements.txt).
"""
import argparse
import dataclasses
import json
import os
import re
import sys
import types

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from compare_gpu import median_ms  # noqa: E402

BLOCK = 128  # tokens; the rows of every configuration's block divide it
SCALE = 2.0
FORWARD = ("fused_multi_lora_xw_sb",)
BACKWARD = ("fused_multi_lora_dys_dyb", "fused_multi_lora_dyw_dsa")


# ---- LoRAFusion without what its kernels do not need ----

class Log:
    """loguru's logger: warnings and errors to stderr, the rest dropped."""

    def __getattr__(self, level):
        return lambda *args, **kwargs: print(*args, file=sys.stderr) if level in ("warning", "error") else None


def stub(name, **attributes):
    module = types.ModuleType(name)
    module.__path__ = []
    module.__dict__.update(attributes)
    sys.modules[name] = module


def pretend_cuda(torch):
    """LoRAFusion puts its tables on "cuda" and asks for the card's name: here the CPU is meant."""
    from torch.overrides import TorchFunctionMode

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, function, kinds, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if kwargs.get("device") == "cuda":
                kwargs["device"] = "cpu"
            return function(*args, **kwargs)

    OnCpu().__enter__()
    torch.cuda.get_device_name = lambda *args: "cpu"


def load(torch, a):
    """Its module of the functions, that of the configurations, and whether these have one for this card."""
    sys.path.insert(0, a.source)
    stub("loguru", logger=Log())
    stub("megatron")
    stub("megatron.core", parallel_state=None)
    stub("lorafusion.utils.benchmark", benchmark=None, set_warmup_and_number=None)
    if a.device == "cpu":
        pretend_cuda(torch)
    import lorafusion.ops.triton_ops.config as configs
    from lorafusion.utils.common import get_device_short_name
    published = get_device_short_name() in configs.HARDWARE_CONFIGS
    if not published:
        configs.HARDWARE_CONFIGS[get_device_short_name()] = configs.H100_CONFIG
    import lorafusion.ops.multi_lora as multi_lora
    return multi_lora, configs, published


def lower_stages(configs, kernels):
    """One pipeline stage less for each of the kernels that has more than two. False: none has."""
    hardware = configs.get_hardware_config()
    lowered = False
    for kernel in kernels:
        config = getattr(hardware, kernel)
        if config.num_stages > 2:
            setattr(hardware, kernel, dataclasses.replace(config, num_stages=config.num_stages - 1))
            lowered = True
    return lowered


def fit(call, configs, kernels):
    """Runs `call`, with fewer stages where a kernel wants more shared memory than the card has under this Triton."""
    from triton.runtime.errors import OutOfResources
    while True:
        try:
            return call()
        except OutOfResources as error:
            print("fewer stages: %s" % error, file=sys.stderr)
            if not lower_stages(configs, kernels):
                raise


# ---- times ----

def graph_ms(torch, call, count):
    """None, and the reason on stderr, where the call cannot be recorded."""
    try:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = call()  # the graph writes to it
        ms = median_ms(torch, graph.replay, count)
        del kept
        return ms
    except Exception as error:  # the other times are still wanted
        print("no graph: %s: %s" % (type(error).__name__, str(error)[:300]), file=sys.stderr)
        return None


def measure(torch, calls, a):
    out = {}
    if a.device == "cuda":
        for name, call in calls.items():
            out[name + "_ms"] = median_ms(torch, call, a.iterations)
            out[name + "_graph_ms"] = graph_ms(torch, call, a.iterations)
    return out


# ---- one linear ----

def make_tensors(torch, inputs, outputs, a):
    torch.manual_seed(0)
    dtype = torch.bfloat16 if a.device == "cuda" else torch.float16  # the interpreter has no products in bf16

    def normal(rows, columns, scale):
        return (torch.randn(rows, columns, device=a.device) * scale).to(dtype)

    tokens = a.adapters * a.tokens
    return types.SimpleNamespace(
        x=normal(tokens, inputs, 1.0), dy=normal(tokens, outputs, 1.0), w=normal(outputs, inputs, inputs**-0.5),
        lora_a=[normal(a.r, inputs, inputs**-0.5) for _ in range(a.adapters)],
        lora_b=[normal(outputs, a.r, a.r**-0.5) for _ in range(a.adapters)])


def describe_batch(multi_lora, configs, dropout, dtype, a):
    """What both functions take of the batch, and the dropout that its adapters share."""
    count = a.adapters
    batch = multi_lora.prepare_multi_lora_batch_info(
        [a.tokens] * count, list(range(count)), [a.r] * count, [dropout] * count, [SCALE] * count,
        configs.get_lora_kernel_config("fused_multi_lora_block_size_m"), output_dtype=dtype)
    names = ("seq_len_list", "padded_seq_len_list", "block_to_lookup_table", "block_to_dropout_p", "block_to_alpha",
             "enable_dropout", "max_r")
    return {name: getattr(batch, name) for name in names}, batch.same_dropout_p_value


def describe_kernel(configs, kernel):
    settings = dataclasses.asdict(configs.get_lora_kernel_config(kernel))
    return {name: value for name, value in settings.items() if value is not None}


def relative_error(got, want):
    return float((got.float() - want).norm() / want.norm())


def compare(t, y, dx, da, db, a):
    """The largest relative errors of all adapters, each on its rows, against the formulas in fp32."""
    errors = {}
    w = t.w.float()
    for i in range(a.adapters):
        rows = slice(i * a.tokens, (i + 1) * a.tokens)
        x, dy, lora_a, lora_b = (tensor.float() for tensor in (t.x[rows], t.dy[rows], t.lora_a[i], t.lora_b[i]))
        s = x @ lora_a.T
        ds = SCALE * (dy @ lora_b)
        pairs = {"y": (y[rows], x @ w.T + SCALE * (s @ lora_b.T)), "dx": (dx[rows], dy @ w + ds @ lora_a),
                 "da": (da[i], ds.T @ x), "db": (db[i], SCALE * (dy.T @ s))}
        for name, (got, want) in pairs.items():
            errors[name] = max(errors.get(name, 0.0), relative_error(got, want))
    return errors


def run_case(torch, multi_lora, configs, inputs, outputs, dropout, a):
    t = make_tensors(torch, inputs, outputs, a)
    batch, same_dropout = describe_batch(multi_lora, configs, dropout, t.x.dtype, a)
    lora = {"lora_a_list": t.lora_a, "lora_b_list": t.lora_b}

    def forward():
        return multi_lora._fused_linear_multi_lora_forward(
            t.x, t.w, same_dropout_p_value=same_dropout, seed=7, **lora, **batch)

    y, mask, masked_x, s, s_pointers, b_pointers = fit(forward, configs, FORWARD)

    def backward():
        return multi_lora._fused_linear_multi_lora_backward(
            t.dy, t.w, s_ptrs_list=s_pointers, b_ptrs_list=b_pointers, s_list=s, masked_scaled_x=masked_x,
            dropout_mask=mask, **lora, **batch)

    dx, da, db, _ = fit(backward, configs, BACKWARD)
    out = {}
    if dropout == 0:
        out["errors"] = compare(t, y, dx, da, db, a)
    out.update(measure(torch, {"forward": forward, "backward": backward, "base_forward": lambda: t.x @ t.w.T,
                               "base_backward": lambda: t.dy @ t.w}, a))
    out["configurations"] = {kernel: describe_kernel(configs, kernel) for kernel in FORWARD + BACKWARD}
    return out


def parse():
    p = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    p.add_argument("--source", required=True, help="a checkout of LoRAFusion's repository")
    p.add_argument("--shapes", default="4096x4096,4096x14336", help="inputs x outputs of the linear")
    p.add_argument("--tokens", type=int, default=2048, help="of each adapter, a multiple of %d" % BLOCK)
    p.add_argument("--adapters", type=int, default=4, help="1 to 4")
    p.add_argument("--r", type=int, default=16)
    p.add_argument("--dropout", default="0,0.1")
    p.add_argument("--iterations", type=int, default=60)
    p.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    a = p.parse_args()
    if not os.path.isfile(os.path.join(a.source, "lorafusion", "ops", "multi_lora.py")):
        p.error("--source: %s has no lorafusion/ops/multi_lora.py" % a.source)
    if a.tokens < 1 or a.tokens % BLOCK:
        p.error("--tokens: %d is not a multiple of %d" % (a.tokens, BLOCK))
    if not 1 <= a.adapters <= 4:
        p.error("--adapters: %d is not 1 to 4" % a.adapters)
    a.shapes = [re.fullmatch(r"(\d+)x(\d+)", s) or p.error("--shapes: %s" % s) for s in a.shapes.split(",")]
    a.dropout = [float(d) for d in a.dropout.split(",")]
    return a


def main():
    a = parse()
    if a.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    import torch
    import triton
    multi_lora, configs, published = load(torch, a)
    torch.set_grad_enabled(False)
    for shape in a.shapes:
        inputs, outputs = map(int, shape.groups())
        for dropout in a.dropout:
            out = {"bench": "lorafusion", "tokens": a.adapters * a.tokens, "in": inputs, "out": outputs,
                   "adapters": a.adapters, "r": a.r, "dropout": dropout, "configuration_published": published,
                   "versions": {m.__name__: m.__version__ for m in (torch, triton)},
                   "device": torch.cuda.get_device_name()}
            try:
                out.update(run_case(torch, multi_lora, configs, inputs, outputs, dropout, a))
            except Exception as error:  # out of memory, say: the other cases are still wanted
                out["error"] = "%s: %s" % (type(error).__name__, str(error)[:300])
            print(json.dumps(out, separators=(",", ":")), flush=True)


main()
