"""`--model` in place of `--dim`, wherever there is a length of vectors."""

import json
import sys

import numpy as np
import pytest
from calibrations import flat
from commandline import hpcfl, refusal

import hpcfl as api
from hpcfl.results import load
from hpcfl.results.reader import find

SMALL = ("--devices", 3, "--rounds", 1, "--warmup", 0)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "sizes.py").write_text("def hundred():\n    return 100\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield tmp_path
    sys.modules.pop("sizes", None)


def told(*arguments):
    done = hpcfl(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("model", "dim"), [("softmax@digits", 640), ("sizes:hundred", 100)])
def test_rounds_have_vectors_as_long_as_a_model(model, dim):
    shown = told("bench", "secagg", "--model", model, *SMALL, "--output", "run.h5")
    run = load("run.h5")

    assert (run.dim, run.config["model"]) == (dim, model)
    assert f"d = {dim} ({model})" in shown
    assert f"parameters d  {dim} ({model})" in told("report", "run.h5")
    assert model in told("report", "run.h5", "run.h5", "--columns", "protocol,dim,model")


def test_a_file_without_it_is_as_it_was():
    told("bench", "fedavg", "--dim", 10, *SMALL, "--output", "run.h5")

    assert "model" not in load("run.h5").config


def test_it_is_predicted_exposed_swept_and_an_argument_of_the_api():
    flat().save("c.json")
    predicted = ("predict", "secagg", "--model", "sizes:hundred", "--calibration", "c.json")
    found = json.loads(told(*predicted, "--json"))
    assert (found["model"], found["predictions"][0]["dim"]) == ("sizes:hundred", 100)
    assert "d = 100 (sizes:hundred)" in told(*predicted)

    exposed = ("privacy", "exposure", "sparse", "--simulated", 100, "--json")
    by_model = json.loads(told(*exposed, "--model", "sizes:hundred"))
    assert by_model == json.loads(told(*exposed, "--dim", 100))

    plan = '[fixed]\ndevices = 3\nrounds = 1\nwarmup = 0\nprotocol = "secagg"\n[grid]\nmodel = '
    with open("plan.toml", "w") as file:
        file.write(f'{plan}["softmax@digits", "sizes:hundred"]\n')
    told("sweep", "plan.toml", "--output", "swept")
    assert sorted(load(path).dim for path in find(["swept"])) == [100, 640]

    run = api.bench("fedavg", model="sizes:hundred", devices=2, rounds=1, warmup=0, output="a.h5")
    assert run.dim == 100


def test_a_run_goes_on_without_the_models_code(folder):
    import h5py

    told("bench", "secagg", "--model", "sizes:hundred", *SMALL[:2], "--output", "run.h5")
    with h5py.File("run.h5", "r+") as file:
        file.attrs.modify("status", np.array("running", file.attrs["status"].dtype))
        file["rounds/finished"][3:] = False
    (folder / "sizes.py").unlink()
    sys.modules.pop("sizes", None)
    told("bench", "--resume", "run.h5")

    assert (load("run.h5").status, load("run.h5").dim) == ("complete", 100)


@pytest.mark.parametrize("command", [("bench", "secagg"), ("predict", "secagg"),
                                     ("privacy", "exposure", "sparse")])  # fmt: skip
def test_one_length_is_given_in_one_way(command):
    said = refusal(*command, "--model", "2nn", "--dim", 10)
    assert "--model and --dim both say how long the vectors are: give one of them" in said
    assert "there is no model 'resnet'" in refusal(*command, "--model", "resnet")


def test_a_file_of_updates_says_the_length_itself():
    np.save("u.npy", np.zeros((3, 5), np.float32))
    said = refusal("bench", "fedavg", "--updates", "u.npy", "--model", "2nn")
    assert "--model and --updates both say" in said


def test_a_plan_names_its_wrong_model():
    with open("plan.toml", "w") as file:
        file.write('[grid]\ndevices = 3\nprotocol = "secagg"\nmodel = ["resnet"]\n')
    assert "plan.toml: [grid], model: there is no model 'resnet'" in refusal(
        "sweep", "plan.toml", "--output", "swept"
    )


def test_a_function_that_ends_the_program_is_no_success(tmp_path, monkeypatch):
    (tmp_path / "ends_early.py").write_text("def model(*_):\n    raise SystemExit(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    for command in (("bench", "fedavg"), ("train", "fedavg")):
        said = refusal(*command, "--devices", 3, "--rounds", 1, "--model", "ends_early:model")
        assert "cannot load the model ends_early:model" in said
