"""Clipping, the logged norm and skipped updates, end to end, in every mode."""
import math
import struct
import unittest

from support import Case, read_safetensors, write_safetensors

MODES = ("fused", "per_param", "foreach")
ALGORITHMS = ("auto", "deferred", "two_pass", "keep")


class Clipping(Case):
    def linear(self, options="", batch_size=2, run="", data="", steps=1):
        """y = W x with loss = sum of all outputs: dW = the sum over samples of x, in every row; db = the sample count."""
        self.write("t.ini", f"""[run]
name = t
steps = {steps}
overwrite = yes
{run}
[model]
plugin = mlp
sizes = 3, 2
weights = w.safetensors
[data]
plugin = tensors
file = data.safetensors
batch_size = {batch_size}
shuffle = no
{data}
[loss]
kind = sum
[optimizer]
plugin = sgd
lr = 1
{options}
""")
        write_safetensors(self.path("w.safetensors"), {
            "layers.0.weight": ("F32", [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), "layers.0.bias": ("F32", [0.0, 0.0])})

    def give(self, rows):
        write_safetensors(self.path("data.safetensors"), {"x": ("F32", rows), "y": ("I64", [0] * len(rows))})

    def norm_of_weights(self):
        values = [value for tensor in self.weights().values() for value in tensor]
        return math.sqrt(sum(value * value for value in values))

    def test_row_1_the_global_norm_is_clipped_in_every_mode_and_way(self):
        # dW rows = (3, 4, 0) each, db = (2, 2): norm = sqrt(2 * 25 + 2 * 4)
        self.give([[1.0, 4.0, 0.0], [2.0, 0.0, 0.0]])
        norm = math.sqrt(58)
        for mode in MODES:
            for algorithm in ALGORITHMS:
                with self.subTest(mode=mode, algorithm=algorithm):
                    self.linear(f"mode = {mode}\nclip_grad_norm = 1\nclip_algorithm = {algorithm}")
                    self.fuserun("t.ini")
                    self.assertAlmostEqual(self.norm_of_weights(), 1.0, delta=1e-6)
                    self.assertAlmostEqual(self.updates()[0]["grad_norm"], norm, delta=1e-5 * norm)

    def test_a_norm_below_the_limit_changes_nothing(self):
        self.give([[1.0, 4.0, 0.0], [2.0, 0.0, 0.0]])
        self.linear()
        self.fuserun("t.ini")
        plain = self.read("runs/t/model.safetensors")
        for mode in MODES:
            for algorithm in ALGORITHMS:
                self.linear(f"mode = {mode}\nclip_grad_norm = 100\nclip_algorithm = {algorithm}")
                self.fuserun("t.ini")
                self.assertEqual(self.read("runs/t/model.safetensors"), plain, (mode, algorithm))

    def test_row_32_limits_that_cannot_be_are_refused(self):
        self.give([[1.0, 0.0, 0.0]] * 2)
        for key in ("clip_grad_norm", "clip_grad_value", "clip_grad_norm_per_parameter"):
            for value in ("0", "-1", "nan", "1x"):
                self.linear(f"{key} = {value}")
                self.assertIn(f"optimizer.{key}:", self.fuserun("t.ini", status=2).stderr)
        self.linear("clip_grad_norm = 1\nclip_grad_value = 1")
        self.assertIn("t.ini:22: optimizer.clip_grad_value: 'clip_grad_norm' is set too",
                      self.fuserun("t.ini", status=2).stderr)

    def test_clip_by_value_and_by_parameter(self):
        self.give([[1.0, 4.0, 0.0], [2.0, 0.0, 0.0]])
        for mode in MODES:
            self.linear(f"mode = {mode}\nclip_grad_value = 2.5")
            self.fuserun("t.ini")
            self.assertEqual(self.weights()["layers.0.weight"], [-2.5, -2.5, 0.0] * 2, mode)
            self.assertEqual(self.weights()["layers.0.bias"], [-2.0, -2.0], mode)
            self.linear(f"mode = {mode}\nclip_grad_norm_per_parameter = 1")
            self.fuserun("t.ini")
            for name, value in self.weights().items():
                self.assertAlmostEqual(math.sqrt(sum(x * x for x in value)), 1.0, delta=1e-6, msg=(mode, name))

    def test_row_44_the_norm_is_logged_without_clipping(self):
        self.make_classes()
        config = """[run]
name = t
steps = 6
overwrite = yes
[model]
plugin = mlp
sizes = 12, 24, 4
[data]
plugin = tensors
file = data.safetensors
batch_size = 16
[optimizer]
plugin = adamw
log_grad_norm = yes
mode = %s
"""
        logged = {}
        for mode in MODES:
            self.write("t.ini", config % mode)
            self.fuserun("t.ini")
            logged[mode] = [line["grad_norm"] for line in self.updates()]
            self.assertTrue(all(value > 0 for value in logged[mode]))
        for mode in MODES:
            for ours, theirs in zip(logged[mode], logged["foreach"]):
                self.assertAlmostEqual(ours, theirs, delta=1e-9 * theirs)

    def test_a_frozen_parameter_takes_no_part_in_the_norm(self):
        self.give([[1.0, 4.0, 0.0], [2.0, 0.0, 0.0]])
        for mode in MODES:
            self.linear(f"mode = {mode}\nclip_grad_norm = 1")
            self.fuserun("t.ini", "model.freeze=*weight")
            self.assertAlmostEqual(self.updates()[0]["grad_norm"], math.sqrt(8), delta=1e-6)

    # ---- nonfinite = skip ----------------------------------------------------------------------------------------

    def test_row_32_33_a_bad_update_leaves_everything_as_it_was(self):
        """The second of three batches holds a NaN: the update is skipped, the clock stays, the weights equal a run that
        never saw the batch."""
        good = [[1.0, 0.5, 0.25], [0.5, 1.0, 0.0]]
        bad = [[math.nan, 0.0, 0.0], [1.0, 1.0, 1.0]]
        scheduler = "[scheduler]\nplugin = linear\nstart_factor = 0.5\ntotal_iters = 4\n"
        for mode in MODES:
            for extra in ("", "clip_grad_norm = 1", "clip_grad_norm = 1\nclip_algorithm = keep",
                          "clip_grad_norm = 1\nclip_algorithm = two_pass"):
                with self.subTest(mode=mode, extra=extra):
                    options = f"mode = {mode}\nmomentum = 0.9\n{extra}\n{scheduler}"
                    self.give(good + bad + good)
                    self.linear(options, run="nonfinite = skip", steps=2)
                    self.fuserun("t.ini")
                    lines = self.updates()
                    self.assertEqual([line["step"] for line in lines], [1, 1, 2])
                    self.assertEqual([line.get("skipped", False) for line in lines], [False, True, False])
                    self.assertIsNone(lines[1]["loss"])
                    self.assertEqual([line["lr"]["default"] for line in lines], [0.5, 0.625, 0.625])
                    skipped = self.read("runs/t/model.safetensors")
                    self.give(good + good)
                    self.linear(options, steps=2)
                    self.fuserun("t.ini")
                    self.assertEqual(self.read("runs/t/model.safetensors"), skipped)

    def test_stop_names_the_parameter_and_the_step(self):
        self.give([[1.0, 0.0, 0.0]] * 2 + [[math.inf, 0.0, 0.0]] * 2)
        for mode in MODES:
            for extra in ("", "clip_grad_norm = 1"):
                self.linear(f"mode = {mode}\n{extra}", steps=2)
                error = self.fuserun("t.ini", status=1).stderr
                self.assertIn("step 2: the gradient of layers.0.weight is not finite", error)

    def test_a_hundred_skips_in_a_row_end_the_run(self):
        self.give([[math.nan, 0.0, 0.0]] * 2)
        self.linear("mode = fused", run="nonfinite = skip", steps=5)
        error = self.fuserun("t.ini", status=1).stderr
        self.assertIn("100 updates in a row were skipped after step 0", error)
        self.assertEqual(len(self.updates()), 100)


if __name__ == "__main__":
    unittest.main()
