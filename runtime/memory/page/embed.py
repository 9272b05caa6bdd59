"""Makes a C file of text files, so that the program carries its pages' parts: embed.py OUT.c FILE..."""
import os
import sys

with open(sys.argv[1], "w", encoding="ascii") as out:
    out.write('#include "memory/page.h"\n')
    for path in sys.argv[2:]:
        with open(path, "rb") as file:
            content = file.read() + b"\0"
        name = os.path.basename(path).replace(".", "_")
        out.write("\nconst char fuse_page_%s[] = {" % name)
        for i, byte in enumerate(content):
            out.write(("\n    " if i % 24 == 0 else " ") + "%d," % (byte if byte < 128 else byte - 256))
        out.write("\n};\n")
