"""Runs that are told to leave, killed, or lose the place of their results; and what goes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import h5py
import numpy as np
import pytest
from commandline import refusal
from run_files import FIXED

import hpcfl
from hpcfl.errors import AgreedError, HpcflError, UsageError
from hpcfl.results import load
from hpcfl.system import interruption
from hpcfl.system.interruption import LEFT_STATUS, SIGNALS, noting_signals


def bench(
    path,
    protocol="sparse",
    after=None,
    act=lambda: os.kill(os.getpid(), signal.SIGTERM),
    resume=False,
    **options,
):
    """Run a small experiment; do something after some round of this launch."""
    asked = {"devices": 5, "dim": 200, "rounds": 4, "warmup": 1, "insecure_seed": 3} | options
    asked["resume" if resume else "output"] = path
    played = []

    def progress(index, result):
        played.append(index)
        if len(played) == after:
            act()

    with noting_signals():
        return hpcfl.bench(protocol, progress=progress, **asked)


def status_with_h5py(path):
    with h5py.File(path, "r") as file:
        return str(file.attrs["status"].decode())


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_lets_the_round_end_and_is_told(tmp_path, number):
    handlers = [signal.getsignal(each) for each in SIGNALS]
    threads = threading.active_count()
    with pytest.raises(
        AgreedError, match="after 2 rounds; continue with hpcfl bench --resume"
    ) as told:
        bench(tmp_path / "run.h5", after=2, act=lambda: os.kill(os.getpid(), number))
    run = load(tmp_path / "run.h5")

    assert told.value.exit_status == LEFT_STATUS
    assert (run.status, run.rounds, bool(run.validated.all())) == ("interrupted", 2, True)
    assert run.environment["stop_reason"] == "interrupted"
    assert [signal.getsignal(each) for each in SIGNALS] == handlers
    assert signal.set_wakeup_fd(-1) == -1
    assert threading.active_count() == threads


def test_a_signal_in_the_last_round_changes_nothing(tmp_path):
    run = bench(tmp_path / "run.h5", after=5)

    assert (run.status, run.rounds, run.environment["stop_reason"]) == ("complete", 5, "rounds")


@pytest.mark.parametrize(
    ("protocol", "after"),
    [("sparse", 1), ("secagg-graph", 3), ("prf", 3), ("dp-fedavg", 1), ("common", 3)],
)
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, protocol, after):
    options: dict[str, Any] = {"dropout": 0.0 if protocol == "prf" else 0.3}
    whole = bench(tmp_path / "whole.h5", protocol, save_aggregate=tmp_path / "whole.npy", **options)
    path = tmp_path / "run.h5"
    with pytest.raises(AgreedError):
        bench(path, protocol, after=after, **options)
    launch = load(path)
    aggregate = tmp_path / "resumed.npy"
    resumed = bench(path, protocol, resume=True, save_aggregate=aggregate, **options)

    assert not (tmp_path / "unused").exists()
    assert (resumed.status, resumed.rounds) == ("complete", whole.rounds)
    assert resumed.environment["stop_reason"] == "rounds"
    for name in FIXED:
        expected = getattr(whole, name)
        if protocol == "prf" and name.startswith(("bytes", "messages")):
            # Devices enrol again, and that is in no round.
            again, once = getattr(resumed.enrolment, name), getattr(whole.enrolment, name)
            np.testing.assert_array_equal(again, once)
            assert once.any()
        np.testing.assert_array_equal(getattr(resumed, name), expected, err_msg=name)
    np.testing.assert_array_equal(np.load(aggregate), np.load(tmp_path / "whole.npy"))
    # The rounds of before are those that were measured then.
    np.testing.assert_array_equal(resumed.wall_seconds[:after], launch.wall_seconds)
    assert (resumed.run_id, resumed.started) == (launch.run_id, launch.started)
    (second,) = resumed.resumed
    assert second["first_round"] == after
    assert second["after_clock_seconds"] > second["before_clock_seconds"]
    assert resumed.environment["after_clock_seconds"] < second["before_clock_seconds"]


def test_sums_that_a_dead_launch_may_have_revealed_are_counted(tmp_path):
    """A sum was there, with its noise, though the file does not have its round."""
    path = tmp_path / "run.h5"
    options = {"dropout": 0.0, "noise_multiplier": 3.0}
    claims = [bench(tmp_path / "whole.h5", "dp-fedavg", **options).config["promises"][-1]]
    for after in (1, 2, None):
        with suppress(AgreedError):
            bench(path, "dp-fedavg", after=after, resume=path.exists(), **options)
        claims.append(load(path).config["promises"][-1])
        if after is not None:
            # A launch that was killed, unlike one that left, does not say why it ended.
            with h5py.File(path, "r+") as file:
                facts = file["environment"].attrs
                facts.modify("stop_reason", np.array(b"", facts.get_id("stop_reason").dtype))
    run = load(path)

    assert [claim.split()[0] for claim in claims] == ["5", "5", "6", "7"]
    assert (run.status, run.rounds, run.config["rounds_repeated"]) == ("complete", 5, 2)
    assert [launch["first_round"] for launch in run.resumed] == [1, 3]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["run.h5", "whole.h5"]
    longer = bench(tmp_path / "longer.h5", "dp-fedavg", **options, rounds=6)
    assert longer.config["promises"][-1] == claims[-1]


def test_what_cannot_go_on_is_refused(tmp_path):
    path = tmp_path / "run.h5"
    bench(path)
    with pytest.raises(UsageError, match="is complete, with 5 rounds"):
        bench(path, resume=True)
    with pytest.raises(HpcflError, match="there is no file"):
        bench(tmp_path / "other.h5", resume=True)
    with h5py.File(path, "r+") as file:
        file.attrs.modify("status", np.array("failed", file.attrs["status"].dtype))
        file["rounds/validated"][3] = False
    with pytest.raises(UsageError, match=r"round 3 of .* wrong aggregate"):
        bench(path, resume=True)


def test_a_run_that_only_lacks_its_end_gets_it(tmp_path):
    path = tmp_path / "run.h5"
    bench(path)
    with h5py.File(path, "r+") as file:
        file.attrs.modify("status", np.array("running", file.attrs["status"].dtype))
    copy = tmp_path / "copy.h5"
    shutil.copy(path, copy)
    with pytest.raises(UsageError, match="last round has been measured"):
        bench(copy, resume=True, save_aggregate=tmp_path / "sum.npy")
    run = bench(path, resume=True)

    assert (run.status, run.rounds, run.environment["stop_reason"]) == ("complete", 5, "rounds")


def test_seconds_before_the_interruption_count_for_the_stop_rule(tmp_path):
    path = tmp_path / "run.h5"
    asked = {"max_seconds": 1000.0, "max_rounds": 50}
    with pytest.raises(AgreedError):
        bench(path, after=6, **asked)
    with h5py.File(path, "r+") as file:
        file["rounds/round_seconds"][5] = 2000.0
    run = bench(path, resume=True, **asked)

    assert (run.rounds, run.environment["stop_reason"]) == (6, "max_seconds")


# A run whose round sleeps inside C, where Python runs no signal handlers.
STUCK = """
import ctypes, sys
import hpcfl
from hpcfl.system import interruption

def progress(index, result):
    if index == 2:
        print("stuck", flush=True)
        while True:
            ctypes.CDLL(None).pause()

interruption.DEADLINE_SECONDS = float(sys.argv[2])
size = {"devices": 5, "dim": 20, "rounds": 10, "warmup": 1}
with interruption.noting_signals():
    hpcfl.bench("fedavg", **size, output=sys.argv[1], progress=progress)
"""


@pytest.mark.parametrize(
    ("deadline", "signals"),
    [
        (0.3, [signal.SIGTERM]),
        (100, [signal.SIGINT, signal.SIGINT]),
        pytest.param(0.3, [signal.SIGUSR1, signal.SIGINT], marks=pytest.mark.full),
        pytest.param(100, [signal.SIGTERM, signal.SIGTERM], marks=pytest.mark.full),
    ],
)
def test_a_round_that_does_not_end_is_given_up(tmp_path, deadline, signals):
    path = tmp_path / "run.h5"
    job = subprocess.Popen(
        [sys.executable, "-c", STUCK, str(path), str(deadline)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    assert job.stdout.readline() == "stuck\n"
    for number in signals:
        job.send_signal(number)
        time.sleep(2 * interruption.AGAIN_SECONDS)
    _, err = job.communicate(timeout=30)
    run = load(path)

    assert job.returncode == LEFT_STATUS, err
    assert f"after 3 rounds; continue with hpcfl bench --resume {path}" in err
    assert "Traceback" not in err
    assert (run.status, run.rounds) == ("interrupted", 3)


def test_the_first_signal_is_in_the_file_before_the_round_ends(tmp_path):
    path = tmp_path / "run.h5"
    seen: list[str] = []

    def ask():
        os.kill(os.getpid(), signal.SIGUSR1)
        end = time.monotonic() + 10
        while status_with_h5py(path) != "interrupted" and time.monotonic() < end:
            time.sleep(0.01)
        seen.append(status_with_h5py(path))

    with pytest.raises(AgreedError):
        bench(path, after=1, act=ask)

    assert seen == ["interrupted"]


@pytest.fixture
def small_disk(tmp_path):
    """Mount a disk of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk takes root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_found_before_the_first_round(small_disk):
    size = ("--devices", 5, "--dim", 20, "--rounds", 5000)
    said = refusal("bench", "fedavg", *size, "--output", small_disk / "run.h5")

    assert "No space left on device" in said
    assert "choose another place with --output" in said
    assert list(small_disk.iterdir()) == []


def test_a_disk_that_fills_up_meanwhile_takes_nothing_away(small_disk):
    def fill():
        with (small_disk / "other").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        assert shutil.disk_usage(small_disk).free == 0

    path = small_disk / "run.h5"
    run = bench(path, "fedavg", after=1, act=fill, dim=20, rounds=100, insecure_seed=None)

    assert (run.status, run.rounds) == ("complete", 101)
    assert run.validated.all()
    assert (run.bytes_up.sum(axis=(1, 2)) > 0).all()


def test_a_refused_write_is_a_sentence_and_keeps_the_rounds_before(tmp_path, monkeypatch):
    """As on file systems that write every block anew, where nothing can be allocated ahead."""
    path = tmp_path / "run.h5"
    real = h5py.Dataset.__setitem__

    def refuse():
        def full(dataset, where, values):
            if dataset.name == "/rounds/cpu_seconds":
                raise OSError(28, "No space left on device")
            real(dataset, where, values)

        monkeypatch.setattr(h5py.Dataset, "__setitem__", full)

    with pytest.raises(HpcflError, match=r"cannot write round 2 to .*\(No space left on device\)"):
        bench(path, after=2, act=refuse)
    monkeypatch.undo()
    run = load(path)

    assert (run.status, run.rounds, bool(run.validated.all())) == ("failed", 2, True)
    assert bench(path, resume=True).rounds == 5
