#!/usr/bin/env python3
"""Makes tests/golden/nets/: whole training runs by PyTorch, for tests/e2e/test_golden_nets.py.

    python3 tools/make_golden_nets.py        (needs torch 2.13 and safetensors; the test needs neither)

For each case: NAME.ini, an experiment as a user writes it; NAME.init.safetensors, the weights it starts from; and
NAME.expected.safetensors, the weights at the end, the loss of every update ("loss") and the learning rate that each
group used in it ("lr.GROUP"). Three data files are shared by the cases.
"""
import fnmatch
import pathlib

import torch
from safetensors.torch import save_file
from torch.optim import lr_scheduler

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "nets"
ACTIVATIONS = {"relu": torch.nn.functional.relu, "gelu": torch.nn.functional.gelu, "tanh": torch.tanh}
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
WARM_UP_THEN_COSINE = {
    "scheduler": {"plugin": "sequential", "stages": "warmup, main", "milestones": 4},
    "scheduler.warmup": {"plugin": "linear", "start_factor": 0.1, "total_iters": 4},
    "scheduler.main": {"plugin": "cosine", "t_max": 12},
}

CASES = {
    "relu_sgd": {
        "sizes": [12, 16, 5],
        "activation": "relu",
        "data": "labels",
        "epochs": 4,
        "batch_size": 16,
        "optimizer": {"plugin": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    },
    "gelu_adamw_groups": {
        "sizes": [12, 24, 16, 5],
        "activation": "gelu",
        "data": "labels",
        "epochs": 4,
        "batch_size": 16,
        "label_smoothing": 0.1,
        "optimizer": {"plugin": "adamw", "lr": 0.01, "weight_decay": 0.1},
        "groups": {
            "no_decay": {"match": "*bias", "weight_decay": 0.0},
            "head": {"match": "layers.2.*", "lr": 0.02, "betas": (0.8, 0.99)},
        },
        "schedule": WARM_UP_THEN_COSINE,
    },
    "tanh_mse_adam": {
        "sizes": [12, 16, 3],
        "activation": "tanh",
        "data": "targets",
        "epochs": 4,
        "batch_size": 13,
        "loss": "mse",
        "optimizer": {"plugin": "adam", "lr": 0.02, "weight_decay": 0.01, "amsgrad": True},
        "schedule": WARM_UP_THEN_COSINE,
    },
    "relu_sum_sgd": {
        "sizes": [12, 16, 5],
        "activation": "relu",
        "data": "labels",
        "epochs": 3,
        "batch_size": 16,
        "loss": "sum",
        "optimizer": {"plugin": "sgd", "lr": 0.002, "momentum": 0.5, "dampening": 0.1, "maximize": True},
        "schedule": {"scheduler": {"plugin": "step", "step_size": 5, "gamma": 0.5}},
    },
    "gelu_adam_batch_1": {
        "sizes": [12, 8, 5],
        "activation": "gelu",
        "data": "labels",
        "steps": 20,
        "batch_size": 1,
        "optimizer": {"plugin": "adam", "lr": 0.01},
    },
    "wide_adamw": {
        "sizes": [12, 300, 9, 5],
        "activation": "relu",
        "data": "labels",
        "steps": 14,
        "batch_size": 8,
        "label_smoothing": 0.2,
        "optimizer": {"plugin": "adamw", "lr": 0.005},
        "schedule": {"scheduler": {"plugin": "cosine", "t_max": 10, "eta_min": 0.0005}},
    },
    "tanh_sgd_frozen": {
        "sizes": [12, 16, 10, 5],
        "activation": "tanh",
        "data": "labels",
        "epochs": 3,
        "batch_size": 16,
        "freeze": "layers.1.weight",
        "optimizer": {"plugin": "sgd", "lr": 0.2, "momentum": 0.8},
        "groups": {"slow": {"match": "layers.0.*", "lr": 0.05, "momentum": 0.0}},
        "schedule": WARM_UP_THEN_COSINE,
    },
    "deep_sgd_drop_last": {
        "sizes": [12, 10, 10, 10, 5],
        "activation": "gelu",
        "data": "labels",
        "epochs": 4,
        "batch_size": 12,
        "drop_last": True,
        "optimizer": {"plugin": "sgd", "lr": 0.1, "momentum": 0.9},
        "schedule": {"scheduler": {"plugin": "exponential", "gamma": 0.9}},
    },
}


def save(path, tensors):
    save_file(tensors, path)
    path.chmod(0o644)


def make_data():
    torch.manual_seed(11)
    x = torch.randn(50, 12)
    centres = torch.randn(5, 12)
    labels = (x @ centres.T + 0.5 * torch.randn(50, 5)).argmax(dim=1)
    save(FOLDER / "labels.safetensors", {"x": x, "y": labels})
    images = torch.rand(50, 2, 6)  # flattened by the net
    targets = torch.stack([images.sum(dim=(1, 2)) - 6, images[:, 0, 0], images[:, 1, 5] - images[:, 0, 3]], dim=1)
    save(FOLDER / "targets.safetensors", {"x": images, "y": targets})
    return {"labels": (x, labels), "targets": (images, targets)}


def as_text(option):
    if isinstance(option, bool):
        return "yes" if option else "no"
    if isinstance(option, (tuple, list)):
        return ", ".join(str(element) for element in option)
    return str(option)


def write_sections(path, maker, sections):
    blocks = [f"; Made by {maker}; PyTorch's results are in the .expected file."]
    for section, options in sections.items():
        blocks.append("\n".join([f"[{section}]", *(f"{key} = {as_text(option)}" for key, option in options.items())]))
    path.write_text("\n\n".join(blocks) + "\n")


def write_config(name, case):
    sections = {
        "run": {key: case[key] for key in ("steps", "epochs") if key in case} | {"device": "cpu"},
        "model": {
            "plugin": "mlp",
            "sizes": case["sizes"],
            "activation": case["activation"],
            "weights": f"{name}.init.safetensors",
        }
        | ({"freeze": case["freeze"]} if "freeze" in case else {}),
        "data": {
            "plugin": "tensors",
            "file": f"{case['data']}.safetensors",
            "batch_size": case["batch_size"],
            "shuffle": False,
            "drop_last": case.get("drop_last", False),
        },
        "loss": {"kind": case.get("loss", "cross_entropy")}
        | ({"label_smoothing": case["label_smoothing"]} if "label_smoothing" in case else {}),
        "optimizer": case["optimizer"],
    }
    for group, options in case.get("groups", {}).items():
        sections[f"group {group}"] = options
    sections |= case.get("schedule", {})
    write_sections(FOLDER / f"{name}.ini", "tools/make_golden_nets.py", sections)


def make_schedule(optimizer, sections, section="scheduler"):
    """The PyTorch scheduler that a [scheduler] section means."""
    options = dict(sections[section])
    plugin = options.pop("plugin")
    if plugin == "sequential":
        stages = [make_schedule(optimizer, sections, f"scheduler.{stage}") for stage in options["stages"].split(", ")]
        return lr_scheduler.SequentialLR(optimizer, stages, milestones=[options["milestones"]])
    if plugin == "cosine":
        return lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.pop("t_max"), **options)
    classes = {"linear": lr_scheduler.LinearLR, "step": lr_scheduler.StepLR, "exponential": lr_scheduler.ExponentialLR}
    return classes[plugin](optimizer, **options)


def make_optimizer(case, parameters):
    """Groups in file order, the first match takes a parameter; the rest is the group `default`."""
    options = {key: option for key, option in case["optimizer"].items() if key != "plugin"}
    left = dict(parameters)
    torch_groups = {}
    for group, own in case.get("groups", {}).items():
        names = [name for name in left if fnmatch.fnmatchcase(name, own["match"])]
        own = {key: option for key, option in own.items() if key != "match"}
        torch_groups[group] = {"params": [left.pop(name) for name in names], **own}
    if left:
        torch_groups["default"] = {"params": list(left.values())}
    optimizer = OPTIMIZERS[case["optimizer"]["plugin"]](list(torch_groups.values()), foreach=False, **options)
    return optimizer, dict(zip(torch_groups, optimizer.param_groups))


def batches(case, count):
    """Endless, in order, each epoch's last one shorter (or dropped)."""
    size = case["batch_size"]
    end = count - count % size if case.get("drop_last") else count
    while True:
        for first in range(0, end, size):
            yield slice(first, min(first + size, end))


def train(name, case, data, seed):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(a, b) for a, b in zip(case["sizes"], case["sizes"][1:])]
    parameters = {}
    for index, layer in enumerate(layers):
        parameters |= {f"layers.{index}.{key}": parameter for key, parameter in layer.named_parameters()}
    save(FOLDER / f"{name}.init.safetensors", {key: value.detach().clone() for key, value in parameters.items()})
    trained = {key: value for key, value in parameters.items() if not fnmatch.fnmatchcase(key, case.get("freeze", ""))}
    for key, parameter in parameters.items():
        parameter.requires_grad_(key in trained)
    optimizer, groups = make_optimizer(case, trained)
    schedule = make_schedule(optimizer, case["schedule"]) if "schedule" in case else None
    x, y = data[case["data"]]
    kind = case.get("loss", "cross_entropy")

    feed = batches(case, len(x))
    per_epoch = len(x) // case["batch_size"] if case.get("drop_last") else -(-len(x) // case["batch_size"])
    updates = case["steps"] if "steps" in case else case["epochs"] * per_epoch
    losses = []
    rates = {group: [] for group in groups}
    for _ in range(updates):
        batch = next(feed)
        value = x[batch].flatten(1)
        for layer in layers[:-1]:
            value = ACTIVATIONS[case["activation"]](layer(value))
        value = layers[-1](value)
        if kind == "cross_entropy":
            smoothing = case.get("label_smoothing", 0.0)
            loss = torch.nn.functional.cross_entropy(value, y[batch], label_smoothing=smoothing)
        elif kind == "mse":
            loss = torch.nn.functional.mse_loss(value, y[batch])
        else:
            loss = value.sum()
        optimizer.zero_grad()
        loss.backward()
        for group, torch_group in groups.items():
            rates[group].append(torch_group["lr"])
        optimizer.step()
        if schedule is not None:
            schedule.step()
        losses.append(loss.item())
    expected = {key: value.detach().clone() for key, value in parameters.items()}
    expected["loss"] = torch.tensor(losses, dtype=torch.float64)
    expected |= {f"lr.{group}": torch.tensor(values, dtype=torch.float64) for group, values in rates.items()}
    save(FOLDER / f"{name}.expected.safetensors", expected)
    print(f"{name}: {updates} updates, loss {losses[0]:.4f} to {losses[-1]:.4f}")


def main():
    FOLDER.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    data = make_data()
    for seed, (name, case) in enumerate(CASES.items()):
        write_config(name, case)
        train(name, case, data, seed)


if __name__ == "__main__":
    main()
