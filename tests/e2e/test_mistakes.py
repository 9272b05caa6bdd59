"""Mistakes of different kinds in one config are told together, at their lines; what only shows later is told there too."""
import gzip
import json
import os
import shutil
import struct
import unittest

from support import Case, write_safetensors


class Mistakes(Case):
    def idx(self, count=20, classes=4, side=4):
        images = struct.pack(">IIII", 0x803, count, side, side) + bytes(i * 37 % 256 for i in range(count * side * side))
        labels = struct.pack(">II", 0x801, count) + bytes(i % classes for i in range(count))
        for name, content in (("images", images), ("labels", labels)):
            with open(self.path(name), "wb") as file:
                file.write(content)
        return images

    def config(self, run="steps = 5", model="", data="images = images\nlabels = labels", rest=""):
        return self.write("t.ini", f"""[run]
name = t
overwrite = yes
{run}
[model]
plugin = mlp
sizes = 16, 4
{model}
[data]
plugin = idx
{data}
[optimizer]
plugin = adam
{rest}
""")

    def lines(self, *overrides):
        done = self.fuserun("t.ini", *overrides, status=2)
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(self.before))
        return [line.split(": ")[:2] for line in done.stderr.splitlines()]

    def test_absent_files_hide_nothing_and_are_not_hidden(self):
        self.idx()
        self.config(run="steps = 5\nsede = 1", model="weights = nope1\nfreeze = foo*",
                    data="images = nope2\nlabels = nope3\nbatch_size = 0",
                    rest="[eval]\nimages = nope4\nevery = x\n[group g]\nmatch = *bias\nlr = -1")
        self.before = os.listdir(self.folder)
        self.assertEqual(self.lines(), [
            ["t.ini:5", "run.sede"], ["t.ini:9", "model.weights"], ["t.ini:13", "data.images"],
            ["t.ini:14", "data.labels"], ["t.ini:15", "data.batch_size"], ["t.ini:19", "eval.images"],
            ["t.ini:20", "eval.every"], ["t.ini:23", "group g.lr"]])

    def test_absent_weights_hide_nothing_of_the_model(self):
        self.idx()
        self.config(model="weights = nope.safetensors\nfreeze = foo*", rest="[group g]\nmatch = zzz")
        self.before = os.listdir(self.folder)
        self.assertEqual(self.lines(), [["t.ini:8", "model.weights"], ["t.ini:9", "model.freeze"],
                                        ["t.ini:17", "group g.match"]])

    def test_sections_made_on_the_command_line_are_blamed_there(self):
        self.idx()
        self.config()
        self.before = os.listdir(self.folder)
        self.assertEqual(self.lines("group new.lr=1"), [["command line", "group new.match"]])

    def test_a_file_that_breaks_while_it_is_read_is_told_at_its_line(self):
        images = self.idx()
        with open(self.path("images.gz"), "wb") as file:
            file.write(gzip.compress(images)[:-12])
        self.config(data="images = images.gz\nlabels = labels")
        error = self.fuserun("t.ini", status=1).stderr
        self.assertRegex(error, r"^t\.ini:11: data\.images: ")
        self.assertEqual(len(error.splitlines()), 1)

    def test_weights_that_are_not_finite_are_told_at_their_line(self):
        self.idx()
        for value in (float("nan"), 1e300):
            write_safetensors(self.path("w.safetensors"), {"layers.0.weight": ("F64", [[value] * 16] * 4),
                                                           "layers.0.bias": ("F64", [0.0] * 4)})
            self.config(model="weights = w.safetensors")
            error = self.fuserun("t.ini", status=1).stderr
            self.assertRegex(error, r"^t\.ini:8: model\.weights: 'layers\.0\.weight' .*not finite")

    def test_a_model_of_images_says_what_a_sample_is(self):
        self.idx()
        vit = ["model.plugin=vit", "model.patch_size=2", "model.num_layers=1", "model.num_heads=2",
               "model.hidden_dim=8", "model.mlp_dim=8", "model.num_classes=4"]
        self.config()
        error = self.fuserun("t.ini", *vit, "model.image_size=8", status=2).stderr
        self.assertIn("command line: model.image_size: the model takes images (channels, 8, 8), a sample is 1 x 4 x 4",
                      error)
        self.fuserun("t.ini", *vit, "model.image_size=4")
        write_safetensors(self.path("flat.safetensors"), {"x": ("F32", [[0.0] * 16] * 4), "y": ("I64", [0] * 4)})
        self.config(data="file = flat.safetensors")
        error = self.fuserun("t.ini", *vit, "model.image_size=4", "data.plugin=tensors", status=2).stderr
        self.assertIn("the model takes images (channels, 4, 4), but a sample has rank 1", error)

    def test_names_that_are_no_utf8_leave_valid_json(self):
        self.idx()
        self.config()
        with open(self.path("t.ini"), "ab") as file:
            file.write(b"[group \xff\"]\nmatch = *bias\n")
        checked = json.loads(self.fuserun("check", "t.ini", "--json").stdout)
        self.assertIn("\ufffd\"", checked["groups"])
        self.fuserun("t.ini")
        self.assertTrue(self.updates())


class Orders(Case):
    def test_the_environments_plugins_come_before_those_beside_the_config(self):
        """Two files of one name: the notice says which hides which."""
        optimizer = os.path.join(os.environ["FUSERUN_BUILD"], "plugins", "optimizers", "adam.so")
        for folder in ("given", "environment", "plugins"):
            os.makedirs(self.path(folder))
            shutil.copy(optimizer, self.path(folder, "adam.so"))
        self.make_classes()
        self.classes_config(optimizer="adam")
        environment = dict(self.environment(), FUSERUN_PLUGIN_PATH=self.path("environment"))
        notice = self.fuserun("check", "t.ini", environment=environment).stderr
        self.assertLess(notice.index("environment/adam.so"), notice.index("plugins/adam.so"))
        notice = self.fuserun("check", "t.ini", "plugins.path=given", environment=environment).stderr
        self.assertLess(notice.index("given/adam.so"), notice.index("environment/adam.so"))

    def test_generated_evaluation_data_is_the_same_each_time(self):
        self.write("t.ini", """[run]
name = t
steps = 4
[model]
plugin = mlp
sizes = 48, 10
[data]
plugin = random_images
image_size = 4
classes = 10
length = 24
batch_size = 8
[eval]
every = 1
[optimizer]
plugin = sgd
lr = 0
""")
        self.fuserun("t.ini")
        losses = [line["eval_loss"] for line in self.evaluations()]
        self.assertEqual(len(losses), 4)
        self.assertEqual(len(set(losses)), 1)
        self.assertGreater(len({line["loss"] for line in self.updates()}), 1)


if __name__ == "__main__":
    unittest.main()
