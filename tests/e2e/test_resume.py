"""Going on from a checkpoint: the bits of the run that was never stopped, whatever the mode, and what the config wins."""
import json
import os
import shutil
import struct
import unittest

from support import Case, read_safetensors, write_safetensors

MODES = ("fused", "per_param", "foreach")
OWN = ("step_s", "samples_per_s", "peak_bytes")  # what the process itself took: time, and memory so far


def read_header(path):
    with open(path, "rb") as file:
        content = file.read()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8:8 + length]), content[8 + length:]


def write_header(path, header, data):
    """As another tool would: the checksums, which would be wrong, are left out."""
    header["__metadata__"].pop("checksums", None)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


class Resuming(Case):
    def checkpoint(self, step, output="runs/t"):
        return self.path(output, "checkpoints", f"step-{step:08d}.safetensors")

    def lines(self, output="runs/t"):
        return [{key: value for key, value in line.items() if key not in OWN} for line in self.metrics(output)]

    def run_all(self, name="t.ini", output="runs/whole", overrides=()):
        """The run that nobody stops, with a checkpoint of every update."""
        self.fuserun(name, f"run.output={output}", "checkpoint.every=1", "checkpoint.keep=1000", *overrides)

    def check_from_everywhere(self, steps, overrides=(), name="t.ini"):
        """From each checkpoint of the whole run to its end: the same weights, states and lines."""
        self.run_all(name)
        whole = self.read("runs/whole/model.safetensors")
        for k in range(1, steps):
            with self.subTest(from_step=k):
                shutil.rmtree(self.path("runs/t"), ignore_errors=True)
                self.fuserun(name, f"run.resume={self.checkpoint(k, 'runs/whole')}", "checkpoint.every=1 epoch",
                             *overrides)
                self.assertEqual(self.read("runs/t/model.safetensors"), whole)
                self.assertEqual(read_safetensors(self.checkpoint(steps)),
                                 read_safetensors(self.checkpoint(steps, "runs/whole")))
                # What stands behind the line of the update that was done last: the whole run's, from there on.
                lines = self.lines("runs/whole")
                at = max(i for i, line in enumerate(lines) if line["step"] == k)
                self.assertEqual(self.lines(), lines[at + 1:])


class EveryMode(Resuming):
    def test_row_21_sixty_updates_in_sixty_pieces_each_in_another_mode(self):
        """Each piece ends after one update and the next goes on in another mode: byte for byte the uninterrupted run."""
        self.make_classes(count=50)
        self.classes_config(steps=60, options="lr = 0.01\nweight_decay = 0.1", run="seed = 3", rest="""[group bias]
match = *bias
weight_decay = 0
[scheduler]
plugin = cosine
t_max = 60
[checkpoint]
every = 7
keep = 2
""")
        self.fuserun("t.ini", "run.output=runs/whole")
        for k in range(1, 61):
            self.fuserun("t.ini", f"run.steps={k}", f"optimizer.mode={MODES[k % 3]}")
        self.assertEqual(self.read("runs/t/model.safetensors"), self.read("runs/whole/model.safetensors"))
        self.assertEqual(self.lines(), self.lines("runs/whole"))
        self.assertEqual(len(self.lines()), 60)
        self.assertEqual(read_safetensors(self.checkpoint(60)), read_safetensors(self.checkpoint(60, "runs/whole")))
        self.assertEqual(sorted(os.listdir(self.path("runs/t/checkpoints"))),
                         ["latest", "step-00000059.safetensors", "step-00000060.safetensors"])

    def test_row_20_a_resumed_run_is_not_a_cold_start(self):
        self.make_classes()
        self.classes_config(steps=12)
        self.run_all()
        self.fuserun("t.ini", f"run.resume={self.checkpoint(6, 'runs/whole')}")
        self.assertEqual(self.read("runs/t/model.safetensors"), self.read("runs/whole/model.safetensors"))
        # The same weights with states of zero end elsewhere, so the comparison above says something.
        header, data = read_header(self.checkpoint(6, "runs/whole"))
        weights = {name: entry for name, entry in header.items() if name.startswith("layers.")}
        values = read_safetensors(self.checkpoint(6, "runs/whole"))
        nested = {}
        for name, entry in weights.items():
            flat, shape = values[name], entry["shape"]
            nested[name] = ("F32", flat if len(shape) == 1 else
                            [flat[i * shape[1]:(i + 1) * shape[1]] for i in range(shape[0])])
        write_safetensors(self.path("w.safetensors"), nested)
        self.fuserun("t.ini", "model.weights=w.safetensors", "run.output=runs/cold", "run.steps=6")
        self.assertNotEqual(self.read("runs/cold/model.safetensors"), self.read("runs/whole/model.safetensors"))

    def test_row_24_shuffle_and_dropout_in_the_middle_of_an_epoch(self):
        """A small ViT with dropout, seven batches an epoch, the last of them shorter."""
        self.write("t.ini", """[run]
name = t
steps = 10
[model]
plugin = vit
image_size = 8
patch_size = 4
num_layers = 2
num_heads = 2
hidden_dim = 16
mlp_dim = 24
num_classes = 5
dropout = 0.1
attention_dropout = 0.1
[data]
plugin = random_images
image_size = 8
channels = 3
classes = 5
length = 13
batch_size = 4
[optimizer]
plugin = adamw
lr = 1e-3
""")
        for overrides in ((), ("optimizer.mode=foreach",)):
            self.check_from_everywhere(10, overrides)

    def test_clipping_in_the_same_mode(self):
        self.make_classes()
        for mode in MODES:
            self.classes_config(steps=9, options=f"lr = 0.01\nmode = {mode}\nclip_grad_norm = 0.5")
            shutil.rmtree(self.path("runs"), ignore_errors=True)
            self.check_from_everywhere(9)


if __name__ == "__main__":
    unittest.main()
