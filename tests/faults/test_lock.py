"""One run at a time in an output folder; what a killed one leaves is in nobody's way."""
import contextlib
import fcntl
import os
import signal
import subprocess
import time
import unittest

from support import FUSERUN, TIMEOUT_S, Case


class Lock(Case):
    @contextlib.contextmanager
    def locked(self, folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(descriptor)

    def contents(self, folder="runs/t"):
        found = {}
        for name in os.listdir(self.path(folder)):
            with open(self.path(folder, name), "rb") as file:
                found[name] = file.read()
        return found

    def start(self, *arguments):
        return subprocess.Popen([FUSERUN, *arguments], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env=self.environment())

    def test_a_folder_in_use_is_refused_and_left_alone(self):
        self.make_classes()
        self.classes_config(run="output = runs/t")
        self.fuserun("t.ini")
        before = self.contents()
        with self.locked(self.path("runs/t")):
            for override in ("run.overwrite=yes", "run.overwrite=no"):
                done = self.fuserun("t.ini", override, status=2)
                self.assertEqual(done.stderr, "t.ini:4: run.output: another run is at work in '%s'; wait for its end, or "
                                 "give this one a folder of its own\n" % self.path("runs/t"))
                self.assertEqual(self.contents(), before)
            self.fuserun("check", "t.ini", "run.overwrite=yes")
        self.fuserun("t.ini", "run.overwrite=yes")
        self.assertEqual(self.contents()["model.safetensors"], before["model.safetensors"])

    def test_nothing_is_left_behind_for_the_lock(self):
        self.make_classes()
        self.classes_config(rest="[memory]\ntimeline = no")
        self.fuserun("t.ini")
        self.assertEqual(sorted(self.contents()), ["config.ini", "metrics.jsonl", "model.safetensors"])

    def test_a_killed_run_blocks_nobody(self):
        self.make_classes()
        self.classes_config(steps=12)
        victim = self.start("t.ini", "run.steps=1000000000")
        deadline = time.monotonic() + TIMEOUT_S
        while not os.path.exists(self.path("runs/t/metrics.jsonl")):
            self.assertIsNone(victim.poll(), victim.stderr)
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        done = self.fuserun("t.ini", "run.overwrite=yes", status=2)
        self.assertIn("another run is at work", done.stderr)
        self.assertIsNone(victim.poll())
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
        self.fuserun("t.ini", "run.overwrite=yes")
        self.assertEqual(len(self.updates()), 12)

    def test_of_many_that_start_together_one_runs(self):
        self.make_classes()
        self.classes_config(steps=40)
        for _ in range(5):
            started = [self.start("t.ini", "run.output=together") for _ in range(4)]
            ended = [(process.communicate(timeout=TIMEOUT_S)[1], process.returncode) for process in started]
            self.assertEqual([status for _, status in ended].count(0), 1, ended)
            for errors, status in ended:
                if status != 0:
                    self.assertRegex(errors, r"^command line: run\.output: ('.*' holds a run already|another run is at work)")
            self.assertEqual([line["step"] for line in self.updates("together")], list(range(1, 41)))
            self.assertNotIn(".tmp", " ".join(self.contents("together")))
            for name in os.listdir(self.path("together")):
                os.remove(self.path("together", name))
            os.rmdir(self.path("together"))


if __name__ == "__main__":
    unittest.main()
