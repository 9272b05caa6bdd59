#!/usr/bin/env python3
"""Makes tests/golden/pth: small files by torch.save, and expected.safetensors with the values in them.

    python3 tools/make_golden_pth.py             (needs torch 2.13 and safetensors; the tests need neither)
    python3 tools/make_golden_pth.py --check FUSERUN
                                                 writes nothing there: has `FUSERUN export` write .pth files, and loads
                                                 them with torch in every way (needs torchvision, too)

expected.safetensors holds FILE/NAME for every tensor that a reader must list: floating-point ones as float32, the way
torch converts them, integers and bools as they are. The data is in row-major order whatever the strides in the file.
"""
import collections
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import save_file

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "pth"


def ramp(*shape, dtype=torch.float32):
    """Exact in every dtype but the smallest integers: (i mod 37) / 4 - 4."""
    count = int(torch.tensor(shape).prod()) if shape else 1
    return ((torch.arange(count) % 37).to(torch.float64) / 4 - 4).reshape(shape).to(dtype)


def plain():
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.GELU(), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 3))
    return net, net.state_dict()


def nested():
    net, state = plain()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    net(ramp(4, 5)).sum().backward()
    optimizer.step()
    state = collections.OrderedDict((name, value.clone()) for name, value in state.items())
    return {"epoch": 3, "model": state, "optimizer": optimizer.state_dict(), "best": 0.5, "note": "a text",
            "seed": 2**70, "negative": -70000, "large": 2**40, "flags": [True, None, (1, 2, 3, 4)]}


def two():
    _, state = plain()
    return {"weights": {"model": state, "ema.net": {name: value / 2 for name, value in state.items()}}, "step": 70000}


def views():
    base, grid = ramp(100), ramp(6, 8)
    return {
        "offset": base[10:30],
        "offset_2d": base[1:25].reshape(4, 6),
        "shared_1": grid,
        "shared_2": grid[2:4],
        "transposed": grid.t(),
        "permuted": ramp(3, 4, 5, 2).permute(2, 0, 3, 1),
        "step": grid[::2, 1::3],
        "column": grid[:, 5],
        "expanded": ramp(3)[:, None].expand(3, 4),
        "large_transposed": ramp(300, 7).t(),
        "far_apart": ramp(5000)[::1250],
        "half_transposed": ramp(4, 5, dtype=torch.float16).t(),
        "one": grid[3:4, 2:3],
    }


def types():
    special = torch.tensor([0.0, -0.0, 1.0, -2.5, 65504.0, 6e-8, 1e-5, float("inf"), float("-inf"), float("nan")])
    return {
        "f32": special.clone(),
        "f16": special.to(torch.float16),
        "bf16": special.to(torch.bfloat16),
        "f64": torch.cat([special.double(), torch.tensor([1 / 3, 1e-300, 3e38], dtype=torch.float64)]),
        "i64": torch.tensor([0, -1, 2**62]),
        "i32": torch.tensor([0, -1, 2**30], dtype=torch.int32),
        "i16": torch.tensor([0, -1, 30000], dtype=torch.int16),
        "i8": torch.tensor([0, -1, 100], dtype=torch.int8),
        "u8": torch.tensor([0, 1, 255], dtype=torch.uint8),
        "bool": torch.tensor([True, False]),
    }


def shapes():
    return {
        "empty": torch.zeros(0),
        "empty_3d": torch.zeros(2, 0, 3),
        "scalar": torch.tensor(3.5),
        "ones": ramp(1, 1, 1, 1),
        "five": ramp(2, 1, 3, 1, 2),
        "names with spaces, dots. and ünï": ramp(2),
        "parameter": torch.nn.Parameter(ramp(2, 2)),
    }


def old_vit():
    state = collections.OrderedDict()
    for part, shape in (("ln_2.weight", (4,)), ("mlp.linear_1.weight", (8, 4)), ("mlp.linear_1.bias", (8,)),
                        ("mlp.linear_2.weight", (4, 8)), ("mlp.linear_2.bias", (4,))):
        state[f"encoder.layers.encoder_layer_0.{part}"] = ramp(*shape)
    return state


def mlp():
    """For the mlp of sizes 12, 24, 4, in every floating-point type and with transposed strides."""
    state = {"layers.0.weight": ramp(12, 24, dtype=torch.float16).t(), "layers.0.bias": ramp(24, dtype=torch.float64),
             "layers.1.weight": ramp(4, 24, dtype=torch.bfloat16), "layers.1.bias": ramp(4)}
    return {"epoch": 5, "state_dict": state, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}}


FILES = {
    "plain": plain()[1],
    "nested": nested(),
    "two": two(),
    "views": views(),
    "types": types(),
    "shapes": shapes(),
    "old_vit": old_vit(),
    "parameter": torch.nn.Parameter(ramp(2, 3)),
    "mlp": mlp(),
    "list": [ramp(2), (ramp(3), {"a": {7: ramp(1)}})],
}


def flatten(value, name=""):
    if isinstance(value, torch.Tensor):
        yield name, value.detach()
    elif isinstance(value, (dict, list, tuple)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flatten(inner, f"{name}.{key}" if name else str(key))


def make():
    FOLDER.mkdir(exist_ok=True)
    expected = {}
    for file, value in FILES.items():
        torch.save(value, FOLDER / f"{file}.pth")
        for name, tensor in flatten(value):
            as_read = tensor.float() if tensor.is_floating_point() else tensor
            expected[f"{file}/{name}"] = as_read.contiguous().clone()
    torch.save(FILES["plain"], FOLDER / "legacy.pth", _use_new_zipfile_serialization=False)
    save_file(expected, FOLDER / "expected.safetensors")
    print(sum(path.stat().st_size for path in FOLDER.iterdir()), "bytes in", FOLDER)


def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(7), b.nan_to_num(7))


def check_export(fuserun, state, folder, source):
    target = folder / "out.pth"
    subprocess.run([fuserun, "export", source, "--to", target], check=True)
    for options in ({}, {"mmap": True}):
        loaded = torch.load(target, weights_only=True, **options)
        assert list(loaded) == list(state), (source, list(loaded))
        for name, tensor in state.items():
            assert same(loaded[name], tensor), (source, name)
            assert loaded[name].is_contiguous() and loaded[name].data_ptr() % (64 if options else 1) == 0
    return loaded


def check(fuserun):
    from torchvision.models.vision_transformer import VisionTransformer

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for file in ("plain", "views", "types", "shapes"):
            state = {name: tensor.detach().contiguous() for name, tensor in FILES[file].items()}
            check_export(fuserun, state, folder, FOLDER / f"{file}.pth")
        torch.manual_seed(2)
        shape = dict(image_size=32, patch_size=16, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=5)
        net, other = VisionTransformer(**shape), VisionTransformer(**shape)
        state = net.state_dict()
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "vit.safetensors")
        order = sorted(state)  # a .safetensors file has its own
        loaded = check_export(fuserun, {name: state[name] for name in order}, folder, folder / "vit.safetensors")
        other.load_state_dict(loaded)
        images = torch.rand(2, 3, 32, 32)
        assert torch.equal(net.eval()(images), other.eval()(images))
        torch.save(state, folder / "vit.pth")
        other.load_state_dict(check_export(fuserun, state, folder, folder / "vit.pth"))
    print("torch loads what fuserun exports")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--check":
        check(sys.argv[2])
    elif len(sys.argv) == 1:
        make()
    else:
        sys.exit(__doc__)
