"""Every call of the driver, of cuBLAS and of NVRTC fails once, memory ends at every allocation, kernels fail, the device is
lost: one clear error each time, exit status 2 for what `check` finds and 1 later, what was written before stays, and
nothing leaks."""
import concurrent.futures
import os
import re
import shutil
import subprocess
import unittest

from device_case import EMULATION, SMALL_VIT, DeviceCase, config_of  # finds the next one
from support import FUSERUN

OUT_OF_MEMORY, NO_DEVICE, ILLEGAL_ADDRESS, LAUNCH_FAILED = 2, 100, 700, 719
WORKERS = 2


def errors_of(done):
    return [line for line in done.stderr.splitlines() if ": warning: " not in line and not line.startswith("warning: ")]


class Failures(DeviceCase):
    def setUp(self):
        super().setUp()
        self.config = self.net(rest="lr = 0.01", steps=2)

    def check_failed(self, done, report, folder, at):
        """One line, about the device, and no half of anything."""
        self.assertIn(done.returncode, (1, 2), (at, done.stderr))
        self.assertEqual(len(errors_of(done)), 1, (at, done.stderr))
        self.assertIsNotNone(report, at)
        self.assertEqual(report["complaints"], 0, (at, done.stderr))
        output = os.path.join(folder, "runs", "t")
        self.assertFalse(os.path.exists(os.path.join(output, "model.safetensors")), at)
        if done.returncode == 2:
            self.assertFalse(os.path.exists(output), (at, done.stderr))
        self.assertEqual([name for name in os.listdir(output) if ".tmp" in name] if os.path.isdir(output) else [], [], at)

    def one(self, at, fail, may_survive=False, releases_all=True):
        """One run that fails so, in a folder of its own."""
        folder = self.path("case-%d" % at)
        os.mkdir(folder)
        shutil.copy(self.config, os.path.join(folder, "t.ini"))
        done, report = self.run_on_device("t.ini", "run.device=cuda", folder=folder, fail=fail)
        if may_survive and done.returncode == 0:
            self.assertEqual(self.read(folder, "runs/t/model.safetensors"), self.expected, fail)
        else:
            self.check_failed(done, report, folder, (fail, done.stderr))
            if releases_all:
                self.assertEqual(report["leaks"], {}, (fail, done.stderr))
        shutil.rmtree(folder)
        return done, report

    def each(self, cases):
        """cases: (fail, may_survive, releases_all), a few at a time."""
        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            return list(pool.map(lambda pair: self.one(pair[0], *pair[1]), enumerate(cases)))

    def calls(self):
        done, report = self.run_on_device("t.ini", "run.device=cuda")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.expected = self.model()
        return report

    def test_every_call_fails_once(self):
        entries = self.calls()["entries"]
        cases = []
        for entry, count in entries.items():
            # What gives back cannot be made good: that it failed is told or not, but the rest is given back.
            gives_back = any(word in entry for word in ("Free", "Destroy", "Release", "Unload"))
            # Words for another error, and what only informs, may do without.
            informs = entry in ("cuGetErrorName", "cuGetErrorString", "cuDeviceGetName", "cuDriverGetVersion",
                                "cublasGetVersion_v2", "cuMemGetInfo_v2", "nvrtcVersion")
            for n in sorted(set(list(range(1, min(count, 12) + 1)) + [count])):
                closes = entry == "cuStreamSynchronize" and n > count - 4  # all is written
                recompiles = entry == "cuModuleLoadData"  # an image kept on disk that does not load is made again
                cases.append(("%s:%d:999" % (entry, n), gives_back or informs or closes or recompiles, not gives_back))
        results = self.each(cases)
        self.assertGreater(sum(done.returncode != 0 for done, _ in results), 50)
        for done, report in results:
            self.assertEqual(report["injected"], 1)

    def test_memory_ends_at_every_allocation(self):
        count = self.calls()["entries"]["cuMemAlloc_v2"]
        for done, _ in self.each([("cuMemAlloc_v2:%d:%d" % (n, OUT_OF_MEMORY), False, True) for n in range(1, count + 1)]):
            self.assertIn("memory", done.stderr)

    def test_a_small_device(self):
        for size in (1, 1 << 16, 1 << 20):
            done, report = self.run_on_device("t.ini", "run.device=cuda", memory=size)
            if done.returncode != 0:
                self.check_failed(done, report, self.folder, size)
                self.assertIn("memory", done.stderr)
                self.assertEqual(report["leaks"], {})
            shutil.rmtree(self.path("runs"), ignore_errors=True)

    def test_kernels_fail_and_the_device_is_lost(self):
        report = self.calls()
        launches = report["launches"] - sum(count for name, count in report["kernels"].items() if "Gemm" in name)
        cases = [("launch:%d:%d" % (n, code), False, True) for code in (ILLEGAL_ADDRESS, LAUNCH_FAILED)
                 for n in sorted({1, 2, launches // 3, launches // 2, launches - 1, launches})]
        for done, _ in self.each(cases):
            self.assertRegex(done.stderr, "CUDA_ERROR_(ILLEGAL_ADDRESS|LAUNCH_FAILED)")

    def test_no_device(self):
        for settings in ({"devices": 0}, {"fail": "cuInit:1:%d" % NO_DEVICE}):
            for arguments in (["t.ini"], ["check", "t.ini"]):
                done, _ = self.run_on_device(*arguments, "run.device=cuda", **settings)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertRegex(done.stderr, r"^command line: run\.device: .+\n$")
            done, report = self.run_on_device("t.ini", "run.device=auto", **settings)
            self.assertEqual((done.returncode, report["launches"]), (0, 0), done.stderr)
            self.assertLessEqual(report["calls"], 4)  # cuInit, cuDeviceGetCount, and the error's name and words

    def test_auto_without_a_driver_looks_for_nothing_else(self):
        """cuBLAS and NVRTC are large, and may be here without a driver."""
        environment = self.environment() | {"LD_DEBUG": "libs"}
        done = subprocess.run([FUSERUN, "check", "t.ini", "run.device=auto"], cwd=self.folder, capture_output=True,
                              text=True, check=False, env=environment)
        self.assertEqual(done.returncode, 0)
        looked_for = set(re.findall(r"find library=(lib(?:cu|nvrtc)\S+)", done.stderr))
        if any("libcuda.so.1" in line and "calling init" in line for line in done.stderr.splitlines()):
            self.skipTest("there is a driver here")
        self.assertEqual(looked_for, {"libcuda.so.1"})

    def test_libraries_that_the_driver_can_run(self):
        """Of a newer CUDA than the driver's they load, and fail later: a driver for 12 takes those of 12."""
        for library in ("cuda.so.1", "cublas.so.13", "cublas.so.12", "nvrtc.so.13", "nvrtc.so.12"):
            os.symlink(EMULATION, self.path("lib" + library))
        for version, major in ((13000, 13), (12040, 12), (11080, None)):
            environment = self.device_environment(driver=version)
            environment |= {"LD_DEBUG": "libs", "FUSERUN_CUDA_EMULATION": "",
                            "LD_LIBRARY_PATH": self.path(".") + ":" + environment.get("LD_LIBRARY_PATH", "")}
            done = subprocess.run([FUSERUN, "t.ini", "run.device=cuda"], cwd=self.folder, capture_output=True, text=True,
                                  check=False, env=environment)
            looked_for = set(re.findall(r"find library=(lib(?:cublas|nvrtc)\S+)", done.stderr))
            said = "".join(line for line in done.stderr.splitlines(True) if "run.device: " in line)
            if major is None:
                self.assertEqual((done.returncode, looked_for), (2, set()), done.stderr[-500:])
                self.assertIn("its driver is for CUDA 11.8, too old for libcublas.so.12", said)
                done = subprocess.run([FUSERUN, "t.ini", "run.device=auto"], cwd=self.folder, capture_output=True,
                                      text=True, check=False, env=environment | {"LD_DEBUG": ""})
                self.assertEqual(done.returncode, 0)
                self.assertIn("run.device: auto takes the CPU though there is a CUDA device: CUDA cannot be used here: its "
                              "driver is for CUDA 11.8", done.stderr)
            else:
                self.assertEqual((done.returncode, said), (0, ""))
                self.assertEqual(looked_for, {f"libcublas.so.{major}", f"libnvrtc.so.{major}"})

    def test_version_touches_no_device(self):
        done, report = self.run_on_device("--version")
        self.assertEqual(done.stdout.splitlines()[2], "CUDA: emulated by " + EMULATION)
        self.assertIsNone(report)

    def test_a_full_device(self):
        """auto takes the CPU and says so; a plan that does not fit is refused before anything is written."""
        for fail in ("cuDevicePrimaryCtxRetain:1:2", "cuMemAlloc_v2:1:2", "cublasCreate_v2:1:3"):
            done, _ = self.run_on_device("t.ini", "run.device=auto", fail=fail)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("run.device: auto takes the CPU instead of the CUDA device", done.stderr, fail)
            done, _ = self.run_on_device("t.ini", "run.device=cuda", fail=fail)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)
        shutil.rmtree(self.path("runs"))
        wide = "model.sizes=48,40000,10"
        for command, status in ((["check"], 0), ([], 2)):
            done, _ = self.run_on_device(*command, "t.ini", wide, "run.device=cuda", memory=40000000)
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertRegex(done.stderr, r"memory\.limit: the plan's peak is .*, and the device has .* left of .*; what makes")
            done, _ = self.run_on_device(*command, "t.ini", "run.device=cuda", "memory.limit=1KiB")
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertIn("command line: ", done.stderr)
            self.assertIn("and the limit leaves 1.0 KiB", done.stderr)
        self.assertFalse(os.path.exists(self.path("runs")))
        done, _ = self.run_on_device("t.ini", wide, "run.device=cuda", "memory.limit=none", memory=40000000)
        self.assertEqual(done.returncode, 1, done.stderr)

    def test_which_device(self):
        done, report = self.run_on_device("t.ini", "run.device=cuda:1", devices=2)
        self.assertEqual((done.returncode, report["leaks"]), (0, {}), done.stderr)
        done, report = self.run_on_device("t.ini", "run.device=auto")
        self.assertEqual((done.returncode, report["launches"] > 0), (0, True), done.stderr)
        done, _ = self.run_on_device("t.ini", "run.device=cuda:1")
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"^command line: run\.device: .+\n$")

    def test_what_was_written_before_stays(self):
        self.cuda("t.ini")
        before = {name: self.read(name) for name in self.left_behind()
                  if name.startswith("runs") and os.path.isfile(self.path(name))}
        for fail in ("cuInit:1:999", "cuMemAlloc_v2:1:2", "cuModuleLoadData:1:200"):
            done, _ = self.run_on_device("t.ini", "run.device=cuda", fail=fail)
            if done.returncode == 2:
                for name, content in before.items():
                    self.assertEqual(self.read(name), content, (fail, name))

    def test_a_vit_too(self):
        config = config_of("vit_l16_fused_recompute.ini")
        overrides = ["run.output=runs/t", "run.overwrite=yes", "run.device=cuda", *SMALL_VIT]
        done, report = self.run_on_device(config, *overrides)
        self.assertEqual(done.returncode, 0, done.stderr)
        calls = report["calls"]
        shutil.rmtree(self.path("runs"))
        for n in range(1, calls, calls // 10):
            done, report = self.run_on_device(config, *overrides, fail="*:%d:999" % n)
            if done.returncode != 0:
                self.check_failed(done, report, self.folder, n)
            shutil.rmtree(self.path("runs"), ignore_errors=True)


class Checkpoints(DeviceCase):
    """A run that writes one at every update, ended by the device: those written before stay, and the CPU goes on."""

    def setUp(self):
        super().setUp()
        self.config = self.net("adam", "lr = 0.01\n[checkpoint]\nevery = 1\nkeep = 100\n", steps=5)

    def checkpoints(self):
        folder = self.path("runs", "t", "checkpoints")
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        return {name: self.read(folder, name) for name in names}

    def fails(self, fail, *overrides):
        done, report = self.run_on_device(self.config, "run.device=cuda", *overrides, fail=fail)
        self.assertIn(done.returncode, (1, 2), (fail, done.stderr))
        self.assertEqual(len(errors_of(done)), 1, (fail, done.stderr))
        self.assertEqual((report["complaints"], report["injected"]), (0, 1), fail)
        return done

    def goes_on(self):
        """From the newest on the CPU, to the end; near what the device alone makes."""
        self.fuserun(self.config, "run.device=cpu", "run.resume=auto")
        self.assert_close(self.weights(), self.expected, 1e-3)
        shutil.rmtree(self.path("runs"))

    def test_a_device_that_is_lost_on_the_way(self):
        report = self.cuda(self.config)
        self.expected, whole = self.weights(), self.checkpoints()
        launches = report["launches"] - sum(count for name, count in report["kernels"].items() if "Gemm" in name)
        copies, products = report["entries"]["cuMemcpyDtoHAsync_v2"], report["entries"]["cublasGemmEx"]
        cases = [("launch:%d:%d" % (launches * i // 10, code), i)
                 for i, code in ((3, ILLEGAL_ADDRESS), (5, LAUNCH_FAILED), (7, ILLEGAL_ADDRESS), (9, LAUNCH_FAILED))]
        cases += [("cuLaunchKernel:%d:%d" % (launches // 2, LAUNCH_FAILED), 5), ("cublasGemmEx:%d:13" % (products // 2), 5),
                  ("cuMemcpyDtoHAsync_v2:%d:%d" % (copies // 2, ILLEGAL_ADDRESS), 5)]
        shutil.rmtree(self.path("runs"))
        for fail, tenths in cases:
            with self.subTest(fail=fail):
                self.assertEqual(self.fails(fail).returncode, 1)
                left = self.checkpoints()
                self.assertGreaterEqual(len([name for name in left if name.endswith(".safetensors")]), (tenths - 1) // 2)
                for name, content in left.items():
                    if name.startswith("step-"):
                        self.assertEqual(content, whole[name], (fail, name))
                self.goes_on()

    def test_a_device_without_memory_for_going_on(self):
        self.cuda(self.config)
        self.expected = self.weights()
        shutil.rmtree(self.path("runs"))
        self.cuda(self.config, "run.steps=2")
        before = self.checkpoints()
        self.assertGreaterEqual(len(before), 2)
        shutil.copytree(self.path("runs"), self.path("kept"))
        report = self.cuda(self.config, "run.resume=auto")
        for n in range(1, report["entries"]["cuMemAlloc_v2"] + 1):
            shutil.rmtree(self.path("runs"), ignore_errors=True)
            shutil.copytree(self.path("kept"), self.path("runs"))
            self.assertIn("memory", self.fails("cuMemAlloc_v2:%d:%d" % (n, OUT_OF_MEMORY), "run.resume=auto").stderr)
            self.assertEqual(self.checkpoints(), before, n)
        self.goes_on()


if __name__ == "__main__":
    unittest.main()
