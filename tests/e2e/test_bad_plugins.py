"""Bad citizens: each broken plugin costs one clear line: exit 2 at the config's line when the config needs it, a warning
when it does not; a rule that writes NaN stops the run and is named. Nothing crashes, and nothing else suffers."""
import math
import os
import re
import shutil
import unittest

from support import write_safetensors
from kit import MODES, SOURCE, TEMPLATE, KitCase

MODULES = os.path.join(os.environ["FUSERUN_BUILD"], "tests", "plugins")
APART = ("no_entry", "unresolved")  # variants that are modules of their own; the rest is variant.so under another name


def variant(name):
    """The bytes of a plugin whose fault is its file's name (tests/plugins/variant.c)."""
    with open(os.path.join(MODULES, (name if name in APART else "variant") + ".so"), "rb") as file:
        return file.read()


def changed(offset, value):
    good = variant("good")
    return good[:offset] + value + good[offset + len(value):]


E_CLASS, E_DATA, E_MACHINE = 4, 5, 18
S390 = b"\x16\x00"

# file name without .so: (its bytes, what the line says behind "plugin FILE: "); the names are variant.c's where it acts.
OPTIMIZERS = {
    # not ELF
    "empty": (b"", "the file is empty"),
    "script": (b"#!/bin/sh\nexit 0\n", "not a shared object (no ELF header)"),
    "notes": (b"optimizer, see the other file", "not a shared object (no ELF header)"),
    # truncated
    "header": (variant("good")[:30], "cut short: only 30 bytes of an ELF header"),
    "half": (variant("good")[:len(variant("good")) // 2], "cut short: "),
    # wrong architecture
    "machine": (changed(E_MACHINE, S390), "built for another processor (its ELF machine is 22, this fuserun's "),
    "bits": (changed(E_CLASS, b"\x01"), "cannot be loaded: wrong ELF class"),
    "endian": (changed(E_DATA, b"\x02"), "built for another processor (its bytes are in the other order)"),
    # no entry
    "no_entry": (None, "not a fuserun plugin of ABI major 1: it exports no fuse_plugin_v1()"),
    "unresolved": (None, "cannot be loaded: undefined symbol: fuse_test_nobody_defines_this"),
    # wrong magic, newer major, newer minor
    "magic": (None, "FUSERUN_ABI_MAGIC is 0xdeadbeef in the plugin, 0x46555345 in this fuserun"),
    "major": (None, "FUSERUN_ABI_MAJOR is 2 in the plugin, 1 in this fuserun"),
    "minor": (None, "it requires FUSERUN_ABI_MINOR 99, this fuserun has "),
    # smaller struct
    "small_plugin": (None, "struct fuse_plugin: struct_size is 56 in the plugin, at least 72 is needed"),
    "small_abi": (None, "the size of struct fuse_abi is 12 in the plugin, 28 in this fuserun"),
    "component_size": (None, "struct fuse_component: struct_size is 16 in the plugin, at least 56 is needed"),
    "small_api": (None, "optimizer 'small_api': struct_size is 8 in the plugin, at least 40 is needed"),
    "small_rule": (None, "struct fuse_rule: struct_size is 24 in the plugin, at least 64 is needed"),
    "option_size": (None, "struct fuse_option: struct_size is 8 in the plugin, at least 72 is needed"),
    # missing callback
    "no_prepare": (None, "optimizer 'no_prepare': lacks the callback prepare"),
    "no_slice": (None, "optimizer 'no_slice': rule 'decay_rule' lacks the callback update_slice"),
    "no_select": (None, "optimizer 'no_select': lacks the callback select_rule, needed with 2 rules"),
    "no_value": (None, "scheduler 'no_value': lacks the callback value"),
    # wrong state size
    "many_states": (None, "optimizer 'many_states': rule 'decay_rule' has 9 states, FUSERUN_MAX_STATES is 8"),
    "many_scalars": (None, "optimizer 'many_scalars': rule 'decay_rule' has 17 scalars, FUSERUN_MAX_SCALARS is 16"),
    "state_names": (None, "optimizer 'state_names': rule 'decay_rule' names its states '(mean)', but has 2"),
    # two of one kind and name; a name that is not the file's
    "twins": (None, "two optimizers are called 'twins'"),
    "other_name": (None, "the plugin calls itself 'someone_else', so its file must be called someone_else.so"),
    # start-up that fails
    "null_entry": (None, "says that it cannot work here (fuse_plugin_v1() returned NULL)"),
    "aborts": (None, "crashes while it is loaded (Aborted)"),
    "exits": (None, "ends the process while it is loaded (exit status 0)"),
    "crashes": (None, "crashes while it is loaded (Segmentation fault)"),
}

# Plugins that load and then refuse, or fail without a word. -DWHAT=1 picks what fails; each fails with a reason, and with
# -DSILENT=1 without one.
FAILING = """
#include <fuserun/dataset.h>
#include <fuserun/model.h>
#include <fuserun/optimizer.h>
#include <fuserun/scheduler.h>
#ifdef SILENT
#define FAIL(host, error) ((void)(host), (void)(error), FUSERUN_ERROR_UNSUPPORTED)
#else
#define FAIL(host, error) host->fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL, "not on a Monday")
#endif
FUSERUN_RULE_STATELESS(plain, (lr), param -= lr * grad;)
static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "lr", .type = FUSERUN_OPTION_NUMBER, .default_text = "1e-3", .range = "[0, inf)",
                   .flags = FUSERUN_OPTION_SCHEDULABLE)};
static void prepare(const struct fuse_update *update, double *scalars) { scalars[0] = update->hyper[0]; }
static const struct fuse_rule *const rules[] = {&plain};
static int check(const struct fuse_host *host, const struct fuse_options *o, struct fuse_error *error)
{ (void)o; return FAIL(host, error); }
static int create(const struct fuse_host *host, const struct fuse_options *o, const struct fuse_schedule_context *c,
                  void **instance, struct fuse_error *error)
{ (void)o, (void)c, (void)instance; return FAIL(host, error); }
static void drop(void *instance) { (void)instance; }
static double value(const void *i, const struct fuse_schedule_query *query) { (void)i; return query->base; }
static int open_it(const struct fuse_host *host, const struct fuse_options *o, const struct fuse_dataset_context *c,
                   void **instance, struct fuse_error *error)
{ (void)o, (void)c, (void)instance; return FAIL(host, error); }
static void describe(const void *i, struct fuse_dataset_info *info) { (void)i, (void)info; }
static int read_it(void *i, const struct fuse_batch *b, struct fuse_error *e) { (void)i, (void)b, (void)e; return 0; }
static int build(const struct fuse_host *host, const struct fuse_options *o, const struct fuse_graph_api *api,
                 struct fuse_graph *graph, struct fuse_tensor *input, struct fuse_tensor **output)
{
    (void)host, (void)o, (void)input, (void)output;
#ifdef SILENT
    (void)api, (void)graph;
    return FUSERUN_ERROR_UNSUPPORTED;
#else
    (void)api->fail(graph, NULL, "not on a Monday");
    return api->status(graph);
#endif
}
static const struct fuse_optimizer optimizer = {FUSERUN_STRUCT_SIZE(fuse_optimizer, prepare), 1, rules, check, NULL, prepare};
static const struct fuse_scheduler scheduler = {
    .struct_size = FUSERUN_STRUCT_SIZE(fuse_scheduler, value), .create = create, .destroy = drop, .value = value};
static const struct fuse_dataset dataset = {FUSERUN_STRUCT_SIZE(fuse_dataset, read), open_it, drop, describe, NULL, read_it};
static const struct fuse_model model = {FUSERUN_STRUCT_SIZE(fuse_model, build), build};
static const struct fuse_component components[] = {
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_OPTIMIZER, .name = "failing", .capabilities = FUSERUN_OPTIMIZER_ELEMENTWISE,
                      FUSERUN_OPTIONS(options), .api = &optimizer),
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_SCHEDULER, .name = "failing", .api = &scheduler),
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_DATASET, .name = "failing", .api = &dataset),
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_MODEL, .name = "failing", .api = &model)};
FUSERUN_PLUGIN("failing", "1.0.0", "MIT", components)
"""

# Updates whole parameters and asks for states of a size that cannot be.
GREEDY = """
#include <fuserun/optimizer.h>
static int plan_it(const struct fuse_host *host, struct fuse_tensor_plan *plan, struct fuse_error *error)
{
    (void)host, (void)error;
    plan->state_counts[0] = COUNT;
    return FUSERUN_OK;
}
static int update_it(const struct fuse_tensor_update *update, struct fuse_error *error)
{ (void)update, (void)error; return FUSERUN_OK; }
FUSERUN_TENSOR_RULE(greedy_rule, (big), (lr), plan_it, update_it)
static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "lr", .type = FUSERUN_OPTION_NUMBER, .default_text = "1e-3", .range = "[0, inf)",
                   .flags = FUSERUN_OPTION_SCHEDULABLE)};
static void prepare(const struct fuse_update *update, double *scalars) { scalars[0] = update->hyper[0]; }
FUSERUN_TENSOR_OPTIMIZER(greedy, "1.0.0", "MIT", "wants it all", options, prepare, greedy_rule, NULL)
"""

# Writes a NaN (or an infinity) into the parameters of its group at the update `at`.
POISON = """
#include <fuserun/optimizer.h>
FUSERUN_RULE_STATELESS(poison_rule, (lr, is_now, poison), param = is_now > 0.0f ? poison : param - lr * grad;)
static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "lr", .type = FUSERUN_OPTION_NUMBER, .default_text = "1e-3", .range = "[0, inf)"),
    FUSERUN_OPTION(.key = "at", .type = FUSERUN_OPTION_INTEGER, .default_text = "0"),
    FUSERUN_OPTION(.key = "infinite", .type = FUSERUN_OPTION_BOOL, .default_text = "no")};
static void prepare(const struct fuse_update *update, double *scalars)
{
    scalars[0] = update->hyper[0];
    scalars[1] = (double)update->step == update->hyper[1];
    scalars[2] = update->hyper[2] > 0 ? (double)INFINITY : (double)NAN;
}
FUSERUN_OPTIMIZER(poison, "1.0.0", "MIT", "writes NaN", options, prepare, poison_rule)
"""


class BadPlugins(KitCase):
    def setUp(self):
        super().setUp()
        self.make_classes()

    def drop(self, name, content):
        os.makedirs(self.path("plugins"), exist_ok=True)
        with open(self.path("plugins", name + ".so"), "wb") as file:
            file.write(variant(name) if content is None else content)
        return self.path("plugins", name + ".so")

    def line_of(self, plugin):
        return self.read("t.ini").decode().splitlines().index("plugin = " + plugin) + 1

    def test_needed_exit_2_at_the_line_and_nothing_is_written(self):
        self.classes_config()
        for name, (content, words) in OPTIMIZERS.items():
            with self.subTest(plugin=name):
                file = self.drop(name, content)
                before = self.left_behind()
                for command in ([], ["check"]):
                    self.classes_config(optimizer=name, options="")
                    done = self.fuserun(*command, "t.ini", status=2)
                    (line,) = done.stderr.splitlines()
                    start = "t.ini:%d: optimizer.plugin: plugin %s: %s" % (self.line_of(name), file, words)
                    self.assertEqual(line[:len(start)], start)
                self.assertEqual(self.left_behind(), before)
                os.remove(file)

    def test_not_needed_a_warning_and_all_else_goes_on(self):
        self.classes_config()
        plain = self.fuserun("plugins", "--config", "t.ini").stdout
        files = {self.drop(name, content): words for name, (content, words) in OPTIMIZERS.items()}
        done = self.fuserun("plugins", "--config", "t.ini")
        self.assertEqual(done.stdout, plain)
        lines = done.stderr.splitlines()
        self.assertEqual(len(lines), len(files))
        for file, words in files.items():
            start = "fuserun: warning: plugin %s: %s" % (file, words)
            self.assertEqual(sum(line.startswith(start) for line in lines), 1, start)
        # A run that names none of them opens none of them.
        self.assertEqual(self.fuserun("t.ini").stderr, "")

    @unittest.skipUnless(shutil.which("aarch64-linux-gnu-gcc") and os.uname().machine == "x86_64",
                         "no compiler for another processor here")
    def test_a_real_file_of_another_processor(self):
        file = self.build(os.path.join(TEMPLATE, "my_optimizer.c"), "my_optimizer", compiler="aarch64-linux-gnu-gcc")
        self.classes_config(optimizer="my_optimizer")
        done = self.fuserun("t.ini", status=2)
        self.assertEqual(done.stderr, "t.ini:%d: optimizer.plugin: plugin %s: built for another processor (its ELF "
                                      "machine is 183, this fuserun's 62)\n" % (self.line_of("my_optimizer"), file))

    def test_other_kinds_tell_their_line(self):
        for section in ("model", "data", "scheduler"):
            with self.subTest(section=section):
                self.classes_config(rest="[scheduler]\nplugin = cosine")
                file = self.drop("magic", None)
                config = self.read("t.ini").decode()
                self.write("t.ini", re.sub(r"(?<=\[%s\]\nplugin = )\w+" % section, "magic", config))
                done = self.fuserun("check", "t.ini", status=2)
                first = done.stderr.splitlines()[0]
                start = "t.ini:%d: %s.plugin: plugin %s: FUSERUN_ABI_MAGIC" % (self.line_of("magic"), section, file)
                self.assertEqual(first[:len(start)], start)

    CONFIG = ("[run]\nsteps = 2\n[model]\nplugin = {model}\n[data]\nplugin = {data}\n[optimizer]\n"
              "plugin = {optimizer}\n[scheduler]\nplugin = {scheduler}\n")
    SOUND = {"model": "mlp\nsizes = 12, 4", "data": "tensors\nfile = data.safetensors", "optimizer": "sgd",
             "scheduler": "constant"}

    def test_start_up_that_refuses(self):
        for more, words in (("", "not on a Monday"), ("-DSILENT=1", "say")):
            self.build(self.write("failing.c", FAILING), "failing", more=more)
            for section in self.SOUND:
                with self.subTest(section=section, more=more):
                    self.write("t.ini", self.CONFIG.format(**{**self.SOUND, section: "failing"}))
                    (line,) = self.fuserun("t.ini", status=2).stderr.splitlines()
                    self.assertTrue(line.startswith("t.ini:%d: %s.plugin: " % (self.line_of("failing"), section)), line)
                    self.assertIn(words, line)

    def test_sizes_of_states_that_cannot_be(self):
        for count, words in (("-1", "plans a state of -1 elements, 0 to 1099511627776 are possible"),
                             ("INT64_MAX", "plans a state of 9223372036854775807 elements"),
                             ("plan->shape[0]; plan->scratch_bytes = UINT64_MAX", "plans 18446744073709551615 bytes of")):
            with self.subTest(count=count):
                self.build(self.write("greedy.c", GREEDY.replace("COUNT", count)), "greedy")
                self.write("t.ini", self.CONFIG.format(**{**self.SOUND, "optimizer": "greedy"}))
                for command in ([], ["check"]):
                    done = self.fuserun(*command, "t.ini", status=2)
                    (line,) = done.stderr.splitlines()
                    self.assertIn("optimizer 'greedy' " + words, line)

    def test_a_rule_that_writes_nan_is_named_with_its_step(self):
        self.build(self.write("poison.c", POISON), "poison")
        for mode in MODES:
            for name in ("layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"):
                for at in (1, 3, 5):  # 5 is the last: no gradient comes after it
                    for infinite in ("no", "yes"):
                        with self.subTest(mode=mode, name=name, at=at, infinite=infinite):
                            self.classes_config(steps=5, optimizer="poison", options="mode = " + mode, rest="[group bad]\n"
                                                "match = %s\nat = %d\ninfinite = %s" % (name, at, infinite))
                            done = self.fuserun("t.ini", "run.overwrite=yes", status=1)
                            self.assertEqual(done.stderr.splitlines()[-1].split(": ", 1)[1],
                                             "step %d: %s is not finite after it" % (at, name))
                            self.assertFalse(os.path.exists(self.path("runs/t/model.safetensors")))

    def test_weights_that_came_so_are_no_rule_s_fault(self):
        write_safetensors(self.path("w.safetensors"), {"layers.0.weight": ("F32", [[0.5] * 12] * 4),
                                                       "layers.0.bias": ("F32", [0.0, math.nan, 0.0, 0.0])})
        for mode in MODES:
            self.classes_config(model="weights = w.safetensors", options="mode = " + mode)
            done = self.fuserun("t.ini", "run.overwrite=yes", "model.sizes=12,4", status=1)
            self.assertEqual(done.stderr.splitlines()[-1].split(": ", 1)[1],
                             "model.weights: 'layers.0.bias' in the file is not finite, or too large for float32")

    def test_what_a_rule_wrote_is_not_skipped(self):
        """nonfinite = skip is for gradients: weights that a rule made so stay so, and the rule is named all the same."""
        self.build(self.write("poison.c", POISON), "poison")
        for mode in MODES:
            for at in (1, 3, 5):
                with self.subTest(mode=mode, at=at):
                    self.classes_config(steps=5, optimizer="poison", run="nonfinite = skip", options="mode = " + mode,
                                        rest="[group bad]\nmatch = layers.0.bias\nat = %d" % at)
                    done = self.fuserun("t.ini", "run.overwrite=yes", status=1)
                    self.assertEqual(done.stderr.splitlines()[-1].split(": ", 1)[1],
                                     "step %d: layers.0.bias is not finite after it" % at)

    def test_a_file_that_hides_another_is_told_in_the_list(self):
        self.classes_config()
        mine = self.build(os.path.join(TEMPLATE, "my_optimizer.c"), "my_optimizer")
        self.build(os.path.join(TEMPLATE, "my_optimizer.c"), "my_optimizer", folder="plugins/optimizers")
        done = self.fuserun("plugins", "--config", "t.ini")
        self.assertEqual(done.stderr, "fuserun: warning: optimizer 'my_optimizer' is taken from %s, which hides %s\n" %
                         (mine, self.path("plugins/optimizers/my_optimizer.so")))
        environment = dict(self.environment(), FUSERUN_PLUGIN_PATH="relative")
        done = self.fuserun("plugins", environment=environment)
        self.assertEqual(done.stderr, "fuserun: warning: FUSERUN_PLUGIN_PATH: 'relative' is not an absolute folder and is "
                                      "not searched for plugins\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
