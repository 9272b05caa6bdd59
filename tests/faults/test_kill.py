"""Twenty kills at random instants, and twenty failing calls; tools/torture goes on as long as one likes."""
import os
import unittest

import torture

SEED = int(os.environ.get("FUSERUN_SEED", "20"))


class Kill(unittest.TestCase):
    def go(self, **how):
        said = []
        right = torture.torture(20, SEED, report=said.append, **how)
        self.assertEqual((right, said), (20, []))

    def test_killed(self):
        self.go()

    def test_failing_calls(self):
        self.go(with_faults=True)


if __name__ == "__main__":
    unittest.main()
