"""tools/bench: what it computes from what it measures, and its parts that do not depend on time."""
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import unittest

from support import Case, read_safetensors

SOURCE = os.environ["FUSERUN_SOURCE"]
BUILD = os.environ["FUSERUN_BUILD"]
BENCH = os.path.join(SOURCE, "tools", "bench")


def load_bench():
    loader = importlib.machinery.SourceFileLoader("bench", BENCH)
    bench = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench", loader))
    loader.exec_module(bench)
    return bench


class BenchTest(Case):
    @classmethod
    def setUpClass(cls):
        cls.bench = load_bench()
        cls.rows = sys.modules["rows"]

    def test_names_its_rows(self):
        done = subprocess.run([sys.executable, BENCH, "--list"], capture_output=True, text=True, check=True)
        names = [line.split()[0] for line in done.stdout.splitlines()]
        self.assertEqual(len(names), len(set(names)))
        self.assertLessEqual({"vit_l16_b1", "vit_l16_b8", "vit_l16_b1_bf16", "adam_304m_fused", "adam_304m_foreach",
                              "deep_mlp", "small_mlp", "start_up"}, set(names))
        wrong = subprocess.run([sys.executable, BENCH, "vit_l17"], capture_output=True, text=True, check=False)
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("no row vit_l17", wrong.stderr)

    def test_counts_a_step_s_operations(self):
        # torchvision counts 61.555e9 multiplications for ViT-L/16 forward, attention's among them. Backward costs twice
        # that, the scores once more, and no gradient of the image.
        forward = 2 * 61.555e9
        scores = 2 * 24 * 197 * 197 * 1024
        image = 2 * 196 * 768 * 1024
        self.assertAlmostEqual(self.rows.vit_flop(1) / (3 * forward + scores - image), 1, delta=1e-3)
        self.assertEqual(self.rows.vit_flop(8), 8 * self.rows.vit_flop(1))

    def test_has_all_parameters_of_the_net(self):
        parts = [part.split("x") for part in self.rows.VIT_TENSORS.split(",")]
        self.assertEqual(sum(int(count) for count, _ in parts), 296)
        self.assertEqual(sum(int(count) * int(size) for count, size in parts), self.rows.VIT_PARAMETERS)

    def test_judges(self):
        rows = {row.name: row for row in self.bench.all_rows()}
        compared, least, most = rows["vit_l16_b1"], rows["products"], rows["no_optimizer"]
        self.assertEqual((compared.limit, compared.aim, least.limit, most.limit), (0.80, 0.72, 0.92, 1.2))
        for row, result, expected in ((compared, {"ratio": 0.80, "ours": 1}, True),
                                      (compared, {"ratio": 0.81, "ours": 1}, False),
                                      (compared, {"ratio": 0.81, "ours": 1.15, "bests": [1.15], "floors": [1.0]}, True),
                                      (compared, {"ratio": 0.81, "ours": 1.16, "bests": [1.16], "floors": [1.0]}, False),
                                      (compared, {"ours": 1}, None),
                                      (least, {"ours": 0.92}, True),
                                      (least, {"ours": 0.91}, False),
                                      (most, {"ours": 1.2}, True),
                                      (most, {"ours": 1.21}, False)):
            self.assertIs(self.bench.judge(row, result), expected, (row.name, result))

    def test_a_round_has_its_own_floor(self):
        self.assertEqual(self.bench.times_floor({"bests": [2.0, 6.0, 3.0], "floors": [1.0, 2.0, 2.0]}), 2.0)
        self.assertIsNone(self.bench.times_floor({"bests": [2.0]}))

    def test_writes_the_table_of_several_files(self):
        about = {"processor": "P", "threads": 2, "commit": "c", "torch": "2.13.0"}
        first = {"vit_l16_b1": {"ours": 9.0, "unit": "s/step", "verdict": False},
                 "products": {"ours": 0.951, "unit": "share", "verdict": True}}
        again = {"vit_l16_b1": {"ours": 3.0, "unit": "s/step", "theirs": 4.0, "peer": "hook-fused", "ratio": 0.75,
                                "rounds": [3.0], "bests": [3.0], "floors": [2.5], "verdict": True},
                 "small_mlp": {"ours": 5.2e-5, "unit": "s/step", "verdict": None},
                 "start_up": {"unavailable": "no PyTorch", "verdict": None}}
        files = [self.write(name, json.dumps(about | {"rows": rows})) for name, rows in (("a", first), ("b", again))]
        done = subprocess.run([sys.executable, BENCH, "--table", *files], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.splitlines(), [
            "P, 2 threads, PyTorch 2.13.0, commit c", "",
            "| | fuserun | PyTorch | ratio | limit | aim | times its floor | |", "|---|---|---|---|---|---|---|---|",
            "| ViT-L/16, batch 1, fp32, fused | 3 s | 4 s (hook-fused) | 0.75 | <= 0.8 | 0.72 | 1.20 | holds |",
            "| 64-128-10, batch 32, Adam, an update | 52 us |  |  | <= 0.25 | 0.12 |  |  |",
            "| ViT-L/16, batch 1: products against oneDNN | 0.95 |  |  | >= 0.92 |  |  | holds |"])

    def test_refuses_files_that_it_did_not_write(self):
        about = {"processor": "P", "threads": 2, "commit": "c", "torch": None}
        floored = {"ours": 1.0, "unit": "s/step", "verdict": True, "bests": [1.0], "floors": [0]}
        for wrong in ({"rows": {}}, about, about | {"rows": {"vit_l16_b1": {}}}, about | {"rows": []}, [],
                      about | {"rows": {"vit_l16_b1": floored}}):
            name = self.write("wrong.json", json.dumps(wrong))
            done = subprocess.run([sys.executable, BENCH, "--table", name], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertEqual(done.stderr, "tools/bench: '%s' is not what --json wrote\n" % name)

    def test_runs_in_turn_and_keeps_the_fastest_peer(self):
        calls = []

        def side(name, seconds):
            def run():
                calls.append(name)
                return {"step_s": [seconds]}
            return run

        class Context:
            rounds = 3
        result = self.rows.in_turn(Context, side("ours", 2.0), {"slow": side("slow", 8.0), "fast": side("fast", 4.0)})
        self.assertEqual(calls, ["ours", "slow", "fast", "ours", "fast", "ours", "fast"])
        self.assertEqual((result["peer"], result["ratio"], result["theirs"]), ("fast", 0.5, 4.0))

    def test_growth_compares_equal_windows(self):
        rows = self.rows
        most_flop = rows.vit_flop(16, width=512, hidden=2048, layers=8)

        class Machine:
            @staticmethod
            def stream():
                return rows.ADAM_BYTES * 1e9

            @staticmethod
            def parameters(*_):
                return 10**9

            @staticmethod
            def fuserun(_, *overrides):
                values = dict(override.split("=") for override in overrides)
                flop = rows.vit_flop(int(values["data.batch_size"]), width=512, hidden=2048, layers=8)
                step, window = 1 + 3 * flop / most_flop, round(most_flop / flop)
                swing = 0.5 if window > 1 else 0  # single steps are far off the line, whole windows are on it
                times = [step * (1 - swing), step * (1 + swing)] * int(values["run.steps"])
                return {"step_s": times[:int(values["run.steps"]) - 1]}

        class Context:
            machine, rounds, quick = Machine, 2, False
        result = rows.growth("batch")(Context)
        self.assertAlmostEqual(result["ours"], 0, delta=1e-12)
        self.assertEqual(len(result["lines"]), 5)
        self.assertTrue(result["lines"][0].startswith("data.batch_size=1: 1.188 s"), result["lines"][0])

    def test_compares_products_turn_by_turn(self):
        rates = [[("a", 90.0, 100.0), ("a", 40.0, 80.0), ("b", 70.0, 60.0)], [("a", 80.0, 100.0), ("b", 50.0, 40.0)]]

        class Machine:
            @staticmethod
            def products():
                return rates.pop(0)

        class Context:
            machine, rounds = Machine, 2
        result = self.rows.products(Context)
        self.assertEqual(result["rounds"], [0.8, (70 / 60 + 50 / 40) / 2])
        self.assertEqual(result["ours"], 0.8)
        self.assertTrue(result["lines"][0].startswith("a "), result["lines"])

    def test_an_update_is_held_against_the_stream_of_its_moment(self):
        bytes_moved = 28 * self.rows.VIT_PARAMETERS
        found = [{"update_s": [["1"], ["2"]], "stream_bytes_per_s": [[bytes_moved], [bytes_moved / 2.5]]},
                 {"update_s": [["4"]], "stream_bytes_per_s": [[bytes_moved / 3.2]]}]

        class Machine:
            build = BUILD

            @staticmethod
            def kernels(*_):
                return found.pop(0)

        class Context:
            machine, rounds = Machine, 2
        result = self.rows.adam_bandwidth(Context)
        self.assertEqual([round(share, 9) for share in result["rounds"]], [1.0, 1.25, 0.8])
        self.assertAlmostEqual(result["ours"], 1.0, delta=1e-12)

    def test_updates_what_it_is_asked_to(self):
        helper = os.path.join(BUILD, "tools", "bench.d", "bench_kernels")
        rule = os.path.join(BUILD, "plugins", "optimizers", "adam.so")
        done = subprocess.run([helper, "1", "update", rule, "3x100,1x7"], capture_output=True, text=True, check=True)
        lines = done.stdout.split("\n")
        self.assertIn("elements 307", lines)
        self.assertIn("bytes_per_element 28", lines)
        self.assertEqual(subprocess.run([helper, "100000000", "stream"], capture_output=True, check=False).returncode, 1)
        for what in ("update", "bandwidth"):
            self.assertIn(what + " RULE.so", subprocess.run([helper, "1", what, rule], capture_output=True, text=True,
                                                            check=False).stderr)
        for arguments, reason in ((("8", "bandwidth", rule, "1x7"), "a million elements at least"),
                                  (("2", "update", rule, ""), "no elements")):
            few = subprocess.run([helper, *arguments], capture_output=True, text=True, check=False)
            self.assertEqual(few.returncode, 1)
            self.assertIn(reason, few.stderr)
        wrong = subprocess.run([helper, "1", "update", rule, "3x"], capture_output=True, text=True, check=False)
        self.assertEqual(wrong.returncode, 1)

    def test_no_optimizer_changes_nothing(self):
        config = self.write("c.ini", "[run]\nsteps = 2\n[model]\nplugin = mlp\nsizes = 12, 5, 3\n[data]\nplugin = "
                            "random_images\nimage_size = 2\nchannels = 3\nclasses = 3\nbatch_size = 2\n[optimizer]\n"
                            "plugin = %s\n" % os.path.join(BUILD, "tools", "bench.d", "no_optimizer.so"))
        weights = []
        for steps in (1, 7):
            self.fuserun(config, "run.steps=%d" % steps, "run.output=" + self.path("out%d" % steps))
            weights.append(read_safetensors(self.path("out%d" % steps, "model.safetensors")))
        self.assertEqual(weights[0], weights[1])
        self.assertTrue(any(any(values) for values in weights[0].values()))


if __name__ == "__main__":
    unittest.main()
