"""Every wait for an event, of a stream or of the host, is needed: with any one of them left out, some order in which the
device may work gives other results. With all of them none does. The emulation counts the waits that a run has, so one
that is new has to be looked at here."""
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

    def test_more_tensors_than_one_list_has_room_for(self):
        """The host fills the list of foreach's updates anew once the device has read it."""
        sizes = ", ".join(["4"] * 561)  # 1120 tensors, in lists of 1024
        config = self.write("t.ini", "[run]\nname = t\noverwrite = yes\nsteps = 1\n[model]\nplugin = mlp\nsizes = %s\n"
                            "[data]\nplugin = random_images\nimage_size = 2\nchannels = 1\nclasses = 4\nlength = 2\n"
                            "batch_size = 2\n[loss]\nkind = sum\n[optimizer]\nplugin = sgd\nmode = foreach\n" % sizes)
        results = set()
        for order in ORDERS[:2]:
            self.assertEqual(self.cuda(config, order=order)["waits"], 3)
            results.add(self.model())
        self.assertEqual(len(results), 1)
        done, report = self.run_on_device(config, "run.device=cuda", order="late", no_wait=3)
        self.assertEqual((done.returncode, report["waits_left_out"] > 0), (0, True), done.stderr)
        self.assertNotIn(self.model(), results)


if __name__ == "__main__":
    unittest.main()
