"""`--resume FILE` without other options: the file says what the run was asked for."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from commandline import refusal, told
from run_files import FIXED, cut

import hpcfl as api
from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import asked_for, make, options_of
from hpcfl.options.training import TrainOptions
from hpcfl.results import load

SIZE = ("--devices", 7, "--dim", 60, "--rounds", 3, "--warmup", 1, "--insecure-seed", 5)
OWN = """
from hpcfl.algorithms.aggregation.secagg import SecAgg
from hpcfl.algorithms.federated.base import FederatedAveraging


class Own(SecAgg):
    name = "own"


class Slow(FederatedAveraging):
    name = "slow"


def network(shape, classes):
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return a folder of the user's, with code in it."""
    (tmp_path / "mine.py").write_text(OWN)
    np.save(tmp_path / "updates.npy", np.full((7, 60), 0.25, np.float32))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield tmp_path
    sys.modules.pop("mine", None)


def measured(*arguments):
    """Return a run, and the file of the same, killed after two rounds."""
    told("bench", *arguments, "--output", "run.h5")
    whole = load("run.h5")
    cut("run.h5", 2)
    return whole, Path("run.h5")


def assert_same(run, whole, names=FIXED):
    assert (run.status, run.rounds) == ("complete", whole.rounds)
    for name in names:
        np.testing.assert_array_equal(getattr(run, name), getattr(whole, name), err_msg=name)
    free = {"save_aggregate", "keep_transcript", "note"}
    if "noise_multiplier" in whole.config:  # the account counts the launches
        free |= {"promises", "rounds_repeated"}
    assert {k: v for k, v in run.config.items() if k not in free} == {
        k: v for k, v in whole.config.items() if k not in free
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ("sparse", "--alpha", 0.3, "--dropout", 0.2, "--scaling", "paper"),
        ("assisted", "--helpers", 2),
        ("secagg", "--bits", "auto", "--note", "a [note]"),
        ("secagg", "--security", "active", "--max-rounds", 3, "--max-seconds", 500),
        ("dp-fedavg", "--aggregate", "secagg", "--noise-multiplier", 2),
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_a_benchmark_goes_on_from_its_file_alone(arguments):
    whole, path = measured(*arguments, *SIZE)
    told("bench", "--resume", path)

    # Devices that enrol do so again, and pay for it.
    varies = arguments[0] == "assisted" or "active" in arguments
    assert_same(load(path), whole, FIXED[4:] if varies else FIXED)


def test_what_it_read_and_wrote_is_restored_too():
    size = ("--rounds", 3, "--warmup", 1, "--insecure-seed", 5)
    whole, path = measured(
        "fedavg", "--updates", "updates.npy", *size, "--save-aggregate", "sum.npy"
    )
    before = np.load("sum.npy")
    assert "sum.npy exists already" in refusal("bench", "--resume", path)
    told("bench", "--resume", path, "--save-aggregate", "again.npy")

    assert_same(load(path), whole)
    np.testing.assert_array_equal(np.load("again.npy"), before)


def test_what_is_given_beside_it_must_be_as_it_was():
    _, path = measured("secagg", "--clip", 0.5, "--threads", 2, *SIZE)
    before = path.read_bytes()
    for given, sentence in (
        (("--clip", 0.2, "--seed", 1), "clip 0.5, not 0.2"),
        (("--devices", 8), "devices 7, not 8"),
        (("--output", "other.h5"), "--resume continues in its own file"),
        (("--uplink-mbps", 10), "uplink_mbps 100.0, not 10"),
        (("--rounds", 5), "rounds 3, not 5"),
        (("--threads", 1), "threads 2, not 1"),
        (("--insecure-seed", 6), "insecure_seed 5, not 6"),
        (("sparse",), "protocol secagg, not sparse"),
    ):
        assert sentence in refusal("bench", *given, "--resume", path)
    assert path.read_bytes() == before


def test_a_file_never_decides_which_code_is_loaded(folder):
    whole, path = measured("mine:Own", *SIZE)
    sys.modules.pop("mine", None)

    assert "give mine:Own beside --resume" in refusal("bench", "--resume", path)
    assert "mine" not in sys.modules
    told("bench", "mine:Own", "--resume", path)
    assert_same(load(path), whole)


def test_a_file_of_the_api():
    whole = api.bench("secagg", devices=8, dim=50, rounds=2, insecure_seed=1, output="api.h5")
    cut("api.h5", 1)
    run = api.bench(resume="api.h5")
    assert_same(run, whole)
    assert run.resumed[0]["command"] == "hpcfl bench --resume=api.h5"


def test_a_run_goes_on_by_the_command_that_began_it():
    trained("fedavg", *TRAIN, "--rounds", 1, folder="part")
    said = refusal("bench", "--resume", "part/run.h5")
    assert "is of a training: hpcfl train --resume part/run.h5" in said
    _, path = measured("secagg", *SIZE)
    said = refusal("train", "--resume", path)
    assert f"is of a benchmark: hpcfl bench --resume {path}" in said


def another(about):
    """Return a value of an option that is not the default."""
    values = (*about.choices, 7, 8, 0.25, 0.75, True, "some", Path("some"), (3,), ("some",))
    for value in values:
        try:
            read = about.read(value)
            about.check(read)
        except Exception:
            continue
        if read != about.default:
            return read
    raise AssertionError(about.name)


@pytest.mark.parametrize("group", [BenchOptions, TrainOptions])
def test_every_option_comes_back_from_json(group):
    for name, about in options_of(group).items():
        given = {"protocol" if group is BenchOptions else "algorithm": "dp-fedavg"}
        given[name] = another(about)
        if name == "steps":
            given["epochs"] = None
        if name == "degree":
            given[name] = 8
        if name == "max_rounds":
            given[name] = 11
        if name == "bits":
            given["group"] = "fq"
        options = make(group, given)
        found = make(group, json.loads(json.dumps(asked_for(options))))

        kept = about.default if "launch" in about.marks else given[name]
        assert getattr(found, name) == kept, name


# ---- Training ----

TRAIN = ("--devices", 4, "--epochs", 1, "--checkpoint-every", 1, "--insecure-seed", 3)


def trained(*arguments, folder):
    pytest.importorskip("torch")
    Path(folder).mkdir()
    shown = told("train", *arguments, "--output", f"{folder}/run.h5", "--json")
    return json.loads(shown)["rounds"], Path(folder, "run.h5")


@pytest.mark.parametrize(
    "arguments",
    [
        ("fedavg", "--aggregate", "sparse", "--alpha", 0.5, "--per-round", 3, *TRAIN),
        ("fedavg", "--aggregate", "prf", "--server-learning-rate", 0.5, *TRAIN),
        ("dp-fedavg", "--noise-multiplier", 1, *TRAIN),
    ],
    ids=lambda words: " ".join(map(str, words[:3])),
)
def test_a_training_goes_on_from_its_checkpoint_alone(arguments):
    private = arguments[0] == "dp-fedavg"
    rounds = ("--rounds", 4)
    whole, _ = trained(*arguments, *rounds, folder="whole")
    _, path = trained(*arguments, *rounds, "--max-seconds", 0, folder="part")
    first = load(path).config
    again = ("train", "--resume", path, "--max-seconds", 1000, "--json")
    done = json.loads(told(*again))

    assert (Path(done["path"]).name, len(done["rounds"]), load(path).rounds) == ("run.h5", 4, 4)
    enrols = "prf" in arguments
    for name in (
        ("participants",) if private else ("accuracy", "loss", "bytes_up_total")[: 3 - enrols]
    ):
        assert [one[name] for one in done["rounds"]] == [one[name] for one in whole]
    config, free = load(path).config, {"max_seconds"}
    assert {k: v for k, v in config.items() if k not in free} == {
        k: v for k, v in first.items() if k not in free
    }


def test_what_is_given_beside_a_checkpoint_must_be_as_it_was():
    _, path = trained("fedavg", *TRAIN, "--rounds", 1, folder="part")
    for given, sentence in (
        (("--seed", 1), "seed 0, not 1"),
        (("top-k",), "algorithm fedavg, not top-k"),
        (("--aggregate", "secagg"), "aggregate fedavg, not secagg"),
        (("--epochs", 2), "epochs 1, not 2"),
        (("--preset", "zcdp-adult-lr"), "not"),
        ((), "nothing left to train"),
    ):
        assert sentence in refusal("train", "--resume", path, *given)
    told("train", "fedavg", *TRAIN, "--resume", path, "--rounds", 2)
    assert load(path).rounds == 2


def test_code_that_a_checkpoint_names_is_named_again():
    code = ("--aggregate", "mine:Own", "--model", "mine:network")
    _, path = trained("mine:Slow", *code, *TRAIN, "--rounds", 1, folder="part")
    sys.modules.pop("mine", None)
    for given, missing in (
        ((), "give mine:Slow beside --resume"),
        (("mine:Slow",), "give --aggregate mine:Own beside --resume"),
        (("mine:Slow", *code[:2]), "give --model mine:network beside --resume"),
    ):
        assert missing in refusal("train", *given, "--resume", path, "--rounds", 2)
    told("train", "mine:Slow", *code, "--resume", path, "--rounds", 2)
    assert (load(path).protocol, load(path).rounds) == ("own", 2)
