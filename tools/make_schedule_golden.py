"""Writes tests/golden/schedules.json: the multipliers of transformers' learning-rate schedules.

    python tools/make_schedule_golden.py tests/golden/schedules.json

Needs transformers and torch. Entries that are already there are computed again and must come out the same.
"""
import json
import sys

from torch.optim import Optimizer
from transformers.optimization import get_scheduler


class Rate(Optimizer):
    def __init__(self, lr):
        self.defaults, self.param_groups, self.state = {"lr": lr}, [{"lr": lr, "initial_lr": lr}], {}


def entry(name, warmup, total, lr, **kwargs):
    schedule = get_scheduler(name, Rate(lr), warmup, total, scheduler_specific_kwargs=kwargs)
    return {"name": name, "num_warmup_steps": warmup, "num_training_steps": total, "learning_rate": lr, **kwargs,
            "multipliers": [schedule.lr_lambdas[0](i) for i in range(total + 2)]}


CASES = {
    "cosine_with_restarts": [(1.0, {}), (1.0, {"num_cycles": 2}), (1.0, {"num_cycles": 3})],
    "polynomial": [(2e-4, {}), (2e-4, {"power": 2.0}), (1e-3, {"power": 0.5, "lr_end": 1e-5})],
    "inverse_sqrt": [(1.0, {}), (1.0, {"timescale": 20})],
    "cosine_warmup_with_min_lr": [(1.0, {"min_lr_rate": 0.1}), (2e-4, {"min_lr": 2e-5, "warmup_lr_rate": 0.05}),
                                  (1.0, {"min_lr_rate": 0.0, "num_cycles": 1.5})],
    "warmup_stable_decay": [
        (1.0, {"num_decay_steps": 10}),
        (1.0, {"num_decay_steps": 60}),
        (1.0, {"num_decay_steps": 10, "num_stable_steps": 20, "min_lr_ratio": 0.1, "decay_type": "linear"}),
        (1.0, {"num_decay_steps": 20, "warmup_type": "cosine", "decay_type": "1-sqrt", "min_lr_ratio": 0.05}),
        (1.0, {"num_decay_steps": 20, "warmup_type": "1-sqrt", "num_cycles": 1.5})],
}


def main(path):
    with open(path) as file:
        golden = json.load(file)
    kept = [e for e in golden["schedules"] if e["name"] not in CASES]
    for e in kept:
        kwargs = {k: e[k] for k in ("num_cycles", "min_lr", "min_lr_rate") if k in e}
        again = entry(e["name"], e["num_warmup_steps"], e["num_training_steps"], 1.0, **kwargs)
        worst = max(abs(a - b) for a, b in zip(again["multipliers"], e["multipliers"]))
        assert worst < 1e-12, (e, worst)
    golden["schedules"] = kept + [entry(name, warmup, 40, lr, **kwargs) for name, cases in CASES.items()
                                  for warmup in (0, 1, 5) for lr, kwargs in cases]
    with open(path, "w") as file:
        json.dump(golden, file)
        file.write("\n")
    print(len(golden["schedules"]), "schedules")


main(sys.argv[1])
