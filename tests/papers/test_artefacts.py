"""The papers' tables and figures can be run, are compared by their seeds, and are kept as told."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import hpcfl
from hpcfl.training import defaults
from papers import (
    ARTEFACTS,
    STUDY,
    __main__,
    pages,
    panels,
    training,
)
from papers.artefact import Artefact, Scale, Store, key
from papers.verdicts import DIFFERS

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "results" / "reproduction"
BY_FORMULA = {"sparse-secagg/figure-4", "locks/multipliers", "queries/table-1"}
TRAINED = [
    one
    for one in ARTEFACTS.values()
    if one.id not in BY_FORMULA | {"sparse-secagg/table-1"}
    and (one.group != STUDY or "training" in one.id or one.id == "study/epsilon")
]


@pytest.mark.parametrize("artefact", TRAINED, ids=lambda one: one.id)
def test_every_setting_gives_only_options_that_training_has_a_use_for(artefact, monkeypatch):
    def train(algorithm, data_dir, output, **options):
        asked.append(defaults.asked({"algorithm": algorithm, **options}))

    monkeypatch.setattr(hpcfl, "train", train)
    for scale in artefact.scales.values():
        for setting in scale.settings:
            asked = []
            artefact.run(setting, None)
            assert asked
            # None of them has a dropout of its own but SparseSecAgg's training.
            to_target = artefact.group == STUDY or "target" in setting
            assert asked[0].dropout == 0 or to_target or artefact.id == "sparse-secagg/figure-6"


@pytest.mark.parametrize("id", ARTEFACTS)
def test_what_is_kept_is_compared_and_drawn(id, tmp_path):
    artefact = ARTEFACTS[id]
    found = Store(KEPT, artefact.group).results(artefact)
    if found is None:
        pytest.skip("nothing is kept of it")
    lines = artefact.lines(found[1])

    assert lines
    for line in lines:
        assert line.verdict != DIFFERS or line.why, f"{line.what} differs without a reason"
    if artefact.draw is not None:
        panels.draw(artefact.draw(found[1]), tmp_path / "figure.svg")
        assert (tmp_path / "figure.svg").stat().st_size > 5_000


def test_the_pages_are_what_is_generated_from_what_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "FOLDER", tmp_path)
    pages.write(KEPT)

    for name in ("reproduction.md", "study.md"):
        assert (tmp_path / name).read_text() == (ROOT / "papers" / name).read_text()


def test_loss_and_gradient_on_training_data_are_those_of_a_softmax_regression():
    pytest.importorskip("torch")
    given = {"rounds": 1, "dataset": "digits", "model": "softmax", "devices": 4}
    run = hpcfl.Run  # what training returns
    trained = training.train("fedavg", None, seed=1, dropout=0.0, **given)
    assert isinstance(trained, run)

    found = training.over_seeds("fedavg", None, range(2), in_training=True, dropout=0.0, **given)

    from hpcfl.learning import datasets

    data = datasets.load("digits")
    x = data.train_inputs.reshape(len(data.train_inputs), -1).astype(np.float64)
    logits = x @ trained.weights.reshape(data.classes, -1).T.astype(np.float64)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    chosen = shares[np.arange(len(x)), data.train_labels]
    gradient = (shares - np.eye(data.classes)[data.train_labels]).T @ x / len(x)
    assert found["training_loss"][1] == pytest.approx(-np.log(chosen).mean(), rel=1e-4)
    assert found["gradient_norm"][1] == pytest.approx(np.linalg.norm(gradient), rel=1e-4)


def test_a_run_that_failed_continues_and_nothing_is_run_twice(tmp_path):
    ran, failing = [], [7]

    def run(setting, data_dir):
        if setting["devices"] in failing:
            raise hpcfl.HpcflError("the machine is on fire")
        ran.append(setting["devices"])
        return {"double": 2 * setting["devices"]}

    settings = [{"devices": devices} for devices in (5, 7, 9)]
    scales = {"paper": Scale("all", settings), "small": Scale("one", settings[:1])}
    artefact = Artefact("some/table", "Doubles", scales, run, lambda results: [])
    with pytest.raises(hpcfl.HpcflError, match="on fire"):
        __main__._run(artefact, "paper", None, tmp_path)
    assert Store(tmp_path, "some").results(artefact)[0].what == "one"

    failing.clear()
    for _ in range(2):
        __main__._run(artefact, "paper", None, tmp_path)

    assert ran == [5, 7, 9]
    scale, results = Store(tmp_path, "some").results(artefact)
    assert (scale.what, [one.found["double"] for one in results]) == ("all", [10, 14, 18])
    assert key({"a": 1, "b": 2.0}) == key({"b": 2.0, "a": 1})


def test_the_command_lists_runs_and_draws(tmp_path):
    def papers(*arguments):
        return CliRunner().invoke(__main__.main, [*map(str, arguments), "--output", str(tmp_path)])

    assert papers().stdout.count("not run") == len(ARTEFACTS)
    ran = papers("locks/multipliers", "sparse-secagg/figure-4", "--figures", tmp_path / "figures")
    assert ran.exit_code == 0, ran.output
    assert (
        "multiplier 1.32, 100 Poisson rounds, delta 1e-5: epsilon: the paper 10; here" in ran.stdout
    )
    assert (tmp_path / "figures" / "sparse-secagg-figure-4.svg").exists()
    assert papers().stdout.count("not run") == len(ARTEFACTS) - 2
    assert papers("nothing").exit_code == 2
