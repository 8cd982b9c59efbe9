import math

import numpy as np
import pytest
from runs import train
from scipy import stats

from hpcfl.errors import HpcflError, UsageError
from hpcfl.results import load
from hpcfl.results.tables import promises
from hpcfl.rounds import build
from hpcfl.training import build as training
from hpcfl.training import checkpoint, experiment

pytest.importorskip("torch")


@pytest.mark.parametrize("aggregate", ["secagg", "sparse"])
def test_training_through_a_protocol_learns_and_is_validated(tmp_path, aggregate):
    trained = train(tmp_path, aggregate, rounds=12, dropout=0.2, alpha=1.0)
    run = load(trained.path)

    assert trained.results[-1].figures["accuracy"] > 0.85
    assert run.status == "complete"
    assert run.validated.all()
    assert run.training["accuracy"].tolist() == [r.figures["accuracy"] for r in trained.results]
    assert (np.diff(run.training["bytes_up_total"]) > 0).all()
    assert run.training["bytes_up_total"][-1] == run.bytes_up.sum()


def test_secagg_gives_fedavgs_model_up_to_quantisation(tmp_path):
    # Each of N devices rounds by less than one level; after the first round the models differ, so
    # the bound is for one round: N / levels a coordinate, and float32 of both models and updates.
    levels, devices = 2**20, 6
    plain = train(tmp_path, "fedavg", devices, rounds=1)
    secure = train(tmp_path, "secagg", devices, rounds=1, levels=levels)

    np.testing.assert_allclose(secure.weights, plain.weights, rtol=0, atol=devices / levels + 1e-6)
    assert not np.array_equal(secure.weights, plain.weights)


def test_pine_gives_fedavgs_model_up_to_quantisation_unless_updates_are_clipped(tmp_path):
    options = {"devices": 6, "rounds": 1, "partition": "dirichlet:0.5"}  # of unequal weights
    plain = train(tmp_path, "fedavg", **options)
    found = {norm: train(tmp_path, "pine", clip_norm=norm, **options) for norm in (5.0, 0.01)}
    clipped = {norm: load(one.path).training["clipped_fraction"] for norm, one in found.items()}

    # Devices round by less than one of the 7,500 integers that the heaviest one's norm has.
    np.testing.assert_allclose(found[5.0].weights, plain.weights, rtol=0, atol=6 * 5.0 / 7500)
    assert {5.0: 0.0, 0.01: 1.0} == clipped


@pytest.mark.parametrize(("algorithm", "error_feedback"), [("rand-k", False), ("top-k", True)])
def test_sparsified_training_learns_and_sends_what_it_chose(tmp_path, algorithm, error_feedback):
    trained = train(
        tmp_path, algorithm=algorithm, rounds=25, alpha=0.1, error_feedback=error_feedback
    )
    run = load(trained.path)

    assert run.training["accuracy"][-1] > 0.8
    # Envelope, header, at most a bitmap of 640 bits, and 64 values (or fewer: some are zero).
    assert run.bytes_up.max() <= 16 + 8 + 80 + 4 * 64
    assert run.bytes_up.max() > 16 + 8 + 4 * 50
    overlap = run.training["overlap"]
    assert ((0 < overlap) & (overlap < 1)).all()


def test_the_overlap_of_rand_k_is_k_over_d_and_top_k_has_more_in_common(tmp_path):
    drawn = load(train(tmp_path, algorithm="rand-k", devices=8, rounds=15).path)
    largest = load(train(tmp_path, algorithm="top-k", devices=8, rounds=15).path)

    # Of each of 28 pairs in 15 rounds, the common part of 64 of 640 is hypergeometric.
    pair = stats.hypergeom(640, 64, 64).std() / 64
    assert abs(drawn.training["overlap"].mean() - 0.1) < 6 * pair / np.sqrt(28 * 15)
    assert (largest.training["overlap"] > 0.2).all()


def test_error_feedback_makes_top_k_reach_the_model_of_whole_updates(tmp_path):
    """Without it, coordinates whose updates are always small are never learned."""
    same = {"rounds": 15, "momentum": 0.0, "devices": 3}
    whole = train(tmp_path, **same).weights
    with_memory = train(tmp_path, algorithm="top-k", alpha=0.05, error_feedback=True, **same)
    without = train(tmp_path, algorithm="top-k", alpha=0.05, **same)

    far = np.linalg.norm(without.weights - whole)
    assert np.linalg.norm(with_memory.weights - whole) < far / 2


def test_rounding_and_clipping_are_reported(tmp_path):
    plain = train(tmp_path, "fedavg", rounds=1).results[0].figures
    fine = train(tmp_path, "secagg", rounds=1, levels=2**20).results[0].figures
    coarse = train(tmp_path, "secagg", rounds=1, levels=2**10).results[0].figures
    narrow = train(tmp_path, "sparse", rounds=1, alpha=1.0, clip=1e-3).results[0].figures

    assert np.isnan([plain["quantisation_error"], plain["clipped_fraction"]]).all()
    # Six devices round by less than a level each; the error of one is uniform at most.
    assert 0 < fine["quantisation_error"] < 6 / 2**20
    assert 0 < coarse["quantisation_error"] < 6 / 2**10
    assert coarse["quantisation_error"] > 100 * fine["quantisation_error"]
    assert fine["clipped_fraction"] == 0
    assert 0.5 < narrow["clipped_fraction"] < 1
    assert narrow["quantisation_error"] > 100 * fine["quantisation_error"]


@pytest.mark.parametrize("content", [None, b"PK\x03\x04junk"])
def test_a_damaged_checkpoint_is_refused(tmp_path, content):
    begun = train(tmp_path, rounds=1, checkpoint_every=1)
    path = checkpoint.path_for(begun.path)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match="cannot be read as one"):
        train(tmp_path, resume=begun.path)


def test_the_promises_of_a_round_that_is_drawn_are_for_those_it_is_drawn_from(
    tmp_path, monkeypatch
):
    built = []

    def remember(*arguments, **named):
        found = build.build(*arguments, **named)
        built.append(found[0].parameters)
        return found

    for module in (experiment, training):
        monkeypatch.setattr(module, "build", remember)
    trained = train(tmp_path, "secagg", devices=20, per_round=10, gamma=0.3, rounds=2)
    (shared,) = load(trained.path).config["promises"]

    assert {parameters.population for parameters in built} == {20}
    assert {parameters.devices for parameters in built} == {10}
    # Six of the ten open a secret: six of the six that collude may be drawn.
    assert "even if 6 of 20 devices, from which each round draws, collude, except with" in shared
    chance = math.comb(14, 4) / math.comb(20, 10)
    assert f"except with probability 2^{math.log2(chance):.1f}" in shared


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"aggregate": "sparse", "upload": "reduce"}, "sparse cannot use --upload reduce"),
        ({"target_accuracy": 1.5}, "--target-accuracy is 1.5"),
        ({"partition": "nonsense"}, "nonsense"),
        ({"per_round": 9}, "9 devices a round are asked for; there are 6"),
        ({"algorithm": "top-k", "aggregate": "secagg"}, "top-k cannot be aggregated by secagg"),
        ({"aggregate": "prf", "per_round": 1}, "prf needs at least 2 devices, but there are 1"),
        ({"aggregate": "prf", "dropout": 0.2}, "prf has no dropouts"),
        ({"error_feedback": True}, "--error-feedback is for rand-k and top-k, and for fedavg with"),
        (
            {"algorithm": "top-k", "error_feedback": True, "checkpoint_every": 2},
            "--error-feedback does not go with checkpoints",
        ),
    ],
)
def test_options_that_cannot_work_are_refused(tmp_path, options, sentence):
    with pytest.raises(UsageError, match=sentence):
        train(tmp_path, **options)
    assert [] == list(tmp_path.iterdir())


# Enrolled once


@pytest.mark.parametrize("sampling", ["exact", "poisson"])
def test_the_selected_of_the_enrolled_devices_give_secaggs_model(tmp_path, sampling):
    """The same vectors, roundings and sums: only the masks differ, and they cancel."""
    options = {"devices": 9, "per_round": 5, "sampling": sampling, "rounds": 4}
    masked = train(tmp_path, "prf", **options)
    shared = train(tmp_path, "secagg", **options)
    run, other = load(masked.path), load(shared.path)

    np.testing.assert_array_equal(masked.weights, shared.weights)
    assert run.validated.all()
    np.testing.assert_array_equal(run.survived, other.survived)
    assert (run.survived.sum(axis=1) == 5).all() == (sampling == "exact")
    # Not always the first of them.
    assert len({tuple(row) for row in run.survived.tolist()}) > 1


def test_all_devices_enrol_once_and_the_selected_send_a_vector(tmp_path):
    trained = train(tmp_path, "prf", 9, per_round=4)
    run = load(trained.path)
    dim = trained.weights.size

    assert ["model", "masked_input", "result"] == list(run.phases)
    once = run.enrolment
    assert once is not None
    assert ["advertise_keys"] == list(once.phases)
    assert [[[16 + 32] * 9]] == once.bytes_up.tolist()
    assert [[[16 + 32 * 9] * 9]] == once.bytes_down.tolist()
    assert (once.cpu_seconds > 0).all()
    selected = run.survived.astype(int)
    np.testing.assert_array_equal(run.bytes_down[:, 0], selected * (16 + 4 * dim + 2))
    np.testing.assert_array_equal(run.bytes_up[:, 1], selected * (16 + 4 * dim))
    np.testing.assert_array_equal(
        run.training["bytes_up_total"], np.cumsum(run.bytes_up.sum(axis=(1, 2)))
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("assisted", {"per_round": 6, "seed": 1, "rounds": 15}),
        pytest.param(
            *("secagg", {"per_round": 8, "seed": 3, "rounds": 12, "gamma": 0.2}),
            marks=pytest.mark.full,
        ),
    ],
)
def test_what_is_promised_is_true_of_every_round_whatever_their_numbers(tmp_path, name, options):
    """A smaller round is one with a smaller threshold, so no number is claimed of all."""
    drawn = load(train(tmp_path, name, 20, sampling="poisson", **options).path)
    counts = drawn.training["participants"].astype(int)
    expected = options["per_round"]
    # Some sums are of fewer than the threshold of the number that is expected.
    assert counts.min() // 2 + 1 < expected // 2 + 1
    *claims, each = drawn.config["promises"]
    assert claims
    assert all(claim.startswith(f"of a round of {expected} devices,") for claim in claims)
    assert "with the numbers that follow from its own" in each
    assert f"of {len(counts)} rounds" in promises(drawn)[-1]

    fixed = load(train(tmp_path, name, 20, sampling="exact", **options).path)
    assert [claim.split(": ", 1)[1] for claim in claims] == fixed.config["promises"]


def test_a_round_for_which_chance_selects_one_device_is_refused(tmp_path):
    words = r"round \d+ cannot be played: 1 device is selected for it, and prf needs at least 2"
    with pytest.raises(HpcflError, match=words):
        train(tmp_path, "prf", 9, per_round=3, sampling="poisson", rounds=200)
    (path,) = tmp_path.glob("*.h5")

    assert load(path).status == "failed"
    assert (load(path).survived.sum(axis=1) >= 2).all()


# Through sums that a server that cheats learns no more from


def test_the_active_variant_comes_to_the_model_of_the_passive_one(tmp_path):
    options = {"devices": 9, "per_round": 6, "dropout": 0.2}
    active, passive = (
        train(tmp_path, "secagg", security=security, **options)
        for security in ("active", "passive")
    )
    run = load(active.path)

    assert run.validated.all()
    np.testing.assert_array_equal(active.weights, passive.weights)
    assert "consistency_check" in run.phases
    # All nine enrol before the first round, and six take part in each.
    assert run.enrolment is not None
    assert (run.enrolment.bytes_up[0] >= 16 + 96).all()
    advertised = run.bytes_up[:, list(run.phases).index("advertise_keys")]
    assert ((advertised > 0).sum(axis=1) == 6).all()
