"""Weights from PyTorch and for it: model.weights = a .pth, inspect, export. What the files hold was made by torch
(tools/make_golden_pth.py); what export writes, the same script loads with torch."""
import json
import os
import pathlib
import shutil
import struct
import unittest
import zipfile

from support import Case, read_safetensors, write_safetensors

SOURCE = pathlib.Path(os.environ.get("FUSERUN_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
GOLDEN = SOURCE / "tests" / "golden" / "pth"
NAMES = ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"]


class Weights(Case):
    def setUp(self):
        super().setUp()
        self.make_classes()
        shutil.copy(GOLDEN / "mlp.pth", self.folder)
        self.expected = {name.removeprefix("mlp/state_dict."): values
                         for name, values in read_safetensors(GOLDEN / "expected.safetensors").items()
                         if name.startswith("mlp/")}
        self.assertEqual(sorted(self.expected), sorted(NAMES))

    def config(self, weights, more="", sizes="12, 24, 4", lr="0"):
        """With lr = 0 what was loaded is what is written."""
        self.classes_config(steps=1, optimizer="sgd", model=f"weights = {weights}\n{more}", options=f"lr = {lr}",
                            run="overwrite = yes")
        text = self.read("t.ini").decode().replace("sizes = 12, 24, 4", f"sizes = {sizes}")
        self.write("t.ini", text)

    def test_loads_every_type_whatever_its_strides(self):
        self.config("mlp.pth", "weights_key = state_dict")
        self.fuserun("t.ini")
        self.assertEqual(self.weights(), self.expected)
        # the resolved config in the run's folder repeats it
        before = self.read("runs", "t", "model.safetensors")
        self.fuserun("runs/t/config.ini")
        self.assertEqual(self.read("runs", "t", "model.safetensors"), before)

    def test_the_same_as_from_safetensors(self):
        tensors = {"layers.0.weight": (24, 12), "layers.0.bias": (24,), "layers.1.weight": (4, 24), "layers.1.bias": (4,)}
        nested = {}
        for name, shape in tensors.items():
            values = self.expected[name]
            width = shape[-1]
            nested[name] = ("F32", [values[i:i + width] for i in range(0, len(values), width)] if len(shape) > 1
                            else values)
        write_safetensors(self.path("w.safetensors"), nested)
        files = []
        for weights, more in (("mlp.pth", "weights_key = state_dict"), ("w.safetensors", "")):
            self.config(weights, more, lr="0.01")
            self.fuserun("t.ini", "run.steps=5")
            files.append(self.read("runs", "t", "model.safetensors"))
        self.assertEqual(files[0], files[1])

    def refused(self, key, *words, line=None):
        lines = self.fuserun("check", "t.ini", status=2).stderr.splitlines()
        self.assertEqual(len(lines), 1, lines)
        self.assertRegex(lines[0], rf"^t\.ini:\d+: model\.{key}: ")
        for word in words:
            self.assertIn(word, lines[0])
        self.assertEqual(self.read("t.ini").decode().splitlines()[int(lines[0].split(":")[1]) - 1].split(" ")[0], key)

    def test_refusals_name_the_line(self):
        self.config("mlp.pth")
        self.refused("weights", "mlp.pth", "set weights_key = state_dict")
        self.config("mlp.pth", "weights_key = model")
        self.refused("weights_key", "holds no dict 'model'", "state_dict")
        self.config("w.safetensors", "weights_key = model")
        write_safetensors(self.path("w.safetensors"), {"a": ("F32", [1.0])})
        self.refused("weights_key", "w.safetensors")
        self.config("absent.pth")
        self.refused("weights", "absent.pth", "No such file")
        shutil.copy(GOLDEN / "legacy.pth", self.folder)
        self.config("legacy.pth")
        self.refused("weights", "legacy.pth", "before PyTorch 1.6", "torch.save")
        self.config("mlp.pth", "weights_key = state_dict", sizes="12, 25, 4")
        self.refused("weights", "layers.0.weight (24, 12) where the model has (25, 12)")
        self.assertEqual([name for name in self.left_behind() if name.startswith("runs")], [])

    def test_key_without_a_file(self):
        self.classes_config(model="weights_key = model")
        self.refused("weights_key", "no 'weights'")

    def test_nothing_in_a_file_is_executed(self):
        pickle = b"\x80\x02cposix\nsystem\nX\x14\x00\x00\x00touch executed; true\x85R."
        with zipfile.ZipFile(self.path("evil.pth"), "w") as file:
            file.writestr("evil/data.pkl", pickle)
        self.config("evil.pth")
        self.refused("weights", "evil.pth: refuses 'posix.system'")
        done = self.fuserun("inspect", "evil.pth", status=2)
        self.assertIn("evil.pth: refuses 'posix.system'", done.stderr)
        self.assertNotIn("executed", self.left_behind())

    def test_another_head_without_strict(self):
        self.config("mlp.pth", "weights_key = state_dict\nstrict = no", sizes="12, 24, 6")
        done = self.fuserun("t.ini")
        self.assertRegex(done.stderr, r"t\.ini:\d+: warning: model\.weights: .*layers\.1\.weight \(4, 24\) where the "
                         r"model has \(6, 24\)")
        weights = self.weights()
        self.assertEqual(weights["layers.0.weight"], self.expected["layers.0.weight"])
        self.assertEqual(len(weights["layers.1.bias"]), 6)

    def test_inspect(self):
        listed = json.loads(self.fuserun("inspect", "mlp.pth", "--json").stdout)
        self.assertEqual(listed, [{"name": "state_dict.layers.0.weight", "dtype": "F16", "shape": [24, 12]},
                                  {"name": "state_dict.layers.0.bias", "dtype": "F64", "shape": [24]},
                                  {"name": "state_dict.layers.1.weight", "dtype": "BF16", "shape": [4, 24]},
                                  {"name": "state_dict.layers.1.bias", "dtype": "F32", "shape": [4]}])
        self.assertRegex(self.fuserun("inspect", "mlp.pth").stdout, r"(?m)^state_dict\.layers\.1\.bias +F32 +\(4\)$")

    def test_export_of_a_run(self):
        self.config("mlp.pth", "weights_key = state_dict")
        self.fuserun("t.ini")
        self.assertEqual(self.fuserun("export", "runs/t", "--to", "out.pth").stdout, "out.pth: 4 tensors, 412 values\n")
        self.fuserun("export", "runs/t/model.safetensors", "--to=again.pth")
        self.assertEqual(self.read("out.pth"), self.read("again.pth"))
        with zipfile.ZipFile(self.path("out.pth")) as file:
            self.assertIsNone(file.testzip())  # every CRC
            members = file.namelist()
            order = [entry["name"] for entry in json.loads(self.fuserun("inspect", "out.pth", "--json").stdout)]
            for index, name in enumerate(order):
                raw = file.read(f"archive/data/{index}")
                self.assertEqual(list(struct.unpack(f"<{len(raw) // 4}f", raw)), self.expected[name])
        self.assertEqual(members, ["archive/data.pkl", "archive/byteorder", *(f"archive/data/{i}" for i in range(4)),
                                   "archive/version"])
        self.assertEqual(sorted(order), sorted(NAMES))
        # and a run takes it
        before = self.read("runs", "t", "model.safetensors")
        self.config("out.pth")
        self.fuserun("t.ini")
        self.assertEqual(self.read("runs", "t", "model.safetensors"), before)

    def test_export_of_a_dict_inside(self):
        nested = os.path.join(GOLDEN, "nested.pth")
        self.assertIn("weights_key = model", self.fuserun("export", nested, "--to", "x.pth", status=2).stderr)
        self.assertEqual(self.fuserun("export", nested, "--weights-key", "model", "--to", "x.pth").stdout,
                         "x.pth: 9 tensors, 95 values\n")

    def test_export_refuses(self):
        for arguments, words in ((["mlp.pth"], "--to"), (["--to", "x.pth"], "export needs"),
                                 (["mlp.pth", "--to"], "--to needs"), (["mlp.pth", "--to", "x.txt"], "must end in .pth"),
                                 (["absent", "--to", "x.pth"], "absent"), ([".", "--to", "x.pth"], "model.safetensors"),
                                 (["mlp.pth", "--to", "x.pth"], "state_dict")):
            self.assertIn(words, self.fuserun("export", *arguments, status=2).stderr)
        write_safetensors(self.path("w.safetensors"), {"a": ("F32", [1.0])})
        self.assertIn("no/x.pth", self.fuserun("export", "w.safetensors", "--to", "no/x.pth", status=1).stderr)
        self.assertNotIn("x.pth", self.left_behind())
        done = json.loads(self.fuserun("export", "w.safetensors", "--to", "x.pth", "--json").stdout)
        self.assertEqual(done, {"file": "x.pth", "tensors": 1, "values": 1})


if __name__ == "__main__":
    unittest.main()
