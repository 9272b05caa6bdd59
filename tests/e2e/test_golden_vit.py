"""Vision transformers against torchvision's (tools/make_golden_vit.py): small ones whole, large ones by what is left of
them, and ones that take several clipped micro-batches into an update. In the three modes, and with the blocks' values
made again.

Tolerances: losses within 1e-5 relative; each gradient within 2e-4 and weights within 1e-3 of the tensor's largest
element. The gradient of an attention key's bias is zero but for rounding, which Adam turns into steps of lr: that third
of in_proj_bias is left out of the weights (the outputs do not depend on it)."""
import array
import json
import os
import pathlib
import shutil
import struct
import subprocess
import unittest

from golden import MODES, SOURCE, GoldenCase, read_safetensors

VITS = SOURCE / "tests" / "golden" / "vits"
SEEDED_WEIGHTS = pathlib.Path(os.environ["FUSERUN_BUILD"]) / "tests" / "golden" / "seeded_weights"
# One update of this rule moves each weight by its gradient.
GRADIENT = ("optimizer.plugin=sgd", "optimizer.lr=1", "optimizer.weight_decay=0", "run.epochs=", "run.steps=1")
EPSILON = 2.0 ** -24


def without_key(name, values):
    """in_proj_bias without its middle third."""
    if not name.endswith("in_proj_bias"):
        return values
    third = len(values) // 3
    return values[:third] + values[2 * third:]


def read_arrays(path):
    """Tensor by tensor, as float arrays: for files too large for lists."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            file.seek(8 + length + begin)
            values = array.array("f")
            values.frombytes(file.read(end - begin))
            yield name, values


class WholeVits(GoldenCase):
    def check_gradients(self, config, init, expected):
        """A weight's own rounding stands in the difference."""
        run = self.run_config(config, f"{config.stem}-gradient", *GRADIENT)
        end = read_safetensors(run / "model.safetensors")
        self.assertEqual(set(end), set(init))
        for name, start in init.items():
            gradient = expected[f"gradient.{name}"]
            largest = max(map(abs, gradient))
            for i, (before, after) in enumerate(zip(start, end[name])):
                bound = 2e-4 * largest + EPSILON * (2 * abs(after) + abs(before))
                self.assertLessEqual(abs(before - after - gradient[i]), bound, f"{config.stem}: {name}[{i}]")

    def check_vit(self, name):
        config = VITS / f"{name}.ini"
        init = read_safetensors(VITS / f"{name}.init.safetensors")
        expected = read_safetensors(VITS / f"{name}.expected.safetensors")
        self.check_gradients(config, init, expected)
        runs = self.run_modes(config)
        for run in runs.values():
            self.assert_losses(run, expected["loss"])
        weights = read_safetensors(runs["fused"] / "model.safetensors")
        self.assertEqual(set(weights), set(init))
        for parameter, values in weights.items():
            self.assert_near(without_key(parameter, values), without_key(parameter, expected[parameter]), 1e-3,
                             f"{name}: {parameter}")
        again = self.run_config(config, f"{name}-blocks", "memory.recompute=blocks")
        self.assertEqual((again / "model.safetensors").read_bytes(), (runs["fused"] / "model.safetensors").read_bytes(),
                         f"{name}: recompute = blocks gives other weights")

    def test_every_config_has_a_test(self):
        tested = {method[len("test_vit_"):] for method in dir(self) if method.startswith("test_vit_")}
        self.assertEqual({path.name.split(".")[0] for path in VITS.glob("*.init.safetensors")}, tested)

    def test_vit_adam_sum_batch_1(self):
        self.check_vit("adam_sum_batch_1")

    def test_vit_adamw_ragged(self):
        self.check_vit("adamw_ragged")

    def test_vit_sgd_deep(self):
        self.check_vit("sgd_deep")

    def test_vit_sgd_representation(self):
        self.check_vit("sgd_representation")


class AccumulatedVits(GoldenCase):
    """Four layers, 20 updates of 4 micro-batches, a norm that is clipped in each: the optimizer in backward against
    PyTorch's after it."""

    def check_accumulated(self, name, tolerance):
        expected = read_safetensors(VITS / f"{name}.expected.safetensors")
        losses, norms = expected.pop("loss"), expected.pop("grad_norm")
        subprocess.run([SEEDED_WEIGHTS, VITS / f"{name}.seeded.txt", self.folder], check=True)
        config = pathlib.Path(shutil.copy(VITS / f"{name}.ini", self.folder))
        all_gradients = 4 * sum(map(len, expected.values()))
        for mode in MODES:
            for overrides in ([], ["memory.recompute=blocks"], ["optimizer.clip_algorithm=two_pass"]):
                run = self.run_config(config, mode, f"optimizer.mode={mode}", "run.overwrite=yes", *overrides)
                updates = self.assert_losses(run, losses)
                for line, norm in zip(updates, norms):
                    self.assertLessEqual(abs(line["grad_norm"] - norm), 1e-4 * norm, f"{name}: step {line['step']}")
                for parameter, values in read_safetensors(run / "model.safetensors").items():
                    self.assert_near(without_key(parameter, values), without_key(parameter, expected[parameter]),
                                     tolerance, f"{name}, {mode}: {parameter}")
                timeline = json.loads((run / "memory.json").read_text())["timeline"]
                gradient = timeline["categories"].index("gradient")
                most = max(max(item["bytes"][gradient]) for item in timeline["passes"] if item["purpose"] == "training")
                if mode == "fused":
                    self.assertLess(most, all_gradients / 3, f"{name}: a full set of gradients")
                else:
                    self.assertEqual(most, all_gradients)

    def test_sgd(self):
        self.check_accumulated("accumulated_sgd", 1e-5)

    def test_adamw(self):
        self.check_accumulated("accumulated_adamw", 1e-3)


class SeededVits(GoldenCase):
    def assert_summary(self, what, values, expected, bound):
        """bound: of one element. A sum's rounding errors are of either sign, and those of its terms' sizes too."""
        slack = 2e-5 * expected["absolute_sum"] + bound
        self.assertLessEqual(abs(sum(values) - expected["sum"]), slack, f"{what}: sum")
        self.assertLessEqual(abs(sum(map(abs, values)) - expected["absolute_sum"]), slack, f"{what}: absolute sum")
        for place, value in expected["elements"].items():
            self.assertLessEqual(abs(values[int(place)] - value), bound, f"{what}: element {place}")

    def check_seeded(self, name):
        expected = json.loads((VITS / f"{name}.expected.json").read_text())
        subprocess.run([SEEDED_WEIGHTS, VITS / f"{name}.seeded.txt", self.folder], check=True)
        config = pathlib.Path(shutil.copy(VITS / f"{name}.ini", self.folder))
        run = self.run_config(config, "gradient", *GRADIENT)
        start = read_arrays(self.path(f"{name}.seeded.safetensors"))
        end = dict(read_arrays(run / "model.safetensors"))
        self.assertEqual(set(end), set(expected["gradient"]))
        for parameter, before in start:
            values = array.array("d", map(float.__sub__, before, end.pop(parameter)))
            summary = expected["gradient"][parameter]
            bound = 2e-4 * summary["largest"] + 4 * EPSILON * max(map(abs, before))
            self.assert_summary(f"{name}: gradient of {parameter}", values, summary, bound)
        run = self.run_config(config, "weights")
        self.assert_losses(run, expected["loss"])
        for parameter, values in read_arrays(run / "model.safetensors"):
            summary = expected["weights"][parameter]
            if not parameter.endswith("in_proj_bias"):
                self.assert_summary(f"{name}: {parameter}", values, summary, 1e-3 * summary["largest"])

    def test_small(self):
        self.check_seeded("seeded_small")

    @unittest.skipUnless(os.environ.get("FUSERUN_DEEP"), "1.5 GB and a minute: tools/check-deep")
    def test_vit_b_16(self):
        self.check_seeded("seeded_vit_b_16")


if __name__ == "__main__":
    unittest.main()
