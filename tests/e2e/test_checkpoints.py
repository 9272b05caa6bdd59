"""Saving checkpoints: when, how many stay, what they hold, what a signal does, and files that are not whole."""
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import time
import unittest

from support import FUSERUN, SLOW, Case, read_safetensors


class Checkpoints(Case):
    def names(self, output="runs/t"):
        return sorted(os.listdir(self.path(output, "checkpoints")))

    def step(self, step, output="runs/t"):
        return self.path(output, "checkpoints", f"step-{step:08d}.safetensors")

    def header(self, path):
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            return json.loads(file.read(length))

    def setUp(self):
        super().setUp()
        self.make_classes()


class Saving(Checkpoints):
    def test_every_and_keep(self):
        self.classes_config(steps=20)  # 7 updates an epoch
        for every, keep, steps in (("5", 10, [5, 10, 15, 20]), ("6 steps", 2, [18, 20]), ("1 epoch", 10, [7, 14, 20]),
                                   ("100", 3, [20]), ("10", 1, [20])):
            self.fuserun("t.ini", f"checkpoint.every={every}", f"checkpoint.keep={keep}", "run.resume=never",
                         "run.overwrite=yes")
            self.assertEqual(self.names(), ["latest"] + [f"step-{step:08d}.safetensors" for step in steps], every)
            self.assertEqual(os.readlink(self.path("runs/t/checkpoints/latest")), "step-00000020.safetensors")
        self.fuserun("t.ini", "run.resume=never", "run.overwrite=yes")
        self.assertFalse(os.path.exists(self.path("runs/t/checkpoints")))

    def test_what_it_holds(self):
        self.classes_config(steps=10, rest="[checkpoint]\nevery = 10\n")
        self.fuserun("t.ini")
        tensors = read_safetensors(self.step(10))
        weights = self.weights()
        self.assertEqual({name: tensors[name] for name in weights}, weights)
        for name in weights:
            self.assertEqual(tensors[f"optimizer/{name}/step"], [10])
            self.assertEqual(len(tensors[f"optimizer/{name}/exp_avg"]), len(weights[name]))
            self.assertTrue(any(value != 0 for value in tensors[f"optimizer/{name}/exp_avg_sq"]))
        self.assertEqual(len(tensors), 4 * len(weights))
        metadata = self.header(self.step(10))["__metadata__"]
        self.assertEqual([metadata[key] for key in ("format", "clock.step", "data.epoch", "data.batches", "data.drawn")],
                         ["fuserun checkpoint 1", "10", "2", "3", "10"])
        self.assertEqual(metadata["config"], self.read("runs/t/config.ini").decode())
        self.assertIn("optimizer adamw 1.", metadata["plugins"])
        listed = json.loads(self.fuserun("inspect", self.step(10), "--json").stdout)
        self.assertEqual({entry["name"] for entry in listed}, set(tensors))

    def test_export_takes_the_weights(self):
        self.classes_config(steps=4, rest="[checkpoint]\nevery = 2\n")
        self.fuserun("t.ini")
        for path, name in (("runs/t", "a.pth"), ("runs/t/checkpoints/latest", "b.pth")):
            self.fuserun("export", path, "--to", name)
        self.assertEqual(self.read("a.pth"), self.read("b.pth"))

    def test_weights_that_are_not_finite_are_not_saved(self):
        self.classes_config(steps=6, optimizer="sgd", options="lr = 1e37", rest="[checkpoint]\nevery = 1\n")
        told = self.fuserun("t.ini", status=1).stderr
        self.assertRegex(told, "not finite")
        for name in self.names():
            values = read_safetensors(self.path("runs/t/checkpoints", name))
            self.assertTrue(all(abs(value) < float("inf") for key in self.weights_of(values) for value in values[key]))

    @staticmethod
    def weights_of(tensors):
        return [name for name in tensors if name.startswith("layers.")]

    def test_a_checkpoint_serves_as_weights(self):
        self.classes_config(steps=4, rest="[checkpoint]\nevery = 2\n")
        self.fuserun("t.ini")
        self.fuserun("t.ini", "model.weights=runs/t/checkpoints/latest", "run.output=runs/u", "checkpoint.every=",
                     "optimizer.plugin=sgd", "optimizer.lr=0", "run.steps=1")
        self.assertEqual(self.weights("runs/u"), self.weights())


class Damage(Checkpoints):
    def test_the_one_before_is_taken(self):
        self.classes_config(steps=12, rest="[checkpoint]\nevery = 4\n")
        self.fuserun("t.ini")
        whole = self.read("runs/t/model.safetensors")
        newest = self.read("runs/t/checkpoints/latest")
        (header,) = struct.unpack("<Q", newest[:8])
        damaged = {
            "truncated": newest[:-7],
            "empty": b"",
            "a bit in the data": newest[:-9] + bytes([newest[-9] ^ 1]) + newest[-8:],
            "a bit in the header": newest.replace(b'"clock.step":"12"', b'"clock.step":"13"', 1),
            "a bit in a checksum": newest[:50] + (b"0" if newest[50:51] != b"0" else b"1") + newest[51:],
            "header's length": struct.pack("<Q", header + 1) + newest[8:],
            "zeros": bytes(len(newest)),
        }
        for what, content in damaged.items():
            with self.subTest(what=what):
                self.assertNotEqual(content, newest)
                with open(self.step(12), "wb") as file:
                    file.write(content)
                os.remove(self.path("runs/t/model.safetensors"))
                told = self.fuserun("check", "t.ini").stderr
                self.assertRegex(told, r"t\.ini:\d+: warning: run\.resume: .*trying the checkpoint before it")
                told = self.fuserun("t.ini").stderr
                self.assertIn("trying the checkpoint before it", told)
                self.assertEqual(self.read("runs/t/model.safetensors"), whole)
                self.assertEqual(self.read("runs/t/checkpoints/latest")[200:], newest[200:])
                self.assertEqual([line["step"] for line in self.updates()], list(range(1, 13)))

    def test_a_folder_in_the_way_is_seen_before_anything_is_removed(self):
        self.classes_config(steps=8, rest="[checkpoint]\nevery = 4\n")
        self.fuserun("t.ini")
        for name in ("checkpoints/latest", "checkpoints/step-00000006.safetensors", "model.safetensors", "memory.json"):
            with self.subTest(name=name):
                shutil.rmtree(self.path("runs/o"), ignore_errors=True)
                shutil.copytree(self.path("runs/t"), self.path("runs/o"), symlinks=True)
                if os.path.lexists(self.path("runs/o", name)):
                    os.remove(self.path("runs/o", name))
                os.mkdir(self.path("runs/o", name))
                before = sorted(os.listdir(self.path("runs/o"))), sorted(os.listdir(self.path("runs/o/checkpoints")))
                told = self.fuserun("t.ini", "run.output=runs/o", "run.resume=never", "run.overwrite=yes", status=1).stderr
                self.assertRegex(told, f"'.*{name}' is a directory, where a run has a file of its own; nothing was removed")
                self.assertEqual(before, (sorted(os.listdir(self.path("runs/o"))),
                                          sorted(os.listdir(self.path("runs/o/checkpoints")))))
                if name == "checkpoints/latest":  # not only at the next checkpoint
                    os.remove(self.path("runs/o/model.safetensors"))
                    told = self.fuserun("t.ini", "run.output=runs/o", "run.steps=100", status=1).stderr
                    self.assertIn("is a directory, where a run has a file of its own", told)

    def test_a_pipe_is_no_file(self):
        self.classes_config(steps=8, rest="[checkpoint]\nevery = 4\n")
        self.fuserun("t.ini")
        for name, command, status in (("metrics.jsonl", ["report", "runs/t"], 2), ("memory.json", ["report", "runs/t"], 2),
                                      ("memory.json", ["compare", "runs/t", "runs/t"], 2),
                                      ("metrics.jsonl", ["t.ini", "run.steps=12"], 1)):
            with self.subTest(name=name, command=command):
                content = self.read("runs/t", name)
                os.remove(self.path("runs/t", name))
                os.mkfifo(self.path("runs/t", name))
                self.assertIn(f"{name}': not a regular file", self.fuserun(*command, status=status).stderr)
                os.remove(self.path("runs/t", name))
                with open(self.path("runs/t", name), "wb") as file:
                    file.write(content)

    def test_a_link_that_leads_elsewhere_is_put_right(self):
        """As after a run that was ended between its last checkpoint and the link."""
        self.classes_config(steps=8, rest="[checkpoint]\nevery = 4\n")
        self.fuserun("t.ini")
        whole, link = self.read("runs/t/model.safetensors"), self.path("runs/t/checkpoints/latest")
        os.remove(link)
        os.symlink("step-00000004.safetensors", link)
        self.fuserun("t.ini")
        self.assertEqual(os.readlink(link), "step-00000008.safetensors")
        self.assertEqual(self.read("runs/t/model.safetensors"), whole)
        self.assertIn("all 8 updates are done already", self.fuserun("t.ini").stdout)

    def test_a_name_that_is_not_the_content_s_is_told(self):
        self.classes_config(steps=8, rest="[checkpoint]\nevery = 4\n")
        self.fuserun("t.ini")
        whole = self.read("runs/t/model.safetensors")
        os.replace(self.path("runs/t/checkpoints/step-00000004.safetensors"),
                   self.path("runs/t/checkpoints/step-00000008.safetensors"))
        os.remove(self.path("runs/t/model.safetensors"))
        self.assertRegex(self.fuserun("t.ini").stderr, r"t\.ini:\d+: warning: run\.resume: '.*step-00000008\.safetensors' is of "
                         "step 4, which is not what its name says; the run goes on from there")
        self.assertEqual(self.read("runs/t/model.safetensors"), whole)

    @unittest.skipIf(os.geteuid() == 0, "root may write everything")
    def test_metrics_that_may_not_be_written(self):
        self.classes_config(steps=8, rest="[checkpoint]\nevery = 4\n")
        self.fuserun("t.ini")
        before = self.read("runs/t/config.ini")
        os.chmod(self.path("runs/t/metrics.jsonl"), 0o444)
        told = self.fuserun("t.ini", "run.steps=12", status=1).stderr
        self.assertIn("metrics.jsonl': Permission denied", told)
        self.assertEqual(self.read("runs/t/config.ini"), before)

    def test_a_checkpoint_past_the_config_s_end_is_told(self):
        self.classes_config(steps=8, rest="[checkpoint]\nevery = 4\n")
        self.fuserun("t.ini")
        told = self.fuserun("t.ini", "run.steps=6").stderr
        self.assertIn("command line: warning: run.steps: the checkpoint is of step 8, past the last one here, 6", told)
        self.assertNotIn("past the last one", self.fuserun("t.ini").stderr)

    def test_a_run_that_was_done_has_no_loss_to_tell(self):
        self.classes_config(steps=4, rest="[checkpoint]\nevery = 4\n")
        self.assertRegex(self.fuserun("t.ini").stdout, r"(?m)^done  updates 4  .*  loss \d\.\d{4}")
        whole = self.read("runs/t/model.safetensors")
        for content in (None, b"", whole[:-1]):  # gone, or come to harm: written again
            os.remove(self.path("runs/t/model.safetensors"))
            if content is not None:
                with open(self.path("runs/t/model.safetensors"), "wb") as file:
                    file.write(content)
            told = self.fuserun("t.ini").stdout
            self.assertRegex(told, r"(?m)^done  updates 4  .*  \(all of them before: nothing was left to do\)")
            self.assertNotRegex(told, r"(?m)^done .* loss")
            self.assertEqual(self.read("runs/t/model.safetensors"), whole)
        self.assertIn("all 4 updates are done already", self.fuserun("t.ini").stdout)

    def test_no_whole_one(self):
        self.classes_config(steps=8, rest="[checkpoint]\nevery = 4\nkeep = 1\n")
        self.fuserun("t.ini")
        self.write("runs/t/checkpoints/step-00000008.safetensors", "nothing")
        told = self.fuserun("t.ini", status=2).stderr
        self.assertIn("there is none before it", told)
        self.assertIn("holds a run already", told)
        for path, what in (("runs/t/checkpoints/step-00000008.safetensors", "not a valid .safetensors file"),
                           ("runs/t/checkpoints/latest", "there is no whole checkpoint"),
                           ("runs/t", "there is no whole checkpoint"), ("runs/u/step-00000008.safetensors", "cannot open"),
                           ("data.safetensors", "is not a checkpoint")):
            for command in ([], ["check"]):
                told = self.fuserun(*command, "t.ini", f"run.resume={path}", status=2).stderr
                self.assertRegex(told, f"command line: run.resume: .*{what}", path)


class OutOfReach(Checkpoints):
    """What cannot be read for the moment is not damaged: nothing newer may be removed for its sake."""

    def setUp(self):
        super().setUp()
        self.classes_config(steps=12, rest="[checkpoint]\nevery = 4\n")
        self.fuserun("t.ini")
        self.before = self.content("runs/t")

    def content(self, output):
        return {os.path.join(folder, name): self.read(os.path.join(folder, name))
                for folder, _, names in os.walk(self.path(output)) for name in names}

    def refuse(self, pattern, *overrides):
        for also in ([], ["run.overwrite=yes"]):
            told = self.fuserun("t.ini", "run.steps=20", *overrides, *also, status=2).stderr
            self.assertRegex(told, pattern)
            self.assertEqual(self.content("runs/t"), self.before)

    def test_of_a_newer_version(self):
        newest = self.read("runs/t/checkpoints/latest")
        with open(self.step(12), "wb") as file:
            file.write(newest.replace(b"fuserun checkpoint 1", b"fuserun checkpoint 2", 1))
        self.before = self.content("runs/t")
        self.refuse(r"run\.resume: .*its format is 'fuserun checkpoint 2', this one reads 'fuserun checkpoint 1'"
                    r"; run\.resume=FILE goes on from another one, run\.resume=never starts afresh without any")
        self.fuserun("t.ini", "run.resume=never", "run.overwrite=yes")

    def test_a_folder_in_its_place(self):
        os.mkdir(self.step(16))
        self.refuse(r"run\.resume: cannot read '.*step-00000016\.safetensors': not a regular file; run\.resume=FILE")

    @unittest.skipIf(os.geteuid() == 0, "root may read everything")
    def test_without_permission(self):
        os.chmod(self.step(12), 0)
        told = self.fuserun("t.ini", "run.steps=20", status=2).stderr
        self.assertRegex(told, r"run\.resume: cannot open '.*step-00000012\.safetensors'")
        os.chmod(self.step(12), 0o644)
        self.assertEqual(self.content("runs/t"), self.before)


class Elsewhere(Checkpoints):
    """run.resume = PATH of another run's checkpoint."""

    def setUp(self):
        super().setUp()
        self.classes_config(steps=12, rest="[checkpoint]\nevery = 4\n")
        self.fuserun("t.ini", "run.output=runs/a")
        self.start = self.step(4, "runs/a")

    def test_what_was_trained_since_is_not_thrown_away(self):
        self.fuserun("t.ini", f"run.resume={self.start}")
        before = {name: self.read(os.path.join("runs/t", name)) for name in ("metrics.jsonl", "model.safetensors")}
        told = self.fuserun("t.ini", f"run.resume={self.start}", "run.steps=20", status=2).stderr
        self.assertRegex(told, r"run\.resume: that checkpoint is of step 4, but '.*' holds a run that has come to "
                               r"step 12; run\.resume=auto goes on with that, run\.overwrite=yes replaces it")
        for name, content in before.items():
            self.assertEqual(self.read(os.path.join("runs/t", name)), content)
        self.assertEqual(self.names(), ["latest", "step-00000008.safetensors", "step-00000012.safetensors"])
        self.fuserun("t.ini", "run.steps=20")
        self.assertEqual([line["step"] for line in self.updates()], list(range(5, 21)))

    def test_a_replaced_run_leaves_no_line(self):
        self.fuserun("t.ini", "run.seed=9", "run.steps=20")
        self.fuserun("t.ini", f"run.resume={self.start}", "run.overwrite=yes")
        self.assertEqual([line["step"] for line in self.updates()], list(range(5, 13)))
        self.assertEqual(self.names(), ["latest", "step-00000008.safetensors", "step-00000012.safetensors"])
        self.assertEqual(self.read("runs/t/model.safetensors"), self.read("runs/a/model.safetensors"))

    def test_going_back_is_told(self):
        told = self.fuserun("t.ini", "run.output=runs/a", f"run.resume={self.start}").stderr
        self.assertRegex(told, r"warning: run\.resume: goes back to step 4: .*up to step 12, will be replaced")
        self.assertEqual([line["step"] for line in self.updates("runs/a")], list(range(1, 13)))
        os.symlink(self.path("runs/a"), self.path("link"))
        told = self.fuserun("t.ini", "run.output=link", "run.resume=runs/a/checkpoints/latest", "run.steps=13").stderr
        self.assertNotIn("goes back", told)
        self.assertEqual([line["step"] for line in self.updates("runs/a")], list(range(1, 14)))


class DamagedMetrics(Checkpoints):
    def test_good_lines_stay(self):
        self.classes_config(steps=12, rest="[checkpoint]\nevery = 4\n")
        self.fuserun("t.ini")
        lines = self.read("runs/t/metrics.jsonl").splitlines(keepends=True)
        spoilt = {"zeros": bytes(len(lines[2]) - 1) + b"\n", "cut": b'{"step":3,"epo\n', "foreign": b"hello\n",
                  "a list": b"[1]\n", "zeros over an end": bytes(len(lines[2])) + lines[3], "long": b"x" * 3000000 + b"\n"}
        for what, content in spoilt.items():
            for at in (0, 2):
                with self.subTest(what=what, at=at):
                    shutil.rmtree(self.path("runs/u"), ignore_errors=True)
                    shutil.copytree(self.path("runs/t"), self.path("runs/u"), symlinks=True)
                    over = 2 if what == "zeros over an end" else 1
                    with open(self.path("runs/u/metrics.jsonl"), "wb") as file:
                        file.write(b"".join(lines[:at]) + content + b"".join(lines[at + over:]))
                    told = self.fuserun("t.ini", "run.output=runs/u", "run.steps=14").stderr
                    self.assertRegex(told, r"warning: run\.resume: 1 damaged lines of metrics\.jsonl were left out")
                    kept = list(range(1, at + 1)) + list(range(at + over + 1, 15))
                    self.assertEqual([line["step"] for line in self.updates("runs/u")], kept)
                    self.assertTrue(os.path.exists(self.path("runs/u/memory.html")))
        self.assertNotIn("damaged", self.fuserun("t.ini", "run.steps=14").stderr)


class LastSave(Checkpoints):
    @unittest.skipUnless(shutil.which("mount") and os.geteuid() == 0, "needs a file system that can be filled")
    def test_pages_make_room(self):
        """On a full disk the pages go first, and the weights are written even where no checkpoint fits."""
        self.classes_config(steps=12, rest="[checkpoint]\nevery = 100000\n")
        self.fuserun("t.ini")
        files = ("config.ini", "metrics.jsonl", "memory.json", "model.safetensors", "checkpoints/latest")
        config, metrics, pages, model, checkpoint = (
            -(-os.path.getsize(self.path("runs/t", name)) // 4096) for name in files)
        self.assertLess(pages, checkpoint)
        fits = config + metrics + checkpoint + model  # if no pages take its place
        for blocks in (fits, fits - pages):
            os.makedirs(self.path("small"), exist_ok=True)
            if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={4096 * blocks}", "tmpfs", self.path("small")],
                              capture_output=True, check=False).returncode:
                self.skipTest("no file system can be mounted here")
            try:
                told = self.fuserun("t.ini", "run.output=small/t", status=1).stderr
                self.assertIn("No space left", told)
                self.assertEqual(self.read("small/t/model.safetensors"), self.read("runs/t/model.safetensors"))
                self.assertEqual(os.path.exists(self.step(12, "small/t")), blocks == fits)
            finally:
                subprocess.run(["umount", self.path("small")], check=False)


class Streams(Checkpoints):
    def test_closed_ones_stay_out_of_the_files(self):
        self.classes_config(steps=12, rest="[checkpoint]\nevery = 4\n[eval]\nevery = 3\n")
        # No file of data stays open, so that the log would get a standard stream's number.
        data = ["data.plugin=random_images", "data.image_size=2", "data.channels=3", "data.classes=4", "data.length=50"]
        self.fuserun("t.ini", "run.output=runs/whole", *data)
        whole = len(self.metrics("runs/whole"))
        for number, closed in enumerate(("<&- >&-", "<&- >&- 2>&-", ">&-", "<&- 2>&-")):
            output = f"runs/c{number}"
            subprocess.run(["sh", "-c", f'exec "$0" "$@" {closed}', FUSERUN, "t.ini", f"run.output={output}", *data],
                           cwd=self.path("."), check=True)
            self.assertEqual(len(self.metrics(output)), whole)
            self.assertTrue(os.path.exists(self.path(output, "memory.html")))

    def test_a_limit_on_files_is_an_error_like_others(self):
        self.classes_config(steps=400, rest="[checkpoint]\nevery = 4\n")
        done = subprocess.run(["sh", "-c", 'ulimit -f 8; exec "$0" "$@"', FUSERUN, "t.ini"], cwd=self.path("."),
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, "File too large")


class Signals(Checkpoints):
    def start(self, *overrides, stdout=subprocess.DEVNULL):
        """A run of very many updates; returns when some of them are done."""
        self.classes_config(steps=100000000, rest="[eval]\nevery = 1000000 epoch\n[checkpoint]\nevery = 1000000000\n")
        process = subprocess.Popen([FUSERUN, "t.ini", *overrides], cwd=self.folder, env=self.environment(),
                                   stdout=stdout, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.wait_for(lambda: os.path.exists(self.path("runs/t/metrics.jsonl")) and self.read("runs/t/metrics.jsonl"))
        return process

    def wait_for(self, is_so):
        for _ in range(6000):
            if is_so():
                return
            time.sleep(0.01)
        self.fail("waited in vain")

    def test_an_interrupted_run_saves_and_goes_on(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process = self.start()
            process.send_signal(number)
            self.assertEqual(process.wait(), 130)
            step = self.updates()[-1]["step"]
            self.assertIn(f"stopped after step {step} of 100000000; the run goes on from there when started again",
                          process.stderr.read())
            self.assertEqual(self.names(), ["latest", f"step-{step:08d}.safetensors"])
            self.fuserun("t.ini", f"run.steps={step + 3}")
            self.assertEqual([line["step"] for line in self.updates()], list(range(1, step + 4)))
            self.fuserun("t.ini", f"run.steps={step + 3}", "run.output=runs/whole")
            self.assertEqual(self.read("runs/t/model.safetensors"), self.read("runs/whole/model.safetensors"))
            shutil.rmtree(self.path("runs"))

    def test_what_is_promised_depends_on_run_resume(self):
        process = self.start("run.resume=never")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(), 130)
        self.assertRegex(process.stderr.read(), r"stopped after step \d+ of \d+; with run\.resume=auto it goes on from there")

    def test_a_user_signal_saves_and_the_run_goes_on(self):
        for background in ("no", "yes"):
            with open(self.path("told"), "w", encoding="utf-8") as told:
                process = self.start(f"checkpoint.background={background}", stdout=told)
            for count in (1, 2):
                process.send_signal(signal.SIGUSR1)
                self.wait_for(lambda: os.path.exists(self.path("runs/t/checkpoints/latest")) and
                              len([name for name in self.names() if name.startswith("step-")]) == count)
                self.assertIsNone(process.poll())
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(), 130)
            told = re.findall(r"^save  step (\d+)  a checkpoint, as SIGUSR1 asked$", self.read("told").decode(), re.M)
            self.assertEqual([f"step-{int(step):08d}.safetensors" for step in told], self.names()[1:3])
            shutil.rmtree(self.path("runs"))

    def test_a_user_signal_without_checkpoints_is_answered(self):
        process = self.start("checkpoint.every=", "run.progress=off")
        process.send_signal(signal.SIGUSR1)
        told = next(line for line in process.stderr if not line.startswith(SLOW))
        self.assertRegex(told, r"^command line: warning: checkpoint\.every: SIGUSR1 .* nothing was saved\n")
        self.assertIsNone(process.poll())
        self.assertFalse(os.path.exists(self.path("runs/t/checkpoints")))
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(), 130)


if __name__ == "__main__":
    unittest.main()
