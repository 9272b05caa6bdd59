"""What the parts of tools/gpu-check share: running fuserun and the tests of a build, reading what they left, and asking
the driver how much of the device's memory is taken."""
import ctypes
import filecmp
import json
import os
import statistics
import struct
import subprocess
import tempfile
import threading
import time


class Failed(Exception):
    """The part found something wrong; the text says what."""


class Skipped(Exception):
    """Cannot be looked at here; the text says why."""


class Driver:
    """The few functions of the CUDA driver that measuring needs."""

    NAMES = ["libcuda.so.1"]

    def __init__(self):
        emulation = os.environ.get("FUSERUN_CUDA_EMULATION")
        try:
            self.library = ctypes.CDLL(emulation or self.NAMES[0])
        except OSError as error:
            raise Skipped("no CUDA driver: %s" % error) from None
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.device = device.value
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.context = context
        self.make_current()

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(status, ctypes.byref(text))
            raise Failed("%s: %s" % (name, (text.value or b"error").decode()))

    def make_current(self):
        """For the thread that calls."""
        self.call("cuCtxSetCurrent", self.context)

    def name(self):
        text = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", text, 128, self.device)
        return text.value.decode()

    def version(self):
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        return "%d.%d" % (version.value // 1000, version.value % 1000 // 10)

    def memory(self):
        """Bytes of the device that are taken, by whomever, and all there are."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return total.value - free.value, total.value

    def copy_rate(self, size, times):
        """Bytes read and written in a second by copies within the device."""
        stream, blocks = ctypes.c_void_p(), [ctypes.c_ulonglong(), ctypes.c_ulonglong()]
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        for block in blocks:
            self.call("cuMemAlloc_v2", ctypes.byref(block), ctypes.c_size_t(size))
            self.call("cuMemsetD8Async", block, ctypes.c_ubyte(1), ctypes.c_size_t(size), stream)
        seconds = []
        for _ in range(3):
            self.call("cuStreamSynchronize", stream)
            begin = time.perf_counter()
            for _ in range(times):
                self.call("cuMemcpyDtoDAsync_v2", blocks[0], blocks[1], ctypes.c_size_t(size), stream)
            self.call("cuStreamSynchronize", stream)
            seconds.append((time.perf_counter() - begin) / times)
        for block in blocks:
            self.call("cuMemFree_v2", block)
        self.call("cuStreamDestroy_v2", stream)
        return 2 * size / min(seconds)

    def close(self):
        self.call("cuDevicePrimaryCtxRelease_v2", self.device)


class Watch:
    """The most of the device's memory that was taken while something ran, above what was taken before."""

    def __init__(self, driver):
        self.driver, self.stopped = driver, threading.Event()
        self.base = self.driver.memory()[0]
        self.most = self.base
        self.thread = threading.Thread(target=self.look)

    def look(self):
        self.driver.make_current()
        while not self.stopped.wait(0.002):
            self.most = max(self.most, self.driver.memory()[0])

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *unused):
        self.stopped.set()
        self.thread.join()

    def peak(self):
        return self.most - self.base


def read_tensors(path):
    """{name: floats} of a .safetensors file with F32 tensors."""
    with open(path, "rb") as file:
        content = file.read()
    (length,) = struct.unpack("<Q", content[:8])
    tensors = {}
    for name, entry in json.loads(content[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = (8 + length + at for at in entry["data_offsets"])
            tensors[name] = struct.unpack("<%df" % ((end - begin) // 4), content[begin:end])
    return tensors


def largest_difference(a, b):
    """Over all tensors, of the largest element of each; and where. An attention's key bias is left out: its gradient is
    zero but for rounding, which Adam makes steps of."""
    worst, where = 0.0, ""
    for name, values in a.items():
        count = len(values)
        kept = [i for i in range(count) if not (name.endswith("in_proj_bias") and count // 3 <= i < 2 * count // 3)]
        size = max((abs(b[name][i]) for i in kept), default=0.0) or 1.0
        apart = max((abs(values[i] - b[name][i]) for i in kept), default=0.0) / size
        if not apart <= worst:  # a NaN counts
            worst, where = apart, name
    return worst, where


class Bench:
    def __init__(self, root, build, is_reduced, python, end):
        self.root, self.build, self.is_reduced, self.python = root, build, is_reduced, python
        self.end = end  # of time.monotonic(): no call lasts longer
        self.folder = tempfile.TemporaryDirectory(prefix="fuserun-gpu-check.")
        self.opened = None
        self.known = {}  # from part to part

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        if self.opened is not None:
            self.opened.close()
        self.folder.cleanup()

    def driver(self):
        if self.opened is None:
            self.opened = Driver()
        return self.opened

    def path(self, *names):
        return os.path.join(self.folder.name, *names)

    def config(self, name):
        return os.path.join(self.root, "configs", name)

    def environment(self):
        environment = dict(os.environ)
        plugins = [os.path.join(self.build, "plugins"), os.path.join(self.build, "models")]
        environment["FUSERUN_PLUGIN_PATH"] = ":".join(plugins)
        libraries = os.path.join(self.build, "lib")
        if os.path.isdir(libraries):
            environment["LD_LIBRARY_PATH"] = ":".join(filter(None, [libraries, environment.get("LD_LIBRARY_PATH")]))
        return environment

    def call(self, command, seconds=240, environment=None):
        seconds = max(1, min(seconds, int(self.end - time.monotonic())))
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds,
                                  env=self.environment() | (environment or {}), cwd=self.folder.name)
        except subprocess.TimeoutExpired:
            raise Failed("%s took more than %d s" % (os.path.basename(command[0]), seconds)) from None
        except OSError as error:
            raise Failed(str(error)) from None
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise Failed("%s: status %d: %s" % (os.path.basename(command[0]), done.returncode,
                                                said[-1] if said else "nothing said"))
        return done.stdout

    def fuserun(self, config, name, *overrides, device="cuda"):
        """A run in a folder of that name: seconds of each update, what it planned, where its weights are."""
        output = self.path(name)
        program = os.path.join(self.build, "fuserun")
        settings = ["run.device=" + device, "run.output=" + output, "run.overwrite=yes", "run.progress=off",
                    "memory.snapshot=no", *overrides]
        plan = json.loads(self.call([program, "check", "--json", config, *settings]))
        self.call([program, config, *settings])
        with open(os.path.join(output, "metrics.jsonl"), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        updates = [line for line in lines if "loss" in line]
        if updates[-1]["peak_bytes"] != plan["peak_bytes"]:
            raise Failed("%s: planned %d bytes, took %d" % (name, plan["peak_bytes"], updates[-1]["peak_bytes"]))
        return {"step_s": [line["step_s"] for line in updates], "plan": plan,
                "weights": os.path.join(output, "model.safetensors"),
                "loss": updates[-1]["loss"],
                "accuracy": next((line["eval_accuracy"] for line in reversed(lines) if "eval_accuracy" in line), None)}

    @staticmethod
    def equal_weights(runs):
        """runs: {name: run}, all to have the same bits."""
        (first, expected), *others = runs.items()
        for name, run in others:
            if not filecmp.cmp(run["weights"], expected["weights"], shallow=False):
                raise Failed("%s and %s differ" % (first, name))


def median_step(run, drop):
    return statistics.median(run["step_s"][drop:])
