"""What a run tells of its memory: the timeline, its pages and pictures, the snapshot for PyTorch's viewer."""
import html.parser
import json
import os
import struct
import unittest
import xml.etree.ElementTree

from support import Case, write_safetensors

CATEGORIES = ["parameter", "gradient", "optimizer_state", "activation", "workspace", "data"]
PHASES = ["forward", "backward", "optimizer"]
MODES = ("fused", "per_param", "foreach")


class Unpickler:
    """The opcodes that the viewer knows (2023 to 2026), and no others; what it would choke on is an error."""

    def __init__(self, content):
        self.content, self.at, self.memo, self.stack, self.marks = content, 0, {}, [], []
        self.greatest_batch = 0

    def take(self, count):
        assert self.at + count <= len(self.content), "the file ends too early"
        self.at += count
        return self.content[self.at - count:self.at]

    def from_mark(self):
        mark = self.marks.pop()
        values = self.stack[mark:]
        del self.stack[mark:]
        return values

    def load(self):
        assert self.take(2) == b"\x80\x02", "protocol 2"
        while True:
            code = self.take(1)
            if code == b".":
                assert self.at == len(self.content) and len(self.stack) == 1 and not self.marks
                return self.stack[0]
            self.run(code)

    def run(self, code):
        stack = self.stack
        if code == b"}":
            stack.append({})
        elif code == b"]":
            stack.append([])
        elif code == b"(":
            self.marks.append(len(stack))
        elif code == b"u":
            values = self.from_mark()
            assert len(values) % 2 == 0
            for key, value in zip(values[::2], values[1::2]):
                assert isinstance(key, str) and key not in stack[-1]
                stack[-1][key] = value
        elif code == b"e":
            values = self.from_mark()
            self.greatest_batch = max(self.greatest_batch, len(values))
            stack[-1].extend(values)
        elif code == b"\x86":
            stack[-2:] = [tuple(stack[-2:])]
        elif code == b"\x89":
            stack.append(False)
        elif code == b"K":
            stack.append(self.take(1)[0])
        elif code == b"M":
            stack.append(struct.unpack("<H", self.take(2))[0])
        elif code == b"J":
            stack.append(struct.unpack("<i", self.take(4))[0])
        elif code == b"\x8a":
            count = self.take(1)[0]
            assert 0 < count <= 7, "beyond 2^53 the viewer makes a BigInt of it"
            stack.append(int.from_bytes(self.take(count), "little", signed=True))
        elif code == b"X":
            stack.append(self.take(struct.unpack("<I", self.take(4))[0]).decode("utf-8"))
        elif code == b"q":
            self.put(self.take(1)[0])
        elif code == b"r":
            self.put(struct.unpack("<I", self.take(4))[0])
        elif code == b"h":
            stack.append(self.memo[self.take(1)[0]])
        elif code == b"j":
            stack.append(self.memo[struct.unpack("<I", self.take(4))[0]])
        else:
            raise AssertionError("opcode %r" % code)

    def put(self, number):
        # Entries are changed when they are loaded: only strings and lists of frames may be shared.
        assert isinstance(self.stack[-1], (str, list))
        assert number not in self.memo
        self.memo[number] = self.stack[-1]


class Page(html.parser.HTMLParser):
    """Tags, attributes and texts of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.scripts, self.text, self.inside = [], [], [], "", None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.extend(attrs)
        if tag in ("script", "style"):
            self.inside = tag
            if tag == "script":
                self.scripts.append("")

    def handle_endtag(self, tag):
        if tag == self.inside:
            self.inside = None

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside is None:
            self.text += data


class MemoryCase(Case):
    def wide_config(self, name="w.ini", steps=3, batch_size=4, rest="", run=""):
        """A net of 5.4 MB: its weights, not its activations, are what takes memory."""
        if not os.path.exists(self.path("wide.safetensors")):
            self.make_classes("wide.safetensors", count=12, width=256, classes=10)
        return self.write(name, """[run]
name = w
steps = %d
threads = 1
progress = off
%s
[model]
plugin = mlp
sizes = 256, 1024, 1024, 10
[data]
plugin = tensors
file = wide.safetensors
batch_size = %d
[optimizer]
plugin = adam
lr = 1e-3
%s
""" % (steps, run, batch_size, rest))

    WIDE_WEIGHTS = [256 * 1024, 1024 * 1024, 1024 * 10]
    WIDE_BIASES = [1024, 1024, 10]

    def memory(self, output="runs/w"):
        return json.loads(self.read(output, "memory.json"))

    def live(self, memory):
        """By pass: what was alive at each operation, by category, with all that is persistent."""
        timeline = memory["timeline"]
        return [[[timeline["persistent"][c] + of[c][i] for c in range(6)] for i in range(len(p["phase"]))]
                for p, of in ((p, p["bytes"]) for p in timeline["passes"])]


class Timeline(MemoryCase):
    def test_it_agrees_with_the_peak_and_the_plan(self):
        config = self.wide_config(rest="[eval]\nevery = 1 epoch\nbatch_size = 5")
        plan = json.loads(self.fuserun("check", config, "--json").stdout)
        self.fuserun(config)
        memory = self.memory()
        timeline = memory["timeline"]
        self.assertEqual(timeline["categories"], CATEGORIES)
        self.assertEqual(timeline["phases"], PHASES)
        live = self.live(memory)
        shown = {run["pass"] for run in timeline["runs"]}
        sums = [sum(at) for p in sorted(shown) for at in live[p]]
        self.assertEqual(max(sums), memory["peak_bytes"])
        self.assertEqual(plan["peak_bytes"], memory["peak_bytes"])
        self.assertEqual(plan["memory"], memory["memory"])
        best = next((p, i) for p in sorted(shown) for i, at in enumerate(live[p]) if sum(at) == memory["peak_bytes"])
        self.assertEqual(dict(zip(CATEGORIES, live[best[0]][best[1]])), memory["memory"])
        self.assertEqual(PHASES[timeline["passes"][best[0]]["phase"][best[1]]], memory["peak_phase"])

    def test_whole_updates_and_every_other_pass_once(self):
        self.fuserun(self.wide_config(steps=20, batch_size=5, rest="[eval]\nbatch_size = 7"))
        timeline = self.memory()["timeline"]
        runs = [(timeline["passes"][r["pass"]]["purpose"], timeline["passes"][r["pass"]]["batch_size"], r["update"])
                for r in timeline["runs"]]
        # 12 samples: updates of 5, 5, 2; evaluations of 7, 5
        self.assertEqual(runs, [("training", 5, 1), ("training", 5, 2), ("training", 2, 3), ("evaluation", 7, 3),
                                ("evaluation", 5, 3)])
        before = 0
        for run in timeline["runs"]:
            self.assertEqual(len(run["end_us"]), len(timeline["passes"][run["pass"]]["phase"]))
            for time in [run["begin_us"], *run["end_us"]]:
                self.assertGreaterEqual(time, before)
                before = time

    def test_names_of_operations_and_layers(self):
        self.fuserun(self.wide_config(rest="mode = per_param"))
        timeline = self.memory()["timeline"]
        training = timeline["passes"][0]
        steps = [(PHASES[phase], timeline["operations"][op], timeline["layers"][layer])
                 for phase, op, layer in zip(training["phase"], training["operation"], training["layer"])]
        self.assertEqual(steps[0], ("forward", "load", "batch"))
        self.assertIn(("forward", "linear", "layers.1"), steps)
        self.assertIn(("forward", "relu", "layers.1"), steps)
        self.assertIn(("forward", "cross_entropy", "loss"), steps)
        self.assertIn(("backward", "linear_dw", "layers.2"), steps)
        self.assertIn(("optimizer", "update", "layers.0"), steps)
        names = [buffer["name"] for buffer in self.memory()["buffers"]]
        self.assertIn("layers.1.weight", names)
        self.assertIn("optimizer/layers.1.weight/exp_avg_sq", names)
        self.assertIn("gradient of layers.1.weight", names)
        self.assertIn("output of linear, layers.0", names)

    def test_off_means_no_files(self):
        self.fuserun(self.wide_config(rest="[memory]\ntimeline = no"))
        self.assertEqual([name for name in os.listdir(self.path("runs/w")) if name.startswith("memory")], [])

    def test_a_long_run_is_recorded_at_its_beginning(self):
        self.make_classes(count=50)
        self.fuserun(self.classes_config(steps=300))
        self.assertLess(len(self.read("runs/t/memory.json")), 30000)


class Row35PeakOfEachMode(MemoryCase):
    """The peak and its phase against parameters, gradients, state and the rest; no gradient is kept in fused mode."""

    def test_row_35_peak_and_phase_where_weights_dominate(self):
        parameters = 4 * sum(self.WIDE_WEIGHTS + self.WIDE_BIASES)
        batch, inputs, widths = 4, 256, [1024, 1024, 10]
        data = 12 * (256 * 4 + 8) + 12 * 8      # the samples and labels, and their order
        batch_data = batch * (inputs * 4 + 8)
        self.fuserun(self.wide_config())        # also the file
        for mode in MODES:
            with self.subTest(mode=mode):
                self.fuserun(self.wide_config(rest="mode = " + mode, run="output = runs/" + mode))
                memory = self.memory("runs/" + mode)
                live = self.live(memory)[0]
                phases = [PHASES[p] for p in memory["timeline"]["passes"][0]["phase"]]
                gradients = [at[CATEGORIES.index("gradient")] for at in live]
                self.assertEqual(memory["memory"]["parameter"], parameters)
                self.assertEqual(memory["memory"]["optimizer_state"], 2 * parameters)
                last = len(phases) - 1 - phases[::-1].index("backward")
                forward_gradients = {g for g, phase in zip(gradients, phases) if phase == "forward"}
                self.assertEqual(forward_gradients, {0}, "none is alive during forward")
                rest = memory["peak_bytes"] - 3 * parameters - memory["memory"]["gradient"]
                self.assertLessEqual(memory["memory"]["data"], data + batch_data)
                self.assertLessEqual(rest, data + batch_data + 2 * batch * 4 * sum(widths) +
                                     memory["memory"]["workspace"])
                if mode == "fused":
                    self.assertNotIn("optimizer", phases)
                    # one panel a thread of a weight, one bias
                    self.assertLess(max(gradients), 4 * max(self.WIDE_WEIGHTS) / 2)
                    self.assertEqual(memory["peak_phase"], "backward")
                    self.assertLess(memory["peak_bytes"], 3.5 * parameters)
                else:
                    self.assertEqual(gradients[last], parameters, "all are alive at the end of backward")
                    self.assertEqual(memory["memory"]["gradient"], parameters)
                    self.assertGreaterEqual(memory["peak_bytes"], 4 * parameters)
                    self.assertEqual(memory["peak_phase"], "backward")
                    after = [g for g, phase in zip(gradients, phases) if phase == "optimizer"]
                    self.assertEqual(after[0], parameters)
                    self.assertEqual(len(after), 1 if mode == "foreach" else 6)
                    if mode == "per_param":
                        self.assertEqual(after, sorted(after, reverse=True), "each goes when it was applied")
                        self.assertLess(after[-1], parameters)

    def test_row_35_peak_and_phase_where_activations_dominate(self):
        """A narrow net and a big batch: the mode does not matter, and the peak is not at the optimizer."""
        self.make_classes(count=600)
        peaks = {}
        for mode in MODES:
            self.fuserun(self.classes_config(steps=2, batch_size=512, run="output = runs/" + mode,
                                             options="lr = 0.01\nmode = " + mode))
            memory = self.memory("runs/" + mode)
            peaks[mode] = memory["peak_bytes"]
            self.assertNotEqual(memory["peak_phase"], "optimizer")
            self.assertGreater(memory["memory"]["activation"], 4 * memory["memory"]["gradient"])
        self.assertLess(max(peaks.values()) - min(peaks.values()), 4 * 4 * (12 * 24 + 24 * 4))


class TutorialConfigs(MemoryCase):
    """The shipped configs of the tutorial's work, as planned; running them takes 5 GB."""

    def test_plans(self):
        plans = {}
        for kind in ("foreach", "per_param", "fused", "fused_recompute"):
            config = os.path.join(os.environ["FUSERUN_SOURCE"], "configs", "vit_l16_%s.ini" % kind)
            plans[kind] = json.loads(self.fuserun("check", config, "run.threads=1", "--json").stdout)
        parameters = 4 * plans["fused"]["parameters"]
        self.assertEqual(plans["fused"]["parameters"], 304326632)
        for kind, most in (("foreach", 4.95e9), ("per_param", 4.95e9), ("fused", 3.90e9), ("fused_recompute", 3.74e9)):
            self.assertLess(plans[kind]["peak_bytes"], most)
            self.assertEqual(plans[kind]["memory"]["parameter"], parameters)
            self.assertEqual(plans[kind]["memory"]["optimizer_state"], 2 * parameters)
        self.assertEqual(plans["foreach"]["peak_bytes"], plans["per_param"]["peak_bytes"])
        self.assertGreater(plans["foreach"]["memory"]["gradient"], 0.99 * parameters)
        self.assertLess(plans["fused"]["memory"]["gradient"], 0.01 * parameters)
        self.assertNotEqual(plans["fused"]["peak_phase"], "optimizer")
        self.assertLess(plans["fused_recompute"]["memory"]["activation"], plans["fused"]["memory"]["activation"] / 4)


class Snapshot(MemoryCase):
    """Rows 36 and 37: what PyTorch's viewer needs, and a record that starts early and ends in time."""

    def replay(self, path):
        unpickler = Unpickler(self.read(path))
        snapshot = unpickler.load()
        self.assertLessEqual(unpickler.greatest_batch, 1000)
        (segment,) = snapshot["segments"]
        (trace,) = snapshot["device_traces"]
        first = segment["address"]
        end = first + segment["total_size"]
        self.assertEqual((segment["device"], segment["stream"], segment["segment_pool_id"]), (0, 0, (0, 0)))
        self.assertEqual((trace[0]["action"], trace[0]["addr"], trace[0]["size"]),
                         ("segment_alloc", first, segment["total_size"]))
        live, peak, categories, time = {}, 0, set(), 0
        at = 1
        while at < len(trace):
            event = trace[at]
            self.assertTrue({"action", "addr", "size", "stream", "frames", "time_us"} <= set(event))
            self.assertGreaterEqual(event["time_us"], time)
            time = event["time_us"]
            self.assertLess(event["addr"] + event["size"], 2 ** 53)
            for frame in event["frames"]:
                self.assertEqual(set(frame), {"filename", "line", "name"})
                self.assertNotIn("_start", frame["name"])
            if event["action"] == "alloc":
                self.assertGreater(event["size"], 0)
                self.assertTrue(first <= event["addr"] and event["addr"] + event["size"] <= end)
                for other, size in live.items():
                    self.assertTrue(other + size <= event["addr"] or event["addr"] + event["size"] <= other,
                                    "two live blocks overlap")
                live[event["addr"]] = event["size"]
                categories.add(event["category"])
                peak = max(peak, sum(live.values()))
                at += 1
            else:
                self.assertEqual(event["action"], "free_requested")
                done = trace[at + 1]
                self.assertEqual((done["action"], done["addr"], done["size"]),
                                 ("free_completed", event["addr"], event["size"]))
                self.assertEqual(live.pop(event["addr"]), event["size"])
                at += 2
        self.assertIn("unknown", categories, "without it the viewer fails")
        # The blocks tile the segment, and the live ones are those that the events left.
        address = first
        for block, after in zip(segment["blocks"], segment["blocks"][1:] + [None]):
            self.assertEqual(block["address"], address)
            address += block["size"]
            if after is not None and block["state"] == "inactive":
                self.assertNotEqual(after["state"], "inactive", "neighbours are one block")
        self.assertEqual(address, end)
        active = {b["address"]: b["size"] for b in segment["blocks"] if b["state"] == "active_allocated"}
        self.assertEqual(active, live)
        self.assertEqual(segment["allocated_size"], sum(live.values()))
        self.assertEqual(segment["active_size"], sum(live.values()))
        return snapshot, peak

    def test_row_36_37_events_replay_in_the_viewers_opcodes(self):
        for mode in MODES:
            with self.subTest(mode=mode):
                self.fuserun(self.wide_config(rest="mode = %s\n[memory]\nsnapshot = yes" % mode,
                                              run="output = runs/" + mode))
                snapshot, peak = self.replay("runs/%s/memory.pickle" % mode)
                memory = self.memory("runs/" + mode)
                self.assertEqual(peak - 512, memory["peak_bytes"])  # the segment's head is nobody's
                settings = snapshot["allocator_settings"]
                self.assertEqual(settings["dropped_events"], 0)
                self.assertEqual(settings["recorded_events"], len(snapshot["device_traces"][0]))
                # From before the first update: parameters and state are events too.
                trace = snapshot["device_traces"][0]
                first_use = next(i for i, e in enumerate(trace) if e["action"] == "free_requested")
                before = [e for e in trace[:first_use] if e["action"] == "alloc"]
                of = {c: sum(e["size"] for e in before if e["category"] == c) for c in CATEGORIES}
                self.assertEqual(of["parameter"], memory["memory"]["parameter"])
                self.assertEqual(of["optimizer_state"], memory["memory"]["optimizer_state"])
                self.assertIn("layers.0.weight", [e.get("user_metadata") for e in before])
                self.assertIn("fuse_program_run", {f["name"] for e in trace for f in e["frames"]})

    def test_row_37_what_is_left_out_is_counted(self):
        self.make_classes(count=32)
        self.fuserun(self.classes_config(steps=40, rest="[memory]\nsnapshot = yes\ntimeline = no"))
        snapshot, _ = self.replay("runs/t/memory.pickle")
        settings = snapshot["allocator_settings"]
        trace = snapshot["device_traces"][0]
        persistent = next(i for i, e in enumerate(trace) if "forward" in e.get("user_metadata", ""))
        self.assertEqual(settings["recorded_passes"], 3)
        self.assertEqual(settings["recorded_events"], len(trace))
        each = (len(trace) - persistent) // 3
        self.assertEqual(settings["dropped_events"], 37 * each)
        self.assertNotIn("memory.json", os.listdir(self.path("runs/t")))


class Pages(MemoryCase):
    def assert_alone(self, page):
        """Nothing of the page comes from elsewhere."""
        for name, value in page.attributes:
            if name in ("src", "href", "action", "data", "poster", "srcset"):
                self.assertTrue(value == "data:,", value)
            if name not in ("xmlns", "content"):
                self.assertNotIn("//", value or "")
        self.assertEqual(len(page.scripts), 2)
        self.assertNotIn("import", page.scripts[1])
        self.assertNotIn("fetch(", page.scripts[1])

    def test_the_page_of_a_run(self):
        name = "a<b>&'c' </script><i>"
        self.fuserun(self.wide_config(), "run.name=" + name, "run.output=runs/w")
        text = self.read("runs/w/memory.html").decode("utf-8")
        page = Page(text)
        self.assert_alone(page)
        self.assertEqual(json.loads(page.scripts[0]), self.memory())
        self.assertIn(name, page.text)
        memory = self.memory()
        self.assertIn("{:,} bytes".format(memory["peak_bytes"]), page.text)
        self.assertIn("At the peak", page.text)
        self.assertIn("in the %s phase of update 1" % memory["peak_phase"], page.text)
        self.assertIn("Mode fused", page.text)
        self.assertIn("optimizer/layers.1.weight/exp_avg", page.text)

    def test_report_makes_the_same_page_again(self):
        self.fuserun(self.wide_config())
        before = self.read("runs/w/memory.html")
        os.remove(self.path("runs/w/memory.html"))
        self.assertEqual(self.fuserun("report", "runs/w/").stdout, "runs/w/memory.html\n")
        self.assertEqual(self.read("runs/w/memory.html"), before)
        os.remove(self.path("runs/w/memory.html"))
        told = json.loads(self.fuserun("report", "--svg", "p.svg", "runs/w", "--json").stdout)
        self.assertEqual(told, {"html": "runs/w/memory.html", "svg": "p.svg"})
        self.assertEqual(self.read("runs/w/memory.html"), before)

    def test_the_picture(self):
        self.fuserun(self.wide_config(rest="mode = foreach"))
        printed = self.fuserun("report", "runs/w", "--svg").stdout
        root = xml.etree.ElementTree.fromstring(printed)
        texts = ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]
        for wanted in ("forward", "backward", "update 1", "update 3", "Memory of w, foreach"):
            self.assertIn(wanted, texts)
        self.assertTrue(any(text.startswith("peak ") for text in texts))
        self.assertNotIn("{http://www.w3.org/2000/svg}script", [element.tag for element in root.iter()])
        self.fuserun("report", "runs/w", "--svg=q.svg")
        self.assertEqual(self.read("q.svg").decode("utf-8"), printed)
        areas = [e for e in root.iter("{http://www.w3.org/2000/svg}path") if "area" in e.get("class")]
        self.assertEqual(len(areas), 6)
        # The topmost line of the picture is the peak: 4 % below the frame's top.
        tops = [float(v.split("H")[0]) for e in areas for v in e.get("d").split("V")[1:-1]]
        frame_top, frame_bottom = 66, 460 - 88
        self.assertAlmostEqual(min(tops), frame_bottom - (frame_bottom - frame_top) / 1.04, delta=0.11)

    def test_a_picture_of_many_operations_shows_each_peak(self):
        """More operations than pixels: one that needs much is seen all the same."""
        self.fuserun(self.wide_config(steps=1))
        memory = self.memory()
        count, spike, height = 9001, 4321, 10 ** 9
        timeline = memory["timeline"]
        timeline["persistent"] = [0] * 6
        timeline["passes"] = [{"purpose": "training", "batch_size": 1, "operation": [0] * count, "layer": [0] * count,
                               "phase": [0] * count, "bytes": [[100] * count for _ in range(6)]}]
        timeline["passes"][0]["bytes"][1][spike] = height
        timeline["runs"] = [{"pass": 0, "update": 1, "begin_us": 0, "end_us": list(range(1, count + 1))}]
        memory.update(peak_bytes=height + 500, buffers=[])
        with open(self.path("runs/w/memory.json"), "w", encoding="utf-8") as file:
            json.dump(memory, file)
        for command in ("report", "compare"):
            picture = self.fuserun(command, "runs/w", "--svg").stdout
            paths = [e for e in xml.etree.ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}path")
                     if e.get("class") in ("area c1", "line s0")]
            tops = [float(v.split("H")[0]) for e in paths for v in e.get("d").split("V")[1:] if "H" in v]
            top, bottom = {"report": (66, 372), "compare": (44, 384)}[command]
            self.assertAlmostEqual(min(tops), bottom - (bottom - top) / 1.04, delta=0.11)
        page = self.fuserun("report", "runs/w").stdout
        self.assertLess(len(self.read(page.strip())), 400000)

    def test_what_cannot_be_reported(self):
        self.fuserun("report", status=2)
        self.assertIn("nowhere has no memory.json", self.fuserun("report", "nowhere", status=2).stderr)
        self.fuserun(self.wide_config())
        original = self.memory()

        def refused(change, expected):
            damaged = json.loads(json.dumps(original))
            change(damaged)
            with open(self.path("runs/w/memory.json"), "w", encoding="utf-8") as file:
                json.dump(damaged, file)
            told = self.fuserun("report", "runs/w", status=2).stderr
            self.assertEqual(told.count("\n"), 1, told)
            self.assertIn(expected, told)

        refused(lambda m: m.pop("timeline"), "has no timeline")
        refused(lambda m: m.pop("run"), "'run'")
        refused(lambda m: m["timeline"].update(passes=[]), "'timeline'")
        refused(lambda m: m["timeline"]["passes"][0]["bytes"].pop(), "timeline.passes")
        refused(lambda m: m["timeline"]["passes"][0]["bytes"][1].pop(), "timeline.passes.bytes")
        refused(lambda m: m["timeline"]["passes"][0]["phase"].__setitem__(0, 7), "timeline.passes.phase")
        refused(lambda m: m["timeline"]["passes"][0]["layer"].__setitem__(0, 99), "timeline.passes")
        refused(lambda m: m["timeline"]["runs"][0].update({"pass": 9}), "timeline.runs")
        refused(lambda m: m["timeline"]["runs"][0]["end_us"].__setitem__(2, -5), "timeline.runs.end_us")
        refused(lambda m: m["timeline"]["runs"][0].update(begin_us=-2**63), "timeline.runs")
        refused(lambda m: m["timeline"]["passes"][0]["bytes"][2].__setitem__(0, 2**63 - 1)
                or m["timeline"]["passes"][0]["bytes"][1].__setitem__(0, 2**63 - 1)
                or m["timeline"]["passes"][0]["bytes"][0].__setitem__(0, 2**63 - 1), "timeline.passes.bytes")
        refused(lambda m: m.update(peak_bytes=5), "peak_bytes")
        refused(lambda m: m["buffers"][0].update(category="soul"), "buffers")
        refused(lambda m: m["memory"].update(data=-1), "memory")
        self.write("runs/w/memory.json", json.dumps(original)[:-40])
        self.assertIn("memory.json:", self.fuserun("report", "runs/w", status=2).stderr)
        self.write("runs/w/memory.json", json.dumps(original))
        whole = self.read("runs/w/metrics.jsonl").decode()
        for damaged in (whole.replace('{"step":2,', '{"step":2\0,'), whole.replace("\n", "\n\0", 1)):
            self.write("runs/w/metrics.jsonl", damaged)
            self.assertIn("metrics.jsonl:2:", self.fuserun("report", "runs/w", status=2).stderr)
        self.write("runs/w/metrics.jsonl", whole)
        with open(self.path("runs/w/metrics.jsonl"), "a", encoding="utf-8") as file:
            file.write("{\"step\":\n")
        self.assertIn("metrics.jsonl:4:", self.fuserun("report", "runs/w", status=2).stderr)


class Compare(MemoryCase):
    def runs(self):
        for mode in MODES:
            self.fuserun(self.wide_config(rest="mode = " + mode, run="output = runs/" + mode))
        return ["runs/" + mode for mode in MODES]

    def test_table_json_and_page(self):
        folders = self.runs()
        done = self.fuserun("compare", *folders)
        lines = done.stdout.splitlines()
        self.assertEqual(lines[0].split()[:3], ["run", "mode", "peak"])
        # One name for all in the configs: the folders tell them apart.
        self.assertEqual([line.split()[0] for line in lines[1:4]], list(MODES))
        self.assertEqual(lines[-1], "page in fuserun-compare.html")
        told = json.loads(self.fuserun("compare", *folders, "--json", "--html", "c.html").stdout)
        self.assertEqual(told["html"], "c.html")
        for mode, run in zip(MODES, told["runs"]):
            memory, updates = self.memory("runs/" + mode), self.updates("runs/" + mode)
            self.assertEqual((run["run"], run["mode"]), (mode, mode))
            self.assertEqual(run["peak_bytes"], memory["peak_bytes"])
            self.assertEqual(run["peak_phase"], memory["peak_phase"])
            self.assertEqual(run["memory"], memory["memory"])
            self.assertEqual(run["rss_growth_bytes"], memory["rss_peak_bytes"] - memory["rss_base_bytes"])
            self.assertEqual(run["step_s"], sorted(u["step_s"] for u in updates)[1])
            self.assertEqual(run["loss"], updates[-1]["loss"])
            self.assertEqual(run["updates"], 3)
        self.assertEqual(self.read("c.html"), self.read("fuserun-compare.html"))
        page = Page(self.read("c.html").decode("utf-8"))
        Pages.assert_alone(self, page)
        self.assertIn("3 runs compared", page.text)
        self.assertIn("All curves are the same", page.text)
        data = json.loads(page.scripts[0])["runs"]
        self.assertEqual([run["name"] for run in data], list(MODES))
        for mode, run in zip(MODES, data):
            self.assertEqual(max(max(p["total"]) for p in run["passes"]), self.memory("runs/" + mode)["peak_bytes"])
            self.assertEqual([slot["update"] for slot in run["slots"]], [1, 2, 3])

    def test_runs_of_different_kinds(self):
        self.make_classes(count=50)
        self.fuserun(self.classes_config(steps=1, run="output = runs/one"))
        self.fuserun(self.classes_config(steps=30, run="output = runs/many"), "run.name=other")
        told = json.loads(self.fuserun("compare", "runs/one", "runs/many", "--json").stdout)
        self.assertEqual([run["updates"] for run in told["runs"]], [1, 30])
        self.fuserun("compare", "runs/one")
        svg = self.fuserun("compare", "runs/one", "runs/many", "--svg").stdout
        texts = ["".join(e.itertext()) for e in
                 xml.etree.ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
        self.assertIn("update 3", texts)
        self.assertTrue(any("other (fused): peak" in text for text in texts))
        self.fuserun("compare", "runs/one", "runs/many", "--svg", "x.svg")
        self.assertEqual(self.read("x.svg").decode(), svg)

    def test_what_cannot_be_compared(self):
        self.fuserun("compare", status=2)
        self.fuserun(self.wide_config())
        os.makedirs(self.path("empty"))
        told = self.fuserun("compare", "runs/w", "empty", "nowhere", status=2).stderr
        self.assertEqual(told.count("\n"), 2)
        self.assertIn("empty has no memory.json", told)
        self.assertIn("nowhere has no memory.json", told)
        self.assertNotIn("fuserun-compare.html", os.listdir(self.folder))
        self.assertIn("no/such", self.fuserun("compare", "runs/w", "--html", "no/such/place.html", status=1).stderr)

    def test_long_metrics_are_thinned_out(self):
        self.fuserun(self.wide_config())
        with open(self.path("runs/w/metrics.jsonl"), "w", encoding="utf-8") as file:
            for step in range(1, 20001):
                file.write(json.dumps({"step": step, "epoch": 1.0, "loss": 1 / step, "lr": {}, "step_s": 0.25,
                                       "samples_per_s": 1.0, "peak_bytes": 1}) + "\n")
        told = json.loads(self.fuserun("compare", "runs/w", "--json").stdout)["runs"][0]
        self.assertEqual((told["updates"], told["loss"], told["step_s"]), (20000, 1 / 20000, 0.25))
        self.assertLess(len(self.read("fuserun-compare.html")), 400000)


if __name__ == "__main__":
    unittest.main()
