#!/usr/bin/env python3
"""A small Mixtral of a small Llama in bf16: the MLP of each layer, cut into experts, behind routers that are drawn.

    make_tiny_moe.py MODEL OUT [EXPERTS [CHOSEN]]        8 experts, 4 of a token

Of E experts on an MLP of width f, the first has rows 0 to f / E - 1 of gate and up and these columns of down, and so on. A
token's experts are multiplied by weights that sum to 1, so down is multiplied by CHOSEN, a power of two: with even weights
they are the part of the MLP that they were. Attention, norms, embedding and head are copied. The loss is far above the
Llama's, and training lowers it. Needs nothing but Python.
"""
import json
import os
import random
import re
import shutil
import struct
import sys

COPIED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
MLP = re.compile(r"model\.layers\.(\d+)\.mlp\.(gate|up|down)_proj\.weight$")
NAMES = {"gate": "w1", "up": "w3", "down": "w2"}


def read(directory):
    """name -> (shape, bytes), in the order of names"""
    tensors = {}
    for file in sorted(os.listdir(directory)):
        if not file.endswith(".safetensors"):
            continue
        with open(os.path.join(directory, file), "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            begin = f.tell()
            for name, entry in header.items():
                if name == "__metadata__":
                    continue
                if entry["dtype"] != "BF16":
                    sys.exit(f"{file}: {name} is {entry['dtype']}, only BF16 is read")
                first, end = entry["data_offsets"]
                f.seek(begin + first)
                tensors[name] = (entry["shape"], f.read(end - first))
    return dict(sorted(tensors.items()))


def write(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, data in tensors.values():
            f.write(data)


def times(data, power):
    """bf16 values times 2^power: their exponents, where there is one"""
    values = struct.unpack(f"<{len(data) // 2}H", data)
    return struct.pack(f"<{len(values)}H", *(v + (power << 7) if v & 0x7F80 else v for v in values))


def columns(data, width, first, end):
    return b"".join(data[2 * (row + first):2 * (row + end)] for row in range(0, len(data) // 2, width))


def expert(part, shape, data, index, count, chosen):
    """One expert's share of an MLP's matrix, and its shape"""
    rows, width = shape
    if part != "down":
        share = rows // count
        return [share, width], data[2 * index * share * width:2 * (index + 1) * share * width]
    share = width // count
    cut = columns(data, width, index * share, (index + 1) * share)
    return [rows, share], times(cut, chosen.bit_length() - 1)


def router(layer, count, hidden):
    draw = random.Random(layer)
    values = (struct.unpack("<I", struct.pack("<f", draw.gauss(0, 0.1)))[0] >> 16 for _ in range(count * hidden))
    return [count, hidden], struct.pack(f"<{count * hidden}H", *values)


def main(model, out, count=8, chosen=4):
    count, chosen = int(count), int(chosen)
    with open(os.path.join(model, "config.json")) as f:
        config = json.load(f)
    width = config["intermediate_size"]
    if config["model_type"] != "llama" or count < 1 or width % count:
        sys.exit(f"{model}: expected a Llama whose MLP, {width} wide, can be cut into {count} experts")
    if not 0 < chosen <= count or chosen & (chosen - 1):
        sys.exit(f"CHOSEN is {chosen}, expected a power of two up to {count}")
    tensors = {}
    for name, (shape, data) in read(model).items():
        found = MLP.match(name)
        if not found:
            tensors[name] = (shape, data)
            continue
        layer, part = found[1], found[2]
        for e in range(count):
            to = f"model.layers.{layer}.block_sparse_moe.experts.{e}.{NAMES[part]}.weight"
            tensors[to] = expert(part, shape, data, e, count, chosen)
        tensors[f"model.layers.{layer}.block_sparse_moe.gate.weight"] = router(int(layer), count, config["hidden_size"])
    config.update(architectures=["MixtralForCausalLM"], model_type="mixtral", intermediate_size=width // count,
                  num_local_experts=count, num_experts_per_tok=chosen, sliding_window=None, router_aux_loss_coef=0.001,
                  output_router_logits=False)
    for key in ("attention_bias", "mlp_bias", "pretraining_tp"):
        config.pop(key, None)
    os.makedirs(out, exist_ok=True)
    write(os.path.join(out, "model.safetensors"), dict(sorted(tensors.items())))
    with open(os.path.join(out, "config.json"), "w") as f:
        f.write(json.dumps(config, indent=2) + "\n")
    for file in COPIED:
        if os.path.exists(os.path.join(model, file)):
            shutil.copy(os.path.join(model, file), out)


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
