"""File systems without locks, by a library that is loaded before the system's."""

import os
import shutil
import subprocess
import sys

import h5py
import pytest

from hpcfl.system.doctor import machine
from hpcfl.system.doctor.check import OK, PROBLEM, WARNING

FLOCK = """
#include <errno.h>
int flock(int file, int operation) { errno = %d; return -1; }
"""
BENCH = ("bench", "fedavg", "--dim", "4", "--rounds", "2", "--updates", "updates.h5")


@pytest.fixture
def refusing(tmp_path, monkeypatch):
    """Return a function that lets locks fail in the processes that are started after it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    monkeypatch.chdir(tmp_path)

    def refuse(number):
        (tmp_path / "flock.c").write_text(FLOCK % number)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", "flock.so", "flock.c"], check=True)
        monkeypatch.setenv("LD_PRELOAD", str(tmp_path / "flock.so"))

    return refuse


def hpcfl(*arguments, **variables):
    return subprocess.run(
        [sys.executable, "-m", "hpcfl", *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )


def test_a_file_system_without_locks_is_warned_of_once_and_recorded(refusing):
    with h5py.File("updates.h5", "w") as file:
        file["updates"] = [[0.5] * 4] * 3
    refusing(37)  # as NFS without lockd says
    found = hpcfl(*BENCH, "--output", "run.h5")

    assert found.returncode == 0, found.stderr
    assert found.stderr.count("has no locks") == 1
    with h5py.File("run.h5") as file:
        assert not file["environment"].attrs["results_locked"]
        assert file.attrs["status"] == b"complete"


def test_what_the_user_says_of_locks_holds(refusing):
    refusing(37)
    demanded, without = (
        hpcfl("bench", "fedavg", "--devices", "3", HDF5_USE_FILE_LOCKING=word)
        for word in ("TRUE", "FALSE")
    )

    assert (demanded.returncode, without.returncode) == (2, 0)
    assert "as HDF5_USE_FILE_LOCKING demands: unset that variable" in demanded.stderr
    assert "no locks" not in without.stderr


def test_a_file_that_somebody_writes_is_said_to_be_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with h5py.File("updates.h5", "w") as file:
        file["updates"] = [[0.5] * 4] * 3
        file.flush()
        found = hpcfl(*BENCH, "--output", "run.h5")

    assert found.returncode == 2
    assert "updates.h5 is being written by another process: wait" in found.stderr


def test_the_doctor_tries_what_a_run_does(refusing, tmp_path, monkeypatch):
    assert machine.check_hdf5(tmp_path).status == OK
    refusing(37)
    found = machine.check_hdf5(tmp_path)
    assert (found.status, "without locks" in found.found) == (WARNING, True)
    monkeypatch.setenv("HDF5_USE_FILE_LOCKING", "TRUE")
    found = machine.check_hdf5(tmp_path)
    assert (found.status, "unset HDF5_USE_FILE_LOCKING" in found.remedy) == (PROBLEM, True)
