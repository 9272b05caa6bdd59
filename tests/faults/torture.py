"""Kills runs at random instants, lets them go on, and compares with the run that nobody touched.

Every kill is a kill -9: half of them after a random time, half at a random call on the output folder (open, write, fsync,
rename, ...), so that the middle of saving is met as often as the middle of training. After each, the next run must reach
the same bytes: model.safetensors, the last checkpoint, and metrics.jsonl but for times. With --faults it is not a kill but
a call that fails (disk full, input/output error, interrupted, short write).

A person calls tools/torture, which builds what this needs and sets FUSERUN and IO_FAULTS."""
import argparse
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from support import FUSERUN, TIMEOUT_S, Case, read_safetensors, write_safetensors

OWN = ("step_s", "samples_per_s", "peak_bytes")  # what each process measures of itself
STEPS = 24

CONFIG = """[run]
steps = {steps}
threads = 1
seed = 5
overwrite = yes
progress = off
[model]
{model}
plugin = tensors
batch_size = 4
shuffle = yes
[eval]
every = 3 steps
[optimizer]
plugin = {plugin}
lr = 0.01
mode = {mode}
{options}
[scheduler]
plugin = plateau
patience = 0
threshold = 0.5
cooldown = 1
[checkpoint]
every = 2
keep = 2
background = {background}
"""


MLP = """plugin = mlp
sizes = 12, 24, 4
[data]
file = vectors.safetensors"""
VIT = """plugin = vit
image_size = 4
patch_size = 2
num_layers = 1
num_heads = 2
hidden_dim = 8
mlp_dim = 8
num_classes = 4
dropout = 0.2
attention_dropout = 0.1
[data]
file = images.safetensors"""


def make_data(folder):
    draw = random.Random(7)
    labels = ("I64", [draw.randrange(4) for _ in range(50)])
    for name, shape in (("vectors", (12,)), ("images", (3, 4, 4))):
        def some(sizes):
            return [some(sizes[1:]) for _ in range(sizes[0])] if sizes else draw.uniform(-1, 1)
        write_safetensors(os.path.join(folder, name + ".safetensors"), {"x": ("F32", some((50,) + shape)), "y": labels})


def variants():
    """Every mode, saving in the foreground and in the background, with and without what makes an update special."""
    options = ("", "clip_grad_norm = 0.5", "accumulate = 3", "accumulate = 2\nclip_grad_norm = 0.5")
    for background in ("no", "yes"):
        for mode in ("fused", "per_param", "foreach"):
            for number, option in enumerate(options):
                yield {"mode": mode, "background": background, "options": option, "model": (VIT, MLP, MLP, VIT)[number],
                       "plugin": ("adamw", "sgd\nmomentum = 0.9", "adamw", "adam\namsgrad = yes")[number]}


class Failure(Exception):
    pass


class Torture:
    def __init__(self, folder, seed, with_faults):
        self.folder, self.with_faults, self.draw = folder, with_faults, random.Random(seed)
        self.references = {}
        self.has_told_of_pictures = False  # a run that failed did: it could not write them

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def command(self, variant, output):
        """The config, written anew."""
        with open(self.path("t.ini"), "w", encoding="utf-8") as file:
            file.write(CONFIG.format(steps=STEPS, **variant))
        return [FUSERUN, "t.ini", "run.output=" + output]

    def environment(self, output=None, **faults):
        environment = Case.environment(self)
        environment["ASAN_OPTIONS"] = "verify_asan_link_order=0:" + environment.get("ASAN_OPTIONS", "")
        if output is not None:
            environment.update(LD_PRELOAD=os.environ["IO_FAULTS"], FAULT_FOLDER=self.path(output), FAULT_CALLS="all")
            environment.update({"FAULT_" + name.upper(): str(value) for name, value in faults.items()})
        return environment

    def finish(self, variant, output, **faults):
        return subprocess.run(self.command(variant, output), cwd=self.folder, capture_output=True, text=True,
                              timeout=TIMEOUT_S, env=self.environment(output if faults else None, **faults), check=False)

    def result(self, output):
        """What must be equal: by name."""
        found = {"left over": [name for at, _, names in os.walk(self.path(output)) for name in names if ".tmp" in name]}
        with open(self.path(output, "model.safetensors"), "rb") as file:
            found["model"] = file.read()
        with open(self.path(output, "metrics.jsonl"), encoding="utf-8") as file:
            found["metrics"] = [{key: value for key, value in json.loads(line).items() if key not in OWN} for line in file]
        found["files"] = sorted(os.listdir(self.path(output)))
        found["checkpoints"] = sorted(os.listdir(self.path(output, "checkpoints")))
        found["last checkpoint"] = read_safetensors(self.path(output, "checkpoints", "latest"))
        return found

    def reference(self, variant):
        """(result, seconds, calls) of the run that nobody touches."""
        key = json.dumps(variant)
        if key not in self.references:
            begin = time.monotonic()
            done = self.finish(variant, "whole")
            seconds = time.monotonic() - begin
            if done.returncode != 0:
                raise Failure(done.stderr)
            result = self.result("whole")
            shutil.rmtree(self.path("whole"))
            log = self.path("calls.log")
            self.finish(variant, "whole", at=0, kind="kill", log=log)
            with open(log, encoding="utf-8") as file:
                calls = sum(1 for _ in file)
            os.remove(log)
            shutil.rmtree(self.path("whole"))
            self.references[key] = (result, seconds, calls)
        return self.references[key]

    def kill_after(self, variant, seconds):
        """A sentence on what was done; None: the run was faster."""
        after = self.draw.uniform(0, 1.1 * seconds)
        with subprocess.Popen(self.command(variant, "out"), cwd=self.folder, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, env=self.environment()) as process:
            try:
                process.wait(after)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
            return "killed after %.4f s" % after if process.wait() == -signal.SIGKILL else None

    def kill_at(self, variant, calls):
        at = self.draw.randrange(1, calls + 1)
        done = self.finish(variant, "out", at=at, kind="kill")
        return "killed at call %d" % at if done.returncode == -signal.SIGKILL else None

    def fail_at(self, variant, calls):
        at, always = self.draw.randrange(1, calls + 1), self.draw.randrange(2)
        kind = self.draw.choice((errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EINTR, "short"))
        if kind == errno.EINTR:
            always = 0
        done = self.finish(variant, "out", at=at, kind=kind, always=always)
        what = "%s at call %d%s" % (errno.errorcode.get(kind, kind), at, " and later" if always else "")
        said = [line for line in done.stderr.splitlines() if ": warning: " not in line]
        if done.returncode != 0 and (done.returncode != 1 or len(said) != 1 or "cannot" not in said[0]):
            raise Failure("%s: exit status %d: %s" % (what, done.returncode, done.stderr))
        if done.returncode != 0 and kind in (errno.EINTR, "short"):
            raise Failure("%s is no failure: %s" % (what, done.stderr))
        self.has_told_of_pictures |= done.returncode != 0 and "/memory." in said[0]
        return what if done.returncode != 0 else None

    def hurt(self, variant, seconds, calls):
        if self.with_faults:
            return self.fail_at(variant, calls)
        return self.kill_at(variant, calls) if self.draw.randrange(2) else self.kill_after(variant, seconds)

    def attempt(self, variant):
        """Hurts a run once, sometimes again while it goes on, and lets it come to its end. Returns how often."""
        expected, seconds, calls = self.reference(variant)
        shutil.rmtree(self.path("out"), ignore_errors=True)
        done, self.has_told_of_pictures = [], False
        while not done or self.draw.random() < 0.3:
            what = self.hurt(variant, seconds, calls)
            if what is not None:
                done.append(what)
            elif done:
                break  # it had come to its end
            else:
                shutil.rmtree(self.path("out"), ignore_errors=True)
        last = self.finish(variant, "out")
        if last.returncode != 0:
            raise Failure("%s: the next run: exit status %d: %s" % (done, last.returncode, last.stderr))
        found = self.result("out")
        if self.has_told_of_pictures:  # the weights went first, and nothing is left to run that could be drawn
            found["files"] = sorted(set(found["files"]) | {"memory.html", "memory.json"})
        wrong = [name for name in expected if found[name] != expected[name]]
        if wrong:
            raise Failure("%s: differs: %s; %s" % (done, wrong, [(found[name], expected[name]) for name in wrong if name in
                                                                 ("files", "checkpoints", "left over")]))
        return len(done)


def torture(count, seed, with_faults=False, report=print):
    """Runs until `count` were hurt; returns after how many the result was right."""
    every = list(variants())
    random.Random(seed).shuffle(every)
    with tempfile.TemporaryDirectory(prefix="fuserun-torture-") as folder:
        hurt, right, number = 0, 0, 0
        tormentor = Torture(folder, seed, with_faults)
        make_data(folder)
        while hurt < count:
            variant = every[number % len(every)]
            number += 1
            try:
                times = min(tormentor.attempt(variant), count - hurt)
                hurt, right = hurt + times, right + times
            except (Failure, OSError, ValueError, subprocess.TimeoutExpired) as failure:
                hurt += 1
                report("seed %d, run %d, %s: %s" % (seed, number, variant, str(failure)[:4000]))
        return right


def main():
    parser = argparse.ArgumentParser(prog="tools/torture")
    parser.add_argument("--count", type=int, default=200, help="how many times (200)")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1000000, help="of the random instants (the time)")
    parser.add_argument("--faults", action="store_true", help="failing calls instead of kills")
    arguments = parser.parse_args()
    print("seed %d" % arguments.seed, flush=True)
    right = torture(arguments.count, arguments.seed, arguments.faults)
    print("%d of %d" % (right, arguments.count))
    return 0 if right == arguments.count else 1


if __name__ == "__main__":
    sys.exit(main())
