"""What the end-to-end tests share: running the program, writing and reading its files, with the standard library alone."""
import json
import os
import random
import signal
import struct
import subprocess
import tempfile
import unittest

FUSERUN = os.environ["FUSERUN"]
TIMEOUT_S = 300
SLOW = "fuserun: warning: products in bf16 may be slower"

TYPES = {"F32": ("f", 4), "F64": ("d", 8), "I64": ("q", 8), "I32": ("i", 4), "I16": ("h", 2), "I8": ("b", 1), "U8": ("B", 1),
         "BOOL": ("?", 1), "BF16": ("H", 2), "F16": ("H", 2)}

# nohup ignores SIGHUP, children inherit that, and fuserun would leave it so.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def is_sanitized():
    """Whether fuserun is built with the address sanitizer."""
    with open(FUSERUN, "rb") as file:
        return b"__asan_init" in file.read()


def writes_coverage():
    """Whether fuserun writes files of its own at its end, to count the lines that ran."""
    with open(FUSERUN, "rb") as file:
        return b"__gcov_" in file.read()


def flatten(value):
    if isinstance(value, (list, tuple)):
        return [leaf for element in value for leaf in flatten(element)]
    return [value]


def shape_of(value):
    return [len(value)] + shape_of(value[0]) if isinstance(value, (list, tuple)) else []


def write_safetensors(path, tensors):
    """tensors: {name: (dtype, nested list)}, or raw numbers of the dtype's unsigned form for BF16 and F16."""
    header, data = {}, b""
    for name, (dtype, values) in tensors.items():
        code, _ = TYPES[dtype]
        flat = flatten(values)
        raw = struct.pack("<%d%s" % (len(flat), code), *flat)
        header[name] = {"dtype": dtype, "shape": shape_of(values), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    """{name: flat list of floats}."""
    with open(path, "rb") as file:
        content = file.read()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        code, size = TYPES[entry["dtype"]]
        raw = content[8 + length + begin:8 + length + end]
        tensors[name] = list(struct.unpack("<%d%s" % (len(raw) // size, code), raw))
    return tensors


def to_f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


class Case(unittest.TestCase):
    """Each test has a folder of its own, which is the working directory of what it runs."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="fuserun-test-")
        self.addCleanup(folder.cleanup)
        self.folder = os.path.realpath(folder.name)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)

    def read(self, *names):
        with open(self.path(*names), "rb") as file:
            return file.read()

    def environment(self):
        environment = {key: value for key, value in os.environ.items() if key != "FUSERUN_PLUGIN_PATH"}
        environment.setdefault("OMP_WAIT_POLICY", "passive")
        return environment

    def fuserun(self, *arguments, status=0, program=None, cwd=None, environment=None):
        """Runs the program and asserts its exit status. What a build without a fast matrix product says of itself each time
        is left out of its stderr."""
        done = subprocess.run([program or FUSERUN, *arguments], cwd=cwd or self.folder, capture_output=True, text=True,
                              timeout=TIMEOUT_S, env=environment or self.environment(), check=False)
        self.assertEqual(done.returncode, status, "fuserun %s\nstdout: %s\nstderr: %s" %
                         (" ".join(arguments), done.stdout[-2000:], done.stderr[-4000:]))
        done.stderr = "".join(line for line in done.stderr.splitlines(True) if not line.startswith(SLOW))
        return done

    def metrics(self, output="runs/t"):
        with open(self.path(output, "metrics.jsonl"), encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def updates(self, output="runs/t"):
        return [line for line in self.metrics(output) if "loss" in line]

    def evaluations(self, output="runs/t"):
        return [line for line in self.metrics(output) if "eval_loss" in line]

    def weights(self, output="runs/t"):
        return read_safetensors(self.path(output, "model.safetensors"))

    def left_behind(self):
        """Everything below the test's folder, relative to it."""
        return sorted(os.path.relpath(os.path.join(at, name), self.folder)
                      for at, folders, files in os.walk(self.folder) for name in folders + files)

    # ---- small experiments ---------------------------------------------------------------------------------------

    def make_classes(self, name="data.safetensors", count=50, width=12, classes=4, seed=1):
        """Noisy class means: learnable, and the same in every run of the tests."""
        draw = random.Random(seed)
        means = [[draw.uniform(-1, 1) for _ in range(width)] for _ in range(classes)]
        labels = [draw.randrange(classes) for _ in range(count)]
        inputs = [[to_f32(mean + draw.gauss(0, 0.3)) for mean in means[label]] for label in labels]
        write_safetensors(self.path(name), {"x": ("F32", inputs), "y": ("I64", labels)})

    CLASSES = """[run]
name = t
steps = {steps}
{run}
[model]
plugin = mlp
sizes = 12, 24, 4
{model}
[data]
plugin = tensors
file = data.safetensors
batch_size = {batch_size}
{data}
[optimizer]
plugin = {optimizer}
{options}
{rest}
"""

    def classes_config(self, name="t.ini", steps=12, batch_size=8, optimizer="adamw", run="", model="", data="",
                       options="lr = 0.01", rest=""):
        return self.write(name, self.CLASSES.format(steps=steps, batch_size=batch_size, optimizer=optimizer, run=run,
                                                    model=model, data=data, options=options, rest=rest))

    PROBE = """[run]
name = t
steps = {steps}
[model]
plugin = mlp
sizes = {width}, 1
weights = zeros.safetensors
{model}
[data]
plugin = tensors
file = probe.safetensors
batch_size = 1
shuffle = no
[loss]
kind = sum
[optimizer]
plugin = sgd
mode = {mode}
{options}
{rest}
"""

    def probe_config(self, width, steps=None, mode="fused", options="lr = 0.1", model="", rest=""):
        """A net whose weights tell the learning rate of every update.

        Sample k is the k-th unit vector and the loss is the output itself, so the gradient of layers.0.weight is 1 in
        its k-th element and 0 elsewhere: sgd from zero leaves -lr of update k there, and -(sum of all) in the bias.
        """
        units = [[1.0 if i == k else 0.0 for i in range(width)] for k in range(width)]
        write_safetensors(self.path("probe.safetensors"), {"x": ("F32", units), "y": ("F32", [[0.0]] * width)})
        write_safetensors(self.path("zeros.safetensors"),
                          {"layers.0.weight": ("F32", [[0.0] * width]), "layers.0.bias": ("F32", [0.0])})
        return self.write("probe.ini", self.PROBE.format(steps=steps or width, width=width, mode=mode, options=options,
                                                         model=model, rest=rest))
