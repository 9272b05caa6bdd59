"""A plan that does not fit into memory is refused before anything is written or trained."""
import os
import re
import resource
import subprocess
import unittest

from support import FUSERUN, TIMEOUT_S, Case, is_sanitized

GIB = 1 << 30
HUGE = "model.sizes=12,3000000,3000000,4"  # 9e12 weights


class MemoryLimit(Case):
    def setUp(self):
        super().setUp()
        self.make_classes()

    def refused(self, *overrides, before=None, where=r"command line: memory\.limit"):
        done = subprocess.run([FUSERUN, "t.ini", *overrides], cwd=self.folder, capture_output=True, text=True,
                              timeout=TIMEOUT_S, env=self.environment(), check=False, preexec_fn=before)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, r"\A%s: the plan's peak is [0-9.]+ .iB \(\d+ bytes\), and .*; what makes it smaller: "
                         r".*; memory\.limit = none tries all the same\n\Z" % where)
        self.assertFalse(os.path.exists(self.path("runs")))
        return done.stderr

    def test_more_than_any_machine_has(self):
        self.classes_config()
        said = self.refused(HUGE, where=r"t\.ini:1: memory\.limit")
        self.assertRegex(said, r"this machine has|control group|ulimit")
        done = self.fuserun("check", "t.ini", HUGE)
        self.assertRegex(done.stderr, r"\At\.ini:1: warning: memory\.limit: the plan's peak is [0-9.]+ TiB ")
        self.assertIn("memory      peak", done.stdout)

    def test_a_limit_of_ones_own(self):
        self.classes_config(rest="[memory]\nlimit = 1GiB")
        said = self.refused("memory.limit=100KiB", "memory.recompute=none")
        self.assertIn("the limit leaves 0 B (0 bytes) beside the program itself", said)
        self.fuserun("t.ini")
        self.assertIn("limit = 1GiB\n", self.read("runs/t/config.ini").decode())
        for text in ("0", "-1", "1GB", "all", "1.5GiB", "99999999999999999999"):
            done = self.fuserun("check", "t.ini", "memory.limit=" + text, status=2)
            self.assertEqual(done.stderr, "command line: memory.limit: '%s' is not one of auto, none, a size (512MiB, "
                             "2GiB)\n" % text)

    def test_it_says_what_would_help(self):
        self.classes_config()
        for overrides, hints in (
                (("optimizer.mode=foreach",), "optimizer.mode = fused, a smaller data.batch_size, a smaller model"),
                (("data.batch_size=1",), "a smaller model"),
                (("optimizer.clip_grad_norm=1", "optimizer.clip_algorithm=keep"),
                 "optimizer.clip_algorithm = auto, a smaller data.batch_size, a smaller model"),
                (("data.batch_size=1", "eval.batch_size=50", "optimizer.plugin=sgd"), "a smaller eval.batch_size, a smaller "
                 "model")):
            said = self.refused("memory.limit=1KiB", *overrides)
            self.assertEqual(re.search("smaller: (.*); memory", said).group(1), hints)

    def test_told_beside_a_folder_that_is_taken(self):
        self.classes_config(run="output = taken")
        self.fuserun("t.ini")
        done = self.fuserun("t.ini", "memory.limit=1KiB", status=2)
        self.assertRegex(done.stderr, r"\At\.ini:4: run\.output: .* holds a run already.*\n"
                         r"command line: memory\.limit: the plan's peak is .*\n\Z")

    def test_ulimit(self):
        if is_sanitized():
            self.skipTest("the address sanitizer needs more address space than any limit")
        self.classes_config(rest="[memory]\nlimit = auto")
        wide = ("model.sizes=12,50000,3000,4", "run.threads=1")  # 1.5e8 weights

        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (GIB, GIB))
        self.assertIn("ulimit -v has", self.refused(*wide, before=limit, where=r"t\.ini:18: memory\.limit"))
        # Tried all the same: the system says no, and still nothing is written.
        done = subprocess.run([FUSERUN, "t.ini", *wide, "memory.limit=none"], cwd=self.folder, capture_output=True, text=True,
                              timeout=TIMEOUT_S, env=self.environment(), check=False, preexec_fn=limit)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, r"\Afuserun: out of memory.*\n\Z")
        self.assertFalse(os.path.exists(self.path("runs")))


if __name__ == "__main__":
    unittest.main()
