"""The prototypes and constants of plugins/backends/cuda/driver.h are NVIDIA's: prototypes.cpp compiles against the headers
of a toolkit, in $CUDA_HOME, /usr/local/cuda or where pkg-config says; and does not, where one of ours is wrong."""
import os
import shutil
import subprocess
import sys
import tempfile

SOURCE = os.environ["FUSERUN_SOURCE"]
HERE = os.path.join(SOURCE, "tests", "gpu")
HEADERS = ("cuda.h", "cublas_v2.h", "nvrtc.h")
SKIPPED = 77
# What is noticed, what is there, what it is made to be: a size, a const, a count, a value.
WRONG = (("cuMemAlloc_v2 has", "(fuse_device_address * memory, size_t bytes)", "(fuse_device_address * memory, int bytes)"),
         ("cublasGemmEx has", "int k, const void *alpha, const void *a, ", "int k, const void *alpha, void *a, "),
         ("cuStreamCreate has", "(void **stream, unsigned flags)", "(void **stream)"),
         ("CUBLAS_COMPUTE_32F_FAST_TF32 has", "FUSE_CUBLAS_COMPUTE_TF32 = 77", "FUSE_CUBLAS_COMPUTE_TF32 = 76"))


def toolkit():
    """The folder with all of the headers, or None."""
    folders = [os.path.join(os.environ["CUDA_HOME"], "include")] if os.environ.get("CUDA_HOME") else []
    folders.append("/usr/local/cuda/include")
    if shutil.which("pkg-config") is not None:
        names = subprocess.run(["pkg-config", "--list-package-names"], capture_output=True, text=True).stdout.split()
        for name in sorted((name for name in names if name == "cuda" or name.startswith("cuda-")), reverse=True):
            flags = subprocess.run(["pkg-config", "--cflags-only-I", name], capture_output=True, text=True).stdout.split()
            folders += [flag[len("-I"):] for flag in flags]
    for folder in folders:
        if all(os.path.exists(os.path.join(folder, header)) for header in HEADERS):
            return folder
    return None


def errors(compiler, includes):
    command = [compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    for folder in (*includes, os.path.join(SOURCE, "plugins"), os.path.join(SOURCE, "runtime", "include")):
        command += ["-I", folder]
    command += ["-isystem", toolkit(), os.path.join(HERE, "prototypes.cpp")]
    return subprocess.run(command, capture_output=True, text=True).stderr


def main():
    compiler = next(filter(None, map(shutil.which, ("g++", "clang++"))), None)
    if compiler is None or toolkit() is None:
        print("skipped:", "no C++ compiler" if compiler is None else "no folder with %s, %s and %s" % HEADERS)
        return SKIPPED
    found = errors(compiler, ())
    if found:
        print(found, file=sys.stderr)
        return 1
    with open(os.path.join(SOURCE, "plugins", "backends", "cuda", "driver.h"), encoding="utf-8") as file:
        ours = file.read()
    for _, right, wrong in WRONG:
        assert right in ours, right
        ours = ours.replace(right, wrong, 1)
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(os.path.join(folder, "backends", "cuda"))
        with open(os.path.join(folder, "backends", "cuda", "driver.h"), "w", encoding="utf-8") as file:
            file.write(ours)
        found = errors(compiler, (folder,))
    missed = [message for message, _, _ in WRONG if message not in found]
    if missed or found.count("error: static") != len(WRONG):
        print("not noticed:", missed, found, file=sys.stderr)
        return 1
    print("as in", toolkit())
    return 0


sys.exit(main())
