"""precision = bf16, end to end: gradients near PyTorch's in fp32, the same weights in every mode, training as good."""
import json
import math
import unittest

from golden import MODES, SOURCE, GoldenCase, read_safetensors

VITS = SOURCE / "tests" / "golden" / "vits"
DIGITS = SOURCE / "configs" / "digits.ini"
BF16 = "run.precision=bf16"
# One update of this rule moves each weight by its gradient.
GRADIENT = ("optimizer.plugin=sgd", "optimizer.lr=1", "optimizer.weight_decay=0", "run.epochs=", "run.steps=1",
            "run.overwrite=yes")
WAYS = (("memory.recompute=blocks",), ("optimizer.mode=per_param",), ("optimizer.mode=foreach",), ("run.threads=1",), ("run.threads=3",),
        ("optimizer.clip_grad_norm=1e9", "optimizer.clip_algorithm=deferred"),
        ("optimizer.clip_grad_norm=1e9", "optimizer.clip_algorithm=two_pass"), ("run.nonfinite=skip",))


class Precision(GoldenCase):
    def check_vit(self, name, ways=()):
        """Each rounding is off by at most 2^-8 of the number, up or down: over the nets' depth that gives some percent of
        a gradient's length. A summand that is left out, or taken twice, gives more."""
        config = VITS / f"{name}.ini"
        init = read_safetensors(VITS / f"{name}.init.safetensors")
        expected = read_safetensors(VITS / f"{name}.expected.safetensors")
        run = self.run_config(config, "gradient", BF16, *GRADIENT)
        end = read_safetensors(run / "model.safetensors")
        for parameter, start in init.items():
            gradient = expected[f"gradient.{parameter}"]
            off = math.dist([a - b for a, b in zip(start, end[parameter])], gradient)
            self.assertLessEqual(off, 0.05 * math.hypot(*gradient), f"{name}: {parameter}")
            self.assertGreater(off, 0, f"{name}: {parameter} was not computed in bf16")
        for way in ways:
            again = self.run_config(config, "again", BF16, *GRADIENT, *way)
            self.assertEqual((again / "model.safetensors").read_bytes(), (run / "model.safetensors").read_bytes(),
                             f"{name}: {way}")

    def test_vits(self):
        for name in ("adam_sum_batch_1", "adamw_ragged", "sgd_representation"):
            self.check_vit(name)
        self.check_vit("sgd_deep", WAYS)

    def test_a_small_vit_trains_as_in_fp32(self):
        """Its losses are off by the rounding of weights and activations, not by more and more."""
        config = VITS / "adamw_ragged.ini"
        curves = []
        for precision in ("fp32", "bf16"):
            self.run_modes(config, f"run.precision={precision}", "model.num_layers=4", "model.weights=", "run.epochs=30",
                           "run.overwrite=yes")
            curves.append([line["loss"] for line in self.updates("adamw_ragged-fused")])
        self.assertLess(curves[0][-1], 0.75 * curves[0][0])
        for exact, rounded in zip(*curves):
            self.assertLessEqual(abs(exact - rounded), 0.02 * curves[0][0])

    def test_digits(self):
        runs = {precision: self.run_modes(DIGITS, f"run.precision={precision}")["fused"] for precision in ("fp32", "bf16")}
        lines = {precision: self.evaluations(run.name) for precision, run in runs.items()}
        self.assertGreaterEqual(lines["bf16"][-1]["eval_accuracy"], 0.985)
        for exact, rounded in zip(lines["fp32"], lines["bf16"]):
            self.assertAlmostEqual(exact["eval_loss"], rounded["eval_loss"], delta=0.015)

    def test_accumulated_clipped_and_skipped_alike_in_every_mode(self):
        self.make_classes()
        for options in ("accumulate = 3", "accumulate = 3\nclip_grad_norm = 0.1", "clip_grad_value = 0.01",
                        "clip_grad_norm_per_parameter = 0.05"):
            files = set()
            for mode in MODES:
                self.classes_config(options=f"lr = 0.01\nmode = {mode}\n{options}",
                                    run="overwrite = yes\nprecision = bf16\nnonfinite = skip")
                self.fuserun("t.ini")
                files.add(self.read("runs/t/model.safetensors") if "clip" not in options else
                          str([[round(value, 4) for value in values] for values in self.weights().values()]))
                self.assertLess(self.updates()[-1]["loss"], self.updates()[0]["loss"])
            self.assertEqual(len(files), 1, options)

    def test_activations_take_half_the_memory(self):
        """What check foretells is what the run has; weights, states and gradients stay as they are."""
        sizes = ("model.plugin=mlp", "model.sizes=64, 512, 512, 512, 10", "data.batch_size=256", "optimizer.mode=foreach",
                 "run.epochs=", "run.steps=2")
        plans = {}
        for precision in ("fp32", "bf16"):
            overrides = (f"run.precision={precision}", *sizes)
            plans[precision] = json.loads(self.fuserun("check", str(DIGITS), "--json", *overrides).stdout)
            self.run_config(DIGITS, precision, *overrides)
            self.assertEqual(self.updates(precision)[-1]["peak_bytes"], plans[precision]["peak_bytes"])
        exact, rounded = plans["fp32"]["memory"], plans["bf16"]["memory"]
        logits = 2 * 256 * 10 * 4 # the model's output and its gradient stay float32
        self.assertLessEqual(abs(2 * rounded["activation"] - exact["activation"]), 2 * logits)
        for category in ("parameter", "optimizer_state", "gradient"):
            self.assertEqual(exact[category], rounded[category], category)
        self.assertLess(plans["bf16"]["peak_bytes"], plans["fp32"]["peak_bytes"])

    def test_the_weights_written_are_float32(self):
        self.make_classes()
        self.classes_config(run="precision = bf16")
        self.fuserun("t.ini")
        shown = json.loads(self.fuserun("inspect", "runs/t/model.safetensors", "--json").stdout)
        self.assertEqual({tensor["dtype"] for tensor in shown}, {"F32"})
        plan = self.fuserun("check", "t.ini").stdout
        self.assertIn("precision   bf16: ", plan)
        self.assertIn("precision = bf16", plan)


if __name__ == "__main__":
    unittest.main()
