"""The public headers: each compiles alone, as C and as C++, with every warning an error; and test_layout.c, which pins the
binary layout, knows every field and constant that they declare."""
import os
import re
import shutil
import subprocess
import unittest

SOURCE = os.environ["FUSERUN_SOURCE"]
INCLUDE = os.path.join(SOURCE, "runtime", "include")
HEADERS = sorted(name for name in os.listdir(os.path.join(INCLUDE, "fuserun")) if name.endswith(".h"))
STRICT = "-Wall -Wextra -Wpedantic -Werror -fsyntax-only".split()
LANGUAGES = [("gcc", "c", "c17"), ("clang", "c", "c17"), ("g++", "c++", "c++17"), ("clang++", "c++", "c++17")]


def read(*path):
    with open(os.path.join(SOURCE, *path)) as file:
        return file.read()


def declarations(header):
    """(struct, field) pairs and constants of a header's text."""
    text = re.sub(r"/\*.*?\*/", "", read("runtime", "include", "fuserun", header), flags=re.S)
    text = re.sub(r"^#.*?(?<!\\)$", "", text, flags=re.M | re.S)
    fields, constants = [], []
    for struct, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", text, re.M | re.S):
        for declaration in re.sub(r"\s*FUSERUN_PRINTF\([^)]*\)", "", body).split(";"):
            callback = re.search(r"\(\*(?:const \*?)?(\w+)\)\(", declaration)
            names = [callback.group(1)] if callback else re.findall(r"(\w+)(?:\[[^]]*\])?\s*(?:,|$)", declaration.strip())
            fields += [(struct, name) for name in names]
    for body in re.findall(r"^enum \w+ \{\n(.*?)^\};", text, re.M | re.S):
        constants += re.findall(r"\b(FUSERUN_\w+)\s*=", body)
    return fields, constants


class Headers(unittest.TestCase):
    def test_each_compiles_alone(self):
        self.assertGreaterEqual(len(HEADERS), 7)
        for compiler, language, standard in LANGUAGES:
            if shutil.which(compiler) is None:
                continue
            for header in HEADERS:
                with self.subTest(compiler=compiler, header=header):
                    # Twice, for the include guard; a declaration of its own, since an empty file is not ISO C.
                    text = f"#include <fuserun/{header}>\n#include <fuserun/{header}>\nextern int fuse_test_unit;\n"
                    done = subprocess.run([compiler, "-x", language, "-std=" + standard, *STRICT, "-I", INCLUDE, "-"],
                                          input=text, text=True, capture_output=True)
                    self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_they_include_nothing_of_ours_but_each_other(self):
        for header in HEADERS:
            for name in re.findall(r'^#include (.*)$', read("runtime", "include", "fuserun", header), re.M):
                self.assertRegex(name, r"^<(fuserun/\w+\.h|std\w+\.h|math\.h)>$", header)

    def test_all_are_installed(self):
        listed = re.findall(r"'fuserun/(\w+\.h)'", read("runtime", "include", "meson.build"))
        self.assertEqual(sorted(listed), HEADERS)

    def test_the_layout_test_is_complete(self):
        layout = read("tests", "abi", "test_layout.c")
        known_fields = set(re.findall(r"FIELD\((\w+), (\w+),", layout))
        known_values = set(re.findall(r"VALUE\((\w+),", layout))
        lacking = []
        for header in HEADERS:
            fields, constants = declarations(header)
            lacking += [f"FIELD({struct}, {field}, offset, bytes);" for struct, field in fields
                        if (struct, field) not in known_fields]
            lacking += [f"VALUE({constant}, value);" for constant in constants if constant not in known_values]
        self.assertEqual(lacking, [], "tests/abi/test_layout.c lacks these lines")


if __name__ == "__main__":
    unittest.main(verbosity=2)
