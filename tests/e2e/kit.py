"""What the tests of dropped-in plugins share: building them as a person would, and a small net worked out by hand."""
import math
import os
import random
import subprocess

from support import Case, to_f32, write_safetensors

SOURCE = os.environ["FUSERUN_SOURCE"]
TEMPLATE = os.path.join(SOURCE, "plugins", "template")
MODES = ("fused", "per_param", "foreach")

WIDTHS = (3, 4, 2)
BATCH = 3


def text_of(*names):
    with open(os.path.join(SOURCE, *names), encoding="utf-8") as file:
        return file.read()


class KitCase(Case):
    def environment(self):
        environment = super().environment()
        environment["PKG_CONFIG_PATH"] = os.path.join(os.environ["FUSERUN_BUILD"], "meson-uninstalled")
        return environment

    def shell(self, command, cwd=None, status=0):
        done = subprocess.run(["bash", "-c", command], cwd=cwd or self.folder, capture_output=True, text=True,
                              env=self.environment(), check=False)
        self.assertEqual(done.returncode, status, "%s\n%s\n%s" % (command, done.stdout, done.stderr))
        return done

    def build(self, source, name, folder="plugins", compiler="cc", more=""):
        """Compiles a file by the documented line into folder/name.so."""
        os.makedirs(self.path(folder), exist_ok=True)
        target = self.path(folder, name + ".so")
        done = self.shell("%s %s -shared -fPIC $(pkg-config --cflags fuserun) '%s' -o '%s'" %
                          (compiler, more, source, target))
        self.assertEqual(done.stderr, "")
        return target


class SmallNet:
    """A net of 3-4-2 with tanh under mse, in double, its gradients by central differences: nothing of fuserun's."""

    def __init__(self, case):
        draw = random.Random(11)
        self.case = case
        self.samples = [([to_f32(draw.uniform(-1, 1)) for _ in range(3)], [to_f32(draw.uniform(-1, 1)) for _ in range(2)])
                        for _ in range(6)]
        shapes = {}
        for layer, (width, height) in enumerate(zip(WIDTHS, WIDTHS[1:])):
            shapes["layers.%d.weight" % layer] = (height, width)
            shapes["layers.%d.bias" % layer] = (height,)
        self.start = {name: [to_f32(draw.uniform(-0.7, 0.7)) for _ in range(math.prod(shape))]
                      for name, shape in shapes.items()}
        write_safetensors(case.path("small.safetensors"), {"x": ("F32", [x for x, _ in self.samples]),
                                                           "y": ("F32", [y for _, y in self.samples])})
        rows = {name: [values[at:at + shape[-1]] for at in range(0, len(values), shape[-1])]
                if len(shape) == 2 else values for (name, shape), values in zip(shapes.items(), self.start.values())}
        write_safetensors(case.path("start.safetensors"), {name: ("F32", values) for name, values in rows.items()})

    def config(self, optimizer, mode, steps, rest=""):
        text = ("[run]\nname = t\noverwrite = yes\nsteps = %d\n[model]\nplugin = mlp\nsizes = 3, 4, 2\n"
                "activation = tanh\nweights = start.safetensors\n[data]\nplugin = tensors\nfile = small.safetensors\n"
                "batch_size = %d\nshuffle = no\n[loss]\nkind = mse\n[optimizer]\nplugin = %s\nmode = %s\n%s\n" %
                (steps, BATCH, optimizer, mode, rest))
        return self.case.write("t.ini", text)

    def loss(self, weights, step):
        first = step * BATCH % len(self.samples)
        total = 0.0
        for x, y in self.samples[first:first + BATCH]:
            for layer, (width, height) in enumerate(zip(WIDTHS, WIDTHS[1:])):
                matrix, bias = weights["layers.%d.weight" % layer], weights["layers.%d.bias" % layer]
                x = [math.fsum([bias[row]] + [matrix[row * width + i] * x[i] for i in range(width)])
                     for row in range(height)]
                x = [math.tanh(value) for value in x] if layer == 0 else x
            total += sum((a - b) ** 2 for a, b in zip(x, y))
        return total / (BATCH * WIDTHS[-1])

    def gradients(self, weights, step, reach=1e-4):
        result = {}
        for name, values in weights.items():
            result[name] = []
            for i, value in enumerate(values):
                ends = []
                for end in (value + reach, value - reach):
                    moved = dict(weights)
                    moved[name] = values[:i] + [end] + values[i + 1:]
                    ends.append(self.loss(moved, step))
                result[name].append((ends[0] - ends[1]) / (2 * reach))
        return result

    def train(self, steps, update):
        """update(step from 1, weight, gradient, state dict of this element) -> the new weight."""
        weights = {name: list(values) for name, values in self.start.items()}
        states = {name: [{} for _ in values] for name, values in weights.items()}
        for step in range(steps):
            gradients = self.gradients(weights, step)
            for name, values in weights.items():
                weights[name] = [update(step + 1, value, gradient, state)
                                 for value, gradient, state in zip(values, gradients[name], states[name])]
        return weights

    def check(self, optimizer, update, rest="", steps=7):
        """Trains in all modes; the weights are the formula's, and the same bytes in each."""
        expected = self.train(steps, update)
        files = set()
        for mode in MODES:
            self.config(optimizer, mode, steps, rest)
            self.case.fuserun("t.ini")
            for name, values in self.case.weights().items():
                # Gradients of float32: 2^-24 of a sum of at most 12 terms each, in at most `steps` updates.
                bound = 2e-6 * max(abs(value) for value in expected[name])
                for i, (value, right) in enumerate(zip(values, expected[name])):
                    self.case.assertLessEqual(abs(value - right), bound, (mode, name, i, value, right))
                    self.case.assertNotEqual(value, self.start[name][i])
            files.add(self.case.read("runs/t/model.safetensors"))
        self.case.assertEqual(len(files), 1, "the modes differ")
