"""Every wait of a stream for an event is needed: with any one of them left out, some order in which the device may work
gives other results. With all of them none does."""
import os
import subprocess
import unittest

from device_case import SMALL_VIT, DeviceCase, config_of

ORDERS = ["late", "eager", *range(1, 7)]
PROBE = os.path.join(os.environ["FUSERUN_BUILD"], "tests", "gpu", "staging_probe")


class Waits(DeviceCase):
    def probe(self, **settings):
        done = subprocess.run([PROBE], capture_output=True, text=True, check=False, cwd=self.folder,
                              env=self.device_environment(**settings))
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_batches_that_follow_each_other(self):
        for order in ORDERS:
            self.assertEqual(self.probe(order=order), "12 of 12\n", order)
        for wait in (1, 2):  # of the copy for what still reads the batch before, of computing for the copy
            self.assertTrue(any(self.probe(order=order, no_wait=wait) != "12 of 12\n" for order in ORDERS),
                            "wait %d can be left out and nothing shows" % wait)

    def test_runs_in_any_order(self):
        for arguments in ([self.net(rest="[eval]\nevery = 2 steps", steps=6)],
                          [config_of("vit_l16_fused.ini"), "run.output=runs/t", "run.overwrite=yes", *SMALL_VIT]):
            results = set()
            for order in ORDERS:
                report = self.cuda(*arguments, order=order)
                self.assertEqual(report["waits"], 2)
                results.add(self.model())
            self.assertEqual(len(results), 1)

    def test_a_run_without_the_wait_for_its_batch(self):
        config = self.net(steps=2)
        self.cuda(config)
        expected = self.model()
        found = 0
        for order in ORDERS:
            done, report = self.run_on_device(config, "run.device=cuda", order=order, no_wait=2)
            found += done.returncode != 0 or self.model() != expected
            self.assertGreater(report["waits_left_out"], 0)
        self.assertGreater(found, 0)


if __name__ == "__main__":
    unittest.main()
