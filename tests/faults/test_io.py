"""Every call on the output folder fails once: one clear error, nothing half-written under a final name, no leftovers; and
what is no failure (short writes, interrupted calls) changes nothing. io_faults.c makes the calls fail."""
import errno
import json
import os
import re
import shutil
import subprocess
import unittest

from support import FUSERUN, TIMEOUT_S, Case

ASAN = "verify_asan_link_order=0:"


class Faults(Case):
    """Runs an experiment with a fault at its n-th call, for every n."""

    def setUp(self):
        super().setUp()
        self.make_classes(count=20)
        self.classes_config(steps=6, run="output = out\nthreads = 1", rest="[eval]\nevery = 3 steps\n[memory]\nsnapshot = yes")

    def run_with(self, calls="all", at=0, kind=0, always=False, then=None, config="t.ini", overrides=()):
        """The finished process, and its calls as (number, call, path, has_failed)."""
        log = self.path("calls.log")
        if os.path.exists(log):
            os.remove(log)
        environment = dict(self.environment(), LD_PRELOAD=os.environ["IO_FAULTS"], FAULT_FOLDER=self.path("out"),
                           FAULT_CALLS=calls, FAULT_AT=str(at), FAULT_KIND=str(kind), FAULT_ALWAYS="1" if always else "0",
                           FAULT_LOG=log)
        if then is not None:
            environment["FAULT_THEN"] = str(then)
        environment["ASAN_OPTIONS"] = ASAN + environment.get("ASAN_OPTIONS", "")
        done = subprocess.run([FUSERUN, config, *overrides], cwd=self.folder, capture_output=True, text=True,
                              timeout=TIMEOUT_S, env=environment, check=False)
        made = []
        if os.path.exists(log):
            with open(log, encoding="utf-8") as file:
                for line in file:
                    words = line.split()
                    made.append((int(words[0]), words[1], os.path.relpath(words[2], self.path("out")), words[-1] == "*"))
        return done, made

    def found(self):
        """What the output folder holds by final names; metrics without what differs from run to run."""
        contents = {}
        for name in sorted(os.listdir(self.path("out"))) if os.path.isdir(self.path("out")) else []:
            content = self.read("out/" + name)
            if name == "metrics.jsonl":
                self.assertTrue(content == b"" or content.endswith(b"\n"), content[-100:])
                content = [{key: value for key, value in json.loads(line).items() if not key.startswith(("step_s", "samples"))}
                           for line in content.splitlines()]
            elif name == "memory.json":
                content = sorted(json.loads(content))
            elif name == "memory.html":
                self.assertTrue(content.rstrip().endswith(b"</html>"))
                content = None
            elif name == "memory.pickle":
                self.assertTrue(content.startswith(b"\x80") and content.endswith(b"."))
                content = None
            contents[name] = content
        return contents

    def refresh(self):
        shutil.rmtree(self.path("out"), ignore_errors=True)

    def whole(self):
        self.fuserun("t.ini")
        found = self.found()
        self.refresh()
        return found

    def assert_failed(self, done, kind, what):
        self.assertEqual(done.returncode, 1, (what, done.stderr))
        self.assertRegex(done.stderr, r"\Afuserun: cannot [^\n]*'[^\n]*': %s\n\Z" % re.escape(os.strerror(kind)), what)

    def assert_whole_files(self, reference, what):
        found = self.found()
        for name, content in found.items():
            self.assertIn(name, reference, what)
            if name == "metrics.jsonl":
                self.assertEqual(content, reference[name][:len(content)], what)
            else:
                self.assertEqual(content, reference[name], (what, name))
        return found

    def sweep(self, calls, kind, always, judge):
        """judge(done, (number, call, path), what) for each call that failed; returns how many there were."""
        at = 1
        while True:
            done, made = self.run_with(calls, at, kind, always)
            failed = [call[:3] for call in made if call[3]]
            if not failed:
                self.assertEqual(done.returncode, 0, done.stderr)
                self.refresh()
                return at - 1
            judge(done, failed[0], (errno.errorcode.get(kind, kind), always) + failed[0])
            self.refresh()
            at += 1


class OutputFolder(Faults):
    # Nothing depends on them: a file system may have no locks, and what a closed folder says is about nobody's file.
    HARMLESS = (("flock", "."), ("close", "."))

    def test_every_call_fails_once(self):
        reference = self.whole()
        seen = set()

        def judge(done, call, what):
            seen.add(call[1])
            if call[1:] in self.HARMLESS:
                self.assertEqual(done.returncode, 0, (what, done.stderr))
                return
            self.assert_failed(done, errno.EIO, what)
            found = self.assert_whole_files(reference, what)
            if os.path.basename(call[2]).startswith(".memory."):  # a run that is done has nothing left to draw
                self.assertEqual(set(found), set(reference), what)

        count = self.sweep("all", errno.EIO, False, judge)
        self.assertGreater(count, 40)
        self.assertLessEqual({"open", "write", "fsync", "close", "rename", "mkdir", "unlink", "flock"}, seen)

    def test_a_disk_that_is_full_and_stays_so(self):
        reference = self.whole()

        def judge(done, call, what):
            self.assert_failed(done, errno.ENOSPC, what)
            self.assert_whole_files(reference, what)
        self.assertGreater(self.sweep("mkdir,write,rename", errno.ENOSPC, True, judge), 10)

    def test_a_folder_that_turns_read_only(self):
        reference = self.whole()

        def judge(done, call, what):
            self.assert_failed(done, errno.EROFS, what)
            found = {name: content for name, content in self.found().items() if not name.endswith(".tmp")}
            for name in found:
                self.assertIn(name, reference, what)
        self.assertGreater(self.sweep("mkdir,rename,unlink,write", errno.EROFS, True, judge), 10)

    def test_interrupted_calls_are_made_again(self):
        reference = self.whole()

        def judge(done, call, what):
            self.assertEqual((done.returncode, done.stderr), (0, ""), what)
            self.assertEqual(self.found(), reference, what)
        self.assertGreater(self.sweep("all", errno.EINTR, False, judge), 40)

    def test_short_writes_are_completed(self):
        reference = self.whole()
        done, made = self.run_with("write", 1, "short", True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(self.found(), reference)
        self.assertGreater(sum(call[3] for call in made), 30)

    def test_a_short_write_to_a_full_disk_leaves_no_half_line(self):
        self.classes_config(steps=300, run="output = out\nthreads = 1")
        _, made = self.run_with("write")
        numbers = [call[0] for call in made if call[2] == "metrics.jsonl"]
        self.refresh()
        # The log's first write takes a half, its rest finds the disk full.
        done, _ = self.run_with("write", numbers[0], "short", then=errno.ENOSPC)
        self.assert_failed(done, errno.ENOSPC, numbers)
        found = self.found()
        self.assertNotIn("model.safetensors", found)
        self.assertLess(len(found["metrics.jsonl"]), 300)

    def test_the_next_run_finds_nothing_in_its_way(self):
        reference = self.whole()
        for at in range(1, 60, 7):
            self.run_with("all", at, errno.EIO, True)
            os.makedirs(self.path("out"), exist_ok=True)
            with open(self.path("out", "notes.txt"), "w", encoding="utf-8") as file:
                file.write("mine")
            self.fuserun("t.ini", "run.overwrite=yes")
            found = self.found()
            self.assertEqual(found.pop("notes.txt"), b"mine")
            self.assertEqual([name for name in found if not name.endswith(".tmp")], list(reference))
            self.refresh()

    def test_a_folder_that_may_not_be_written(self):
        reference = self.whole()

        def judge(done, call, what):
            lines = done.stderr.splitlines(True)
            if len(lines) > 1:  # a folder that cannot be opened is not locked either
                self.assertEqual(lines.pop(0), "t.ini:4: warning: run.output: '%s' cannot be locked here: nothing would stop a "
                                 "second run in it\n" % self.path("out"))
            done.stderr = "".join(lines)
            if done.returncode == 0:  # the last file's folder cannot be opened to be synced
                self.assertEqual((call[1:], self.found()), (("open", "."), reference))
                return
            self.assert_failed(done, errno.EACCES, what)
            self.assert_whole_files(reference, what)
        os.mkdir(self.path("out"))
        done, _ = self.run_with("open", 1, errno.EACCES, True)
        judge(done, (1, "open", "."), "a folder that is there")
        self.refresh()
        self.assertGreater(self.sweep("mkdir,open", errno.EACCES, True, judge), 5)


if __name__ == "__main__":
    unittest.main()
