"""What files can claim, nest, pack, name or leave out: each is refused by the file's name."""

import hashlib
import io
import json
import pickle
import re
import struct
import tracemalloc
import zipfile
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcfl.costmodel import calibration
from hpcfl.errors import HpcflError, UsageError
from hpcfl.learning import adult, cifar10, leaf
from hpcfl.learning.base import folder_of
from hpcfl.results import schema
from hpcfl.results.reader import load
from hpcfl.results.record import RoundRecord
from hpcfl.results.summary import summarise
from hpcfl.results.tables import render_promises, to_json
from hpcfl.results.writer import ResultsWriter
from hpcfl.rounds.input_files import FileUpdates
from hpcfl.sweeping import manifest, plan
from hpcfl.system import disturbances, files
from hpcfl.training import checkpoint

DEEP = 100_000
MEGABYTE = 2**20


@contextmanager
def at_most(limit_bytes):
    """Assert that no more memory is taken, by Python and NumPy."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit_bytes
    finally:
        tracemalloc.stop()


@contextmanager
def refused(path, sentence=None, error=UsageError, limit_bytes=16 * MEGABYTE):
    """Assert that a file is refused, by its name, in a sentence and without taking memory."""
    with at_most(limit_bytes), pytest.raises(error, match=sentence) as caught:
        yield
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 2000


def npy(array):
    written = io.BytesIO()
    np.save(written, array, allow_pickle=True)
    return written.getvalue()


def npy_claiming(header, values=b""):
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + values


def claim(shape, descr="'<f8'"):
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"


# What all readers share


def test_a_file_above_its_bound_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "long"
    with path.open("wb") as file:
        file.truncate(2**40)

    with at_most(MEGABYTE), pytest.raises(ValueError, match="exceed the limit of 100 bytes"):
        files.contents(path, 100)


def test_what_has_no_end_is_not_read():
    with at_most(MEGABYTE), pytest.raises(UsageError, match="/dev/zero is a device"):
        files.contents(Path("/dev/zero"), 3_000_000)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[" * DEEP, "nested too deeply"),
        ('{"a":' * DEEP, "nested too deeply"),
        ('{"a": 1, "a": 2}', "it has 'a' twice"),
        ("9" * 5000, "digits"),
    ],
)
def test_json_that_python_does_not_take_as_it_is(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        files.parse_json(text)


@pytest.mark.parametrize("value", ["[" * DEEP, '{"a": 1, "a": 2}', "[1", "x"])
def test_text_that_is_not_json_stays_text_where_a_list_could_be(value):
    assert schema.decode({"hosts": value}) == {"hosts": value}


@pytest.mark.parametrize("value", [["a"], [None], [1.5], [[1]], [True], {}, "1", None])
def test_numbers_of_ranks_that_are_none_are_none(value):
    facts = {"cores_usable": 1, "before_load_1min": 1.0, "host_facts": {"cores_usable": value}}

    assert disturbances.warnings(facts | {"host_ranks": value, "hosts": value}) == []


NOT_NPY = [
    npy(np.array([{}])),
    npy(np.array([(1, 2.0)], "i4,f8")),
    npy(np.arange(3)) + b"more",
    npy(np.arange(3))[:-1],
    npy_claiming(claim("(1099511627776,)"), bytes(64)),
    npy_claiming(claim("(-1,)")),
    npy_claiming(claim("(True,)"), bytes(8)),
    npy_claiming(claim("(0, 9223372036854775808)")),
    npy_claiming(claim("(" * 400)),
    npy_claiming(claim("-" * 900 + "1")),
    npy_claiming(claim("(1,)", "'|O'"), pickle.dumps([1])),
    b"\x93NUMPY\x03\x00" + npy(np.arange(3))[8:],
    b"PK\x03\x04",
]


@pytest.mark.parametrize("content", NOT_NPY)
def test_arrays_in_memory_that_are_none(content):
    with at_most(MEGABYTE), pytest.raises(ValueError, match=r"^[A-Za-z]"):
        files.parse_npy(content)


@pytest.mark.parametrize(
    "array",
    [np.arange(6).reshape(2, 3), np.asfortranarray(np.ones((2, 3))), np.array("text"), np.empty(0),
     np.array([1, 2], ">u2"), np.array(True), np.empty((3, 0))],
)  # fmt: skip
def test_arrays_in_memory_are_read(array):
    read = files.parse_npy(npy(array))

    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(read, array)
    assert read.flags.writeable


def archive(path, members, packing=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", packing) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def test_a_packed_archive_is_not_unpacked(tmp_path):
    path = archive(tmp_path / "a.npz", {"x.npy": npy(np.zeros(2**22))}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**16

    with at_most(MEGABYTE), pytest.raises(ValueError, match="claims more than it holds"):
        files.load_npz(path)
    noise = np.random.default_rng(0).integers(0, 256, 1000, np.uint8)
    archive(path, {"x.npy": npy(noise)}, zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match="its member 'x' is packed"):
        files.load_npz(path)


def test_a_flipped_bit_of_an_array_is_found(tmp_path):
    path = archive(tmp_path / "a.npz", {"x.npy": npy(np.arange(100))})
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)

    with pytest.raises(ValueError, match="Bad CRC"):
        files.load_npz(path)


def test_an_archive_of_a_later_kind_is_refused(tmp_path):
    """What the zip reader cannot read ends as one sentence of ours, not as its exception."""
    path = archive(tmp_path / "a.npz", {"x.npy": npy(np.arange(100))})
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 6] = 200  # the version that it takes to read it
    path.write_bytes(content)

    with pytest.raises(ValueError, match=r"not a \.npz file, or a damaged one"):
        files.load_npz(path)


# Texts and pickles

ADULT = "40, {}, 1000, HS-grad, 9, Divorced, Sales, Unmarried, White, Male, 0, 0, 40, Cuba, <=50K\n"
LEAF = {
    "users": ["a"],
    "num_samples": [1],
    "user_data": {"a": {"x": [[0.5] * 784], "y": [1]}},
}
CELL = {"index": 0, "id": "00ff", "file": "secagg.h5", "repeat": 0, "protocol": "secagg"}
CELL |= {"arguments": ["secagg", "--devices=5"], "devices": 5, "dim": 9, "rounds": 2}
MANIFEST = {"schema": manifest.SCHEMA, "plan": "p", "seed": 0, "created": "now", "version": "1"}
MANIFEST |= {"cells": [CELL]}
COSTS = {"format": calibration.FORMAT, "about": {}, "ranks": 1, "links": {}, "cpu_seconds": {}}
COSTS |= {"devices_slowdown": 1.0, "server_slowdown": 1.0}


def read_adult(folder):
    rows = (folder / "adult" / "adult.data").read_text().count("\n")
    adult.read(folder, rows, 1)


def read_cifar(folder):
    digest = hashlib.sha256((folder_of("cifar10", folder) / "test_batch").read_bytes()).hexdigest()
    cifar10.read(folder, dict.fromkeys(("data_batch_1", "test_batch"), digest))


# Where each is in a folder, how it is read, and what a right one holds.
READERS = {
    "adult": ("adult/adult.data", read_adult, None),
    "leaf": ("femnist/train/a.json", leaf.read_femnist, LEAF),
    "cifar": (str(folder_of("cifar10", Path()) / "data_batch_1"), read_cifar, None),
    "plan": ("plan.toml", lambda folder: plan.read(folder / "plan.toml"), None),
    "manifest": (manifest.NAME, manifest.load, MANIFEST),
    "cell": (manifest.NAME, manifest.load, CELL),
    "costs": ("c.json", lambda folder: calibration.load(folder / "c.json"), COSTS),
}
HOSTILE = {
    ("adult", None): [
        (ADULT.format("x" * 100_000), "line 1 has 100000 characters as its workclass"),
        (ADULT.format(""), "line 1 has 0 characters as its workclass"),
        ("".join(ADULT.format(f"c{k}") for k in range(101)), "100 categories of workclass"),
    ],
    ("leaf", None): [
        ({"users": ["a", "a"], "num_samples": [1, 1]}, "do not fit together"),
        ({"users": "a"}, "are something else"),
        ({"num_samples": [True]}, "are not whole numbers"),
        ({"num_samples": [0]}, "has samples, and num_samples has none"),
        ({"user_data": {"a": {"x": [["0.5"] * 784], "y": [1]}}}, "pixels that are not numb"),
        ({"user_data": {"a": {"x": [[0.5] * 784], "y": [True]}}}, "not whole numbers"),
    ],
    # A memo of 2^25 places; a text of 2^62 bytes; lists that stand for 10^30 numbers; a program.
    ("cifar", "is not a batch of CIFAR"): [
        b"\x80\x02]r\x00\x00\x00\x01.",
        b"\x80\x02\x8e" + struct.pack("<Q", 2**62) + b".",
        b"\x80\x02" + b"]q\x00" + b"(h\x00h\x00e" * 100 + b".",
        b"\x80\x02cos\nsystem\nU\x04trueq\x00\x85R.",
        b"\x80\x02}(U\x04dataK\x01U\x06labels" + b"](" + b"](K\x01K\x02ee" + b"u.",
    ],
    ("plan", None): [
        ("fixed = " + "[" * DEEP, "nested too deeply"),
        ("[fixed]\ndim = " + "9" * 5000, "is not TOML"),
        ("[fixed]\ndim = 0x" + "f" * 5000, "digits"),
        ("[fixed]\ndim = 1979-05-27", "neither a number nor text"),
        ('[fixed]\nprotocol = "' + "x" * 2000 + '"', "has more than 1000 characters"),
        ("[fixed]\n" + "x" * 10_000 + " = 1", "there is no option of a plan"),
        ("#" * (2**20 + 1), "limit of 1048576 bytes"),
        ("[grid]\nprotocol = 'secagg'\ndevices = 5\nrepeats = 100_001", "more than 100000 cells"),
        (
            "[grid]\nprotocol = 'secagg'\n"
            + "".join(f"{name} = {[*range(5, 105)]}\n" for name in ("devices", "dim", "seed")),
            "more than 100000 cells",
        ),
    ],
    ("manifest", "is damaged"): [
        {"cells": [1]},
        {"cells": [CELL, CELL]},
        {"seed": "x"},
        {"plan": 3},
        {"colour": 3},
        "[" * DEEP,
    ],
    # What leads elsewhere, too.
    ("cell", "is damaged"): [
        *({"file": name} for name in ("../x.h5", "/etc/x.h5", "sweep.json", ".h5", "")),
        {"arguments": ["secagg", "--save-aggregate=/tmp/x"]},
        {"arguments": ["secagg", "--keep-transcript=/tmp/x"]},
        {"arguments": ["secagg", "--output=/tmp/x"]},
        {"arguments": ["secagg", "/tmp/x"]},
        *({"arguments": arguments} for arguments in (["--help"], [], "secagg")),
        *({"devices": count} for count in (0, "5", True)),
        {"dim": 2**63},
        {"rounds": -1},
        {"index": 1},
        {"id": "x/y"},
        {"colour": 1},
    ],
    ("costs", "(is not a calibration|has the format)"): [
        {"devices_slowdown": 0},
        {"server_slowdown": "2"},
        *({"ranks": ranks} for ranks in (1.5, "2", True)),
        {"about": [["a", 1]]},
        *({"cpu_seconds": {"key_pair": seconds}} for seconds in ("123", [True], [10**400])),
        *({"links": {"gather": link}} for link in ("12", [1.0])),
        {"format": ["x" * 10**5]},
    ],
}


def write(path, reader, changes=None):
    """Write a right file of a kind, with changes, or something else than one."""
    whole = READERS[reader][2]
    if changes is None or isinstance(changes, dict):
        changes = whole | (changes or {})
        changes = json.dumps(MANIFEST | {"cells": [changes]} if reader == "cell" else changes)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(changes.encode() if isinstance(changes, str) else changes)


@pytest.mark.parametrize(
    ("reader", "content", "sentence"),
    [
        (reader, *(one if isinstance(one, tuple) else (one, sentence)))
        for (reader, sentence), files_of in HOSTILE.items()
        for one in files_of
    ],
    ids=lambda value: str(value)[:30],
)
def test_files_that_claim_nest_or_lead_elsewhere(tmp_path, reader, content, sentence):
    name, read, _ = READERS[reader]
    path = tmp_path / name
    write(path, reader, content)
    if reader == "cifar":
        write(path.with_name("test_batch"), reader, content)

    with refused(path, sentence, HpcflError, limit_bytes=32 * MEGABYTE):
        read(tmp_path)


def test_what_is_changed_in_them_is_why_they_are_refused(tmp_path):
    for reader in ("manifest", "cell"):
        write(tmp_path / manifest.NAME, reader)
        assert manifest.load(tmp_path) is not None
    write(tmp_path / "c.json", "costs")
    with pytest.raises(HpcflError, match="was made by another version"):
        calibration.load(tmp_path / "c.json")


# Results


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.h5"
    options = {"protocol": "secagg", "command": "", "phases": ("model", "masked_input")}
    options |= {"config": {"dim": 7, "promises": ["nothing"]}, "environment": {"transport": "x"}}
    options |= {"training": ("accuracy",), "partition": [[1], [2], [3]]}
    with ResultsWriter(path, devices=3, rounds=2, **options) as writer:
        for _ in range(2):
            writer.append(RoundRecord.empty(2, 3), {"accuracy": 0.5})
    load(path)
    return path


def replaced(name, **options):
    def change(file):
        found = file[name]
        shape, dtype = found.shape, found.dtype
        del file[name]
        file.create_dataset(name, **{"shape": shape, "dtype": dtype} | options)

    return change


def linked(name, link):
    def change(file):
        file.move(name, "aside")
        file[name] = link

    return change


def attribute(group, name, value):
    def change(file):
        file[group].attrs[name] = value

    return change


def value(name, number):
    def change(file):
        file[name][...] = number

    return change


HUGE = (2**40, 2, 3)


@pytest.mark.parametrize(
    "change",
    [
        replaced("rounds/bytes_up", shape=HUGE, chunks=(1, 2, 3)),
        replaced("rounds/bytes_up", shape=HUGE),
        replaced("rounds/bytes_up", shape=(2**20, 2, 3), compression="gzip", chunks=(2**14, 2, 3)),
        replaced("rounds/bytes_up", dtype=np.float64),
        replaced("rounds/bytes_up", dtype=np.int64),
        replaced("rounds/bytes_up", dtype=">u8"),
        replaced("rounds/survived", dtype=np.int8, data=np.ones((2, 3), np.int8)),
        replaced("rounds/bytes_up", external=[("/etc/hostname", 0, 96)]),
        replaced("training/accuracy", shape=(2, 9), data=np.ones((2, 9))),
        replaced("training/accuracy", dtype="S4"),
        replaced("partition", shape=(4, 1), data=np.ones((4, 1), np.int64)),
        replaced("phases", data=[b"model", b"model"], shape=(2,)),
        replaced("phases", data=[b"model", b"\xff"], shape=(2,)),
        value("rounds/wall_seconds", np.nan),
        value("rounds/cpu_seconds", -1.0),
        value("rounds/round_seconds", np.inf),
        value("partition", -1),
        linked("rounds", h5py.SoftLink("/aside")),
        linked("rounds", h5py.SoftLink("/rounds")),
        linked("rounds", h5py.ExternalLink("other.h5", "/rounds")),
        linked("rounds/bytes_up", h5py.ExternalLink("other.h5", "/rounds/bytes_up")),
        linked("config", h5py.ExternalLink("other.h5", "/config")),
        linked("training", h5py.ExternalLink("other.h5", "/training")),
        linked("partition", h5py.ExternalLink("other.h5", "/partition")),
        attribute("/", "status", "finished"),
        attribute("/", "status", 3),
        attribute("/", "protocol", 3),
        attribute("/", "run_id", "../../x"),
        attribute("/", "command", np.bytes_(b"\xff")),
        attribute("/", "schema", [1, 2]),
        attribute("config", "dim", [1, 2, 3]),
        attribute("config", "dim", h5py.Empty("f8")),
        attribute("config", "dim", np.zeros(2**12)),
        attribute("config", "colour", np.array((1, 2.0), "i4,f8")),
        attribute("config", "uplink_mbps", np.nan),
        attribute("environment", "cpu", np.complex128(1)),
        attribute("environment", "cpu", np.zeros((2, 2))),
        attribute("environment", "cpu", np.arange(3)),
    ],
)
def test_what_hdf5_allows_and_no_run_has(run_file, change):
    (run_file.parent / "other.h5").write_bytes(run_file.read_bytes())
    with h5py.File(run_file, "r+") as file:
        change(file)

    with refused(run_file, r" is (damaged|no results)", HpcflError):
        load(run_file)


def heap_of(path):
    """Return a file's content, and where its heap and the heap's free space are."""
    content = bytearray(path.read_bytes())
    heap = content.index(b"GCOL")
    place = heap + 16
    while (index := int.from_bytes(content[place : place + 2], "little")) != 0:
        assert index < 100
        place += 16 + -(-int.from_bytes(content[place + 8 : place + 16], "little") // 8) * 8
    return content, heap, place


@pytest.mark.parametrize(
    ("where", "size"),
    [("free", 0), ("free", 8), ("free", 2**63), ("object", 2**40), ("object", 4090), ("heap", 0),
     ("heap", 2**40), ("heap", 17)],
)  # fmt: skip
def test_texts_among_which_hdf5_would_go_round_for_ever(run_file, where, size):
    content, heap, free = heap_of(run_file)
    at = {"free": free + 8, "object": heap + 24, "heap": heap + 8}[where]
    content[at : at + 8] = size.to_bytes(8, "little")
    run_file.write_bytes(content)

    with refused(run_file, r" is damaged or is not an HDF5 file \(the heap", HpcflError):
        load(run_file)


@pytest.mark.parametrize("dim", [0, -1, 1.5, True, "7", np.uint64(2**63), 2**32])
def test_a_number_of_parameters_that_is_none(run_file, dim):
    with h5py.File(run_file, "r+") as file:
        file["config"].attrs["dim"] = dim

    with refused(run_file, "does not record the option dim", HpcflError):
        _ = load(run_file).dim


@pytest.mark.parametrize("promises", ["[" * 30_000, "{}", "3", "null", "["])
def test_promises_that_are_none_are_not_shown(run_file, promises):
    with h5py.File(run_file, "r+") as file:
        file["config"].attrs["promises"] = promises

    assert render_promises(load(run_file)) == ""


def test_figures_without_end_are_null_in_json(run_file):
    with h5py.File(run_file, "r+") as file:
        file["config"].attrs["alpha"] = np.inf
        file["config"].attrs["dropout"] = np.nan
        file["rounds/validated"][...] = True
        file["rounds/cpu_seconds"][...] = 5e-324
    run = load(run_file)
    cheap = summarise(run, run.link())
    with h5py.File(run_file, "r+") as file:
        file["rounds/cpu_seconds"][...] = 1e11
    run = load(run_file)
    dear = summarise(run, run.link())
    report = json.loads(to_json([dear, cheap]))

    assert report["runs"][0]["alpha"] is report["runs"][0]["theta"] is None
    assert report["runs"][1]["baseline_over_run"]["device_cpu"] is None


# Vectors


def updates_file(path, change):
    with h5py.File(path, "w") as file:
        file["updates"] = np.ones((2, 5))
        file["weights"] = [1.0, 1.0]
        change(file)
    return path


@pytest.mark.parametrize(
    "change",
    [
        replaced("updates", dtype=h5py.string_dtype()),
        replaced("weights", shape=(2**40,)),
        replaced("weights", data=[np.nan, 1.0], shape=(2,)),
        replaced("weights", data=[np.inf, 1.0], shape=(2,)),
        replaced("weights", data=[3.0, -1.0], shape=(2,)),
        replaced("weights", data=[1j, 1j], shape=(2,), dtype=np.complex128),
        replaced("weights", data=[b"1", b"2"], shape=(2,), dtype="S1"),
        linked("updates", h5py.ExternalLink("other.h5", "/updates")),
        lambda file: file.move("updates", "x") or file.create_group("updates"),
    ],
)
def test_vectors_that_are_not_in_the_file(tmp_path, change):
    path = updates_file(tmp_path / "u.h5", change)

    with refused(path):
        FileUpdates(path, 2)


@pytest.mark.parametrize(
    "content",
    [
        *NOT_NPY,
        npy_claiming(claim("(2, 1099511627776)"), bytes(64)),
        npy_claiming(claim("(2, 0)")),
        npy(np.ones((2, 5), np.complex128)),
    ],
)
def test_arrays_of_vectors_that_are_none(tmp_path, content):
    path = tmp_path / "u.npy"
    path.write_bytes(content)

    with pytest.raises(UsageError, match=re.escape(str(path))):
        FileUpdates(path, 2)


@pytest.mark.parametrize("kind", [">f4", ">f8", "<f2", ">i2", "<f4"])
def test_vectors_come_in_this_machines_own_numbers(tmp_path, kind):
    np.save(tmp_path / "u.npy", np.asfortranarray(np.arange(6).reshape(2, 3)).astype(kind))
    vector = FileUpdates(tmp_path / "u.npy", 2).vector(0, 1)

    assert vector.tolist() == [3.0, 4.0, 5.0]
    assert vector.dtype.isnative
    assert vector.dtype == (np.float32 if kind.endswith("f4") else np.float64)


def test_a_damaged_chunk_is_a_sentence(tmp_path):
    path = tmp_path / "u.h5"
    with h5py.File(path, "w") as file:
        rows = np.random.default_rng(1).normal(size=(2, 500))
        file.create_dataset("updates", data=rows, chunks=(1, 500), compression="gzip")
        start = file["updates"].id.get_chunk_info(1).byte_offset
    content = bytearray(path.read_bytes())
    content[start : start + 50] = bytes(50)
    path.write_bytes(content)
    updates = FileUpdates(path, 2)

    assert updates.vector(0, 0).tolist() == rows[0].tolist()
    with refused(path, "row 1 of .* cannot be read", HpcflError):
        updates.vector(0, 1)


def test_a_header_of_python_2_is_read_without_a_word(recwarn):
    content = npy_claiming(claim("(2L,)"), np.arange(2.0).tobytes())

    assert files.parse_npy(content).tolist() == [0.0, 1.0]
    assert not recwarn.list


# Checkpoints

CONFIG = {"dim": 4, "seed": 0, "devices": 2}


def saved(path, **changes):
    """Write a checkpoint of which some arrays are others, or left out where None."""
    model = np.ones(4, np.float32)
    state = checkpoint.Checkpoint(2, model, np.zeros(4), 9, CONFIG, {}, 1, 1, (4, 3), (-1, 1))
    state.save(path)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files} | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"repeated": -1},
        {"at_risk": -1},
        {"survivors": np.array([4])},
        {"survivors": np.array([4, -3])},
        {"survivors": np.array([4.0, 3.0])},
        {"survivors": None},
        {"had": np.array([-2, 0])},
        {"had": np.array([0, 2])},
        {"had": np.array([0, 1, 1])},
        {"had": None},
        {"successor": np.zeros(3)},
        {"successor": None},
        {"next_round": -1},
        {"bytes_up": -5},
        {"next_round": 1.5},
        {"next_round": [1]},
        {"weights": np.ones(4)},
        {"weights": np.array(["1", "2", "3", "4"])},
        {"weights": np.full(4, np.nan, np.float32)},
        {"velocity": np.full(4, np.inf)},
        {"velocity": np.zeros(3)},
        {"weights": np.ones(3, np.float32), "velocity": np.zeros(3)},
        {"weights": np.ones((4, 1), np.float32), "velocity": np.zeros((4, 1))},
        {"weights": np.empty(0, np.float32), "velocity": np.empty(0)},
        {"config": np.frombuffer(b"[1]", np.uint8)},
        {"asked": np.frombuffer(b"[1]", np.uint8)},
        {"asked": None},
        {"config": np.frombuffer(b"[" * DEEP, np.uint8)},
        {"weights": None},
        {"version": "2"},
    ],
)
def test_states_that_training_cannot_go_on_from(tmp_path, changes):
    path = tmp_path / "c.npz"
    assert checkpoint.load(saved(path), CONFIG).next_round == 2

    with refused(path, "cannot be read as a checkpoint"):
        checkpoint.load(saved(path, **changes), CONFIG)


def test_a_pickle_within_a_checkpoint_is_not_run(tmp_path):
    class Harmful:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    path = saved(tmp_path / "c.npz")
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    archive(path, members | {"weights.npy": npy(np.array([Harmful()], object))})

    with refused(path, "cannot be read as a checkpoint"):
        checkpoint.load(path, CONFIG)
    path.write_bytes(pickle.dumps(Harmful()))
    with refused(path, "cannot be read as a checkpoint"):
        checkpoint.load(path, CONFIG)
    assert not (tmp_path / "ran").exists()
