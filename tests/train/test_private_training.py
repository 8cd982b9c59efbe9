"""Private algorithms from end to end: real data, real protocols, and the account beside them."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
from runs import epsilons, right
from runs import train_privately as train

from hpcfl.algorithms.aggregation.pine import Pine
from hpcfl.algorithms.federated.dpfedavg import DPFedAvg
from hpcfl.algorithms.parameters import Parameters
from hpcfl.errors import UsageError
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.results import load
from hpcfl.results.footer import footer
from hpcfl.results.summary import summarise
from hpcfl.results.tables import render_run
from hpcfl.training.report import render_end

pytest.importorskip("torch")


SYSTEMS = {
    "cdp": {"sigma": 0.01},
    "dp-dsgd": {"sigma": 0.01, "steps": 1},
    "fedsgd-dpc": {"sigma": 1e-4, "steps": 1, "batch_size": 0, "mechanism": "laplace"},
    "dp-fedavg": {"noise_multiplier": 0.05, "clip_norm": 1.0},
    "locks": {"noise_multiplier": 0.05, "sampling": "poisson", "per_round": 4},
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_trains_and_spends(tmp_path, name):
    trained = train(tmp_path, name, rounds=20, **SYSTEMS[name])
    first, last = trained.results[0].figures, trained.results[-1].figures

    assert right(trained)
    assert load(trained.path).partition is None
    assert last["loss"] < first["loss"] < 2.5
    for side in ("paper", "proven"):
        spent = epsilons(trained, side)
        assert spent == sorted(spent)
        assert 0 < spent[0] <= spent[-1] < math.inf
    assert last["epsilon_proven"] > first["epsilon_proven"]


@pytest.mark.parametrize(
    ("name", "aggregate"), [("cdp", "secagg-graph"), ("dp-dsgd", "prf"), ("dp-fedavg", "secagg")]
)
def test_noise_within_a_protocol_is_validated_with_the_sum(tmp_path, name, aggregate):
    noise = {"noise": "distributed"} if name == "dp-fedavg" else {}
    trained = train(tmp_path, name, aggregate, **SYSTEMS[name], **noise)
    assert right(trained)
    quiet = train(tmp_path, "fedavg", aggregate, steps=SYSTEMS[name].get("steps", 2))
    # The error of an aggregate has the noise in it.
    errors = [one.results[0].figures["quantisation_error"] for one in (trained, quiet)]
    assert errors[0] > 3 * errors[1]


def test_without_noise_to_speak_of_a_private_algorithm_is_federated_averaging(tmp_path):
    options = {"steps": 1, "batch_size": 0}
    plain = train(tmp_path, "fedavg", **options)
    for name in ("cdp", "dp-fedavg"):
        private = train(tmp_path, name, sigma=1e-9, clip_norm=1e6, **options)
        assert np.abs(private.weights - plain.weights).max() < 1e-5


@pytest.mark.parametrize("by", ["paper", "proven"])
def test_no_round_begins_that_would_cost_more_than_there_is(tmp_path, by):
    options = {"sigma": 0.1, "rounds": 12, "shuffle": "fresh"}
    spent = epsilons(train(tmp_path, "cdp", **options), by)
    limit = (spent[4] + spent[5]) / 2
    stopped = train(tmp_path, "cdp", epsilon=limit, epsilon_by=by, **options)
    assert 5 == len(stopped.results)
    assert load(stopped.path).status == "complete"
    assert "one more round would have cost more than --epsilon" in render_end(load(stopped.path))


@pytest.mark.parametrize(
    ("options", "reason", "played"),
    [
        ({}, "rounds", 3),
        ({"target_accuracy": 0.01}, "target_accuracy", 1),
        ({"max_seconds": 0}, "max_seconds", 1),
        ({"epsilon": 16.0}, "epsilon", 2),
        ({"epsilon": 0.1}, "epsilon", 0),
    ],
)
def test_why_a_run_stopped_is_said_and_recorded(tmp_path, options, reason, played):
    trained = train(tmp_path, "cdp", sigma=0.05, shuffle="fresh", **options)
    run = load(trained.path)

    assert run.environment["stop_reason"] == reason
    assert len(trained.results) == run.rounds == played
    said = render_end(run)
    assert ("stopped because" in said) == (reason != "rounds" and played > 0)
    if played:
        assert ("stopped because" in render_run(summarise(run, run.link()))) == (reason != "rounds")


@pytest.mark.parametrize("name", ["cdp", "dp-fedavg"])
def test_noise_that_anybody_can_draw_again_is_no_privacy(tmp_path, name):
    trained = train(
        tmp_path, name, insecure_seed=None, fast_noise=True, sampling="exact", **SYSTEMS[name]
    )
    run = load(trained.path)

    assert epsilons(trained) == epsilons(trained, "paper") == [math.inf] * 3
    assert {"HPCFL epsilon_paper: inf", "HPCFL epsilon_proven: inf"} <= {*footer(run).split("\n")}
    assert "nothing is differentially private" in str(run.config["promises"])
    said = " ".join(render_end(run).split())
    assert "inf as the paper counts, inf proven" in said
    assert "anybody can draw it again" in said
    with pytest.raises(UsageError, match="does not go with fast_noise"):
        PrivacyOptions(fast_noise=True, epsilon=2.0)


def test_noise_for_an_epsilon_is_chosen_and_recorded(tmp_path):
    trained = train(tmp_path, "cdp", epsilon=5.0, delta=1e-4, rounds=4, shuffle="fresh")
    run = load(trained.path)

    assert 4 == len(trained.results)
    assert trained.results[-1].figures["epsilon_proven"] == pytest.approx(5.0, rel=1e-6)
    assert run.config["epsilon"] == 5.0
    assert run.config["sigma"] > 0
    assert run.config["delta"] == 1e-4


def test_a_resumed_private_run_ends_with_the_model_of_an_undisturbed_one(tmp_path):
    """The order of the data goes on where it was."""
    for name, options in (
        ("cdp", {"sigma": 0.05, "per_round": 3}),
        ("dp-fedavg", {"noise_multiplier": 0.1, "clip_norm": 0.01}),
    ):
        whole = train(tmp_path, name, rounds=6, **options)
        half = train(tmp_path, name, rounds=3, checkpoint_every=3, **options)
        resumed = train(tmp_path, name, rounds=6, resume=half.path, **options)

        assert 3 == len(resumed.results)
        assert np.array_equal(whole.weights, resumed.weights)
        assert epsilons(whole)[-1] == epsilons(resumed)[-1]


# locks


def test_the_first_stage_of_locks_is_measured(tmp_path):
    run = load(train(tmp_path, "locks", devices=30, rounds=5, **SYSTEMS["locks"]).path)
    assert ["model", "norms", "upload", "result"] == run.phases
    up = {name: run.bytes_up[:, k] for k, name in enumerate(run.phases)}
    down = {name: run.bytes_down[:, k] for k, name in enumerate(run.phases)}
    invited, kept = up["norms"] > 0, up["upload"] > 0

    # Whoever is invited gets the model and an answer, and sends 8 bytes and an envelope.
    assert np.array_equal(invited, down["model"] > 0)
    assert np.array_equal(invited, down["norms"] > 0)
    assert len(set(up["norms"][invited].tolist())) == 1
    assert 8 <= up["norms"].max() <= 40
    assert not (kept & ~invited).any()
    assert 0 < kept.sum() < invited.sum()
    assert np.array_equal(kept, run.survived)


def test_options_of_private_algorithms_are_refused_before_data_are_read(tmp_path):
    for name, options in (
        ("cdp", {"sigma": 1.0, "momentum": 0.5}),
        ("locks", {"sigma": 1.0, "sampling": "exact"}),
    ):
        with pytest.raises(UsageError, match="give --"):
            train(tmp_path, name, dataset="mnist", data_dir=tmp_path / "nowhere", **options)


def test_steps_that_may_expand_are_not_taken_for_convex(tmp_path):
    with pytest.raises(UsageError, match=r"--convex is for .* softmax with 10 classes"):
        train(tmp_path, "cdp", sigma=1.0, convex=True)
    # With one step there is nothing that could expand.
    assert train(tmp_path, "cdp", sigma=1.0, convex=True, steps=1, rounds=1).results


@pytest.mark.parametrize("name", ["lightsecagg", "secagg"])
def test_a_secret_sample_that_may_end_a_run_is_refused_alike_whatever_is_drawn(tmp_path, name):
    options = {"devices": 20, "per_round": 6, "sampling": "poisson", "dropout": 0.0, "gamma": 0.1}
    sentences = set()
    for seed in (1, 2):
        with pytest.raises(UsageError, match="must stay secret") as found:
            train(tmp_path, "dp-fedavg", aggregate=name, noise_multiplier=1.0, seed=seed, **options)
        sentences.add(str(found.value))
    assert 1 == len(sentences)
    assert [] == [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("cdp", {"steps": 1, "sigma": 1e-3, "epsilon": 0.1}, "no round is within epsilon 0.1"),
        ("cdp", {"steps": 1, "sigma": 1.0}, "epsilon at delta 1e-05:"),
        (
            "fedsgd-dpc",
            SYSTEMS["fedsgd-dpc"] | {"sigma": 1.0},
            r"epsilon at delta 0:.* \(neighbours: replace one record\)",
        ),
    ],
)
def test_what_was_spent_is_said_with_its_delta_and_neighbours(tmp_path, name, options, said):
    trained = train(tmp_path, name, rounds=1, devices=3, **options)

    assert re.search(said, render_end(load(trained.path)))


def test_the_servers_noise_covers_what_rounding_adds_to_vectors_that_were_proven_short():
    """Whose integers per unit are pine's own, and not those of --levels."""
    devices, norm = 10, 0.5
    protocol = Pine(Parameters(devices, 640, clip_norm=norm))
    federation, privacy = SimpleNamespace(devices=devices), SimpleNamespace(clip_norm=norm)
    algorithm = SimpleNamespace(sigma=1.0, federation=federation, privacy=privacy)
    longest = protocol.proofs.norm_bound / protocol.quantiser.levels / (norm / devices)
    assert 1 < longest <= DPFedAvg._central_sigma(algorithm, protocol) < 1.02
