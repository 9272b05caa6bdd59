"""A data file that becomes shorter while a run reads it: an error, not a signal. Files are read with pread, never mapped."""
import json
import os
import struct
import subprocess
import time
import unittest

from support import FUSERUN, TIMEOUT_S, Case


class Shrinking(Case):
    def test_data_read_batch_by_batch(self):
        width, count = 4096, 5000  # more than a dataset keeps in memory: each batch is read when it is due
        header = json.dumps({"x": {"dtype": "F32", "shape": [count, width], "data_offsets": [0, 4 * width * count]}}).encode()
        with open(self.path("big.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + 4 * width * count)  # a hole: zeros that take no room on disk
        self.write("t.ini", f"""[run]
name = t
steps = 1000000000
[model]
plugin = mlp
sizes = {width}, 1
[data]
plugin = tensors
file = big.safetensors
batch_size = 4
[loss]
kind = sum
[optimizer]
plugin = sgd
""")
        with subprocess.Popen([FUSERUN, "t.ini"], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              env=self.environment()) as process:
            deadline = time.monotonic() + TIMEOUT_S
            while not os.path.exists(self.path("runs/t/metrics.jsonl")) and time.monotonic() < deadline:
                time.sleep(0.01)
            os.truncate(self.path("big.safetensors"), 1000)
            errors = process.communicate(timeout=TIMEOUT_S)[1]
        self.assertEqual(process.returncode, 1, errors)
        self.assertRegex(errors, r"\A[^\n]*big\.safetensors': it has become shorter since it was opened\n\Z")
        self.assertFalse(os.path.exists(self.path("runs/t/model.safetensors")))


if __name__ == "__main__":
    unittest.main()
