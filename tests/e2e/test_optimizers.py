"""Optimizers in whole runs: groups whose optimizers differ, what is refused and where, the memory that is promised, and a
published rule as a stranger would write it."""
import json
import os
import unittest

from kit import MODES, KitCase, SmallNet

# Defazio et al., "The road less scheduled" (2024): the average x starts at the weights, and a step weighs by its squared
# lr among all so far, a number for each parameter.
SCHEDULE_FREE = """/* Schedule-free SGD (A. Defazio et al., "The road less scheduled", 2024): y is what is trained. */
#include <fuserun/optimizer.h>

FUSERUN_RULE_WITH_NUMBERS(schedule_free, (z, x), (weight_sum), (is_first, lr, beta, share, decay),
    z = is_first != 0.0f ? param : z;
    x = is_first != 0.0f ? param : x;
    z -= lr * (grad + decay * param);
    x += share * (z - x);
    param = z + beta * (x - z);
)

enum { LR, BETA, WEIGHT_DECAY };
static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "lr", .type = FUSERUN_OPTION_NUMBER, .default_text = "1", .range = "[0, inf)",
                   .flags = FUSERUN_OPTION_SCHEDULABLE, .help = "learning rate"),
    FUSERUN_OPTION(.key = "momentum", .type = FUSERUN_OPTION_NUMBER, .default_text = "0.9", .range = "[0, 1)",
                   .help = "where between z and x gradients are taken"),
    FUSERUN_OPTION(.key = "weight_decay", .type = FUSERUN_OPTION_NUMBER, .default_text = "0", .range = "[0, inf)",
                   .help = "L2 regularisation at y"),
};
static void prepare(const struct fuse_update *update, double *scalars)
{
    const double *hyper = update->hyper, weight = hyper[LR] * hyper[LR];
    update->numbers[0] += weight;
    scalars[0] = update->step == 1;
    scalars[1] = hyper[LR];
    scalars[2] = hyper[BETA];
    scalars[3] = update->numbers[0] > 0.0 ? weight / update->numbers[0] : 0.0;
    scalars[4] = hyper[WEIGHT_DECAY];
}
FUSERUN_OPTIMIZER(schedule_free, "1.0.0", "MIT", "schedule-free SGD", options, prepare, schedule_free)
"""


def schedule_free(lr, beta, decay):
    """algorithm 1 of the paper, in its own terms."""
    def update(step, y, gradient, state):
        z, x, total = state.get("z", y), state.get("x", y), state.get("total", 0.0)
        rate = lr * 0.5 ** (step - 1)
        total += rate ** 2
        z = z - rate * (gradient + decay * y)
        c = rate ** 2 / total
        x = (1 - c) * x + c * z
        state.update(z=z, x=x, total=total)
        return (1 - beta) * z + beta * x
    return update


class Stranger(KitCase):
    def test_schedule_free_takes_under_40_lines_and_one_compiler_line(self):
        self.assertLess(SCHEDULE_FREE.count("\n"), 40)
        self.build(self.write("schedule_free.c", SCHEDULE_FREE), "schedule_free")
        SmallNet(self).check("schedule_free", schedule_free(0.2, 0.9, 0.1), "lr = 0.2\nweight_decay = 0.1\n"
                             "[scheduler]\nplugin = exponential\ngamma = 0.5\n")


class Runs(KitCase):
    CONFIG = ("[run]\nname = t\noverwrite = yes\nsteps = 6\nseed = 3\n[model]\nplugin = mlp\nsizes = 48, 70, 33, 10\n"
              "[data]\nplugin = random_images\nimage_size = 4\nchannels = 3\nclasses = 10\nlength = 64\n"
              "batch_size = 8\n[loss]\nkind = cross_entropy\n[optimizer]\nmode = %s\n%s\n")

    def train(self, mode, rest):
        self.write("t.ini", self.CONFIG % (mode, rest))
        check = json.loads(self.fuserun("check", "--json", "t.ini").stdout)
        self.fuserun("t.ini")
        last = self.updates()[-1]
        self.assertEqual(check["peak_bytes"], last["peak_bytes"])
        self.assertEqual(check["peak_bytes"], sum(check["memory"].values()))
        return check, self.read("runs/t/model.safetensors")

    def test_matrices_by_muon_and_the_rest_by_adamw(self):
        rest = ("plugin = adamw\nlr = 0.01\n[group matrices]\nmatch = *weight\nplugin = muon\nlr = 0.05\n"
                "[scheduler]\nplugin = cosine\n")
        files = set()
        for mode in MODES:
            check, weights = self.train(mode, rest)
            files.add(weights)
            matrices = [70 * 48, 33 * 70, 10 * 33]
            self.assertEqual(check["memory"]["optimizer_state"], 4 * (sum(matrices) + 2 * (70 + 33 + 10)))
            self.assertEqual(self.updates()[0]["lr"], {"default": 0.01, "matrices": 0.05})
        self.assertEqual(len(files), 1)

    def test_every_optimizer_trains_alike_in_all_modes(self):
        folder = os.path.join(os.environ["FUSERUN_BUILD"], "plugins", "optimizers")
        names = sorted(name[:-3] for name in os.listdir(folder) if name.endswith(".so"))
        self.assertEqual(names, ["adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "asgd", "lion", "muon", "nadam",
                                 "radam", "rmsprop", "rprop", "sgd"])
        for name in names:
            rest = "plugin = %s\n" % name
            if name == "muon":
                rest = "plugin = sgd\nlr = 0.01\n[group matrices]\nmatch = *weight\nplugin = muon\n"
            self.assertEqual(len({self.train(mode, rest)[1] for mode in MODES}), 1, name)

    def test_adafactor_keeps_rows_and_columns(self):
        check, _ = self.train("fused", "plugin = adafactor\n")
        rows_and_columns = (70 + 48) + (33 + 70) + (10 + 33)
        self.assertEqual(check["memory"]["optimizer_state"], 4 * (rows_and_columns + 70 + 33 + 10))

    def refused(self, rest, *lines):
        self.write("t.ini", self.CONFIG % ("fused", rest))
        done = self.fuserun("check", "t.ini", status=2)
        self.assertEqual(done.stderr.splitlines(), list(lines))

    def test_muon_on_a_vector_is_refused_where_it_is_named(self):
        reason = "muon updates matrices, this has 1 dimension: give it a [group ...] with another plugin"
        self.refused("plugin = muon\n",
                     "t.ini:20: optimizer.plugin: group 'default', parameter 'layers.0.bias' (and 2 more): " + reason)
        self.refused("plugin = adamw\n[group all]\nmatch = *.2.*\nplugin = muon\n",
                     "t.ini:23: group all.plugin: group 'all', parameter 'layers.2.bias': " + reason)

    def test_what_cannot_be_here_is_refused_by_name(self):
        self.refused("plugin = lbfgs\n",
                     "t.ini:20: optimizer.plugin: no optimizer 'lbfgs': L-BFGS evaluates the loss several times in one update "
                     "and takes all parameters as one vector, while here a gradient is applied as soon as the one backward "
                     "pass has made it")
        for name in ("sparse_adam", "SparseAdam"):
            self.refused("plugin = %s\n" % name,
                         "t.ini:20: optimizer.plugin: no optimizer '%s': SparseAdam is for sparse gradients, and here all "
                         "gradients are dense: adam is the same for those" % name)

    def test_eps_none_is_for_the_first_alone(self):
        self.refused("plugin = adafactor\neps = 1e-3, none\n",
                     "t.ini:21: optimizer.eps: only the first of eps may be none")


if __name__ == "__main__":
    unittest.main(verbosity=2)
