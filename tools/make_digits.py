#!/usr/bin/env python3
"""Makes configs/data/digits/: the UCI optical digits as IDX files, MNIST's format, split into train and test.

Needs scikit-learn, whose package holds the data (no download). The files come out byte for byte the same every time:
the split depends on Python's own generator and a fixed seed, not on scikit-learn.

    python3 tools/make_digits.py [FOLDER]

Pixels: the data counts, for each of 8x8 cells, how many of its 16 pixels are set (0..16). IDX holds bytes and readers
divide by 255, so the count v is stored as v*255 // 16: 0 is 0, 16 is 255, and what a reader gets is v/16 to within 1/255.

Split: within each class the samples are shuffled with SEED and a fifth, rounded, goes to test; both parts then keep the
order of the data. Every class has the same share in both.
"""

import pathlib
import random
import struct
import sys

SEED = 0
TEST_SHARE = 0.2
UNSIGNED_BYTE = 0x08  # IDX's code of the element type


def split(labels):
    """Indices of (train, test), each in ascending order."""
    generator = random.Random(SEED)
    train, test = [], []
    for label in sorted(set(labels)):
        members = [i for i, other in enumerate(labels) if other == label]
        generator.shuffle(members)
        count = round(TEST_SHARE * len(members))
        test += members[:count]
        train += members[count:]
    return sorted(train), sorted(test)


def write_idx(path, dimensions, values):
    """IDX: two zero bytes, the element type, the number of dimensions, each dimension as big-endian u32, the data."""
    header = struct.pack(">BBBB", 0, 0, UNSIGNED_BYTE, len(dimensions))
    header += b"".join(struct.pack(">I", dimension) for dimension in dimensions)
    path.write_bytes(header + bytes(values))


def main():
    from sklearn.datasets import load_digits

    if len(sys.argv) > 2:
        sys.exit("usage: make_digits.py [FOLDER]")
    default = pathlib.Path(__file__).resolve().parent.parent / "configs" / "data" / "digits"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) == 2 else default
    folder.mkdir(parents=True, exist_ok=True)

    digits = load_digits()
    images = [[int(v) * 255 // 16 for v in row] for row in digits.data]
    labels = [int(label) for label in digits.target]
    for name, indices in zip(("train", "test"), split(labels)):
        write_idx(folder / f"{name}-images-idx3-ubyte", (len(indices), 8, 8), [v for i in indices for v in images[i]])
        write_idx(folder / f"{name}-labels-idx1-ubyte", (len(indices),), [labels[i] for i in indices])
        print(f"{name}: {len(indices)} images of 8x8 in {folder}")


if __name__ == "__main__":
    main()
