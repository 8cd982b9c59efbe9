"""What does not fit is refused before any work, and what takes long is said."""

import io
import json
import re
import signal
import subprocess
import sys

import pytest
from commandline import hpcfl

from hpcfl.cli import watching
from hpcfl.results import load
from hpcfl.system import environment, launch


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("bench fedavg --devices 2000000000", "2000000000 devices take about 1000.0 GB"),
        # Whose protocol alone would take longer, or more memory, than there is.
        ("bench secagg-graph --devices 2000000000", "2000000000 devices take about 1000.0 GB"),
        ("bench fedavg --devices 100000000 --dim 10", "100000000 devices take about 50.0 GB"),
        ("bench fedavg --devices 3 --dim 4000000000", "vectors of 4000000000 takes about 176.0 GB"),
        ("bench sparse --devices 100000 --dim 10", "exchange rows that take about 1500.0 GB"),
        ("bench secagg --devices 5 --dim 10 --rounds 2000000000", "the results would take about"),
        (
            "privacy exposure sparse --simulated 10000000000",
            "10000000000 samples take about 640",
        ),
        ("attack audit cdp --runs 1000000000000", "the scores of 1000000000000 runs take about"),
    ],
)
def test_what_cannot_fit_is_refused_before_any_work(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(environment, "memory_available_bytes", lambda: 40 * 10**9)
    found = hpcfl(*arguments.split())

    assert (found.returncode, found.stdout) == (2, "")
    assert sentence in " ".join(found.stderr.split())
    assert "free" in found.stderr
    assert [] == [one for one in tmp_path.rglob("*") if one.is_file()]


def test_predictions_of_noise_are_refused_with_a_reason():
    found = hpcfl("predict", "dp-fedavg")

    assert found.returncode == 2
    assert "adds its noise within a protocol" in found.stderr


def test_of_training_the_first_round_tells_how_long_the_others_take(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(launch, "terminal_for_progress", io.StringIO)
    monkeypatch.setattr(watching, "LONG_SECONDS", 0)
    typed = ("fedavg", "--devices", 3, "--rounds", 4, "--output", tmp_path / "a.h5")
    found = hpcfl("train", *typed)

    assert found.returncode == 0, found.stderr
    (told,) = (line for line in found.stderr.splitlines() if "may take" in line)
    assert re.fullmatch(r"3 rounds more may take about .+\.", told)


def test_a_planned_million_of_rounds_ends_on_time_and_leaves_a_small_file(tmp_path):
    path = tmp_path / "run.h5"
    found = hpcfl(
        *("bench", "fedavg", "--devices", 3, "--dim", 5, "--rounds", 1_000_000),
        *("--max-seconds", 0.2, "--output", path, "--json"),
    )

    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["runs"][0]["stop_reason"] == "max_seconds"
    assert 1 <= load(path).measured.sum() < 100_000
    assert [path] == [*tmp_path.iterdir()]


# It stops while a file is written, which a signal then ends.
STOPPED = """
import sys, time
from pathlib import Path
from hpcfl.system import outputs
from hpcfl.system.interruption import noting_signals

with noting_signals(), outputs.replacing(Path(sys.argv[1])) as draft:
    draft.write_bytes(bytes(1000))
    print("writing", flush=True)
    while True:
        time.sleep(0.1)
"""


def test_a_process_that_is_given_up_says_so_and_leaves_no_draft(tmp_path):
    words = [sys.executable, "-c", STOPPED, str(tmp_path / "run.h5")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "writing\n"
    assert len([*tmp_path.iterdir()]) == 1
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)

    assert process.returncode == 75
    assert errors.startswith("Error: stopped by a signal")
    assert [] == [*tmp_path.iterdir()]
