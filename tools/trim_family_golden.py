"""Makes tests/golden/families/NAME of what Transformers and PEFT computed for a family: what the tests read of it.

    python tools/trim_family_golden.py FROM tests/golden/families [NAME ..]

FROM/NAME has checkpoint/, config_published_style.json, forward.jsonl, train.jsonl, forward.json, forward.safetensors,
nf4.json and traces/TRACE/{init/, final/, trace.json, trace.safetensors}; without NAME, all of FROM. What stays, and in
which form, is written in docs/testing.md ("Golden families"). The same bytes come of the same files.
"""
import json
import os
import shutil
import sys

import numpy
from safetensors.numpy import load_file, save_file

TOKENS = slice(6, None, 7)  # of logits and hidden states: tokens 6, 13, 20, ..
SAMPLES = 32  # about as many elements of each tensor of an adapter
WHOLE = ("config_published_style.json", "forward.jsonl", "train.jsonl", "dequantized.safetensors")


def write_json(path, value):
    """A line for each key, and one for each entry of large objects."""
    def text(item):
        return json.dumps(item, separators=(",", ":"))

    def lines(item):
        if not isinstance(item, dict) or len(text(item)) < 200:
            return text(item)
        return "{\n" + ",\n".join(f"{text(k)}:{text(v)}" for k, v in item.items()) + "}"
    with open(path, "w") as f:
        f.write("{\n" + ",\n".join(f"{text(k)}:{lines(v)}" for k, v in value.items()) + "}\n")


def is_prime(n):
    return all(n % i for i in range(2, int(n**0.5) + 1))


def stride_of(shape):
    """1 for small tensors, else a prime that meets every column."""
    count = int(numpy.prod(shape))
    if count <= SAMPLES:
        return 1
    stride = max(5, -(-count // SAMPLES))
    while not is_prime(stride) or shape[-1] % stride == 0:
        stride += 1
    return stride


def trim_trace(source, target):
    """trace.json with what holds of whole tensors; trace.safetensors with elements of them, one behind the other."""
    adapters = os.path.exists(os.path.join(source, "init"))  # not of c_lora_aux_loss, which begins as a_lora_attention
    if adapters:
        shutil.copytree(os.path.join(source, "init"), os.path.join(target, "init"))
    with open(os.path.join(source, "trace.json")) as f:
        facts = json.load(f)
    gradients = load_file(os.path.join(source, "trace.safetensors"))
    final = load_file(os.path.join(source, "final/adapter_model.safetensors")) if adapters else {}
    tensors, samples = {}, {}
    for name in sorted(facts["tensors"]):
        gradient = gradients.pop("grad.step1." + name)
        stride = stride_of(gradient.shape)
        tensors[name] = {"shape": list(gradient.shape), "stride": stride, "grad_l2": facts["grad_step1_l2"][name],
                         "grad_largest": float(numpy.abs(gradient).max())}
        samples.setdefault("grad.step1", []).append(gradient.reshape(-1)[::stride])
        if adapters:
            value = final.pop(name)
            assert gradient.shape == value.shape and value.dtype == numpy.float32
            tensors[name]["final_rms"] = float(numpy.sqrt(numpy.mean(value.astype(numpy.float64)**2)))
            samples.setdefault("final", []).append(value.reshape(-1)[::stride])
    assert not gradients and not final
    del facts["grad_step1_l2"]
    facts["tensors"] = tensors
    write_json(os.path.join(target, "trace.json"), facts)
    save_file({name: numpy.concatenate(parts) for name, parts in samples.items()},
              os.path.join(target, "trace.safetensors"))


def losses_of(logits, ids):
    """The loss of each next token, from whole logits in float64."""
    x = logits.astype(numpy.float64)[:-1]
    largest = x.max(axis=1)
    log_sum = largest + numpy.log(numpy.exp(x - largest[:, None]).sum(axis=1))
    return (log_sum - x[numpy.arange(len(x)), ids[1:]]).astype(numpy.float32)


def trim_forward(source, target):
    """Of logits and hidden states some tokens, of everything else all."""
    with open(os.path.join(source, "forward.json")) as f:
        facts = json.load(f)
    del facts["checkpoint_tensors"]
    if "plain" not in facts:  # gpt_oss_mxfp4 has one base
        facts["plain"] = {"loss": facts.pop("loss")}
    write_json(os.path.join(target, "forward.json"), facts)
    with open(os.path.join(source, "forward.jsonl")) as f:
        rows = [json.loads(line)["input_ids"] for line in f]
    kept = {}
    for name, value in load_file(os.path.join(source, "forward.safetensors")).items():
        name = "plain." + name if name.startswith("row") else name
        base, row = name.split(".")[:2]
        if name == f"{base}.{row}.logits":
            kept[f"{base}.{row}.nll"] = losses_of(value, rows[int(row[-1])])
        if name.endswith(".hidden"):
            value = value[:, TOKENS]
        elif name.endswith(".logits"):
            value = value[TOKENS]
        kept[name] = numpy.ascontiguousarray(value)
    save_file(kept, os.path.join(target, "forward.safetensors"))


def trim(source, target):
    shutil.rmtree(target, ignore_errors=True)
    os.makedirs(target)
    shutil.copytree(os.path.join(source, "checkpoint"), os.path.join(target, "checkpoint"))
    for name in WHOLE:
        if os.path.exists(os.path.join(source, name)):
            shutil.copy(os.path.join(source, name), target)
    trim_forward(source, target)
    if os.path.exists(os.path.join(source, "nf4.json")):
        with open(os.path.join(source, "nf4.json")) as f:
            write_json(os.path.join(target, "nf4.json"), json.load(f))
    traces = os.path.join(source, "traces")
    for name in sorted(os.listdir(traces)) if os.path.exists(traces) else []:
        os.mkdir(os.path.join(target, name))
        trim_trace(os.path.join(traces, name), os.path.join(target, name))
    for directory, _, files in os.walk(target):
        for name in files:
            os.chmod(os.path.join(directory, name), 0o644)


def main(source, target, *names):
    for name in names or sorted(os.listdir(source)):
        if os.path.exists(os.path.join(source, name, "checkpoint")):
            trim(os.path.join(source, name), os.path.join(target, name))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
