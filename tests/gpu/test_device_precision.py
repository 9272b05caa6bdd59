"""precision = bf16 with device = cuda on the emulated device: gradients near PyTorch's in fp32 and nearer the CPU's in
bf16, the same weights in every mode and order, the CPU's plans, training as good."""
import math
import os
import unittest

from device_case import MODES, SMALL_VIT, DeviceCase, config_of  # finds the next one
from support import read_safetensors, write_safetensors

BF16 = "run.precision=bf16"
VITS = os.path.join(os.environ["FUSERUN_SOURCE"], "tests", "golden", "vits")
# One update of this rule moves each weight by its gradient.
GRADIENT = ("optimizer.plugin=sgd", "optimizer.lr=1", "optimizer.weight_decay=0", "run.epochs=", "run.steps=1",
            "run.output=runs/t", "run.overwrite=yes")
WAYS = (("memory.recompute=blocks",), ("optimizer.mode=per_param",), ("optimizer.mode=foreach",),
        ("optimizer.clip_grad_norm=1e9", "optimizer.clip_algorithm=deferred"),
        ("optimizer.clip_grad_norm=1e9", "optimizer.clip_algorithm=two_pass"), ("run.nonfinite=skip",))
# A few updates of Adam, each of at most lr = 1e-3 whatever the gradient's size; of weights around 0.1.
WEIGHTS_TOLERANCE = 1e-2


class Bfloat16(DeviceCase):
    def gradient(self, run, config, *overrides):
        run(config, BF16, *GRADIENT, *overrides)
        return self.weights()

    def check_vit(self, name, ways=()):
        """Rounding is off by at most 2^-8 of each number: some percent of a gradient's length over the nets' depth from
        what it is in fp32. The CPU rounds the same numbers, which are one of 2^-8 apart where their sums were on two
        sides of a middle."""
        config = os.path.join(VITS, name + ".ini")
        start = read_safetensors(os.path.join(VITS, name + ".init.safetensors"))
        exact = read_safetensors(os.path.join(VITS, name + ".expected.safetensors"))
        got = self.gradient(self.cuda, config)
        file = self.model()
        expected = self.gradient(self.fuserun, config, "run.device=cpu")
        for parameter, values in start.items():
            gradient = exact["gradient." + parameter]
            length = math.hypot(*gradient)
            off = math.dist([a - b for a, b in zip(values, got[parameter])], gradient)
            self.assertLessEqual(off, 0.05 * length, f"{name}: {parameter}")
            self.assertGreater(off, 0, f"{name}: {parameter} was not computed in bf16")
            self.assertLessEqual(math.dist(got[parameter], expected[parameter]), 0.02 * length, f"{name}: {parameter}")
        for way in ways:
            self.cuda(config, BF16, *GRADIENT, *way)
            self.assertEqual(self.model(), file, f"{name}: {way}")

    def test_vits(self):
        """Their heads are 12, 5 and others wide: matrices that no tensor core takes as they lie."""
        for name in ("adam_sum_batch_1", "adamw_ragged", "sgd_representation"):
            self.check_vit(name)
        self.check_vit("sgd_deep", WAYS)

    def test_modes_and_orders(self):
        for rest in ("", "accumulate = 2", "[eval]\nevery = 1 step"):
            config = self.net(rest=rest)
            files = set()
            for mode in MODES:
                for order in ("late", "eager", 1):
                    self.cuda(config, BF16, "optimizer.mode=" + mode, order=order)
                    files.add(self.model())
            self.assertEqual(len(files), 1, rest)
            got = self.weights()
            self.fuserun(config, BF16)
            self.assert_close(got, self.weights(), WEIGHTS_TOLERANCE)

    def test_clipping(self):
        for rest in ("clip_grad_norm = 0.5", "clip_grad_norm = 0.5\nclip_algorithm = two_pass",
                     "clip_grad_norm = 0.5\nclip_algorithm = keep\naccumulate = 2", "clip_grad_value = 0.01",
                     "clip_grad_norm_per_parameter = 0.1"):
            config = self.net(rest=rest)
            results = []
            for mode in MODES:
                self.cuda(config, BF16, "optimizer.mode=" + mode)
                results.append(self.weights())
            self.fuserun(config, BF16)
            for got in results:
                with self.subTest(rest):
                    self.assert_close(got, self.weights(), WEIGHTS_TOLERANCE)

    def test_the_norm_of_gradients_that_cancel_is_that_of_what_is_applied(self):
        """Two samples whose gradients cancel to what rounding their inputs leaves: in every mode the same norm."""
        for rounds, close in ((BF16, (1.00385, 1.00396)), ("run.tf32=yes", (1.0004, 1.0006))):
            write_safetensors(self.path("cancel.safetensors"), {
                "x": ("F32", [[close[0]] * 4, [close[1]] * 4]), "y": ("F32", [[1e6] * 4, [-1e6] * 4])})
            config = self.write("t.ini", "[run]\nname = t\noverwrite = yes\nsteps = 1\n[model]\nplugin = mlp\n"
                                "sizes = 4, 4\nfreeze = *bias\n[data]\nplugin = tensors\nfile = cancel.safetensors\n"
                                "shuffle = no\nbatch_size = 2\n[loss]\nkind = mse\n[optimizer]\nplugin = sgd\nlr = 0.1\n"
                                "clip_grad_norm = 1\n")
            norms = []
            for mode, algorithm in (("foreach", "auto"), ("fused", "keep"), ("fused", "deferred"), ("fused", "two_pass")):
                self.cuda(config, rounds, "optimizer.mode=" + mode, "optimizer.clip_algorithm=" + algorithm)
                norms.append(self.updates()[-1]["grad_norm"])
            for norm in norms[1:]:
                self.assertAlmostEqual(norm / norms[0], 1, delta=1e-5, msg=(rounds, norms))

    def test_the_tutorials_configs(self):
        files = set()
        for name in ("foreach", "per_param", "fused", "fused_recompute"):
            config = config_of("vit_l16_%s.ini" % name)
            overrides = ["run.output=runs/t", "run.overwrite=yes", BF16, *SMALL_VIT]
            self.cuda(config, *overrides)
            files.add(self.model())
            got = self.weights()
            self.assertEqual(self.plan(config, "cuda", *overrides)["peak_bytes"], self.updates()[-1]["peak_bytes"])
            self.fuserun(config, "run.device=cpu", *overrides)
            self.assert_close(got, self.weights(), WEIGHTS_TOLERANCE)
        self.assertEqual(len(files), 1)

    def test_the_plans_are_the_cpus(self):
        for name in ("foreach", "per_param", "fused", "fused_recompute"):
            config = config_of("vit_l16_%s.ini" % name)
            device, cpu = (self.plan(config, device, BF16, *self.PLANNED_VIT) for device in ("cuda", "cpu"))
            self.assert_same_plan(device, cpu, name)
            exact = self.plan(config, "cuda", *self.PLANNED_VIT)
            self.assertLess(device["peak_bytes"], exact["peak_bytes"], name)

    def test_digits(self):
        """Learned as on the CPU in bf16: all but a sample or two of the evaluation's."""
        config = config_of("digits.ini")
        self.cuda(config, BF16, "run.output=runs/t", "run.epochs=3")
        got = self.evaluations()
        self.fuserun(config, BF16, "run.device=cpu", "run.output=runs/t", "run.overwrite=yes", "run.epochs=3")
        for ours, theirs in zip(got, self.evaluations(), strict=True):
            self.assertAlmostEqual(ours["eval_accuracy"], theirs["eval_accuracy"], delta=0.006)
            self.assertAlmostEqual(ours["eval_loss"], theirs["eval_loss"], delta=5e-3)


if __name__ == "__main__":
    unittest.main()
