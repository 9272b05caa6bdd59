"""The line that plugin authors type makes vector code of an optimizer rule, square roots and divisions included, with
every compiler that is here, and no fused multiply-add, which would give each instruction set bits of its own."""
import os
import pathlib
import platform
import re
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("FUSERUN_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get("FUSERUN_BUILD", SOURCE / "build"))
CLONES = ("avx2", "avx512")
RULES = {
    "sgd": ["sgd", "sgd_l2", "sgd_momentum", "sgd_momentum_l2", "sgd_nesterov", "sgd_nesterov_l2"],
    "adam": ["adam", "adam_l2", "adam_amsgrad", "adam_amsgrad_l2"],
    "adamw": ["adamw", "adamw_decay", "adamw_amsgrad", "adamw_amsgrad_decay"],
    "adagrad": ["adagrad"],
    "adadelta": ["adadelta"],
    "rmsprop": ["rmsprop", "rmsprop_momentum", "rmsprop_centered", "rmsprop_centered_momentum"],
    "rprop": ["rprop"],
    "asgd": ["asgd"],
    "adamax": ["adamax"],
    "nadam": ["nadam"],
    "radam": ["radam"],
    "lion": ["lion"],
}
# Passes of rules over whole parameters, and what there is in each.
PASSES = {
    "adafactor": {"step_factored": "vmulps vsqrtps vdivps", "step_whole": "vmulps vsqrtps vdivps",
                  "measure_factored": "vmulpd vdivpd", "measure_param": "vmulpd", "follow_rows": "vmulpd",
                  "follow_columns": "vmulpd vaddpd", "follow_elements": "vmulpd"},
    "muon": {"follow": "vmulps", "measure": "vmulpd", "normalize": "vdivps", "add_gram": "vmulps",
             "add_product": "vmulps", "step": "vmulps"},
}
ROOTLESS = {"sgd", "rprop", "asgd", "adamax", "lion"}
DIVISIONLESS = {"sgd", "rprop", "asgd", "lion"}
WIDE = r"\b{}\s.*%[yz]mm"


def documented_flags():
    """The Cflags of fuserun.pc, with the header folder of the source tree in place of the installation's."""
    text = (BUILD / "meson-private" / "fuserun.pc").read_text()
    flags = re.search(r"^Cflags:(.*)$", text, re.MULTILINE).group(1).split()
    return [f"-I{SOURCE}/runtime/include" if flag.startswith("-I") else flag for flag in flags]


def functions(library):
    """Machine code by function name."""
    listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", library], check=True, capture_output=True, text=True)
    found = {}
    for block in listing.stdout.split("\n\n"):
        head = re.search(r"^[0-9a-f]+ <(.*)>:$", block, re.MULTILINE)
        if head:
            found[head.group(1)] = block
    return found


@unittest.skipUnless(platform.machine() == "x86_64", f"looks at x86-64 code; this is {platform.machine()}")
@unittest.skipUnless(shutil.which("objdump"), "objdump is not here")
class VectorCode(unittest.TestCase):
    def compilers(self):
        found = [name for name in ("cc", "gcc", "clang") if shutil.which(name)]
        self.assertTrue(found, "no compiler here")
        return {os.path.realpath(shutil.which(name)): name for name in found}.values()

    def compile(self, compiler, plugin, folder):
        library = folder / f"{plugin}.so"
        source = SOURCE / "plugins" / "optimizers" / f"{plugin}.c"
        subprocess.run([compiler, "-shared", "-fPIC", *documented_flags(), source, "-o", library], check=True)
        return functions(library)

    def clone(self, code, function, clone):
        names = [name for name in code if re.fullmatch(rf"{function}_{clone}(\.\w+)*", name)]
        self.assertEqual(len(names), 1, f"{function}_{clone} among the functions")
        return code[names[0]]

    def test_rules_are_vector_code(self):
        for compiler in self.compilers():
            for plugin, rules in RULES.items():
                with tempfile.TemporaryDirectory() as folder:
                    code = self.compile(compiler, plugin, pathlib.Path(folder))
                for rule in rules:
                    for clone in CLONES:
                        with self.subTest(compiler=compiler, rule=rule, clone=clone):
                            text = self.clone(code, rule + "_slice", clone)
                            self.assertRegex(text, WIDE.format("vmulps"))
                            if plugin not in ROOTLESS:
                                self.assertRegex(text, WIDE.format("vsqrtps"))
                            if plugin not in DIVISIONLESS:
                                self.assertRegex(text, WIDE.format("vdivps"))
                            self.assertNotRegex(text, r"\bvfn?m(add|sub)")
                            self.assertNotRegex(text, r"\bv?rsqrt|\bv?rcp", "an approximate root or quotient")
                            self.assertNotRegex(text, r"<sqrtf@plt>", "the library's square root, with errno")

    def test_passes_are_vector_code(self):
        for compiler in self.compilers():
            for plugin, passes in PASSES.items():
                with tempfile.TemporaryDirectory() as folder:
                    code = self.compile(compiler, plugin, pathlib.Path(folder))
                for name, instructions in passes.items():
                    for clone in CLONES:
                        with self.subTest(compiler=compiler, name=name, clone=clone):
                            text = self.clone(code, name + "_elements", clone)
                            for instruction in instructions.split():
                                self.assertRegex(text, WIDE.format(instruction))
                            self.assertNotRegex(text, r"\bvfn?m(add|sub)")

    def test_widest_clone_uses_the_widest_registers_for_three_states(self):
        """A rule of five arrays: compilers that doubt that the arrays are apart leave it scalar."""
        for compiler in self.compilers():
            with tempfile.TemporaryDirectory() as folder, self.subTest(compiler=compiler):
                code = self.compile(compiler, "adam", pathlib.Path(folder))
                self.assertRegex(self.clone(code, "adam_amsgrad_slice", "avx512"), r"\bvsqrtps\s.*%zmm")


if __name__ == "__main__":
    unittest.main()
