"""Runs fuserun, PyTorch and the C helpers, each as a process of its own, and reads what they measured."""
import json
import os
import statistics
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


class Unavailable(Exception):
    """Cannot be measured on this machine or with this build; the text says why."""


class Machine:
    """Where things are, and what has been measured of the machine in this run."""

    def __init__(self, build, python, threads):
        self.build, self.python, self.threads = build, python, threads
        self.folder = tempfile.TemporaryDirectory(prefix="fuserun-bench.")
        self.known = {}
        self.torch_version = None

    def call(self, command, environment=None):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT,
                                  env=os.environ | {"OMP_NUM_THREADS": str(self.threads)} | (environment or {}))
        except OSError as reason:
            raise Unavailable("%s: %s" % (command[0], reason.strerror)) from reason
        if done.returncode != 0:
            reason = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise Unavailable("%s: %s" % (os.path.basename(command[0]), reason[-1] if reason else "failed"))
        return done.stdout

    # --- fuserun --------------------------------------------------------------------------------------------------

    def fuserun(self, config, *overrides, drop=1, threads=None):
        """Seconds of each update but the first `drop`, and by how much the process grew."""
        output = os.path.join(self.folder.name, "run")
        self.call([os.path.join(self.build, "fuserun"), config, "run.output=" + output, "run.overwrite=yes",
                   "run.progress=off", "memory.snapshot=no", "run.threads=%d" % (threads or self.threads), *overrides])
        with open(os.path.join(output, "metrics.jsonl"), encoding="utf-8") as file:
            seconds = [line["step_s"] for line in map(json.loads, file) if "step_s" in line]
        with open(os.path.join(output, "memory.json"), encoding="utf-8") as file:
            memory = json.load(file)
        return {"step_s": seconds[drop:], "grown_bytes": memory["rss_peak_bytes"] - memory["rss_base_bytes"],
                "planned_bytes": memory["peak_bytes"]}

    def parameters(self, config, *overrides):
        text = self.call([os.path.join(self.build, "fuserun"), "check", config, "--json", *overrides])
        return json.loads(text)["parameters"]

    def process_seconds(self, command, times=5):
        taken = []
        for _ in range(times):
            begin = time.perf_counter()
            self.call(command)
            taken.append(time.perf_counter() - begin)
        return taken

    # --- PyTorch --------------------------------------------------------------------------------------------------

    def torch_command(self, *words):
        if self.python is None:
            raise Unavailable("no PyTorch: --torch PYTHON, TORCH_PYTHON or --install-torch")
        return [self.python, os.path.join(HERE, "torch_peer.py"), *[str(word) for word in words]]

    def torch(self, *words, drop=1):
        text = self.call(self.torch_command(*words), {"THREADS": str(self.threads)})
        measured = json.loads(text.splitlines()[-1])
        self.torch_version = measured["version"]
        measured["step_s"] = measured.get("step_s", [])[drop:]
        return measured

    # --- the machine and single kernels ---------------------------------------------------------------------------

    def kernels(self, *words):
        """The helper's lines: name -> values of each such line."""
        found = {}
        helper = os.path.join(self.build, "tools", "bench.d", "bench_kernels")
        for line in self.call([helper, str(self.threads), *[str(word) for word in words]]).splitlines():
            name, *values = line.split()
            found.setdefault(name, []).append(values)
        return found

    def stream(self):
        """Bytes a second to and from memory, now: other tenants of a machine take their share of it."""
        rates = {name: float(values[0][0]) for name, values in self.kernels("stream").items()}
        self.known.setdefault("streams_bytes_per_s", []).append(rates)
        return max(rates.values())

    def products(self):
        """[(name, ours, the library's)] in FLOP/s, of every turn, for ViT-L/16 at batch 1, now."""
        rates = [(row[0], float(row[1]), float(row[2])) for row in self.kernels("products", 1)["product"]]
        self.known.setdefault("products_flop_per_s", []).append(rates)
        return rates

    def product_rate(self):
        return max(max(ours, library) for _, ours, library in self.products())


def median(values):
    return statistics.median(values)
