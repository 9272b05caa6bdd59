"""What a run does: the numbers it uses, logs and leaves behind."""
import json
import math
import os
import re
import shutil
import signal
import subprocess
import time
import unittest

from support import FUSERUN, Case, is_sanitized, to_f32, write_safetensors

MODES = ("fused", "per_param", "foreach")

# Every schedule by its options, none of which depends on the length of the run.
SCHEDULES = {
    "constant": "plugin = constant\nfactor = 0.5\ntotal_iters = 4",
    "linear": "plugin = linear\nstart_factor = 0.25\ntotal_iters = 5",
    "step": "plugin = step\nstep_size = 3\ngamma = 0.5",
    "multistep": "plugin = multistep\nmilestones = 2, 5, 7\ngamma = 0.3",
    "exponential": "plugin = exponential\ngamma = 0.9",
    "polynomial": "plugin = polynomial\ntotal_iters = 8\npower = 2",
    "cosine": "plugin = cosine\nt_max = 9\neta_min = 0.01",
    "cosine_restarts": "plugin = cosine_restarts\nt_0 = 4\nt_mult = 1",
    "onecycle": "plugin = onecycle\nmax_lr = 0.3\ntotal_steps = 10\ncycle_momentum = no",
    "cyclic": "plugin = cyclic\nbase_lr = 0.05\nmax_lr = 0.2\nstep_size_up = 3\ncycle_momentum = no",
    "sequential": "plugin = sequential\nstages = a, b\nmilestones = 3\n[scheduler.a]\nplugin = linear\n"
                  "start_factor = 0.2\ntotal_iters = 3\n[scheduler.b]\nplugin = exponential\ngamma = 0.7",
    "chain": "plugin = chain\nstages = a, b\n[scheduler.a]\nplugin = constant\nfactor = 0.5\ntotal_iters = 3\n"
             "[scheduler.b]\nplugin = exponential\ngamma = 0.8",
}


class Schedules(Case):
    WIDTH = 10

    def used_and_logged(self, schedule, mode, options="lr = 0.1"):
        self.probe_config(self.WIDTH, mode=mode, options=options, rest="[scheduler]\n" + schedule)
        self.fuserun("probe.ini", "run.overwrite=yes")
        used = [-value for value in self.weights()["layers.0.weight"]]
        return used, [line["lr"]["default"] for line in self.updates()]

    def test_row_6_warm_up_reaches_the_fused_step(self):
        used, _ = self.used_and_logged("plugin = linear\nstart_factor = 0.2\ntotal_iters = 5", "fused")
        table = [0.1 * (0.2 + 0.8 * min(k, 5) / 5) for k in range(self.WIDTH)]
        for k, (value, expected) in enumerate(zip(used, table)):
            self.assertAlmostEqual(value, expected, delta=1e-7 * 0.1 + 2 ** -24 * expected, msg="update %d" % (k + 1))

    def test_row_7_logged_rate_is_the_used_one_under_every_schedule(self):
        for name, schedule in SCHEDULES.items():
            with self.subTest(schedule=name):
                values = []
                for mode in MODES:
                    used, logged = self.used_and_logged(schedule, mode)
                    self.assertEqual(used, [to_f32(value) for value in logged], mode)
                    values.append(used)
                self.assertGreater(len(set(values[0])), 1, "the schedule moved nothing")
                self.assertEqual(values[0], values[1])
                self.assertEqual(values[0], values[2])

    def test_row_9_log_and_preview_show_what_each_group_uses(self):
        self.probe_config(self.WIDTH, options="lr = 0.1", rest="[group slow]\nmatch = *bias\nlr = 0.001\n[scheduler]\n" +
                          SCHEDULES["exponential"])
        self.fuserun("probe.ini")
        lines = self.updates()
        self.assertEqual([-value for value in self.weights()["layers.0.weight"]],
                         [to_f32(line["lr"]["default"]) for line in lines])
        bias = 0.0
        for line in lines:
            bias = to_f32(bias - to_f32(line["lr"]["slow"]))
        self.assertEqual(self.weights()["layers.0.bias"], [bias])
        self.assertAlmostEqual(lines[3]["lr"]["slow"], lines[3]["lr"]["default"] * 0.01, delta=1e-15)
        rows = self.fuserun("schedule", "probe.ini", "--csv").stdout.splitlines()
        self.assertEqual(rows[0], "step,default.lr,slow.lr")
        self.assertEqual([[float(word) for word in row.split(",")] for row in rows[1:]],
                         [[line["step"], line["lr"]["default"], line["lr"]["slow"]] for line in lines])
        table = json.loads(self.fuserun("schedule", "probe.ini", "--json").stdout)
        self.assertEqual(table, [{"step": line["step"], "lr": line["lr"]} for line in lines])

    def test_changing_the_plugin_changes_the_used_rate(self):
        cosine, _ = self.used_and_logged(SCHEDULES["cosine"], "fused")
        self.fuserun("probe.ini", "run.overwrite=yes", "scheduler.plugin=step", "scheduler.step_size=3",
                     "scheduler.gamma=0.5")
        step = [-value for value in self.weights()["layers.0.weight"]]
        self.assertEqual(step, [to_f32(0.1 * 0.5 ** (k // 3)) for k in range(self.WIDTH)])
        self.assertNotEqual(step, cosine)

    def test_epochs_as_the_unit(self):
        self.probe_config(4, steps=10, options="lr = 0.1",
                          rest="[scheduler]\nplugin = exponential\ngamma = 0.5\nunit = epoch")
        self.fuserun("probe.ini")
        self.assertEqual([line["lr"]["default"] for line in self.updates()],
                         [0.1 * 0.5 ** (k // 4) for k in range(10)])

    def test_other_options_are_driven_each_from_its_base(self):
        self.probe_config(self.WIDTH, options="lr = 0.1\nmomentum = 0.8\nweight_decay = 0.5",
                          rest="[scheduler]\nplugin = exponential\ngamma = 0.5\ndrives = lr, momentum\n"
                               "[scheduler weight_decay]\nplugin = step\nstep_size = 4\ngamma = 0.1")
        self.fuserun("probe.ini")
        for k, line in enumerate(self.updates()):
            self.assertEqual(line["lr"], {"default": 0.1 * 0.5 ** k})
            self.assertEqual(line["momentum"], {"default": 0.8 * 0.5 ** k})
            self.assertAlmostEqual(line["weight_decay"]["default"], 0.5 * 0.1 ** (k // 4), delta=1e-15)
        header = self.fuserun("schedule", "probe.ini", "--csv").stdout.splitlines()[0]
        self.assertEqual(header, "step,default.lr,default.momentum,default.weight_decay")

    def test_momentum_cycles_where_the_optimizer_has_one(self):
        cycle = "[scheduler]\nplugin = onecycle\nmax_lr = 0.3\ntotal_steps = 10\nbase_momentum = 0.85\nmax_momentum = 0.95"
        self.probe_config(self.WIDTH, options="lr = 0.1\nmomentum = 0.9", rest=cycle)
        self.fuserun("probe.ini")
        momenta = [line["momentum"]["default"] for line in self.updates()]
        self.assertAlmostEqual(momenta[0], 0.95, delta=1e-12)
        self.assertAlmostEqual(min(momenta), 0.85, delta=5e-3)
        self.make_classes()
        self.classes_config(steps=10, options="lr = 0.01\nbetas = 0.5, 0.98", rest=cycle)
        self.fuserun("t.ini", "run.overwrite=yes")
        self.assertEqual({tuple(sorted(set(line) & {"beta1", "beta2", "momentum"})) for line in self.updates()},
                         {("beta1",)})

    def test_row_12_a_first_rate_of_zero_is_allowed_and_told(self):
        self.probe_config(4, rest="[scheduler]\nplugin = linear\nstart_factor = 0\ntotal_iters = 2")
        done = self.fuserun("probe.ini")
        self.assertIn("warning", done.stderr)
        self.assertEqual(self.updates()[0]["lr"]["default"], 0)
        self.assertEqual(self.weights()["layers.0.weight"][0], 0)
        self.probe_config(4, rest="[scheduler]\nplugin = linear\ntotal_iters = 2")
        done = self.fuserun("probe.ini", "run.overwrite=yes")
        self.assertAlmostEqual(self.updates()[0]["lr"]["default"], 0.1 / 3, delta=1e-10)


class Updates(Case):
    def test_modes_leave_the_same_bytes(self):
        self.make_classes(count=45)
        for batch_size in (1, 8, 45):
            files = []
            for mode in MODES:
                self.classes_config(steps=12, batch_size=batch_size, options="lr = 0.01\nmode = %s" % mode,
                                    rest="[group a]\nmatch = *bias\nweight_decay = 0")
                self.fuserun("t.ini", "run.overwrite=yes")
                files.append(self.read("runs/t/model.safetensors"))
            self.assertEqual(files[0], files[1], batch_size)
            self.assertEqual(files[0], files[2], batch_size)

    def test_an_epoch_has_every_sample_once(self):
        width = 7
        for extra, batch, seen in (("shuffle = yes", 3, width), ("shuffle = no", 3, width),
                                   ("shuffle = yes\ndrop_last = yes", 3, 6)):
            self.probe_config(width, options="lr = 1")
            self.fuserun("probe.ini", "run.overwrite=yes", "data.batch_size=%d" % batch,
                         *["data." + line.replace(" ", "") for line in extra.split("\n")],
                         "run.steps=%d" % math.ceil(seen / batch))
            used = [-value for value in self.weights()["layers.0.weight"]]
            self.assertEqual(sorted(used), [0.0] * (width - seen) + [1.0] * seen, extra)

    def test_shuffles_differ_by_epoch_and_seed_and_repeat(self):
        width = 16
        orders = []
        for seed, epochs in ((0, 1), (0, 2), (1, 1), (0, 1)):
            # With lr falling by half each update, a weight tells when its sample came.
            self.probe_config(width, steps=width * epochs, options="lr = 1",
                              rest="[scheduler]\nplugin = exponential\ngamma = 0.5")
            self.fuserun("probe.ini", "run.overwrite=yes", "data.shuffle=yes", "run.seed=%d" % seed)
            weights = [-value for value in self.weights()["layers.0.weight"]]
            if epochs == 2:
                weights = [(value - before) * 2 ** width for value, before in zip(weights, orders[0])]
            orders.append(weights)
        self.assertEqual(sorted(orders[0], reverse=True), [0.5 ** k for k in range(width)])
        self.assertEqual(orders[0], orders[3])
        self.assertNotEqual(orders[0], orders[2])
        self.assertNotEqual(orders[0], orders[1])
        self.assertNotEqual(orders[0], [0.5 ** k for k in range(width)])

    def test_ragged_batch_counts_its_own_samples(self):
        """The last batch of 2 has the gradient of a mean over 2, not over 3; the log says which."""
        xs = [[1.0], [2.0], [4.0], [8.0], [16.0]]
        write_safetensors(self.path("d.safetensors"), {"x": ("F32", xs), "y": ("F32", [[0.0]] * 5)})
        write_safetensors(self.path("w.safetensors"),
                          {"layers.0.weight": ("F32", [[1.0]]), "layers.0.bias": ("F32", [0.0])})
        self.write("m.ini", "[run]\nname = t\nsteps = 2\n[model]\nplugin = mlp\nsizes = 1, 1\nweights = w.safetensors\n"
                   "freeze = *bias\n[data]\nplugin = tensors\nfile = d.safetensors\nbatch_size = 3\nshuffle = no\n"
                   "[loss]\nkind = mse\n[optimizer]\nplugin = sgd\nlr = 0.125\n")
        self.fuserun("m.ini")
        w = 1.0
        for line, batch in zip(self.updates(), (xs[:3], xs[3:])):
            self.assertAlmostEqual(line["loss"], sum((w * x[0]) ** 2 for x in batch) / len(batch),
                                   delta=1e-6 * max(line["loss"], 1))
            self.assertAlmostEqual(line["samples_per_s"] * line["step_s"], len(batch), delta=0.01)
            w -= 0.125 * sum(2 * w * x[0] * x[0] for x in batch) / len(batch)
        self.assertAlmostEqual(self.weights()["layers.0.weight"][0], w, delta=abs(w) * 1e-6)

    def test_drop_last_leaves_the_short_batch_out(self):
        self.make_classes(count=10)
        self.classes_config(batch_size=4, data="drop_last = yes")
        self.fuserun("t.ini", "run.steps=", "run.epochs=3")
        self.assertEqual([line["epoch"] for line in self.updates()], [0.5, 1, 1.5, 2, 2.5, 3])
        self.fuserun("t.ini", "run.steps=", "run.epochs=3", "run.overwrite=yes", "data.drop_last=no")
        self.assertEqual([line["step"] for line in self.updates()], list(range(1, 10)))
        self.assertEqual(self.updates()[3]["epoch"], 4 / 3)
        done = self.fuserun("check", "t.ini", "data.batch_size=11", status=2)
        self.assertIn("data.batch_size", done.stderr)

    def test_sum_is_over_all_outputs_of_the_update(self):
        self.probe_config(4, steps=2, options="lr = 0.5")
        self.fuserun("probe.ini", "data.batch_size=2")
        # Update 1 gives weights 0 and 1, and the bias -0.5 twice; update 2 then has outputs of -1 each.
        self.assertEqual([line["loss"] for line in self.updates()], [0, -2])

    def test_row_27_frozen_parameters_do_not_move_and_have_no_state(self):
        self.make_classes()
        self.classes_config(model="freeze = layers.0.*", options="lr = 0.01\nweight_decay = 0.5")
        done = self.fuserun("t.ini", "run.steps=1", "run.output=runs/one", "model.freeze=*")
        self.assertIn("model.freeze: every parameter is frozen", done.stderr)
        before = self.weights("runs/one")
        self.fuserun("t.ini")
        after = self.weights()
        for name in before:
            (self.assertEqual if name.startswith("layers.0.") else self.assertNotEqual)(before[name], after[name], name)
        memory = json.loads(self.read("runs/t/memory.json"))["memory"]
        self.assertEqual(memory["optimizer_state"], 2 * 4 * (24 * 4 + 4))
        self.assertEqual(json.loads(self.read("runs/one/memory.json"))["memory"]["optimizer_state"], 0)
        checked = json.loads(self.fuserun("check", "t.ini", "--json").stdout)
        self.assertEqual(checked["groups"], {"default": ["layers.1.weight", "layers.1.bias"]})

    def test_groups_take_parameters_in_file_order(self):
        self.make_classes()
        self.classes_config(rest="[group first]\nmatch = layers.0.bias, layers.1.*\nlr = 0.5\n"
                                 "[group second]\nmatch = *bias, layers.0.*\nlr = 0.25")
        self.fuserun("t.ini", "run.steps=1")
        self.assertEqual(self.updates()[0]["lr"], {"first": 0.5, "second": 0.25})
        checked = json.loads(self.fuserun("check", "t.ini", "--json").stdout)
        self.assertEqual(checked["groups"], {"first": ["layers.0.bias", "layers.1.weight", "layers.1.bias"],
                                             "second": ["layers.0.weight"]})

    def test_a_group_may_have_another_optimizer(self):
        self.make_classes()
        self.classes_config(options="lr = 0.01\nbetas = 0.8, 0.9",
                            rest="[group g]\nmatch = *bias\nplugin = sgd\nmomentum = 0.5\n"
                                 "[scheduler]\nplugin = exponential\ngamma = 0.5\ndrives = lr, beta1")
        self.fuserun("t.ini")
        second = self.updates()[1]
        self.assertEqual(second["lr"], {"default": 0.005, "g": 0.005})
        self.assertEqual(second["beta1"], {"default": 0.4})
        memory = json.loads(self.read("runs/t/memory.json"))["memory"]
        weights, biases = 12 * 24 + 24 * 4, 24 + 4
        self.assertEqual(memory["optimizer_state"], 4 * (2 * weights + biases))


# Interposed on the clock, which the loop reads once an update: what the heap holds then.
HEAP_WATCH = """#define _GNU_SOURCE
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static int calls, worker;
int clock_gettime(clockid_t id, struct timespec *now)
{
    const char *path = getenv("HEAP_LOG");
    if (path != NULL && id == CLOCK_MONOTONIC && !worker) {
        worker = 1;
        const size_t bytes = mallinfo2().uordblks;
        FILE *log = fopen(path, calls++ == 0 ? "w" : "a");
        fprintf(log, "%zu\\n", bytes);
        fclose(log);
        worker = 0;
    }
    return (int)syscall(SYS_clock_gettime, id, now);
}
"""


class Memory(Case):
    def test_heap_in_use_after_update_1000_is_that_after_update_10(self):
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None or is_sanitized():
            self.skipTest("needs a C compiler, and a build without the address sanitizer")
        source, watch = self.write("watch.c", HEAP_WATCH), self.path("watch.so")
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", source, "-o", watch], check=True)
        self.make_classes()
        for mode in MODES:
            self.classes_config(steps=1000, batch_size=8, options="mode = " + mode,
                                rest="[group g]\nmatch = *bias\n[scheduler]\nplugin = cosine\n[eval]\nevery = 100 steps")
            environment = dict(self.environment(), LD_PRELOAD=watch, HEAP_LOG=self.path("heap"))
            self.fuserun("t.ini", "run.overwrite=yes", "run.threads=1", environment=environment)
            heap = [int(line) for line in self.read("heap").split()]
            self.assertGreater(len(heap), 1000)
            self.assertEqual(heap[20], heap[-5], mode)


class Threads(Case):
    def display(self, **variables):
        """What GCC's OpenMP runtime says of itself when it is loaded, if that is what this build has."""
        environment = {key: value for key, value in self.environment().items()
                       if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")}
        done = self.fuserun("t.ini", "run.overwrite=yes", "run.threads=2",
                            environment=environment | {"OMP_DISPLAY_ENV": "verbose"} | variables)
        found = re.search(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
        if found is None:
            self.skipTest("this build has no OpenMP, or another one than GCC's")
        return int(found.group(1))

    def test_waiting_threads_spin_a_little_unless_the_user_says_otherwise(self):
        self.make_classes()
        self.classes_config(steps=2, batch_size=8)
        self.assertEqual(self.display(), 3000)
        self.assertEqual(self.display(GOMP_SPINCOUNT="7"), 7)
        self.assertEqual(self.display(OMP_WAIT_POLICY="passive"), 0)
        self.assertGreater(self.display(OMP_WAIT_POLICY="active"), 3000)


class Records(Case):
    def test_metrics_lines(self):
        self.make_classes(count=20)
        self.classes_config(steps=7, batch_size=8, rest="[eval]\nevery = 3 steps")
        self.fuserun("t.ini")
        lines = self.metrics()
        for line in self.updates():
            self.assertEqual(list(line), ["step", "epoch", "loss", "lr", "step_s", "samples_per_s", "peak_bytes"])
            self.assertAlmostEqual(line["epoch"], line["step"] / 3, delta=1e-15)
            self.assertEqual(line["lr"], {"default": 0.01})
            self.assertGreater(line["step_s"], 0)
        self.assertEqual([line["step"] for line in lines], [1, 2, 3, 3, 4, 5, 6, 6, 7, 7])
        self.assertEqual([line["step"] for line in self.evaluations()], [3, 6, 7])
        for line in self.evaluations():
            self.assertEqual(list(line), ["step", "eval_loss", "eval_accuracy"])
            self.assertAlmostEqual(line["eval_accuracy"] * 20, round(line["eval_accuracy"] * 20), delta=1e-9)
        self.assertEqual(os.stat(self.path("runs/t/metrics.jsonl")).st_mode & 0o002, 0)

    def test_evaluation_once_an_epoch_and_at_the_end(self):
        self.make_classes(count=20)
        self.classes_config(steps=7, batch_size=8, rest="[eval]\nbatch_size = 3")
        out = self.fuserun("t.ini").stdout
        self.assertEqual([line["step"] for line in self.evaluations()], [3, 6, 7])
        last = self.evaluations()[-1]
        self.assertIn("eval  step 7  loss %.4f  accuracy %.4f" % (last["eval_loss"], last["eval_accuracy"]), out)
        self.assertIn("runs/t", out)
        self.fuserun("t.ini", "run.overwrite=yes", "run.steps=6")
        self.assertEqual([line["step"] for line in self.evaluations()], [3, 6])

    def test_evaluation_leaves_training_alone(self):
        self.make_classes(count=20)
        self.classes_config(steps=9)
        self.fuserun("t.ini")
        without = self.read("runs/t/model.safetensors")
        self.classes_config(steps=9, rest="[eval]\nevery = 2\nbatch_size = 7")
        self.fuserun("t.ini", "run.overwrite=yes")
        self.assertEqual(without, self.read("runs/t/model.safetensors"))

    def test_mse_is_evaluated_without_accuracy(self):
        write_safetensors(self.path("d.safetensors"),
                          {"x": ("F32", [[0.0], [1.0]]), "y": ("F32", [[1.0, 3.0], [1.0, 3.0]])})
        write_safetensors(self.path("w.safetensors"),
                          {"layers.0.weight": ("F32", [[0.0], [0.0]]), "layers.0.bias": ("F32", [0.0, 0.0])})
        self.write("m.ini", "[run]\nname = t\nsteps = 1\n[model]\nplugin = mlp\nsizes = 1, 2\nweights = w.safetensors\n"
                   "[data]\nplugin = tensors\nfile = d.safetensors\nbatch_size = 2\n[eval]\n[loss]\nkind = mse\n"
                   "[optimizer]\nplugin = sgd\nlr = 0\n")
        self.fuserun("m.ini")
        self.assertEqual(self.updates()[0]["loss"], 5)
        self.assertEqual(self.evaluations(), [{"step": 1, "eval_loss": 5}])

    def test_check_predicts_the_peak_of_the_run(self):
        self.make_classes(count=45)
        for mode in MODES:
            for extra in (["run.steps=3"], ["run.steps=30"], ["data.batch_size=45"], ["data.batch_size=100"],
                          ["optimizer.plugin=sgd"], ["model.freeze=layers.0.*"], ["eval.batch_size=45"]):
                self.classes_config(rest="[eval]\nevery = 7")
                overrides = extra + ["optimizer.mode=" + mode, "run.overwrite=yes"]
                checked = json.loads(self.fuserun("check", "t.ini", *overrides, "--json").stdout)
                self.fuserun("t.ini", *overrides)
                memory = json.loads(self.read("runs/t/memory.json"))
                for key in ("peak_bytes", "peak_phase", "memory"):
                    self.assertEqual(checked[key], memory[key], (mode, extra, key))
                self.assertEqual(checked["peak_bytes"], sum(checked["memory"].values()))
                self.assertEqual(checked["peak_bytes"], self.updates()[-1]["peak_bytes"], (mode, extra))
                self.assertEqual(list(checked["memory"]), ["parameter", "gradient", "optimizer_state", "activation",
                                                           "workspace", "data"])
                self.assertEqual(checked["parameters"], 12 * 24 + 24 + 24 * 4 + 4)
                self.assertGreater(memory["rss_base_bytes"], 0)
                self.assertGreaterEqual(memory["rss_peak_bytes"], memory["rss_base_bytes"])

    def test_resolved_config_repeats_the_run(self):
        self.make_classes()
        self.classes_config(model="freeze = layers.1.bias", options="lr = 0.01\nbetas = 0.8, 0.99",
                            rest="[group g]\nmatch = *bias\nweight_decay = 0\n[scheduler]\nplugin = sequential\n"
                                 "stages = a, b\nmilestones = 3\n[scheduler.a]\nplugin = linear\ntotal_iters = 3\n"
                                 "[scheduler.b]\nplugin = cosine\n[eval]\nevery = 5 steps")
        self.fuserun("t.ini", "run.steps=11")
        first, config = self.read("runs/t/model.safetensors"), self.read("runs/t/config.ini")
        lines = [{k: v for k, v in line.items() if k not in ("step_s", "samples_per_s")} for line in self.metrics()]
        self.fuserun(self.path("runs/t/config.ini"), cwd="/")
        self.assertEqual(first, self.read("runs/t/model.safetensors"))
        self.assertEqual(config, self.read("runs/t/config.ini"))
        self.assertEqual(lines, [{k: v for k, v in line.items() if k not in ("step_s", "samples_per_s")}
                                 for line in self.metrics()])

    def test_weights_are_loaded_and_converted(self):
        tensors = {"layers.0.weight": [[0.5, -2.0]], "layers.0.bias": [0.25]}
        raw = {"F16": {0.5: 0x3800, -2.0: 0xC000, 0.25: 0x3400}, "BF16": {0.5: 0x3F00, -2.0: 0xC000, 0.25: 0x3E80}}
        self.probe_config(2, steps=1, options="lr = 0")
        for dtype in ("F32", "F64", "F16", "BF16"):
            def encode(value, dtype=dtype):
                if isinstance(value, list):
                    return [encode(element) for element in value]
                return raw[dtype][value] if dtype in raw else value
            write_safetensors(self.path("w.safetensors"), {k: (dtype, encode(v)) for k, v in tensors.items()})
            self.fuserun("probe.ini", "model.weights=w.safetensors", "run.overwrite=yes")
            self.assertEqual(self.weights(), {"layers.0.weight": [0.5, -2.0], "layers.0.bias": [0.25]}, dtype)

    def test_weights_that_do_not_fit(self):
        self.probe_config(2, steps=1, options="lr = 0")
        write_safetensors(self.path("w.safetensors"), {"layers.0.weight": ("F32", [[1.0, 2.0, 3.0]]),
                                                       "head.bias": ("F32", [1.0])})
        for command in (["check"], []):
            done = self.fuserun(*command, "probe.ini", "model.weights=w.safetensors", status=2)
            for word in ("model.weights", "layers.0.weight (1, 3)", "(1, 2)", "missing: layers.0.bias",
                         "unexpected: head.bias"):
                self.assertIn(word, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertFalse(os.path.exists(self.path("runs")))
        write_safetensors(self.path("w.safetensors"), {"layers.0.bias": ("F32", [7.0]), "other": ("F32", [1.0])})
        done = self.fuserun("probe.ini", "model.weights=w.safetensors", "model.strict=no")
        self.assertIn("missing: layers.0.weight", done.stderr)
        self.assertEqual(self.weights()["layers.0.bias"], [7.0])


class Failures(Case):
    def test_label_out_of_range(self):
        for label in (4, -1, 2 ** 40):
            write_safetensors(self.path("data.safetensors"),
                              {"x": ("F32", [[0.0] * 12] * 5), "y": ("I64", [0, 1, 2, label, 3])})
            self.classes_config(batch_size=2)
            done = self.fuserun("t.ini", "run.overwrite=yes", status=1)
            self.assertIn("sample 3", done.stderr)
            self.assertIn(str(label), done.stderr)
            self.assertFalse(os.path.exists(self.path("runs/t/model.safetensors")))

    def test_nan_stops_the_run_and_names_parameter_and_step(self):
        inputs = [[1.0] * 12 for _ in range(8)]
        inputs[5][2] = math.nan
        write_safetensors(self.path("data.safetensors"), {"x": ("F32", inputs), "y": ("I64", [0, 1, 2, 3] * 2)})
        for mode in MODES:
            self.classes_config(batch_size=2, data="shuffle = no", options="lr = 0.01\nmode = " + mode)
            done = self.fuserun("t.ini", "run.overwrite=yes", status=1)
            self.assertRegex(done.stderr, r"step 3\b.*layers\.[01]\.(weight|bias)")
            self.assertFalse(os.path.exists(self.path("runs/t/model.safetensors")))
            lines = self.updates()
            self.assertEqual([line["step"] for line in lines], [1, 2, 3])
            self.assertIsNone(lines[-1]["loss"])

    def test_weights_that_overflow_in_the_last_update_are_not_kept(self):
        self.probe_config(1, options="lr = 3e38")
        write_safetensors(self.path("zeros.safetensors"),
                          {"layers.0.weight": ("F32", [[-3e38]]), "layers.0.bias": ("F32", [0.0])})
        done = self.fuserun("probe.ini", status=1)
        self.assertIn("layers.0.weight", done.stderr)
        self.assertFalse(os.path.exists(self.path("runs/t/model.safetensors")))

    def test_interrupt_leaves_whole_lines(self):
        self.make_classes()
        self.classes_config(steps=10 ** 9)
        for number in (signal.SIGINT, signal.SIGTERM):
            output = "runs/%d" % number
            process = subprocess.Popen([FUSERUN, "t.ini", "run.output=" + output], cwd=self.folder,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                       env=self.environment())
            path = self.path(output, "metrics.jsonl")
            for _ in range(6000): # until something was flushed
                if os.path.exists(path) and os.path.getsize(path) > 0:
                    break
                time.sleep(0.01)
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130, errors)
            steps = [line["step"] for line in self.updates(output)]
            self.assertEqual(steps, list(range(1, len(steps) + 1)))
            self.assertIn("step %d of" % steps[-1], errors)
            self.assertFalse(os.path.exists(self.path(output, "model.safetensors")))

    def test_unwritable_output(self):
        self.make_classes()
        self.classes_config()
        self.write("file", "")
        done = self.fuserun("t.ini", "run.output=file/below", status=1)
        self.assertIn("file", done.stderr)

    def test_overwrite(self):
        self.make_classes()
        self.classes_config()
        self.fuserun("t.ini")
        first = self.metrics()
        done = self.fuserun("t.ini", status=2)
        self.assertIn("run.overwrite=yes", done.stderr)
        self.assertIn("run.output", done.stderr)
        self.assertEqual(first, self.metrics())
        for name in ("notes.txt", "memory.html", "memory.pickle", "checkpoints/step-00000002.safetensors",
                     "checkpoints/other", "config.ini.mine"):
            self.write("runs/t/" + name, "x")
        os.symlink("step-00000002.safetensors", self.path("runs/t/checkpoints/latest"))
        self.fuserun("t.ini", "run.overwrite=yes", "run.steps=2")
        self.assertEqual(len(self.updates()), 2)
        self.assertEqual(sorted(os.listdir(self.path("runs/t"))),
                         ["checkpoints", "config.ini", "config.ini.mine", "memory.html", "memory.json",
                          "metrics.jsonl", "model.safetensors", "notes.txt"])
        self.assertNotEqual(self.read("runs/t/memory.html"), b"x")
        self.assertEqual(os.listdir(self.path("runs/t/checkpoints")), ["other"])

    def test_a_folder_without_metrics_is_no_run(self):
        self.make_classes()
        self.classes_config()
        self.write("runs/t/notes.txt", "x")
        self.fuserun("t.ini")
        self.assertTrue(os.path.exists(self.path("runs/t/notes.txt")))

    def test_own_config_and_weights_are_not_replaced(self):
        self.make_classes()
        self.classes_config(name="config.ini")
        done = self.fuserun("config.ini", "run.output=.", status=2)
        self.assertIn("run.output", done.stderr)
        self.classes_config()
        self.fuserun("t.ini")
        done = self.fuserun("t.ini", "run.overwrite=yes", "model.weights=runs/t/model.safetensors", status=2)
        self.assertIn("model.weights", done.stderr)
        self.assertTrue(os.path.exists(self.path("runs/t/model.safetensors")))

    def test_a_reader_that_goes_away_does_not_stop_the_run(self):
        self.make_classes()
        self.classes_config(steps=50, rest="[eval]\nevery = 1")
        process = subprocess.Popen([FUSERUN, "t.ini"], cwd=self.folder, stdout=subprocess.PIPE, env=self.environment())
        process.stdout.close()
        self.assertEqual(process.wait(timeout=120), 0)
        self.assertEqual(len(self.updates()), 50)


if __name__ == "__main__":
    unittest.main()
