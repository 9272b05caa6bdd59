"""The templates, trained: their rules against formulas written again here, in every mode; a plugin in C++; the folders
that tools/new-plugin makes."""
import glob
import math
import os
import random
import shutil
import unittest

from support import to_f32, write_safetensors
from kit import MODES, SOURCE, TEMPLATE, KitCase, SmallNet, text_of

NEW_PLUGIN = os.path.join(SOURCE, "tools", "new-plugin")
KINDS = ("optimizer", "scheduler", "dataset", "model")


def sign_descent(lr, momentum):
    def update(_step, weight, gradient, state):
        state["m"] = momentum * state.get("m", 0.0) + (1 - momentum) * gradient
        assert abs(state["m"]) > 1e-5, "too close to 0 for float32 to know its sign"
        return weight - lr * (1.0 if state["m"] > 0 else -1.0)
    return update


class Optimizer(KitCase):
    def test_the_template_is_its_formula_in_every_mode(self):
        self.build(os.path.join(TEMPLATE, "my_optimizer.c"), "my_optimizer")
        SmallNet(self).check("my_optimizer", sign_descent(0.01, 0.8), "lr = 0.01\nmomentum = 0.8")

    def test_options_reach_the_rule_by_group_and_schedule(self):
        self.build(os.path.join(TEMPLATE, "my_optimizer.c"), "my_optimizer")
        net = SmallNet(self)

        def update(step, *element):
            return sign_descent(0.01 * 0.5 ** (step - 1), 0.5)(step, *element)
        net.check("my_optimizer", update, "lr = 0.01\n[group all]\nmatch = *\nmomentum = 0.5\n[scheduler]\n"
                                          "plugin = exponential\ngamma = 0.5\n", steps=4)

    @unittest.skipUnless(shutil.which("g++"), "no g++ here")
    def test_a_plugin_in_cxx_trains_to_the_same_bytes(self):
        self.build(os.path.join(TEMPLATE, "my_optimizer.c"), "my_optimizer")
        cxx = os.path.join(SOURCE, "tests", "plugins", "in_cxx.cpp")
        compilers = [name for name in ("g++", "clang++") if shutil.which(name)]
        net = SmallNet(self)
        net.config("my_optimizer", "fused", 9, "lr = 0.01")
        self.fuserun("t.ini")
        expected = self.read("runs/t/model.safetensors")
        for compiler in compilers:
            self.build(cxx, "in_cxx", compiler=compiler, more="-std=c++17")
            for mode in MODES:
                with self.subTest(compiler=compiler, mode=mode):
                    net.config("in_cxx", mode, 9, "lr = 0.01\n[scheduler]\nplugin = in_cxx")
                    self.fuserun("t.ini")
                    self.assertEqual(self.read("runs/t/model.safetensors"), expected)


class Scheduler(KitCase):
    def test_the_template_used_is_logged_is_its_formula(self):
        self.build(os.path.join(TEMPLATE, "my_scheduler.c"), "my_scheduler")
        width, half_life = 40, 7.5
        for mode in MODES:
            self.probe_config(width, mode=mode, rest="[scheduler]\nplugin = my_scheduler\nhalf_life = %r" % half_life)
            self.fuserun("probe.ini", "run.overwrite=yes")
            weights = self.weights()["layers.0.weight"]
            lines = self.updates()
            self.assertEqual(len(lines), width)
            for step, (line, weight) in enumerate(zip(lines, weights)):
                right = 0.1 * 2 ** (-step / half_life)
                self.assertLessEqual(abs(line["lr"]["default"] - right), 1e-9 * 0.1, (mode, step))
                self.assertLessEqual(abs(-weight - right), 2.0 ** -24 * right * 1.01, (mode, step))


class Dataset(KitCase):
    CONFIG = ("[run]\nname = t\noverwrite = yes\nsteps = 4\nseed = %d\n[model]\nplugin = mlp\nsizes = 2, 2\n[data]\n"
              "plugin = my_dataset\nsamples = 8\nbatch_size = 2\n[loss]\nkind = %s\n[optimizer]\nplugin = sgd\n")

    def test_the_template_repeats_and_depends_on_the_seed(self):
        self.build(os.path.join(TEMPLATE, "my_dataset.c"), "my_dataset")
        files = []
        for seed in (1, 1, 2):
            self.write("t.ini", self.CONFIG % (seed, "cross_entropy"))
            self.fuserun("t.ini")
            files.append(self.read("runs/t/model.safetensors"))
        self.assertEqual(files[0], files[1])
        self.assertNotEqual(files[0], files[2])

    def test_the_template_tells_which_losses_fit(self):
        self.build(os.path.join(TEMPLATE, "my_dataset.c"), "my_dataset")
        self.write("t.ini", self.CONFIG % (1, "mse"))
        done = self.fuserun("check", "t.ini", status=2)
        self.assertEqual(done.stderr, "t.ini:10: data.plugin: its targets are class numbers, and this loss compares with "
                                      "values\n")
        self.write("t.ini", self.CONFIG % (1, "sum"))
        self.fuserun("t.ini")


class Model(KitCase):
    def test_the_template_is_its_equations(self):
        self.build(os.path.join(TEMPLATE, "my_model.c"), "my_model")
        draw = random.Random(5)
        widths = {"stem": (5, 7), "bridge": (7, 7), "head": (7, 3)}
        layers = {name: ([[to_f32(draw.uniform(-1, 1)) for _ in range(width)] for _ in range(height)],
                         [to_f32(draw.uniform(-1, 1)) for _ in range(height)])
                  for name, (width, height) in widths.items()}
        x, label = [to_f32(draw.uniform(-1, 1)) for _ in range(5)], 2
        write_safetensors(self.path("one.safetensors"), {"x": ("F32", [x]), "y": ("I64", [label])})
        write_safetensors(self.path("start.safetensors"),
                          {name + ".weight": ("F32", matrix) for name, (matrix, _) in layers.items()} |
                          {name + ".bias": ("F32", bias) for name, (_, bias) in layers.items()})
        self.write("t.ini", "[run]\nsteps = 1\n[model]\nplugin = my_model\nhidden = 7\nnum_classes = 3\n"
                            "weights = start.safetensors\n[data]\nplugin = tensors\nfile = one.safetensors\n[loss]\n"
                            "kind = cross_entropy\n[optimizer]\nplugin = sgd\n")
        self.fuserun("t.ini")

        def layer(name, values):
            matrix, bias = layers[name]
            return [sum(weight * value for weight, value in zip(row, values)) + b for row, b in zip(matrix, bias)]

        def gelu(values):
            return [0.5 * value * (1 + math.erf(value / math.sqrt(2))) for value in values]
        hidden = gelu(layer("stem", x))
        hidden = [a + b for a, b in zip(hidden, gelu(layer("bridge", hidden)))]
        scores = layer("head", hidden)
        loss = math.log(sum(math.exp(score) for score in scores)) - scores[label]
        # Three layers of sums of at most 8 terms in float32.
        self.assertAlmostEqual(self.updates()[0]["loss"], loss, delta=2.0 ** -24 * 32 * max(1.0, max(map(abs, scores))))


class NewPlugin(KitCase):
    def make(self, *arguments, status=0):
        return self.shell(" ".join("'%s'" % word for word in (NEW_PLUGIN, *arguments)), status=status)

    def test_each_kind_builds_and_trains(self):
        for kind in KINDS:
            with self.subTest(kind=kind):
                name = "some_" + kind
                told = self.make(kind, name, "made here/" + kind).stdout
                self.assertIn("made made here/%s\n" % kind, told)
                self.assertEqual(sorted(entry for entry in os.listdir(self.path("made here", kind)) if entry != "data"),
                                 sorted(["README.md", "build.sh", name + ".c", name + ".ini"]))
                done = self.shell("'made here/%s/build.sh'" % kind)
                self.assertEqual((done.stdout, done.stderr),
                                 ("built %s\n" % self.path("made here", kind, "plugins", name + ".so"), ""))
                config = os.path.join("made here", kind, name + ".ini")
                self.assertEqual(self.fuserun("check", config).stderr, "")
                self.assertEqual(self.fuserun(config).stderr, "")
                evaluations = self.evaluations("runs/" + name)
                # Ten digits, or two halves of a square: far above chance, below what it reaches.
                self.assertGreater(evaluations[-1]["eval_accuracy"], 0.93)
                listed = self.fuserun("plugins", name, "--config", config).stdout
                self.assertIn("%s %s, version 1.0.0" % (kind, name), listed)

    def test_made_folders_stand_alone(self):
        """Nothing in one points to where it was made, the source tree's headers apart."""
        self.make("optimizer", "mine", "first")
        shutil.move(self.path("first"), self.path("second"))
        self.shell("./second/build.sh && mv second third")
        self.fuserun("check", "third/mine.ini")
        for path in glob.glob(self.path("third", "*.*")):
            with open(path, encoding="utf-8") as file:
                self.assertNotIn("first", file.read(), path)

    def test_the_folder_is_the_template(self):
        for kind in KINDS:
            self.make(kind, "other_name", kind)
            for suffix in (".c", ".ini"):
                made = self.read(kind, "other_name" + suffix).decode()
                self.assertEqual(made.replace("other_name", "my_" + kind),
                                 text_of("plugins", "template", "my_" + kind + suffix))

    def test_the_default_folder_is_the_name(self):
        self.make("scheduler", "quarter")
        self.assertTrue(os.path.exists(self.path("quarter", "quarter.c")))

    def test_existing_folders_are_left_alone(self):
        os.mkdir(self.path("empty"))
        self.write("file", "kept")
        os.symlink("nowhere", self.path("link"))
        before = self.left_behind()
        for folder in ("empty", "file", "link", "."):
            done = self.make("model", "mine", folder, status=2)
            self.assertEqual(done.stderr, "fuserun: tools/new-plugin: '%s' exists already, and nothing is overwritten\n"
                             % folder)
        self.assertEqual(self.left_behind(), before)
        self.assertEqual(self.read("file"), b"kept")

    def test_bad_names_are_refused(self):
        rules = "is no name for a plugin: lower-case letters, digits and _, a letter first"
        for arguments, words in (
                (("optimizer", "Adam"), rules), (("optimizer", "1st"), rules), (("optimizer", "a-b"), rules),
                (("optimizer", "a/b"), rules), (("optimizer", ""), rules), (("optimizer", "_a"), rules),
                (("optimizer", "é"), rules), (("optimizer", "a b"), rules), (("optimizer", "../a"), rules),
                (("optimizer", "a" * 41), "has 41 characters"), (("scheduler", "linux"), "is a macro"),
                (("optimizer", "adamw"), "comes with fuserun"), (("model", "mlp"), "comes with fuserun"),
                (("dataset", "idx"), "comes with fuserun"), (("scheduler", "cosine"), "comes with fuserun"),
                (("backend", "mine"), "these are: optimizer, scheduler, dataset, model"),
                (("optimizer",), "usage: "), ((), "usage: "), (("optimizer", "a", "b", "c"), "usage: ")):
            with self.subTest(arguments=arguments):
                done = self.make(*arguments, status=2)
                self.assertIn(words, done.stderr)
                self.assertEqual(done.stdout, "")
        self.assertEqual(self.left_behind(), [])
        self.assertIn("usage: ", self.make("--help").stdout)

    @unittest.skipIf(os.geteuid() == 0, "root may write everywhere")
    def test_a_folder_that_cannot_be_made(self):
        os.mkdir(self.path("closed"), 0o555)
        self.make("optimizer", "mine", "closed/mine", status=1)
        self.assertEqual(os.listdir(self.path("closed")), [])

    def test_a_folder_below_a_file(self):
        self.write("file", "kept")
        self.make("optimizer", "mine", "file/mine", status=1)
        self.assertEqual(self.left_behind(), ["file"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
