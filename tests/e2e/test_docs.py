"""The pages of docs/, followed word for word: every command is run, every file is written as it stands there, what a page
says that a command prints is printed, and what it shows of the templates is in the templates."""
import os
import re
import unittest

from kit import SOURCE, KitCase, SmallNet, text_of

FENCE = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OPTIMIZER, SCHEDULER = "writing-an-optimizer.md", "writing-a-scheduler.md"


def blocks(page):
    """(language, file or "", text) of each fenced block."""
    return [match.groups() for match in FENCE.finditer(text_of("docs", page))]


def written(page, name):
    (text,) = [text for _, target, text in blocks(page) if os.path.basename(target) == name]
    return text


class Pages(KitCase):
    def setUp(self):
        """A stand-in for a source tree: the real one behind links, but tools/run is the program under test."""
        super().setUp()
        self.tree = self.path("tree")
        os.makedirs(os.path.join(self.tree, "tools"))
        os.mkdir(os.path.join(self.tree, "build"))
        os.symlink(os.path.join(os.environ["FUSERUN_BUILD"], "meson-uninstalled"),
                   os.path.join(self.tree, "build", "meson-uninstalled"))
        os.symlink(os.path.join(SOURCE, "configs"), os.path.join(self.tree, "configs"))
        os.symlink(os.path.join(SOURCE, "tools", "new-plugin"), os.path.join(self.tree, "tools", "new-plugin"))
        self.write("tree/tools/run", '#!/bin/sh\nexec "$FUSERUN" "$@"\n')
        os.chmod(os.path.join(self.tree, "tools", "run"), 0o755)

    def follow(self, page):
        printed, count = "", 0
        for language, target, text in blocks(page):
            if language == "sh":
                done = self.shell("set -e\n" + text, cwd=self.tree)
                printed = done.stdout + done.stderr
                count += len(text.splitlines())
            elif language == "text":
                for line in text.splitlines():
                    pattern = ".*".join(re.escape(part) for part in line.split("..."))
                    self.assertRegex(printed, re.compile("^%s$" % pattern, re.MULTILINE))
            elif target:
                self.assertIn("`%s`" % target, text_of("docs", page), "the prose must name the file as well")
                with open(os.path.join(self.tree, target), "w", encoding="utf-8") as file:
                    file.write(text)
            else:
                self.check_excerpt(page, text)
        return count

    def check_excerpt(self, page, text):
        template = text_of("plugins", "template", "my_optimizer.c" if page == OPTIMIZER else "my_scheduler.c")
        lines = [line.strip() for line in template.splitlines()]
        shown = [line.strip() for line in text.splitlines()]
        self.assertTrue(any(lines[at:at + len(shown)] == shown for at in range(len(lines))),
                        "not in the template:\n" + text)

    def test_writing_an_optimizer(self):
        self.assertGreater(self.follow(OPTIMIZER), 15)
        for run, accuracy in (("my_rule", 0.95), ("in_backward", 0.95), ("adan", 0.95), ("digits", 0.9)):
            self.assertGreater(self.evaluations("tree/runs/" + run)[-1]["eval_accuracy"], accuracy, run)

    def test_writing_a_scheduler(self):
        self.assertGreater(self.follow(SCHEDULER), 15)
        for run, accuracy in (("my_curve", 0.95), ("rex", 0.95), ("digits", 0.9)):
            self.assertGreater(self.evaluations("tree/runs/" + run)[-1]["eval_accuracy"], accuracy, run)

    def test_what_the_pages_name_is_there(self):
        for page in os.listdir(os.path.join(SOURCE, "docs")):
            text = text_of("docs", page)
            for path in re.findall(r"\b(?:plugins|runtime|tests|tools|configs|docs|models)/[\w./-]*\w", text):
                if path.startswith(("plugins/my_", "plugins/a", "plugins/rex", "plugins/tyrex")):
                    continue  # in a made folder
                self.assertTrue(os.path.exists(os.path.join(SOURCE, path)), (page, path))
            headers = "".join(text_of("runtime/include/fuserun", name)
                              for name in os.listdir(os.path.join(SOURCE, "runtime/include/fuserun")))
            for name in re.findall(r"\b(?:FUSERUN_[A-Z_]+|fuse_\w+)", text):
                if name != "FUSERUN_PLUGIN_PATH":
                    self.assertIn(name, headers, page)


class WholeExamples(KitCase):
    """The plugins that the pages write are right, not only running."""

    def test_adan_is_the_authors_formula_in_under_40_lines(self):
        source = written(OPTIMIZER, "adan.c")
        self.assertLess(len(source.splitlines()), 40)
        self.build(self.write("adan.c", source), "adan", more="-Wall -Wextra -Wpedantic -Werror -std=c17")
        lr, betas, eps, decay = 0.02, (0.98, 0.92, 0.99), 1e-8, 0.1

        def update(step, weight, gradient, state):
            """As github.com/sail-sg/Adan computes it: beta-weighted means, each corrected for its start at zero."""
            difference = gradient - state.get("before", gradient)
            state["before"] = gradient
            for key, beta, news in (("m", betas[0], gradient), ("v", betas[1], difference),
                                    ("n", betas[2], (gradient + betas[1] * difference) ** 2)):
                state[key] = beta * state.get(key, 0.0) + (1 - beta) * news
            corrected = [state[key] / (1 - beta ** step) for key, beta in zip("mvn", betas)]
            denominator = corrected[2] ** 0.5 + eps
            return (weight - lr * (corrected[0] + betas[1] * corrected[1]) / denominator) / (1 + lr * decay)
        SmallNet(self).check("adan", update, "lr = %r\nweight_decay = %r" % (lr, decay))

    def test_rex_used_is_logged_is_its_formula(self):
        self.build(self.write("rex.c", written(SCHEDULER, "rex.c")), "rex",
                   more="-Wall -Wextra -Wpedantic -Werror -std=c17")
        width = 30
        self.probe_config(width, rest="[scheduler]\nplugin = rex")
        self.fuserun("probe.ini")
        for step, (line, weight) in enumerate(zip(self.updates(), self.weights()["layers.0.weight"])):
            right = 0.1 * (1 - step / width) / (0.5 + 0.5 * (1 - step / width))
            self.assertLessEqual(abs(line["lr"]["default"] - right), 1e-9 * 0.1, step)
            self.assertLessEqual(abs(-weight - right), 2.0 ** -24 * right * 1.01, step)


if __name__ == "__main__":
    unittest.main(verbosity=2)
