"""The n-th allocation fails: of fuserun's own and of the libraries that can be told whom to ask (jansson, zlib, ...). One
clear error and exit status 1, whatever n is, and no crash. allocation_faults.c makes them fail. FUSERUN_DEEP=1 tries every n, otherwise a sample that begins elsewhere for each of the cases."""
import gzip
import os
import shutil
import struct
import subprocess
import unittest

from support import FUSERUN, TIMEOUT_S, Case, is_sanitized, read_safetensors, write_safetensors, writes_coverage

MODULES = "fuserun,/plugins/,/models/,libjansson,libinih,libz,libxxhash"
LOST = "fuserun: out of memory for further messages\n"
IS_DEEP = os.environ.get("FUSERUN_DEEP") == "1"
COPIES = 150  # of a sample
TIMES = 25  # of a sample, where each costs a whole run


def fnv1a(content):
    value = 0xcbf29ce484222325
    for byte in content:
        value = (value ^ byte) * 0x100000001b3 % (1 << 64)
    return "%016x" % value


@unittest.skipIf(writes_coverage(), "what gcov writes at the end would be taken for the run's first file")
@unittest.skipIf(is_sanitized(), "the address sanitizer is the allocator itself, and takes no other in front of it")
class Sweep(Case):
    """A config that uses much of what there is."""

    CONFIG = """[run]
include = base.ini
name = t
output = out
[optimizer]
clip_grad_norm = 1
[group first]
match = layers.0.*, layers.1.bias
weight_decay = 0
[scheduler]
plugin = sequential
stages = warm, main
milestones = 2
[scheduler.warm]
plugin = linear
[scheduler.main]
plugin = formula
expr = base * 0.5 ^ step
[eval]
every = 2 steps
batch_size = 3
[memory]
snapshot = yes
"""
    BASE = """[run]
steps = 4
threads = 1
[model]
plugin = mlp
sizes = 16, 8, 4
freeze = layers.1.weight
weights = w.safetensors
[data]
plugin = idx
images = images.gz
labels = labels
batch_size = 8
[optimizer]
plugin = adamw
lr = ${env:RATE}
"""

    def setUp(self):
        super().setUp()
        with gzip.open(self.path("images.gz"), "wb") as file:
            file.write(struct.pack(">IIII", 0x803, 20, 4, 4) + bytes(i * 37 % 256 for i in range(20 * 16)))
        with open(self.path("labels"), "wb") as file:
            file.write(struct.pack(">II", 0x801, 20) + bytes(i % 4 for i in range(20)))
        write_safetensors(self.path("w.safetensors"), {
            "layers.0.weight": ("F32", [[0.1 * (i % 3 - 1)] * 16 for i in range(8)]), "layers.0.bias": ("F32", [0.0] * 8),
            "layers.1.weight": ("BF16", [[0x3dcc] * 8] * 4), "layers.1.bias": ("F32", [0.0] * 4)})
        self.write("base.ini", self.BASE)
        self.write("t.ini", self.CONFIG)

    def start(self, *arguments, **faults):
        environment = dict(self.environment(), LD_PRELOAD=os.environ["ALLOCATION_FAULTS"], FAULT_MODULES=MODULES, RATE="1e-3",
                           FAULT_LOG=self.path("faults.log"))
        environment.update({"FAULT_" + name.upper(): str(value) for name, value in faults.items()})
        if os.path.exists(self.path("faults.log")):
            os.remove(self.path("faults.log"))
        return subprocess.run([FUSERUN, *arguments], cwd=self.folder, capture_output=True, timeout=TIMEOUT_S,
                              env=environment, check=False)

    def log(self):
        """The copies as lists of fields, and the numbers `counted` and `written` (None: nothing was written)."""
        with open(self.path("faults.log"), encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
        copies = [line.split("\t") for line in lines if "\t" in line]
        ends = dict(line.split() for line in lines if "\t" not in line)
        return copies, int(ends["counted"]), int(ends["written"]) if "written" in ends else None

    def say(self, *words):
        if IS_DEEP:
            print(*words, flush=True)

    def assert_one_error(self, status, errors, what):
        lines = [line for line in errors.splitlines(True) if ": warning: " not in line]
        if len(lines) > 1 and lines[0] == LOST:  # in the place of a warning that there was no memory for
            del lines[0]
        errors = "".join(lines)
        self.assertEqual(status, 1, what)
        self.assertRegex(errors, r"\A(fuserun|[^:\n]+:\d+): [^\n]*(out of memory|Cannot allocate memory)[^\n]*\n\Z", what)

    def assert_harmless(self, function, errors, reference, what):
        """A file of /proc that cannot be read says nothing; of notices, the lack itself is told."""
        if not reference.endswith(errors):  # what was said before the copy was made stands in the reference alone
            self.assertIn(LOST, errors, what)
        else:
            self.assertEqual(function, "fopen", what)

    def sweep_copies(self, *arguments):
        """Every n in the part of the command before it writes; returns the number of the last."""
        done = self.start(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        _, count, _ = self.log()
        stride = 1 if IS_DEEP else max(1, count // COPIES)
        for always in (0, 1):
            shutil.rmtree(self.path("out"), ignore_errors=True)
            again = self.start(*arguments, stride=stride, always=always, **{"from": 1 + always * stride // 2})
            self.assertEqual((again.returncode, again.stderr), (0, done.stderr))
            copies, counted, written = self.log()
            self.assertGreater(len(copies), min(counted, written or counted) // stride - 2)
            for number, function, size, caller, status, output, errors in copies:
                what = (arguments, number, function, size, caller, status, errors)
                errors = errors.replace("\\n", "\n")
                if status in ("0", "77"):  # 77: the run begins to write all the same
                    self.assert_harmless(function, errors, done.stderr.decode(), what)
                    self.assertTrue(status == "77" or output == fnv1a(done.stdout), what)
                else:
                    self.assert_one_error(int(status), errors, what)
            self.say("%s: %d of %d allocations failed%s" % (" ".join(arguments), len(copies), counted, (
                " with all that follow" if always else "")))
        return written or counted


class Start(Sweep):
    def test_check(self):
        self.sweep_copies("check", "t.ini", "run.seed=3")

    def test_other_commands(self):
        self.fuserun("t.ini", environment=dict(self.environment(), RATE="1e-3"))
        shutil.move(self.path("out"), self.path("done"))
        for arguments in (("schedule", "t.ini", "--csv"), ("plugins",), ("plugins", "adamw", "--json"),
                          ("inspect", "done/model.safetensors"), ("compare", "done", "done", "--json")):
            with self.subTest(arguments=arguments):
                self.sweep_copies(*arguments)


class Run(Sweep):
    def sweep_rest(self, written, judge):
        """Every n from where the run began to write; each costs a whole run: judge(done, what)."""
        _, counted, _ = self.log()
        self.assertGreater(counted, written)
        stride = 1 if IS_DEEP else max(1, (counted - written) // TIMES)
        for number in range(written + 1, counted + 1, stride):
            shutil.rmtree(self.path("out"))
            judge(self.start("t.ini", at=number, always=number // stride % 2), number)
        self.say("t.ini: %d allocations failed while it ran and saved" % len(range(written + 1, counted + 1, stride)))

    def judge(self, done, what, reference):
        if done.returncode == 0:
            self.assertEqual(read_safetensors(self.path("out/model.safetensors")), reference, what)
            return
        self.assert_one_error(done.returncode, done.stderr.decode(), (what, done.stderr))
        for name in os.listdir(self.path("out")):
            self.assertFalse(name.endswith(".tmp"), what)
        if os.path.exists(self.path("out/model.safetensors")):
            self.assertEqual(read_safetensors(self.path("out/model.safetensors")), reference, what)

    def test_run(self):
        written = self.sweep_copies("t.ini")
        reference = read_safetensors(self.path("out/model.safetensors"))
        self.sweep_rest(written, lambda done, what: self.judge(done, what, reference))


class Checkpoints(Run):
    """The same run with a checkpoint of every update. Those made before the failure are whole, the link leads to one of them,
    and the run that goes on from there comes to the bytes of the run that had all the memory it asked for."""

    CONFIG = Sweep.CONFIG.replace("snapshot = yes", "timeline = no") + "[checkpoint]\nevery = 1\n"

    def test_run(self):
        for background in ("no", "yes"):
            with self.subTest(background=background):
                shutil.rmtree(self.path("out"), ignore_errors=True)
                self.write("t.ini", self.CONFIG + "keep = 9\nbackground = %s\n" % background)
                self.checkpoints = {}
                self.start("t.ini")
                for name in self.saved():
                    self.checkpoints[name] = read_safetensors(self.path("out/checkpoints", name))
                self.assertEqual(len(self.checkpoints), 4)
                shutil.rmtree(self.path("out"))
                self.write("t.ini", self.CONFIG + "keep = 2\nbackground = %s\n" % background)
                super().test_run()

    def test_going_on(self):
        """Reading a checkpoint, before the run writes."""
        self.write("t.ini", self.CONFIG)
        self.start("t.ini")
        shutil.move(self.path("out"), self.path("done"))
        self.sweep_copies("t.ini", "run.resume=done/checkpoints/latest", "run.steps=5")

    def saved(self):
        folder = self.path("out/checkpoints")
        return [name for name in os.listdir(folder) if name != "latest"] if os.path.isdir(folder) else []

    def judge(self, done, what, reference):
        super().judge(done, what, reference)
        for name in self.saved():
            self.assertEqual(read_safetensors(self.path("out/checkpoints", name)), self.checkpoints[name], (what, name))
        link = self.path("out/checkpoints/latest")
        self.assertEqual(os.path.exists(link), os.path.lexists(link), what)
        if done.returncode != 0 and self.saved():
            self.fuserun("t.ini", environment=dict(self.environment(), RATE="1e-3"))
            self.assertEqual(read_safetensors(self.path("out/model.safetensors")), reference, what)
            self.assertEqual(read_safetensors(link), self.checkpoints["step-00000004.safetensors"], what)


if __name__ == "__main__":
    unittest.main()
