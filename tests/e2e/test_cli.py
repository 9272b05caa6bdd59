"""The commands, their exit statuses and their messages."""
import json
import os
import shutil
import struct
import subprocess
import unittest

from support import FUSERUN, Case, write_safetensors


class Words(Case):
    def test_help_and_version(self):
        usage = self.fuserun("--help").stdout
        self.assertIn("fuserun check CONFIG.ini", usage)
        for words in (["check", "--help"], ["report", "-h"], ["help"], ["a.ini", "--help"]):
            self.assertEqual(self.fuserun(*words).stdout, usage)
        version = self.fuserun("--version").stdout
        self.assertRegex(version.splitlines()[0], r"^fuserun \d+\.\d+\.\d+$")
        for part in ("OpenMP", "oneDNN", "CBLAS", "zlib", "CUDA"):
            self.assertRegex(version, "[+-]" + part)
        if "+CUDA" in version:
            self.assertRegex(version.splitlines()[2], r"^CUDA: libcuda\.so\.1 (not )?found, libcublas\.so\.[^,]+ (not )?found, "
                                                      r"libnvrtc\.so\.[^,]+ (not )?found$")
            for name in ("libcuda.so.1", "libcublas.so.13", "libcublas.so.12", "libnvrtc.so.13", "libnvrtc.so.12"):
                self.write("libraries/" + name, "not a library")  # and the search ends with it
            folders = [self.path("libraries"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
            version = self.fuserun("--version", environment=self.environment() | {"LD_LIBRARY_PATH": ":".join(folders)}).stdout
            self.assertEqual(version.splitlines()[2], "CUDA: libcuda.so.1 not found, libcublas.so.13 or libcublas.so.12 not "
                                                      "found, libnvrtc.so.13 or libnvrtc.so.12 not found")
        else:
            self.assertEqual(len(version.splitlines()), 2)

    def test_usage_errors(self):
        self.make_classes()
        self.classes_config()
        for arguments, word in (
                ([], "usage"), (["chekc", "t.ini"], "check"), (["nothing.ini"], "nothing.ini"), (["check"], "CONFIG"),
                (["check", "t.ini", "nonsense"], "nonsense"), (["check", "t.ini", "--csv"], "--csv"),
                (["t.ini", "--json"], "--json"), (["schedule", "t.ini", "--csv", "--json"], "--csv"),
                (["inspect"], "FILE"), (["inspect", "a", "b"], "FILE"), (["plugins", "--config"], "--config"),
                (["plugins", "a", "b"], "NAME"), (["check", "t.ini", "run.steps"], "run.steps"),
                (["check", "t.ini", "steps=4"], "steps")):
            done = self.fuserun(*arguments, status=2)
            self.assertIn(word, done.stderr, arguments)
            self.assertEqual(done.stdout, "", arguments)
        self.assertEqual(self.left_behind(), ["data.safetensors", "t.ini"])

    def test_commands_of_other_versions_are_refused_by_name(self):
        for command in ("eval", "predict"):
            done = self.fuserun(command, "x", status=2)
            self.assertIn("'%s' is not in this version" % command, done.stderr)

    def test_output_that_cannot_be_written(self):
        self.make_classes()
        self.classes_config()
        for arguments in (["check", "t.ini"], ["schedule", "t.ini", "--csv"], ["plugins"], ["inspect", "data.safetensors"],
                          ["--help"], ["--version"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([FUSERUN, *arguments], cwd=self.folder, stdout=full, stderr=subprocess.PIPE,
                                      env=self.environment(), check=False)
            self.assertEqual(done.returncode, 1, arguments)


class Mistakes(Case):
    def test_five_mistakes_at_once_and_nothing_is_written(self):
        self.make_classes()
        text = ("[run]\nname = five\nepoch = 3\n[model]\nplugin = mlp\nsizes = 12, 4\n[data]\nplugin = tensors\n"
                "file = absent.safetensors\n[loss]\nkind = crossentropy\n[optimizer]\nplugin = adamw\nlr = fast\n"
                "[group g]\nmatch = *bias\nbetas = 0.9, 1.5\n")
        self.write("five.ini", text)
        before = self.left_behind()
        for arguments in (["five.ini"], ["check", "five.ini"]):
            done = self.fuserun(*arguments, status=2)
            lines = done.stderr.splitlines()
            self.assertEqual(len(lines), 5, done.stderr)
            for line, (number, key) in zip(lines, ((3, "run.epoch"), (9, "data.file"), (11, "loss.kind"),
                                                   (14, "optimizer.lr"), (17, "group g.betas"))):
                self.assertTrue(line.startswith("five.ini:%d: %s: " % (number, key)), line)
            self.assertIn("(did you mean 'epochs'?)", lines[0])
            self.assertIn("absent.safetensors", lines[1])
        self.assertEqual(self.left_behind(), before)

    def test_files_and_the_model_are_judged_beside_other_mistakes(self):
        self.make_classes()
        self.classes_config(model="freeze = no.such", options="lr = fast", rest="[eval]\nfile = absent.safetensors\n"
                            "[group g]\nmatch = nothing*")
        lines = self.fuserun("check", "t.ini", status=2).stderr.splitlines()
        self.assertEqual([line.split(": ")[1] for line in lines], ["model.freeze", "optimizer.lr", "eval.file"])
        lines = self.fuserun("check", "t.ini", "optimizer.lr=1", status=2).stderr.splitlines()
        self.assertEqual([line.split(": ")[1] for line in lines], ["model.freeze", "eval.file", "group g.match"])
        lines = self.fuserun("check", "t.ini", "data.file=absent.safetensors", "eval.file=", status=2).stderr.splitlines()
        self.assertEqual(sum("absent" in line for line in lines), 1, "a file that [eval] shares is told once")

    def one_mistake(self, start, *words, overrides=()):
        for command in (["check"], []):
            done = self.fuserun(*command, "t.ini", *overrides, status=2)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertTrue(done.stderr.startswith(start), done.stderr)
            for word in words:
                self.assertIn(word, done.stderr)
        self.assertFalse(os.path.exists(self.path("runs")))

    def test_each_kind_is_told_at_its_line(self):
        self.make_classes()
        write_safetensors(self.path("values.safetensors"),
                          {"x": ("F32", [[0.0] * 12] * 3), "y": ("F32", [[0.0] * 3] * 3)})
        lines = {}
        with open(self.classes_config(run="overwrite = no", model="freeze = layers.1.bias", data="shuffle = yes",
                                      rest="[loss]\nkind = cross_entropy\n[group g]\nmatch = layers.0.bias"),
                  encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                lines.setdefault(line.split("=")[0].strip(), number)
        at = "t.ini:%d: " % lines["match"]
        self.write("t.ini", self.read("t.ini").decode().replace("match = layers.0.bias", "match = nothing*"))
        self.one_mistake(at + "group g.match: ", "no parameter")
        self.classes_config(model="freeze = no.such")
        self.one_mistake("t.ini:8: model.freeze: ", "no.such")
        self.classes_config(model="weights = absent.safetensors")
        self.one_mistake("t.ini:8: model.weights: ", "absent.safetensors")
        self.classes_config(model="weights = data.safetensors")
        self.one_mistake("t.ini:8: model.weights: ", "missing: layers.0.weight", "unexpected: ")
        self.classes_config()
        self.one_mistake("command line: model.sizes: ", "12", overrides=["model.sizes=13, 4"])
        self.one_mistake("command line: data.file: ", "absent", overrides=["data.file=absent.safetensors"])
        self.one_mistake("command line: data.file: ", "I64", overrides=["data.file=values.safetensors"])
        self.one_mistake("command line: loss.kind: ", "(4)", "(3)",
                         overrides=["loss.kind=mse", "data.file=values.safetensors"])
        self.one_mistake("command line: run.device: ", "cuda", overrides=["run.device=cuda"])
        self.one_mistake("command line: optimizer.nesterov: ", "momentum",
                         overrides=["optimizer.plugin=sgd", "optimizer.nesterov=yes"])
        self.one_mistake("command line: optimizer.accumulate: ", overrides=["optimizer.accumulate=0"])

    def test_cycled_momentum_needs_one(self):
        self.make_classes()
        self.classes_config(rest="[group g]\nmatch = *bias\nplugin = bare\n[scheduler]\nplugin = onecycle\nmax_lr = 0.1")
        source = self.write("bare.c", """#include <fuserun/optimizer.h>
FUSERUN_RULE_STATELESS(bare_rule, (lr), param -= lr * grad;)
static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "lr", .type = FUSERUN_OPTION_NUMBER, .default_text = "1",
                   .flags = FUSERUN_OPTION_SCHEDULABLE, .help = "rate")};
static void prepare(const struct fuse_update *update, double *scalars) { scalars[0] = update->hyper[0]; }
FUSERUN_OPTIMIZER(bare, "1.0.0", "MIT", "plain descent", options, prepare, bare_rule)
""")
        include = os.path.join(os.environ.get("FUSERUN_SOURCE", ""), "runtime", "include")
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None or not os.path.isdir(include):
            self.skipTest("no compiler, or FUSERUN_SOURCE does not say where the headers are")
        os.mkdir(self.path("plugins"))
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-I", include, source, "-o", self.path("plugins/bare.so")],
                       check=True)
        self.one_mistake("t.ini:20: scheduler.cycle_momentum: ", "cycle_momentum = no", "bare")
        self.fuserun("t.ini", "scheduler.cycle_momentum=no")

    def test_the_config_cannot_be_read(self):
        done = self.fuserun("absent.ini", status=2)
        self.assertIn("absent.ini", done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1)


class Plan(Case):
    def test_check_prints_the_plan_and_writes_nothing(self):
        self.make_classes(count=45)
        self.classes_config(steps=20, rest="[group g]\nmatch = *bias\n[scheduler]\nplugin = linear\ntotal_iters = 10\n[eval]")
        before = self.left_behind()
        out = self.fuserun("check", "t.ini").stdout
        for words in ("[optimizer]", "betas = 0.9, 0.999", "group default", "group g", "layers.1.bias", "412",
                      "the last one of 5", "updates     20, 6 an epoch", "optimizer_state", "costs in mode fused"):
            self.assertIn(words, out)
        self.assertEqual(self.left_behind(), before)

    def test_check_tells_of_a_run_in_the_way(self):
        self.make_classes()
        self.classes_config()
        self.fuserun("t.ini")
        done = self.fuserun("check", "t.ini")
        self.assertRegex(done.stderr, r"^t\.ini:\d+: warning: run\.output: .*run\.overwrite=yes")
        self.assertEqual(self.fuserun("check", "t.ini", "run.overwrite=yes").stderr, "")

    def test_schedule_forms(self):
        self.make_classes()
        self.classes_config(steps=40, rest="[group slow]\nmatch = *bias\nlr = 0.001\n[scheduler]\nplugin = exponential\n"
                                           "gamma = 0.9")
        rows = [line.split(",") for line in self.fuserun("schedule", "t.ini", "--csv").stdout.splitlines()]
        self.assertEqual(rows[0], ["step", "default.lr", "slow.lr"])
        self.assertEqual(rows[1], ["1", "0.01", "0.001"])
        self.assertEqual(len(rows), 41)
        table = self.fuserun("schedule", "t.ini").stdout.splitlines()
        self.assertLess(len(table), 30)
        self.assertEqual(table[1].split(), ["1", "0.01", "0.001"])
        self.assertEqual(table[-1].split()[0], "40")
        self.assertEqual(self.left_behind(), ["data.safetensors", "t.ini"])

    def test_default_group_is_shown_only_if_it_has_parameters(self):
        self.make_classes()
        self.classes_config(rest="[group all]\nmatch = *")
        self.assertEqual(self.fuserun("schedule", "t.ini", "--csv").stdout.splitlines()[0], "step,all.lr")
        self.assertEqual(list(json.loads(self.fuserun("check", "t.ini", "--json").stdout)["groups"]), ["all"])

    def test_progress(self):
        self.make_classes()
        self.classes_config(rest="[eval]")
        self.assertEqual(self.fuserun("t.ini", "run.progress=off").stdout, "")
        bar = self.fuserun("t.ini", "run.overwrite=yes", "run.progress=bar").stdout
        plain = self.fuserun("t.ini", "run.overwrite=yes").stdout
        self.assertNotIn("\r", plain)
        for out in (bar, plain):
            self.assertRegex(out, r"(?m)^(\r\x1b\[K)?eval  step 12  loss \d+\.\d{4}  accuracy [01]\.\d{4}$")
            self.assertRegex(out, r"(?m)^(\r\x1b\[K)?done  updates 12  training ")
            self.assertRegex(out, r"(?m)^results in .*/runs/t$")


class Plugins(Case):
    def test_list(self):
        listed = json.loads(self.fuserun("plugins", "--json").stdout)
        found = {(entry["kind"], entry["name"]) for entry in listed}
        for pair in (("optimizer", "sgd"), ("optimizer", "adamw"), ("scheduler", "cosine"), ("model", "mlp"),
                     ("dataset", "tensors"), ("dataset", "idx"), ("backend", "cpu")):
            self.assertIn(pair, found)
        for entry in listed:
            self.assertTrue(os.path.isabs(entry["file"]), entry)
            self.assertTrue({"kind", "name", "version", "file", "options"} <= set(entry))
        self.assertIn("adamw", self.fuserun("plugins").stdout)

    def test_one(self):
        out = self.fuserun("plugins", "adamw").stdout
        for words in ("optimizer adamw", "betas = 0.9, 0.999", "a scheduler may drive it", "fused (by panels)"):
            self.assertIn(words, out)
        (entry,) = json.loads(self.fuserun("plugins", "adamw", "--json").stdout)
        options = {option["key"]: option for option in entry["options"]}
        self.assertEqual(options["lr"]["default"], "1e-3")
        self.assertTrue(options["lr"]["schedulable"])
        devices = ["cpu", "cuda"] if "+CUDA" in self.fuserun("--version").stdout else ["cpu"]
        for name, expected in (("adamw", devices), ("sgd", devices), ("muon", devices), ("adafactor", devices)):
            (entry,) = json.loads(self.fuserun("plugins", name, "--json").stdout)
            self.assertEqual(entry["devices"], expected, name)
            self.assertIn("; devices %s\n" % ", ".join(expected), self.fuserun("plugins", name).stdout)
        done = self.fuserun("plugins", "adamq", status=2)
        self.assertIn("did you mean 'adam", done.stderr)

    def test_config_adds_its_folders_and_a_broken_file_is_one_line(self):
        self.make_classes()
        self.classes_config(rest="[plugins]\npath = extra")
        self.write("extra/broken.so", "not a shared object")
        done = self.fuserun("plugins", "--config", "t.ini")
        self.assertIn("adamw", done.stdout)
        self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertIn("broken.so", done.stderr)
        self.assertEqual(self.fuserun("plugins").stderr, "")


class Inspect(Case):
    def test_tensors(self):
        write_safetensors(self.path("a.safetensors"),
                          {"w": ("F32", [[1.0, 2.0, 3.0]]), "n": ("I64", [4]), "é\"": ("BF16", [[0], [0]])})
        listed = json.loads(self.fuserun("inspect", "a.safetensors", "--json").stdout)
        self.assertEqual(sorted(listed, key=lambda entry: entry["name"]),
                         [{"name": "n", "dtype": "I64", "shape": [1]}, {"name": "w", "dtype": "F32", "shape": [1, 3]},
                          {"name": "é\"", "dtype": "BF16", "shape": [2, 1]}])
        self.assertRegex(self.fuserun("inspect", "a.safetensors").stdout, r"(?m)^w +F32 +\(1, 3\)$")

    def test_refused(self):
        with open(self.path("b.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", 2 ** 60) + b"{}")
        for name, word in (("absent.safetensors", "absent"), ("b.safetensors", "b.safetensors"), ("m.pth", "m.pth")):
            done = self.fuserun("inspect", name, status=2)
            self.assertIn(word, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)


class Installed(Case):
    def test_the_installed_copy_runs_from_anywhere(self):
        build = os.environ.get("FUSERUN_BUILD")
        meson = shutil.which("meson")
        if build is None or meson is None:
            self.skipTest("FUSERUN_BUILD does not name the build folder, or meson is not on the PATH")
        environment = self.environment()
        environment["DESTDIR"] = self.path("destination")
        subprocess.run([meson, "install", "-C", build, "--no-rebuild", "--quiet"], check=True, env=environment,
                       stdout=subprocess.DEVNULL)
        os.rename(self.path("destination"), self.path("moved"))
        (program,) = [os.path.join(at, "fuserun") for at, _, files in os.walk(self.path("moved"))
                      if "fuserun" in files and os.path.basename(at) == "bin"]
        self.make_classes()
        self.classes_config()
        listed = json.loads(self.fuserun("plugins", "--json", program=program, cwd="/").stdout)
        self.assertTrue(all(entry["file"].startswith(self.path("moved")) for entry in listed), listed)
        self.fuserun(self.path("t.ini"), "run.output=" + self.path("out"), program=program, cwd="/")
        self.fuserun("t.ini")
        self.assertEqual(self.read("out/model.safetensors"), self.read("runs/t/model.safetensors"))


if __name__ == "__main__":
    unittest.main()
