"""What the tests of `device = cuda` on the emulated device share (emulation/emulation.h says what it can be told)."""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["FUSERUN_SOURCE"], "tests", "e2e"))

from support import FUSERUN, TIMEOUT_S, Case  # noqa: E402

MODES = ("fused", "per_param", "foreach")
EMULATION = os.environ["FUSERUN_TEST_EMULATION"]
KERNELS = os.environ["FUSERUN_EMULATION_CACHE"]

# All operations of the large vision transformer, in a tenth of a second.
SMALL_VIT = ["model.preset=", "model.image_size=16", "model.patch_size=8", "model.num_layers=2", "model.num_heads=2",
             "model.hidden_dim=16", "model.mlp_dim=32", "model.num_classes=10", "data.image_size=16", "data.classes=10"]


def config_of(*names):
    return os.path.join(os.environ["FUSERUN_SOURCE"], "configs", *names)


class DeviceCase(Case):
    NET = ("[run]\nname = t\noverwrite = yes\nsteps = %d\nseed = 3\n[model]\nplugin = mlp\nsizes = 48, 70, 33, 10\n"
           "activation = gelu\n[data]\nplugin = random_images\nimage_size = 4\nchannels = 3\nclasses = 10\nlength = 20\n"
           "batch_size = 8\n[loss]\nkind = cross_entropy\n[optimizer]\nplugin = %s\n%s\n")

    # A vision transformer whose weights matter to its plan.
    PLANNED_VIT = ["model.preset=", "model.image_size=32", "model.patch_size=8", "model.num_layers=3",
                   "model.num_heads=2", "model.hidden_dim=128", "model.mlp_dim=512", "model.num_classes=10",
                   "data.image_size=32", "data.classes=10"]

    PLANNED_VIT_LARGEST = 4 * 128 * 512  # bytes of its largest weights

    def assert_same_plan(self, device, cpu, name):
        """But for the panels of a weight's gradient in backward, whose size is each backend's own."""
        for category in ("parameter", "optimizer_state", "activation"):
            self.assertEqual(device["memory"][category], cpu["memory"][category], (name, category))
        if name.startswith("fused"):
            self.assertGreaterEqual(device["memory"]["gradient"], cpu["memory"]["gradient"], name)
            self.assertLessEqual(device["memory"]["gradient"], self.PLANNED_VIT_LARGEST, name)
        else:
            self.assertEqual(device["memory"]["gradient"], cpu["memory"]["gradient"], name)

    def setUp(self):
        super().setUp()
        done, _ = self.run_on_device("check", self.net(), "run.device=cuda")
        if "is not supported by this build" in done.stderr:
            self.skipTest("this build has no device = cuda")

    def net(self, optimizer="adamw", rest="", steps=4):
        """The third update of an epoch has a shorter batch."""
        return self.write("t.ini", self.NET % (steps, optimizer, rest))

    def device_environment(self, **settings):
        """settings: fail="cuInit:1:999" becomes FUSERUN_EMULATION_FAIL, and so on."""
        environment = self.environment() | {"FUSERUN_CUDA_EMULATION": EMULATION, "FUSERUN_EMULATION_CACHE": KERNELS,
                                            "XDG_CACHE_HOME": self.path("cache"),
                                            "FUSERUN_EMULATION_REPORT": self.path("report.json")}
        return environment | {"FUSERUN_EMULATION_" + name.upper(): str(value) for name, value in settings.items()}

    def run_on_device(self, *arguments, folder=None, **settings):
        """The finished process, and the emulation's report."""
        report = os.path.join(folder or self.folder, "report.json")
        if os.path.exists(report):
            os.remove(report)
        environment = self.device_environment(**settings) | {"FUSERUN_EMULATION_REPORT": report}
        done = subprocess.run([FUSERUN, *arguments], cwd=folder or self.folder, capture_output=True, text=True,
                              timeout=TIMEOUT_S, env=environment, check=False)
        if not os.path.exists(report):
            return done, None
        with open(report, encoding="utf-8") as file:
            return done, json.load(file)

    def cuda(self, *arguments, **settings):
        """A run on the device that goes well: nothing is complained of, nothing leaks. The report."""
        done, report = self.run_on_device(*arguments, "run.device=cuda", **settings)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        self.assertIsNotNone(report, "the emulated device was not used")
        self.assertEqual((report["complaints"], report["leaks"]), (0, {}), done.stderr[-3000:])
        self.assertGreater(report["launches"], 0)
        return report

    def plan(self, config, device, *overrides):
        arguments = ["check", "--json", config, "run.device=" + device, "run.threads=1", *overrides]
        done, _ = self.run_on_device(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def model(self, output="runs/t"):
        return self.read(output, "model.safetensors")

    def assert_close(self, got, expected, tolerance):
        """Each tensor within tolerance of its largest element; an attention's key bias apart, whose gradient is zero but
        for rounding."""
        self.assertEqual(set(got), set(expected))
        for name, values in expected.items():
            third = len(values) // 3
            bound = tolerance * max(abs(value) for value in values)
            for i, value in enumerate(values):
                if not (name.endswith("in_proj_bias") and third <= i < 2 * third):
                    self.assertLessEqual(abs(got[name][i] - value), bound, (name, i, got[name][i], value))
