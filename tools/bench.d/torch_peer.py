"""PyTorch's side of tools/bench: the same nets, sizes and rules as fuserun's side, seconds a step and resident bytes.

    torch_peer.py vit MODE BATCH STEPS [bf16] | mlp MODE SIZES BATCH STEPS | adam MODE STEPS COUNTxSIZE,... |
                  start IMAGES LABELS

MODE: foreach | loop (foreach=False) | fused (the fused kernel) | hook-foreach | hook-loop | hook-fused (one optimizer for
each parameter, run inside backward when its gradient is there). THREADS=n; DEVICE=cuda (vit; with tf32 too). Prints one
JSON object."""
import contextlib
import gzip
import json
import os
import sys
import time

import torch

THREADS = int(os.environ.get("THREADS", "2"))
DEVICE = os.environ.get("DEVICE", "cpu")


def resident(key):
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))


def options_of(mode):
    return {"foreach": {"foreach": True}, "loop": {"foreach": False}, "fused": {"fused": True}}[mode.split("-")[-1]]


def updater(model, mode, lr):
    """What is left to do after backward."""
    if not mode.startswith("hook"):
        optimizer = torch.optim.Adam(model.parameters(), lr=lr, **options_of(mode))

        def update():
            optimizer.step()
            optimizer.zero_grad()
        return update
    optimizers = {p: torch.optim.Adam([p], lr=lr, **options_of(mode)) for p in model.parameters()}

    def in_backward(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(in_backward)
    return lambda: None


def train(model, mode, steps, lr, loss_of):
    update = updater(model, mode, lr)
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        loss_of(model).backward()
        update()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return times


def mlp(sizes):
    layers = []
    for before, after in zip(sizes, sizes[1:]):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def run_vit(mode, batch, steps, *more):
    from torchvision import models
    base = resident("VmRSS")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = "tf32" in more
    model = models.vit_l_16(weights=None).train().to(DEVICE)
    images = torch.rand(int(batch), 3, 224, 224, device=DEVICE)
    half = torch.autocast(DEVICE, torch.bfloat16) if "bf16" in more else contextlib.nullcontext()

    def loss_of(net):
        with half:
            return net(images).float().sum()
    times = train(model, mode, int(steps), 1e-3, loss_of)
    if DEVICE == "cuda":
        return {"step_s": times, "allocated_bytes": torch.cuda.max_memory_allocated(),
                "reserved_bytes": torch.cuda.max_memory_reserved()}
    return {"step_s": times, "grown_bytes": resident("VmHWM") - base}


def run_mlp(mode, sizes, batch, steps):
    base = resident("VmRSS")
    sizes = [int(size) for size in sizes.split(",")]
    model = mlp(sizes)
    x, y = torch.rand(int(batch), sizes[0]), torch.randint(sizes[-1], (int(batch),))
    times = train(model, mode, int(steps), 1e-4, lambda net: torch.nn.functional.cross_entropy(net(x), y))
    return {"step_s": times, "grown_bytes": resident("VmHWM") - base}


def run_adam(mode, steps, tensors):
    parameters = []
    for part in tensors.split(","):
        count, size = part.split("x")
        for _ in range(int(count)):
            parameters.append(torch.nn.Parameter(torch.rand(int(size)) - 0.5))
            parameters[-1].grad = torch.rand(int(size)) - 0.5
    optimizer = torch.optim.Adam(parameters, lr=1e-4, **options_of(mode))
    times = []
    for _ in range(int(steps)):
        begin = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    return {"step_s": times}


def read_idx(path, header):
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rb") as file:
        return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)


def run_start(images, labels):
    """The digits, their net and one update of AdamW: the whole process is what is timed, from outside."""
    x = read_idx(images, 16).reshape(-1, 64).float() / 255
    y = read_idx(labels, 8).long()
    model = mlp([64, 128, 10])
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.1, fused=True)
    torch.nn.functional.cross_entropy(model(x[:32]), y[:32], label_smoothing=0.1).backward()
    optimizer.step()
    return {}


def main():
    torch.manual_seed(0)
    torch.set_num_threads(THREADS)
    what = {"vit": run_vit, "mlp": run_mlp, "adam": run_adam, "start": run_start}[sys.argv[1]]
    print(json.dumps(what(*sys.argv[2:]) | {"version": torch.__version__}))


main()
