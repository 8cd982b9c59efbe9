"""The plans that come with hpcfl, called by their names."""

import json
import os

import pytest
from commandline import hpcfl, refusal

from hpcfl.options.names import FILES
from hpcfl.slurm.script import KINDS, LAST_CELL
from hpcfl.sweeping import shipped
from hpcfl.sweeping.cells import resolve
from hpcfl.sweeping.plan import read


@pytest.mark.parametrize("name", shipped.titles())
def test_every_plan_that_is_shipped_has_cells_that_can_be_run(name, tmp_path, monkeypatch):
    cells = resolve(read(shipped.locate(name)))
    # Nothing of the data is read: their folders are all that is looked for.
    for dataset in FILES:
        (tmp_path / "data" / dataset).mkdir(parents=True)
    monkeypatch.setenv("HPCFL_DATA", str(tmp_path / "data"))
    if any(cell.algorithm for cell in cells):
        pytest.importorskip("torch")
    told = hpcfl("sweep", name, "--dry-run", "--output", tmp_path / "out")

    assert told.returncode == 0, told.stderr
    assert "cannot run" not in told.stdout


def test_a_dry_run_names_the_cells_whose_data_are_not_there(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    for folder in (None, tmp_path):
        if folder is None:
            monkeypatch.delenv("HPCFL_DATA", raising=False)
        else:
            monkeypatch.setenv("HPCFL_DATA", str(folder))
        told = hpcfl("sweep", "training", "--dry-run", "--output", tmp_path / "out")

        assert told.returncode == 1
        assert "12 of 12 cells cannot run: cell 0 (fedavg by " in told.stderr
        assert "N = 20, adult-lr on adult)" in told.stderr
        assert "hpcfl data fetch adult" in told.stdout


@pytest.mark.skipif("HPCFL_DATA" not in os.environ, reason="needs UCI Adult in HPCFL_DATA")
def test_the_plan_of_training_reaches_its_target(tmp_path):
    """With one seed, by two protocols."""
    pytest.importorskip("torch")
    text = (shipped.FOLDER / "training.toml").read_text()
    text = text.replace("seed = [1, 2, 3]", "seed = [1]").replace('["fedavg", "secagg",', "[")
    (tmp_path / "plan.toml").write_text(text)
    done = hpcfl("sweep", tmp_path / "plan.toml", "--output", tmp_path / "out")
    report = hpcfl("report", tmp_path / "out", "--format", "json")
    runs = json.loads(report.stdout)["runs"]

    assert done.returncode == 0, done.stdout + done.stderr
    assert {run["protocol"] for run in runs} == {"sparse", "cohort"}
    assert all(run["reached"]["rounds_to_target"]["median"] > 0 for run in runs)


def test_the_list_says_what_every_plan_is_for_and_where_its_file_is():
    told = hpcfl("sweep")

    assert told.returncode == 0, told.stderr
    assert {"table-1", "protocols", "small", "training"} <= shipped.titles().keys()
    for name, title in shipped.titles().items():
        # A title of a full line, with nothing of the plan in it.
        assert 20 < len(title) < 90
        assert "=" not in title
        assert f"{name} " in told.stdout
        assert title in told.stdout
    assert str(shipped.FOLDER) in told.stdout


def test_a_name_is_that_of_the_shipped_plan_and_a_path_that_of_a_file(tmp_path, monkeypatch):
    (tmp_path / "small").write_text('[grid]\nprotocol = "fedavg"\ndevices = [3]\n')
    monkeypatch.chdir(tmp_path)
    cells = {}
    for folder, plan in (("shipped", "small"), ("own", "./small")):
        done = hpcfl("sweep", plan, "--freeze", "--output", folder)
        assert done.returncode == 0, done.stderr
        cells[folder] = json.loads((tmp_path / folder / "sweep.json").read_text())["cells"]

    assert len(cells["own"]) == 1
    assert len(cells["shipped"]) == len(resolve(read(shipped.FOLDER / "small.toml")))


def test_a_plan_that_is_neither_a_name_nor_a_file_is_refused_with_the_nearest_name(tmp_path):
    assert "did you mean 'table-1'?" in refusal("sweep", "tabel-1", "--output", tmp_path)
    assert "hpcfl sweep shows" in refusal("sweep", "/nowhere/x.toml", "--output", tmp_path)


def test_the_array_of_the_job_script_is_that_of_its_plan():
    ((plan,), _) = KINDS["sweep-array"]

    assert LAST_CELL == len(resolve(read(shipped.locate(plan)))) - 1
