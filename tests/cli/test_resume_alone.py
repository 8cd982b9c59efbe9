"""`--resume FILE` without other options: the file says what the run was asked for."""

import json
import shutil
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from commandline import hpcfl, refusal

import hpcfl as api
from hpcfl.algorithms.aggregation import PROTOCOLS
from hpcfl.algorithms.aggregation import find as find_protocol
from hpcfl.algorithms.parameters import Parameters
from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import asked_for, make, options_of
from hpcfl.options.training import TrainOptions
from hpcfl.results import load
from hpcfl.results.reader import find
from hpcfl.results.resuming import joined

# Columns that the seeds fix.
FIXED = (
    *("bytes_up", "bytes_down", "messages_up", "messages_down"),
    *("survived", "validated", "warmup"),
)
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


def told(*arguments):
    done = hpcfl(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def cut(path, rounds):
    """Leave of a complete file what a kill after some rounds leaves."""
    with h5py.File(path, "r+") as file:
        file.attrs.modify("status", np.array("running", file.attrs["status"].dtype))
        file["rounds/finished"][rounds:] = False


def measured(*arguments, rounds=2):
    """Return a run, and the file of the same, killed after some rounds."""
    told("bench", *arguments, "--output", "run.h5")
    whole = load("run.h5")
    cut("run.h5", rounds)
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


MORE = {
    "sparse": ("--alpha", 0.3, "--dropout", 0.2, "--locations", "gaps", "--scaling", "paper"),
    "cohort": ("--alpha", 0.5),
    "common": ("--alpha", 0.4, "--model-update", "changed"),
    "assisted": ("--helpers", 2, "--shared"),
    "committee": ("--committee", 6, "--dropout", 0),
}


@pytest.mark.parametrize(
    "arguments",
    [
        *((name, *MORE.get(name, ())) for name in PROTOCOLS),
        ("secagg", "--bits", "auto", "--rotate", "--note", "a [note]"),
        ("secagg", "--security", "active"),
        ("secagg", "--degree", 4),
        ("secagg", "--group", "ring32", "--upload", "reduce", "--uplink-mbps", 10),
        ("secagg", "--rel-ci", 0.9, "--max-rounds", 3, "--max-seconds", 500),
        ("secagg", "--dropout-model", "bernoulli", "--dropout-phase", "unmask"),
        ("dp-fedavg", "--aggregate", "secagg", "--noise-multiplier", 2, "--delta", 1e-4),
        ("dp-fedavg", "--bits", "16"),
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_a_benchmark_goes_on_from_its_file_alone(arguments):
    if arguments[0] == "ckks":
        pytest.importorskip("tenseal")
    whole, path = measured(*arguments, *SIZE)
    told("bench", "--resume", path)

    # Devices that enrol do so again, and pay for it.
    varies = arguments[0] in ("prf", "ckks", "assisted") or "active" in arguments
    assert_same(load(path), whole, FIXED[4:] if varies else FIXED)


def test_devices_whose_rank_had_died_are_sent_what_changed_since(folder):
    """The first of them had no model at all; the second has that of the first round."""
    options = ("common", "--devices", 6, "--dim", 1000, "--rounds", 4, "--warmup", 0)
    _, path = measured(*options, "--model-update", "changed", rounds=3)
    with h5py.File(path, "r+") as file:
        for name in ("bytes_down", "messages_down"):
            missed = file["rounds"][name][:]
            missed[:, :, 0] = missed[1:, :, 1] = 0
            file["rounds"][name][:] = missed
    told("bench", "--resume", path)

    run = load(path)
    received = run.bytes_down[-1, run.phases.index("model")]
    common = find_protocol("common")(Parameters(6, 1000, alpha=0.1))
    changed = set().union(*(common.sent_in(index) for index in range(3)))
    assert received.tolist() == [16 + 4000, 16 + 4 * len(changed), *[16 + 400] * 4]


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


def test_what_was_read_and_is_gone_is_said():
    _, path = measured("fedavg", "--updates", "updates.npy", "--rounds", 2)
    Path("updates.npy").unlink()

    assert "with --updates updates.npy, and nothing is there now: put it back" in refusal(
        "bench", "--resume", path
    )


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("--seed", 1), "seed 0, not 1"),
        (("--alpha", 0.2), "alpha 0.3, not 0.2"),
        (("--devices", 8), "devices 7, not 8"),
        (("--degree", 4), "degree 6, not 4"),
        (("--bits", 16), "bits none, not 16"),
        (("--model", "2nn"), "model none, not 2nn"),
        (("--output", "other.h5"), "--resume continues in its own file"),
        (("--uplink-mbps", 10), "uplink_mbps 100.0, not 10"),
        (("--rounds", "many"), "it must be a whole number"),
        (("--dim", 0), "it must be at least 1"),
    ],
)
def test_what_is_given_beside_it_must_be_as_it_was(given, sentence):
    _, path = measured("sparse", "--alpha", 0.3, *SIZE)
    before = path.read_bytes()

    assert sentence in refusal("bench", "--resume", path, *given)
    assert "protocol sparse, not secagg" in refusal("bench", "secagg", "--resume", path)
    assert path.read_bytes() == before


def test_what_is_as_it_was_may_be_given():
    whole, path = measured("sparse", "--alpha", 0.3, *SIZE)
    # What was asked for, what was decided on, and what may differ.
    told(
        *("bench", "sparse", "--resume", path, *SIZE, "--alpha", 0.3, "--degree"),
        *(6, "--dropout-phase", "masked_input", "--note", "second"),
    )

    assert_same(load(path), whole)


def test_a_file_never_decides_which_code_is_loaded(folder):
    whole, path = measured("mine:Own", *SIZE)
    sys.modules.pop("mine", None)

    assert "give mine:Own beside --resume" in refusal("bench", "--resume", path)
    assert "mine" not in sys.modules
    told("bench", "mine:Own", "--resume", path)
    assert_same(load(path), whole)


def test_a_file_of_a_sweep_and_of_the_api():
    Path("plan.toml").write_text(
        "[fixed]\ndim = 50\nrounds = 2\nwarmup = 0\ndevices = 5\ninsecure-seed = 1\n"
        '[grid]\nprotocol = ["secagg", "sparse"]\nalpha = [0.2, 0.5]\n'
    )
    told("sweep", "plan.toml", "--output", "swept")
    for path in find(["swept"]):
        whole = load(path)
        cut(path, 1)
        told("bench", "--resume", path)
        assert_same(load(path), whole)
    # The sweep finds them finished.
    assert told("sweep", "plan.toml", "--output", "swept").count("finished before") >= 1

    whole = api.bench("secagg", devices=8, dim=50, rounds=2, insecure_seed=1, output="api.h5")
    cut("api.h5", 1)
    run = api.bench(resume="api.h5")
    assert_same(run, whole)
    assert run.resumed[0]["command"] == "hpcfl bench --resume=api.h5"


def test_a_file_that_does_not_say_what_was_asked_for():
    _, path = measured("secagg", *SIZE)
    with h5py.File(path, "r+") as file:
        del file.attrs["asked"]

    assert "does not record what was asked for" in refusal("bench", "--resume", path)
    assert "seed 0, not 1" in refusal("bench", "secagg", *SIZE, "--seed", 1, "--resume", path)
    told("bench", "secagg", *SIZE, "--resume", path)
    assert load(path).status == "complete"


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"protocol": "secagg", "frobs": 1}, "there is no option 'frobs'"),
        ({"protocol": "secagg", "seed": "x"}, "--seed is 'x'; it must be a whole number"),
        ({"seed": 1}, "is damaged: of what was asked for"),
    ],
)
def test_a_file_that_says_nonsense(asked, sentence):
    _, path = measured("secagg", *SIZE)
    with h5py.File(path, "r+") as file:
        file.attrs["asked"] = json.dumps(asked)

    assert sentence in refusal("bench", "--resume", path)


def test_a_training_goes_on_from_its_checkpoint_and_not_from_its_results():
    _, checkpoint = trained("fedavg", *TRAIN, "--rounds", 1, folder="part")
    for command, found in (("bench", "is of a training, which"), ("train", "is a file of results")):
        said = refusal(command, "--resume", "part/run.h5")
        assert found in said
        assert f"hpcfl train --resume {checkpoint}" in said


def test_without_a_protocol_or_a_file():
    assert "no protocol is given" in refusal("bench", "--devices", 3)
    assert "no algorithm is given" in refusal("train", "--devices", 3)
    assert "there is no file none.h5" in refusal("bench", "--resume", "none.h5")


def another(about):
    """Return a value of an option that is not the default."""
    values = (*about.choices, 7, 8, 0.25, True, "some", Path("some"), (3,), ("some",))
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

        kept = about.default if about.of_launch else given[name]
        assert getattr(found, name) == kept, name


# ---- Training ----

TRAIN = ("--devices", 4, "--epochs", 1, "--checkpoint-every", 1, "--insecure-seed", 3)


def trained(*arguments, folder):
    torch = pytest.importorskip("torch")
    assert torch
    Path(folder).mkdir()
    shown = told("train", *arguments, "--output", f"{folder}/run.h5", "--json")
    return json.loads(shown)["rounds"], Path(folder, "run.checkpoint.npz")


@pytest.mark.parametrize(
    "arguments",
    [
        ("fedavg", "--aggregate", "secagg", "--momentum", 0.1, *TRAIN),
        ("fedavg", "--aggregate", "sparse", "--alpha", 0.5, "--per-round", 3, *TRAIN),
        ("fedavg", "--aggregate", "prf", "--server-momentum", 0.5, *TRAIN),
        ("rand-k", "--alpha", 0.5, "--partition", "shards", *TRAIN),
        ("dp-fedavg", "--noise-multiplier", 1, "--fast-noise", *TRAIN),
        ("cdp", "--epsilon", 20, "--steps", 2, *TRAIN[:2], *TRAIN[4:]),
        (
            *("fedavg", "--preset", "sparse-secagg-mnist", "--dataset", "digits", "--model"),
            *("softmax", *TRAIN),
        ),
    ],
    ids=lambda words: " ".join(map(str, words[:3])),
)
def test_a_training_goes_on_from_its_checkpoint_alone(arguments):
    private = arguments[0] in ("cdp", "dp-fedavg")
    rounds = ("--rounds", 4)
    whole, _ = trained(*arguments, *rounds, folder="whole")
    _, checkpoint = trained(*arguments, *rounds, "--max-seconds", 0, folder="part")
    again = ("train", "--resume", checkpoint, "--max-seconds", 1000, "--json")
    done = json.loads(told(*again))

    assert Path(done["path"]).parent == Path("part")  # beside what was played before
    assert len(done["rounds"]) == 3
    enrols = "prf" in arguments
    for name in (
        ("participants",) if private else ("accuracy", "loss", "bytes_up_total")[: 3 - enrols]
    ):
        assert [one[name] for one in done["rounds"]] == [one[name] for one in whole[1:]]
    config, first = load(done["path"]).config, load("part/run.h5").config
    free = {"resume", "max_seconds", "rounds_repeated", "promises"}
    assert {k: v for k, v in config.items() if k not in free} == {
        k: v for k, v in first.items() if k not in free
    }


def test_more_rounds_than_levels_were_chosen_for_go_on_with_fewer_levels():
    """Of users in cohorts with unequal data, a longer run has heavier rounds, and fewer levels."""
    few = ("fedavg", "--aggregate", "cohort", "--alpha", 0.3, "--bits", 16, "--per-round", 10)
    few += ("--devices", 30, "--epochs", 1, "--partition", "dirichlet:0.5", "--dropout", 0)
    trained(*few, "--rounds", 40, "--max-seconds", 0, folder="long")
    _, checkpoint = trained(*few, "--rounds", 1, "--checkpoint-every", 1, folder="part")
    levels = [load(f"{folder}/run.h5").config["levels"] for folder in ("part", "long")]
    assert levels[0] > levels[1]
    more = ("--rounds", 40, "--max-seconds", 0)
    done = json.loads(told("train", "--resume", checkpoint, *more, "--json"))

    found = load(done["path"])
    assert (found.config["levels"], bool(found.validated.all())) == (levels[1], True)
    (together,) = joined([load("part/run.h5"), found])
    assert together.rounds == 2


def test_what_is_given_beside_a_checkpoint_must_be_as_it_was():
    _, checkpoint = trained("fedavg", *TRAIN, "--rounds", 1, folder="part")
    for given, sentence in (
        (("--seed", 1), "seed 0, not 1"),
        (("top-k",), "algorithm fedavg, not top-k"),
        (("--aggregate", "secagg"), "aggregate fedavg, not secagg"),
        (("--epochs", 2), "epochs 1, not 2"),
        (("--preset", "zcdp-adult-lr"), "not"),
        ((), "nothing left to train"),
    ):
        assert sentence in refusal("train", "--resume", checkpoint, *given)
    told("train", "fedavg", *TRAIN, "--resume", checkpoint, "--rounds", 2, "--output", "b.h5")
    assert load("b.h5").rounds == 1


def test_code_that_a_checkpoint_names_is_named_again():
    code = ("--aggregate", "mine:Own", "--model", "mine:network")
    _, checkpoint = trained("mine:Slow", *code, *TRAIN, "--rounds", 1, folder="part")
    sys.modules.pop("mine", None)
    for given, missing in (
        ((), "give mine:Slow beside --resume"),
        (("mine:Slow",), "give --aggregate mine:Own beside --resume"),
        (("mine:Slow", *code[:2]), "give --model mine:network beside --resume"),
    ):
        assert missing in refusal("train", *given, "--resume", checkpoint, "--rounds", 2)
    told("train", "mine:Slow", *code, "--resume", checkpoint, "--rounds", 2, "--output", "b.h5")
    assert load("b.h5").protocol == "own"


def test_a_data_folder_that_is_gone_is_said(folder):
    pytest.importorskip("torch")
    from hpcfl.training.checkpoint import Checkpoint

    data = folder / "data"
    asked = {"algorithm": "fedavg", "devices": 2, "dataset": "mnist", "data_dir": str(data)}
    model = np.zeros(3, np.float32)
    Checkpoint(0, model, np.zeros(3), 0, {}, asked).save(folder / "x.checkpoint.npz")

    said = refusal("train", "--resume", "x.checkpoint.npz")
    assert f"with --data-dir {data}, and nothing is there now: say where it is" in said
    (folder / "moved").mkdir()
    said = refusal("train", "--resume", "x.checkpoint.npz", "--data-dir", "moved")
    assert "moved/mnist" in said
    shutil.rmtree(folder / "moved")
