"""Going on from a checkpoint: the bits of the run that was never stopped, whatever the mode, and what the config wins."""
import json
import os
import shutil
import struct
import unittest

from support import Case, read_safetensors, write_safetensors

MODES = ("fused", "per_param", "foreach")
OWN = ("step_s", "samples_per_s", "peak_bytes")  # what the process itself took: time, and memory so far


def read_header(path):
    with open(path, "rb") as file:
        content = file.read()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8:8 + length]), content[8 + length:]


def write_header(path, header, data):
    """As another tool would, without checksums."""
    header["__metadata__"]["checksums"] = "none"
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


class Resuming(Case):
    def checkpoint(self, step, output="runs/t"):
        return self.path(output, "checkpoints", f"step-{step:08d}.safetensors")

    def lines(self, output="runs/t"):
        return [{key: value for key, value in line.items() if key not in OWN} for line in self.metrics(output)]

    def run_all(self, name="t.ini", output="runs/whole", overrides=()):
        """The run that nobody stops, with a checkpoint of every update."""
        self.fuserun(name, f"run.output={output}", "checkpoint.every=1", "checkpoint.keep=1000", *overrides)

    def check_from_everywhere(self, steps, overrides=(), name="t.ini"):
        """From each checkpoint of the whole run to its end: the same weights, states and lines."""
        self.run_all(name)
        whole = self.read("runs/whole/model.safetensors")
        for k in range(1, steps):
            with self.subTest(from_step=k):
                shutil.rmtree(self.path("runs/t"), ignore_errors=True)
                self.fuserun(name, f"run.resume={self.checkpoint(k, 'runs/whole')}", "checkpoint.every=1 epoch",
                             *overrides)
                self.assertEqual(self.read("runs/t/model.safetensors"), whole)
                self.assertEqual(read_safetensors(self.checkpoint(steps)),
                                 read_safetensors(self.checkpoint(steps, "runs/whole")))
                # What stands behind the line of the update that was done last: the whole run's, from there on.
                lines = self.lines("runs/whole")
                at = max(i for i, line in enumerate(lines) if line["step"] == k and "skipped" not in line)
                self.assertEqual(self.lines(), lines[at + 1:])


class EveryMode(Resuming):
    def test_row_21_sixty_updates_in_sixty_pieces_each_in_another_mode(self):
        """Each piece ends after one update and the next goes on in another mode: byte for byte the uninterrupted run."""
        self.make_classes(count=50)
        self.classes_config(steps=60, options="lr = 0.01\nweight_decay = 0.1", run="seed = 3", rest="""[group bias]
match = *bias
weight_decay = 0
[scheduler]
plugin = cosine
t_max = 60
[checkpoint]
every = 7
keep = 2
""")
        self.fuserun("t.ini", "run.output=runs/whole")
        for k in range(1, 61):
            self.fuserun("t.ini", f"run.steps={k}", f"optimizer.mode={MODES[k % 3]}")
        self.assertEqual(self.read("runs/t/model.safetensors"), self.read("runs/whole/model.safetensors"))
        self.assertEqual(self.lines(), self.lines("runs/whole"))
        self.assertEqual(len(self.lines()), 60)
        self.assertEqual(read_safetensors(self.checkpoint(60)), read_safetensors(self.checkpoint(60, "runs/whole")))
        self.assertEqual(sorted(os.listdir(self.path("runs/t/checkpoints"))),
                         ["latest", "step-00000059.safetensors", "step-00000060.safetensors"])

    def test_row_20_a_resumed_run_is_not_a_cold_start(self):
        self.make_classes()
        self.classes_config(steps=12)
        self.run_all()
        self.fuserun("t.ini", f"run.resume={self.checkpoint(6, 'runs/whole')}")
        self.assertEqual(self.read("runs/t/model.safetensors"), self.read("runs/whole/model.safetensors"))
        # The same weights with states of zero end elsewhere, so the comparison above says something.
        header, data = read_header(self.checkpoint(6, "runs/whole"))
        weights = {name: entry for name, entry in header.items() if name.startswith("layers.")}
        values = read_safetensors(self.checkpoint(6, "runs/whole"))
        nested = {}
        for name, entry in weights.items():
            flat, shape = values[name], entry["shape"]
            nested[name] = ("F32", flat if len(shape) == 1 else
                            [flat[i * shape[1]:(i + 1) * shape[1]] for i in range(shape[0])])
        write_safetensors(self.path("w.safetensors"), nested)
        self.fuserun("t.ini", "model.weights=w.safetensors", "run.output=runs/cold", "run.steps=6")
        self.assertNotEqual(self.read("runs/cold/model.safetensors"), self.read("runs/whole/model.safetensors"))

    def test_row_24_shuffle_and_dropout_in_the_middle_of_an_epoch(self):
        """A small ViT with dropout, seven batches an epoch, the last of them shorter."""
        self.write("t.ini", """[run]
name = t
steps = 10
[model]
plugin = vit
image_size = 8
patch_size = 4
num_layers = 2
num_heads = 2
hidden_dim = 16
mlp_dim = 24
num_classes = 5
dropout = 0.1
attention_dropout = 0.1
[data]
plugin = random_images
image_size = 8
channels = 3
classes = 5
length = 13
batch_size = 4
[optimizer]
plugin = adamw
lr = 1e-3
""")
        for overrides in ((), ("optimizer.mode=foreach",)):
            self.check_from_everywhere(10, overrides)

    def test_clipping_in_the_same_mode(self):
        self.make_classes()
        for mode in MODES:
            self.classes_config(steps=9, options=f"lr = 0.01\nmode = {mode}\nclip_grad_norm = 0.5")
            shutil.rmtree(self.path("runs"), ignore_errors=True)
            self.check_from_everywhere(9)


    def test_accumulation(self):
        """An update of three micro-batches; an epoch's last has one, and that a shorter one."""
        self.make_classes(count=50)
        for mode in MODES:
            shutil.rmtree(self.path("runs"), ignore_errors=True)
            self.classes_config(steps=7, options=f"lr = 0.01\naccumulate = 3\nmode = {mode}")
            self.check_from_everywhere(7)

    def test_rules_that_keep_more_than_moments(self):
        """A rule's own numbers (nadam), its first update (sgd), rows and columns (adafactor), a matrix (muon)."""
        self.make_classes()
        muon = "[group bias]\nmatch = *bias\nplugin = adamw\n"
        for optimizer, options, rest in (("nadam", "lr = 0.01", ""), ("sgd", "lr = 0.1\nmomentum = 0.9\nnesterov = yes", ""),
                                         ("adam", "lr = 0.01\namsgrad = yes", ""), ("adafactor", "lr = 0.01", ""),
                                         ("rprop", "lr = 0.01", ""), ("asgd", "lr = 0.01", ""), ("radam", "lr = 0.01", ""),
                                         ("muon", "lr = 0.01", muon)):
            with self.subTest(optimizer=optimizer):
                self.classes_config(steps=8, optimizer=optimizer, options=options, rest=rest)
                shutil.rmtree(self.path("runs"), ignore_errors=True)
                self.run_all()
                self.fuserun("t.ini", f"run.resume={self.checkpoint(5, 'runs/whole')}", "optimizer.mode=per_param",
                             "checkpoint.every=1")
                self.assertEqual(self.read("runs/t/model.safetensors"), self.read("runs/whole/model.safetensors"))
                self.assertEqual(read_safetensors(self.checkpoint(8)),
                                 read_safetensors(self.checkpoint(8, "runs/whole")))

    def test_across_modes_with_clipping(self):
        """The norm is summed in another order then: to 1e-5 of each tensor's largest element after 10 updates."""
        self.make_classes()
        self.classes_config(steps=16, options="lr = 0.01\nclip_grad_norm = 0.5")
        self.run_all()
        whole = self.weights("runs/whole")
        for mode in MODES:
            self.fuserun("t.ini", f"run.resume={self.checkpoint(6, 'runs/whole')}", f"optimizer.mode={mode}")
            for name, values in self.weights().items():
                largest = max(abs(value) for value in whole[name])
                for a, b in zip(values, whole[name]):
                    self.assertAlmostEqual(a, b, delta=1e-5 * largest)

    def test_skipped_updates(self):
        """nonfinite = skip: attempts use up batches without counting, also between a checkpoint and its step's end."""
        self.make_classes(count=20)
        tensors = read_safetensors(self.path("data.safetensors"))
        rows = [tensors["x"][i * 12:(i + 1) * 12] for i in range(20)]
        rows[9][3] = float("nan")
        write_safetensors(self.path("data.safetensors"), {"x": ("F32", rows), "y": ("I64", tensors["y"])})
        self.classes_config(steps=9, batch_size=3, run="nonfinite = skip")
        self.check_from_everywhere(9)
        self.assertEqual(sum(line.get("skipped", False) for line in self.lines("runs/whole")), 2)
        # In one folder: the lines behind the checkpoint are cut, skipped ones of its own step too.
        lines = self.lines("runs/whole")
        at = next(i for i, line in enumerate(lines) if line.get("skipped"))
        os.remove(self.path("runs/whole/model.safetensors"))
        self.fuserun("t.ini", "run.output=runs/whole", f"run.resume={self.checkpoint(lines[at]['step'], 'runs/whole')}",
                     "checkpoint.every=1")
        self.assertEqual(self.lines("runs/whole"), lines)


class Schedules(Resuming):
    def test_row_13_the_sequence_of_learning_rates(self):
        """constant 0.1 for 3, then exponential 0.9: each update's rate as the weights show it, stopped after every one."""
        rest = """[scheduler]
plugin = sequential
stages = first, then
milestones = 3
[scheduler.first]
plugin = constant
factor = 0.1
total_iters = 100
[scheduler.then]
plugin = exponential
gamma = 0.9
[checkpoint]
every = 1
keep = 100
"""
        wanted = [0.1, 0.1, 0.1] + [0.9 ** k for k in range(5)]
        self.probe_config(8, options="lr = 1", rest=rest)
        self.fuserun("probe.ini", "run.output=runs/whole")
        for k in range(1, 8):
            self.fuserun("probe.ini", f"run.resume={self.checkpoint(k, 'runs/whole')}")
            used = [-value for value in self.weights()["layers.0.weight"]]
            logged = [line["lr"]["default"] for line in self.updates()]
            for step, rate in enumerate(wanted):
                self.assertAlmostEqual(used[step], rate, delta=1e-7)
            self.assertEqual(logged, [line["lr"]["default"] for line in self.updates("runs/whole")][k:])
            shutil.rmtree(self.path("runs/t"))

    def test_rows_7_9_what_is_logged_is_what_is_used(self):
        """After a restart, for every kind of schedule: the logged rate is the one that moved the weight."""
        schedulers = ("plugin = linear\ntotal_iters = 6", "plugin = cosine\nt_max = 10", "plugin = step\nstep_size = 3",
                          "plugin = onecycle\nmax_lr = 0.5\ncycle_momentum = no", "plugin = polynomial\ntotal_iters = 8",
                          "plugin = cosine_restarts\nt_0 = 3", "plugin = inverse_sqrt\nwarmup = 3",
                          "plugin = cyclic\nbase_lr = 0.1\nmax_lr = 0.5\nstep_size_up = 3\ncycle_momentum = no",
                          "plugin = warmup_stable_decay\nwarmup = 3\ndecay = 4", "plugin = multistep\nmilestones = 2, 7",
                          "plugin = formula\nexpr = base * 0.5 ^ floor(step / 3)")
        for i, scheduler in enumerate(schedulers):
            with self.subTest(scheduler=scheduler):
                self.probe_config(10, mode=MODES[i % 3], options="lr = 0.5", rest=f"[scheduler]\n{scheduler}\n[checkpoint]\nevery = 4\n")
                shutil.rmtree(self.path("runs"), ignore_errors=True)
                self.fuserun("probe.ini", "run.output=runs/whole")
                self.fuserun("probe.ini", f"run.resume={self.checkpoint(4, 'runs/whole')}")
                self.assertEqual(self.read("runs/t/model.safetensors"), self.read("runs/whole/model.safetensors"), scheduler)
                used = [-value for value in self.weights()["layers.0.weight"]]
                for line in self.updates():
                    rate = line["lr"]["default"]
                    self.assertAlmostEqual(used[line["step"] - 1], rate, delta=1e-6 * 0.5, msg=(scheduler, line))

    PLATEAU = """[eval]
file = data.safetensors
every = 3 steps
[scheduler]
plugin = plateau
patience = 0
threshold = 0.3
factor = 0.5
cooldown = 1
"""

    def test_a_plateau_goes_on_where_it_was(self):
        self.make_classes()
        self.classes_config(steps=16, rest=self.PLATEAU)
        self.check_from_everywhere(16)
        rates = {line["lr"]["default"] for line in self.updates("runs/whole")}
        self.assertGreater(len(rates), 2)  # or the test says nothing

    def test_row_19_a_checkpoint_that_knows_nothing_of_schedules(self):
        self.make_classes()
        self.classes_config(steps=8)
        self.run_all()
        # Its config had none: the base rate is the config's, the step the checkpoint's, and one notice says so.
        scheduler = "[scheduler]\nplugin = linear\nstart_factor = 0.5\ntotal_iters = 8\n"
        self.classes_config(steps=8, rest=scheduler)
        told = self.fuserun("t.ini", f"run.resume={self.checkpoint(4, 'runs/whole')}").stderr
        self.assertEqual(told.count("warning"), 1, told)
        self.assertRegex(told, r"t\.ini:\d+: warning: scheduler\.plugin: the section is not in the checkpoint's config")
        self.assertEqual([line["step"] for line in self.updates()], [5, 6, 7, 8])
        for line in self.updates():
            self.assertAlmostEqual(line["lr"]["default"], 0.01 * (0.5 + 0.5 * (line["step"] - 1) / 8), delta=1e-12)
        # The metadata was lost.
        header, data = read_header(self.checkpoint(4, "runs/whole"))
        for key in ("scheduler", "config", "plugins", "optimizers", "random.seed"):
            del header["__metadata__"][key]
        write_header(self.path("bare.safetensors"), header, data)
        shutil.rmtree(self.path("runs/t"))
        told = self.fuserun("t.ini", "run.resume=bare.safetensors").stderr
        self.assertEqual(told.count("warning"), 1, told)
        self.assertIn("holds no config to compare with", told)
        self.assertEqual([line["step"] for line in self.updates()], [5, 6, 7, 8])
        # A schedule with a state begins afresh.
        self.classes_config(steps=8, rest=self.PLATEAU)
        told = self.fuserun("t.ini", f"run.resume={self.checkpoint(4, 'runs/whole')}").stderr
        self.assertIn("scheduler.plugin: the checkpoint knows nothing of these schedules: from step 4 on", told)


class ConfigWins(Resuming):
    def test_row_23_rate_decay_and_schedule(self):
        """New values hold from the first resumed update on, moments stay, each difference is told."""
        self.make_classes()
        self.classes_config(steps=8, options="lr = 0.01\nweight_decay = 0.1")
        self.run_all()
        self.classes_config(steps=8, options="lr = 0.002\nweight_decay = 0.5")
        told = self.fuserun("t.ini", f"run.resume={self.checkpoint(7, 'runs/whole')}", "checkpoint.every=1").stderr
        self.assertEqual(sorted(line.split(": warning: ")[1] for line in told.splitlines()),
                         ["optimizer.lr: 0.002 here, 0.01 in the checkpoint's config; the one here holds",
                          "optimizer.weight_decay: 0.5 here, 0.1 in the checkpoint's config; the one here holds"])
        self.assertEqual([line["lr"]["default"] for line in self.updates()], [0.002])
        # AdamW by hand, from the checkpoint's moments and the gradient that the moments after it tell.
        before, after = (read_safetensors(self.checkpoint(k, "runs/whole")) for k in (7, 8))
        new = read_safetensors(self.checkpoint(8))
        for name in ("layers.0.weight", "layers.1.bias"):
            moment, square = f"optimizer/{name}/exp_avg", f"optimizer/{name}/exp_avg_sq"
            self.assertEqual(new[moment], after[moment])  # the same gradient on the same moments
            self.assertEqual(new[square], after[square])
            for p, m, v, result in zip(before[name], new[moment], new[square], new[name]):
                denominator = (v / (1 - 0.999 ** 8)) ** 0.5 + 1e-8
                expected = p * (1 - 0.002 * 0.5) - 0.002 * m / (1 - 0.9 ** 8) / denominator
                self.assertAlmostEqual(result, expected, delta=1e-6)

    def test_what_does_not_matter_is_not_told(self):
        self.make_classes()
        self.classes_config(steps=8)
        self.run_all()
        told = self.fuserun("t.ini", f"run.resume={self.checkpoint(4, 'runs/whole')}", "run.name=other", "run.progress=off",
                            "memory.snapshot=yes", "checkpoint.every=3", "run.resume_strict=no").stderr
        self.assertEqual(told, "")

    def test_another_batch_size_begins_an_epoch(self):
        self.make_classes(count=50)
        self.classes_config(steps=5)
        self.run_all()
        for override in ("data.batch_size=4", "data.batch_size=16", "optimizer.accumulate=2"):
            told = self.fuserun("t.ini", f"run.resume={self.checkpoint(3, 'runs/whole')}", override, "run.output=runs/u",
                                "run.overwrite=yes").stderr
            self.assertIn("data.plugin: the checkpoint's place, 3 batches of 8 into an epoch of 50 samples", told)
            self.assertEqual([line["step"] for line in self.updates("runs/u")][-2:], [4, 5])


class Fit(Resuming):
    def setUp(self):
        super().setUp()
        self.make_classes()
        self.classes_config(steps=8)
        self.run_all()
        self.from_4 = f"run.resume={self.checkpoint(4, 'runs/whole')}"

    def refused(self, *overrides):
        """By `check` and by the run, at the line that says where to resume from; nothing is written."""
        before = self.left_behind()
        for command in (["check"], []):
            told = self.fuserun(*command, "t.ini", self.from_4, *overrides, status=2).stderr
            errors = [line for line in told.splitlines() if ": warning: " not in line]
            self.assertEqual(len(errors), 1, told)
            self.assertTrue(errors[0].startswith("command line: run.resume: the checkpoint '"), told)
            self.assertIn("run.resume_strict = no takes what matches", told)
        self.assertEqual(self.left_behind(), before)
        return errors[0]

    def test_another_optimizer(self):
        told = self.refused("optimizer.plugin=adam")
        self.assertIn("trained by another optimizer: layers.0.weight (adamw, not adam), layers.0.bias (adamw, not adam)", told)
        told = self.refused("optimizer.plugin=sgd")
        self.assertIn("layers.1.bias (adamw, not sgd)", told)
        told = self.refused("optimizer.amsgrad=yes")
        self.assertIn("with other optimizer states: layers.0.weight, layers.0.bias, layers.1.weight, layers.1.bias", told)

    def test_another_shape(self):
        told = self.refused("model.sizes=12,32,4")
        self.assertIn("layers.0.weight F32 (24, 12) where the model has (32, 12)", told)
        self.assertNotIn("layers.1.bias", told)

    def test_other_names(self):
        told = self.refused("model.sizes=12,24,4,4")
        self.assertIn("missing: layers.2.weight, layers.2.bias", told)
        self.classes_config(steps=8, rest="[checkpoint]\nevery = 1\n")
        self.fuserun("t.ini", "model.sizes=12,24,4,4", "run.output=runs/deep")
        self.from_4 = f"run.resume={self.checkpoint(8, 'runs/deep')}"
        told = self.refused("model.sizes=12,24,4", "run.steps=9")
        self.assertIn("unexpected: layers.2.bias, layers.2.weight", told)

    def test_lax_takes_what_matches(self):
        lax = ("run.resume_strict=no", "checkpoint.every=1", "optimizer.lr=0", "run.steps=5", "optimizer.weight_decay=0")
        saved = read_safetensors(self.checkpoint(4, "runs/whole"))
        told = self.fuserun("t.ini", self.from_4, *lax, "model.sizes=12,24,4,4").stderr
        self.assertIn("warning: run.resume: resume_strict = no: taken is what matches", told)
        self.assertIn("missing: layers.2.weight, layers.2.bias", told)
        now = read_safetensors(self.checkpoint(5))
        for name in ("layers.0.weight", "layers.1.bias"):
            self.assertEqual(now[name], saved[name])
            self.assertEqual(now[f"optimizer/{name}/step"], [5])
        self.assertEqual(now["optimizer/layers.2.weight/step"], [1])
        # Another optimizer: the weights are taken, the states begin.
        shutil.rmtree(self.path("runs/t"))
        told = self.fuserun("t.ini", self.from_4, *lax, "optimizer.plugin=sgd").stderr
        self.assertIn("trained by another optimizer", told)
        now = read_safetensors(self.checkpoint(5))
        self.assertEqual(now["layers.0.weight"], saved["layers.0.weight"])
        self.assertEqual(now["optimizer/layers.0.weight/step"], [1])
        # Nothing matches: that is no resume.
        self.classes_config(steps=8, rest="[checkpoint]\nevery = 1\n")
        header, data = read_header(self.checkpoint(4, "runs/whole"))
        renamed = {name.replace("layers.", "blocks."): entry for name, entry in header.items()}
        write_header(self.path("renamed.safetensors"), renamed, data)
        told = self.fuserun("t.ini", "run.resume=renamed.safetensors", "run.resume_strict=no", "run.output=runs/u",
                            status=2).stderr
        self.assertIn("nothing of it matches, resume = never starts afresh", told)

    def test_row_27_a_frozen_parameter_keeps_what_it_had(self):
        """Train, freeze and train, unfreeze and train: the frozen one's moments and count are those of before."""
        saved = read_safetensors(self.checkpoint(4, "runs/whole"))
        mine = [name for name in saved if name.startswith("optimizer/layers.0.weight/")] + ["layers.0.weight"]
        self.fuserun("t.ini", self.from_4, "model.freeze=layers.0.weight", "run.steps=6", "checkpoint.every=1")
        for step in (5, 6):
            now = read_safetensors(self.checkpoint(step))
            self.assertEqual({name: now[name] for name in mine}, {name: saved[name] for name in mine})
            self.assertNotEqual(now["layers.1.weight"], saved["layers.1.weight"])
        # Twice frozen is kept as well, whatever else changes; then it goes on.
        self.fuserun("t.ini", "model.freeze=layers.0.*", "run.steps=7", "checkpoint.every=1")
        self.fuserun("t.ini", "run.steps=8", "checkpoint.every=1")
        now = read_safetensors(self.checkpoint(8))
        self.assertEqual(now["optimizer/layers.0.weight/step"], [5])
        self.assertEqual(now["optimizer/layers.0.bias/step"], [7])
        self.assertEqual(now["optimizer/layers.1.weight/step"], [8])
        self.assertNotEqual(now["layers.0.weight"], saved["layers.0.weight"])

    def test_row_27_a_parameter_that_was_never_trained_begins_at_zero(self):
        self.fuserun("t.ini", "model.freeze=layers.0.*", "run.steps=4", "checkpoint.every=1")
        now = read_safetensors(self.checkpoint(4))
        self.assertFalse([name for name in now if name.startswith("optimizer/layers.0.")])
        told = self.fuserun("t.ini", "run.steps=6", "checkpoint.every=1").stderr
        self.assertIn("at zero begin states of: layers.0.weight, layers.0.bias", told)
        now = read_safetensors(self.checkpoint(6))
        self.assertEqual(now["optimizer/layers.0.weight/step"], [2])
        self.assertEqual(now["optimizer/layers.1.weight/step"], [6])


class Where(Resuming):
    def test_auto_never_and_paths(self):
        self.make_classes()
        self.classes_config(steps=8, rest="[checkpoint]\nevery = 2\nkeep = 10\n")
        self.fuserun("t.ini")
        whole, lines = self.read("runs/t/model.safetensors"), self.lines()
        done = self.fuserun("t.ini")
        self.assertEqual(done.stdout, f"all 8 updates are done already, results in {self.path('runs/t')} "
                                      "(run.resume=never starts afresh)\n")
        self.fuserun("t.ini", "run.resume=never", status=2)
        before = self.read("runs/t/checkpoints/latest")
        for path, at in ((self.checkpoint(4), 4), ("runs/t/checkpoints/step-00000002.safetensors", 2), ("runs/t", 6),
                         ("runs/t/checkpoints", 6), ("runs/t/checkpoints/latest", 6)):
            with self.subTest(path=path):
                if at == 6:
                    os.remove(self.checkpoint(8))
                os.remove(self.path("runs/t/model.safetensors"))
                told = self.fuserun("t.ini", f"run.resume={path}").stdout
                self.assertIn(f"resumed from step {at}, ", told)
                self.assertEqual(self.read("runs/t/model.safetensors"), whole)
                self.assertEqual(self.lines(), lines)
                self.assertEqual(self.read("runs/t/checkpoints/latest"), before)
        # A relative path in a file is relative to that file.
        os.mkdir(self.path("elsewhere"))
        shutil.copy(self.checkpoint(4), self.path("c.safetensors"))
        self.classes_config(steps=8, run="resume = c.safetensors\noutput = out")
        self.fuserun("../t.ini", cwd=self.path("elsewhere"))
        self.assertEqual(self.read("elsewhere/out/model.safetensors"), whole)
        self.assertEqual([line["step"] for line in self.updates("elsewhere/out")], [5, 6, 7, 8])

    def test_later_checkpoints_and_unfinished_files_go(self):
        self.make_classes()
        self.classes_config(steps=8, rest="[checkpoint]\nevery = 2\nkeep = 10\n")
        self.fuserun("t.ini")
        for name in (".step-00000008.safetensors.77-3.tmp", ".latest.1-2.tmp", "mine.tmp", ".step-8.safetensors.1-1.tmp"):
            self.write(f"runs/t/checkpoints/{name}", "")
        self.write("runs/t/.model.safetensors.5-0.tmp", "")
        self.write("runs/t/.metrics.jsonl.tmp", "")
        self.fuserun("t.ini", f"run.resume={self.checkpoint(4)}", "run.steps=5")
        self.assertEqual(sorted(os.listdir(self.path("runs/t/checkpoints"))),
                         [".step-8.safetensors.1-1.tmp", "latest", "mine.tmp"] +
                         [f"step-0000000{k}.safetensors" for k in (2, 4, 5)])
        self.assertEqual(sorted(name for name in os.listdir(self.path("runs/t")) if name.endswith(".tmp")),
                         [".metrics.jsonl.tmp"])

    def test_the_weights_may_be_missing_when_all_is_done(self):
        """A run killed between its last checkpoint and its model.safetensors."""
        self.make_classes()
        self.classes_config(steps=8, rest="[checkpoint]\nevery = 2\n")
        self.fuserun("t.ini")
        whole, lines = self.read("runs/t/model.safetensors"), self.lines()
        os.remove(self.path("runs/t/model.safetensors"))
        self.fuserun("t.ini")
        self.assertEqual(self.read("runs/t/model.safetensors"), whole)
        self.assertEqual(self.lines(), lines)

    def test_half_a_line_is_cut(self):
        self.make_classes()
        self.classes_config(steps=8, rest="[checkpoint]\nevery = 2\n")
        self.fuserun("t.ini")
        lines = self.lines()
        content = self.read("runs/t/metrics.jsonl")
        for cut in (content[:-20], content + b'{"step":9', content + b"{", content[:content.index(b'"step":7') + 9]):
            os.remove(self.path("runs/t/model.safetensors"))
            with open(self.path("runs/t/metrics.jsonl"), "wb") as file:
                file.write(cut)
            self.fuserun("t.ini", f"run.resume={self.checkpoint(6)}")
            self.assertEqual(self.lines(), lines)

    def test_a_nul_byte_takes_one_line(self):
        """Of a disk that lost a block: the lines before and behind it stay."""
        self.make_classes()
        self.classes_config(steps=8, rest="[checkpoint]\nevery = 2\n")
        self.fuserun("t.ini")
        lines, content = self.lines(), self.read("runs/t/metrics.jsonl")
        for damaged, kept in ((content.replace(b'"step":3,', b'"step":3\0,'), lines[:2] + lines[3:]),
                              (b"\0" * 4096 + content, lines[1:]),
                              (content.replace(b'{"step":5,', b'\0"step":5,'), lines[:4] + lines[5:]),
                              (content[:content.index(b'{"step":6')] + b"\0" * 100, lines[:5] + lines[6:])):
            os.remove(self.path("runs/t/model.safetensors"))
            with open(self.path("runs/t/metrics.jsonl"), "wb") as file:
                file.write(damaged)
            self.fuserun("t.ini", f"run.resume={self.checkpoint(6)}")
            self.assertEqual(self.lines(), kept)

    def test_another_version_of_a_plugin_is_told(self):
        self.make_classes()
        self.classes_config(steps=8, rest="[checkpoint]\nevery = 4\n")
        self.fuserun("t.ini", "run.steps=4")
        self.assertNotIn("version", self.fuserun("t.ini", "run.steps=5").stderr)
        header, data = read_header(self.checkpoint(5))
        plugins = header["__metadata__"]["plugins"]
        header["__metadata__"]["plugins"] = plugins.replace("optimizer adamw 1.", "optimizer adamw 9.")
        header["__metadata__"]["config"] += "[memory x]\nrecompute = none\n"
        write_header(self.checkpoint(5), header, data)
        told = self.fuserun("t.ini").stderr
        self.assertRegex(told, r"warning: run\.resume: the optimizer 'adamw' is of version 1\.\S+ here, the checkpoint "
                               r"was made with 9\.")
        self.assertEqual(told.count("version"), 1)
        self.assertIn("memory x.recompute: the checkpoint's config has this section", told)

    def test_check_shows_where_it_goes_on(self):
        self.make_classes()
        self.classes_config(steps=8, rest="[checkpoint]\nevery = 2\nbackground = yes\n")
        shown = self.fuserun("check", "t.ini").stdout
        self.assertNotIn("resume      from", shown)
        self.assertRegex(shown, r"checkpoints every 2 updates, 3 kept, .* background: the copy they are written from takes")
        plans = [json.loads(self.fuserun("check", "t.ini", "--json", f"checkpoint.background={background}").stdout)
                 for background in ("no", "yes")]
        self.fuserun("t.ini", "run.steps=4")
        before = self.left_behind()
        self.assertIn(f"resume      from step 4, {self.checkpoint(4)}\n", self.fuserun("check", "t.ini").stdout)
        self.assertEqual(self.left_behind(), before)
        # The copy of weights and states is planned, and is what the run then takes.
        copied = plans[1]["memory"]["parameter"] + plans[1]["memory"]["optimizer_state"]
        self.assertEqual(plans[1]["memory"]["workspace"] - plans[0]["memory"]["workspace"], copied)
        self.assertEqual(plans[1]["peak_bytes"] - plans[0]["peak_bytes"], copied)
        self.fuserun("t.ini", "run.resume=never", "run.overwrite=yes")
        self.assertEqual(self.updates()[-1]["peak_bytes"], plans[1]["peak_bytes"])

    def test_background_writes_the_same_files(self):
        self.make_classes()
        rest = "[checkpoint]\nevery = 1\nkeep = 100\n"
        for background in ("no", "yes"):
            self.classes_config(steps=10, run="output = out", rest=rest + f"background = {background}\n")
            self.fuserun("t.ini")
            os.rename(self.path("out"), self.path(background))
        for step in range(1, 11):
            a, b = (read_header(self.path(background, "checkpoints", f"step-{step:08d}.safetensors"))
                    for background in ("no", "yes"))
            self.assertEqual(a[1], b[1])
            self.assertEqual({**a[0], "__metadata__": 0}, {**b[0], "__metadata__": 0})


if __name__ == "__main__":
    unittest.main()
