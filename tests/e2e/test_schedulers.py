"""Schedules as a run uses them: what is logged is what moves the weights, evaluations drive plateau, and `check` finds what
cannot be and tells what is odd."""
import json
import math
import unittest

from support import Case, to_f32
from test_run import MODES, SCHEDULES

# Those that test_run.py does not have, and nested ones. The probe has 10 updates of one epoch.
OWN = {
    "warmup_stable_decay": "plugin = warmup_stable_decay\nwarmup = 3\ndecay = 4\nshape = sqrt\nmin_factor = 0.1",
    "inverse_sqrt": "plugin = inverse_sqrt\nwarmup = 3",
    "formula": "plugin = formula\nexpr = base * if(step < 3, (step + 1) / 3, 1 - (step - 3) / total) * 0.5 ^ epoch",
    "plateau": "plugin = plateau\nmode = max\npatience = 1\nfactor = 0.5\n[eval]\nevery = 1 step",
    "nested": "plugin = sequential\nstages = a, b\nmilestones = 2\n"
              "[scheduler.a]\nplugin = inverse_sqrt\nwarmup = 2\n"
              "[scheduler.b]\nplugin = chain\nstages = c, d, e\n"
              "[scheduler.c]\nplugin = plateau\nmode = max\npatience = 1\nfactor = 0.5\n"
              "[scheduler.d]\nplugin = sequential\nstages = f, g\nmilestones = 3\n"
              "[scheduler.e]\nplugin = formula\nexpr = base * (1 - step / 20)\n"
              "[scheduler.f]\nplugin = warmup_stable_decay\nwarmup = 2\n"
              "[scheduler.g]\nplugin = cosine\n[eval]\nevery = 1 step",
}


def trapezoid(k, length, warmup, decay, shape, least):
    if k < warmup:
        return (k + 1) / warmup
    if k < length - decay:
        return 1
    progress = (k - (length - decay)) / decay
    height = {"linear": 1 - progress, "sqrt": 1 - math.sqrt(progress),
              "cosine": (1 + math.cos(math.pi * progress)) / 2}[shape]
    return least + (1 - least) * height


def plateau(metrics, base, factor, patience, better):
    """The value behind each of the metrics, for no threshold, cooldown or floor."""
    best, bad, value, values = None, 0, base, []
    for metric in metrics:
        if best is None or better(metric, best):
            best, bad = metric, 0
        else:
            bad += 1
        if bad > patience:
            value, bad = value * factor, 0
        values.append(value)
    return values


class Used(Case):
    WIDTH = 10

    def run_probe(self, schedule, mode="fused", options="lr = 0.1"):
        self.probe_config(self.WIDTH, mode=mode, options=options, rest="[scheduler]\n" + schedule)
        self.fuserun("probe.ini", "run.overwrite=yes")
        return [-value for value in self.weights()["layers.0.weight"]]

    def test_row_7_logged_rate_is_the_used_one(self):
        for name, schedule in OWN.items():
            with self.subTest(schedule=name):
                values = []
                for mode in MODES:
                    used = self.run_probe(schedule, mode)
                    self.assertEqual(used, [to_f32(line["lr"]["default"]) for line in self.updates()], mode)
                    values.append(used)
                self.assertGreater(len(set(values[0])), 2, "the schedule moved nothing")
                self.assertEqual(values[0], values[1])
                self.assertEqual(values[0], values[2])

    def test_every_scheduler_is_tried(self):
        found = {plugin["name"] for plugin in json.loads(self.fuserun("plugins", "--json").stdout)
                 if plugin["kind"] == "scheduler"}
        self.assertEqual(found, set(SCHEDULES) | set(OWN) - {"nested"})
        self.assertEqual(len(found), 16)

    def test_the_preview_is_what_runs(self):
        for name, schedule in OWN.items():
            if "plateau" in schedule:
                continue
            self.run_probe(schedule)
            rows = self.fuserun("schedule", "probe.ini", "--csv").stdout.splitlines()[1:]
            self.assertEqual([float(row.split(",")[1]) for row in rows],
                             [line["lr"]["default"] for line in self.updates()], name)

    def test_values_are_the_formulas(self):
        for shape in ("linear", "sqrt", "cosine"):
            self.run_probe("plugin = warmup_stable_decay\nwarmup = 3\ndecay = 5\nmin_factor = 0.2\nshape = " + shape)
            for k, line in enumerate(self.updates()):
                self.assertAlmostEqual(line["lr"]["default"], 0.1 * trapezoid(k, 10, 3, 5, shape, 0.2), delta=1e-10)
        self.run_probe(OWN["formula"])
        for k, line in enumerate(self.updates()):
            factor = ((k + 1) / 3 if k < 3 else 1 - (k - 3) / 10) * 0.5 ** (k / 10)
            self.assertAlmostEqual(line["lr"]["default"], 0.1 * factor, delta=1e-10)

    def test_driven_momentum_and_decay_are_the_logged_ones(self):
        cycle = "plugin = onecycle\nmax_lr = 0.3\ntotal_steps = 10\n"
        decay = "[scheduler weight_decay]\nplugin = formula\nexpr = base * (1 + step)"
        used = self.run_probe(cycle + decay, options="lr = 0.1\nmomentum = 0.9\nweight_decay = 0.01")
        expected, buffers = [0.0] * self.WIDTH, [0.0] * self.WIDTH
        for k, line in enumerate(self.updates()):
            self.assertEqual(line["weight_decay"]["default"], 0.01 * (1 + k))
            for i in range(self.WIDTH):
                gradient = (i == k) + line["weight_decay"]["default"] * expected[i]
                buffers[i] = line["momentum"]["default"] * buffers[i] + gradient if k > 0 else gradient
                expected[i] -= line["lr"]["default"] * buffers[i]
        for value, wanted in zip(used, expected):
            self.assertAlmostEqual(value, -wanted, delta=2e-6)

    def test_row_10_options_reach_the_fused_step(self):
        used = self.run_probe("plugin = cosine\nt_max = 9\neta_min = 0.01")
        self.assertAlmostEqual(used[-1], 0.1 * 0.1, delta=1e-9)
        used = self.run_probe("plugin = warmup_stable_decay\ndecay = 9\nmin_factor = 0.1")
        self.assertAlmostEqual(used[-1], 0.1 * (0.1 + 0.9 / 9), delta=1e-8)

    def test_row_11_positions_are_updates(self):
        self.make_classes(count=45)
        self.write("t.ini", self.CLASSES.format(steps="", run="epochs = 3", model="", data="", batch_size=8,
                                                optimizer="adamw", options="lr = 0.01",
                                                rest="[scheduler]\nplugin = warmup_stable_decay\nwarmup = 2")
                   .replace("steps = \n", ""))
        self.fuserun("t.ini")
        rates = [line["lr"]["default"] for line in self.updates()]
        self.assertEqual(len(rates), 18)  # three times ceil(45 / 8)
        self.assertEqual(rates.index(max(rates)), 1)
        self.assertEqual(rates[1], 0.01)
        for k, rate in enumerate(rates):
            self.assertAlmostEqual(rate, 0.01 * trapezoid(k, 18, 2, 16, "linear", 0), delta=1e-11)

    def test_row_12_warm_ups_do_not_start_at_0(self):
        for plugin in ("warmup_stable_decay", "inverse_sqrt"):
            used = self.run_probe("plugin = %s\nwarmup = 4" % plugin)
            self.assertEqual(used[:4], [to_f32(0.1 * k / 4) for k in (1, 2, 3, 4)])


class Plateau(Case):
    def test_evaluations_drive_it(self):
        self.probe_config(4, steps=23, rest="[scheduler]\nplugin = plateau\nmode = max\npatience = 1\nfactor = 0.5\n"
                                            "[eval]\nevery = 2 steps\n[group slow]\nmatch = *bias\nlr = 0.02")
        self.fuserun("probe.ini")
        evaluations = self.evaluations()
        self.assertEqual([line["step"] for line in evaluations], [*range(2, 23, 2), 23])
        values = plateau([line["eval_loss"] for line in evaluations], 0.1, 0.5, 1, lambda a, b: a > b * 1.0001)
        expected = [0.1, 0.1] + [value for value in values for _ in (0, 1)]
        self.assertEqual([line["lr"]["default"] for line in self.updates()], expected[:23])
        for line in self.updates():
            self.assertAlmostEqual(line["lr"]["slow"], line["lr"]["default"] / 5, delta=1e-12)
        self.assertLess(values[-1], 0.01)

    def test_accuracy(self):
        self.make_classes()
        self.classes_config(steps=30, optimizer="sgd", options="lr = 0.02",
                            rest="[eval]\nevery = 1 step\n[scheduler]\nplugin = plateau\nmetric = eval_accuracy\n"
                                 "mode = max\npatience = 0\nfactor = 0.9\nthreshold = 0")
        self.fuserun("t.ini")
        accuracies = [line["eval_accuracy"] for line in self.evaluations()]
        expected = [0.02] + plateau(accuracies, 0.02, 0.9, 0, lambda a, b: a > b)
        for line, value in zip(self.updates(), expected):
            self.assertAlmostEqual(line["lr"]["default"], value, delta=1e-15)
        self.assertLess(expected[-1], 0.02)
        self.assertGreater(max(accuracies), accuracies[0])

    def test_previews_say_that_it_follows(self):
        self.probe_config(4, rest="[scheduler]\n" + OWN["nested"])
        words = "[scheduler.c] follows eval_loss: its values are shown as if that kept improving"
        done = self.fuserun("schedule", "probe.ini", "--csv")
        self.assertIn(words, done.stderr)
        self.assertEqual(len(done.stdout.splitlines()), 5)
        self.assertIn(words, self.fuserun("check", "probe.ini").stdout)
        self.probe_config(4, rest="[scheduler]\n" + SCHEDULES["exponential"])
        self.assertEqual(self.fuserun("schedule", "probe.ini").stderr, "")


class Mistakes(Case):
    def refused(self, rest, message, options="lr = 0.1", command=("check", "probe.ini"), width=10):
        self.probe_config(width, options=options, rest=rest)
        done = self.fuserun(*command, status=2)
        lines = [line for line in done.stderr.splitlines() if "warning" not in line]
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertIn(message, lines[0])
        with open(self.path("probe.ini"), encoding="utf-8") as file:
            return lines[0], file.read().splitlines()

    def test_plateau_without_its_metric(self):
        self.refused("[scheduler]\nplugin = plateau",
                     "scheduler.metric: the schedule follows eval_loss, but the config has no [eval] section to give it")
        line, text = self.refused("[scheduler]\nplugin = chain\nstages = a\n[scheduler.a]\nplugin = plateau\n"
                                  "metric = eval_accuracy\n[eval]\nevery = 1 step", "scheduler.a.metric: there is no "
                                  "eval_accuracy with loss.kind = sum; eval_loss is always there")
        self.assertTrue(line.startswith("probe.ini:%d: " % (text.index("metric = eval_accuracy") + 1)))

    def test_formulas(self):
        line, text = self.refused("[scheduler]\nplugin = formula\nexpr = base * stp", "scheduler.expr: column 8: 'stp' is "
                                  "unknown; there are step, epoch, base, total, pi, and the functions abs,")
        self.assertTrue(line.startswith("probe.ini:%d: " % (text.index("expr = base * stp") + 1)))
        self.refused("[scheduler]\nplugin = formula", "scheduler")
        self.refused("[scheduler]\nplugin = formula\nexpr = base / abs(step - 6)", "probe.ini:22: scheduler.expr: group "
                     "'default' would get a value of lr that is not finite at step 7")
        self.refused("[scheduler]\nplugin = formula\nexpr = base * (5 - step)", "group 'default' would get lr = -0.1 at "
                     "step 7, and allowed is [0, inf)")
        # A run finds it too, before its first update, and writes nothing.
        self.refused("[scheduler]\nplugin = formula\nexpr = base / abs(step - 6)", "not finite at step 7",
                     command=("probe.ini",))
        self.assertNotIn("runs", self.left_behind())

    def test_the_stage_at_fault_is_named(self):
        self.refused("[scheduler]\nplugin = sequential\nstages = a, b\nmilestones = 4\n[scheduler.a]\nplugin = linear\n"
                     "total_iters = 4\n[scheduler.b]\nplugin = formula\nexpr = log(step)",
                     "scheduler.b.expr: group 'default' would get a value of lr that is not finite at step 5")

    def test_row_17_a_driven_option_stays_in_its_range(self):
        self.make_classes()
        self.classes_config(rest="[scheduler]\nplugin = cyclic\nbase_lr = 0.5\nmax_lr = 1.5\nstep_size_up = 4\n"
                                 "cycle_momentum = no\ndrives = beta1")
        self.assertIn("scheduler.plugin: group 'default' would get beta1 = 1 at step 3, and allowed is [0, 1)",
                      self.fuserun("check", "t.ini", status=2).stderr)
        self.classes_config(options="lr = 0.01\nbetas = 0.5, 0.98", rest="[scheduler]\nplugin = formula\n"
                            "expr = base + step / 10\ndrives = beta1")
        done = self.fuserun("check", "t.ini", status=2)
        self.assertIn("scheduler.expr: group 'default' would get beta1 = 1 at step 6, and allowed is [0, 1)", done.stderr)


class Warnings(Case):
    def warnings(self, schedule, options="lr = 0.1", width=10):
        self.probe_config(width, options=options, rest="[scheduler]\n" + schedule)
        return [line.split("warning: ")[1] for line in self.fuserun("check", "probe.ini").stderr.splitlines()
                if "warning: " in line]

    def test_curves_that_rise_again(self):
        self.assertEqual(self.warnings("plugin = cosine\nt_max = 4"), [
            "scheduler.plugin: the value rises again after t_max = 4, and 10 updates run here"])
        self.assertEqual(self.warnings("plugin = formula\nexpr = base * (1 + (step - 4) ^ 2)"), [
            "scheduler.plugin: lr of group 'default' rises again: after it had fallen to 0.1 it is higher at step 6"])
        self.assertEqual(self.warnings("plugin = sequential\nstages = a, a\nmilestones = 5\n[scheduler.a]\n"
                                       "plugin = exponential\ngamma = 0.5"), [
            "scheduler.plugin: lr of group 'default' rises again: after it had fallen to 0.00625 it is higher at step 6"])
        self.assertEqual(self.warnings("plugin = exponential\ngamma = 0.5\n[scheduler weight_decay]\nplugin = multistep\n"
                                       "gamma = 2\nmilestones = 3", options="lr = 0.1\nweight_decay = 0.1"), [])
        for name in ("cyclic", "cosine_restarts", "onecycle", "linear", "constant", "multistep", "polynomial", "cosine"):
            self.assertEqual(self.warnings(SCHEDULES[name]), [], name)
        for name in set(OWN) - {"nested"}:
            self.assertEqual(self.warnings(OWN[name]), [], name)

    def test_a_first_update_that_does_nothing(self):
        self.assertEqual(self.warnings("plugin = formula\nexpr = base * step / total"), [
            "scheduler.plugin: the first update has lr = 0 in group 'default', and changes nothing"])
        self.assertEqual(self.warnings("plugin = linear\nstart_factor = 0"), [
            "scheduler.plugin: start_factor = 0: the first value is 0"])
        self.assertEqual(self.warnings("plugin = cyclic\nbase_lr = 0\nmax_lr = 1\ncycle_momentum = no"), [
            "scheduler.plugin: the first update has lr = 0 in group 'default', and changes nothing"])

    def test_warm_ups_longer_than_the_run(self):
        for schedule, said in (("plugin = warmup_stable_decay\nwarmup = 11", "warmup = 11 is longer than the 10 updates"),
                               ("plugin = inverse_sqrt\nwarmup = 11", "warmup = 11 is longer than the 10 updates"),
                               ("plugin = linear\ntotal_iters = 11", "total_iters = 11: only 10 updates run here")):
            (line,) = self.warnings(schedule)
            self.assertIn(said, line)

    def test_runs_too_long_to_ask_for_every_update(self):
        self.probe_config(10, options="lr = 0.5", rest="[scheduler]\nplugin = polynomial\ntotal_iters = 99")
        for steps in (99999, 100000, 199999, 250001, 2 ** 63 - 2, 2 ** 63 - 1):
            said = self.fuserun("check", "probe.ini", f"run.steps={steps}", f"scheduler.total_iters={steps}").stdout
            (line,) = (line for line in said.splitlines() if "default.lr" in line)
            first, last = float(line.split()[1]), float(line.split("last ")[1].split()[0])
            self.assertTrue(line.endswith(f"at step {steps}"), line)
            self.assertEqual(first, 0.5)
            self.assertAlmostEqual(last, 0.5 / steps, delta=1e-15 + 1e-5 / steps)
            rows = self.fuserun("schedule", "probe.ini", f"run.steps={steps}",
                                f"scheduler.total_iters={steps}").stdout.splitlines()[1:]
            shown = [int(row.split()[0]) for row in rows]
            self.assertEqual(shown, [1 + row * (steps - 1) // (len(rows) - 1) for row in range(len(rows))])
            values = [float(row.split()[1]) for row in rows]
            self.assertEqual(values, sorted(values, reverse=True))

    def test_epochs_of_more_updates_than_can_be_counted(self):
        self.probe_config(10, options="lr = 0.5")
        said = self.fuserun("check", "probe.ini", "run.steps=", f"run.epochs={2 ** 63 - 1}").stdout
        self.assertIn(f"{2 ** 63 - 1}, 10 an epoch", said)


if __name__ == "__main__":
    unittest.main(verbosity=1)
