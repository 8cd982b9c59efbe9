from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from commandline import hpcfl, invoke

from hpcfl.algorithms.federated.queries import Constants, GaussianBound, LaplaceBound
from hpcfl.errors import UsageError

# gamma = 2.1, a' = 412 and b' = 197, which the paper's row for MNIST goes back to.
UNIT = 7840 * 300**2 / 60000**2
MNIST = {
    "devices": 10,
    "dim": 7840,
    "samples": 60000,
    "gradient_norm": 2 * math.sqrt(UNIT * 412),
    "smoothness": 1.05,
    "convexity": 1.0,
    "heterogeneity": 0.0,
    "distance": 32 * UNIT * 197 / 2.1,
    "l1_clip": 300.0,
    "l2_clip": 10.0,
    "variance": 50.0,
}


ASKED = ("optimize", "fedsgd-dpc")


@pytest.fixture
def mnist(tmp_path):
    path = tmp_path / "mnist.json"
    path.write_text(json.dumps(MNIST))
    return path


def found(*arguments):
    result = invoke(*ASKED, *arguments, "--json")
    assert result.exit_code == 0, result.output
    value: dict[str, Any] = json.loads(result.stdout)
    return value


@pytest.mark.parametrize(
    ("epsilon", "entries"), [(1, (5, 2, 1, 22)), (5, (32, 20, 3, 121)), (10, (67, 42, 5, 244))]
)
def test_json_has_the_row_of_table_1(mnist, epsilon, entries):
    asked = ("--constants", mnist, "--epsilon", epsilon, "--rounds", 50, "--per-round", 5)
    value = found(*asked)
    by_b = {row["per_round"]: row for row in value["by_per_round"]}
    bound = LaplaceBound(Constants.from_dict(MNIST), epsilon)

    assert math.floor(value["for_per_round"]["rounds"]) == entries[0]
    assert value["for_per_round"] == by_b[5]
    assert math.floor(by_b[10]["rounds"]) == entries[1]
    assert math.ceil(value["for_rounds"]["per_round"]) == entries[2]
    assert math.floor(value["joint"]["rounds"]) == entries[3]
    assert (value["joint"]["per_round"], value["joint"]["solution"]) == (1, "S1")
    assert value["joint"]["bound"] == bound.joint().bound
    assert value["whole"]["rounds"] in (entries[3], entries[3] + 1)
    for b, row in by_b.items():
        assert row["whole"]["rounds"] == bound.best_whole_rounds(b).rounds
        whole = bound.best_whole_rounds(b, whole=True)
        assert row["whole_replies"]["rounds"] == whole.rounds
    best = bound.integer(whole=True)
    assert value["whole_replies"]["rounds"] == best.rounds
    # One device a round, of ten: whole replies end with a full turn.
    assert best.rounds % 10 == 0
    noise = value["noise"]
    assert noise["replies"] == best.rounds // 10
    scale = 2 * 300 * 10 / 60000 * noise["replies"] / epsilon
    assert noise["scale"] == {str(float(epsilon)): pytest.approx(scale)}
    curve = value["curve"]
    for key, whole_replies in (("bound", False), ("bound_whole_replies", True)):
        assert curve[key] == [
            bound.value(curve["rounds"], b, whole=whole_replies).tolist()
            for b in curve["per_round"]
        ]
    assert (curve["per_round"][0], curve["per_round"][-1], curve["rounds"][0]) == (1, 10, 1)
    assert curve["rounds"][-1] > value["joint"]["rounds"]


def test_tables_say_the_same(mnist):
    result = invoke(
        "optimize", "fedsgd-dpc", "--constants", mnist, "--rounds", 50, "--per-round", 5
    )
    lines = [line.split() for line in result.stdout.splitlines()]
    bound = LaplaceBound(Constants.from_dict(MNIST), 1)

    assert result.exit_code == 0
    assert "laplace noise, N = 10 devices, epsilon 1" in result.stdout
    assert "gamma = 2.1" in result.stdout
    joint = ["joint", "optimum", "(S1)", f"{bound.best_rounds(1):.4g}", "1"]
    assert any(line[:5] == joint for line in lines)
    assert f"for b = 5: T* = {bound.best_rounds(5):.4g}; of whole numbers 5" in result.stdout
    assert "for T = 50: b* = 1; of whole numbers 1" in result.stdout
    assert "scale of the noise on a coordinate at T = 20, b = 1, 2 replies: 0.2 " in result.stdout
    row = next(line for line in lines if line[:2] == ["5", f"{bound.best_rounds(5):.4g}"])
    assert row[2] == str(bound.best_whole_rounds(5).rounds)


def test_constants_by_option_go_before_those_of_the_file(mnist):
    options = []
    for name, value in MNIST.items():
        if name not in ("l1_clip", "l2_clip"):
            name = {"samples": "total_samples"}.get(name, name)
            options += [f"--{name.replace('_', '-')}", value]
    same = found(*options, "--clip-norm", 300)
    value = found("--constants", mnist)
    for key in ("joint", "by_per_round", "curve"):
        assert same[key] == value[key]

    other = found(
        "--constants",
        mnist,
        "--clip-norm",
        30,
        "--smoothness",
        4,
        "--devices",
        7,
        "--gradient-norm",
        9,
    )
    changes = {"l1_clip": 30.0, "smoothness": 4.0, "devices": 7, "gradient_norm": 9.0}
    assert other["constants"] == MNIST | changes | {"gamma": 8.0}
    assert (
        other["joint"]["bound"]
        == LaplaceBound(Constants.from_dict(MNIST | changes), 1).joint().bound
    )


def test_budgets_may_differ(mnist):
    budgets = [1.0, 2.0] * 5
    value = found("--constants", mnist, "--epsilon", ",".join(map(str, budgets)))
    bound = LaplaceBound(Constants.from_dict(MNIST), budgets)
    assert value["joint"]["bound"] == bound.joint().bound
    assert list(value["noise"]["scale"]) == ["1.0", "2.0"]


def test_gaussian_noise_shows_that_of_the_accountant_too(mnist):
    pytest.importorskip("dp_accounting")
    asked = ("--constants", mnist, "--mechanism", "gaussian", "--epsilon", 1, "--max-rounds", 30)
    value = found(*asked)
    bound = GaussianBound(Constants.from_dict(MNIST), 1, replace=False)
    noise = value["noise"]

    assert value["joint"] == {
        "rounds": None,
        "per_round": 10,
        "replies": None,
        "bound": bound.coefficients[2],
        "solution": "S1",
    }
    assert (value["whole"]["rounds"], value["whole"]["per_round"]) == (30, 10)
    assert value["whole"]["bound"] == pytest.approx(float(bound.value(30, 10)))
    # All of its samples, 30 times: no subsampling, so that both are nearly known in closed form.
    sensitivity = 10.0 * 10 / 60000
    paper = sensitivity * math.sqrt(30 * math.log(1e5))
    assert noise["sigma_paper"] == {"1.0": pytest.approx(paper, rel=1e-5)}
    proven = noise["sigma_proven"]["1.0"]
    assert 1.01 * paper < proven < 1.5 * paper
    by_hand = bound.with_noise(30, 10, 7840 * proven**2 / 10)
    assert noise["bound_proven"] == pytest.approx(float(by_hand))
    table = invoke(*ASKED, *asked, "--delta", "1e-5").stdout
    assert "infinite" in table
    shown = re.search(r"proven (\S+), paper (\S+)\n", table)
    # Rounded up: with less noise than is needed, an epsilon would be above the budget.
    assert proven <= float(shown[1]) < proven * 1.001
    assert shown[2] == f"{paper:.4g}"


def test_a_start_that_no_training_beats_is_kept(mnist):
    result = invoke(*ASKED, "--constants", mnist, "--heterogeneity", 10000)
    assert result.exit_code == 0
    assert "no training has a smaller bound than the start" in result.stdout
    value = found("--constants", mnist, "--heterogeneity", 10000)
    assert value["noise"] is None
    assert value["joint"]["solution"] == "S3"


def test_many_devices_are_tabled_in_steps_with_the_one_asked_for(mnist):
    value = found("--constants", mnist, "--devices", 1000, "--per-round", 77)
    rows = [row["per_round"] for row in value["by_per_round"]]

    assert len(rows) <= 13
    assert {1, 77, 1000} <= set(rows)
    assert rows == sorted(rows)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "the bound needs --devices, --dim, --total-samples, --gradient-norm"),
        (["--epsilon", "one"], "--epsilon 'one' is not a number"),
        (["--epsilon", "-1"], "--epsilon is -1; every budget must be above 0"),
        (["--epsilon", "1,nan"], "every budget must be above 0"),
        (["--constants", "FILE", "--epsilon", "1,2,3"], "3 epsilons for 10 devices"),
        (["--constants", "FILE", "--convexity", "9"], "lambda is never below mu"),
        (["--constants", "FILE", "--clip-norm", "0"], "--clip-norm is 0.0; it must be above 0"),
        (["--constants", "FILE", "--per-round", "11"], "--per-round is 11, and there are 10"),
        (["--constants", "FILE", "--dataset", "digits"], "give one of them"),
        (["--constants", "missing.json"], "cannot read missing.json"),
        (["--constants", "BAD"], "is not JSON"),
        (["--constants", "LIST"], "must have an object"),
        (["--constants", "STRANGE"], "there is no constant 'mass'"),
        (["--constants", "FILE", "--save-constants", "/proc/x.json"], "cannot write"),
        (
            ["--constants", "FILE", "--mechanism", "gaussian", "--fraction", "2"],
            "the fraction is 2.0",
        ),
        (["--constants", "FILE", "--mechanism", "gaussian", "--delta", "0"], "delta is 0.0"),
        (["--dataset", "digits", "--estimate-steps", "1"], "it must be at least 2"),
        (["--dataset", "digits", "--learning-rate", "0"], "--learning-rate is 0.0"),
    ],
)
def test_wrong_use_is_a_sentence(mnist, tmp_path, arguments, sentence):
    files = {"BAD": "{", "LIST": "[1]", "STRANGE": json.dumps(MNIST | {"mass": 1})}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    places = {name: str(tmp_path / name) for name in files} | {"FILE": str(mnist)}
    result = invoke(
        "optimize", "fedsgd-dpc", *(places.get(argument, argument) for argument in arguments)
    )

    assert isinstance(result.exception, UsageError)
    assert sentence in str(result.exception)
    assert "\n" not in str(result.exception)


def test_an_estimate_is_shown_warned_of_and_saved(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "constants.json"
    data = ("--dataset", "digits", "--devices", 4, "--estimate-steps", 5, "--clip-norm", 20)
    more = ("--save-constants", path, "--epsilon", 3, "--variance", 0, "--json")
    job = hpcfl(*ASKED, *data, *more)
    assert job.returncode == 0, job.stderr
    value = json.loads(job.stdout)

    assert job.stderr.count("not differentially private") == 1
    assert value["estimate"]["private"] is False
    assert len(value["estimate"]["sizes"]) == 4
    figures = value["estimate"]["devices"]
    assert value["constants"]["smoothness"] == max(figures["smoothness"])
    assert value["constants"]["l1_clip"] == min(20, max(figures["l1_norm"]))
    # An option replaces what was estimated.
    assert value["constants"]["variance"] == 0
    assert max(figures["variance"]) > 0
    again = found("--constants", path, "--epsilon", 3)
    for key in ("constants", "joint", "by_per_round", "curve"):
        assert again[key] == value[key]
    assert "estimate" not in again
