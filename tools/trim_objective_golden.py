"""Makes tests/golden/objectives of what TRL computed for objectives over preferences: what the tests read of it.

    python tools/trim_objective_golden.py FROM tests/golden/objectives

FROM has init/lora_r8_b and traces/tensors.json, traces/NAME/{trace.json, trace.safetensors}. What stays:

    init/lora_r8_b/                 the adapter that all but one trace begin with
    traces.json                     {"tensors": [names], "traces": {NAME: {settings .., "steps": [what TRL logged]}}}
    traces.safetensors              NAME.final_samples F32 [tensors, 4] (flat element i * n / 4), NAME.final_l2, NAME.grad_l2
                                    (of step 1, where it is known) F32 [tensors]

The same bytes come of the same files. Reward models are left out.
"""
import json
import os
import shutil
import sys

import numpy
from safetensors.numpy import load_file, save_file

SETTINGS = ("trainer", "config", "lr", "batch", "accumulate", "init", "reference", "data", "rows", "clip")
NOT_COMPARED = ("learning_rate", "num_tokens", "step", "micro_batch_losses")


def number(value):
    return float(f"{value:.9g}")


def trim(path):
    with open(os.path.join(path, "trace.json")) as f:
        trace = json.load(f)
    tensors = load_file(os.path.join(path, "trace.safetensors"))
    settings = {k: trace["settings"][k] for k in SETTINGS if trace["settings"].get(k) is not None}
    steps = [{k: number(v) for k, v in step.items() if k not in NOT_COMPARED} for step in trace["steps"]]
    single = numpy.float32
    arrays = {"final_samples": tensors["final_samples"][:, ::4].astype(single),
              "final_l2": tensors["final_l2"].astype(single)}
    if "grad_l2" in tensors:
        arrays["grad_l2"] = tensors["grad_l2"][0].astype(single)
    return {**settings, "steps": steps}, arrays


def main(source, target):
    os.makedirs(os.path.join(target, "init"), exist_ok=True)
    shutil.copytree(os.path.join(source, "init/lora_r8_b"), os.path.join(target, "init/lora_r8_b"),
                    copy_function=shutil.copyfile, dirs_exist_ok=True)
    folder = os.path.join(source, "traces")
    with open(os.path.join(folder, "tensors.json")) as f:
        names = json.load(f)["lora"]
    traces, arrays = {}, {}
    for name in sorted(os.listdir(folder)):
        if name == "tensors.json" or name.startswith("reward"):
            continue
        traces[name], of_trace = trim(os.path.join(folder, name))
        arrays.update({f"{name}.{k}": numpy.ascontiguousarray(v) for k, v in of_trace.items()})
    save_file(arrays, os.path.join(target, "traces.safetensors"))

    def text(value):
        return json.dumps(value, separators=(",", ":"))
    with open(os.path.join(target, "traces.json"), "w") as f:
        lines = ",\n".join(f"{text(name)}:{text(trace)}" for name, trace in traces.items())
        f.write(f'{{"tensors":{text(names)},\n"traces":{{\n{lines}}}}}\n')


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
