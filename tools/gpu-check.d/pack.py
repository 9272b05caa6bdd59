"""A build that can be carried to a machine that cannot build: program, plugins, tests, and the shared libraries that they
were linked with but for the C library's own; and with it, in one archive, all that tools/gpu-check reads."""
import glob
import os
import re
import shutil
import subprocess
import tarfile

MOST_BYTES = 64 << 20
COMMIT = "build-gpu-check/pack/commit"
CARRIED = ["tools/gpu-check", "tools/gpu-check.d/*.py", "tools/bench.d/torch_peer.py", "configs/**", "build-gpu-check/pack/**"]
# Part of every system that can run the rest.
SYSTEM = re.compile(r"lib(c|m|dl|pthread|rt)\.so|ld-linux|linux-vdso")


def libraries_of(path):
    done = subprocess.run(["ldd", path], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        found = re.match(r"\s*(\S+) => (/\S+)", line)
        if found and not SYSTEM.search(found.group(1)):
            yield found.group(1), found.group(2)


def commit_of(root):
    """What the figures are of; a pack has it in a file."""
    if os.path.exists(os.path.join(root, ".git")):
        return subprocess.run(["git", "-C", root, "describe", "--always", "--dirty"], capture_output=True, text=True,
                              check=False).stdout.strip()
    try:
        with open(os.path.join(root, COMMIT), encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def make_archive(root, archive):
    """A folder gpu-check/ with what tools/gpu-check needs, at the places where it looks."""
    with tarfile.open(archive, "w:gz") as tar:
        for pattern in CARRIED:
            for path in sorted(glob.glob(os.path.join(root, pattern), recursive=True)):
                if os.path.isfile(path):
                    tar.add(path, os.path.join("gpu-check", os.path.relpath(path, root)))
    size = os.path.getsize(archive)
    print("%s: %.1f MiB; where the GPU is: tar xf it, gpu-check/tools/gpu-check" %
          (os.path.relpath(archive, root), size / 2**20))
    return 0 if size <= MOST_BYTES else 1


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
    with open(os.path.join(root, COMMIT), "w", encoding="utf-8") as file:
        file.write(commit_of(root) + "\n")
    os.makedirs(os.path.join(pack, "lib"))
    for name, path in libraries.items():
        shutil.copy2(path, os.path.join(pack, "lib", name))
    return make_archive(root, os.path.join(folder, "gpu-check.tar.gz"))
