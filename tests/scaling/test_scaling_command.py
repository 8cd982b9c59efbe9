"""Tables and figures of scaling on the command line, of real sweeps with small copies of plans."""

import json
import re

import pytest
from commandline import refusal, told

from hpcfl.results import load
from hpcfl.sweeping import shipped


def small(folder, name, **changes):
    """Write a plan that comes with hpcfl with short vectors and few rounds; return its path."""
    text = (shipped.FOLDER / f"{name}.toml").read_text()
    for key, value in {"dim": 500, "rounds": 3, "warmup": 0, **changes}.items():
        text, count = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
        assert count == 1, key
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


SCALING = ("--kind", "scaling", "--against")


@pytest.fixture(scope="module")
def threads(tmp_path_factory):
    """Return the folder of a sweep over threads."""
    folder = tmp_path_factory.mktemp("threads")
    told("sweep", small(folder, "scaling-threads", devices=4), "--output", folder / "out")
    return folder / "out"


def test_a_sweep_over_threads_is_a_table_of_its_runs(threads):
    shown = told("report", threads, "--speed-up", "threads")
    found = json.loads(told("report", threads, "--speed-up", "threads", "--format", "json"))

    assert "Scaling over threads of a rank" in shown
    assert [row["x"] for row in found] == [1, 2, 4, 8]
    seconds = {load(path).config.get("threads", 1): load(path) for path in threads.glob("*.h5")}
    for row in found:
        run = seconds[row["x"]]
        taken = sorted(run.round_seconds[run.measured].tolist())
        assert row["round_seconds_median"] == taken[1]
        shared = run.environment["oversubscription_ratio"] * row["x"] > 1
        assert (row["efficiency"] is None) == shared


def test_runs_of_one_process_have_no_ranks_to_compare(threads):
    for command in (("report", "--speed-up", "ranks"), ("plot", *SCALING, "nodes")):
        assert "none of the 4 files" in refusal(command[0], threads, *command[1:])
