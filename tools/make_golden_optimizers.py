#!/usr/bin/env python3
"""Makes tests/golden/optimizers.txt and optimizers.safetensors: weights after 1, 2 and 12 updates by torch.optim (lion:
by its authors' formula, below).

    python3 tools/make_golden_optimizers.py        (needs torch 2.13 and safetensors; the tests need neither)

and whole_optimizers.txt and .safetensors: weights after 12 updates by the optimizers that look at whole parameters
(muon: in double precision, and PyTorch's own, in bfloat16, after the first update as muon_bfloat16.NAME).

The text lists the cases, the tensors hold the weights, one tensor [checkpoints, elements] a case. Initial weights
and gradients are not stored: value() below and the same function in tests/golden/test_optimizers.c make them, exactly,
from integers.
"""
import pathlib

import numpy
import torch
from safetensors.numpy import save_file

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
SIZES = [1, 7, 64, 129]  # tensors; their elements are numbered through
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
ADAGRAD = {
    "default": {},
    "lr": {"lr": 0.1},
    "lr_decay_1": {"lr": 0.1, "lr_decay": 0.1},
    "lr_decay_2": {"lr": 0.1, "lr_decay": 2.0},
    "weight_decay": {"lr": 0.1, "weight_decay": 0.3},
    "initial_1": {"lr": 0.1, "initial_accumulator_value": 0.1},
    "initial_2": {"lr": 0.1, "initial_accumulator_value": 2.0},
    "eps": {"lr": 0.1, "eps": 0.1},
    "maximize": {"lr": 0.1, "maximize": True},
    "mix": {"lr": 0.1, "lr_decay": 0.2, "weight_decay": 0.2, "initial_accumulator_value": 0.5, "eps": 1e-3, "maximize": True},
    "driven": {"lr": 0.1, "weight_decay": 0.1},
}
ADADELTA = {
    "default": {},
    "lr": {"lr": 5.0},
    "rho_1": {"rho": 0.5},
    "rho_2": {"rho": 0.99},
    "rho_3": {"rho": 1.0},
    "eps": {"eps": 1e-2},
    "weight_decay": {"weight_decay": 0.3},
    "maximize": {"eps": 1e-3, "maximize": True},
    "mix": {"lr": 2.0, "rho": 0.8, "eps": 1e-3, "weight_decay": 0.2, "maximize": True},
    "driven": {"eps": 1e-3, "weight_decay": 0.1},
}
RMSPROP = {
    "default": {},
    "lr": {"lr": 0.05},
    "alpha_1": {"alpha": 0.5},
    "alpha_2": {"alpha": 0.9},
    "alpha_3": {"alpha": 0.0},
    "eps": {"eps": 0.1},
    "weight_decay": {"weight_decay": 0.3},
    "momentum_1": {"momentum": 0.9},
    "momentum_2": {"momentum": 0.3, "weight_decay": 0.1},
    "centered_1": {"centered": True},
    "centered_2": {"centered": True, "alpha": 0.6, "eps": 1e-3},
    "centered_momentum": {"centered": True, "alpha": 0.9, "momentum": 0.8},
    "maximize": {"maximize": True},
    "mix_1": {"lr": 0.02, "alpha": 0.8, "eps": 1e-3, "weight_decay": 0.2, "momentum": 0.7, "maximize": True},
    "mix_2": {"lr": 0.05, "alpha": 0.8, "eps": 1e-2, "weight_decay": 0.2, "momentum": 0.7, "centered": True, "maximize": True},
    "driven": {"momentum": 0.8, "weight_decay": 0.1},
}
RPROP = {
    "default": {},
    "lr": {"lr": 0.2},
    "etas_1": {"etas": (0.8, 1.1)},
    "etas_2": {"etas": (0.2, 3.0)},
    "step_sizes_1": {"step_sizes": (0.008, 0.012)},
    "step_sizes_2": {"lr": 0.3, "step_sizes": (1e-3, 0.1)},
    "maximize": {"maximize": True},
    "mix": {"lr": 0.05, "etas": (0.4, 1.7), "step_sizes": (0.01, 0.2), "maximize": True},
}
ASGD = {
    "default": {},
    "lr": {"lr": 0.1},
    "lambd_1": {"lr": 0.1, "lambd": 0.5},
    "lambd_2": {"lr": 0.1, "lambd": 0.0},
    "alpha_1": {"lr": 0.1, "lambd": 1.0, "alpha": 0.3},
    "alpha_2": {"lr": 0.1, "lambd": 1.0, "alpha": 2.0},
    "t0": {"lr": 0.1, "t0": 3.0},
    "weight_decay": {"lr": 0.1, "weight_decay": 0.3},
    "maximize": {"lr": 0.1, "maximize": True},
    "mix": {"lr": 0.1, "lambd": 0.4, "alpha": 0.9, "t0": 2.0, "weight_decay": 0.2, "maximize": True},
    "driven": {"lr": 0.1, "lambd": 0.2, "weight_decay": 0.1},
}
ADAMAX = {
    "default": {},
    "lr": {"lr": 0.05},
    "betas_1": {"lr": 0.05, "betas": (0.8, 0.9)},
    "betas_2": {"lr": 0.05, "betas": (0.0, 0.5)},
    "betas_3": {"lr": 0.05, "betas": (0.95, 0.0), "eps": 1e-3},
    "eps": {"lr": 0.05, "eps": 0.1},
    "weight_decay": {"lr": 0.05, "weight_decay": 0.3},
    "maximize": {"lr": 0.05, "maximize": True},
    "mix": {"lr": 0.05, "betas": (0.7, 0.8), "eps": 1e-2, "weight_decay": 0.2, "maximize": True},
    "driven_beta1": {"lr": 0.05},
    "driven_beta2": {"lr": 0.05, "weight_decay": 0.1},
}
NADAM = {
    "default": {},
    "lr": {"lr": 0.05},
    "betas_1": {"lr": 0.05, "betas": (0.8, 0.99)},
    "betas_2": {"lr": 0.05, "betas": (0.0, 0.5)},
    "betas_3": {"lr": 0.05, "betas": (0.95, 0.0)},
    "eps": {"lr": 0.05, "eps": 0.1},
    "weight_decay": {"lr": 0.05, "weight_decay": 0.3},
    "momentum_decay_1": {"lr": 0.05, "momentum_decay": 0.5},
    "momentum_decay_2": {"lr": 0.05, "momentum_decay": 0.0},
    "decoupled_1": {"lr": 0.05, "decoupled_weight_decay": True},
    "decoupled_2": {"lr": 0.05, "weight_decay": 0.5, "decoupled_weight_decay": True},
    "maximize": {"lr": 0.05, "maximize": True},
    "mix": {"lr": 0.05, "betas": (0.7, 0.8), "eps": 1e-2, "weight_decay": 0.2, "momentum_decay": 0.1, "maximize": True},
    "driven_beta1": {"lr": 0.05},
    "driven_beta2": {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True},
}
RADAM = {
    "default": {},
    "lr": {"lr": 0.05},
    "betas_1": {"lr": 0.05, "betas": (0.8, 0.99)},
    "betas_2": {"lr": 0.05, "betas": (0.0, 0.5)},
    "betas_3": {"lr": 0.05, "betas": (0.95, 0.9)},
    "eps": {"lr": 0.05, "eps": 0.1},
    "weight_decay": {"lr": 0.05, "weight_decay": 0.3},
    "decoupled_1": {"lr": 0.05, "decoupled_weight_decay": True},
    "decoupled_2": {"lr": 0.05, "weight_decay": 0.5, "decoupled_weight_decay": True},
    "maximize": {"lr": 0.05, "maximize": True},
    "mix": {"lr": 0.05, "betas": (0.7, 0.98), "eps": 1e-2, "weight_decay": 0.2, "maximize": True},
    "driven_beta1": {"lr": 0.05},
    "driven_beta2": {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True},
}
LION = {
    "default": {},
    "lr": {"lr": 0.05},
    "betas_1": {"lr": 0.05, "betas": (0.5, 0.9)},
    "betas_2": {"lr": 0.05, "betas": (0.0, 0.8)},
    "weight_decay": {"lr": 0.05, "weight_decay": 0.5},
    "driven_beta1": {"lr": 0.05, "weight_decay": 0.1},
    "driven_beta2": {"lr": 0.05},
}
DRIVES = {
    ("adafactor", "driven"): ["lr", "weight_decay"],
    ("muon", "driven"): ["lr", "momentum", "weight_decay"],
    ("sgd", "driven_momentum"): ["lr", "momentum", "weight_decay"],
    ("sgd", "driven_nesterov"): ["lr", "momentum"],
    ("lion", "driven_beta1"): ["lr", "beta1", "weight_decay"],
    ("lion", "driven_beta2"): ["lr", "beta2"],
    ("rmsprop", "driven"): ["lr", "momentum", "weight_decay"],
    **{(plugin, "driven"): ["lr", "weight_decay"] for plugin in ("adagrad", "adadelta", "asgd")},
    **{(plugin, "driven_beta1"): ["lr", "beta1"] for plugin in ("adam", "adamw", "adamax", "nadam", "radam")},
    **{(plugin, "driven_beta2"): ["lr", "beta2", "weight_decay"]
       for plugin in ("adam", "adamw", "adamax", "nadam", "radam")},
}


class Lion(torch.optim.Optimizer):
    """Chen et al., "Symbolic discovery of optimization algorithms" (2023), algorithm 2, in the paper's notation."""

    def __init__(self, parameters, foreach=False, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for theta in group["params"]:
                g, m = theta.grad, self.state[theta].setdefault("m", torch.zeros_like(theta))
                c = beta1 * m + (1 - beta1) * g
                theta -= group["lr"] * (torch.sign(c) + group["weight_decay"] * theta)
                self.state[theta]["m"] = beta2 * m + (1 - beta2) * g


PLUGINS = {
    "sgd": (torch.optim.SGD, SGD),
    "adam": (torch.optim.Adam, ADAM),
    "adamw": (torch.optim.AdamW, ADAM),
    "adagrad": (torch.optim.Adagrad, ADAGRAD),
    "adadelta": (torch.optim.Adadelta, ADADELTA),
    "rmsprop": (torch.optim.RMSprop, RMSPROP),
    "rprop": (torch.optim.Rprop, RPROP),
    "asgd": (torch.optim.ASGD, ASGD),
    "adamax": (torch.optim.Adamax, ADAMAX),
    "nadam": (torch.optim.NAdam, NADAM),
    "radam": (torch.optim.RAdam, RADAM),
    "lion": (Lion, LION),
}

# Shapes: odd ones, wide and tall, vectors, more than two dimensions.
ADAFACTOR_SHAPES = [(1,), (33,), (7, 33), (17, 5), (2, 3, 4, 5), (1, 1, 9), (1, 13), (13, 1)]
LARGE_SHAPES = [(4097,), (65, 63)]
MUON_SHAPES = [(1, 1), (5, 3), (7, 33), (33, 7), (24, 24), (1, 9), (9, 1)]
ADAFACTOR = {
    "default": {},
    "lr": {"lr": 0.9},
    "beta2_decay_1": {"lr": 0.1, "beta2_decay": -0.3},
    "beta2_decay_2": {"lr": 0.1, "beta2_decay": 0.0},
    "eps_1": {"lr": 0.1, "eps": (0.1, 1e-3)},
    "eps_2": {"lr": 0.1, "eps": (None, 3.0)},
    "d": {"lr": 0.1, "d": 1.5},
    "weight_decay": {"lr": 0.1, "weight_decay": 0.3},
    "maximize": {"lr": 0.1, "maximize": True},
    "mix": {"lr": 0.1, "beta2_decay": -0.5, "eps": (1e-2, 0.5), "d": 1.2, "weight_decay": 0.2, "maximize": True},
    "driven": {"lr": 0.1, "weight_decay": 0.1},
}
MUON = {
    "default": {},
    "lr": {"lr": 0.05},
    "weight_decay": {"lr": 0.05, "weight_decay": 0.5},
    "momentum": {"lr": 0.05, "momentum": 0.5},
    "nesterov": {"lr": 0.05, "nesterov": False},
    "ns_coefficients": {"lr": 0.05, "ns_coefficients": (2.0, -1.5, 0.5)},
    "ns_steps_1": {"lr": 0.05, "ns_steps": 2},
    "ns_steps_2": {"lr": 0.05, "ns_steps": 8},
    "eps": {"lr": 0.05, "eps": 5.0},
    "adjust_1": {"lr": 0.05, "adjust_lr_fn": "original"},
    "adjust_2": {"lr": 0.05, "adjust_lr_fn": "match_rms_adamw"},
    "driven": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1},
}


class DoubleMuon(torch.optim.Optimizer):
    """Jordan's Muon with PyTorch's options, in double precision throughout."""

    def __init__(self, parameters, lr=1e-3, weight_decay=0.1, momentum=0.95, nesterov=True,
                 ns_coefficients=(3.4445, -4.7750, 2.0315), eps=1e-7, ns_steps=5, adjust_lr_fn=None):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self.nesterov, self.coefficients, self.eps, self.steps = nesterov, ns_coefficients, eps, ns_steps
        self.matches = adjust_lr_fn == "match_rms_adamw"

    @torch.no_grad()
    def step(self):
        a, b, c = self.coefficients
        for group in self.param_groups:
            mu, lr = group["momentum"], group["lr"]
            for w in group["params"]:
                g = w.grad
                m = self.state[w]["m"] = mu * self.state[w].get("m", torch.zeros_like(w)) + (1 - mu) * g
                x = (1 - mu) * g + mu * m if self.nesterov else m
                x = x / max(float(torch.linalg.matrix_norm(x)), self.eps)
                for _ in range(self.steps):
                    gram = x @ x.T
                    x = a * x + b * gram @ x + c * gram @ gram @ x
                rows, columns = w.shape
                ratio = 0.2 * max(rows, columns) ** 0.5 if self.matches else max(1.0, rows / columns) ** 0.5
                w.copy_((1 - lr * group["weight_decay"]) * w - lr * ratio * x)


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


def run(optimizer_class, options, drives, shapes, checkpoints, dtype=torch.float32):
    sizes = [int(numpy.prod(shape)) for shape in shapes]
    ends = numpy.cumsum(sizes)
    pieces = [numpy.arange(end - size, end) for size, end in zip(sizes, ends)]

    def tensors(stream):
        return [value(stream, piece).to(dtype).reshape(shape) for piece, shape in zip(pieces, shapes)]

    parameters = [torch.nn.Parameter(tensor) for tensor in tensors(0)]
    optimizer = optimizer_class(parameters, **options)
    group = optimizer.param_groups[0]
    base = dict(group)
    kept = []
    for update, factor in enumerate(FACTORS, start=1):
        for parameter, gradient in zip(parameters, tensors(update)):
            parameter.grad = gradient
        for name in drives:
            scaled(group, base, name, factor)
        optimizer.step()
        if update in checkpoints:
            flat = torch.cat([parameter.detach().flatten() for parameter in parameters])
            kept.append(flat.to(torch.float32).numpy().copy())
    return numpy.stack(kept)


def as_text(option):
    if isinstance(option, bool):
        return "yes" if option else "no"
    if isinstance(option, tuple):
        return ",".join(as_text(element) for element in option)
    return "none" if option is None else str(option)


def header(file):
    return [
        "# Made by tools/make_golden_optimizers.py: case NAME PLUGIN DRIVEN,... OPTION=VALUE ...",
        f"# Driven options of update k: configured value times the k-th factor. Weights: {file}.",
        "factors " + " ".join(repr(factor) for factor in FACTORS),
    ]


def line_of(plugin, case, options):
    pairs = [f"{key}={as_text(option)}" for key, option in options.items()]
    return " ".join(["case", f"{plugin}.{case}", plugin, ",".join(DRIVES.get((plugin, case), ["lr"])), *pairs])


def write(stem, lines, tensors):
    save_file(tensors, FOLDER / f"{stem}.safetensors")
    (FOLDER / f"{stem}.safetensors").chmod(0o644)
    (FOLDER / f"{stem}.txt").write_text("\n".join(lines) + "\n")


def main():
    lines, tensors = header("optimizers.safetensors"), {}
    for plugin, (optimizer_class, cases) in PLUGINS.items():
        for case, options in cases.items():
            drives = DRIVES.get((plugin, case), ["lr"])
            tensors[f"{plugin}.{case}"] = run(optimizer_class, {"foreach": False, **options}, drives,
                                              [(size,) for size in SIZES], CHECKPOINTS)
            lines.append(line_of(plugin, case, options))
    write("optimizers", lines, tensors)

    lines, tensors = header("whole_optimizers.safetensors"), {}
    for case, options in ADAFACTOR.items():
        drives = DRIVES.get(("adafactor", case), ["lr"])
        tensors[f"adafactor.{case}"] = run(torch.optim.Adafactor, options, drives, ADAFACTOR_SHAPES, [12])
        lines.append(line_of("adafactor", case, options))
    tensors["adafactor_large.lr"] = run(torch.optim.Adafactor, ADAFACTOR["lr"], ["lr"], LARGE_SHAPES, [12])
    for case, options in MUON.items():
        drives = DRIVES.get(("muon", case), ["lr"])
        tensors[f"muon.{case}"] = run(DoubleMuon, options, drives, MUON_SHAPES, [12], torch.float64)
        if options.get("ns_steps", 5) <= 5:  # at 8, PyTorch's own rounding comes to 5e-2 of the update
            tensors[f"muon_bfloat16.{case}"] = run(torch.optim.Muon, options, drives, MUON_SHAPES, [1])
        lines.append(line_of("muon", case, options))
    write("whole_optimizers", lines, tensors)


if __name__ == "__main__":
    main()
