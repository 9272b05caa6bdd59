#!/usr/bin/env python3
"""Files for the fuzz targets to begin with: one good of each kind, and the known attacks on these formats.

    python3 tests/fuzz/seeds.py FOLDER [--done STAMP]      writes FOLDER/TARGET/NAME
"""
import argparse
import gzip
import json
import pathlib
import struct
import zlib

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
SEPARATOR = b"\x1e"
GOOD_CONFIG = b"""[run]
steps = 5
[model]
plugin = mlp
sizes = 2, 3
[data]
plugin = noise
[optimizer]
plugin = adam
"""


# ---- safetensors ---------------------------------------------------------------------------------------------------

def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype="F32", shape=(), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def safetensors_seeds():
    word = b"\0\0\x80?"
    one = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}%s}'
    yield "good", safetensors({"__metadata__": {"format": "pt"}, "x": tensor("F32", (2, 2), (0, 16)),
                               "h": tensor("BF16", (2,), (16, 20)), "d": tensor("F64", (1,), (20, 28)),
                               "f": tensor("F16", (2,), (28, 32)), "i": tensor("I64", (1,), (32, 40)),
                               "e": tensor("U8", (0, 3), (40, 40)),
                               "encoder.layers.encoder_layer_0.mlp.linear_1.bias": tensor("F32", (1,), (40, 44))},
                              bytes(range(44)))
    yield "scalar_padded", safetensors(b'{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   ', word)
    yield "leading_space", safetensors(b' \t\n{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}', word)
    yield "empty_object", safetensors(b"{}")
    yield "no_bytes", b""
    yield "short_length", b"\x10\0\0"
    yield "length_past_end", safetensors(b"{}", length=1 << 20)
    yield "length_too_large", safetensors(b"{}", length=100_000_001)
    yield "length_wraps", safetensors(b"{}", length=2**64 - 8)
    yield "length_zero", safetensors(b"")
    yield "not_utf8", safetensors(b'{"\xff":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}', word)
    yield "not_json", safetensors(b"[1, 2")
    yield "byte_order_mark", safetensors(b"\xef\xbb\xbf" + one % b"", word)
    yield "shape_dtype_mismatch", safetensors({"a": tensor("F32", (2, 2), (0, 4))}, word)
    yield "two_bytes_missing", safetensors(one % b"", word[:2])
    yield "polyglot_tail", safetensors(one % b"", word + b"PK\x05\x06" + bytes(18))
    yield "overflow_product", safetensors({"a": tensor("I32", (2, 2**63 + 6), (0, 8))}, word * 2)
    yield "overflow_huge", safetensors(b'{"a":{"dtype":"I32","shape":[2,18446744073709551614],"data_offsets":[0,8]}}',
                                       word * 2)
    yield "ten_on_one_range", safetensors({f"t{i}": tensor("F32", (1,), (0, 4)) for i in range(10)}, word)
    yield "hole", safetensors({"a": tensor("F32", (1,), (0, 4)), "b": tensor("F32", (1,), (8, 12))}, word * 3)
    yield "overlap", safetensors({"a": tensor("F32", (2,), (0, 8)), "b": tensor("F32", (2,), (4, 12))}, word * 3)
    yield "offsets_backwards", safetensors({"a": tensor("F32", (1,), (4, 0))}, word)
    yield "depth_bomb", safetensors(b'{"a":' + b"[" * 3000 + b"]" * 3000 + b"}")
    yield "depth_in_metadata", safetensors(b'{"__metadata__":{"a":{"b":{"c":"d"}}}}')
    yield "many_tensors", safetensors({f"t{i}": tensor("U8", (0,), (0, 0)) for i in range(300)})
    yield "nul_name", safetensors(one.replace(b'"a"', b'"a\\u0000b"') % b"", word)
    yield "lone_surrogate", safetensors(one.replace(b'"a"', b'"\\ud800"') % b"", word)
    yield "exponent", safetensors(one.replace(b"[0,4]", b"[0,4e0]") % b"", word)
    yield "minus_zero", safetensors(one.replace(b"[0,4]", b"[-0,4]") % b"", word)
    yield "leading_zero", safetensors(one.replace(b"[0,4]", b"[00,4]") % b"", word)
    yield "fraction", safetensors(one.replace(b"[1]", b"[1.0]") % b"", word)
    yield "huge_integer", safetensors(one.replace(b"[1]", b"[" + b"9" * 400 + b"]") % b"", word)
    yield "bool_dimension", safetensors(one.replace(b"[1]", b"[true]") % b"", word)
    yield "duplicate_tensor", safetensors(one % b',"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}', word)
    yield "duplicate_key", safetensors(one.replace(b'"shape":[1]', b'"shape":[1],"shape":[1]') % b"", word)
    yield "trailing_comma", safetensors(one % b",", word)
    yield "extra_key", safetensors(one.replace(b'"shape"', b'"x":1,"shape"') % b"", word)
    yield "fraction_of_byte", safetensors({"a": tensor("F4", (1,), (0, 1))}, b"\0")
    yield "long_rank", safetensors({"a": tensor("U8", (1,) * 200, (0, 1))}, b"\0")
    yield "metadata_not_text", safetensors(b'{"__metadata__":{"a":1}}')
    yield "metadata_twice", safetensors(b'{"__metadata__":{"a":"1","a":"2"}}')


def checkpoint_seeds():
    weight, state = tensor("F32", (2,), (0, 8)), tensor("F32", (2,), (8, 16))
    tensors = {"layers.0.weight": weight, "optimizer/layers.0.weight/exp_avg": state,
               "optimizer/layers.0.weight/step": tensor("I64", (), (16, 24)),
               "scheduler/state": tensor("F64", (1,), (24, 32))}
    good = {"checksums": "none", "format": "fuserun checkpoint 1", "fuserun": "0.1.0", "clock.step": "7", "data.epoch": "1",
            "data.batches": "3", "data.drawn": "7", "data.batch_size": "2", "data.samples": "10", "random.seed": "0",
            "run.skips": "0", "run.evaluation": "done", "scheduler": "scheduler loss", "plugins": "optimizer adam 1.0.0",
            "optimizers": "adam layers.0.weight\nsgd layers.1.weight",
            "config": "[run]\nsteps = 5\nseed = 1\n\n[optimizer]\nplugin = adam\nlr = 0.1\n\n[group x]\nmatch = *\n"}

    def case(**changes):
        metadata = {**good, **{key.replace("__", "."): value for key, value in changes.items()}}
        return safetensors({"__metadata__": {k: v for k, v in metadata.items() if v is not None}, **tensors}, bytes(32))

    yield "good", case()
    yield "wrong_checksums", case(checksums="0" * 80)
    yield "short_checksums", case(checksums="0")
    yield "no_checksums", case(checksums=None)
    yield "other_format", case(format="fuserun checkpoint 2")
    yield "no_format", case(format=None)
    yield "no_step", case(clock__step=None)
    yield "negative", case(clock__step="-1")
    yield "too_many", case(data__drawn="9223372036854775807")
    yield "due", case(run__evaluation="due", config=None, optimizers=None)
    yield "odd_config", case(config="\n\n = \n[\n[]\n[x] = y\nkey = \u0007\n" + "[a]\nb = c\n" * 60)
    yield "odd_optimizers", case(optimizers="\n \nadam\n layers.0.weight\nadam layers.0.weight")


# ---- pickle and .pth -----------------------------------------------------------------------------------------------

def text(value):
    return b"X" + struct.pack("<I", len(value)) + value


def integer(value):
    return b"J" + struct.pack("<i", value) if -2**31 <= value < 2**31 else b"\x8a\x09" + struct.pack("<q", value) + b"\0"


def one_tensor(storage=b"FloatStorage", count=4, offset=0, shape=(2, 2), stride=(2, 1), key=b"0", grad=b"\x89"):
    """A call of _rebuild_tensor_v2, as torch.save writes it."""
    sizes = b"(" + b"".join(integer(size) for size in shape) + b"t"
    strides = b"(" + b"".join(integer(size) for size in stride) + b"t"
    return (b"ctorch._utils\n_rebuild_tensor_v2\n((" + text(b"storage") + b"ctorch\n" + storage + b"\n" + text(key) +
            text(b"cpu") + integer(count) + b"tQ" + integer(offset) + sizes + strides + grad +
            b"ccollections\nOrderedDict\n)RtR")


def state(*pairs):
    return b"\x80\x02}(" + b"".join(text(name) + value for name, value in pairs) + b"u."


def pickles():
    weight = (b"w", one_tensor())
    yield "good", state(weight, (b"b", one_tensor(count=4, offset=2, shape=(2,), stride=(1,))))
    yield "ordered", (b"\x80\x02ccollections\nOrderedDict\nq\0)Rq\1(" + text(b"w") + one_tensor() + b"u}q\2X\x09\0\0\0"
                      b"_metadataq\3}sb.")
    yield "nested", b"\x80\x02}(" + text(b"model") + b"}" + text(b"w") + one_tensor() + b"s" + text(b"epoch") + b"K\3u."
    yield "transposed", state((b"t", one_tensor(shape=(2, 2), stride=(1, 2))))
    yield "repeated_view", state((b"t", one_tensor(count=1, shape=(2**40,), stride=(0,))))
    yield "values", (b"\x80\x02](NK\1M\2\1J\1\2\3\4\x8a\x02\xff\xff\x8a\x09" + bytes(9) +
                     b"G?\xf0\0\0\0\0\0\0\x88\x89)}]\x8fU\1a\x85\x86\x87e.")
    yield "parameter", state((b"p", b"ctorch._utils\n_rebuild_parameter\n(" + one_tensor() +
                              b"\x88ccollections\nOrderedDict\n)RtR"))
    yield "memo_far", b"\x80\x02Nr\xff\xff\xff\xff."
    yield "memo_unset", b"\x80\x02h\5."
    yield "mark_left", b"\x80\x02(N."
    yield "no_mark", b"\x80\x02Nt."
    yield "nested_marks", b"\x80\x02" + b"(" * 2000 + b"N" + b"t" * 2000 + b"."
    yield "nested_tuples", b"\x80\x02N" + b"\x85" * 300 + b"."
    yield "text_of_4_gib", b"\x80\x02X\xff\xff\xff\xffabc."
    yield "calls_none", b"\x80\x02N)R."
    yield "calls_system", b"\x80\x02cos\nsystem\nX\2\0\0\0id\x85R."
    yield "instance", b"\x80\x02(ios\nsystem\n."
    yield "stack_global", b"\x80\x02" + text(b"os") + text(b"system") + b"\x93."
    yield "holds_itself", b"\x80\x02]q\0h\0a."
    yield "dict_holds_itself", b"\x80\x02}q\0" + text(b"a") + b"h\0s."
    yield "no_stop", b"\x80\x02N"
    yield "behind_stop", b"\x80\x02N.N."
    yield "protocol_4", b"\x80\x04\x95\x05\0\0\0\0\0\0\0N."
    yield "negative_size", state((b"t", one_tensor(shape=(-1,), stride=(1,))))
    yield "huge_size", state((b"t", one_tensor(shape=(2**62, 4), stride=(1, 1))))
    yield "huge_stride", state((b"t", one_tensor(shape=(3,), stride=(2**62,))))
    yield "past_end", state((b"t", one_tensor(offset=3)))
    yield "bool_size", state((b"t", one_tensor().replace(integer(2) + integer(2), b"\x88\x88", 1)))
    yield "shared_tree", (b"\x80\x02]q\0" + b"".join(b"](h%bh%be%b" % (bytes([i]), bytes([i]), b"q" + bytes([i + 1]))
                                                     for i in range(30)) + b".")


def zip_file(members, **changes):
    """members: (name, bytes) in order. changes: numbers that are written in place of the right ones."""
    out, central = b"", b""
    for name, data in members:
        crc, size, flags = zlib.crc32(data), len(data), changes.get("flags", 0)
        local = dict(method=0, crc=crc, packed=size, plain=size, name=name)
        local.update(changes.get("local", {}))
        extra = changes.get("extra", b"")
        header = len(out)
        out += struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, flags, local["method"], 0, 0, local["crc"], local["packed"],
                           local["plain"], len(local["name"]), len(extra)) + local["name"] + extra + data
        if flags & 8:
            out += struct.pack("<IIII", 0x08074B50, crc, size, size)
        entry = dict(method=0, crc=crc, packed=size, plain=size, header=header, name=name)
        entry.update(changes.get("central", {}))
        central += struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 20, 20, flags, entry["method"], 0, 0, entry["crc"],
                               entry["packed"], entry["plain"], len(entry["name"]), 0, 0, 0, 0, 0, entry["header"])
        central += entry["name"]
    end = dict(count=len(members), bytes=len(central), offset=len(out))
    end.update(changes.get("end", {}))
    out += central
    if "end64" in changes:
        end64 = dict(size=44, count=len(members), bytes=len(central), offset=len(out) - len(central), at=len(out))
        end64.update(changes["end64"])
        out += struct.pack("<IQHHIIQQQQ", 0x06064B50, end64["size"], 45, 45, 0, 0, end64["count"], end64["count"],
                           end64["bytes"], end64["offset"])
        out += struct.pack("<IIQI", 0x07064B50, 0, end64["at"], 1)
    comment = changes.get("comment", b"")
    return out + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, end["count"], end["count"], end["bytes"], end["offset"],
                             len(comment)) + comment


def pth_seeds():
    good = dict(pickles())
    values = struct.pack("<4f", 1, 2, 3, 4)

    def members(pickle=good["good"], data=values, root=b"w"):
        return [(root + b"/data.pkl", pickle), (root + b"/byteorder", b"little"), (root + b"/data/0", data),
                (root + b"/version", b"3\n")]

    plain = members()
    yield "good", b"\4" + zip_file(plain)
    yield "everything", b"\0" + zip_file(plain)
    yield "by_key", b"\5" + zip_file(members(good["nested"]))
    yield "by_long_key", b"\7" + zip_file(members(good["nested"]))
    yield "nested", b"\4" + zip_file(members(good["nested"]))
    yield "transposed", b"\4" + zip_file(members(good["transposed"]))
    yield "repeated_view", b"\4" + zip_file(members(good["repeated_view"]))
    yield "big_endian", b"\4" + zip_file([plain[0], (b"w/byteorder", b"big"), plain[2], plain[3]])
    yield "as_torch", b"\4" + zip_file(plain, flags=0x808, local=dict(crc=0, packed=0, plain=0), end64={})
    yield "padded", b"\4" + zip_file(plain, extra=b"FB" + struct.pack("<H", 20) + b"Z" * 20)
    yield "overlapping", b"\4" + zip_file(plain, central=dict(header=0))
    yield "other_local_name", b"\4" + zip_file(plain, local=dict(name=b"w/data.pk2"))
    yield "other_local_size", b"\4" + zip_file(plain, local=dict(plain=1))
    yield "climbing_name", b"\4" + zip_file([(b"w/../../etc/passwd", b"x")] + plain)
    yield "absolute_name", b"\4" + zip_file([(b"/etc/passwd", b"x")] + plain)
    yield "duplicate_name", b"\4" + zip_file(plain + plain[:1])
    yield "compressed", b"\4" + zip_file(plain, central=dict(method=8), local=dict(method=8))
    yield "sizes_wrap", b"\4" + zip_file(plain, central=dict(packed=0xFFFFFFFE, plain=0xFFFFFFFE))
    yield "wants_zip64", b"\4" + zip_file(plain, central=dict(packed=0xFFFFFFFF, plain=0xFFFFFFFF))
    yield "zip64_wraps", b"\4" + zip_file(plain, end64=dict(offset=2**64 - 46, bytes=92))
    yield "zip64_many", b"\4" + zip_file(plain, end64=dict(count=2**63))
    yield "zip64_elsewhere", b"\4" + zip_file(plain, end64=dict(at=2**40))
    yield "encrypted", b"\4" + zip_file(plain, flags=1)
    yield "second_end", b"\4" + zip_file(plain, comment=zip_file(members(good["calls_system"])))
    yield "beyond_the_end", b"\4" + zip_file(plain, central=dict(header=2**31))
    yield "count_too_large", b"\4" + zip_file(plain, end=dict(count=65535))
    yield "empty_pickle", b"\4" + zip_file(members(b""))
    yield "calls_system", b"\4" + zip_file(members(good["calls_system"]))
    yield "short_storage", b"\4" + zip_file(members(data=values[:8]))
    yield "missing_storage", b"\4" + zip_file([plain[0], plain[1], plain[3]])
    yield "two_roots", b"\4" + zip_file(plain + [(b"v/data.pkl", good["good"])])
    yield "script", b"\4" + zip_file(plain + [(b"w/constants.pkl", b"\x80\x02).")])
    yield "byte_order_odd", b"\4" + zip_file([plain[0], (b"w/byteorder", b"middle"), plain[2]])
    yield "tar", b"\4" + bytes(257) + b"ustar" + bytes(250)
    yield "old_pickle", b"\4\x80\x02\x8a\x0a" + bytes(16)
    for name in ("mlp", "nested", "parameter"):
        yield "torch_" + name, b"\4" + (SOURCE / "tests/golden/pth" / (name + ".pth")).read_bytes()


# ---- data ----------------------------------------------------------------------------------------------------------

def idx(shape, data, kind=8):
    return bytes([0, 0, kind, len(shape)]) + struct.pack(">%dI" % len(shape), *shape) + data


def idx_case(flags, images, labels):
    return bytes([flags]) + struct.pack("<H", len(images)) + images + labels


def idx_seeds():
    images, labels = idx((2, 2, 3), bytes(range(12))), idx((2,), b"\1\2")
    for flags in (0, 4, 8, 12):
        yield f"good_{flags}", idx_case(flags, images, labels)
    yield "packed", idx_case(0, gzip.compress(images, mtime=0), gzip.compress(labels, mtime=0))
    half = len(images) // 2
    yield "two_members", idx_case(0, gzip.compress(images[:half], mtime=0) + gzip.compress(images[half:], mtime=0), labels)
    yield "cut_packed", idx_case(0, gzip.compress(images, mtime=0)[:-4], labels)
    yield "wrong_checksum", idx_case(0, gzip.compress(images, mtime=0)[:-8] + bytes(8), labels)
    yield "promises_much", idx_case(4, idx((2**31, 2**20, 1), b""), labels)
    yield "promises_some", idx_case(4, idx((2, 500, 20), b"ab"), labels)
    yield "overflows", idx_case(0, idx((2**32 - 1,) * 4, b""), labels)
    yield "no_samples", idx_case(0, idx((0, 2), b""), idx((0,), b""))
    yield "five_dimensions", idx_case(0, idx((2, 1, 1, 1, 1), b"ab"), labels)
    yield "floats", idx_case(0, idx((2, 1), bytes(8), 13), labels)
    yield "counts_differ", idx_case(0, images, idx((3,), b"\1\2\3"))
    yield "trailing", idx_case(0, images + b"x", labels)
    yield "swapped", idx_case(0, labels, images)
    yield "rank_1", idx_case(0, idx((2,), b"ab"), labels)


def tensors_seeds():
    x, y = tensor("F32", (2, 3), (0, 24)), tensor("I64", (2,), (24, 40))
    values = struct.pack("<6f2q", *range(8))
    for flags in range(3):
        yield f"classes_{flags}", bytes([flags]) + safetensors({"x": x, "y": y}, values)
    yield "values", b"\1" + safetensors({"x": x, "y": tensor("F32", (2, 2), (24, 40))}, values)
    yield "no_targets", b"\2" + safetensors({"x": x}, values[:24])
    yield "counts_differ", b"\0" + safetensors({"x": x, "y": tensor("I64", (1,), (24, 32))}, values[:32])
    yield "scalar", b"\0" + safetensors({"x": tensor(), "y": tensor("I64", (), (4, 12))}, bytes(12))
    yield "rank_9", b"\2" + safetensors({"x": tensor("F32", (1,) * 9)}, bytes(4))
    yield "rank_1", b"\1" + safetensors({"x": tensor("F32", (2,), (0, 8)), "y": tensor("F32", (2,), (8, 16))}, bytes(16))
    yield "empty", b"\0" + safetensors({"x": tensor("F32", (0, 3), (0, 0)), "y": tensor("I64", (0,), (0, 0))})
    yield "wide_empty", b"\2" + safetensors({"x": tensor("F32", (2**40, 0), (0, 0))})


# ---- texts ---------------------------------------------------------------------------------------------------------

def config_seeds():
    yield "good", GOOD_CONFIG
    yield "whole", GOOD_CONFIG + b"""weight_decay = 0.1  ; a comment
mode = fused
[group no_decay]
match = *bias, "*.ln*"
weight_decay = 0
[group other]
match = head*
plugin = sgd
[scheduler]
plugin = sequential
stages = warmup, main
milestones = 2
drives = lr
[scheduler.warmup]
plugin = linear
start_factor = 0.01
[scheduler.main]
plugin = cosine
t_max = ${run.steps}
limits = none, 5E-4
[scheduler weight_decay]
plugin = constant
[eval]
every = 1 epoch
plugin = noise
[loss]
kind = cross_entropy
label_smoothing = .1
[memory]
timeline = off
"""
    yield "expansion", GOOD_CONFIG + b"""[loss]
kind = cross_entropy
[checkpoint]
[plugins]
path = a, "b ${x}", ${env:FUZZ}
""".replace(b"[checkpoint]\n", b"") + b"[memory]\nrecompute = ${memory.recompute}\n"
    yield "loop", b"[run]\nname = ${run.output}\noutput = ${run.name}\n"
    yield "include", b"[run]\ninclude = 101\nsteps = 7\n" + SEPARATOR + GOOD_CONFIG
    yield "include_chain", b"[run]\ninclude = 101\n" + SEPARATOR + b"[run]\ninclude = 102\nsteps = 3\n" + SEPARATOR + GOOD_CONFIG
    yield "includes_itself", b"[run]\ninclude = 100\n"
    yield "include_loop", b"[run]\ninclude = 101\n" + SEPARATOR + b"[run]\ninclude = 100\n"
    yield "include_absent", b"[run]\ninclude = nothing.ini\n"
    yield "overrides", SEPARATOR.join([GOOD_CONFIG, b"", b"", b"optimizer.lr=1e-4", b"group no_decay.match=*bias",
                                       b"run.steps=", b"run.epochs=3", b"optimizer.plugin=sgd", b"nonsense", b"a.b",
                                       b"run.include=" + b"/proc/self/fd/101"])
    yield "plugin_file", GOOD_CONFIG.replace(b"plugin = adam", b"plugin = ./adam.so")
    yield "plugin_changed", SEPARATOR.join([b"[run]\ninclude = 101\n[optimizer]\nplugin = sgd\nmomentum = 0.9\n",
                                            GOOD_CONFIG + b"betas = 0.9, 0.99\n[scheduler betas]\nplugin = constant\n"])
    yield "continued", GOOD_CONFIG.replace(b"sizes = 2, 3", b"sizes = 2,\n    3, ; and\n    4")
    yield "mistakes", b"""lost = 1
[run
steps = five
[run]
[run]
steps == 5
stepps = 5
steps: 5
 indented = 1
[modell]
plugin = "mlp
[group ]
[scheduler.x]
[optimizer]
lr = 1,5
lr = 2
betas = 0.9
clip_grad_norm = -1
"""
    yield "odd_bytes", b"\xef\xbb\xbf[run]\r\nname = caf\xc3\xa9 \xff\r\n\0\x7f\x01\n"
    yield "long_lines", b"[" + b"s" * 300 + b"]\n" + b"k" * 300 + b" = " + b"v" * 600 + b"\n"
    yield "quotes", GOOD_CONFIG.replace(b"[run]", b'[run]\nname = "a ""b"" ; ${c}, d"')
    yield "stages_nested", GOOD_CONFIG + b"""[scheduler]
plugin = chain
stages = a, b
[scheduler.a]
plugin = chain
stages = b, a
[scheduler.b]
plugin = constant
"""


def options_seeds():
    yield "good", b"""bool=yes
int=-3
ints=1, 2,3
number=1e-5
unit=.25
betas=0.9, none
size=64KiB
sizes=1, 2 GiB
span=3 epochs
choice=gelu
choices=a, b
text=any "text" at all
texts="a, b", c
path=a/b
paths=./x, /y
stages=warm, cold"""
    yield "edges", b"""int=none
ints=""
number=inf
size=9007199254740993
span=100
text="quoted ""so"" ; # , $"
texts=""
path="""
    yield "wrong", b"unit=1"
    for i, line in enumerate((b"betas=1,2,3", b"size=8589934592TiB", b"span=0", b"choice=relo", b"ints=1,,2", b"number=1,5",
                              b"number=0x10", b"int=1.0", b"int=9223372036854775808", b"text=\"a\" b", b"bool=maybe",
                              b"unknown=1", b"nothing", b"[0, 1)", b"(-inf, inf)")):
        yield f"wrong_{i}", line


def text_seeds():
    for i, number in enumerate((b"1e-5", b".5", b"5E-4", b"inf", b"-inf", b"1e400", b"4.9e-324", b"9007199254740993",
                                b"-9223372036854775808", b"+7", b"0.1e", b"--1", b"1" * 400)):
        yield f"number_{i}", b"\0" + number
    for i, value in enumerate((0.1, 1e-310, -0.0, 1e22, 2.0**-1074, 123456.789e-9, float("inf"), float("nan"))):
        yield f"format_{i}", b"\1" + struct.pack("<d", value)
    yield "glob", b"\2*.ln*?\nencoder.ln_1"
    yield "glob_stars", b"\2" + b"*a" * 12 + b"\n" + b"a" * 40
    yield "nearest", b"\3lerning_rate\nlr"
    yield "words", b'\4a, "b, ""c""", d e,"f"'
    yield "json", b'\5a"\\\1\xc3\xa9\xff\xf0\x9f\x98\x80'
    yield "shown", b"\6" + "é".encode() * 60


def formula_seeds():
    for i, line in enumerate((
            b"base * 0.5 ^ floor(epoch / 30)", b"if(step < 10, base * (step + 1) / 10, base)",
            b"min(base, max(0, 1 - step / total), 2e-3) + -2 ^ -.5 % 3", b"base * (1 + cos(pi * step / total)) / 2",
            b"((((1))))", b"1 + ", b"1 2", b")", b"min(1)", b"pow(1, 2, 3)", b"1 < 2 < 3", b"1,5", b".", b"1e999",
            b"stepp", b"sin", b"\xc3\xa9", b"-" * 100 + b"1", b"(" * 100, b"1" + b"+1" * 200, b"1 ** 2 ** 3",
            b"exp(1e3) - exp(1e3)", b"log(0) * 0", b"abs ceil", b"1" * 80, b"tanh(tan(sqrt(log2(log10(round(2.5))))))")):
        yield f"line_{i}", line


def memory_json():
    categories = 6
    return {
        "peak_bytes": 30, "peak_phase": "backward",
        "memory": {"parameter": 10, "gradient": 0, "optimizer_state": 0, "activation": 20, "workspace": 0, "data": 0},
        "rss_base_bytes": 1000, "rss_peak_bytes": 2000, "parameters": 3,
        "run": {"name": "n", "model": "mlp", "preset": "", "optimizer": "adam", "mode": "fused", "recompute": "none",
                "loss": "mse", "device": "cpu", "version": "0.1.0", "batch_size": 2, "updates": 2, "trainable_bytes": 10},
        "timeline": {"persistent": [10] + [0] * (categories - 1), "operations": ["linear", "update"],
                     "layers": ["layers.0", "layers.1"],
                     "passes": [{"purpose": "training", "batch_size": 2, "phase": [0, 1, 2], "operation": [0, 0, 1],
                                 "layer": [0, 1, 1],
                                 "bytes": [[0, 0, 0], [0, 0, 0], [0, 0, 0], [4, 20, 8], [0, 0, 0], [0, 0, 0]]}],
                     "runs": [{"pass": 0, "update": 1, "begin_us": 0, "end_us": [5, 9, 12]},
                              {"pass": 0, "update": 2, "begin_us": 20, "end_us": [25, 29, 31]}]},
        "buffers": [{"name": "layers.0.weight", "category": "parameter", "bytes": 10},
                    {"name": "a", "category": "activation", "bytes": 4, "pass": 0, "first": 0, "last": 1}],
        "buffer_counts": [1, 0, 0, 1, 0, 0],
    }


METRICS = b"""{"step":1,"epoch":0.5,"loss":2.301,"lr":{"default":0.001},"step_s":0.012}
{"step":1,"eval_loss":0.21,"eval_accuracy":0.95}
{"step":2,"epoch":1,"loss":null,"lr":{"default":0.001},"step_s":0.011}
"""


def report_seeds():
    def case(metrics=METRICS, **changes):
        value = memory_json()
        for path, change in changes.items():
            where = value
            *steps, last = path.split("__")
            for step in steps:
                where = where[int(step)] if isinstance(where, list) else where[step]
            where[int(last) if isinstance(where, list) else last] = change
        return json.dumps(value, separators=(",", ":")).encode() + SEPARATOR + metrics

    yield "good", case()
    yield "hostile_name", case(run__name='</script><svg onload="x">&\'')
    yield "time_wraps", case(timeline__runs__0__begin_us=-2**63, timeline__runs__0__end_us=[0, 1, 2**63 - 1])
    yield "bytes_wrap", case(timeline__persistent=[2**63 - 1] + [0] * 5, peak_bytes=2**63 + 19)
    yield "steps_far", case(metrics=b'{"step":-9223372036854775808,"loss":1e308,"step_s":1e-300}\n'
                                    b'{"step":9223372036854775807,"loss":-1e308,"step_s":1e300}\n')
    yield "no_metrics", case(metrics=b"")
    yield "half_a_line", case(metrics=b'{"step":1,"loss":1,"step_s":1}\n{"step":2')
    yield "nul_in_metrics", case(metrics=METRICS.replace(b'"loss":null', b'"loss":1}\0"'))
    yield "deep", b"[" * 3000 + SEPARATOR + METRICS
    yield "not_an_object", b"[]" + SEPARATOR + b"[]\n"
    yield "same_time", case(timeline__runs__0__end_us=[0, 0, 0])
    yield "no_bytes", case(timeline__persistent=[0] * 6, peak_bytes=0,
                           timeline__passes__0__bytes=[[0, 0, 0]] * 6)


def room_seeds():
    meminfo = b"MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\nSwapTotal: 1048576 kB\nSwapFree: 524288 kB\n" \
              b"CommitLimit: 3145728 kB\nCommitted_AS: 2097152 kB\nHugePages_Total: 0\n"
    mounts = b"24 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 24 0:26 / /two rw,nosuid shared:4 - cgroup2 cgroup2 rw\n" \
             b"31 24 0:27 / /one rw - cgroup cgroup rw,cpu,memory\n"
    numbers = [b"268435456\n", b"104857600\n", b"active_file 20971520\ninactive_file 31457280\n", b"0\n", b"0\n",
               b"max\n", b"1048576\n", b"9223372036854771712\n", b"52428800\n",
               b"total_inactive_file 10485760\ntotal_active_file 10485760\n", b"104857600\n", b"60000000\n", b"1\n",
               b"104857600\n", b"52428800\n"]

    def case(meminfo=meminfo, mounts=mounts, group=b"4:cpu,memory:/inner\n0::/inner\n", numbers=tuple(numbers)):
        return SEPARATOR.join([meminfo, mounts, group, b"2\n", b"VmSize:\t 5000 kB\nVmData:\t 300 kB\n", *numbers])

    yield "good", case()
    yield "nothing", b""
    yield "machine_alone", meminfo
    yield "outside", case(group=b"4:memory:/../../docker/0\n0::/../inner\n")
    yield "mounted_below", case(mounts=mounts.replace(b" / /two", b" /inner /two").replace(b" / /one", b" /inner/x /one"))
    yield "wraps", case(meminfo=meminfo.replace(b"4194304", b"18446744073709551615").replace(b"524288", b"18014398509481985"))
    yield "negative", case(meminfo=meminfo.replace(b"4194304", b"-1"), numbers=[b"-5\n"] * 15)
    yield "no_numbers", case(meminfo=meminfo.replace(b"8", b"x"), numbers=[b"\0"] * 15)
    yield "long_words", case(meminfo=b"M" * 600 + b": 1 kB\n" + meminfo, mounts=mounts.replace(b"/two", b"/two" * 1300),
                             group=b"0::/" + b"i" * 5000 + b"\n")
    yield "many_slashes", case(mounts=mounts.replace(b"/two", b"//////"), group=b"0::////\n4:memory:" + b"/" * 300 + b"\n")
    yield "cut_lines", case(mounts=b"30 24 - cgroup2\n - cgroup\n" + mounts[:-9], group=b"4:memory\n:\n::\n0::\n")


TARGETS = {
    "config": config_seeds, "options": options_seeds, "text": text_seeds, "formula": formula_seeds,
    "safetensors": safetensors_seeds, "pickle": pickles, "pth": pth_seeds, "idx": idx_seeds, "tensors": tensors_seeds,
    "checkpoint": checkpoint_seeds, "report": report_seeds, "room": room_seeds,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--done", type=pathlib.Path)
    options = parser.parse_args()
    for target, seeds in TARGETS.items():
        folder = options.folder / target
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        for name, content in seeds():
            (folder / name).write_bytes(content)
    if options.done:
        options.done.write_text("")


if __name__ == "__main__":
    main()
