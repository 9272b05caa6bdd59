"""Whole runs against PyTorch's (tools/make_golden_nets.py): every config of tests/golden/nets in the three modes.

Tolerances: float32 sums in another order part by some 1e-7 a update, which training then amplifies; a wrong rule, loss
or schedule is off by 1e-2 and more. Weights within 2e-4 of each tensor's largest element, losses within 1e-5 relative,
learning rates as computed in double."""
import json
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("FUSERUN_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
FUSERUN = os.environ.get("FUSERUN", str(SOURCE / "build" / "fuserun"))
NETS = SOURCE / "tests" / "golden" / "nets"
MODES = ("fused", "per_param", "foreach")
FORMATS = {"F32": "f", "F64": "d", "I64": "q"}


def read_safetensors(path):
    """Tensors as flat tuples, by name."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        letter = FORMATS[entry["dtype"]]
        count = (end - begin) // struct.calcsize(letter)
        tensors[name] = struct.unpack_from(f"<{count}{letter}", data, 8 + length + begin)
    return tensors


class GoldenNets(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.output = pathlib.Path(self.folder.name)

    def run_config(self, name, mode):
        run = self.output / f"{name}-{mode}"
        command = [FUSERUN, NETS / f"{name}.ini", f"optimizer.mode={mode}", f"run.output={run}", "run.progress=off"]
        done = subprocess.run(command, cwd=self.output, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, f"{name}, {mode}: {done.stderr}")
        return run

    def assert_weights(self, run, expected):
        weights = read_safetensors(run / "model.safetensors")
        names = {name for name in expected if name.startswith("layers.")}
        self.assertEqual(set(weights), names)
        for name in sorted(names):
            largest = max(map(abs, expected[name]))
            self.assertEqual(len(weights[name]), len(expected[name]), name)
            worst = max(abs(a - b) for a, b in zip(weights[name], expected[name]))
            self.assertLessEqual(worst, 2e-4 * largest, f"{run.name}: {name}")

    def assert_metrics(self, run, expected):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        updates = [line for line in lines if "loss" in line]
        losses = expected["loss"]
        self.assertEqual([line["step"] for line in updates], list(range(1, len(losses) + 1)), run.name)
        groups = {name.removeprefix("lr.") for name in expected if name.startswith("lr.")}
        for line, loss in zip(updates, losses):
            where = f"{run.name}, step {line['step']}"
            self.assertLessEqual(abs(line["loss"] - loss), 1e-5 * abs(loss), where)
            self.assertEqual(set(line["lr"]), groups, where)
            for group in groups:
                rate = expected[f"lr.{group}"][line["step"] - 1]
                self.assertLessEqual(abs(line["lr"][group] - rate), 1e-9 * max(expected[f"lr.{group}"]), where)

    def check_net(self, name):
        expected = read_safetensors(NETS / f"{name}.expected.safetensors")
        files = {}
        for mode in MODES:
            with self.subTest(mode=mode):
                run = self.run_config(name, mode)
                self.assert_weights(run, expected)
                self.assert_metrics(run, expected)
                files[mode] = (run / "model.safetensors").read_bytes()
        self.assertEqual(set(files), set(MODES))
        self.assertEqual(len(set(files.values())), 1, f"{name}: model.safetensors differs between modes")
        return expected

    def test_every_config_has_a_test(self):
        tested = {method.removeprefix("test_net_") for method in dir(self) if method.startswith("test_net_")}
        self.assertEqual({path.stem for path in NETS.glob("*.ini")}, tested)

    def test_net_relu_sgd(self):
        self.check_net("relu_sgd")

    def test_net_gelu_adamw_groups(self):
        self.check_net("gelu_adamw_groups")

    def test_net_tanh_mse_adam(self):
        self.check_net("tanh_mse_adam")

    def test_net_relu_sum_sgd(self):
        self.check_net("relu_sum_sgd")

    def test_net_gelu_adam_batch_1(self):
        self.check_net("gelu_adam_batch_1")

    def test_net_wide_adamw(self):
        self.check_net("wide_adamw")

    def test_net_tanh_sgd_frozen(self):
        self.check_net("tanh_sgd_frozen")
        start = read_safetensors(NETS / "tanh_sgd_frozen.init.safetensors")
        for mode in MODES:
            end = read_safetensors(self.output / f"tanh_sgd_frozen-{mode}" / "model.safetensors")
            self.assertEqual(start["layers.1.weight"], end["layers.1.weight"])
            self.assertNotEqual(start["layers.1.bias"], end["layers.1.bias"])

    def test_net_deep_sgd_drop_last(self):
        self.check_net("deep_sgd_drop_last")


if __name__ == "__main__":
    unittest.main()
