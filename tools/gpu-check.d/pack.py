"""A build that can be carried to a machine that cannot build: program, plugins, tests, and the shared libraries that they
were linked with but for the C library's own."""
import glob
import os
import re
import shutil
import subprocess
import sys

# Part of every system that can run the rest.
SYSTEM = re.compile(r"lib(c|m|dl|pthread|rt)\.so|ld-linux|linux-vdso")


def libraries_of(path):
    done = subprocess.run(["ldd", path], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        found = re.match(r"\s*(\S+) => (/\S+)", line)
        if found and not SYSTEM.search(found.group(1)):
            yield found.group(1), found.group(2)


def make_pack(root):
    folder = os.path.join(root, "build-gpu-check")
    made, pack = os.path.join(folder, "made"), os.path.join(folder, "pack")
    if not os.path.exists(os.path.join(made, "build.ninja")):
        # Without the libraries for matrix products: they are large, and the CPU only has to be right here.
        if subprocess.run(["meson", "setup", made, root, "-Dbuildtype=release", "-Dtests=enabled", "-Donednn=disabled",
                           "-Dcblas=disabled"], check=False).returncode != 0:
            return 2
    if subprocess.run(["ninja", "-C", made], check=False).returncode != 0:
        return 2
    shutil.rmtree(pack, ignore_errors=True)
    wanted = ["fuserun", "plugins/**/*.so", "models/*.so", "tests/ops/test_*", "tests/gpu/test_rules",
              "tools/gpu-check.d/update_rate"]
    libraries = {}
    for pattern in wanted:
        for path in glob.glob(os.path.join(made, pattern), recursive=True):
            if not os.path.isfile(path):
                continue
            target = os.path.join(pack, os.path.relpath(path, made))
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy2(path, target)
            libraries.update(libraries_of(path))
    os.makedirs(os.path.join(pack, "lib"))
    for name, path in libraries.items():
        shutil.copy2(path, os.path.join(pack, "lib", name))
    size = sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(pack) for name in names)
    print("%s: %.1f MiB" % (os.path.relpath(pack, root), size / 2**20))
    sys.stdout.flush()
    return 0
