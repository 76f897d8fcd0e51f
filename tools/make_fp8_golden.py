"""Makes tests/golden/fp8_blocks.safetensors: weights in e4m3 with a scale for each block of 128 x 128, and the bf16 that
torch makes of them as DeepSeek's fp8_cast_bf16.py does (weight_dequant: fp32(code) * scale, rounded to bf16).

    python tools/make_fp8_golden.py tests/golden/fp8_blocks.safetensors

Of NAME: NAME.weight, NAME.weight_scale_inv, NAME.bf16. Blocks that do not divide a matrix, and all 254 finite codes.
"""
import sys

import torch
from safetensors.torch import save_file

SHAPES = {"ragged": (129, 200), "tall": (260, 3), "small": (1, 1)}


def main(path):
    g = torch.Generator().manual_seed(20261125)
    tensors = {}
    for name, (rows, columns) in SHAPES.items():
        codes = torch.randint(0, 254, (rows * columns,), generator=g, dtype=torch.int64)
        codes[: min(254, rows * columns)] = torch.arange(min(254, rows * columns))
        codes = codes + (codes >= 127).to(torch.int64)  # 127 and 255 are NaN
        weight = codes.to(torch.uint8).view(torch.float8_e4m3fn).reshape(rows, columns)
        scale = torch.rand(-(-rows // 128), -(-columns // 128), generator=g) * 2e-3 + 1e-5
        whole = scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
        tensors[f"{name}.weight"] = weight.contiguous()
        tensors[f"{name}.weight_scale_inv"] = scale.contiguous()
        tensors[f"{name}.bf16"] = (weight.float() * whole).to(torch.bfloat16).contiguous()
        assert torch.isfinite(tensors[f"{name}.bf16"]).all()
    save_file(tensors, path, metadata={"format": "pt", "torch": torch.__version__.split("+")[0]})


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
