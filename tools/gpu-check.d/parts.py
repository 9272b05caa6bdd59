"""The parts of tools/gpu-check. Each fills `result` as it goes, `rows` being its lines of the table, and raises Failed or
Skipped."""
import json
import os

from bench import Failed, Skipped, Watch, largest_difference, median_step, read_tensors

MODES = ["foreach", "per_param", "fused"]
VIT_CONFIGS = ["foreach", "per_param", "fused", "fused_recompute"]

BF16 = "run.precision=bf16"

# A small vision transformer: all operations of the large one.
SMALL_VIT = ["model.preset=", "model.image_size=32", "model.patch_size=8", "model.num_layers=2", "model.num_heads=2",
             "model.hidden_dim=32", "model.mlp_dim=64", "model.num_classes=10", "data.image_size=32", "data.classes=10"]

CLASSES = """[run]
steps = 6
seed = 3
[model]
plugin = mlp
sizes = 48, 70, 33, 10
activation = gelu
[data]
plugin = random_images
image_size = 4
channels = 3
classes = 10
length = 64
batch_size = 8
[optimizer]
plugin = %s
"""


# muon is for matrices alone.
MATRICES = "sgd\n[group matrices]\nmatch = *weight\nplugin = muon"


def about(bench, result):
    """driver, device, build"""
    driver = bench.driver()
    taken, total = driver.memory()
    version = bench.call([os.path.join(bench.build, "fuserun"), "--version"]).split("\n")[0]
    result.update(device=driver.name(), driver=driver.version(), total_bytes=total, taken_bytes=taken, fuserun=version)
    result["rows"] = ["%s, %.1f GB, driver for CUDA %s; %s" % (result["device"], total / 1e9, result["driver"], version)]


def run_tests(bench, result, tests, **environment):
    environment["FUSE_TEST_BACKEND"] = os.path.join(bench.build, "plugins", "backends", "cuda.so")
    if bench.is_reduced:
        environment["FUSE_TEST_MOST"] = "100000"
    result["tests"] = {}
    for test in tests:
        try:
            bench.call([os.path.join(bench.build, "tests", test)], environment=environment)
            result["tests"][test] = "passed"
        except Failed as reason:
            result["tests"][test] = str(reason)
    bad = {test: said for test, said in result["tests"].items() if said != "passed"}
    result["rows"] = ["%d of %d test programs passed" % (len(tests) - len(bad), len(tests))]
    if bad:
        raise Failed("; ".join("%s: %s" % pair for pair in bad.items()))


def ops(bench, result):
    """every operation and update rule against plain loops in double"""
    names = ["elementwise", "loss"] if bench.is_reduced else [
        "elementwise", "linear", "loss", "norm", "layer_norm", "attention", "tokens", "update"]
    run_tests(bench, result, ["ops/test_ops_" + name for name in names] + ["gpu/test_rules"])


def check_against_cpu(bench, result, name, runs, config, limit, *overrides):
    cpu = bench.fuserun(config, name + "-cpu", *overrides, device="cpu")
    first = next(iter(runs.values()))
    apart, where = largest_difference(read_tensors(first["weights"]), read_tensors(cpu["weights"]))
    result[name] = {"largest_difference": apart, "at": where}
    result["rows"].append("%s: %d runs with the same bits, from the CPU by %.1e of the largest element" %
                          (name, len(runs), apart))
    if not apart <= limit:
        raise Failed("%s: %s differs from the CPU's by %g of its largest element, allowed %g" %
                     (name, where, apart, limit))


def modes(bench, result, *precision, factor=1):
    """the three modes give the same bits, and the CPU's weights within a tolerance"""
    result.setdefault("rows", [])
    steps = ["run.steps=2" if bench.is_reduced else "run.steps=10"]
    config = bench.config("bench/deep_mlp.ini")
    sizes = ["model.sizes=784, 300, 10" if bench.is_reduced else "model.sizes=784, 1030, 1100, 10", *precision]
    runs = {mode: bench.fuserun(config, "mlp-" + mode, "optimizer.mode=" + mode, *steps, *sizes) for mode in MODES}
    bench.equal_weights(runs)
    check_against_cpu(bench, result, "mlp", runs, config, factor * 2e-4, *steps, *sizes)
    vit = ["run.steps=3", "data.batch_size=2", *SMALL_VIT, *precision]
    runs = {name: bench.fuserun(bench.config("vit_l16_%s.ini" % name), "vit-" + name, *vit) for name in VIT_CONFIGS}
    bench.equal_weights(runs)
    check_against_cpu(bench, result, "vit", runs, bench.config("vit_l16_fused.ini"), factor * 1e-3, *vit)


def is_without_bf16(reason):
    return "bf16 begins with" in str(reason)


def bf16(bench, result):
    """the operations that bf16 changes against plain loops; the modes, and the CPU's weights in bf16"""
    names = ["elementwise"] if bench.is_reduced else ["elementwise", "linear", "norm", "layer_norm", "attention", "tokens"]
    try:
        modes(bench, result, BF16, factor=50)  # each rounding may be the CPU's neighbour: 2^-8 against 2^-24 or less
    except Failed as reason:
        if is_without_bf16(reason):
            raise Skipped(str(reason)) from None
        raise
    rows = result["rows"]
    run_tests(bench, result, ["ops/test_ops_" + name for name in names], FUSE_TEST_PRECISION="bf16")
    result["rows"] += rows


def optimizers(bench, result):
    """every optimizer: the three modes, and the CPU"""
    found = json.loads(bench.call([os.path.join(bench.build, "fuserun"), "plugins", "--json"]))
    names = sorted(plugin["name"] for plugin in found if plugin["kind"] == "optimizer")
    result["rows"] = []
    for name in ["adadelta", "adafactor", "muon"] if bench.is_reduced else names:
        with open(bench.path(name + ".ini"), "w", encoding="utf-8") as file:
            file.write(CLASSES % (MATRICES if name == "muon" else name))
        config = bench.path(name + ".ini")
        runs = {mode: bench.fuserun(config, name + "-" + mode, "optimizer.mode=" + mode) for mode in MODES}
        bench.equal_weights(runs)
        # An update by the gradient's sign goes the other way where the gradient is rounding only.
        check_against_cpu(bench, result, name, runs, config, 5e-2 if name in ("lion", "rprop") else 2e-3)
    result["rows"] = ["%d optimizers: the same bits in all modes, the CPU's weights" % len(result["rows"])]


def digits(bench, result):
    """configs/digits.ini reaches 97 %"""
    run = bench.fuserun(bench.config("digits.ini"), "digits", *(["run.epochs=6"] if bench.is_reduced else []))
    result.update(accuracy=run["accuracy"], loss=run["loss"], step_s=median_step(run, 10))
    result["rows"] = ["accuracy %.3f, %.3f ms an update" % (run["accuracy"], result["step_s"] * 1e3)]
    if not run["accuracy"] >= (0.9 if bench.is_reduced else 0.97):
        raise Failed("digits reach only %.3f" % run["accuracy"])


def vit_overrides(bench, batch=1):
    return ["data.batch_size=%d" % batch, *(SMALL_VIT if bench.is_reduced else [])]


def vit_l16(bench, result):
    """the tutorial's four configs: memory by the driver, step times, the same weights"""
    driver = bench.driver()
    runs = {}
    result["rows"] = []
    steps = 4 if bench.is_reduced else 12
    with Watch(driver) as watch:  # the context, cuBLAS, NVRTC: what any run takes
        bench.fuserun(bench.config("digits.ini"), "base", "run.steps=20", "run.epochs=")
    base = result["base_bytes"] = watch.peak()
    result["rows"].append("%.3f GB on the device with next to no network; beyond that:" % (base / 1e9))
    for name in VIT_CONFIGS:
        with Watch(driver) as watch:
            runs[name] = bench.fuserun(bench.config("vit_l16_%s.ini" % name), "vit_l16-" + name, "run.steps=%d" % steps,
                                       "data.length=%d" % steps, *vit_overrides(bench))
        step = median_step(runs[name], steps // 4)
        plan = runs[name]["plan"]
        result[name] = {"step_s": step, "device_bytes": watch.peak(), "planned_bytes": plan["peak_bytes"],
                        "memory": plan["memory"]}
        result["rows"].append("%s: %.3f GB (planned %.3f), %.2f ms a step" %
                              (name, (watch.peak() - base) / 1e9, plan["peak_bytes"] / 1e9, step * 1e3))
    bench.equal_weights(runs)


def precision(bench, result):
    """a fused step of ViT-L/16 in fp32, TF32 and bf16"""
    ways = {"fp32": [], "tf32": ["run.tf32=yes"], "bf16": [BF16]}
    result["rows"] = []
    missing = []
    steps = 4 if bench.is_reduced else 20
    for batch in [1] if bench.is_reduced else [1, 8]:
        for name, overrides in ways.items():
            key = "%s, batch %d" % (name, batch)
            try:
                run = bench.fuserun(bench.config("vit_l16_fused.ini"), "precision", "run.steps=%d" % steps,
                                    "data.length=%d" % (steps * batch), *vit_overrides(bench, batch), *overrides)
            except Failed as reason:
                if is_without_bf16(reason):  # an old device
                    result["rows"].append("%s: %s" % (key, reason))
                else:
                    missing.append("%s: %s" % (key, reason))
                continue
            result[key] = {"step_s": median_step(run, steps // 4)}
            result["rows"].append("%s: %.2f ms a step" % (key, result[key]["step_s"] * 1e3))
    if missing:
        raise Failed("; ".join(missing))


def bandwidth(bench, result):
    """the optimizer's bytes a second as a share of the device's copies, and 1000 small tensors"""
    rate = bench.driver().copy_rate(*((1 << 20, 2) if bench.is_reduced else (1 << 30, 20)))
    sizes = ["20000", "2"] if bench.is_reduced else ["64000000", "20"]
    said = bench.call([os.path.join(bench.build, "tools", "gpu-check.d", "update_rate"), *sizes])
    result.update(json.loads(said), copy_bytes_per_s=rate)
    for form in ("one", "foreach"):
        share = result[form + "_bytes_per_s"] / rate
        result[form + "_share"] = share
    result["rows"] = ["copies %.0f GB/s; adam on one tensor %.0f GB/s (%.0f %%)" % (
        rate / 1e9, result["one_bytes_per_s"] / 1e9, 100 * result["one_share"]),
                      "as many elements in 200 tensors, at once: %.0f GB/s (%.0f %%)" % (
                          result["foreach_bytes_per_s"] / 1e9, 100 * result["foreach_share"]),
                      "1000 tensors of 64: %.1f us at once, %.1f us one by one" % (
                          result["small_foreach_s"] * 1e6, result["small_each_s"] * 1e6)]


def torch(bench, result):
    """the tutorial itself, on PyTorch"""
    peer = os.path.join(bench.root, "tools", "bench.d", "torch_peer.py")
    try:
        bench.call([bench.python, "-c", "import torch, torchvision; assert torch.cuda.is_available()"])
    except Failed as reason:
        raise Skipped("no PyTorch with CUDA and torchvision here (%s)" % reason) from None
    result["rows"] = []
    for mode, more in [("foreach", []), ("loop", []), ("hook-foreach", []), ("hook-fused", []), ("hook-fused", ["tf32"]),
                       ("hook-fused", ["bf16"])]:
        run = json.loads(bench.call([bench.python, peer, "vit", mode, "1", "20", *more],
                                    environment={"DEVICE": "cuda"}).splitlines()[-1])
        name = " ".join([mode, *more])
        step = median_step(run, 5)
        result[name] = run | {"step_s": step}
        result["rows"].append("%s: %.3f GB allocated, %.3f GB reserved, %.2f ms a step" %
                              (name, run["allocated_bytes"] / 1e9, run["reserved_bytes"] / 1e9, step * 1e3))


PARTS = {"about": about, "ops": ops, "modes": modes, "bf16": bf16, "optimizers": optimizers, "digits": digits, "vit_l16": vit_l16,
         "precision": precision, "bandwidth": bandwidth, "torch": torch}
