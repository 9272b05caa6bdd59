#!/usr/bin/env python3
"""Makes tests/golden/vits/: vision transformers by torchvision, for tests/e2e/test_golden_vit.py.

    python3 tools/make_golden_vit.py BUILD_FOLDER        (needs torch 2.13, torchvision 0.28 and safetensors; the test
                                                          needs none of them)

Three sorts of cases:
 - small ones, whole: NAME.ini; NAME.init.safetensors, the weights it starts from; NAME.data.safetensors, the images and
   labels; NAME.expected.safetensors, the weights at the end, the loss of every update ("loss") and the gradient of every
   parameter in the first one ("gradient.PARAMETER").
 - seeded ones, too large to keep: NAME.ini, NAME.seeded.txt, from which the build's tests/golden/seeded_weights makes
   weights and images, the same here and in the test; NAME.expected.json, what is left of the results: for each
   parameter the sum, the sum of absolute values and three elements of the first gradient and of the weights at the end.
 - accumulated ones, seeded likewise, which take several micro-batches into an update and clip every one of them;
   NAME.expected.safetensors: the weights at the end, the loss ("loss") and the norm before clipping ("grad_norm") of
   every update.
"""
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file
from torchvision.models.vision_transformer import VisionTransformer

from make_golden_nets import batches, make_optimizer, save, write_sections

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "vits"

BASE_16 = {"image_size": 224, "patch_size": 16, "num_layers": 12, "num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072}

WHOLE = {
    "adam_sum_batch_1": {
        "model": {"image_size": 24, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 22, "mlp_dim": 37,
                  "num_classes": 7},
        "samples": 3,
        "batch_size": 1,
        "steps": 5,
        "loss": "sum",
        "optimizer": {"plugin": "adam", "lr": 0.001},
    },
    "adamw_ragged": {
        "model": {"image_size": 28, "patch_size": 7, "num_layers": 1, "num_heads": 3, "hidden_dim": 36, "mlp_dim": 70,
                  "num_classes": 10},
        "samples": 5,
        "batch_size": 3,
        "epochs": 3,
        "label_smoothing": 0.1,
        "optimizer": {"plugin": "adamw", "lr": 0.003, "weight_decay": 0.05},
    },
    "sgd_deep": {
        "model": {"image_size": 30, "patch_size": 5, "num_layers": 3, "num_heads": 4, "hidden_dim": 20, "mlp_dim": 21,
                  "num_classes": 5},
        "samples": 4,
        "batch_size": 3,
        "epochs": 2,
        "optimizer": {"plugin": "sgd", "lr": 0.02, "momentum": 0.9},
    },
    "sgd_representation": {
        "model": {"image_size": 40, "patch_size": 4, "num_layers": 1, "num_heads": 1, "hidden_dim": 13, "mlp_dim": 29,
                  "num_classes": 6, "representation_size": 11},
        "samples": 2,
        "batch_size": 2,
        "steps": 3,
        "optimizer": {"plugin": "sgd", "lr": 0.05},
    },
}

SEEDED = {
    "seeded_small": {
        "model": {"image_size": 64, "patch_size": 16, "num_layers": 2, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 128,
                  "num_classes": 20},
        "samples": 2,
        "batch_size": 1,
        "steps": 2,
        "optimizer": {"plugin": "adam", "lr": 0.001},
    },
    "seeded_vit_b_16": {
        "model": {"preset": "vit_b_16", "num_classes": 1000},
        "samples": 2,
        "batch_size": 1,
        "steps": 2,
        "optimizer": {"plugin": "adam", "lr": 0.00001},
    },
}


FOUR_LAYERS = {"image_size": 8, "patch_size": 8, "num_layers": 4, "num_heads": 4, "hidden_dim": 32, "mlp_dim": 64,
               "num_classes": 10}
ACCUMULATED = {
    name: {"model": FOUR_LAYERS, "samples": 80, "batch_size": 1, "accumulate": 4, "steps": 20, "clip_grad_norm": 0.5,
           "optimizer": optimizer}
    for name, optimizer in {
        "accumulated_sgd": {"plugin": "sgd", "lr": 0.05, "momentum": 0.9},
        "accumulated_adamw": {"plugin": "adamw", "lr": 0.001, "weight_decay": 0.05},
    }.items()
}


def build(case):
    options = dict(case["model"])
    if options.pop("preset", None) is not None:
        options = BASE_16 | options
    return VisionTransformer(**options)


def spread(name, shape):
    """(middle, half width) of a parameter's uniform initial values: everything matters, nothing explodes."""
    if name.endswith("weight") and len(shape) == 1:
        return 1.0, 0.3  # of a layer norm
    if name.endswith("weight"):
        return 0.0, math.sqrt(3.0 / math.prod(shape[1:]))
    return 0.0, 0.3 if len(shape) == 3 else 0.1


def write_config(name, case, suffix):
    sections = {
        "run": {key: case[key] for key in ("steps", "epochs") if key in case} | {"device": "cpu"},
        "model": {"plugin": "vit"} | case["model"] | {"weights": f"{name}.{suffix}.safetensors"},
        "data": {
            "plugin": "tensors",
            "file": f"{name}.data.safetensors",
            "batch_size": case["batch_size"],
            "shuffle": False,
        },
        "loss": {"kind": case.get("loss", "cross_entropy")}
        | ({"label_smoothing": case["label_smoothing"]} if "label_smoothing" in case else {}),
        "optimizer": case["optimizer"]
        | {key: case[key] for key in ("accumulate", "clip_grad_norm") if key in case},
    }
    write_sections(FOLDER / f"{name}.ini", "tools/make_golden_vit.py", sections)


def train(case, model, x, y):
    """(losses, gradients of the first update, weights at the end)"""
    optimizer, _ = make_optimizer(case, dict(model.named_parameters()))
    feed = batches(case, len(x))
    updates = case["steps"] if "steps" in case else case["epochs"] * -(-len(x) // case["batch_size"])
    losses, gradients = [], None
    for _ in range(updates):
        batch = next(feed)
        value = model(x[batch])
        if case.get("loss") == "sum":
            loss = value.sum()
        else:
            loss = torch.nn.functional.cross_entropy(value, y[batch], label_smoothing=case.get("label_smoothing", 0.0))
        optimizer.zero_grad()
        loss.backward()
        if gradients is None:
            gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        optimizer.step()
        losses.append(loss.item())
    return losses, gradients, {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def make_whole(name, case, seed):
    torch.manual_seed(seed)
    model = build(case)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            middle, half = spread(parameter_name, parameter.shape)
            parameter.uniform_(middle - half, middle + half)
    side = case["model"]["image_size"]
    x = torch.randn(case["samples"], 3, side, side)
    y = torch.randint(case["model"]["num_classes"], (case["samples"],))
    save(FOLDER / f"{name}.init.safetensors", {key: value.detach().clone() for key, value in model.named_parameters()})
    save(FOLDER / f"{name}.data.safetensors", {"x": x, "y": y})
    write_config(name, case, "init")
    losses, gradients, weights = train(case, model, x, y)
    expected = weights | {f"gradient.{key}": value for key, value in gradients.items()}
    save(FOLDER / f"{name}.expected.safetensors", expected | {"loss": torch.tensor(losses, dtype=torch.float64)})
    print(f"{name}: {len(losses)} updates, loss {losses[0]:.6f} to {losses[-1]:.6f}")


def summary(tensor):
    flat = tensor.flatten()
    places = sorted({0, flat.numel() // 3, flat.numel() - 1})
    return {
        "sum": flat.double().sum().item(),
        "absolute_sum": flat.double().abs().sum().item(),
        "largest": flat.abs().max().item(),
        "elements": {str(place): flat[place].item() for place in places},
    }


def make_seeded_inputs(name, case, seed, program, model):
    """NAME.seeded.txt; the model with its weights, and the data."""
    side = case["model"].get("image_size", 224)
    lines = [f"seed {seed}", f"file {name}.seeded.safetensors"]
    for parameter_name, parameter in model.named_parameters():
        middle, half = spread(parameter_name, parameter.shape)
        lines.append(f"f32 {parameter_name} {middle:.6g} {half:.6g} {' '.join(map(str, parameter.shape))}")
    lines += [f"file {name}.data.safetensors", f"f32 x 0 1.7 {case['samples']} 3 {side} {side}",
              f"i64 y {case['model']['num_classes']} {case['samples']}"]
    specification = FOLDER / f"{name}.seeded.txt"
    specification.write_text("\n".join(lines) + "\n")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, specification, folder], check=True)
        model.load_state_dict(load_file(f"{folder}/{name}.seeded.safetensors"))
        data = load_file(f"{folder}/{name}.data.safetensors")
    write_config(name, case, "seeded")
    return data


def make_seeded(name, case, seed, program):
    model = build(case)
    data = make_seeded_inputs(name, case, seed, program, model)
    losses, gradients, weights = train(case, model, data["x"], data["y"])
    lines = [f'{{"loss": {json.dumps(losses)}']
    for kind, tensors in (("gradient", gradients), ("weights", weights)):
        entries = [f"{json.dumps(key)}: {json.dumps(summary(value))}" for key, value in tensors.items()]
        lines.append(f'"{kind}": {{' + ",\n".join(entries) + "}")
    (FOLDER / f"{name}.expected.json").write_text(",\n".join(lines) + "}\n")
    print(f"{name}: {len(losses)} updates, loss {losses[0]:.6f} to {losses[-1]:.6f}")


def make_accumulated(name, case, seed, program):
    model = build(case)
    data = make_seeded_inputs(name, case, seed, program, model)
    optimizer, _ = make_optimizer(case, dict(model.named_parameters()))
    feed = batches(case, case["samples"])
    losses, norms = [], []
    for _ in range(case["steps"]):
        optimizer.zero_grad()
        micro_losses = []
        for _ in range(case["accumulate"]):
            batch = next(feed)
            loss = torch.nn.functional.cross_entropy(model(data["x"][batch]), data["y"][batch])
            (loss / case["accumulate"]).backward()
            micro_losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), case["clip_grad_norm"]).item())
        optimizer.step()
        losses.append(sum(micro_losses) / case["accumulate"])
    assert min(norms) > case["clip_grad_norm"]  # it bites every time
    weights = {key: value.detach().clone() for key, value in model.named_parameters()}
    save(FOLDER / f"{name}.expected.safetensors",
         weights | {"loss": torch.tensor(losses, dtype=torch.float64), "grad_norm": torch.tensor(norms)})
    print(f"{name}: {len(losses)} updates, loss {losses[0]:.6f} to {losses[-1]:.6f}, "
          f"norm {min(norms):.3g} to {max(norms):.3g}")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    FOLDER.mkdir(exist_ok=True)
    torch.set_num_threads(2)
    for seed, (name, case) in enumerate(WHOLE.items()):
        make_whole(name, case, seed)
    program = pathlib.Path(sys.argv[1]).resolve() / "tests" / "golden" / "seeded_weights"
    for seed, (name, case) in enumerate(SEEDED.items()):
        make_seeded(name, case, seed, program)
    for name, case in ACCUMULATED.items():
        make_accumulated(name, case, len(SEEDED), program)


if __name__ == "__main__":
    main()
