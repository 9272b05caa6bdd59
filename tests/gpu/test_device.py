"""device = cuda on the emulated device: the three modes give the same bits, whatever the order in which the device works,
and the CPU's weights within a tolerance: every optimizer, every scheduler, clipping, accumulation, the digits, the four
configs of the tutorial."""
import os
import unittest

from device_case import MODES, SMALL_VIT, DeviceCase, config_of  # finds the next ones
from support import write_safetensors
from test_run import SCHEDULES
from test_schedulers import OWN

ORDERS = ("late", "eager", 1)

# Whole nets after a few updates: products and reductions are summed in another order than on the CPU.
MLP_TOLERANCE, VIT_TOLERANCE = 2e-4, 1e-3


class Modes(DeviceCase):
    def train(self, config, *overrides, **settings):
        self.cuda(config, *overrides, **settings)
        return self.model()

    def check(self, config, *overrides, tolerance=MLP_TOLERANCE):
        """All modes on the device, against each other and against the CPU."""
        files = {self.train(config, "optimizer.mode=" + mode, *overrides) for mode in MODES}
        self.assertEqual(len(files), 1, "the modes differ")
        got = self.weights()
        self.fuserun(config, "run.device=cpu", *overrides)
        self.assert_close(got, self.weights(), tolerance)
        return got

    def test_modes_and_orders(self):
        config = self.net()
        files = {self.train(config, "optimizer.mode=" + mode, order=order) for mode in MODES for order in ORDERS}
        self.assertEqual(len(files), 1)

    def test_every_optimizer(self):
        folder = os.path.join(os.environ["FUSERUN_BUILD"], "plugins", "optimizers")
        names = sorted(name[:-3] for name in os.listdir(folder) if name.endswith(".so"))
        self.assertEqual(len(names), 14)
        for name in names:
            with self.subTest(optimizer=name):
                if name == "muon":  # for matrices alone
                    self.check(self.net("sgd", "[group matrices]\nmatch = *weight\nplugin = muon"))
                    continue
                # A step by the gradient's sign goes the other way where the gradient is but rounding.
                self.check(self.net(name), tolerance=0.05 if name in ("lion", "rprop") else 5 * MLP_TOLERANCE)

    def test_auto_takes_the_cpu_for_what_the_device_cannot(self):
        config = self.net()
        why = r"CUDA device 0 has compute capability 7\.5, bf16 begins with 8\.0; allowed: fp32"
        done, report = self.run_on_device(config, "run.device=auto", "run.precision=bf16", capability=75)
        self.assertEqual((done.returncode, report["launches"], report["leaks"]), (0, 0, {}), done.stderr)
        self.assertNotIn("cuDevicePrimaryCtxRetain", report["entries"])  # no device was opened
        self.assertRegex(done.stderr, r"^[^\n]+: warning: run\.device: auto takes the CPU instead of the CUDA "
                                      r"device: %s\n$" % why)
        got = self.model()
        self.fuserun(config, "run.device=cpu", "run.precision=bf16")
        self.assertEqual(got, self.model())
        done, _ = self.run_on_device(config, "run.device=cuda", "run.precision=bf16", capability=75)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"^[^\n]+: run\.precision: %s\n$" % why)
        # What is wrong on any device is told as such.
        done, _ = self.run_on_device(self.net("adamw", "[group none]\nmatch = absent.*"), "run.device=auto")
        self.assertEqual(done.returncode, 2)
        self.assertNotIn("auto takes the CPU", done.stderr)

    def test_every_scheduler(self):
        for name, schedule in {**SCHEDULES, **OWN}.items():
            with self.subTest(schedule=name):
                config = self.probe_config(10, options="lr = 0.1", rest="[scheduler]\n" + schedule)
                lines, weights = [], []
                for run in (self.cuda, self.fuserun):
                    run(config, "run.name=t", "run.overwrite=yes")
                    lines.append([line["lr"] for line in self.updates()])
                    weights.append(self.model())
                self.assertEqual(lines[0], lines[1])
                self.assertEqual(weights[0], weights[1])  # of exact products of 0 and 1

    def test_clipping_and_accumulation(self):
        for rest in ("clip_grad_norm = 0.5", "clip_grad_norm = 0.5\nclip_algorithm = two_pass",
                     "clip_grad_norm = 0.5\nclip_algorithm = keep", "clip_grad_value = 0.01",
                     "clip_grad_norm_per_parameter = 0.1", "accumulate = 2"):
            with self.subTest(rest):
                config = self.net(rest=rest)
                results = []
                for mode in MODES:
                    self.cuda(config, "optimizer.mode=" + mode)
                    results.append(self.weights())
                self.fuserun(config)
                for got in results:
                    self.assert_close(got, self.weights(), MLP_TOLERANCE)

    def test_other_losses_and_activations(self):
        for overrides in (["model.activation=relu", "loss.kind=sum"], ["model.activation=tanh"],
                          ["loss.label_smoothing=0.1"]):
            with self.subTest(overrides):
                self.check(self.net(), *overrides)

    def test_a_bad_gradient_is_named_as_on_the_cpu(self):
        config = self.net("sgd", "lr = 1e30", steps=9)
        expected = self.fuserun(config, status=1).stderr
        for mode in MODES:
            done, report = self.run_on_device(config, "run.device=cuda", "optimizer.mode=" + mode)
            self.assertEqual((done.returncode, done.stderr), (1, expected), mode)
            self.assertEqual((report["complaints"], report["leaks"]), (0, {}))
            self.assertFalse(os.path.exists(self.path("runs/t/model.safetensors")))

    def test_skipped_updates_leave_no_trace(self):
        config = self.net("adam", "lr = 0.01\n[eval]\n", steps=5)
        self.cuda(config, "run.nonfinite=skip")
        skipping = self.model()
        self.cuda(config)
        self.assertEqual(skipping, self.model())

    def test_evaluation(self):
        config = self.net(rest="[eval]\nevery = 1 step")
        self.cuda(config)
        got = self.evaluations()
        self.fuserun(config)
        for ours, theirs in zip(got, self.evaluations(), strict=True):
            self.assertEqual(ours["eval_accuracy"], theirs["eval_accuracy"])
            self.assertAlmostEqual(ours["eval_loss"], theirs["eval_loss"], delta=1e-4)

    def test_digits(self):
        self.cuda(config_of("digits.ini"), "run.output=runs/t", "run.epochs=10")
        self.assertGreaterEqual(self.evaluations()[-1]["eval_accuracy"], 0.97)

    def test_the_tutorials_configs(self):
        files = set()
        for name in ("foreach", "per_param", "fused", "fused_recompute"):
            config = config_of("vit_l16_%s.ini" % name)
            overrides = ["run.output=runs/t", "run.overwrite=yes", *SMALL_VIT]
            files.add(self.train(config, *overrides))
            got = self.weights()
            self.assertEqual(self.plan(config, "cuda", *overrides)["peak_bytes"], self.updates()[-1]["peak_bytes"])
            self.fuserun(config, "run.device=cpu", *overrides)
            self.assert_close(got, self.weights(), VIT_TOLERANCE)
        self.assertEqual(len(files), 1)

    def test_the_plans_are_the_cpus(self):
        """Large enough for its weights to matter. On top come the device's workspace and the batch's staging."""
        for name in ("foreach", "per_param", "fused", "fused_recompute"):
            config = config_of("vit_l16_%s.ini" % name)
            device, cpu = (self.plan(config, device, *self.PLANNED_VIT) for device in ("cuda", "cpu"))
            self.assertEqual(device["peak_phase"], cpu["peak_phase"])
            self.assert_same_plan(device, cpu, name)
            self.assertEqual(device["memory"]["data"], cpu["memory"]["data"] + 4 * 3 * 32 * 32, name)
            self.assertGreater(device["memory"]["workspace"], cpu["memory"]["workspace"])

    def test_row_30_decay_and_eps_as_on_the_cpu(self):
        """One update of one weight, by hand: g = 1, w = 0.5, lr .1, decay .5, eps .1."""
        for optimizer, expected in (
                ("adam", 0.5 - 0.1 * 1.25 / (1.25 + 0.1)),      # the decay is in the gradient: 1 + .5 * .5
                ("adamw", 0.5 * (1 - 0.1 * 0.5) - 0.1 / 1.1)):  # eps is not scaled by the bias correction
            for mode in MODES:
                self.probe_config(1, mode=mode, options="lr = 0.1\nweight_decay = 0.5\neps = 0.1")
                write_safetensors(self.path("zeros.safetensors"), {"layers.0.weight": ("F32", [[0.5]]),
                                                                   "layers.0.bias": ("F32", [0.5])})
                results = []
                for run in (self.cuda, self.fuserun):
                    run("probe.ini", "run.overwrite=yes", "optimizer.plugin=" + optimizer)
                    results.append(self.weights())
                self.assertEqual(results[0], results[1])
                self.assertAlmostEqual(results[0]["layers.0.weight"][0], expected, delta=1e-7)


class Launches(DeviceCase):
    def launched(self, mode):
        """Launches of an update: all, and of kernels that update."""
        totals, updates = [], []
        for steps in (1, 2):
            report = self.cuda(self.path("t.ini"), "optimizer.mode=" + mode, "run.steps=%d" % steps)
            totals.append(report["launches"])
            updates.append(sum(count for name, count in report["kernels"].items() if name.startswith("update")))
        return totals[1] - totals[0], updates[1] - updates[0]

    def test_row_42_small_tensors_are_bundled(self):
        """1000 tensors of 64 and 8: one launch updates many of them, and the fused step has at most twice the launches."""
        sizes = ", ".join(["8"] * 501)
        self.write("t.ini", "[run]\nname = t\noverwrite = yes\nsteps = 1\n[model]\nplugin = mlp\nsizes = %s\n"
                   "[data]\nplugin = random_images\nimage_size = 2\nchannels = 2\nclasses = 8\nlength = 2\nbatch_size = 2\n"
                   "[loss]\nkind = sum\n[optimizer]\nplugin = adam\n" % sizes)
        (foreach, bundled), (fused, single) = self.launched("foreach"), self.launched("fused")
        self.assertGreater(bundled, 0)
        self.assertLessEqual(bundled, 20)
        self.assertGreaterEqual(single, bundled)
        self.assertLessEqual(fused, 2 * foreach)


if __name__ == "__main__":
    unittest.main()
