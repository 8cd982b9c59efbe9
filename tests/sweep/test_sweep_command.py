"""`hpcfl sweep`: plans and their manifest, arrays of jobs."""

import os

import pytest
from commandline import hpcfl, refusal

from hpcfl.errors import HpcflError
from hpcfl.options.names import FILES
from hpcfl.results import load
from hpcfl.results.reader import find
from hpcfl.sweeping import shipped, states
from hpcfl.sweeping.cells import Cell
from hpcfl.sweeping.manifest import NAME, arrange, freeze
from hpcfl.sweeping.manifest import load as load_manifest

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


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    return tmp_path / "plan.toml"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out"


def some_cells(number):
    """Return cells that differ."""
    return [
        Cell(i, f"id{i}", f"id{i}.h5", ("secagg", f"--devices={i + 1}"), "secagg", i + 1, 9, 2, 0)
        for i in range(number)
    ]


def test_the_order_is_shuffled_by_the_seed_and_stays_when_it_is_frozen(folder):
    cells = some_cells(30)
    orders = [[cell.id for cell in arrange("p", cells, seed).cells] for seed in (1, 1, 2, None)]
    assert orders[0] == orders[1] != orders[2]
    assert orders[3] == [cell.id for cell in cells] != orders[0]
    assert sorted(orders[0]) == sorted(orders[3])

    first = freeze(folder, arrange("p", cells, 1))
    content = (folder / NAME).read_bytes()
    again = freeze(folder, arrange("p", cells, 5))
    assert again == first == load_manifest(folder)
    assert [cell.index for cell in again.cells] == list(range(30))
    assert (folder / NAME).read_bytes() == content
    assert os.listdir(folder) == [NAME]
    for text in ("{", "[]", '{"schema": "hpcfl-sweep/2"}', '{"schema": "hpcfl-sweep/1"}'):
        (folder / NAME).chmod(0o600)
        (folder / NAME).write_text(text)
        with pytest.raises(HpcflError, match=NAME):
            load_manifest(folder)


def test_a_cell_is_claimed_by_one_process_until_it_ends(tmp_path):
    first, second = some_cells(2)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with states.claimed(tmp_path, first):
            os.write(writer, b"x")
            os.read(os.pipe()[0], 1)  # until it is killed
        os._exit(0)
    os.read(reader, 1)
    with states.claimed(tmp_path, first) as one, states.claimed(tmp_path, second) as other:
        assert (one, other) == (False, True)
    os.kill(child, 9)
    os.waitpid(child, 0)
    with states.claimed(tmp_path, first) as one:
        assert one


def test_a_sweep_runs_every_cell_once_and_then_nothing(plan, folder):
    dry = hpcfl("sweep", plan, "--output", folder, "--dry-run", "--seed", 3)
    assert not folder.exists()
    assert "(8 pending)" in dry.stdout
    jobs = [hpcfl("sweep", plan, "--output", folder, "--seed", 3) for _ in range(2)]
    runs = {path.name: load(path) for path in find(folder)}
    later = hpcfl("sweep", plan, "--output", folder, "--dry-run")

    assert [job.returncode for job in jobs] == [0, 0], jobs[0].stderr + jobs[1].stderr
    assert sorted((run.protocol, run.devices, run.rounds) for run in runs.values()) == [
        *[("fedavg", 3, 3)] * 2, *[("fedavg", 5, 3)] * 2,
        *[("secagg", 3, 3)] * 2, *[("secagg", 5, 3)] * 2,
    ]  # fmt: skip
    assert {run.status for run in runs.values()} == {"complete"}
    assert {cell.file for cell in load_manifest(folder).cells} == set(runs)
    assert "Cells: 8 done" in jobs[0].stdout
    assert "Cells: 8 finished before" in jobs[1].stdout
    assert "(8 finished)" in later.stdout
    assert "shuffled with seed 3" in later.stdout


def test_a_cell_that_cannot_work_is_listed_and_stops_nothing(plan, folder):
    plan.write_text(
        '[fixed]\nprotocol = "cohort"\ndevices = 20\ndim = 100\nrounds = 1\nalpha = 0.4\n'
        "[grid]\nmin-cohort = [9, 1]"
    )
    done = hpcfl("sweep", plan, "--output", folder, "--no-shuffle")
    dry = hpcfl("sweep", plan, "--output", folder, "--no-shuffle", "--dry-run")

    assert (done.returncode, dry.returncode) == (1, 1)
    assert "Traceback" not in done.stderr
    assert "cell 0 (cohort, N = 20, d = 100) failed: " in done.stdout
    assert "Cells: 1 done, 1 failed" in done.stdout
    assert "(1 cannot run, 1 finished)" in dry.stdout
    assert "1 of 2 cells cannot run" in dry.stderr
    assert "cells that cannot run: 0: " in dry.stdout


def test_jobs_of_an_array_run_their_cell_of_the_frozen_manifest(plan, folder):
    early = hpcfl("sweep", plan, "--output", folder, "--cell", 0)
    frozen = hpcfl("sweep", plan, "--output", folder, "--freeze", "--seed", 4)
    cells = load_manifest(folder).cells
    plan.write_text(PLAN.replace("[3, 5]", "[3, 5, 7]"))
    jobs = [hpcfl("sweep", plan, "--output", folder, "--cell", index) for index in (0, 8)]
    changed = refusal("sweep", plan, "--output", folder, "--dry-run")
    plan.write_text(PLAN)
    listed = hpcfl("sweep", plan, "--output", folder, "--dry-run").stdout

    assert early.returncode == 1
    assert "--freeze" in early.stderr
    assert "8 cells, numbered 0 to 7" in frozen.stdout
    assert [job.returncode for job in jobs] == [0, 2], jobs
    assert "no cell 8" in jobs[1].stderr
    assert [path.name for path in find(folder)] == [cells[0].file]
    assert "its sweep.json lacks 4 cells of the plan, and has 0 others" in changed
    assert "(1 finished, 7 pending)" in listed
    assert listed.count("0 of 3") == 7


@pytest.mark.parametrize("name", shipped.titles())
def test_every_plan_that_is_shipped_has_cells_that_can_be_run(name, tmp_path, monkeypatch):
    # Nothing of the data is read: their folders are all that is looked for.
    for dataset in FILES:
        (tmp_path / "data" / dataset).mkdir(parents=True)
    monkeypatch.setenv("HPCFL_DATA", str(tmp_path / "data"))
    if name == "training":
        pytest.importorskip("torch")
    told = hpcfl("sweep", name, "--dry-run", "--output", tmp_path / "out")

    assert told.returncode == 0, told.stderr
    assert "cannot run" not in told.stdout
    assert shipped.titles()[name] in hpcfl("sweep").stdout
