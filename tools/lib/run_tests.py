"""Runs the tests of a build folder with `meson test` and counts single test functions.

    run_tests.py [--list] BUILD [NAME...]

meson counts programs; a person wants to know how many tests there were and which of them failed. So the output of each
program is read: cmocka's and unittest's lines give one result per function, a program with neither counts as one test.
A program that ends badly without naming a failed function (crash, time-out, sanitizer) counts as one failure, as does
one that ran nothing.
"""
import fnmatch
import json
import os
import re
import subprocess
import sys

# Test programs set their own `timeout:` for a quick machine; slow and shared ones get this many times as long.
PATIENCE = 4
PROJECT = "fuserun"
HEAD_LINES = 40
TAIL_LINES = 40

CMOCKA_LINE = re.compile(r"^\[\s*(RUN|OK|FAILED|SKIPPED)\s*\] (.+)$")
UNITTEST_RAN = re.compile(r"^Ran (\d+) tests? in ", re.M)
UNITTEST_BAD = re.compile(r"^(?:FAIL|ERROR): (\S+(?: \([^)]*\))?)", re.M)
UNITTEST_SKIP = re.compile(r"^(.+?) \.\.\. skipped (.+)$", re.M)
UNITTEST_SUM = re.compile(r"^(?:OK|FAILED)(?: \((.*)\))?$", re.M)


class Outcome:
    """What one test program did: names of single tests, by result."""

    def __init__(self, entry):
        self.name = entry["name"].replace(f"{PROJECT}:", "", 1).replace(" / ", "/")
        self.text = "\n".join(part for part in (entry.get("stdout"), entry.get("stderr")) if part)
        self.passed = 0
        self.failed = []
        self.skipped = []
        self.result = entry["result"]
        self.ending = f"{self.result.lower()}, exit status {entry.get('returncode')}"
        if self.result == "SKIP":
            last = self.text.strip().splitlines()
            self.skipped.append((self.name, last[-1] if last else "no reason given"))
            return
        seen = self.read_cmocka(entry.get("stdout") or "") or self.read_unittest()
        if self.result != "OK" and not self.failed:
            self.failed.append(f"({self.ending})")
        elif not seen and not self.failed:
            self.passed = 1
        elif not self.passed and not self.failed and not self.skipped:
            self.failed.append("(ran no test)")

    def read_cmocka(self, out):
        """Only between `Running` and `test(s) run`: the lists behind repeat the names."""
        seen = False
        running, said = None, []
        for line in out.splitlines():
            found = CMOCKA_LINE.match(line)
            kind, name = found.groups() if found else (None, line)
            if line.startswith("[==========]"):
                seen = True
                inside = "Running" in line
            elif kind == "RUN":
                running, said = name, []
            elif not seen or not inside or not running:
                continue
            elif kind is None:
                said.append(line.strip())
                continue
            else:
                if kind == "OK":
                    self.passed += 1
                elif kind == "FAILED":
                    self.failed.append(name)
                else:
                    self.skipped.append((f"{self.name}: {name}", " ".join(said) or "no reason given"))
                running = None
        if running and self.result != "OK":
            self.failed.append(f"{running} ({self.ending})")
        return seen

    def read_unittest(self):
        ran = UNITTEST_RAN.findall(self.text)
        if not ran:
            return False
        self.failed = list(dict.fromkeys(UNITTEST_BAD.findall(self.text)))  # once, however many subtests
        counts = {}
        for summary in UNITTEST_SUM.findall(self.text):
            for part in filter(None, summary.split(", ")):
                key, _, value = part.partition("=")
                counts[key] = counts.get(key, 0) + int(value)
        named = UNITTEST_SKIP.findall(self.text)
        self.skipped = [(f"{self.name}: {name}", reason.strip("'\"")) for name, reason in named]
        for _ in range(counts.get("skipped", 0) - len(named)):
            self.skipped.append((self.name, "a test function (run it with -v for the reason)"))
        self.passed = max(0, sum(map(int, ran)) - len(self.failed) - len(self.skipped))
        return True


def load_tests(build):
    with open(os.path.join(build, "meson-info", "intro-tests.json"), encoding="utf-8") as f:
        return json.load(f)


def suites_of(test):
    return [suite.partition(":")[2] or suite for suite in test["suite"]]


def label(test):
    return "/".join([suite for suite in suites_of(test) if suite != PROJECT][:1] + [test["name"]])


def fits(test, pattern):
    words = [test["name"], label(test)] + suites_of(test)
    return any(pattern in word or fnmatch.fnmatch(word, pattern) for word in words)


def run_meson(build, names):
    """Runs them, echoes one line per finished program, gives meson's own log entries."""
    log = os.path.join(build, "meson-logs", "testlog.json")
    if os.path.exists(log):
        os.remove(log)
    command = ["meson", "test", "-C", build, "--no-rebuild", "-t", str(PATIENCE), *names]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace") as meson:
        other = []
        for line in meson.stdout:
            if re.match(r"\s*\d+/\d+ ", line):
                print(line.replace(f" {PROJECT}:", " ", 1).rstrip(), flush=True)
            else:
                other.append(line)
    if not os.path.exists(log):
        sys.stdout.writelines(other[-20:])
        return []
    with open(log, encoding="utf-8", errors="replace") as f:
        return [json.loads(line) for line in f if line.strip()]


def show_failure(outcome):
    print(f"\n---- FAILED {outcome.name}: {', '.join(outcome.failed)}")
    lines = outcome.text.splitlines()
    left_out = len(lines) - HEAD_LINES - TAIL_LINES
    if left_out > 0:
        lines[HEAD_LINES:-TAIL_LINES] = [f"... {left_out} lines ..."]
    for line in lines:
        print("    " + line)


def main(arguments):
    only_list = arguments[:1] == ["--list"]
    build, *patterns = arguments[1:] if only_list else arguments
    tests = load_tests(build)
    if patterns:
        unknown = [p for p in patterns if not any(fits(test, p) for test in tests)]
        if unknown:
            print(f"tools/test: no test fits {', '.join(unknown)}; `tools/test --list` names them", file=sys.stderr)
            return 2
        tests = [test for test in tests if any(fits(test, p) for p in patterns)]
    if only_list:
        print("\n".join(sorted(label(test) for test in tests)))
        return 0
    entries = run_meson(build, sorted({test["name"] for test in tests}) if patterns else []) if tests else []
    outcomes = [Outcome(entry) for entry in entries]
    passed = sum(outcome.passed for outcome in outcomes)
    failed = sum(len(outcome.failed) for outcome in outcomes)
    skipped = [skip for outcome in outcomes for skip in outcome.skipped]
    for outcome in outcomes:
        if outcome.failed:
            show_failure(outcome)
    if len(outcomes) < len(tests):
        print(f"\n{len(tests) - len(outcomes)} of {len(tests)} test programs did not run")
        failed += len(tests) - len(outcomes)
    if skipped:
        print("\nskipped:")
        for name, reason in skipped:
            print(f"    {name}: {reason}")
    if failed:
        print(f"\nall output: {os.path.join(build, 'meson-logs', 'testlog.txt')}")
    print(f"{passed} passed, {failed} failed" + (f", {len(skipped)} skipped" if skipped else ""), flush=True)
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
