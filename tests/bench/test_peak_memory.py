"""How much memory a rank has resident before a round, and at the most in it."""

import subprocess
import sys

import numpy as np
import pytest

import hpcfl
from hpcfl.report import formats
from hpcfl.results import tables
from hpcfl.system import machine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")

BIG = 100_000_000


def test_a_peak_is_forgotten_and_the_next_one_is_seen():
    machine.forget_peak()
    before, _ = machine.resident_bytes()
    np.ones(BIG, np.uint8)  # freed at once
    now, peak = machine.resident_bytes()
    assert now < before + BIG / 10
    assert 0.95 * BIG < peak - before < 1.1 * BIG

    machine.forget_peak()
    _, peak = machine.resident_bytes()
    assert peak < before + BIG / 10


def test_a_peak_that_cannot_begin_anew_is_not_told(monkeypatch, tmp_path):
    """It would be that of whatever came before."""
    monkeypatch.setattr(machine, "forget_peak", lambda: False)
    size = {"devices": 3, "dim": 100, "rounds": 2, "warmup": 1, "dropout": 0.0}
    run = hpcfl.bench("secagg", **size, output=tmp_path / "run.h5")
    assert np.isfinite(run.resident_bytes).all()
    assert np.isnan(run.peak_bytes).all()
    assert run.summary()["server_peak_bytes"] is None
    assert "at the peak" not in tables.facts(run.summary()).text()


def test_what_a_round_takes_is_in_the_file_and_told(tmp_path):
    """A vector of five bytes a coordinate is the least that a server adds up in.

    In a process of its own: this one may have as much free memory from other tests. What is freed
    between rounds may stay with the process, so all is above the start of the first.
    """
    dim, path = 1_000_000, tmp_path / "long.h5"
    options = ("--devices", 3, "--dim", dim, "--rounds", 2, "--warmup", 1, "--dropout", 0)
    command = (sys.executable, "-m", "hpcfl", "bench", "secagg", *options, "--output", path)
    subprocess.run([*map(str, command)], check=True, capture_output=True, timeout=60)
    run = hpcfl.load(path)
    assert run.resident_bytes.shape == run.peak_bytes.shape == (3, 1)
    grown = run.peak_bytes - run.resident_bytes[0]
    assert (grown > 5 * dim).all()
    assert (grown < 40 * 8 * dim).all()
    summary = run.summary()
    assert summary["server_peak_bytes"] == run.peak_bytes[1:].max()
    assert summary["device_peak_bytes"] is None
    said = tables.facts(summary).text()
    assert f"{formats.amount(run.peak_bytes[1:].max())} of a server's rank at the peak" in said
    assert "largest other rank" not in said
