from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_files import PHASES, assert_holds, random_record, write_run

import hpcfl
from hpcfl.errors import UsageError
from hpcfl.results.reader import load
from hpcfl.results.record import RoundRecord
from hpcfl.results.writer import ResultsWriter, check_writable, default_path

HERE = Path(__file__).parent

# A run in a process of its own, which the tests kill.
CHILD = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import h5py
from run_files import random_record
from hpcfl.results.writer import ResultsWriter

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def killing(function, call, before):
    calls = iter(range(1, 10**9))
    def wrapper(*arguments, **options):
        number = next(calls)
        if before and number == call:
            die()
        result = function(*arguments, **options)
        if number == call:
            die()
        return result
    return wrapper

{prepare}
with ResultsWriter(sys.argv[2], protocol="p", command="c", config={{"dim": 1}}, environment={{}},
                   phases=("a", "b", "c"), devices=4, rounds={rounds}) as writer:
    for seed in range({appended}):
        writer.append(random_record(seed))
        print(seed, flush=True)
"""


def start_child(path, rounds, appended, prepare=""):
    program = CHILD.format(prepare=prepare, rounds=rounds, appended=appended)
    return subprocess.Popen(
        [sys.executable, "-c", program, str(HERE), str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_with_h5py(path):
    """Return status, number of finished rounds and those rounds, with nothing but h5py."""
    with h5py.File(path, "r") as file:
        status = file.attrs["status"].decode()
        finished = int(file["rounds/finished"][()].sum())
        return (
            status,
            finished,
            {name: data[:finished] for name, data in file["rounds"].items() if name != "finished"},
        )


def new_writer(path, **changes):
    options: dict = {
        "protocol": "sparse",
        "command": "hpcfl bench sparse",
        "config": {"dim": 10},
        "environment": {},
        "phases": PHASES,
        "devices": 4,
        "rounds": 3,
    }
    return ResultsWriter(path, **(options | changes))


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
        path = Path(folder) / "run.h5"
        with new_writer(path, phases=names, devices=devices, rounds=len(seeds)) as writer:
            for record in records:
                writer.append(record)
        run = load(path)

    assert_holds(run, records)
    assert run.phases == names
    assert (run.status, run.devices, run.rounds) == ("complete", devices, len(seeds))


def test_options_keep_their_types(tmp_path):
    given_config = {
        "dim": 165_000,
        "alpha": 0.1,
        "json": True,
        "quiet": False,
        "group": "fq",
        "seed": 2**100,
        "theta": np.float32(0.5),
        "preset": None,
        "devices": (3, 4),
        "nested": {"a": [1, 2], "b": None},
        "updates": Path("updates.npy"),
        "library": "Open MPI\0",
    }
    path = tmp_path / "run.h5"
    new_writer(path, config=given_config).close("complete")
    config = load(path).config

    assert config == {
        "dim": 165_000,
        "alpha": 0.1,
        "json": True,
        "quiet": False,
        "group": "fq",
        "seed": str(2**100),
        "theta": 0.5,
        "preset": None,
        "devices": [3, 4],
        "nested": {"a": [1, 2], "b": None},
        "updates": "updates.npy",
        "library": "Open MPI",
    }
    assert [type(config[name]) for name in ("dim", "alpha", "json")] == [int, float, bool]


def test_text_longer_than_an_hdf5_header_is_kept(tmp_path):
    hosts = [f"node{i:05}" for i in range(20_000)]
    path = tmp_path / "run.h5"
    new_writer(path, environment={"hosts": hosts}).close("complete")

    assert load(path).environment["hosts"] == hosts


def test_the_root_says_what_the_file_is(tmp_path):
    with h5py.File(write_run(tmp_path / "run.h5", [random_record(1)]), "r") as file:
        attributes = dict(file.attrs)
        contents = set(file)

    assert contents == {"phases", "config", "environment", "rounds"}
    assert set(attributes) == {
        "schema",
        "hpcfl_version",
        "run_id",
        "protocol",
        "command",
        "started",
        "finished",
        "status",
    }
    assert attributes["schema"] == "hpcfl/1"
    assert attributes["hpcfl_version"] == hpcfl.__version__
    assert re.fullmatch("[0-9a-f]{32}", attributes["run_id"])


def test_datasets_say_their_units_and_axes(tmp_path):
    path = write_run(tmp_path / "run.h5", [random_record(1)])
    with h5py.File(path, "r") as file:
        rounds = file["rounds"]
        units = {name: data.attrs["unit"] for name, data in rounds.items()}
        labels = {name: [axis.label for axis in data.dims] for name, data in rounds.items()}

    assert units == {
        "bytes_up": "bytes",
        "bytes_down": "bytes",
        "messages_up": "1",
        "messages_down": "1",
        "wall_seconds": "s",
        "cpu_seconds": "s",
        "round_seconds": "s",
        "survived": "1",
        "validated": "1",
        "warmup": "1",
        "promise_failure": "1",
        "finished": "1",
    }
    assert labels["bytes_up"] == ["round", "phase", "device"]
    assert labels["cpu_seconds"] == ["round", "phase", "device or server"]
    assert labels["survived"] == ["round", "device"]
    assert labels["round_seconds"] == ["round"]


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


@pytest.mark.parametrize("wait_for", [1, 60, 199])
def test_sigkill_leaves_all_finished_rounds(tmp_path, wait_for):
    path = tmp_path / "run.h5"
    child = start_child(path, rounds=1000, appended=1000)
    assert child.stdout is not None
    for _ in range(wait_for):
        assert child.stdout.readline()
    alive = load(path)
    child.kill()
    reported = wait_for + len(child.stdout.read().splitlines())
    child.wait()
    status, finished, arrays = read_with_h5py(path)

    assert child.returncode == -signal.SIGKILL
    assert alive.status == "running"
    assert alive.rounds >= wait_for
    assert status == "running"
    assert reported <= finished <= reported + 1
    assert_holds(arrays, map(random_record, range(finished)))
    assert_holds(load(path), map(random_record, range(finished)))


# A round flushes twice: its data, then its mark. So flush 9 is that of the data of round 4. What is
# written is in the file before it is flushed: nothing of it is kept back in a cache.
@pytest.mark.parametrize(
    ("flush", "before", "finished"),
    [(9, True, 4), (9, False, 4), (10, True, 5), (10, False, 5), (1, True, 0), (1, False, 0)],
)
def test_sigkill_between_the_flushes_of_a_round(tmp_path, flush, before, finished):
    path = tmp_path / "run.h5"
    prepare = f"h5py.File.flush = killing(h5py.File.flush, {flush}, {before})"
    child = start_child(path, rounds=20, appended=20, prepare=prepare)
    child.communicate()
    status, found, arrays = read_with_h5py(path)

    assert child.returncode == -signal.SIGKILL
    assert (status, found) == ("running", finished)
    assert_holds(arrays, map(random_record, range(finished)))


def test_sigkill_during_creation_leaves_no_file_that_looks_like_results(tmp_path):
    child = start_child(
        tmp_path / "run.h5",
        rounds=5,
        appended=5,
        prepare="os.replace = killing(os.replace, 1, True)",
    )
    child.communicate()

    assert child.returncode == -signal.SIGKILL
    assert list(tmp_path.glob("*.h5")) == []


@pytest.mark.parametrize(
    "prepare",
    [
        "h5py.AttributeManager.modify = killing(h5py.AttributeManager.modify, 1, False)",
        "h5py.AttributeManager.modify = killing(h5py.AttributeManager.modify, 2, False)",
        "h5py.Dataset.resize = killing(h5py.Dataset.resize, 1, False)",
        "h5py.Dataset.resize = killing(h5py.Dataset.resize, 5, False)",
        "os.replace = killing(os.replace, 2, True)",
        "os.replace = killing(os.replace, 2, False)",
    ],
)
def test_sigkill_while_the_file_is_closed_and_cut(tmp_path, prepare):
    path = tmp_path / "run.h5"
    child = start_child(path, rounds=20, appended=7, prepare=prepare)
    child.communicate()
    status, finished, arrays = read_with_h5py(path)

    assert child.returncode == -signal.SIGKILL
    assert status in ("running", "complete")
    assert finished == 7
    assert_holds(arrays, map(random_record, range(7)))
    assert [file.name for file in tmp_path.glob("*.h5")] == ["run.h5"]


def test_leaving_without_an_exception_completes_the_run(tmp_path):
    with new_writer(tmp_path / "run.h5", rounds=1) as writer:
        writer.append(random_record(1))
    run = load(writer.path)

    assert run.status == "complete"
    assert run.run_id == writer.run_id
    assert run.finished is not None
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", run.started)
    assert run.started <= run.finished


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
        status = file.attrs["status"].decode()

    assert lengths == {2}
    assert status == "failed"
    assert_holds(load(path), [random_record(1), random_record(2)])
    assert [file.name for file in tmp_path.iterdir()] == ["run.h5"]


def test_a_full_disk_at_the_end_only_prevents_the_cutting(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    path = write_run(tmp_path / "run.h5", [random_record(1)], rounds=5, status="failed")

    assert_holds(load(path), [random_record(1)])
    assert [file.name for file in tmp_path.iterdir()] == ["run.h5"]


def test_the_first_close_decides(tmp_path):
    with new_writer(tmp_path / "run.h5") as writer:
        writer.append(random_record(1))
        writer.close("failed")

    assert load(writer.path).status == "failed"


def test_a_run_without_a_finished_round_can_be_read(tmp_path):
    run = load(write_run(tmp_path / "run.h5", rounds=4, status="failed"))

    assert run.rounds == 0
    assert run.devices == 4
    assert run.bytes_up.shape == (0, 3, 4)


def test_mistakes_of_the_caller_are_refused(tmp_path):
    with new_writer(tmp_path / "run.h5", rounds=1) as writer:
        with pytest.raises(ValueError, match="bytes_up has the shape"):
            # One phase would be broadcast to three.
            writer.append(random_record(1, phases=1))
        with pytest.raises(ValueError, match="shape"):
            writer.append(RoundRecord.empty(3, 5))
        with pytest.raises(ValueError, match="complete or failed"):
            writer.close("running")
        writer.append(random_record(1))
        with pytest.raises(ValueError, match="all 1 planned rounds"):
            writer.append(random_record(2))
    with pytest.raises(ValueError, match="closed"):
        writer.append(random_record(2))

    assert_holds(load(writer.path), [random_record(1)])


def test_absent_folders_are_created(tmp_path):
    path = write_run(tmp_path / "a" / "b" / "run.h5", [random_record(1)])

    assert load(path).rounds == 1


def test_results_are_never_overwritten(tmp_path):
    path = write_run(tmp_path / "run.h5", [random_record(1)])
    before = path.read_bytes()
    for attempt in (check_writable, new_writer):
        with pytest.raises(UsageError, match="exists already"):
            attempt(path)

    assert path.read_bytes() == before


def test_an_unwritable_place_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    for path in (tmp_path / "file" / "run.h5", tmp_path / "file" / "deeper" / "run.h5"):
        for attempt in (check_writable, new_writer):
            with pytest.raises(UsageError, match=r"cannot write results to .*--output") as caught:
                attempt(path)
            assert str(path) in str(caught.value)
            assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="--output"):
        check_writable(tmp_path / "file")


def test_checking_a_place_leaves_nothing_in_it(tmp_path):
    check_writable(tmp_path / "new")
    check_writable(tmp_path / "new" / "run.h5")

    assert list((tmp_path / "new").iterdir()) == []


def test_too_little_space_is_found_before_the_first_round(tmp_path):
    program = f"""
import resource, sys
sys.path.insert(0, {str(HERE)!r})
import test_writer
from hpcfl.errors import UsageError
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    test_writer.new_writer(test_writer.Path({str(tmp_path / "run.h5")!r}), rounds=10_000)
except UsageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert "cannot create" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_file_names_tell_the_run_and_never_repeat(tmp_path):
    names = {default_path(tmp_path, "secagg-graph", 100, 165_000).name for _ in range(100)}

    assert len(names) == 100
    for name in names:
        assert re.fullmatch(r"secagg-graph-100x165000-\d{8}T\d{6}-[0-9a-f]{8}\.h5", name)


def test_what_is_found_out_at_the_end_has_its_place_from_the_start(tmp_path):
    path = tmp_path / "run.h5"
    writer = new_writer(path, at_end={"stop_reason": str, "after_load_1min": float}, rounds=500)
    writer.append(random_record(1, 3, 4))
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
    assert late.status == "complete"
    assert_holds(late, [random_record(1, 3, 4)])
    # Of rounds that were planned and not needed nothing is left, nor of the copies.
    assert path.stat().st_size < size / 5
    assert list(tmp_path.iterdir()) == [path]
    with h5py.File(path, "r") as file:
        assert file["rounds/wall_seconds"].attrs["unit"] == "s"
        assert file["rounds/wall_seconds"].dims[1].label == "phase"
        assert file.attrs.get_id("status").dtype == np.dtype("S11")


def test_only_what_was_planned_can_be_recorded_at_the_end(tmp_path):
    writer = new_writer(tmp_path / "run.h5", at_end={"stop_reason": str})
    for values in ({}, {"stop_reason": "x", "other": 1.0}, {"stop_reason": "x" * 17}):
        with pytest.raises(ValueError, match=r"planned|longer than 16 bytes"):
            writer.record_end(values)
    writer.close("failed")
    with pytest.raises(ValueError, match="closed"):
        writer.record_end({"stop_reason": "x"})
