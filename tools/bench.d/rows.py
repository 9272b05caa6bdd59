"""What tools/bench measures: one function a row, and the limits it is held against."""
import math
import os

from sides import ROOT, Unavailable, median

VIT = os.path.join(ROOT, "configs", "vit_l16_fused.ini")
DEEP = os.path.join(ROOT, "configs", "bench", "deep_mlp.ini")
DIGITS = os.path.join(ROOT, "configs", "digits.ini")
DATA = os.path.join(ROOT, "configs", "data", "digits")
VIT_PARAMETERS = 304326632
# The tensors of ViT-L/16: 96 weights of its layers, then what is small.
VIT_TENSORS = "48x4194304,24x3145728,24x1048576,1x1024000,1x786432,1x201728,148x1024,24x4096,24x3072,1x1000"
ADAM_BYTES = 24  # a parameter: weight and two moments, read and written


class Row:
    """A line of the table. measure(context) gives what was measured: `ours` and its `unit`, `ratio` to the best peer;
    `rounds`, `bests` and `floors`, one of each a round; `note` and `lines` for people. Held against `limit` is the ratio, or of a
    row that is_absolute `ours`; it may be at most the limit, at least that where is_least."""

    def __init__(self, name, what, measure, limit=None, aim=None, is_absolute=False, is_least=False):
        self.name, self.what, self.measure, self.limit, self.aim = name, what, measure, limit, aim
        self.is_absolute, self.is_least = is_absolute, is_least


def in_turn(context, ours, peers, floor_s=None):
    """Runs ours and the peers in turn, A B A B. Of several peers all run in the first round, then only the fastest."""
    rounds, names = [], list(peers)
    result = {"unit": "s/step", "floors": [], "bests": [], "peers": {}, "ratios": []}
    for index in range(context.rounds):
        if floor_s is not None:
            result["floors"].append(floor_s())
        mine = ours()
        rounds.append(median(mine["step_s"]))
        result["bests"].append(min(mine["step_s"]))
        for key in ("grown_bytes", "planned_bytes"):
            if key in mine:
                result[key] = mine[key]
        try:
            times = {}
            for name in names:
                theirs = peers[name]()
                times[name] = median(theirs["step_s"])
                known = result["peers"].setdefault(name, {"rounds": []})
                known["rounds"].append(times[name])
                if "grown_bytes" in theirs:
                    known["grown_bytes"] = theirs["grown_bytes"]
            best = min(times, key=times.get)
            result["ratios"].append(rounds[index] / times[best])
            result["peer"], names = best, [best]
        except Unavailable as reason:
            result["note"], names, peers = str(reason), [], {}
        except ValueError:
            pass  # no peers
    result["rounds"], result["ours"] = rounds, median(rounds)
    if result["ratios"]:
        result["theirs"] = median(result["peers"][result["peer"]]["rounds"])
        result["ratio"] = median(result["ratios"])
    return result


# --- whole steps ----------------------------------------------------------------------------------------------------

def vit_flop(batch, tokens=197, width=1024, hidden=4096, layers=24, classes=1000, patch=768):
    """Floating-point operations of a step: each product once forward and twice backward (the first only once, for its
    input learns nothing), attention's scores again in backward."""
    linear = 2 * tokens * layers * (4 * width * width + 2 * width * hidden) + 2 * classes * width
    attention = layers * 2 * tokens * tokens * width
    return batch * (3 * linear + 7 * attention + 2 * 2 * (tokens - 1) * patch * width)


def vit_row(mode, batch, precision, peers):
    def measure(context):
        machine, steps = context.machine, context.steps
        overrides = ["optimizer.mode=" + mode, "data.batch_size=%d" % batch, "run.steps=%d" % steps,
                     "run.precision=" + precision, "data.length=%d" % (batch * steps)]
        more = ["bf16"] if precision == "bf16" else []
        if precision != "fp32":
            machine.parameters(VIT, *overrides)  # refused here: the row says so

        def floor():
            return max(vit_flop(batch) / machine.product_rate(), VIT_PARAMETERS * ADAM_BYTES / machine.stream())
        chosen = [peer for peer in peers if not context.peers or peer in context.peers]
        return in_turn(context, lambda: machine.fuserun(VIT, *overrides),
                       {peer: lambda peer=peer: machine.torch("vit", peer, batch, steps, *more) for peer in chosen},
                       floor if precision == "fp32" else None)
    return measure


def deep_mlp(context):
    machine, steps = context.machine, 10 if context.quick else 30
    parameters = 31002634

    def floor():
        return max(6 * 32 * parameters / machine.product_rate(), parameters * ADAM_BYTES / machine.stream())
    sizes = ",".join(["784"] + ["2048"] * 8 + ["10"])
    return in_turn(context, lambda: machine.fuserun(DEEP, "run.steps=%d" % steps, drop=3),
                   {peer: lambda peer=peer: machine.torch("mlp", peer, sizes, 32, steps, drop=3)
                    for peer in ("hook-fused", "hook-loop", "fused")}, floor)


def small_mlp(context):
    machine, steps = context.machine, 2000 if context.quick else 20000
    overrides = ["run.epochs=", "run.steps=%d" % steps, "optimizer.plugin=adam", "optimizer.weight_decay=0",
                 "eval.every=1000000 steps"]
    # One thread as the config has it; PyTorch as it comes, which is its faster way.
    result = in_turn(context, lambda: machine.fuserun(DIGITS, *overrides, drop=100, threads=1),
                     {peer: lambda peer=peer: machine.torch("mlp", peer, "64,128,10", 32, min(steps, 3000), drop=100)
                      for peer in ("fused", "foreach", "loop")})
    updates = "%.0f updates a second" % (1 / result["ours"])
    result["note"] = ", ".join(filter(None, [updates, result.get("note")]))
    return result


def start_up(context):
    machine = context.machine
    output = os.path.join(machine.folder.name, "start")
    ours = [os.path.join(machine.build, "fuserun"), DIGITS, "run.output=" + output, "run.epochs=", "run.steps=1",
            "run.progress=off"]
    images, labels = (os.path.join(DATA, "train-%s-ubyte" % kind) for kind in ("images-idx3", "labels-idx1"))
    return in_turn(context, lambda: {"step_s": machine.process_seconds(ours)},
                   {"fused": lambda: {"step_s": machine.process_seconds(machine.torch_command("start", images, labels),
                                                                        3)}})


# --- parts ----------------------------------------------------------------------------------------------------------

def adam_rule(machine):
    return os.path.join(machine.build, "plugins", "optimizers", "adam.so")


def adam_rounds(machine):
    """Seconds of one foreach update of ViT-L's tensors."""
    found = machine.kernels("update", adam_rule(machine), VIT_TENSORS)
    return {"step_s": [float(values[0]) for values in found["update_s"]]}


def adam_floor(machine):
    return VIT_PARAMETERS * (ADAM_BYTES + 4) / machine.stream()


def adam_alone(peer):
    def measure(context):
        machine = context.machine
        return in_turn(context, lambda: adam_rounds(machine),
                       {peer: lambda: machine.torch("adam", peer, 6, VIT_TENSORS, drop=2)},
                       lambda: adam_floor(machine))
    return measure


def adam_bandwidth(context):
    """The update alone against the bandwidth that streams like its own reach, in turn and each time at the same moment:
    what other tenants leave of it changes within seconds."""
    machine, shares = context.machine, []
    for _ in range(context.rounds):
        found = machine.kernels("bandwidth", adam_rule(machine), VIT_TENSORS)
        for update, stream in zip(found["update_s"], found["stream_bytes_per_s"]):
            shares.append(VIT_PARAMETERS * (ADAM_BYTES + 4) / float(update[0]) / float(stream[0]))
    return {"unit": "share", "ours": median(shares), "rounds": shares,
            "note": "of the stream bandwidth, by 28 bytes a parameter"}


def small_tensors(context):
    """1,000 tensors of 64 elements in one call, against one tensor of as many: row 42 of what users report elsewhere."""
    machine = context.machine

    def update(tensors):
        found = machine.kernels("update", adam_rule(machine), tensors)
        return {"step_s": [float(values[0]) for values in found["update_s"]]}
    return in_turn(context, lambda: update("1000x64"), {"one tensor": lambda: update("1x64000")})


def products(context):
    """Every product of ViT-L/16 against the best that oneDNN reaches on that shape alone: medians of the ratios of turns,
    each of which is one moment, for a processor's clock swings by more than the two differ."""
    turns = [turn for _ in range(context.rounds) for turn in context.machine.products()]
    if not any(library for _, _, library in turns):
        raise Unavailable("this build has no oneDNN")
    lines, shares = [], []
    for name in dict.fromkeys(name for name, _, _ in turns):
        same = [(ours, library) for each, ours, library in turns if each == name]
        shares.append(median([ours / library for ours, library in same]))
        lines.append("%s %.0f of %.0f GFLOP/s, %.2f" % (name, *(median(rates) / 1e9 for rates in zip(*same)), shares[-1]))
    return {"unit": "share", "ours": min(shares), "rounds": shares, "lines": lines,
            "note": "the least share of the library's best rate"}


def no_optimizer(context):
    """What the fused optimizer adds to the step, in times of 24 bytes a parameter at the stream's bandwidth. The steps
    differ by little, so the best of each is compared: what else runs on the machine only adds."""
    machine, steps = context.machine, context.steps
    plain = os.path.join(machine.build, "tools", "bench.d", "no_optimizer.so")
    shared = ["run.steps=%d" % steps, "data.length=%d" % steps]
    rounds, bandwidth = [], 0
    for _ in range(context.rounds):
        bandwidth = max(bandwidth, machine.stream())
        rounds.append([min(machine.fuserun(VIT, *shared, *more)["step_s"]) for more in (
            [], ["optimizer.plugin=" + plain])])
    with_adam, without = (min(values) for values in zip(*rounds))
    floor = VIT_PARAMETERS * ADAM_BYTES / bandwidth
    return {"unit": "x 24 bytes", "ours": (with_adam - without) / floor, "rounds": rounds,
            "note": "a step of %.2f s, of %.2f s without; 24 bytes a parameter are %.2f s" % (with_adam, without, floor)}


def clipping(context):
    """The exact global norm doubles a step for others (row 3): here the deferred way must not."""
    machine, steps = context.machine, context.steps
    shared = ["run.steps=%d" % steps, "data.length=%d" % steps]
    clip = ["optimizer.clip_grad_norm=1"]
    rounds = []
    for _ in range(context.rounds):
        rounds.append([median(machine.fuserun(VIT, *shared, *more)["step_s"]) for more in (
            [], clip + ["optimizer.clip_algorithm=deferred"], clip + ["optimizer.clip_algorithm=two_pass"])])
    deferred = median([each[1] / each[0] for each in rounds])
    twice = median([each[2] / each[0] for each in rounds])
    return {"unit": "x unclipped", "ours": deferred, "rounds": rounds,
            "note": "two_pass %.2f times the unclipped step" % twice}


GROWTH = {
    "batch": [("data.batch_size=%d" % batch,) for batch in (1, 2, 4, 8, 16)],
    "depth": [("model.num_layers=%d" % layers,) for layers in (4, 8, 16, 24)],
    "width": [("model.hidden_dim=%d" % width, "model.mlp_dim=%d" % (4 * width), "model.num_heads=%d" % (width // 64))
              for width in (256, 512, 768, 1024)],
}


def growth(series):
    """Step times against a + b FLOP, a being the time of 24 bytes a parameter; b fits the series best. The sizes take
    turns, and of each size the best window counts: what else runs on the machine only adds. A window is as many steps as
    take about the time of one of the largest size, so that no size finds a quiet moment more easily than another."""
    def measure(context):
        machine, steps = context.machine, 4 if context.quick else 6
        base = {"data.batch_size": 1, "model.num_layers": 8, "model.hidden_dim": 512, "model.mlp_dim": 2048,
                "model.num_heads": 8}
        sizes = []
        for changes in GROWTH[series]:
            values = base | dict(change.split("=") for change in changes)
            numbers = {key: int(value) for key, value in values.items()}
            flop = vit_flop(numbers["data.batch_size"], width=numbers["model.hidden_dim"],
                            hidden=numbers["model.mlp_dim"], layers=numbers["model.num_layers"])
            sizes.append((changes[0], flop, numbers["data.batch_size"], ["%s=%s" % item for item in values.items()]))
        most_flop, bandwidth, best = max(flop for _, flop, _, _ in sizes), 0, {}
        for _ in range(context.rounds):
            bandwidth = max(bandwidth, machine.stream())
            for name, flop, batch, overrides in sizes:
                window = round(most_flop / flop)
                count = steps * window + 1  # the first does not count
                times = machine.fuserun(VIT, *overrides, "run.steps=%d" % count,
                                        "data.length=%d" % (count * batch))["step_s"]
                means = [sum(times[at:at + window]) / window for at in range(0, len(times) - window + 1, window)]
                best[name] = min(means + [best.get(name, math.inf)])
        points = [(name, best[name], machine.parameters(VIT, *overrides) * ADAM_BYTES / bandwidth, flop)
                  for name, flop, _, overrides in sizes]
        # b: least squares of the relative errors
        slope = sum((step - a) * flop / step ** 2 for _, step, a, flop in points)
        slope /= sum((flop / step) ** 2 for _, step, _, flop in points)
        errors = [(name, step, (step - a - slope * flop) / (a + slope * flop)) for name, step, a, flop in points]
        worst = max(abs(error) for _, _, error in errors)
        return {"unit": "off the line", "ours": worst,
                "lines": ["%s: %.3f s, %+.0f %%" % (name, step, 100 * error) for name, step, error in errors],
                "note": "the largest distance from a + b FLOP"}
    return measure


def all_rows():
    hooks = ("hook-fused", "fused", "hook-loop")
    rows = [
        Row("vit_l16_b1", "ViT-L/16, batch 1, fp32, fused", vit_row("fused", 1, "fp32", hooks), 0.80, 0.72),
        Row("vit_l16_b8", "ViT-L/16, batch 8, fp32, fused", vit_row("fused", 8, "fp32", hooks[:2]), 0.92, 0.86),
        Row("vit_l16_b1_bf16", "ViT-L/16, batch 1, bf16, fused", vit_row("fused", 1, "bf16", hooks[:2]), 0.80, 0.68),
        Row("vit_l16_b8_bf16", "ViT-L/16, batch 8, bf16, fused", vit_row("fused", 8, "bf16", hooks[:2])),
        Row("adam_304m_fused", "foreach Adam alone, 304 M, against fused=True", adam_alone("fused"), 1.05, 0.95),
        Row("adam_304m_foreach", "foreach Adam alone, 304 M, against foreach=True", adam_alone("foreach"), 0.20, 0.15),
        Row("adam_304m_stream", "foreach Adam alone, 304 M, of the stream bandwidth", adam_bandwidth, 0.85,
            is_absolute=True, is_least=True),
        Row("deep_mlp", "784-2048x8-10, batch 32, Adam, fused", deep_mlp, 0.65, 0.50),
        Row("small_mlp", "64-128-10, batch 32, Adam, an update", small_mlp, 0.25, 0.12),
        Row("start_up", "digits to the first step, whole process", start_up, 0.05, 0.02),
        Row("small_tensors", "1000 tensors of 64 in one call, against one", small_tensors, 2.0),
        Row("no_optimizer", "ViT-L/16, batch 1: what Adam adds to a step", no_optimizer, 1.2,
            is_absolute=True),
        Row("products", "ViT-L/16, batch 1: products against oneDNN", products, 0.92,
            is_absolute=True, is_least=True),
        Row("clipping", "ViT-L/16, batch 1, clipped by the global norm", clipping, 1.2,
            is_absolute=True),
    ]
    rows += [Row("growth_" + series, "a small ViT, step time against " + series, growth(series), 0.10, is_absolute=True)
             for series in GROWTH]
    for mode, peers in (("per_param", ("loop", "fused")), ("foreach", ("foreach",))):
        for batch in (1, 8):
            rows.append(Row("vit_l16_b%d_%s" % (batch, mode), "ViT-L/16, batch %d, fp32, %s" % (batch, mode),
                            vit_row(mode, batch, "fp32", peers)))
    return rows
