"""Optimizers that look at whole parameters on the emulated device: the recipes of adafactor and muon, and of plugins that
are dropped in. Modes have the same bits in whatever order the device works, the CPU's weights are near."""
import math
import shutil
import unittest

from device_case import MODES, SMALL_VIT, DeviceCase, config_of  # finds the next ones
from kit import KitCase
from support import write_safetensors

MLP_TOLERANCE, VIT_TOLERANCE = 1e-3, 1e-3
MUON = "[group matrices]\nmatch = *weight\nplugin = muon\nlr = 0.05\n"

# A step by the gradient in its column's measure, times the mean of the rows' means: a pass of each kind.
MEASURED = """
#include <fuserun/tensor_rule.h>
#define ARRAYS (momentum_buffer), (column_scale, row_mean, size), (lr)
enum { COLUMNS, ROWS, ALL, STEP };
FUSERUN_PASS_COLUMNS(columns_, ARRAYS, ((double)grad[i] * (double)grad[i]),
    column_scale[at] = (float)(1.0 / sqrt(sum / (double)rows + 1e-8));)
FUSERUN_PASS_ROWS(rows_, ARRAYS, (fabs((double)param[i])), row_mean[at] = (float)(sum / (double)columns);)
FUSERUN_PASS_ALL(all_, ARRAYS, ((double)row_mean[row]),
    size[0] = (float)(sum / ((double)matrices * (double)rows * (double)columns));)
FUSERUN_PASS_ELEMENTS(step_, ARRAYS,
    momentum_buffer[i] = 0.5f * momentum_buffer[i] + grad[i] * column_scale[matrix * columns + column];
    param[i] -= lr * size[0] * momentum_buffer[i];)
static int64_t rows_of(uint32_t rank, const int64_t *shape) { return rank < 2 ? 1 : shape[0]; }
static int plan_it(const struct fuse_host *host, struct fuse_tensor_plan *plan, struct fuse_error *error)
{
    const int64_t rows = rows_of(plan->rank, plan->shape), columns = plan->shape[plan->rank - 1];
    (void)host, (void)error;
    plan->state_counts[0] = rows * columns;
    plan->scratch_counts[0] = columns, plan->scratch_counts[1] = rows, plan->scratch_counts[2] = 1;
    plan->sum_count = rows > columns ? rows : columns;
    return FUSERUN_OK;
}
static int update_it(const struct fuse_tensor_update *update, struct fuse_error *error)
{
    const int64_t rows = rows_of(update->rank, update->shape), columns = update->shape[update->rank - 1];
    int status = FUSERUN_OK;
    for (uint32_t pass = COLUMNS; pass <= STEP && status == FUSERUN_OK; pass++)
        status = update->run_pass(update, pass, 1, rows, columns, error);
    return status;
}
FUSERUN_PASSES(passes, &columns_, &rows_, &all_, &step_)
FUSERUN_TENSOR_RULE_OF_PASSES(measured_rule, ARRAYS, passes, plan_it, update_it)
"""

# Its work is in functions on the host's memory.
BY_SPLIT = """
#include <fuserun/optimizer.h>
static int plan_it(const struct fuse_host *host, struct fuse_tensor_plan *plan, struct fuse_error *error)
{ (void)host, (void)error, (void)plan; return FUSERUN_OK; }
static void descend(void *context, int64_t begin, int64_t end)
{
    const struct fuse_tensor_update *update = context;
    for (int64_t i = begin; i < end; i++)
        update->param[i] -= update->scalars[0] * update->grad[i];
}
static int update_it(const struct fuse_tensor_update *update, struct fuse_error *error)
{
    int64_t count = 1;
    (void)error;
    for (uint32_t i = 0; i < update->rank; i++)
        count *= update->shape[i];
    update->split(update, count, 1, descend, (void *)(uintptr_t)update);
    return FUSERUN_OK;
}
FUSERUN_TENSOR_RULE(by_split_rule, (unused), (lr), plan_it, update_it)
"""

# Asks for what it did not plan.
GREEDY = """
#include <fuserun/tensor_rule.h>
#define ARRAYS (unused), (row_sum), (lr)
FUSERUN_PASS_ROWS(rows_, ARRAYS, ((double)grad[i]), row_sum[0] = (float)sum;)
static int plan_it(const struct fuse_host *host, struct fuse_tensor_plan *plan, struct fuse_error *error)
{ (void)host, (void)error; plan->scratch_counts[0] = 1; plan->sum_count = 2; return FUSERUN_OK; }
static int update_it(const struct fuse_tensor_update *update, struct fuse_error *error)
{ return ASKS; }
FUSERUN_PASSES(passes, &rows_)
FUSERUN_TENSOR_RULE_OF_PASSES(greedy_rule, ARRAYS, passes, plan_it, update_it)
"""

PLUGIN = """
static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "lr", .type = FUSERUN_OPTION_NUMBER, .default_text = "0.01", .range = "[0, inf)")};
static void prepare(const struct fuse_update *update, double *scalars) { scalars[0] = update->hyper[0]; }
FUSERUN_TENSOR_OPTIMIZER(%s, "1.0.0", "MIT", "of a test", options, prepare, %s_rule, NULL)
"""


class Rules(DeviceCase, KitCase):
    def check(self, config, *overrides, tolerance=MLP_TOLERANCE):
        """All modes on the device, against each other and against the CPU."""
        files = set()
        for mode, order in zip(MODES, ("late", "eager", 1)):
            self.cuda(config, "optimizer.mode=" + mode, *overrides, order=order)
            files.add(self.model())
        self.assertEqual(len(files), 1, "the modes differ")
        got = self.weights()
        self.fuserun(config, "run.device=cpu", *overrides)
        self.assert_close(got, self.weights(), tolerance)

    def drop(self, name, text, compiler="cc", more=""):
        self.write(name + ".c", text + PLUGIN % (name, name))
        self.build(self.path(name + ".c"), name, compiler=compiler, more=more)

    def test_a_net_of_matrices_and_vectors(self):
        for optimizer, rest in (("adafactor", ""), ("adafactor", "lr = 0.1\nweight_decay = 0.1\nmaximize = yes"),
                                ("adamw", MUON), ("adamw", MUON + "nesterov = no\nadjust_lr_fn = match_rms_adamw"),
                                ("adafactor", MUON + "ns_steps = 0")):
            with self.subTest(optimizer=optimizer, rest=rest):
                self.check(self.net(optimizer, rest))

    def test_a_vision_transformer(self):
        """Its parameters have up to four dimensions."""
        overrides = ["run.output=runs/t", "run.overwrite=yes", "run.steps=2", "optimizer.plugin=adafactor",
                     "optimizer.lr=0.3", *SMALL_VIT]
        self.check(config_of("vit_l16_fused.ini"), *overrides, tolerance=VIT_TOLERANCE)

    def test_clipping_and_accumulation(self):
        for optimizer, rest in (("adafactor", "clip_grad_norm = 0.5"), ("adafactor", "accumulate = 2"),
                                ("adamw", "clip_grad_norm = 0.5\naccumulate = 2\n" + MUON)):
            with self.subTest(optimizer=optimizer, rest=rest):
                self.check(self.net(optimizer, rest))

    def test_a_skipped_update_leaves_no_trace(self):
        """The second batch holds a NaN: a run that skips it has the weights of one that never saw it."""
        for optimizer, rest in (("adafactor", ""), ("sgd", MUON)):
            for mode in MODES:
                with self.subTest(optimizer=optimizer, mode=mode):
                    results = []
                    for batches in ((0.5, math.nan, 0.25), (0.5, 0.25)):
                        self.give_batches(batches)
                        self.write("t.ini", self.TABLE % (optimizer, mode, rest))
                        self.cuda("t.ini")
                        results.append(self.model())
                    self.assertEqual(results[0], results[1])

    TABLE = ("[run]\nname = t\noverwrite = yes\nsteps = 2\nseed = 3\nnonfinite = skip\n[model]\nplugin = mlp\n"
             "sizes = 3, 4, 2\n[data]\nplugin = tensors\nfile = data.safetensors\nbatch_size = 2\nshuffle = no\n"
             "[loss]\nkind = mse\n[optimizer]\nplugin = %s\nmode = %s\n%s\n")

    def give_batches(self, firsts):
        rows = [[first, 0.5, -0.5] for first in firsts for _ in range(2)]
        write_safetensors(self.path("data.safetensors"), {"x": ("F32", rows), "y": ("F32", [[1.0, -1.0]] * len(rows))})

    def test_a_plugin_with_every_kind_of_pass(self):
        for compiler in ("clang", "gcc"):
            if shutil.which(compiler) is not None:
                self.drop("measured", MEASURED, compiler, "-std=c17 -Wall -Wextra -Wpedantic -Werror")
        self.check(self.net("measured"))

    def test_a_rule_on_the_hosts_memory(self):
        """device = cuda refuses it, auto takes the CPU and says so."""
        self.drop("by_split", BY_SPLIT)
        config = self.net("by_split")
        done, report = self.run_on_device(config, "run.device=auto")
        self.assertEqual((done.returncode, report["launches"], report["leaks"]), (0, 0, {}), done.stderr)
        self.assertRegex(done.stderr, r"^[^\n]+: warning: run\.device: auto takes the CPU instead of the CUDA device: "
                                      r"the optimizer 'by_split' works on the host's memory, its rule 'by_split_rule' has "
                                      r"no text for a device\n$")
        self.assertEqual(set(report["entries"]), {"cuInit", "cuDeviceGetCount"})
        got = self.model()
        self.fuserun(config, "run.device=cpu")
        self.assertEqual(got, self.model())
        done, _ = self.run_on_device(config, "run.device=cuda")
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"^\S+/t\.ini:\d+: optimizer\.plugin: [^\n]*the optimizer's rule "
                                      r"'by_split_rule' has no passes that CUDA could compile\n$")
        self.fuserun(self.net("sgd"), "run.device=cpu", "optimizer.lr=0.01")
        self.assertEqual(got, self.model())

    def test_recipes_that_ask_for_too_much(self):
        for asks, why in (("update->run_pass(update, 1, 1, 1, 1, error)", "asks for pass 1 of 1"),
                          ("update->run_pass(update, 0, 1, 3, 1, error)", "pass rows_ makes 3 sums, 2 are planned"),
                          ("update->run_pass(update, 0, 1, 0, 1, error)", r"pass rows_ over 1 matrices of \(0, 1\)"),
                          ("update->multiply(update, 0, update->param, update->param, update->scratches[0], error)",
                           "multiplies by product 0 of 0")):
            self.drop("greedy", GREEDY.replace("ASKS", asks))
            for device in ("cpu", "cuda"):
                with self.subTest(asks=asks, device=device):
                    done, _ = self.run_on_device(self.net("greedy"), "run.device=" + device)
                    self.assertEqual(done.returncode, 1, done.stderr)
                    self.assertRegex(done.stderr, r"^[^\n]*%s[^\n]*\n$" % why)


if __name__ == "__main__":
    unittest.main()
