"""The template plugins, built as a user would build them: one compiler line with the flags of fuserun.pc, a file dropped
into a folder. Arguments: plugin_probe, which loads a plugin through the registry and prints what it found; the
installation's folders of plugins and programs."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

PROBE, PLUGIN_DIR, BIN_DIR = sys.argv[1:4]
del sys.argv[1:4]
SOURCE = os.environ["FUSERUN_SOURCE"]
TEMPLATE = os.path.join(SOURCE, "plugins", "template")
STRICT = "-Wall -Wextra -Wpedantic -Werror".split()

with open(os.path.join(SOURCE, "tests", "plugins", "in_cxx.cpp")) as cxx_file:
    CXX_PLUGIN = cxx_file.read()

# What a throwing static constructor does to a C++ plugin must cost one line.
THROWING_PLUGIN = CXX_PLUGIN.replace("in_cxx", "throws") + """
static int thrown() { throw 1; }
static const int never = thrown();
const int *fuse_test_use() { return &never; }
"""

RULES = """
#include <fuserun/optimizer.h>
FUSERUN_RULE(unused, (a, b, c, d, e, f, g, h),
             (s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15), param = 0.0f;)
FUSERUN_RULE_STATELESS(plain, (lr), float step = lr * grad; param -= step;)
FUSERUN_RULE(root, (v), (lr), v = v + grad * grad; param -= lr * (grad / (sqrtf(v) + 1e-8f));)
static const struct fuse_option options[] = {
    FUSERUN_OPTION_BY_POSITION(FUSERUN_OPTION_NUMBER, 0, 0, "lr", "1e-3", "[0, inf)", NULL, NULL, NULL, "learning rate")};
static void prepare(const struct fuse_update *update, double *scalars) { scalars[0] = update->hyper[0]; }
static uint32_t select_rule(const double *hyper, const uint8_t *is_driven) { return hyper[0] > 0.0 && is_driven[0]; }
static const struct fuse_rule *const rules[] = {&root, &plain, &unused};
FUSERUN_OPTIMIZER_WITH(many_rules, "1.0.0", "MIT", "three rules", options, prepare, rules, select_rule, NULL)
"""


def flags():
    env = dict(os.environ, PKG_CONFIG_PATH=os.path.join(os.environ["FUSERUN_BUILD"], "meson-uninstalled"))
    return subprocess.run(["pkg-config", "--cflags", "fuserun"], env=env, check=True, capture_output=True,
                          text=True).stdout.split()


def compilers(names):
    return [name for name in names if shutil.which(name)]


class Template(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="fuserun-template-")
        self.addCleanup(shutil.rmtree, self.folder)

    def build(self, compiler, source, name, more=()):
        target = os.path.join(self.folder, name + ".so")
        done = subprocess.run([compiler, "-shared", "-fPIC", *flags(), *more, source, "-o", target], text=True,
                              capture_output=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return target

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def probe(self, kind, name, program=PROBE, folder=None):
        env = {key: value for key, value in os.environ.items() if key != "FUSERUN_PLUGIN_PATH"}
        return subprocess.run([program, folder or self.folder, kind, name], text=True, capture_output=True, env=env)

    def good_probe(self, kind, name):
        done = self.probe(kind, name)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.splitlines()

    def exported(self, path):
        lines = subprocess.run(["nm", "-D", "--defined-only", path], check=True, capture_output=True,
                               text=True).stdout.splitlines()
        return [line.split()[-1] for line in lines]

    def check_sign_descent(self, lines):
        self.assertIn("states (momentum_buffer)", lines)
        self.assertIn("scalars (lr, momentum)", lines)
        self.assertEqual([line for line in lines if line.startswith("option")], ["option lr", "option momentum"])
        # Four steps of lr = 0.001 against the gradient's sign.
        self.assertIn("param 0.496000 0.254000", lines)

    def test_one_line_builds_the_optimizer(self):
        for compiler in compilers(["cc", "gcc", "clang"]):
            with self.subTest(compiler=compiler):
                path = self.build(compiler, os.path.join(TEMPLATE, "my_optimizer.c"), "my_optimizer")
                self.assertEqual(self.exported(path), ["fuse_plugin_v1"])
                lines = self.good_probe("optimizer", "my_optimizer")
                self.assertIn("file " + path, lines)
                self.check_sign_descent(lines)

    def test_one_line_builds_the_scheduler(self):
        for compiler in compilers(["cc", "gcc", "clang"]):
            with self.subTest(compiler=compiler):
                path = self.build(compiler, os.path.join(TEMPLATE, "my_scheduler.c"), "my_scheduler")
                self.assertEqual(self.exported(path), ["fuse_plugin_v1"])
                self.assertIn("option half_life", self.good_probe("scheduler", "my_scheduler"))

    @unittest.skipIf(os.path.isabs(PLUGIN_DIR) or os.path.isabs(BIN_DIR), "an installation that cannot be moved")
    def test_an_installed_program_finds_its_plugins_wherever_it_is(self):
        prefix = os.path.join(self.folder, "a prefix")
        optimizers = os.path.join(prefix, PLUGIN_DIR, "optimizers")
        os.makedirs(optimizers)
        os.makedirs(os.path.join(prefix, BIN_DIR))
        program = shutil.copy(PROBE, os.path.join(prefix, BIN_DIR))
        plugin = shutil.move(self.build("cc", os.path.join(TEMPLATE, "my_optimizer.c"), "my_optimizer"), optimizers)
        empty = os.path.join(self.folder, "empty")
        os.mkdir(empty)
        done = self.probe("optimizer", "my_optimizer", program, empty)
        self.assertEqual(done.stderr, "")
        self.assertIn("file " + plugin, done.stdout.splitlines())
        # The build it came from is out of sight.
        done = self.probe("optimizer", "my_optimiser", program, empty)
        self.assertEqual(done.stderr, "no optimizer 'my_optimiser' (did you mean 'my_optimizer'?); known: my_optimizer\n")

    def test_the_documented_line_is_the_tested_one(self):
        line = "cc -shared -fPIC $(pkg-config --cflags fuserun) my_optimizer.c -o plugins/my_optimizer.so"
        for path in ("plugins/template/README.md", "plugins/template/my_optimizer.c",
                     "runtime/include/fuserun/optimizer.h"):
            with open(os.path.join(SOURCE, path)) as file:
                self.assertIn(line, file.read(), path)

    def test_the_manual_shows_the_template(self):
        # optimizer.h prints the whole optimizer; it must be the one that is built here.
        with open(os.path.join(SOURCE, "runtime/include/fuserun/optimizer.h")) as file:
            manual = file.read().split("Build it with")[0]
        with open(os.path.join(TEMPLATE, "my_optimizer.c")) as file:
            source = file.read()
        shown = [line[7:].strip() for line in manual.splitlines() if line.startswith(" *     ")]
        self.assertGreater(len(shown), 15)
        for line in shown:
            self.assertIn(line, source)

    def test_strict_warnings_stay_silent(self):
        for compiler in compilers(["gcc", "clang"]):
            for name in ("my_optimizer", "my_scheduler", "my_dataset", "my_model"):
                with self.subTest(compiler=compiler, name=name):
                    self.build(compiler, os.path.join(TEMPLATE, name + ".c"), name, [*STRICT, "-std=c17"])

    def test_rules_of_every_size_compile_cleanly(self):
        source = self.write("many_rules.c", RULES)
        for compiler, standard in [(name, "c17") for name in compilers(["gcc", "clang"])]:
            with self.subTest(compiler=compiler):
                path = self.build(compiler, source, "many_rules", [*STRICT, "-std=" + standard, "-Wl,-z,defs"])
                self.assertEqual(self.exported(path), ["fuse_plugin_v1"])
                self.assertIn("states (v)", self.good_probe("optimizer", "many_rules"))
                os.remove(path)

    def test_without_instruction_set_dispatch(self):
        # Other processors take the plain loop; leaving the macro that tells x86-64 undefined shows that it compiles.
        source = self.write("many_rules.c", "#include <math.h>\n#undef __x86_64__\n" + RULES)
        for compiler in compilers(["gcc", "clang"]):
            with self.subTest(compiler=compiler):
                self.build(compiler, source, "many_rules", [*STRICT, "-std=c17"])
                self.assertIn("states (v)", self.good_probe("optimizer", "many_rules"))

    def test_cxx17_by_position(self):
        source = self.write("in_cxx.cpp", CXX_PLUGIN)
        for compiler in compilers(["g++", "clang++"]):
            with self.subTest(compiler=compiler):
                path = self.build(compiler, source, "in_cxx", [*STRICT, "-std=c++17", "-Wl,-z,defs"])
                self.assertEqual(self.exported(path), ["fuse_plugin_v1"])
                self.check_sign_descent(self.good_probe("optimizer", "in_cxx"))
                self.good_probe("scheduler", "in_cxx")

    @unittest.skipUnless(shutil.which("g++"), "no g++ here")
    def test_a_throwing_plugin_costs_one_line(self):
        path = self.build("g++", self.write("throws.cpp", THROWING_PLUGIN), "throws", ["-std=c++17"])
        done = self.probe("optimizer", "throws")
        self.assertEqual(done.returncode, 1)
        # clang's sanitizers turn the abort into an exit
        self.assertIn(done.stderr, (f"plugin {path}: crashes while it is loaded (Aborted)\n",
                                    f"plugin {path}: ends the process while it is loaded (exit status 1)\n"))

    def test_a_plugin_under_another_name_is_told_its_own(self):
        path = self.build("cc", os.path.join(TEMPLATE, "my_optimizer.c"), "renamed")
        done = self.probe("optimizer", "renamed")
        self.assertEqual(done.stderr, f"plugin {path}: the plugin calls itself 'my_optimizer', so its file must be "
                                      "called my_optimizer.so\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
