"""Feeds damaged and hostile files to every reader of hpcfl, and counts what comes of them.

    python benchmarks/fuzz_files.py [--count FILES] [--seed SEED] [--only READER] [--keep FOLDER]

A file must be read, or refused in one sentence that names it. A traceback, a death of the process,
a wait of more than 20 seconds, more than 128 MiB of memory, or a refusal in other words is a
finding, and its file is kept. Every file follows from the seed, its reader and its number.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import hashlib
import io
import json
import math
import mmap
import os
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcfl.errors import HpcflError

HANG_SECONDS = 20.0
MEMORY_BYTES = 2**27  # for each file; of results see below
ADDRESS_SPACE_BYTES = 2**33  # what protects the machine
LONGEST_SENTENCE = 1500
_AGAIN = 3  # exit status of a process after which another one goes on

READ, REFUSED, TRACEBACK, DIED, HUNG, MEMORY, WORDS = (
    *("read", "refused", "traceback", "died", "hung", "memory", "words"),
)
OUTCOMES = (READ, REFUSED, TRACEBACK, DIED, HUNG, MEMORY, WORDS)
FINDINGS = OUTCOMES[2:]


@dataclass(frozen=True)
class Target:
    """A reader.

    Attributes
    ----------
    name : str
        What it reads.
    file : str
        Name of the file within a folder of its own.
    seeds : sequence of bytes
        Valid files.
    damage : callable
        Takes a generator and a valid file; returns another one.
    read : callable
        Takes the file's path; reads it and uses what it holds as the commands do.
    memory_bytes : int
        What it may take.
    """

    name: str
    file: str
    seeds: Sequence[bytes]
    damage: Callable[[random.Random, bytes], bytes]
    read: Callable[[Path], object]
    memory_bytes: int = MEMORY_BYTES


# Bytes

_INTEGERS = (0, 1, 2, 7, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1)
_LONG = (2**40, 2**60, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def damage_bytes(rng: random.Random, content: bytes) -> bytes:
    """Flip, cut, add, move, clear, or put boundary integers, once to four times."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        size = len(changed)
        at = rng.randrange(size + 1)
        length = rng.choice((1, 2, 4, 8, 16, 64, 512))
        kind = rng.randrange(9)
        if kind == 0 and size:
            for _ in range(rng.choice((1, 1, 2, 8))):
                changed[rng.randrange(size)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del changed[at:]
        elif kind == 2:
            changed += rng.choice((bytes(length), rng.randbytes(length), content[:length]))
        elif kind == 3:
            changed[at : at + length] = bytes(len(changed[at : at + length]))
        elif kind == 4:
            del changed[at : at + length]
        elif kind == 5:
            other = rng.randrange(size + 1)
            changed[at:at] = changed[other : other + length]
        elif kind == 6:
            width = rng.choice((1, 2, 4, 8))
            value = rng.choice(_INTEGERS + (_LONG if width == 8 else ())) % 2 ** (8 * width)
            order = rng.choice(("little", "big"))
            changed[at : at + width] = value.to_bytes(width, order)
        elif kind == 7:
            # Headers are at the beginning.
            at = rng.randrange(min(size, 64) + 1)
            changed[at : at + 4] = rng.randbytes(4)
        else:
            changed[at : at + length] = rng.randbytes(length)
    return bytes(changed)


def damage_gzip(rng: random.Random, content: bytes) -> bytes:
    """Damage what is packed, or the packing."""
    if rng.random() < 0.5:
        return gzip.compress(damage_bytes(rng, content), compresslevel=1)
    return damage_bytes(rng, gzip.compress(content, compresslevel=1))


# Text

_TOKENS = (
    *(b"-1", b"0", b"1.5", b"1e999", b"-1e999", b"NaN", b"Infinity", b"nan", b"inf", b"null"),
    *(b"true", b"[]", b"{}", b'""', b"[[]]", b"18446744073709551616", b"9223372036854775807"),
    *(b"9" * 5000, b"0x" + b"f" * 5000, b"[" * 100_000, b'{"a":' * 50_000, b"\x00", b"\xff\xfe"),
    *(b'"\\ud800"', b"../../x", b"/etc/passwd", b'"' + b"x" * 100_000 + b'"', b",", b"\n", b"?"),
    *(b"1979-05-27", b"'''", b"a.b.c = 1\n", b"[[grid]]\n", b"\xc2\xa0", b"\x1b[2J", b"1e-400"),
)


def damage_text(rng: random.Random, content: bytes) -> bytes:
    """Put something else in the place of a word or number, or damage the bytes."""
    if rng.random() < 0.3:
        return damage_bytes(rng, content)
    words = list(re.finditer(rb'"[^"\n]*"|[^\s",:\[\]{}=]+', content))
    if not words:
        return rng.choice(_TOKENS)
    for found in sorted(rng.sample(words, min(len(words), rng.choice((1, 1, 2)))), reverse=True,
                        key=lambda one: one.start()):  # fmt: skip
        token = rng.choice((rng.choice(_TOKENS), rng.choice(words).group(), b""))
        content = content[: found.start()] + token + content[found.end() :]
    return content


_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, 10**400, 0.5, -0.5, 1e308, 1e-320),
    *(float("nan"), float("inf"), "", "x", "1", "../../x", "/etc/passwd", "x" * 100_000, "\ud800"),
    *([], [[]], [1], ["a"], [None], {}, {"a": 1}, [1.0, float("nan")], [[1, 2], [3]], [0] * 1000),
)


def damage_json(rng: random.Random, content: bytes) -> bytes:
    """Put another value into a JSON text, take one out, or damage the text."""
    if rng.random() < 0.3:
        return damage_text(rng, content)
    document = json.loads(content)
    for _ in range(rng.choice((1, 1, 2))):
        place = document
        while isinstance(place, dict | list) and place:
            key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
            deeper = place[key]
            if isinstance(deeper, dict | list) and deeper and rng.random() < 0.8:
                place = deeper
                continue
            if rng.random() < 0.2:
                del place[key]
            elif isinstance(place, list) and rng.random() < 0.2:
                place.append(copy.deepcopy(deeper))
            else:
                place[key] = copy.deepcopy(rng.choice(_VALUES))
            break
    return json.dumps(document).encode("utf-8", "surrogatepass")


# Archives of arrays

_HEADERS = (
    *("(0,)", "(1,)", "(-1,)", "(5, 3)", "(1099511627776,)", "(9223372036854775807,)", "()"),
    *("(4294967296, 4294967296)", "(True,)", "(1.5,)", "((((", "(" * 300, "[3]", "None"),
)
_TYPES = ("|O", ">f8", "<f4", "<i8", "|u1", "|S3", "<U4", "|V8", "[('a','<i4')]", "<c16", "<M8[s]")


def damage_npy(rng: random.Random, content: bytes) -> bytes:
    """Damage the bytes, or write another header before them."""
    if rng.random() < 0.5 or content[:6] != b"\x93NUMPY":
        return damage_bytes(rng, content)
    length = struct.unpack("<H", content[8:10])[0]
    header, values = content[10 : 10 + length].decode("latin-1"), content[10 + length :]
    if rng.random() < 0.6:
        header = re.sub(r"'shape': \([^)]*\)", f"'shape': {rng.choice(_HEADERS)}", header)
    if rng.random() < 0.5:
        kind = rng.choice(_TYPES)
        kind = kind if kind.startswith("[") else f"'{kind}'"
        header = re.sub(r"'descr': '[^']*'", lambda _: f"'descr': {kind}", header)
    if rng.random() < 0.2:
        header = header.replace("False", "True")
    written = header.encode("latin-1")
    return content[:6] + rng.choice((b"\1\0", b"\1\0", b"\2\0")) + struct.pack(
        "<H", len(written)
    ) + written + values  # fmt: skip


def damage_npz(rng: random.Random, content: bytes) -> bytes:
    """Damage arrays within an archive that is right otherwise, or the archive."""
    if rng.random() < 0.3:
        return damage_bytes(rng, content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(list(members))
        other = rng.choice(list(members))
        kind = rng.randrange(10)
        if kind == 0:
            members[name] = members[other]
        elif kind == 1 and len(members) > 1:
            del members[name]
        elif kind == 2 and name in ("header.npy", "config.npy"):
            text = np.load(io.BytesIO(members[name])).tobytes()
            members[name] = _npy(np.frombuffer(damage_json(rng, text), np.uint8))
        elif kind <= 5:
            with suppress(Exception):
                members[name] = _npy(_other_values(rng, np.load(io.BytesIO(members[name]))))
        else:
            members[name] = damage_npy(rng, members[name])
    packing = zipfile.ZIP_DEFLATED if rng.random() < 0.1 else zipfile.ZIP_STORED
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", packing) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return written.getvalue()


def _npy(array: Any) -> bytes:
    written = io.BytesIO()
    np.save(written, array, allow_pickle=False)
    return written.getvalue()


def _other_values(rng: random.Random, array: Any) -> Any:
    """Return an array with another value, length or shape."""
    array = array.copy()
    kind = rng.randrange(4)
    if kind == 0 and array.ndim:
        return array[: rng.randrange(len(array) + 1)]
    if kind == 1:
        return np.concatenate([array.ravel(), array.ravel()])
    if kind == 2:
        return array.reshape(1, *array.shape)
    flat = array.reshape(-1)
    if flat.size and array.dtype.kind in "biuf":
        value = rng.choice((0, 1, -1, 255, 2**31, 2**63 - 1, -(2**63), np.nan, np.inf))
        with np.errstate(all="ignore"):
            flat[rng.randrange(flat.size)] = np.array(value).astype(array.dtype)
    return array


# HDF5


def damage_hdf5(rng: random.Random, content: bytes) -> bytes:
    """Write what HDF5 allows and no results file has, or damage the bytes."""
    if rng.random() < 0.5:
        return damage_bytes(rng, content)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.h5"
        path.write_bytes(content)
        try:
            # Once: a second edit would read what the first one claims.
            with h5py.File(path, "r+") as file, suppress(Exception):
                _edit(rng, file)
        except Exception:  # no file system holds what was claimed
            return damage_bytes(rng, content)
        return path.read_bytes()


def _edit(rng: random.Random, file: Any) -> None:
    names: list[str] = []
    file.visit(names.append)
    name = rng.choice(names)
    thing = file[name]
    kind = rng.randrange(8)
    if kind <= 2:
        groups = [one for one in ("/", *names) if file[one].attrs]
        attributes = file[rng.choice(groups)].attrs
        word = rng.choice(list(attributes))
        if rng.random() < 0.15:
            del attributes[word]
            return
        value = rng.choice(_ATTRIBUTES)
        attributes[word] = file[name].ref if value == "reference" else value
    elif kind == 3:
        del file[name]
    elif kind <= 5 and isinstance(thing, h5py.Dataset):
        _replace(rng, file, name, thing)
    elif kind == 6:
        del file[name]
        file[name] = rng.choice(
            (
                h5py.SoftLink(f"/{name}"),
                h5py.SoftLink(f"/{rng.choice(names)}"),
                h5py.ExternalLink(rng.choice(("/etc/passwd", "file.h5", "/dev/zero")), "/rounds"),
                file["/"],
            )
        )
    elif isinstance(thing, h5py.Dataset) and thing.dtype.kind in "biuf" and thing.size:
        value = rng.choice((0, 1, -1.0, np.nan, np.inf, 1e308, 2**63, 2**64 - 1))
        with np.errstate(all="ignore"):
            thing[tuple(rng.randrange(side) for side in thing.shape)] = value


_ATTRIBUTES: tuple[Any, ...] = (
    *(
        0,
        -1,
        2**62,
        np.uint64(2**64 - 1),
        1.5,
        -1e308,
        np.nan,
        np.inf,
        True,
        "",
        "none",
        "x" * 9999,
    ),
    *(np.bytes_(b"\xff\xfe"), np.bytes_(b"ok"), [1, 2, 3], ["a", "b"], "[" * 30_000, '["a", 1]'),
    *("{}", "[null]", "[[1]]", "../../x", "hpcfl/1", "complete", np.float16(1), np.zeros((2, 2))),
    *(np.array((1, 2.0), "i4,f8"), h5py.Empty("f8"), np.complex128(1j), "\x1b[2J", "reference"),
)


def _replace(rng: random.Random, file: Any, name: str, old: Any) -> None:
    shape, dtype = old.shape, old.dtype
    values = old[()]
    del file[name]
    kind = rng.randrange(9)
    huge = (rng.choice((2**20, 2**40, 2**60)), *shape[1:])
    if kind == 0:
        file.create_dataset(name, huge, dtype, chunks=(1, *shape[1:]), maxshape=(None, *shape[1:]))
    elif kind == 1:
        file.create_dataset(name, huge, dtype)
    elif kind == 2:
        # A thousandth of what it unpacks to.
        lots = np.zeros((2**22 // max(1, int(np.prod(shape[1:]))), *shape[1:]), dtype)
        file.create_dataset(name, data=lots, compression="gzip")
    elif kind == 3:
        file.create_dataset(name, data=values.astype(rng.choice(("f4", ">f8", "i1", "u2", "S4"))))
    elif kind == 4:
        file.create_dataset(name, data=values.reshape(-1))
    elif kind == 5:
        file.create_dataset(name, shape, dtype, external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)])
    elif kind == 6:
        layout = h5py.VirtualLayout(shape, dtype)
        layout[...] = h5py.VirtualSource("/etc/passwd", "x", shape)
        file.create_virtual_dataset(name, layout)
    elif kind == 7:
        file.create_group(name)
    else:
        file.create_dataset(name, data=rng.choice(_ATTRIBUTES[:12]))


# Readers


def _mnist(packed: bool) -> Target:
    from hpcfl.learning import idx

    generator = np.random.default_rng(0)
    contents = {}
    for part, count in (("train", 6), ("t10k", 4)):
        images = generator.integers(0, 256, (count, 28, 28), np.uint8)
        contents[f"{part}-images-idx3-ubyte"] = struct.pack(">4I", 2051, *images.shape)
        contents[f"{part}-images-idx3-ubyte"] += images.tobytes()
        contents[f"{part}-labels-idx1-ubyte"] = struct.pack(">2I", 2049, count) + bytes(
            range(count)
        )
    ending = ".gz" if packed else ""
    file = "mnist/train-images-idx3-ubyte"

    def read(path: Path) -> None:
        for name, content in contents.items():
            other = path.parent / f"{name}{ending}"
            if other != path and not other.exists():
                other.write_bytes(gzip.compress(content) if packed else content)
        _check_data(idx.read_mnist(path.parent.parent))

    seed = contents[Path(file).name]
    if not packed:
        return Target("idx", file, [seed], damage_bytes, read)
    return Target("idx.gz", f"{file}.gz", [gzip.compress(seed)], _unpacked(damage_gzip), read)


def _mnist_labels() -> Target:
    whole = _mnist(packed=False)
    seed = struct.pack(">2I", 2049, 6) + bytes(range(6))
    return replace(whole, name="idx.labels", file="mnist/train-labels-idx1-ubyte", seeds=[seed])


def _unpacked(damage: Callable[[random.Random, bytes], bytes]) -> Any:
    return lambda rng, content: damage(rng, gzip.decompress(content))


def _check_data(data: Any) -> None:
    """Assert what all that use a data set rely on."""
    for inputs, labels in (
        (data.train_inputs, data.train_labels),
        (data.test_inputs, data.test_labels),
    ):
        assert len(inputs) == len(labels) > 0
        assert inputs.dtype == np.float32
        assert np.isfinite(inputs).all()
        assert labels.dtype == np.int64
        assert ((labels >= 0) & (labels < data.classes)).all()


def _cifar10() -> Target:
    from hpcfl.learning import cifar10

    rows = np.random.default_rng(0).integers(0, 256, (2, 3072), np.uint8)
    # As Python 2 pickled it.
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
        b"K\x02M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN"
        b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + struct.pack("<i", rows.size)
    )
    seed = b"\x80\x02}(U\x04dataq\x01" + array + rows.tobytes() + b"tbU\x06labels](K\x03K\x05eu."

    def read(path: Path) -> None:
        # The checksum is made to fit: what is behind it must hold by itself.
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        other = path.parent / "test_batch"
        other.write_bytes(seed)
        digests = {path.name: found, other.name: hashlib.sha256(seed).hexdigest()}
        _check_data(cifar10.read(path.parent.parent.parent, digests))

    return Target("cifar10", "cifar10/cifar-10-batches-py/data_batch_1", [seed], damage_bytes, read)


def _adult() -> Target:
    from hpcfl.learning import adult

    def row(number: int) -> str:
        country, label = ("?", ">50K") if number % 3 else ("Cuba", "<=50K")
        return (
            f"{20 + number}, Private, {10**5 + number}, HS-grad, 9, Divorced, Sales, Unmarried, "
            f"White, Male, 0, 0, 40, {country}, {label}\n"
        )

    def rows(count: int) -> bytes:
        return "".join(map(row, range(count))).encode()

    def read(path: Path) -> None:
        (path.parent / "adult.test").write_bytes(b"|1x3 Cross validator\n" + rows(4))
        _check_data(adult.read(path.parent.parent, 8, 4))

    return Target("adult", "adult/adult.data", [rows(8)], damage_text, read)


def _femnist() -> Target:
    from hpcfl.learning import leaf

    def content(writers: dict[str, list[int]]) -> bytes:
        data = {
            user: {"x": [[0.25] * 784 for _ in labels], "y": labels}
            for user, labels in writers.items()
        }
        sizes = [len(labels) for labels in writers.values()]
        whole = {"users": list(writers), "num_samples": sizes, "user_data": data}
        return json.dumps(whole).encode()

    def read(path: Path) -> None:
        other = path.parent.parent / "test" / "a.json"
        if not other.exists():
            other.parent.mkdir()
            other.write_bytes(content({"w": [3]}))
        found = leaf.read_femnist(path.parent.parent.parent)
        _check_data(found)
        assert found.writers is not None
        assert found.writers.shape == found.train_labels.shape

    seeds = [content({"a": [1], "b": [2]})]
    return Target("femnist", "femnist/train/a.json", seeds, damage_json, read)


def _results_file(path: Path, trained: bool) -> bytes:
    """Return a results file, written at a path."""
    from hpcfl.results.record import RoundRecord
    from hpcfl.results.writer import ResultsWriter

    config = {"dim": 7, "alpha": 0.1, "dropout": 0.3, "promises": ["nothing"], "preset": None}
    facts = {"transport": "loopback", "host_ranks": [1], "cores_usable": 2, "before_load_1min": 0.5}
    learned = {"accuracy": 0.5, "loss": 1.0, "device_loss": np.ones(3)} if trained else {}
    with ResultsWriter(
        path,
        protocol="secagg",
        command="hpcfl bench secagg",
        config=config | {"uplink_mbps": 100.0, "dataset": "digits", "model": "m", "devices": 3},
        environment=facts | {"ranks": 1, "mpi_library": None},
        at_end={"stop_reason": "", "after_load_1min": math.nan},
        phases=("model", "masked_input"),
        devices=3,
        rounds=4,
        training=[name for name in learned if name != "device_loss"],
        device_training=[name for name in learned if name == "device_loss"],
        partition=[[1, 2], [3, 4], [5, 6]] if trained else None,
    ) as writer:
        for index in range(3):
            record = RoundRecord.empty(2, 3)
            record.bytes_up[:] = record.bytes_down[:] = 10 + index
            record.messages_up[:] = record.messages_down[:] = 1
            record.cpu_seconds[:] = record.wall_seconds[:] = 0.5 + index
            record.round_seconds = 1.0 + index
            record.survived[:] = record.validated = True
            record.warmup = index == 0
            writer.append(record, learned)
    return path.read_bytes()


def _results(folder: Path) -> Target:
    seeds = [_results_file(folder / f"{trained}.h5", trained) for trained in (False, True)]
    calls = 0

    def read(path: Path) -> None:
        nonlocal calls
        calls += 1
        use_run(path, drawn=calls % 100 <= len(seeds))

    # HDF5 takes as much as a damaged text claims to have, in a field of 32 bits, and gives it back.
    return Target("results", "run.h5", seeds, damage_hdf5, read, 2**32 + MEMORY_BYTES)


def use_run(path: Path, drawn: bool) -> None:
    """Do with a results file what report, compare, merge and plot do."""
    from hpcfl.results import comparison, pooling, tables
    from hpcfl.results.reader import load, load_many

    run = load(path)
    _ = run.dim
    pools = pooling.group([run, run])
    summaries = [pooling.summarise(pool, run.link()) for pool in pools]
    for facts in (*tables.details(run), tables.facts(summaries[0])):
        facts.text()
        facts.markdown()
    tables.render_promises(run)
    tables.to_json([*summaries, *summaries])
    compared = tables.comparison([*summaries, *summaries])
    for table in (
        tables.phases(summaries[0]),
        compared,
        tables.every_figure(summaries),
    ):
        table.text()
        table.markdown()
        table.latex()
        table.csv()
        table.json()
    load_many([path])
    if run.measured.any() and not run.training:
        side = comparison.one_configuration([run], "A")
        found = comparison.compare(side, side, "device_cpu_seconds")
        str(found)
        json.dumps(found.as_dict(), allow_nan=False)
    if drawn:
        from hpcfl.plots import KINDS

        for kind in KINDS.values():
            module = kind.module()
            if module.lacking(run) is None:
                module.draw([run]).savefig(io.BytesIO(), format="svg")


def _plan() -> Target:
    from hpcfl.sweeping.plan import read

    seeds = [
        b"[fixed]\ndim = 100\ndropout = 0.3\nrounds = 2\n"
        b'[grid]\nprotocol = ["secagg", "sparse"]\n'
        b"devices = [5, 10]\nalpha = [0.1, 0.2]\nrepeats = 3\n",
        b'[[grid]]\nprotocol = "fedavg"\ndevices = 4\n'
        b'[[grid]]\nprotocol = ["sparse"]\ndevices = 6\n'
        b'group = ["fq", "ring32"]\nclip = 0.5\nlevels = 1024\nseed = 1\n',
    ]
    return Target("plan", "plan.toml", seeds, damage_text, read)


def _manifest() -> Target:
    from hpcfl.sweeping.cells import Cell
    from hpcfl.sweeping.manifest import NAME, SCHEMA, load

    cells = [
        vars(Cell(i, f"{i:016x}", f"secagg-{i}.h5", ("secagg", f"--devices={i + 1}", "--dim=9"),
                  "secagg", i + 1, 9, 2, 0))
        for i in range(3)
    ]  # fmt: skip
    about = {"plan": "p.toml", "seed": 1, "created": "2026-01-01T00:00:00Z", "version": "0.1.0"}
    seed = json.dumps({"schema": SCHEMA, **about, "cells": cells}).encode()

    def read(path: Path) -> None:
        found = load(path.parent)
        assert found is not None
        for cell in found.cells:
            # What a sweep moves aside and writes must be in its folder.
            assert (path.parent / cell.file).parent == path.parent
            assert isinstance(cell.title, str)

    return Target("manifest", NAME, [seed], damage_json, read)


def _calibration(folder: Path) -> Target:
    from hpcfl.algorithms.aggregation.costs import OPERATIONS
    from hpcfl.costmodel.calibration import Calibration, PatternCost, load
    from hpcfl.costmodel.overheads import OVERHEADS

    links = {
        name: PatternCost(*[1e-9] * len(fields(PatternCost)))
        for name in ("broadcast", "gather", "route")
    }
    samples = {name: [1e-6, 2e-6] for name in (*OPERATIONS, *OVERHEADS)}
    Calibration(samples, 2, links, 1.5, 1.25, {"cpu": "abacus"}).save(folder / "c.json")

    def read(path: Path) -> None:
        found = load(path)
        assert 0 <= found.seconds({next(iter(OPERATIONS)): 2.0}) < float("inf")
        assert found.devices_slowdown > 0 < found.server_slowdown

    seeds = [(folder / "c.json").read_bytes()]
    return Target("calibration", "calibration.json", seeds, damage_json, read)


def _checkpoint(folder: Path) -> Target:
    from hpcfl.training.checkpoint import Checkpoint, load

    config = {"dim": 5, "seed": 0, "protocol": "secagg", "rounds": 9, "algorithm": "fedavg"}
    weights = np.linspace(-1, 1, 5, dtype=np.float32)
    Checkpoint(3, weights, np.zeros(5), 99, config, {}, 1, 2, (4, 5, 3)).save(folder / "c.npz")

    def read(path: Path) -> None:
        found = load(path, config)
        assert found.weights.dtype == np.float32
        assert found.weights.shape == found.velocity.shape
        assert np.isfinite(found.weights).all()
        assert found.weights.size >= 5
        assert min(found.next_round, found.bytes_up, found.repeated, found.at_risk) >= 0
        assert len(found.survivors) == found.next_round

    return Target("checkpoint", "run.checkpoint.npz", [(folder / "c.npz").read_bytes()],
                  damage_npz, read)  # fmt: skip


def _transcript(folder: Path) -> Target:
    from hpcfl.attack.components import attack
    from hpcfl.attack.transcript import load
    from hpcfl.benchmark.experiment import Experiment
    from hpcfl.comm.loopback import Loopback
    from hpcfl.options.bench import BenchOptions

    seeds = []
    for protocol in ("sparse", "secagg"):
        path = folder / f"{protocol}.npz"
        options = BenchOptions(protocol, dim=30, rounds=1, warmup=0, levels=2000, alpha=0.3,
                               gamma=0.2, insecure_seed=1, keep_transcript=path)  # fmt: skip
        Experiment.prepare(options, 6).run(Loopback(6))
        seeds.append(path.read_bytes())

    def read(path: Path) -> None:
        held = load(path)
        try:
            attack(held, 2)
        except HpcflError as error:  # as `hpcfl attack` says it
            raise HpcflError(f"{path}: {error}") from None

    return Target("transcript", "round.npz", seeds, damage_npz, read)


def _updates(suffix: str, folder: Path) -> Target:
    from hpcfl.rounds.input_files import FileUpdates

    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    seeds = []
    for number, options in enumerate(({}, {"chunks": (1, 4), "compression": "gzip"})):
        path = folder / f"{number}{suffix}"
        if suffix == ".npy":
            np.save(path, rows if number else np.asfortranarray(rows.astype(">f8")))
        else:
            with h5py.File(path, "w") as file:
                file.create_dataset("updates", data=rows, **options)
                file["weights"] = [1.0, 2.0, 3.0]
        seeds.append(path.read_bytes())

    def read(path: Path) -> None:
        updates = FileUpdates(path, 3)
        assert updates.dim >= 1
        assert updates.weights is None or abs(updates.weights.sum() - 1) < 1e-9
        for device in range(3):
            vector = updates.vector(0, device)
            assert vector.dtype in (np.float32, np.float64)
            assert vector.dtype.isnative
            assert vector.shape == (updates.dim,)
            assert np.isfinite(vector).all()

    damage = damage_npy if suffix == ".npy" else damage_hdf5
    return Target(f"updates{suffix}", f"updates{suffix}", seeds, damage, read)


def targets(folder: Path) -> list[Target]:
    """Return all readers; their valid files are made in a folder."""
    return [
        *(_mnist(packed=False), _mnist(packed=True), _mnist_labels(), _cifar10(), _adult()),
        *(_femnist(), _results(folder), _plan(), _manifest()),
        *(_calibration(folder), _checkpoint(folder), _transcript(folder)),
        *(_updates(".npy", folder), _updates(".h5", folder)),
    ]


# The campaign


def make(target: Target, seed: int, number: int) -> bytes:
    """Return a damaged file."""
    rng = random.Random(f"{seed}/{target.name}/{number}")
    return target.damage(rng, rng.choice(target.seeds))


def outcome(target: Target, path: Path) -> tuple[str, str]:
    """Read a file in this process; return what came of it, and the words."""
    try:
        target.read(path)
    except HpcflError as error:
        sentence = str(error)
        fine = len(sentence) < LONGEST_SENTENCE and "\n" not in sentence and path.name in sentence
        return (REFUSED if fine else WORDS), sentence
    except Exception:
        return TRACEBACK, traceback.format_exc()
    return READ, ""


def _work(target: Target, seed: int, first: int, count: int, folder: Path, shared: Any) -> int:
    """Read files from a number on, in a process of its own; return its status.

    `shared` has a byte for the outcome of each file, and then the number that it is at.
    """
    path = folder / target.file
    path.parent.mkdir(parents=True, exist_ok=True)
    for valid in target.seeds:
        path.write_bytes(valid)
        found, words = outcome(target, path)
        if found != READ:
            raise AssertionError(f"a valid file of {target.name} was not read: {words}")
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    for number in range(first, count):
        shared[count : count + 8] = struct.pack("<Q", number)
        path.write_bytes(make(target, seed, number))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found, words = outcome(target, path)
        grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        if grown > target.memory_bytes:
            found, words = MEMORY, f"{grown / 2**20:.0f} MiB; {words}"
        if found in FINDINGS:
            (folder / "finding.txt").write_text(words, errors="replace")
            _keep(target, number, found, folder)
        shared[number] = OUTCOMES.index(found) + 1
        if found == MEMORY:
            # The largest memory of a process never gets less: the next file needs another one.
            return _AGAIN
    return 0


def _keep(target: Target, number: int, found: str, folder: Path) -> None:
    kept = folder.parent / "findings" / f"{target.name}-{number}-{found}"
    kept.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(folder / target.file, kept / Path(target.file).name)
    with suppress(OSError):
        shutil.move(folder / "finding.txt", kept / "finding.txt")


def campaign(target: Target, seed: int, count: int, folder: Path) -> Counter[str]:
    """Read so many damaged files; return how many had which outcome.

    Parameters
    ----------
    target : Target
        The reader.
    seed : int
        What the files follow from.
    count : int
        How many.
    folder : path
        Where they lie; those of findings are kept in its folder ``findings``.

    Returns
    -------
    Counter
        Outcomes, of `OUTCOMES`.
    """
    own = folder / target.name
    shared = mmap.mmap(-1, count + 8)
    first = 0
    while first < count:
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir(parents=True)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = _work(target, seed, first, count, own, shared)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        status, hung = _wait(child, shared, count)
        number = struct.unpack("<Q", shared[count : count + 8])[0]
        if status == 0:
            break
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == _AGAIN:
            first = number + 1
            continue
        if not os.WIFSIGNALED(status):
            raise RuntimeError(f"the fuzzing of {target.name} itself failed")
        found = HUNG if hung else DIED
        (own / "finding.txt").write_text(signal.Signals(os.WTERMSIG(status)).name)
        _keep(target, number, found, own)
        shared[number] = OUTCOMES.index(found) + 1
        first = number + 1
    return Counter(OUTCOMES[code - 1] for code in shared[:count])


def _wait(child: int, shared: Any, count: int) -> tuple[int, bool]:
    """Wait for a process; return its status, and whether it had to be killed for a file."""
    at, since = b"", time.monotonic()
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status, False
        now = time.monotonic()
        if shared[count : count + 8] != at:
            at, since = shared[count : count + 8], now
        elif now - since > HANG_SECONDS:
            os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1], True
        time.sleep(0.01)


def main() -> None:
    """Run the campaign and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=7000, help="files for each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", help="a reader; may be given again")
    parser.add_argument("--keep", type=Path, help="folder for the files of findings")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-files-"))
    total: Counter[str] = Counter()
    print(f"{'reader':<14}" + "".join(f"{name:>11}" for name in (*OUTCOMES, "files/s")))
    for target in targets(folder):
        if asked.only and target.name not in asked.only:
            continue
        start = time.monotonic()
        found = campaign(target, asked.seed, asked.count, folder)
        rate = asked.count / (time.monotonic() - start)
        total += found
        row = [found[name] for name in OUTCOMES]
        print(f"{target.name:<14}" + "".join(f"{one:>11}" for one in row) + f"{rate:>11.0f}")
    print(f"{'all':<14}" + "".join(f"{total[name]:>11}" for name in OUTCOMES))
    findings = sum(total[name] for name in FINDINGS)
    if findings and asked.keep is not None:
        shutil.copytree(folder / "findings", asked.keep, dirs_exist_ok=True)
    shutil.rmtree(folder)
    print(f"{sum(total.values())} files, {findings} findings")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
