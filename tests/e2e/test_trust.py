"""What SECURITY.md promises: plugins come from named folders alone, names in files lead nowhere, and nobody else may write
what a run writes."""
import json
import os
import shutil
import stat
import subprocess
import unittest

from kit import SOURCE, KitCase, text_of
from support import FUSERUN, write_safetensors

# As soon as it is loaded, it leaves a file.
MARKING = """#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void mark(void)
{
    const int file = open(getenv("MARK"), O_WRONLY | O_CREAT, 0600);
    if (file >= 0)
        close(file);
}
"""
# Of plugins that come with fuserun, of none, and of libraries that are looked for while it runs.
PLANTED = ("evil", "adamw", "mlp", "tensors", "cpu", "cuda", "libcuda", "libcuda.so.1", "libnvrtc.so.12", "libnvrtc.so.13",
           "libcublas.so.12", "libcublas.so.13", "libdnnl.so.2", "optimizers/evil", "optimizers/adamw", "models/mlp",
           "backends/cpu", "plugins/evil", "plugins/adamw", "plugins/optimizers/adamw")
HOSTILE_NAMES = ("../../escaped", "/tmp/fuserun-escaped", "layers/../../escaped", "..", ".", "latest", "a\nb", "\x1b[2J",
                 "optimizer/../../escaped/exp_avg", "checkpoints/latest", "model.safetensors", "C:\\escaped", "a" * 1000,
                 "a\u202eb\u009b31m")


class TrustCase(KitCase):
    def setUp(self):
        super().setUp()
        self.make_classes()

    def tree(self, at=None):
        """What lies there, and what it holds."""
        found = {}
        for folder, _, names in os.walk(at or self.folder):
            for name in names:
                path = os.path.join(folder, name)
                found[path] = os.readlink(path) if os.path.islink(path) else self.read(path)
        return found


class WorkingDirectory(TrustCase):
    def setUp(self):
        super().setUp()
        self.mark = self.path("mark")
        source = self.write("marking.c", MARKING)
        self.shell(f"cc -shared -fPIC '{source}' -o '{self.path('marking.so')}'")
        os.makedirs(self.path("home"))
        self.classes_config(rest="[checkpoint]\nevery = 6\n")
        for name in ("t.ini", "data.safetensors"):
            shutil.move(self.path(name), self.path("home", name))
        for name in PLANTED:
            target = self.path("here", name if ".so" in name else name + ".so")
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy(self.path("marking.so"), target)

    def environment(self):
        return dict(super().environment(), MARK=self.mark)

    def start(self, *arguments, cwd="here", **environment):
        return subprocess.run([FUSERUN, *arguments], cwd=self.path(cwd), env=dict(self.environment(), **environment),
                              capture_output=True, text=True, check=False)

    def test_nothing_is_loaded_from_it(self):
        for path in (None, "", ".", ":", "./plugins", "plugins", "::optimizers:"):
            environment = {} if path is None else {"FUSERUN_PLUGIN_PATH": path}
            for arguments, status in ((("../home/t.ini", "run.overwrite=yes"), 0), (("check", "../home/t.ini"), 0),
                                      (("../home/t.ini", "optimizer.plugin=evil"), 2), (("--version",), 0),
                                      (("plugins",), 0), (("plugins", "evil"), 2), (("plugins", "adamw"), 0),
                                      (("plugins", "--config", "../home/t.ini"), 0), (("schedule", "../home/t.ini"), 0)):
                with self.subTest(path=path, arguments=arguments):
                    done = self.start(*arguments, **environment)
                    self.assertEqual(done.returncode, status, done.stderr)
                    self.assertFalse(os.path.exists(self.mark), "something of the working directory was loaded")

    def test_beside_the_config_it_is_not_loaded_either(self):
        """Only from plugins/ there, and from a path that the config spells out."""
        for name in PLANTED:
            if not name.startswith("plugins/"):
                target = self.path("home", name if ".so" in name else name + ".so")
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copy(self.path("marking.so"), target)
        done = self.start("t.ini", cwd="home")
        self.assertEqual((done.returncode, os.path.exists(self.mark)), (0, False), done.stderr)
        done = self.start("check", "t.ini", "optimizer.plugin=evil", cwd="home")
        self.assertEqual((done.returncode, os.path.exists(self.mark)), (2, False), done.stderr)
        # So that the above is no accident: this one would have been seen.
        done = self.start("check", "t.ini", "optimizer.plugin=./evil.so", cwd="home")
        self.assertEqual((done.returncode, os.path.exists(self.mark)), (2, True), done.stderr)

    def test_a_checkpoint_loads_no_plugin_and_sets_no_key(self):
        """It holds a config and names of plugins: for people to read."""
        self.assertEqual(self.start("t.ini", cwd="home").returncode, 0)
        path = self.path("home/runs/t/checkpoints/step-00000006.safetensors")
        header, data = self.read_header(path)
        evil = self.path("marking.so")
        header["__metadata__"].update({
            "checksums": "none", "plugins": f"optimizer {evil} 1.0.0\nmodel ../../here/evil 1.0.0\n",
            "optimizers": f"{evil} layers.0.weight\n",
            "config": header["__metadata__"]["config"].replace("plugin = ", f"plugin = {evil} ; ")
                      + f"[plugins]\npath = {self.path('here')}\n[run]\noutput = {self.path('escaped')}\ninclude = /dev/zero\n"})
        self.write_header(path, header, data)
        before = set(self.tree(self.path("here")))
        done = self.start("t.ini", f"run.resume={path}", "run.overwrite=yes", "run.output=on", cwd="home")
        self.assertEqual(done.returncode, 2, done.stderr)  # its states are another optimizer's
        done = self.start("t.ini", f"run.resume={path}", "run.resume_strict=no", "run.output=on", cwd="home")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse(os.path.exists(self.mark))
        self.assertFalse(os.path.exists(self.path("escaped")))
        self.assertEqual(set(self.tree(self.path("here"))), before)

    @staticmethod
    def read_header(path):
        with open(path, "rb") as file:
            content = file.read()
        length = int.from_bytes(content[:8], "little")
        return json.loads(content[8:8 + length]), content[8 + length:]

    @staticmethod
    def write_header(path, header, data):
        text = json.dumps(header).encode()
        with open(path, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text + data)


class Names(TrustCase):
    """Names in files are labels."""

    def test_of_tensors(self):
        self.classes_config(steps=4, rest="[checkpoint]\nevery = 2\n")
        self.fuserun("t.ini")
        tensors = {name: ("F32", [values[at:at + 12] for at in range(0, len(values), 12)] if name == "layers.0.weight"
                          else [values[at:at + 24] for at in range(0, len(values), 24)] if name == "layers.1.weight"
                          else values) for name, values in self.weights().items()}
        write_safetensors(self.path("w.safetensors"), {**tensors, **{name: ("F32", [1.0]) for name in HOSTILE_NAMES}})
        expected = set(self.tree()) | {self.path("w.pth")}
        listed = self.fuserun("inspect", "w.safetensors").stdout
        self.assertEqual(len(listed.splitlines()), len(tensors) + len(HOSTILE_NAMES) + 1)
        self.assertNotRegex(listed, "[\x1b\x9b\u202e]")
        self.assertIn("a???b??31m", listed)
        names = {entry["name"] for entry in json.loads(self.fuserun("inspect", "w.safetensors", "--json").stdout)}
        self.assertLessEqual(set(HOSTILE_NAMES), names)
        self.fuserun("export", "w.safetensors", "--to", "w.pth")
        self.fuserun("inspect", "w.pth")
        told = self.fuserun("check", "t.ini", "model.weights=w.safetensors", "model.strict=no", "run.output=on").stderr
        self.assertNotIn("\x1b", told)
        self.fuserun("t.ini", "model.weights=w.pth", "model.strict=no", "run.output=on", "checkpoint.every=",
                     "optimizer.lr=0")
        self.assertEqual(self.weights("on"), self.weights())
        new = {path for path in self.tree() if not path.startswith(self.path("on/"))}
        self.assertEqual(new, expected)

    def test_of_parameters(self):
        """A model's names must stand in its files and in a checkpoint's lists, and a slash is but a character there."""
        text = text_of("plugins", "template", "my_model.c")
        self.assertIn('"stem"', text)
        config = self.classes_config(steps=3, rest="[checkpoint]\nevery = 2\n")
        with open(config, encoding="utf-8") as file:
            lines = [line for line in file.read().splitlines() if not line.startswith("sizes")]
        for number, (name, is_right) in enumerate((("../../escaped", True), ("/tmp/fuserun-escaped", True), ("\\n", False),
                                                   ("optimizer/x", False), ("scheduler/state", False), ("a\\x1b[2J", False),
                                                   ("\\xff", False))):
            with self.subTest(name=name):
                self.build(self.write("m.c", text.replace('"stem"', '"%s"' % name)), "my_model")
                config = "\n".join(lines).replace("plugin = mlp", "plugin = my_model\nnum_classes = 4")
                self.write("m.ini", config.replace("name = t", f"name = m{number}"))
                before = set(self.tree())
                if not is_right:
                    done = subprocess.run([FUSERUN, "m.ini"], cwd=self.folder, env=self.environment(),
                                          capture_output=True, check=False)
                    self.assertEqual(done.returncode, 2)
                    self.assertRegex(done.stderr.decode(errors="replace"), r"^m\.ini:\d+: model\.plugin: the model has a parameter '[^\n]*\n$")
                    self.assertEqual(set(self.tree()), before)
                    continue
                self.fuserun("m.ini", "run.steps=2")
                self.fuserun("m.ini")
                self.fuserun("m.ini", f"run.name=m{number}", "run.output=whole", "run.overwrite=yes", "run.resume=never")
                self.assertEqual(self.weights(f"runs/m{number}"), self.weights("whole"))
                self.assertIn(name + ".weight", self.weights("whole"))
                self.assertEqual([path for path in set(self.tree()) - before if not path.startswith(
                    (self.path("whole/"), self.path(f"runs/m{number}/")))], [])

    def test_of_a_run(self):
        """The default output folder is runs/NAME."""
        self.classes_config(steps=1)
        for name in ("../escaped", "a/../../escaped", "..", "a/.."):
            done = self.fuserun("t.ini", f"run.name={name}", status=2)
            self.assertRegex(done.stderr, r"^command line: run\.name: '.*' .*run\.output.*\n$")
        before = self.left_behind()
        self.fuserun("t.ini", "run.name=..", "run.output=out")
        self.fuserun("t.ini", "run.name=a/b..c")
        self.assertEqual({os.path.dirname(name) for name in self.left_behind() if name not in before},
                         {"", "out", "runs", "runs/a", "runs/a/b..c"})

    def test_in_memory_json(self):
        self.classes_config(steps=2)
        self.fuserun("t.ini")
        path = self.path("runs/t/memory.json")
        with open(path, encoding="utf-8") as file:
            memory = json.load(file)
        memory["run"]["name"] = "../../../escaped"
        with open(path, "w", encoding="utf-8") as file:
            json.dump(memory, file)
        before = set(self.tree())
        self.fuserun("report", "runs/t")
        self.fuserun("compare", "runs/t", "runs/t")
        self.assertEqual(set(self.tree()) - before, {self.path("fuserun-compare.html")})


class Latest(TrustCase):
    """The link `latest`, and other links where checkpoints are."""

    def setUp(self):
        super().setUp()
        self.classes_config(steps=4, rest="[checkpoint]\nevery = 2\n")
        self.fuserun("t.ini", "run.output=other", "run.steps=3", "run.seed=9")
        self.fuserun("t.ini")
        self.other = self.path("other/checkpoints/step-00000003.safetensors")

    def point(self, target):
        link = self.path("runs/t/checkpoints/latest")
        os.remove(link)
        os.symlink(target, link)

    def test_it_is_not_followed_to_resume(self):
        self.fuserun("t.ini", "run.output=whole", "run.steps=6")
        for target in (self.other, "../../../other/checkpoints/step-00000003.safetensors", "/etc/passwd", "latest", "."):
            shutil.copytree(self.path("runs/t"), self.path("kept"), symlinks=True)
            self.point(target)
            told = self.fuserun("t.ini", "run.resume=runs/t/checkpoints/latest", "run.output=on", "run.steps=6").stdout
            self.assertIn("resumed from step 4, ", told)
            self.fuserun("t.ini", "run.steps=6")
            for output in ("on", "runs/t"):
                self.assertEqual(self.weights(output), self.weights("whole"))
            self.assertEqual(os.readlink(self.path("runs/t/checkpoints/latest")), "step-00000006.safetensors")
            shutil.rmtree(self.path("on"))
            shutil.rmtree(self.path("runs/t"))
            shutil.move(self.path("kept"), self.path("runs/t"))

    def test_saving_replaces_links_and_follows_none(self):
        """Of whoever put links where a run is about to write."""
        before = self.read(self.other)
        victim = self.write("victim", "mine")
        self.point(self.other)
        for name in ("step-00000006.safetensors", "../config.ini", "../memory.html", "../memory.json",
                     "../model.safetensors"):
            path = self.path("runs/t/checkpoints", name)
            if os.path.lexists(path):
                os.remove(path)
            os.symlink(victim, path)
        self.fuserun("t.ini", "run.steps=6", "checkpoint.keep=1", "run.resume=runs/t/checkpoints/step-00000004.safetensors")
        self.assertEqual((self.read(victim), self.read(self.other)), (b"mine", before))
        self.assertEqual(sorted(os.listdir(self.path("runs/t/checkpoints"))), ["latest", "step-00000006.safetensors"])
        for folder, _, names in os.walk(self.path("runs/t")):
            self.assertEqual([name for name in names if os.path.islink(os.path.join(folder, name))],
                             ["latest"] if folder.endswith("checkpoints") else [])

    def test_removing_takes_only_what_a_run_has_made(self):
        folder = self.path("runs/t/checkpoints")
        mine = ("step-1.safetensors", "step-00000002.safetensors.bak", "step-00000002.pth", "notes", "step--0000002.safetensors",
                ".step-00000002.safetensors.mine.tmp")
        for name in mine:
            self.write("runs/t/checkpoints/" + name, "mine")
        self.fuserun("t.ini", "run.steps=8", "checkpoint.keep=1")
        self.assertEqual(set(os.listdir(folder)), {"latest", "step-00000008.safetensors", *mine})


class Umask(TrustCase):
    def test_nobody_else_may_write(self):
        """Whatever the umask lets be."""
        self.classes_config(steps=6, run="profile = yes", rest="[eval]\nevery = 2 steps\n[memory]\nsnapshot = yes\n"
                            "[checkpoint]\nevery = 2\n")
        before = set(self.left_behind())
        commands = [[FUSERUN, *words] for words in (
            ("t.ini", "run.output=deep/er/t"), ("t.ini", "run.output=deep/er/t", "run.steps=8"),
            ("t.ini", "run.output=b", "checkpoint.background=yes"), ("export", "b", "--to", "b.pth"), ("report", "b"),
            ("compare", "b", "deep/er/t", "--svg", "compare.svg"))]
        commands.append([os.path.join(SOURCE, "tools", "new-plugin"), "optimizer", "mine", "mine"])
        for command in commands:
            done = subprocess.run(command, cwd=self.folder, env=self.environment(), capture_output=True, text=True,
                                  preexec_fn=lambda: os.umask(0), check=False)
            self.assertEqual(done.returncode, 0, (command, done.stderr))
        made = [name for name in self.left_behind() if name not in before]
        self.assertGreater(len(made), 30)
        for name in made:
            mode = os.lstat(self.path(name)).st_mode
            self.assertTrue(stat.S_ISLNK(mode) or not mode & 0o022, (name, oct(mode)))

    def test_a_stricter_umask_holds(self):
        self.classes_config(steps=2, rest="[checkpoint]\nevery = 1\n")
        subprocess.run([FUSERUN, "t.ini"], cwd=self.folder, env=self.environment(), capture_output=True, check=True,
                       preexec_fn=lambda: os.umask(0o077))
        for folder, _, names in os.walk(self.path("runs")):
            for path in [folder] + [os.path.join(folder, name) for name in names]:
                mode = os.lstat(path).st_mode
                self.assertTrue(stat.S_ISLNK(mode) or not mode & 0o077, (path, oct(mode)))


if __name__ == "__main__":
    unittest.main()
