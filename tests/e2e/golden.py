"""Whole runs compared with PyTorch's: what the tests of golden nets share."""
import os
import pathlib

from support import Case, read_safetensors

SOURCE = pathlib.Path(os.environ.get("FUSERUN_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
MODES = ("fused", "per_param", "foreach")


class GoldenCase(Case):
    def run_config(self, config, output, *overrides):
        """The run's folder."""
        self.fuserun(str(config), f"run.output={output}", "run.progress=off", *overrides)
        return pathlib.Path(self.path(output))

    def run_modes(self, config, *overrides):
        """{mode: the run's folder}; the weights are the same, bit for bit."""
        runs = {mode: self.run_config(config, f"{config.stem}-{mode}", f"optimizer.mode={mode}", *overrides)
                for mode in MODES}
        files = {(run / "model.safetensors").read_bytes() for run in runs.values()}
        self.assertEqual(len(files), 1, f"{config.stem}: model.safetensors differs between modes")
        return runs

    def assert_near(self, got, expected, tolerance, what):
        """Every element within `tolerance` of the expected tensor's largest one."""
        self.assertEqual(len(got), len(expected), what)
        largest = max(map(abs, expected))
        worst = max(abs(a - b) for a, b in zip(got, expected))
        self.assertLessEqual(worst, tolerance * largest, what)

    def assert_losses(self, run, expected, tolerance=1e-5):
        updates = self.updates(run.name)
        self.assertEqual([line["step"] for line in updates], list(range(1, len(expected) + 1)), run.name)
        for line, loss in zip(updates, expected):
            self.assertLessEqual(abs(line["loss"] - loss), tolerance * abs(loss), f"{run.name}, step {line['step']}")
        return updates


__all__ = ["GoldenCase", "MODES", "SOURCE", "read_safetensors"]
