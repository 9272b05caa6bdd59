"""tools/gpu-check on the emulated device, with small sizes: every part runs, one that fails does not stop the rest, and what
is printed is what the JSON holds. And without a device it says so."""
import json
import os
import subprocess
import sys
import unittest

from device_case import DeviceCase
from support import is_sanitized

GPU_CHECK = os.path.join(os.environ["FUSERUN_SOURCE"], "tools", "gpu-check")


def gpu_check(*arguments, environment=None):
    return subprocess.run([sys.executable, GPU_CHECK, "--build", os.environ["FUSERUN_BUILD"], *arguments],
                          capture_output=True, text=True, check=False, timeout=600, env=environment)


class Usage(unittest.TestCase):
    def test_names_its_parts(self):
        done = gpu_check("--list")
        self.assertEqual([line.split()[0] for line in done.stdout.splitlines()],
                         ["about", "ops", "modes", "bf16", "optimizers", "digits", "vit_l16", "precision", "bandwidth", "torch"])
        done = gpu_check("vit_l17")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no part vit_l17", done.stderr)

    def test_without_a_device(self):
        environment = dict(os.environ, FUSERUN_CUDA_EMULATION="/nowhere/libcuda.so")
        done = gpu_check(environment=environment)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, r"^tools/gpu-check: no CUDA driver: .*\n$")


@unittest.skipIf(is_sanitized(), "Python cannot load a library of the address sanitizer's")
class OnTheEmulation(DeviceCase):
    def check(self, *parts, **settings):
        environment = self.device_environment(**settings)
        del environment["FUSERUN_EMULATION_REPORT"]
        done = gpu_check("--reduced", "--json", self.path("out.json"), "--python", "/nowhere/python", *parts,
                         environment=environment)
        with open(self.path("out.json"), encoding="utf-8") as file:
            return done, json.load(file)["parts"]

    def test_every_part(self):
        done, parts = self.check()
        verdicts = {name: part["verdict"] for name, part in parts.items()}
        self.assertEqual(verdicts.pop("torch"), "skipped")
        self.assertEqual(set(verdicts.values()), {"passed"}, done.stdout)
        self.assertEqual(done.returncode, 0)
        for part in parts.values():
            for row in part.get("rows", []):
                self.assertIn(row, done.stdout)
        self.assertGreaterEqual(parts["digits"]["accuracy"], 0.9)
        self.assertEqual(parts["about"]["device"], "Emulated device")
        memory = {name: parts["vit_l16"][name]["planned_bytes"] for name in ("foreach", "fused")}
        self.assertGreater(memory["foreach"], memory["fused"])
        self.assertGreater(parts["precision"]["bf16, batch 1"]["step_s"], 0)

    def test_a_device_without_bf16(self):
        done, parts = self.check("bf16", "precision", capability=75)
        self.assertEqual((done.returncode, parts["bf16"]["verdict"], parts["precision"]["verdict"]), (0, "skipped", "passed"))
        self.assertIn("compute capability 7.5, bf16 begins with 8.0", parts["bf16"]["reason"])

    def test_a_part_that_fails_stops_nothing(self):
        done, parts = self.check("digits", "about", memory=1 << 20)
        self.assertEqual({name: part["verdict"] for name, part in parts.items()}, {"about": "passed", "digits": "failed"})
        self.assertIn("memory", parts["digits"]["reason"])
        self.assertEqual(done.returncode, 1)


if __name__ == "__main__":
    unittest.main()
