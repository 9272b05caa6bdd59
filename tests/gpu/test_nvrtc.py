"""NVRTC compiles every kernel and every shipped rule without a warning, and what they take of a device is what
nvrtc_resources.txt says: registers by kernel (of the NVRTC and the architectures that are in it), and no stack at all.

test_nvrtc.py COMPILER OPTIMIZER... : for sm_90, or for those in FUSERUN_TEST_ARCHITECTURES ("75 80 90 100 120").
With --update the table is written anew."""
import os
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TABLE = os.path.join(HERE, "nvrtc_resources.txt")
SKIPPED = 77
# Attributes in .nv.info that hold a number for a function: format byte 4, attribute, 8, symbol, number.
REGISTERS, MIN_STACK = 0x2F, 0x12


def sections(image):
    """(name, content, header) of each section of an ELF file of 64 bits."""
    offset, = struct.unpack_from("<Q", image, 40)
    size, count, names = struct.unpack_from("<HHH", image, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, offset + i * size) for i in range(count)]
    strings = headers[names][4]
    for header in headers:
        start = strings + header[0]
        name = image[start:image.index(b"\0", start)].decode()
        yield name, image[header[4]:header[4] + header[5]] if header[1] != 8 else b"", header


def resources(path):
    """{kernel: [registers, stack bytes]} of a cubin."""
    with open(path, "rb") as file:
        image = file.read()
    parts = {name: content for name, content, _ in sections(image)}
    symbols, strings, info = parts[".symtab"], parts[".strtab"], parts[".nv.info"]
    found = {}
    at = 0
    while at + 4 <= len(info):
        form, attribute, length = struct.unpack_from("<BBH", info, at)
        at += 4
        if form != 4:
            continue
        if attribute in (REGISTERS, MIN_STACK):
            symbol, number = struct.unpack_from("<II", info, at)
            start, = struct.unpack_from("<I", symbols, symbol * 24)
            name = strings[start:strings.index(b"\0", start)].decode()
            found.setdefault(name, [None, None])[0 if attribute == REGISTERS else 1] = number
        at += length
    return found


def read_table():
    with open(TABLE, encoding="ascii") as file:
        lines = [line.split() for line in file if not line.startswith("#")]
    version = " ".join(lines[0])
    return version, {tuple(words[:3]): int(words[3]) for words in lines[1:] if words}


def main():
    arguments = [word for word in sys.argv[1:] if word != "--update"]
    updates = "--update" in sys.argv
    architectures = os.environ.get("FUSERUN_TEST_ARCHITECTURES", "90").split()
    rows, version, mistakes = {}, "", []
    for architecture in architectures:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([arguments[0], architecture, folder, *arguments[1:]], capture_output=True, text=True)
            sys.stderr.write(done.stderr)
            if done.returncode == SKIPPED:
                return SKIPPED
            if done.returncode != 0:
                return 1
            version = done.stdout.splitlines()[0]
            print(f"sm_{architecture}:", done.stdout.splitlines()[-1], "by", version)
            for name in sorted(os.listdir(folder)):
                for kernel, (registers, stack) in sorted(resources(os.path.join(folder, name)).items()):
                    rows[(architecture, name[:-len(".cubin")], kernel)] = registers
                    if stack != 0:
                        mistakes.append(f"sm_{architecture} {name} {kernel}: {stack} bytes of stack")
    if not rows or None in rows.values():
        mistakes.append("no kernels, or kernels without a register count, were found")
    if updates:
        with open(TABLE, "w", encoding="ascii") as file:
            file.write("# Registers of each kernel: architecture, program, kernel, registers. tests/gpu/test_nvrtc.py\n")
            file.write(version + "\n")
            file.writelines(f"{' '.join(key)} {value}\n" for key, value in sorted(rows.items()))
    expected_version, expected = read_table()
    if version != expected_version:
        print(f"registers are not compared: the table is of {expected_version}, here is {version}")
    else:
        listed = {key[0] for key in expected}
        expected = {key: value for key, value in expected.items() if key[0] in architectures}
        for key in sorted({key for key in rows if key[0] in listed} | set(expected)):
            if rows.get(key) != expected.get(key):
                mistakes.append(f"{' '.join(key)}: {rows.get(key)} registers, the table says {expected.get(key)}")
    for mistake in mistakes:
        print(mistake, file=sys.stderr)
    print(f"{len(rows)} kernels, {len(mistakes)} mistakes")
    return 1 if mistakes else 0


sys.exit(main())
