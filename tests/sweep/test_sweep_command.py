import json
import os
import subprocess
import sys
import time

import pytest
from calibrations import flat
from commandline import hpcfl, refusal

from hpcfl.results import load
from hpcfl.results.reader import find

PLAN = """
[fixed]
dim = 300
rounds = 2
warmup = 1
[grid]
protocol = ["fedavg", "secagg"]
devices = [3, 5]
repeats = 2
"""


@pytest.fixture(autouse=True)
def _no_calibration(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    return tmp_path / "plan.toml"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out"


def cells(folder):
    """Return the cells of a frozen manifest."""
    return json.loads((folder / "sweep.json").read_text())["cells"]


def runs_in(folder):
    return {path.name: load(path) for path in find(folder)}


def ids(runs):
    return {name: run.run_id for name, run in runs.items()}


def test_a_sweep_runs_every_cell_once_and_then_nothing(plan, folder):
    first = hpcfl("sweep", plan, "--output", folder)
    runs = runs_in(folder)
    second = hpcfl("sweep", plan, "--output", folder)

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert sorted((run.protocol, run.devices, run.rounds) for run in runs.values()) == [
        *[("fedavg", 3, 3)] * 2, *[("fedavg", 5, 3)] * 2,
        *[("secagg", 3, 3)] * 2, *[("secagg", 5, 3)] * 2,
    ]  # fmt: skip
    assert {run.status for run in runs.values()} == {"complete"}
    assert [cell["file"] for cell in cells(folder)] != sorted(runs)
    assert {cell["file"] for cell in cells(folder)} == set(runs)
    assert "Cells: 8 done" in first.stdout
    assert "Cells: 8 finished before" in second.stdout
    assert "(secagg), each for the rows between the same lines" in second.stdout
    assert ids(runs_in(folder)) == ids(runs)


def test_a_sweep_that_was_killed_goes_on_where_it_stopped(plan, folder):
    text = PLAN.replace("rounds = 2", "rounds = 40").replace("dim = 300", "dim = 3_000")
    plan.write_text(text)
    sweep = subprocess.Popen(
        [sys.executable, "-m", "hpcfl", "sweep", str(plan), "--output", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    names = []
    # Killed in the middle of a cell: one at least is finished, one has begun.
    while sweep.poll() is None and len(names) < 3:
        time.sleep(0.01)
        names = sorted(path.name for path in folder.glob("*.h5"))
    sweep.kill()
    sweep.communicate()
    before = runs_in(folder)
    finished = {name for name, run in before.items() if run.status == "complete"}
    (killed,) = before.keys() - finished
    done = hpcfl("sweep", plan, "--output", folder)
    after = runs_in(folder)

    assert finished
    assert done.returncode == 0, done.stderr
    assert f"Cells: {8 - len(finished)} done, {len(finished)} finished before" in done.stdout
    assert set(after) == {cell["file"] for cell in cells(folder)}
    assert {run.status for run in after.values()} == {"complete"}
    assert {run.rounds for run in after.values()} == {41}
    if before[killed].rounds:
        # It went on behind the rounds that it had finished.
        assert ids(after).items() >= ids(before).items()
        assert [*after[killed].launches] == [0, before[killed].rounds]
        same = slice(before[killed].rounds)
        assert (after[killed].round_seconds[same] == before[killed].round_seconds).all()
        assert not (folder / "incomplete").exists()
    else:
        # What was there of the killed cell is kept, out of the way of reports.
        (aside,) = (folder / "incomplete").iterdir()
        assert load(aside).run_id == before[killed].run_id != after[killed].run_id


def test_a_cell_that_cannot_work_is_listed_and_stops_nothing(plan, folder):
    plan.write_text(
        '[fixed]\nprotocol = "cohort"\ndevices = 20\ndim = 100\nrounds = 1\nalpha = 0.4\n'
        "[grid]\nmin-cohort = [9, 1]"
    )
    done = hpcfl("sweep", plan, "--output", folder, "--no-shuffle")
    dry = hpcfl("sweep", plan, "--output", folder, "--no-shuffle", "--dry-run")
    refused = [cell["index"] for cell in cells(folder) if "--min-cohort=9" in cell["arguments"]]

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stdout.count("failed: ") == 2  # as it happens, and at the end
    assert refused == [0]
    assert f"cell {refused[0]} (cohort, N = 20, d = 100) failed: " in done.stdout
    assert "Cells: 1 done, 1 failed" in done.stdout
    assert "(1 cannot run, 1 finished)" in dry.stdout
    assert dry.returncode == 1
    assert "1 of 2 cells cannot run: cell 0 (cohort, N = 20, d = 100)" in dry.stderr
    listed = hpcfl("sweep", plan, "--output", folder, "--no-shuffle", "--dry-run", "--json")
    assert [(one["state"], bool(one["why"])) for one in json.loads(listed.stdout)["cells"]] == [
        *(("cannot run", True), ("finished", False))
    ]
    assert (listed.returncode, listed.stderr) == (1, dry.stderr)
    assert "nothing is left to run" in dry.stdout


def test_jobs_of_an_array_run_their_cell_of_the_frozen_manifest(plan, folder):
    early = hpcfl("sweep", plan, "--output", folder, "--cell", 0)
    frozen = hpcfl("sweep", plan, "--output", folder, "--freeze", "--seed", 4)
    manifest = (folder / "sweep.json").read_bytes()
    plan.write_text("not looked at any more")
    jobs = [hpcfl("sweep", plan, "--output", folder, "--cell", index) for index in (2, 5)]
    beyond = hpcfl("sweep", plan, "--output", folder, "--cell", 8)

    assert early.returncode == 1
    assert "--freeze" in early.stderr
    assert frozen.returncode == 0
    assert "8 cells, numbered 0 to 7" in frozen.stdout
    assert [job.returncode for job in jobs] == [0, 0], jobs
    assert {path.name for path in find(folder)} == {cells(folder)[i]["file"] for i in (2, 5)}
    assert (folder / "sweep.json").read_bytes() == manifest
    assert beyond.returncode == 2
    assert "no cell 8" in beyond.stderr


def test_a_dry_run_lists_cells_with_their_time_and_leaves_nothing(plan, folder):
    dry = hpcfl("sweep", plan, "--output", folder, "--dry-run", "--seed", 3)
    assert not folder.exists()
    hpcfl("sweep", plan, "--output", folder, "--freeze", "--seed", 3)
    index = next(c["index"] for c in cells(folder) if c["protocol"] == "secagg")
    hpcfl("sweep", plan, "--output", folder, "--cell", index)
    later = hpcfl("sweep", plan, "--output", folder, "--dry-run")
    rows = [line.split() for line in dry.stdout.splitlines()[2:10]]

    assert [row[1:5] for row in rows] == [
        [c["protocol"], str(c["devices"]), "300", str(c["repeat"])] for c in cells(folder)
    ]
    assert {row[-1] for row in rows} == {"unknown"}
    assert "estimated: unknown" in dry.stdout
    assert "(1 finished, 7 pending)" in later.stdout
    assert "and 4 cells of unknown time" in later.stdout
    assert "shuffled with seed 3" in later.stdout


def test_a_changed_plan_needs_another_folder(plan, folder):
    hpcfl("sweep", plan, "--output", folder, "--freeze")
    plan.write_text(PLAN.replace("[3, 5]", "[3, 5, 7]"))
    for option in ("--dry-run", "--freeze", "--no-shuffle"):
        sentence = refusal("sweep", plan, "--output", folder, option)
        assert "4 cells not in its sweep.json, and lacks 0" in sentence
    assert not list(folder.glob("*.h5"))


def test_wrong_use_is_a_sentence(plan):
    assert "only one of" in refusal("sweep", plan, "--dry-run", "--freeze")
    assert "--json is for --dry-run" in refusal("sweep", plan, "--json")
    assert "/proc/nothing" in refusal("sweep", plan, "--output", "/proc/nothing")


def test_merged_jobs_are_one_folder_with_an_index(tmp_path, plan):
    array, merged = tmp_path / "array", tmp_path / "merged"
    hpcfl("sweep", plan, "--output", array, "--freeze")
    hpcfl("sweep", plan, "--output", array, "--cell", 1)
    hpcfl("bench", "fedavg", "--devices", 4, "--dim", 20, "--output", tmp_path / "one.h5")
    (array / "damaged.h5").write_text("no results")
    sources = {path: path.read_bytes() for path in [*array.iterdir(), tmp_path / "one.h5"]}
    done = hpcfl("merge", array, tmp_path / "one.h5", "--output", merged)
    index = json.loads((merged / "index.json").read_text())["runs"]
    report = hpcfl("report", merged, "--format", "json")
    again = hpcfl("merge", array, "--output", merged)
    copy = tmp_path / "copy.h5"
    copy.write_bytes((tmp_path / "one.h5").read_bytes())
    twice = hpcfl("merge", tmp_path / "one.h5", copy, "--output", tmp_path / "twice")

    assert done.returncode == 1  # cells are missing, a file is damaged
    assert done.stderr.count("has no results") == 7
    assert "damaged.h5 cannot be read" in done.stderr
    assert {entry["file"] for entry in index} == {path.name for path in merged.glob("*.h5")}
    assert [(e["cell"], e["status"], e["devices"], e["dim"]) for e in index] == [
        (1, "complete", cells(array)[1]["devices"], 300),
        (None, "complete", 4, 20),
    ]
    assert len(json.loads(report.stdout)["runs"]) == 2
    assert {path: path.read_bytes() for path in sources} == sources
    assert (again.returncode, twice.returncode) == (2, 2)
    assert "never overwritten" in again.stderr
    assert "hold the same run" in twice.stderr
    assert not list(tmp_path.glob("twice")) + list(tmp_path.glob(".twice*"))


def test_the_cost_model_estimates_where_nothing_was_run(tmp_path, monkeypatch, plan, folder):
    from hpcfl.costmodel.calibration import default_path

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    known = flat(0.0)
    for parties in known.costs.values():
        parties["server"]["once"] = 0.5
    known.save(default_path())
    result = hpcfl("sweep", plan, "--output", folder, "--dry-run")

    assert "8 cells by the cost model" in result.stdout
    assert "estimated: 12.0 s" in result.stdout


def test_of_training_no_calibration_is_asked_for(tmp_path, monkeypatch):
    """There is no cost model of it: what tells its time is a cell that is finished."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = hpcfl("sweep", "training", "--output", tmp_path / "out", "--dry-run")

    assert found.returncode == 0, found.stderr
    estimated = found.stdout[found.stdout.index("estimated:") :]
    assert "unknown, of training that is said once a cell" in " ".join(estimated.split())
    assert "calibrat" not in estimated
