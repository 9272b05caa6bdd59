#!/usr/bin/env python3
"""Makes tests/golden/optimizers.txt and optimizers.safetensors: weights after 1, 2 and 12 updates by torch.optim.

    python3 tools/make_golden_optimizers.py        (needs torch 2.13 and safetensors; the tests need neither)

The text lists the cases, the tensors hold PyTorch's weights, one tensor [checkpoints, elements] a case. Initial weights
and gradients are not stored: value() below and the same function in tests/golden/test_optimizers.c make them, exactly,
from integers.
"""
import pathlib

import numpy
import torch
from safetensors.numpy import save_file

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
SIZES = [1, 7, 64, 257]  # tensors; their elements are numbered through
CHECKPOINTS = [1, 2, 12]
# The driven options of update k are their configured values times FACTORS[k], as a scheduler would drive them.
FACTORS = [1.0, 0.5, 0.75, 0.25, 1.0, 0.9, 0.8, 0.3, 1.0, 1.0, 0.6, 0.1]

SGD = {
    "default": {},
    "lr_1": {"lr": 0.1},
    "lr_2": {"lr": 0.01},
    "momentum_1": {"lr": 0.1, "momentum": 0.9},
    "momentum_2": {"lr": 0.1, "momentum": 0.5},
    "dampening_1": {"lr": 0.1, "momentum": 0.9, "dampening": 0.3},
    "dampening_2": {"lr": 0.1, "momentum": 0.9, "dampening": 0.9},
    "weight_decay_1": {"lr": 0.1, "weight_decay": 0.1},
    "weight_decay_2": {"lr": 0.1, "weight_decay": 0.5},
    "nesterov_1": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "nesterov_2": {"lr": 0.1, "momentum": 0.5, "nesterov": True},
    "maximize": {"lr": 0.1, "maximize": True},
    "mix_1": {"lr": 0.05, "momentum": 0.8, "dampening": 0.2, "weight_decay": 0.1, "maximize": True},
    "mix_2": {"lr": 0.05, "momentum": 0.8, "weight_decay": 0.1, "nesterov": True, "maximize": True},
    "driven_momentum": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
    "driven_nesterov": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
}
ADAM = {
    "default": {},
    "lr_1": {"lr": 0.1},
    "lr_2": {"lr": 0.01},
    "betas_1": {"lr": 0.05, "betas": (0.8, 0.99)},
    "betas_2": {"lr": 0.05, "betas": (0.0, 0.5)},
    "betas_3": {"lr": 0.05, "betas": (0.95, 0.0)},
    "eps_1": {"lr": 0.05, "eps": 0.1},
    "eps_2": {"lr": 0.05, "eps": 1e-3},
    "weight_decay_1": {"lr": 0.05, "weight_decay": 0.1},
    "weight_decay_2": {"lr": 0.05, "weight_decay": 0.5},
    "weight_decay_0": {"lr": 0.05, "weight_decay": 0.0},
    "amsgrad_0": {"lr": 0.05, "amsgrad": True, "weight_decay": 0.0},
    "amsgrad_1": {"lr": 0.05, "amsgrad": True},
    "amsgrad_2": {"lr": 0.05, "amsgrad": True, "betas": (0.9, 0.5)},
    "maximize": {"lr": 0.05, "maximize": True},
    "mix_1": {"lr": 0.05, "betas": (0.7, 0.8), "eps": 0.01, "weight_decay": 0.2, "amsgrad": True},
    "mix_2": {"lr": 0.05, "betas": (0.7, 0.8), "eps": 0.01, "weight_decay": 0.2, "amsgrad": True, "maximize": True},
    "mix_3": {"lr": 0.05, "weight_decay": 0.2, "maximize": True},
    "driven_beta1": {"lr": 0.05},
    "driven_beta2": {"lr": 0.05, "weight_decay": 0.1},
}
DRIVES = {
    ("sgd", "driven_momentum"): ["lr", "momentum", "weight_decay"],
    ("sgd", "driven_nesterov"): ["lr", "momentum"],
    ("adam", "driven_beta1"): ["lr", "beta1"],
    ("adam", "driven_beta2"): ["lr", "beta2", "weight_decay"],
    ("adamw", "driven_beta1"): ["lr", "beta1"],
    ("adamw", "driven_beta2"): ["lr", "beta2", "weight_decay"],
}
PLUGINS = {"sgd": (torch.optim.SGD, SGD), "adam": (torch.optim.Adam, ADAM), "adamw": (torch.optim.AdamW, ADAM)}


def value(stream, index):
    """Element `index` of a stream: [-1, 1) in steps of 2^-23, scaled by 1, 1/2, ... 1/128; exact in float32.

    Stream 0 is the weights, stream k the gradients of update k, a sixteenth of which are 0."""
    word = (numpy.uint64(stream) * numpy.uint64(0x9E3779B9) + index.astype(numpy.uint64) + numpy.uint64(1)).astype(numpy.uint32)
    word ^= word >> numpy.uint32(16)
    word *= numpy.uint32(0x7FEB352D)
    word ^= word >> numpy.uint32(15)
    word *= numpy.uint32(0x846CA68B)
    word ^= word >> numpy.uint32(16)
    exponent = -23 - (word & numpy.uint32(7)).astype(numpy.int32)
    result = numpy.ldexp((word >> numpy.uint32(8)).astype(numpy.float64) - 8388608.0, exponent)
    if stream > 0:
        result[(word >> numpy.uint32(3)) % numpy.uint32(16) == 0] = 0.0
    assert (result == result.astype(numpy.float32)).all()
    return torch.from_numpy(result.astype(numpy.float32))


def scaled(group, base, name, factor):
    """Sets one driven option, named as a scheduler names it, in a PyTorch parameter group."""
    if name in ("beta1", "beta2"):
        place = int(name == "beta2")
        betas = list(group["betas"])
        betas[place] = base["betas"][place] * factor
        group["betas"] = tuple(betas)
    else:
        group[name] = base[name] * factor


def run(optimizer_class, options, drives):
    ends = numpy.cumsum(SIZES)
    pieces = [numpy.arange(end - size, end) for size, end in zip(SIZES, ends)]
    parameters = [torch.nn.Parameter(value(0, piece)) for piece in pieces]
    optimizer = optimizer_class(parameters, foreach=False, **options)
    group = optimizer.param_groups[0]
    base = dict(group)
    kept = []
    for update, factor in enumerate(FACTORS, start=1):
        for parameter, piece in zip(parameters, pieces):
            parameter.grad = value(update, piece)
        for name in drives:
            scaled(group, base, name, factor)
        optimizer.step()
        if update in CHECKPOINTS:
            kept.append(torch.cat([parameter.detach() for parameter in parameters]).numpy().copy())
    return numpy.stack(kept)


def as_text(option):
    if isinstance(option, bool):
        return "yes" if option else "no"
    if isinstance(option, tuple):
        return ",".join(repr(element) for element in option)
    return repr(option)


def main():
    lines = [
        "# Made by tools/make_golden_optimizers.py: case NAME PLUGIN DRIVEN,... OPTION=VALUE ...",
        "# Driven options of update k: configured value times the k-th factor. Weights: optimizers.safetensors.",
        "factors " + " ".join(repr(factor) for factor in FACTORS),
    ]
    tensors = {}
    for plugin, (optimizer_class, cases) in PLUGINS.items():
        for case, options in cases.items():
            drives = DRIVES.get((plugin, case), ["lr"])
            name = f"{plugin}.{case}"
            tensors[name] = run(optimizer_class, options, drives)
            pairs = [f"{key}={as_text(option)}" for key, option in options.items()]
            lines.append(" ".join(["case", name, plugin, ",".join(drives), *pairs]))
    save_file(tensors, FOLDER / "optimizers.safetensors")
    (FOLDER / "optimizers.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
