import math
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from unittest.mock import Mock

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_files import assert_holds, new_writer, random_record

from hpcfl.errors import HpcflError
from hpcfl.results import writer as writing
from hpcfl.results.reader import load

# A run in a process of its own, which the tests kill.
CHILD = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import h5py
from run_files import new_writer, random_record

def killing(function, call, before):
    calls = iter(range(1, 10**9))
    def wrapper(*arguments, **options):
        number = next(calls)
        if before and number == call:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*arguments, **options)
        if number == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return wrapper

{prepare}
with new_writer(sys.argv[2], rounds={rounds}) as writer:
    for seed in range({appended}):
        writer.append(random_record(seed))
"""
# Space for one round, two, four, eight and so on.
SMALL = "import hpcfl.results.writer as writer; writer._FIRST_BYTES = 1; "


def killed(path, rounds, appended, prepare):
    """Let a child kill itself; return status, number of finished rounds, and those rounds."""
    program = CHILD.format(prepare=prepare, rounds=rounds, appended=appended)
    words = [sys.executable, "-c", program, str(Path(__file__).parent.parent), str(path)]
    assert subprocess.run(words, capture_output=True).returncode == -signal.SIGKILL
    return read_with_h5py(path) if path.exists() else None


def read_with_h5py(path):
    """Return status, number of finished rounds and those rounds, with nothing but h5py."""
    with h5py.File(path, "r") as file:
        rounds = {name: data[()] for name, data in file["rounds"].items()}
        finished = int(rounds.pop("finished").sum())
        kept = {name: data[:finished] for name, data in rounds.items()}
        return file.attrs["status"].decode(), finished, kept


@settings(max_examples=25, deadline=None)
@given(
    phases=st.integers(1, 5),
    devices=st.integers(1, 7),
    seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=5),
)
def test_what_is_written_is_read_back_exactly(phases, devices, seeds):
    records = [random_record(seed, phases, devices) for seed in seeds]
    names = [f"phase {p}" for p in range(phases)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new" / "folder" / "run.h5"
        with new_writer(path, phases=names, devices=devices, rounds=len(seeds)) as writer:
            for record in records:
                writer.append(record)
        run = load(path)

    assert_holds(run, records)
    assert run.phases == names
    assert (run.status, run.devices, run.rounds) == ("complete", devices, len(seeds))
    assert re.fullmatch("[0-9a-f]{32}", run.run_id)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", run.started)
    assert run.started <= run.finished


def test_options_keep_their_types(tmp_path):
    options = {
        "dim": (165_000, 165_000),
        "json": (True, True),
        "seed": (2**100, str(2**100)),
        "theta": (np.float32(0.5), 0.5),
        "devices": ((3, 4), [3, 4]),
        "nested": ({"a": [1, 2], "b": None}, {"a": [1, 2], "b": None}),
        "updates": (Path("updates.npy"), "updates.npy"),
        "library": ("Open MPI\0", "Open MPI"),
        # Longer than the header of an object in HDF5.
        "hosts": ([f"node{i:05}" for i in range(20_000)],) * 2,
    }
    path = tmp_path / "run.h5"
    new_writer(path, config={name: given for name, (given, _) in options.items()}).close("complete")
    config = load(path).config

    assert config == {name: expected for name, (_, expected) in options.items()}
    assert [type(config[name]) for name in ("dim", "theta", "json")] == [int, float, bool]


def test_a_round_overwrites_nothing_but_its_own_raw_data(tmp_path):
    path = tmp_path / "run.h5"
    with new_writer(path) as writer:
        before = path.read_bytes()
        writer.append(random_record(1))
        writer.append(random_record(2))
        after = path.read_bytes()
        writer.append(random_record(3))
    allowed = np.zeros(len(before), bool)
    with h5py.File(path, "r") as file:
        for data in file["rounds"].values():
            for row in (0, 1):
                chunk = data.id.get_chunk_info(row)
                allowed[chunk.byte_offset : chunk.byte_offset + chunk.size] = True
    changed = np.frombuffer(before, np.uint8) != np.frombuffer(after, np.uint8)

    assert changed.any()
    assert not (changed & ~allowed).any()


# A round flushes twice: its data, then its mark. So flush 9 is that of the data of round 4. What is
# written is in the file before it is flushed: nothing of it is kept back in a cache. A new file
# takes its name first; each replacement after that is a copy with more space, and the last one.
FLUSH, REPLACE = "h5py.File.flush", "os.replace"


@pytest.mark.parametrize(
    ("prepare", "function", "call", "before", "appended", "finished"),
    [
        ("", FLUSH, 9, True, 20, 4),
        ("", FLUSH, 9, False, 20, 4),
        ("", FLUSH, 10, False, 20, 5),
        ("", "h5py.AttributeManager.modify", 2, False, 7, 7),
        ("", "h5py.Group.create_group", 4, False, 7, 7),
        ("", REPLACE, 2, True, 7, 7),
        ("", REPLACE, 2, False, 7, 7),
        (SMALL, REPLACE, 2, True, 20, 1),
        (SMALL, REPLACE, 2, False, 20, 1),
        (SMALL, REPLACE, 4, True, 20, 4),
        (SMALL, REPLACE, 4, False, 20, 4),
    ],
)
def test_sigkill_anywhere_leaves_the_finished_rounds(
    tmp_path, prepare, function, call, before, appended, finished
):
    killing = f"{prepare}{function} = killing({function}, {call}, {before})"
    status, found, arrays = killed(tmp_path / "run.h5", 20, appended, killing)

    assert status == "running" or appended == 7
    assert found == finished
    assert_holds(arrays, map(random_record, range(finished)))
    assert_holds(load(tmp_path / "run.h5"), map(random_record, range(finished)))
    assert [file.name for file in tmp_path.glob("*.h5")] == ["run.h5"]


def test_sigkill_during_creation_leaves_no_file_that_looks_like_results(tmp_path):
    killed(tmp_path / "run.h5", 5, 5, "os.replace = killing(os.replace, 1, True)")

    assert list(tmp_path.glob("*.h5")) == []


def test_an_exception_marks_the_run_failed_and_cuts_it(tmp_path):
    path = tmp_path / "run.h5"

    def fail():
        with new_writer(path, rounds=10) as writer:
            writer.append(random_record(1))
            writer.append(random_record(2))
            raise RuntimeError("a device went up in smoke")

    with pytest.raises(RuntimeError, match="smoke"):
        fail()
    with h5py.File(path, "r") as file:
        lengths = {len(data) for data in file["rounds"].values()}

    assert lengths == {2}
    assert read_with_h5py(path)[0] == "failed"
    assert_holds(load(path), [random_record(1), random_record(2)])
    assert [file.name for file in tmp_path.iterdir()] == ["run.h5"]


def test_what_is_found_out_at_the_end_has_its_place_from_the_start(tmp_path):
    path = tmp_path / "run.h5"
    writer = new_writer(path, at_end={"stop_reason": "", "after_load_1min": math.nan}, rounds=500)
    writer.append(random_record(1))
    # This process cannot open the file a second time; a killed run's is like this copy.
    early = load(Path(shutil.copy(path, tmp_path / "early.h5"))).environment
    (tmp_path / "early.h5").unlink()
    size = path.stat().st_size
    writer.record_end({"stop_reason": "max_seconds", "after_load_1min": 2.5})
    assert path.stat().st_size == size
    writer.close("complete")
    late = load(path)

    assert early["stop_reason"] is None
    assert np.isnan(early["after_load_1min"])
    assert late.environment["stop_reason"] == "max_seconds"
    assert late.environment["after_load_1min"] == 2.5
    assert_holds(late, [random_record(1)])
    # Of rounds that were planned and not needed nothing is left, nor of the copies.
    assert path.stat().st_size < size / 5
    assert list(tmp_path.iterdir()) == [path]
    with h5py.File(path, "r") as file:  # and what was copied is as it was
        assert file["rounds/wall_seconds"].attrs["unit"] == "s"
        assert file["rounds/wall_seconds"].dims[1].label == "phase"
        assert file.attrs.get_id("status").dtype == np.dtype("S11")


# --- Space for more rounds than a new file has ---


def test_a_run_of_very_many_rounds_begins_with_a_small_file(tmp_path):
    with new_writer(tmp_path / "run.h5", rounds=10**9) as writer:
        begun = writer.path.stat()
        for seed in range(3):
            writer.append(random_record(seed))
    assert begun.st_size < 2**26
    # All blocks are there, none is a hole.
    assert begun.st_blocks * 512 >= begun.st_size
    assert load(writer.path).rounds == 3


def test_a_file_that_cannot_grow_keeps_its_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr("hpcfl.results.writer._FIRST_BYTES", 1)
    writer = new_writer(tmp_path / "run.h5", rounds=10)
    writer.append(random_record(0))
    full = OSError(28, "No space left on device")
    monkeypatch.setattr("hpcfl.results.writer._copy", Mock(side_effect=full))
    with pytest.raises(HpcflError, match=r"No space left on device.*the rounds before it are kept"):
        writer.append(random_record(1))
    writer.close("failed")

    assert_holds(load(tmp_path / "run.h5"), [random_record(0)])
    assert [one.name for one in tmp_path.iterdir()] == ["run.h5"]


def test_a_mark_that_comes_while_the_file_is_closed_does_not_replace_the_status(
    tmp_path, monkeypatch
):
    end, marks = writing._end, []

    def interrupted_end(file, status):
        end(file, status)
        marks.append(threading.Thread(target=writer.mark_interrupted))
        marks[0].start()
        marks[0].join(0.3)

    monkeypatch.setattr(writing, "_end", interrupted_end)
    with new_writer(tmp_path / "run.h5", rounds=1) as writer:
        writer.append(random_record(0))
    marks[0].join()

    assert load(tmp_path / "run.h5").status == "complete"
