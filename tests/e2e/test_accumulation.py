"""Accumulation: an update of several micro-batches is that of one large batch, in every mode."""
import json
import math
import unittest

from support import Case, read_safetensors, write_safetensors

MODES = ("foreach", "per_param", "fused")
CLIPPINGS = ("", "clip_grad_norm = 0.05", "clip_grad_norm = 0.05\nclip_algorithm = deferred",
             "clip_grad_norm = 0.05\nclip_algorithm = two_pass", "clip_grad_norm = 0.05\nclip_algorithm = keep",
             "clip_grad_value = 0.01", "clip_grad_norm_per_parameter = 0.02")


class Accumulation(Case):
    def train(self, accumulate, batch_size, mode="fused", options="", steps=5, rest="", overrides=(), **more):
        """Weights and the lines of the updates; what check foretold must have come true."""
        self.classes_config(steps=steps, batch_size=batch_size, run="overwrite = yes", rest=rest,
                            options=f"lr = 0.01\nmode = {mode}\naccumulate = {accumulate}\n{options}", **more)
        plan = json.loads(self.fuserun("check", "t.ini", "--json", *overrides).stdout)
        self.fuserun("t.ini", *overrides)
        updates = self.updates()
        memory = json.loads(self.read("runs/t/memory.json"))
        self.assertEqual(memory["memory"], plan["memory"])
        self.assertEqual((memory["peak_bytes"], memory["peak_phase"]), (plan["peak_bytes"], plan["peak_phase"]))
        self.assertEqual(updates[-1]["peak_bytes"], plan["peak_bytes"])
        return self.weights(), updates

    def assert_weights(self, actual, expected, tolerance, where):
        """Each tensor to `tolerance` of its largest element."""
        for name, values in expected.items():
            largest = max(abs(value) for value in values)
            for ours, theirs in zip(actual[name], values):
                self.assertLessEqual(abs(ours - theirs), tolerance * largest, (where, name))

    def assert_updates(self, actual, expected, where):
        self.assertEqual([line["step"] for line in actual], [line["step"] for line in expected], where)
        for ours, theirs in zip(actual, expected):
            self.assertEqual((ours["lr"], ours["epoch"]), (theirs["lr"], theirs["epoch"]), where)
            self.assertAlmostEqual(ours["loss"], theirs["loss"], delta=1e-6 * theirs["loss"], msg=where)

    def test_row_4_four_micro_batches_of_one_are_a_batch_of_four(self):
        """Adam's bias correction would show a parameter's count moved by 4, the schedule a clock that did."""
        self.make_classes(count=20)
        scheduler = "[scheduler]\nplugin = linear\nstart_factor = 0.1\ntotal_iters = 4"
        for optimizer in ("sgd", "adamw", "adafactor"):
            expected, lines = self.train(1, 4, "foreach", optimizer=optimizer, rest=scheduler)
            for mode in MODES:
                weights, updates = self.train(4, 1, mode, optimizer=optimizer, rest=scheduler)
                self.assert_weights(weights, expected, 1e-6, (optimizer, mode))
                self.assert_updates(updates, lines, (optimizer, mode))

    def test_any_split_and_every_clipping_equal_the_large_batch(self):
        """Ragged ones too: 26 samples in updates of 8, 8, 8 and 2, whatever the micro-batches' size."""
        self.make_classes(count=26)
        for clipping in CLIPPINGS:
            options = f"weight_decay = 0.1\n{clipping}"
            expected, lines = self.train(1, 8, "foreach", options)
            for accumulate, batch_size in ((2, 4), (8, 1)):
                modes = {}
                for mode in MODES:
                    where = (clipping, mode, accumulate)
                    weights, updates = self.train(accumulate, batch_size, mode, options)
                    self.assert_weights(weights, expected, 1e-6, where)
                    self.assert_updates(updates, lines, where)
                    modes[mode] = weights
                for mode in MODES:
                    if "grad_norm =" in clipping:
                        self.assert_weights(modes[mode], modes["foreach"], 1e-5, (clipping, mode))
                    else:
                        self.assertEqual(modes[mode], modes["foreach"], (clipping, mode))

    def test_row_5_micro_batches_of_three_and_one_samples(self):
        """The gradient and the loss are those of the mean over all four; the sum is that of all four."""
        self.make_classes(count=4)
        for kind in ("cross_entropy", "sum", "mse"):
            if kind == "mse":
                content = read_safetensors(self.path("data.safetensors"))
                rows = [content["x"][i:i + 12] for i in range(0, 48, 12)]
                write_safetensors(self.path("data.safetensors"),
                                  {"x": ("F32", rows), "y": ("F32", [row[:4] for row in rows])})
            rest = f"[loss]\nkind = {kind}"
            expected, lines = self.train(1, 4, "foreach", rest=rest, optimizer="sgd", steps=3)
            for mode in MODES:
                weights, updates = self.train(2, 3, mode, rest=rest, optimizer="sgd", steps=3,
                                              overrides=["data.shuffle=no"])
                self.assert_weights(weights, expected, 1e-6, (kind, mode))
                for ours, theirs in zip(updates, lines):
                    self.assertAlmostEqual(ours["loss"], theirs["loss"], delta=1e-6 * abs(theirs["loss"]))
                    self.assertEqual(ours["epoch"], ours["step"])

    def linear(self, samples, steps, mode, batch_size, accumulate, rest=""):
        """y = w x with loss = sum of y: an update's gradient of w is the sum of its x, and lr is 1."""
        write_safetensors(self.path("data.safetensors"), {"x": ("F32", [[float(x)] for x in samples]),
                                                          "y": ("F32", [[0.0]] * len(samples))})
        write_safetensors(self.path("zeros.safetensors"), {"layers.0.weight": ("F32", [[0.0]]),
                                                           "layers.0.bias": ("F32", [0.0])})
        self.write("t.ini", f"""[run]
name = t
overwrite = yes
{steps}
[model]
plugin = mlp
sizes = 1, 1
weights = zeros.safetensors
freeze = *bias
[data]
plugin = tensors
file = data.safetensors
batch_size = {batch_size}
shuffle = no
[loss]
kind = sum
[optimizer]
plugin = sgd
mode = {mode}
lr = 1
accumulate = {accumulate}
{rest}
""")

    def test_an_update_never_spans_two_epochs(self):
        """Eleven samples by 2 and 2: 2 2 | 2 2 | 2 1, then again; the loss tells an update's w and x."""
        samples = [2.0 ** i for i in range(11)]
        sums = [sum(samples[:4]), sum(samples[4:8]), sum(samples[8:])] * 2
        losses = [-sum(sums[:k]) * sums[k] for k in range(6)]
        for mode in MODES:
            self.linear(samples, "epochs = 2", mode, 2, 2)
            self.fuserun("t.ini")
            updates = self.updates()
            self.assertEqual([line["loss"] for line in updates], losses)
            self.assertEqual([line["epoch"] for line in updates], [k / 3 for k in range(1, 7)])
            self.assertEqual(self.weights()["layers.0.weight"], [-sum(sums)])
            for line, count in zip(updates, (4, 4, 3, 4, 4, 3)):
                self.assertAlmostEqual(line["samples_per_s"] * line["step_s"], count, delta=0.01)
            # a run that ends before the first epoch does
            self.linear(samples, "steps = 2", mode, 2, 2)
            self.fuserun("t.ini")
            self.assertEqual([line["loss"] for line in self.updates()], losses[:2])
            # the last batch dropped: 2 2 | 2 2 | 2
            self.linear(samples, "steps = 3", mode, 2, 2)
            self.fuserun("t.ini", "data.drop_last=yes")
            self.assertEqual(self.weights()["layers.0.weight"], [-sum(samples[:10])])
            # more micro-batches than an epoch has
            self.linear(samples, "epochs = 2", mode, 2, 1000000)
            self.fuserun("t.ini")
            self.assertEqual([line["loss"] for line in self.updates()], [0, -sum(samples) ** 2])

    def test_row_11_schedules_and_epochs_count_updates(self):
        """19 samples by 2 in updates of 4: ceil(ceil(19 / 2) / 4) = 3 an epoch; a warm-up of 2 peaks after 2 updates, a cosine
        without t_max is 6 long for 2 epochs."""
        samples = [1.0] * 19
        for mode in MODES:
            self.linear(samples, "epochs = 2", mode, 2, 4,
                        "[scheduler]\nplugin = linear\nstart_factor = 0.5\ntotal_iters = 2")
            self.assertIn("updates     6, 3 an epoch, of 4 micro-batches, an epoch's last of 2",
                          self.fuserun("check", "t.ini").stdout)
            self.fuserun("t.ini")
            self.assertEqual([line["lr"]["default"] for line in self.updates()], [0.5, 0.75, 1, 1, 1, 1])
            self.linear(samples, "epochs = 2", mode, 2, 4, "[scheduler]\nplugin = cosine")
            self.fuserun("t.ini")
            for k, line in enumerate(self.updates()):
                self.assertAlmostEqual(line["lr"]["default"], (1 + math.cos(math.pi * k / 6)) / 2, delta=1e-9)
            rows = self.fuserun("schedule", "t.ini", "--csv").stdout.splitlines()
            self.assertEqual(len(rows), 7)
            # epochs as the schedule's unit, and as the evaluation's
            self.linear(samples, "epochs = 2", mode, 2, 4,
                        "[scheduler]\nplugin = step\nstep_size = 1\nunit = epoch\n[eval]")
            self.fuserun("t.ini")
            self.assertEqual([line["lr"]["default"] for line in self.updates()], [1, 1, 1, 0.1, 0.1, 0.1])
            self.assertEqual([line["step"] for line in self.evaluations()], [3, 6])

    def test_a_bad_micro_batch_skips_or_stops_the_whole_update(self):
        for mode in MODES:
            for bad in range(3):
                samples = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
                samples[3 + bad] = math.nan
                self.linear(samples, "steps = 2", mode, 1, 3)
                self.fuserun("t.ini", "run.nonfinite=skip")
                self.assertEqual([line.get("skipped", False) for line in self.updates()], [False, True, False])
                self.assertEqual([line["step"] for line in self.updates()], [1, 1, 2])
                self.assertEqual(self.weights()["layers.0.weight"], [-71.0], (mode, bad))
                self.assertIn("step 2: the gradient of layers.0.weight is not finite",
                              self.fuserun("t.ini", status=1).stderr)

    def test_the_planner_keeps_what_is_smaller_and_says_so(self):
        """Of 300 x 300 and four micro-batches of 2, X and dY are 14 KB, the gradient is 360 KB; in a small net they are
        the larger."""
        self.make_classes(count=26)
        wide = ["model.sizes=12, 300, 300, 4"]
        for clipping in ("", "clip_grad_norm = 0.05"):
            expected = None
            for mode in MODES:
                weights, _ = self.train(4, 2, mode, clipping, steps=3, overrides=wide)
                expected = expected or weights
                self.assert_weights(weights, expected, 1e-5 if clipping else 0, mode)
                said = self.fuserun("check", "t.ini", *wide).stdout
                self.assertIn("accumulation   kept between micro-batches: " +
                              ("X and dY of 2 weights" if mode == "fused" else "all gradients"), said)
                self.assertEqual("instead all gradients: peak" in said, mode == "fused")
            self.assertIn("of no weight are X and dY smaller",
                          self.fuserun("check", "t.ini", "optimizer.accumulate=13").stdout)

    def test_row_24_a_resume_goes_on_at_the_next_update(self):
        """26 samples in updates of 4 micro-batches of 2: stopped within an epoch and at its end."""
        self.make_classes(count=26)
        weights, updates = self.train(4, 2, options="clip_grad_norm = 0.05", steps=6)
        for stop in (2, 4):
            _, stopped = self.train(4, 2, options="clip_grad_norm = 0.05", steps=stop, overrides=["checkpoint.every=1"])
            resumed, lines = self.train(4, 2, options="clip_grad_norm = 0.05", steps=6, overrides=["run.resume=auto"])
            self.assertEqual(lines[:stop], stopped)  # their times too: they were not run again
            self.assertEqual(resumed, weights, stop)
            self.assertEqual([line["loss"] for line in lines], [line["loss"] for line in updates])

    def test_the_logged_norm_is_that_of_the_sum(self):
        for mode in MODES:
            for options in ([], ["optimizer.clip_grad_norm=1"],
                            ["optimizer.clip_grad_norm=1", "optimizer.clip_algorithm=two_pass"]):
                self.linear([1.0, -2.0, 4.0, 8.0], "steps = 1", mode, 1, 4)
                self.fuserun("t.ini", "optimizer.log_grad_norm=yes", *options)
                self.assertEqual([line["grad_norm"] for line in self.updates()], [11.0])
                self.assertAlmostEqual(self.weights()["layers.0.weight"][0], -1.0 if options else -11.0, delta=1e-6)


if __name__ == "__main__":
    unittest.main()
