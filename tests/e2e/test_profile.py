"""run.profile: what the table and profile.json hold; not what the times are."""
import json
import re
import unittest

from support import Case

CONFIG = """[run]
name = t
steps = 5
progress = off
[model]
plugin = mlp
sizes = 12, 8, 3
[data]
plugin = random_images
image_size = 2
channels = 3
classes = 3
length = 32
batch_size = 4
[optimizer]
plugin = adam
mode = %s
"""
STEPS, BATCH, SIZES = 5, 4, (12, 8, 3)


class ProfileTest(Case):
    def profile(self, mode, *more):
        self.write("c.ini", CONFIG % mode)
        done = self.fuserun("c.ini", "run.profile=yes", "run.output=" + self.path(mode), *more)
        return done.stdout, json.loads(self.read(mode, "profile.json"))

    def test_tells_every_operation(self):
        for mode in ("fused", "per_param", "foreach"):
            stdout, profile = self.profile(mode)
            operations = {line["name"]: line for line in profile["operations"]}
            counted = STEPS - 1  # the first pass is left out
            update = "linear_dw + update" if mode == "fused" else "linear_dw"
            self.assertEqual(operations["linear"]["calls"], 2 * counted)
            self.assertEqual(operations[update]["calls"], 2 * counted)
            self.assertEqual(operations["linear_dx"]["calls"], counted)  # not for the image
            self.assertEqual(operations["relu"]["calls"], counted)
            self.assertEqual(operations["cross_entropy"]["calls"], counted)
            weights = sum(a * b for a, b in zip(SIZES, SIZES[1:]))
            self.assertEqual(operations["linear"]["flop"], counted * 2 * BATCH * weights)
            self.assertEqual(operations[update]["flop"], counted * 2 * BATCH * weights)
            self.assertEqual(operations["linear_dx"]["flop"], counted * 2 * BATCH * 8 * 3)
            operands = sum(4 * BATCH * (a + b) for a, b in zip(SIZES, SIZES[1:]))
            # fused: weight and two moments are read and written, the gradient is not there
            moved = operands + 4 * weights * (6 if mode == "fused" else 1)
            self.assertEqual(operations[update]["bytes"], counted * moved, mode)
            updates = operations["update"]
            values = weights + sum(SIZES[1:]) if mode != "fused" else sum(SIZES[1:])
            self.assertEqual(updates["calls"], counted * (1 if mode == "foreach" else 4 if mode == "per_param" else 2))
            self.assertEqual(updates["bytes"], counted * values * 4 * 7)
            self.assertEqual({line["name"] for line in profile["layers"]} & {"layers.0", "layers.1", "loss"},
                             {"layers.0", "layers.1", "loss"})
            for table in ("operations", "layers"):
                times = [line["ns"] for line in profile[table]]
                self.assertEqual(times, sorted(times, reverse=True))
                for line in profile[table]:
                    row = re.search(r"^%s +[0-9.]+ +%d +[0-9.]+%%" % (re.escape(line["name"]), line["calls"]), stdout, re.M)
                    self.assertIsNotNone(row, "%s in\n%s" % (line["name"], stdout))
            self.assertEqual(sum(line["ns"] for line in profile["operations"]),
                             sum(line["ns"] for line in profile["layers"]))

    def test_trace_is_one_that_viewers_read(self):
        _, profile = self.profile("fused")
        events = profile["traceEvents"]
        passes = [event for event in events if event["cat"] == "pass"]
        self.assertEqual([event["name"] for event in passes], ["training pass %d" % (i + 1) for i in range(STEPS)])
        for event in events:
            self.assertEqual(event["ph"], "X")
            self.assertGreaterEqual(event["ts"], 0)
            self.assertGreaterEqual(event["dur"], 0)
        inside = [event for event in events if event["cat"] != "pass"]
        self.assertEqual({event["cat"] for event in inside}, {"forward", "backward"})
        for before, after in zip(inside, inside[1:]):
            self.assertLessEqual(before["ts"] + before["dur"], after["ts"] + 2e-3)  # to the microsecond's third digit
        for event in inside:
            owner = [p for p in passes if p["ts"] - 2e-3 <= event["ts"] <= p["ts"] + p["dur"] + 2e-3]
            self.assertTrue(owner, event)

    def test_changes_no_result_and_is_off_unless_asked_for(self):
        self.profile("fused")
        self.fuserun("c.ini", "run.output=" + self.path("plain"))
        self.assertEqual(self.read("plain", "model.safetensors"), self.read("fused", "model.safetensors"))
        self.assertNotIn("plain/profile.json", self.left_behind())
        # a run over an old one removes the old one's profile
        self.fuserun("c.ini", "run.output=" + self.path("fused"), "run.overwrite=yes")
        self.assertNotIn("fused/profile.json", self.left_behind())

    def test_goes_on_past_what_the_trace_holds(self):
        stdout, profile = self.profile("fused", "run.steps=40")
        self.assertEqual(len([event for event in profile["traceEvents"] if event["cat"] == "pass"]), 16)
        self.assertEqual({line["name"]: line["calls"] for line in profile["operations"]}["linear"], 2 * 39)
        self.assertIn("profile of 39 training passes", stdout)


if __name__ == "__main__":
    unittest.main()
