"""The lines ``HPCFL key: value`` that other programs read after `hpcfl bench` and `train`."""

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commandline import hpcfl, refusal

from hpcfl.results import load
from hpcfl.results.footer import LINES, footer, valid
from hpcfl.results.schema import STATUSES, Metric

ROOT = Path(__file__).parents[2]
SMALL = ("--devices", 5, "--dim", 50, "--rounds", 3)
# A server that asks to leave in the middle of the third round.
LEAVING = """
import signal

from hpcfl.algorithms.aggregation.fedavg import FedAvg, FedAvgServer


class Server(FedAvgServer):
    def finish_result(self):
        signal.raise_signal(signal.SIGUSR1)


class Leaving(FedAvg):
    name = "leaving"

    def server(self, round_index, model, secrets=None):
        return (Server if round_index == 2 else FedAvgServer)(self, model)
"""


def footers(text):
    """Return what each of the footers in a text says, by key."""
    lines = [line for line in text.splitlines() if line.startswith("HPCFL ")]
    found = []
    for key, _, value in (line.removeprefix("HPCFL ").partition(": ") for line in lines):
        if key == "footer":
            found.append({})
        assert key not in found[-1]
        found[-1][key] = value
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("footer") / "run.h5"
    done = hpcfl("bench", "secagg", *SMALL, "--output", path)
    assert done.returncode == 0, done.stderr
    return load(path)


def test_every_number_tells_its_unit_in_its_key():
    endings = {"B": "_bytes", "ms": "_ms"}
    for line in LINES:
        assert line.key.endswith(endings.get(line.unit, "")), line.key
        assert not line.key.endswith(tuple(endings.values())) or line.unit in endings, line.key


def test_bench_prints_what_its_json_says(tmp_path):
    path = tmp_path / "run.h5"
    (told,) = footers(hpcfl("bench", "sparse", *SMALL, "--output", path).stdout)
    (summary,) = json.loads(hpcfl("report", path, "--json").stdout)["runs"]

    assert [*told] == [line.key for line in LINES if not line.training]
    expected = {
        "footer": "1",
        "valid": "true",
        "status": "complete",
        "command": "bench",
        "protocol": "sparse",
        "devices": "5",
        "dim": "50",
        "ranks": "1",
        "rounds": "3",
        "file": str(path),
    }
    assert expected.items() <= told.items()
    for key, value, scale in (
        ("survivors", summary["survivors_mean"], 1),
        ("device_upload_bytes", summary["total"]["bytes_up_mean"], 1),
        ("device_download_bytes", summary["total"]["bytes_down_mean"], 1),
        ("device_cpu_ms", summary["total"]["device_cpu_seconds"]["median"], 1e3),
        ("server_cpu_ms", summary["total"]["server_cpu_seconds"]["median"], 1e3),
        ("round_ms", summary["round_seconds"]["median"], 1e3),
        ("modelled_ms", summary["modelled_round_seconds"]["median"], 1e3),
    ):
        assert float(told[key]) == pytest.approx(scale * value, abs=1e-6), key


def test_train_adds_what_training_reached(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "run.h5"
    arguments = ("--dataset", "synthetic", "--devices", 5, "--rounds", 2, "--output", path)
    done = hpcfl("train", "fedavg", *arguments)
    (told,) = footers(done.stdout)
    reached = load(path).training

    assert done.stdout.endswith(f"\nHPCFL file: {path}\n")
    assert [*told] == [line.key for line in LINES]
    assert (told["valid"], told["command"], told["algorithm"]) == ("true", "train", "fedavg")
    assert float(told["accuracy"]) == pytest.approx(reached[Metric.ACCURACY][-1], abs=1e-6)
    assert int(told["upload_total_bytes"]) == reached[Metric.BYTES_UP_TOTAL][-1]
    assert told["epsilon_proven"] == "nan"


def test_each_number_of_devices_has_a_footer_of_its_own(tmp_path):
    done = hpcfl("bench", "fedavg", "--devices", "3,4", *SMALL[2:], "--output", tmp_path)

    assert [told["devices"] for told in footers(done.stdout)] == ["3", "4"]


def test_where_a_person_looks_the_footer_is_printed_if_asked_for(tmp_path, monkeypatch):
    def told(*arguments):
        return footers(hpcfl("bench", "fedavg", *SMALL, "--output", tmp_path, *arguments).stdout)

    assert len(told()) == 1
    assert told("--no-footer") == told("--json") == []
    monkeypatch.setattr("hpcfl.system.launch.output_is_watched", lambda: True)
    assert told() == []
    assert len(told("--footer")) == 1


@pytest.mark.parametrize("command", [("bench", "fedavg"), ("train", "fedavg")])
def test_json_and_footer_are_refused_together(command):
    assert "choose one" in refusal(*command, "--json", "--footer")


def test_a_run_that_fails_says_that_it_is_not_valid(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests" / "mpirun")
    path = tmp_path / "run.h5"
    done = hpcfl("bench", "faulty_protocols:Wrong", *SMALL, "--output", path)
    (told,) = footers(done.stdout)

    assert done.returncode == 1
    assert (told["valid"], told["status"], told["file"]) == ("false", "failed", str(path))


def test_a_run_that_was_told_to_leave_is_partly_valid(tmp_path):
    (tmp_path / "leaves.py").write_text(LEAVING)
    done = subprocess.run(
        [sys.executable, "-m", "hpcfl", "bench", "leaves:Leaving", *map(str, SMALL)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    (told,) = footers(done.stdout)

    assert done.returncode == 75, done.stderr
    assert (told["valid"], told["status"], told["rounds"]) == ("partial", "interrupted", "1")


def test_what_is_refused_has_no_footer():
    assert footers(hpcfl("bench", "secagg", "--devices", 0).stdout) == []


@pytest.mark.parametrize(
    ("status", "validated", "said"),
    [
        ("complete", "all", "true"),
        ("complete", "some", "partial"),
        ("complete", "none", "false"),
        ("interrupted", "all", "partial"),
        ("interrupted", "none", "false"),
        ("failed", "all", "false"),
        ("running", "all", "false"),
    ],
)
def test_only_complete_runs_with_right_sums_are_valid(run, status, validated, said):
    assert status in STATUSES
    right = np.full(run.rounds, validated != "none")
    right[0] &= validated != "some"

    assert valid(dataclasses.replace(run, status=status, validated=right)) == said


def test_numbers_are_decimals_and_names_are_ascii_on_one_line(run):
    path = Path("é\n/HPCFL valid: true.h5")
    slow = dataclasses.replace(
        run,
        path=path,
        cpu_seconds=np.full_like(run.cpu_seconds, 1e-9),
        round_seconds=np.full_like(run.round_seconds, 12345678.9),
        environment={},
    )
    text = footer(slow)
    (told,) = footers(text)

    assert text.isascii()
    assert len(text.splitlines()) == len(told)
    assert told["file"] == "\\xe9\\n/HPCFL valid: true.h5"
    assert told["round_ms"] == "12345678900"
    assert told["device_cpu_ms"] == "0.000006"  # of six phases
    assert math.isnan(float(told["ranks"]))
