"""Every wait of a stream or of the host for an event is needed: with any one of them left out, some order in which the
device may work gives other weights, or the emulated device finds a mistake. And with all of them none does."""
import unittest

from device_case import SMALL_VIT, DeviceCase, config_of

ORDERS = ["late", "eager", *range(1, 9)]


class Waits(DeviceCase):
    def outcome(self, arguments, **settings):
        done, report = self.run_on_device(*arguments, **settings)
        if done.returncode != 0 or report is None or report["complaints"]:
            return "failed", report
        return self.model() + self.read("runs/t/metrics.jsonl").split(b'"step_s"')[0], report

    def check(self, arguments):
        expected, report = self.outcome(arguments)
        self.assertNotEqual(expected, "failed")
        self.assertGreater(report["waits"], 0, "nothing to leave out")
        for order in ORDERS:
            self.assertEqual(self.outcome(arguments, order=order)[0], expected, order)
        for wait in range(1, report["waits"] + 1):
            found = False
            for order in ORDERS:
                got, without = self.outcome(arguments, order=order, no_wait=wait)
                if without is not None:
                    self.assertGreater(without["waits_left_out"], 0)
                found = got != expected
                if found:
                    break
            self.assertTrue(found, "wait %d of %d can be left out and nothing shows" % (wait, report["waits"]))

    def test_mlp(self):
        self.check([self.net(rest="[eval]\nevery = 2 steps", steps=6), "run.device=cuda"])

    def test_vit(self):
        self.check([config_of("vit_l16_fused.ini"), "run.output=runs/t", "run.overwrite=yes", "run.device=cuda",
                    *SMALL_VIT])


if __name__ == "__main__":
    unittest.main()
