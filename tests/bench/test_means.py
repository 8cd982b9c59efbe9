"""The decoded sum is that of the survivors' vectors, and the mean is over those that are there."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

import hpcfl

WHOLE = ("fedavg", "secagg", "secagg-graph")


def run(folder, protocol, rows, weights=None, **options):
    """Return the saved sum and mean of a round, and who survived."""
    with h5py.File(folder / "updates.h5", "w") as file:
        file["updates"] = rows
        if weights is not None:
            file["weights"] = weights
    saved = folder / "saved.h5"
    saved.unlink(missing_ok=True)
    given = {"devices": len(rows), "rounds": 1, "warmup": 0, "insecure_seed": 3} | options
    given |= {"updates": folder / "updates.h5", "save_aggregate": saved}
    played = hpcfl.bench(protocol, **given, output=folder)
    with h5py.File(saved) as file:
        return file["sum"][()], file["mean"][()], played.survived[0]


def vectors(devices, dim=40):
    return np.random.default_rng(devices).uniform(-0.9, 0.9, (devices, dim))


@pytest.mark.parametrize(
    ("protocol", "devices", "dropout"),
    [
        *((protocol, 12, 0.3) for protocol in WHOLE),
        *(("secagg", 37, 0.49), ("prf", 12, 0.0)),
    ],
)
def test_the_saved_sum_is_that_of_the_survivors(tmp_path, protocol, devices, dropout):
    """Twelve devices of which nine survive, where 8.4 would be reckoned with."""
    rows = vectors(devices)
    total, mean, survived = run(tmp_path, protocol, rows, dropout=dropout)
    assert devices - int(dropout * devices) == survived.sum()
    # Each device rounds by less than a step, and a step is N / levels of a summand.
    step = 0 if protocol == "fedavg" else devices * devices / 2**20
    assert np.allclose(rows[survived].sum(axis=0), total, rtol=0, atol=step + 1e-5)
    assert np.allclose(rows[survived].mean(axis=0), mean, rtol=0, atol=step + 1e-5)


@pytest.mark.parametrize("protocol", WHOLE)
def test_sums_and_means_are_weighted_by_the_survivors_weights(tmp_path, protocol):
    rows, weights = vectors(12), np.arange(1.0, 13.0)
    total, mean, survived = run(tmp_path, protocol, rows, weights=weights, dropout=0.3)
    expected = (weights[survived, None] * rows[survived]).sum(axis=0)
    assert np.allclose(expected, total, rtol=0, atol=1e-2)
    assert np.allclose(expected / weights[survived].sum(), mean, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("protocol", "options"),
    [*((one, {}) for one in WHOLE), ("cohort", {"alpha": 0.5})],
)
def test_survivors_without_weight_have_no_mean(tmp_path, protocol, options):
    rows = vectors(12) / 10
    *_, survived = run(tmp_path, protocol, rows, dropout=0.3, **options)
    options = options | {"weights": np.where(survived, 0.0, 1.0)}
    total, mean, again = run(tmp_path, protocol, rows, dropout=0.3, **options)
    assert survived.tolist() == again.tolist()
    assert np.isnan(mean).all()
    assert not total.any()


def test_a_cohorts_mean_is_that_of_its_survivors(tmp_path):
    """All vectors are one: so is the mean wherever anybody sent, whoever dropped out."""
    rows = np.ones((15, 60)) * 0.5
    for seed in range(5):
        _, mean, _ = run(tmp_path, "cohort", rows, dropout=0.4, alpha=0.2, insecure_seed=seed)
        sent = mean != 0
        assert sent.any()
        assert np.allclose(0.5, mean[sent], rtol=0, atol=1e-4)


def test_a_sparse_mean_is_right_on_average_over_the_survivors(tmp_path):
    """Averaged over many rounds' selections; a false alarm is 6.5 standard errors off."""
    rows = np.full((12, 4000), 0.5)
    _, mean, survived = run(tmp_path, "sparse", rows, dropout=0.3, alpha=0.5)
    assert 9 == survived.sum()
    # 4,000 coordinates; each mean has a variance of at most 0.25 (1 / p - 1) / 9 < 0.06 plus that
    # of pairs, which at most doubles it.
    assert abs(0.5 - mean.mean()) < 6.5 * np.sqrt(0.12 / 4000)


@pytest.mark.parametrize("protocol", ["fedavg", "secagg", "sparse", "cohort"])
def test_the_papers_scaling_divides_by_what_was_planned(tmp_path, protocol):
    """Nine of twelve survive and 8.4 were planned: 9 / 8.4 times the mean of the survivors."""
    rows = np.full((12, 600), 0.5)
    alpha = {"cohort": {"alpha": 1.0}, "sparse": {"alpha": 0.9}}
    options = {"dropout": 0.3} | alpha.get(protocol, {})
    _, planned, survived = run(tmp_path, protocol, rows, scaling="paper", **options)
    _, there, _ = run(tmp_path, protocol, rows, scaling="survivors", **options)
    assert 9 == survived.sum()
    assert np.allclose(9 / 8.4 * there, planned, rtol=0, atol=1e-3)
