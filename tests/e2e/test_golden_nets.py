"""Whole runs against PyTorch's (tools/make_golden_nets.py): every config of tests/golden/nets in the three modes.

Tolerances: float32 sums in another order part by some 1e-7 a update, which training then amplifies; a wrong rule, loss
or schedule is off by 1e-2 and more. Weights within 2e-4 of each tensor's largest element, losses within 1e-5 relative,
learning rates as computed in double."""
import unittest

from golden import SOURCE, GoldenCase, read_safetensors

NETS = SOURCE / "tests" / "golden" / "nets"


class GoldenNets(GoldenCase):
    def assert_weights(self, run, expected):
        weights = read_safetensors(run / "model.safetensors")
        names = {name for name in expected if name.startswith("layers.")}
        self.assertEqual(set(weights), names)
        for name in sorted(names):
            self.assert_near(weights[name], expected[name], 2e-4, f"{run.name}: {name}")

    def assert_metrics(self, run, expected):
        updates = self.assert_losses(run, expected["loss"])
        groups = {name[len("lr."):] for name in expected if name.startswith("lr.")}
        for line in updates:
            where = f"{run.name}, step {line['step']}"
            self.assertEqual(set(line["lr"]), groups, where)
            for group in groups:
                rate = expected[f"lr.{group}"][line["step"] - 1]
                self.assertLessEqual(abs(line["lr"][group] - rate), 1e-9 * max(expected[f"lr.{group}"]), where)

    def check_net(self, name):
        expected = read_safetensors(NETS / f"{name}.expected.safetensors")
        runs = self.run_modes(NETS / f"{name}.ini")
        for mode, run in runs.items():
            with self.subTest(mode=mode):
                self.assert_weights(run, expected)
                self.assert_metrics(run, expected)
        return runs

    def test_every_config_has_a_test(self):
        tested = {method[len("test_net_"):] for method in dir(self) if method.startswith("test_net_")}
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
        start = read_safetensors(NETS / "tanh_sgd_frozen.init.safetensors")
        for run in self.check_net("tanh_sgd_frozen").values():
            end = read_safetensors(run / "model.safetensors")
            self.assertEqual(start["layers.1.weight"], end["layers.1.weight"])
            self.assertNotEqual(start["layers.1.bias"], end["layers.1.bias"])

    def test_net_deep_sgd_drop_last(self):
        self.check_net("deep_sgd_drop_last")


if __name__ == "__main__":
    unittest.main()
