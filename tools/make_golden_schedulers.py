#!/usr/bin/env python3
"""Writes tests/golden/schedulers.json: what PyTorch's schedulers (torch 2.13) give, position by position.

Run: python tools/make_golden_schedulers.py   (needs torch; the tests do not)

A case holds sections in the language of the experiment file, the base values of two groups, and the expected values.
Sections are turned into PyTorch's objects here by one table of names, so a case cannot say one thing to fuserun and
another to PyTorch. `lr[group][i]` belongs to position i * stride; `momentum[i]` too, where the schedule cycles it.

Left out because PyTorch's own value is wrong or missing, and the tests state ours instead: nested sequences, chains with
absolute values (cosine, onecycle), onecycle behind its end, linear from 0."""

import json
import pathlib
import warnings

import torch
from torch.optim import lr_scheduler as torch_schedulers

CLASSES = {
    "constant": "ConstantLR",
    "linear": "LinearLR",
    "step": "StepLR",
    "multistep": "MultiStepLR",
    "exponential": "ExponentialLR",
    "polynomial": "PolynomialLR",
    "cosine": "CosineAnnealingLR",
    "cosine_restarts": "CosineAnnealingWarmRestarts",
    "onecycle": "OneCycleLR",
    "cyclic": "CyclicLR",
}
NAMES = {"t_max": "T_max", "t_0": "T_0", "t_mult": "T_mult"}
LENGTH_DEFAULT = {"cosine": "t_max", "onecycle": "total_steps", "polynomial": "total_iters"}
INTEGERS = {"t_max", "t_0", "t_mult", "total_iters", "total_steps", "step_size", "step_size_up", "step_size_down"}
TEXTS = {"mode", "anneal_strategy"}
BOOLEANS = {"cycle_momentum", "three_phase"}
BASES = [0.1, 0.003]


def parse(key, text):
    if key == "milestones":
        return [int(part) for part in text.split(",")]
    if key in INTEGERS:
        return int(text)
    if key in TEXTS:
        return text
    if key in BOOLEANS:
        return text == "yes"
    return float(text)


def build(sections, name, optimizer, length):
    options = dict(pair.split("=", 1) for pair in sections[name])
    plugin = options.pop("plugin")
    if plugin in ("sequential", "chain"):
        stages = ["scheduler." + stage.strip() for stage in options["stages"].split(",")]
        if plugin == "chain":
            return torch_schedulers.ChainedScheduler([build(sections, s, optimizer, length) for s in stages])
        milestones = parse("milestones", options["milestones"])
        bounds = [0, *milestones, max(length, milestones[-1] + 1)]
        children = [
            build(sections, stage, optimizer, max(1, bounds[i + 1] - bounds[i])) for i, stage in enumerate(stages)
        ]
        return torch_schedulers.SequentialLR(optimizer, children, milestones)
    if plugin in LENGTH_DEFAULT:
        options.setdefault(LENGTH_DEFAULT[plugin], str(length))
    arguments = {NAMES.get(key, key): parse(key, text) for key, text in options.items()}
    return getattr(torch_schedulers, CLASSES[plugin])(optimizer, **arguments)


def record(case):
    sections, length, stride = case["sections"], case["length"], case["stride"]
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": base} for base in BASES]
    if case.pop("adam", False):
        optimizer = torch.optim.Adam(groups, betas=(0.5, 0.98))
        momentum_of = lambda: optimizer.param_groups[0]["betas"][0]
        case["momentum_base"] = 0.5
    else:
        optimizer = torch.optim.SGD(groups, momentum=0.7)
        momentum_of = lambda: optimizer.param_groups[0]["momentum"]
        case["momentum_base"] = 0.7
    schedule = build(sections, "scheduler", optimizer, length)
    plugin = dict(pair.split("=", 1) for pair in sections["scheduler"])["plugin"]
    values = [[] for _ in BASES]
    momentum = []
    for position in range((case["count"] - 1) * stride + 1):
        if position > 0:
            optimizer.step()
            schedule.step()
        if position % stride == 0:
            for group, into in zip(optimizer.param_groups, values):
                into.append(group["lr"])
            momentum.append(momentum_of())
    case["lr"] = values
    if plugin in ("onecycle", "cyclic"):
        case["momentum"] = momentum
    return case


CASES = []


def alone(plugin, *options, length=30, count=40, stride=1, **more):
    add({"scheduler": [f"plugin={plugin}", *options]}, length, count, stride, **more)


def combined(plugin, stages, *options, length=40, count=45, stride=1):
    sections = {"scheduler": [f"plugin={plugin}", "stages=" + ", ".join(stages), *options]}
    sections |= {f"scheduler.{name}": list(pairs) for name, pairs in stages.items()}
    add(sections, length, count, stride)


def add(sections, length, count, stride, **more):
    CASES.append({"sections": sections, "length": length, "count": count, "stride": stride, "bases": BASES} | more)


alone("constant")
alone("constant", "factor=0.25", "total_iters=1")
alone("constant", "factor=1", "total_iters=7")
alone("constant", "factor=0.01", "total_iters=100", stride=5)
alone("linear")
alone("linear", "start_factor=0.01", "total_iters=20")
alone("linear", "start_factor=1", "end_factor=0", "total_iters=25")
alone("linear", "start_factor=0.9", "end_factor=0.1", "total_iters=1")
alone("linear", "start_factor=0.001", "end_factor=0.5", "total_iters=1000", stride=37)
alone("step", "step_size=7")
alone("step", "step_size=1", "gamma=0.9")
alone("step", "step_size=30", "gamma=0.5", stride=11)
alone("step", "step_size=3", "gamma=1.5")
alone("multistep", "milestones=5, 11, 30")
alone("multistep", "milestones=20, 3, 11, 3", "gamma=0.5")
alone("multistep", "milestones=0, 0, 1", "gamma=0.7")
alone("exponential", "gamma=0.9")
alone("exponential", "gamma=0.999", stride=50)
alone("exponential", "gamma=1.05")
alone("exponential", "gamma=1")
alone("polynomial")
alone("polynomial", "total_iters=5")
alone("polynomial", "total_iters=20", "power=2")
alone("polynomial", "total_iters=20", "power=0.5")
alone("polynomial", "total_iters=1", "power=3")
alone("polynomial", "total_iters=9", "power=0")
alone("polynomial", "total_iters=1000", "power=0.9", stride=29)
alone("cosine")
alone("cosine", "t_max=10")
alone("cosine", "t_max=7", "eta_min=0.001")
alone("cosine", "t_max=1")
alone("cosine", "t_max=2", "eta_min=0.02")  # above the second group's base
alone("cosine", "t_max=900", stride=71)
alone("cosine", "t_max=1000", "eta_min=1e-5", stride=97)
alone("cosine_restarts", "t_0=10")
alone("cosine_restarts", "t_0=1")
alone("cosine_restarts", "t_0=3", "t_mult=2", "eta_min=0.0005")
alone("cosine_restarts", "t_0=1", "t_mult=3")
alone("cosine_restarts", "t_0=50", "t_mult=2", stride=31)
ONE = "max_lr=0.2"
alone("onecycle", ONE, length=40)
alone("onecycle", ONE, length=40, adam=True)
alone("onecycle", ONE, "total_steps=40", "anneal_strategy=linear")
alone("onecycle", ONE, "total_steps=40", "three_phase=yes")
alone("onecycle", ONE, "total_steps=40", "three_phase=yes", "anneal_strategy=linear", "pct_start=0.45")
alone("onecycle", ONE, "total_steps=40", "pct_start=0")
alone("onecycle", ONE, "total_steps=40", "pct_start=1")
alone("onecycle", ONE, "total_steps=40", "pct_start=0.01", "three_phase=yes")
alone("onecycle", ONE, "total_steps=40", "cycle_momentum=no", "div_factor=10", "final_div_factor=100")
alone("onecycle", ONE, "total_steps=40", "base_momentum=0.1", "max_momentum=0.6")
alone("onecycle", ONE, "total_steps=1", count=1)
alone("onecycle", ONE, "total_steps=2", count=2)
alone("onecycle", ONE, "total_steps=3", "pct_start=0.5", count=3)
alone("onecycle", ONE, "total_steps=1000", stride=25)
CYCLE = ("base_lr=0.01", "max_lr=0.05")
alone("cyclic", *CYCLE, stride=113)
alone("cyclic", *CYCLE, "step_size_up=5")
alone("cyclic", *CYCLE, "step_size_up=5", "step_size_down=3", adam=True)
alone("cyclic", *CYCLE, "step_size_up=1", "step_size_down=1")
alone("cyclic", *CYCLE, "step_size_up=4", "mode=triangular2")
alone("cyclic", *CYCLE, "step_size_up=4", "step_size_down=9", "mode=exp_range", "gamma=0.95")
alone("cyclic", *CYCLE, "step_size_up=6", "base_momentum=0.2", "max_momentum=0.99")
alone("cyclic", *CYCLE, "step_size_up=6", "cycle_momentum=no")

WARM = ("plugin=linear", "start_factor=0.1", "total_iters=10")
combined("sequential", {"warmup": WARM, "main": ("plugin=cosine",)}, "milestones=10")
combined("sequential", {"warmup": WARM, "main": ("plugin=cosine", "t_max=12", "eta_min=0.001")}, "milestones=10")
combined("sequential", {"warmup": WARM, "main": ("plugin=polynomial", "power=2")}, "milestones=10")
combined("sequential", {"warmup": WARM, "main": ("plugin=step", "step_size=4", "gamma=0.5")}, "milestones=5")
combined("sequential", {"warmup": WARM, "main": ("plugin=exponential", "gamma=0.9")}, "milestones=17")
combined("sequential", {"warmup": WARM, "main": ("plugin=cosine_restarts", "t_0=4", "t_mult=2")}, "milestones=10")
combined("sequential", {"a": ("plugin=constant", "factor=0.1", "total_iters=3"), "b": ("plugin=exponential", "gamma=0.9")},
         "milestones=3")
combined("sequential", {"a": ("plugin=cosine", "t_max=6"), "b": ("plugin=linear",), "c": ("plugin=step", "step_size=3")},
         "milestones=9, 20")
combined("sequential", {"a": WARM, "b": ("plugin=multistep", "milestones=0, 2, 5", "gamma=0.5")}, "milestones=12")
combined("sequential", {"a": WARM, "b": ("plugin=exponential", "gamma=0.9")}, "milestones=0")
combined("sequential", {"a": WARM, "b": ("plugin=cosine", "t_max=9"), "c": ("plugin=exponential", "gamma=0.8")},
         "milestones=4, 4")
combined("sequential", {"a": WARM, "b": ("plugin=constant",), "c": ("plugin=polynomial", "total_iters=8")},
         "milestones=10, 20")

combined("chain", {"a": ("plugin=linear",), "b": ("plugin=exponential", "gamma=0.95")})
combined("chain", {"a": ("plugin=constant", "factor=0.5", "total_iters=8"), "b": ("plugin=step", "step_size=6")})
combined("chain", {"a": ("plugin=polynomial", "total_iters=30"), "b": ("plugin=multistep", "milestones=4, 9", "gamma=0.3"),
                   "c": ("plugin=linear", "start_factor=0.2", "total_iters=12")})
combined("chain", {"a": ("plugin=exponential", "gamma=0.9")})

if __name__ == "__main__":
    warnings.simplefilter("error")
    out = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "schedulers.json"
    lines = [json.dumps(record(case)) for case in CASES]  # json writes a double with repr: it reads back the same
    out.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    print(f"{out}: {len(lines)} cases, {out.stat().st_size} bytes, torch {torch.__version__}")
