import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_data import CLASSES, SHAPE, data, softmax_gradient
from tiers import examples

from hpcfl.learning import models
from hpcfl.learning.batches import SHUFFLES, batches, epoch_steps
from hpcfl.learning.private import PrivateOptions, PrivateTrainer
from hpcfl.options.training import LocalOptions
from hpcfl.privacy.accounting.cdp import CDPAccount

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("one_thread")


def trainer(name="softmax", private=None, **local):
    """Return a private trainer and its model's initial weights."""
    model = models.build(name, SHAPE, CLASSES, seed=3)
    options = LocalOptions(**{"epochs": None, "steps": 4, "momentum": 0.0, **local})
    return PrivateTrainer(model, options, private or PrivateOptions()), models.get_flat(model)


def seed(number=0):
    return np.random.SeedSequence(number, spawn_key=(7,))


def gaussian(std, number=1):
    rng = np.random.default_rng(number)
    return lambda size: rng.normal(scale=std, size=size)


def accesses(shuffle, samples, batch, steps, rounds):
    """Return how often every record is used in every round, shape (rounds, samples)."""
    counts = np.zeros((rounds, samples), np.int64)
    for round_index in range(rounds):
        for chosen in batches(shuffle, samples, batch, steps, round_index, seed()):
            np.add.at(counts[round_index], chosen, 1)
    return counts


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_steps_are_those_of_the_batches_written_out(norm, shuffle):
    inputs, labels = data(31)
    private = PrivateOptions(clip=0.9, clip_norm=norm, shuffle=shuffle)
    one, start = trainer(
        private=private,
        steps=5,
        batch_size=7,
        learning_rate=0.3,
        decay=0.9,
        weight_decay=0.1,
        schedule="sqrt",
    )
    update = one.local_update(
        start, inputs, labels, seed(), round_index=3, participation=2, noise=gaussian(0.05)
    )

    weights = start.astype(np.float64)
    noise, clipped, used = gaussian(0.05), 0, 0
    rate = 0.3 * 0.9**3 / 2
    for batch in batches(shuffle, 31, 7, 5, 2, seed()):
        total = np.zeros_like(weights)
        for sample in batch:
            gradient, _ = softmax_gradient(weights, inputs[[sample]], labels[[sample]])
            length = np.linalg.norm(gradient, 1 if norm == "l1" else 2)
            total += gradient * min(1.0, 0.9 / length)
            clipped += length > 0.9
            used += 1
        weights = weights - rate * (total / 7 + noise(len(weights)) + 0.1 * weights)
    np.testing.assert_allclose(update, start - weights, rtol=0, atol=2e-6)
    assert one.clipped == clipped / used > 0


GRIDS = [
    (20, 4, 3),  # E = 5: rounds and epochs drift against each other
    (23, 4, 4),  # with records left out of every epoch
    (23, 4, 5),  # an epoch a round
    (23, 4, 12),  # more than an epoch a round
    (20, 20, 3),  # all data
    (21, 1, 20),
]


def settings_of(shuffle, samples, batch, steps, rounds):
    return CDPAccount(
        sigma=1.0, rounds=rounds, devices=1, per_round=1, batch_size=batch, samples=samples,
        steps=steps, shuffle=shuffle,
    )  # fmt: skip


@pytest.mark.parametrize("shuffle", ["fresh", "continuing"])
@pytest.mark.parametrize(("samples", "batch", "steps"), GRIDS)
def test_no_record_is_used_more_than_the_accounting_assumes(shuffle, samples, batch, steps):
    counts = accesses(shuffle, samples, batch, steps, rounds=11)
    epoch = samples // batch
    total_bound = 11 * -(-steps // epoch) if shuffle == "fresh" else -(-11 * steps // epoch)

    assert counts.sum() == 11 * steps * batch
    for rounds in range(1, 12):
        declared = settings_of(shuffle, samples, batch, steps, rounds)
        used = counts[:rounds]
        # With these costs the account counts accesses, and accesses squared in a round.
        assert used.sum(axis=0).max() <= declared.worst_rho(float)
        squares = declared.worst_rho(lambda count: float(count**2))
        assert (used**2).sum(axis=0).max() <= squares
    assert settings_of(shuffle, samples, batch, steps, 11).worst_rho(float) == total_bound
    if steps <= epoch:
        assert counts.max() == 1
    elif shuffle == "fresh":
        assert counts.max() <= -(-steps // epoch)


@settings(max_examples=examples(150))
@given(
    batch=st.integers(1, 5),
    epoch=st.integers(1, 9),
    left=st.integers(0, 4),
    steps=st.integers(1, 20),
    number=st.integers(0, 10**6),
)
def test_continuing_epochs_partition_the_data_and_spare_a_rounds_records(
    batch, epoch, left, steps, number
):
    samples = batch * epoch + left % batch
    rounds = 8
    chosen = [
        list(batches("continuing", samples, batch, steps, each, seed(number)))
        for each in range(rounds)
    ]

    assert all(len(one) == steps for one in chosen)
    flat = [step for one in chosen for step in one]
    for begin in range(0, len(flat), epoch):
        records = np.concatenate(flat[begin : begin + epoch])
        assert len(np.unique(records)) == len(records)
    if steps <= epoch:
        for one in chosen:
            records = np.concatenate(one)
            assert len(np.unique(records)) == len(records) == steps * batch


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_batches_are_new_for_every_round_and_device_and_use_every_record_equally_often(shuffle):
    def drawn(number, participation):
        device = np.random.SeedSequence(0, spawn_key=(number,))
        steps = batches(shuffle, 40, 8, 5, participation, device)
        return b"/".join(step.tobytes() for step in steps)

    kinds = {drawn(number, participation) for number in range(4) for participation in range(4)}
    assert len(kinds) == 16
    counts = accesses(shuffle, 23, 4, 3, rounds=1000).sum(axis=0)
    # Binomial: 12 of 23 records a round at the most uneven, and one step is 4 of 23.
    expected, deviation = 1000 * 12 / 23, math.sqrt(1000 * 3 * 4 / 23 * 19 / 23)
    assert np.abs(counts - expected).max() < 5.5 * deviation


def test_poisson_batches_hold_every_record_independently():
    drawn = [list(batches("poisson", 50, 10, 4, one, seed())) for one in range(500)]
    flat = [step for one in drawn for step in one]
    sizes = np.array([len(step) for step in flat])

    # Binomial(50, 1/5): mean 10, variance 8; five standard errors of each.
    assert sizes.mean() == pytest.approx(10, abs=5 * math.sqrt(8 / 2000))
    assert sizes.var() == pytest.approx(8, abs=5 * 8 * math.sqrt(2 / 2000))
    assert all(len(np.unique(step)) == len(step) for step in flat)
    # The steps of a round do not depend on each other: 0 and 1 share 50 / 25 records on average.
    shared = [len(np.intersect1d(one[0], one[1])) for one in drawn]
    assert np.mean(shared) == pytest.approx(2, abs=5 * math.sqrt(50 * 0.04 * 0.96 / 500))
    assert all(len(step) == 7 for step in batches("poisson", 7, 7, 9, 0, seed()))


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_a_device_with_less_than_a_batch_uses_all_and_divides_by_the_batch(shuffle):
    assert epoch_steps(5, 8) == epoch_steps(0, 8) == 1
    steps = [sorted(step.tolist()) for step in batches(shuffle, 5, 8, 6, 3, seed())]
    assert steps == [[0, 1, 2, 3, 4]] * 6

    few, start = trainer(private=PrivateOptions(clip=1e6, shuffle=shuffle), batch_size=8, steps=1)
    all_of_it, _ = trainer(private=PrivateOptions(clip=1e6), batch_size=0, steps=1)
    update = few.local_update(start, *data(5), seed(), 0)
    whole = all_of_it.local_update(start, *data(5), seed(), 0)
    np.testing.assert_allclose(update, whole * 5 / 8, rtol=0, atol=1e-7)
