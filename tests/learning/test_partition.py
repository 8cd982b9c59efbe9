"""Partitions share out every sample once, and as their names promise.

Seeds are fixed, so what passes once passes always.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hpcfl.errors import UsageError
from hpcfl.learning import partition
from hpcfl.learning.base import Dataset

LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=60).map(
    lambda labels: np.array(labels, np.int64)
)


def dataset(labels, writers=None):
    inputs = np.zeros((len(labels), 1), np.float32)
    return Dataset("some", inputs, labels, inputs, labels, 6, writers)


def assert_shared_out(parts, devices, samples):
    """Check that each sample is on exactly one device, in ascending order there."""
    assert len(parts) == devices
    assert {part.dtype for part in parts} == {np.dtype(np.int64)}
    assert np.sort(np.concatenate(parts)).tolist() == list(range(samples))
    assert all((np.diff(part) > 0).all() for part in parts)


@given(labels=LABELS, seed=st.integers(0, 2**32), data=st.data())
def test_every_sample_is_on_one_device(labels, seed, data):
    devices = data.draw(st.integers(1, len(labels)))
    count = data.draw(st.integers(devices, len(labels)))
    concentration = data.draw(st.sampled_from([1e-6, 1e-3, 0.5, 1e6]))

    dealt = partition.iid(labels, devices, seed)
    for parts in (
        dealt,
        partition.shards(labels, devices, seed, count),
        partition.dirichlet(labels, devices, seed, concentration),
    ):
        assert_shared_out(parts, devices, len(labels))
        assert min(map(len, parts)) >= 1
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    # Of writers, what one wrote is on one device, and none has many more writers than another.
    devices = min(devices, len(np.unique(labels)))
    parts = partition.by_writer(labels, devices, seed)
    assert_shared_out(parts, devices, len(labels))
    held = [set(labels[part].tolist()) for part in parts]
    assert sum(map(len, held)) == len(set.union(*held))
    assert max(map(len, held)) - min(map(len, held)) <= 1


@pytest.mark.parametrize(
    ("spec", "direct"),
    [
        ("iid", partition.iid),
        ("shards", partition.shards),
        ("two-digit", lambda labels, devices, seed: partition.shards(labels, devices, seed, 40)),
        ("dirichlet:0.5", lambda labels, devices, seed: partition.dirichlet(labels, 20, seed, 0.5)),
        ("writer", partition.by_writer),
    ],
)
def test_a_name_and_a_seed_decide_the_partition(spec, direct):
    values = np.arange(1000) % 100  # classes, or writers
    made, other = (partition.make(spec, dataset(values, values), 20, seed) for seed in (1, 2))

    expected = [part.tolist() for part in direct(values, 20, 1)]
    assert [part.tolist() for part in made] == expected
    assert [part.tolist() for part in other] != expected


@pytest.mark.parametrize("devices", [25, 100])
def test_shards_are_the_papers(devices):
    """On MNIST's 60,000 samples: 300 shards of 200, 300/N a device, dealt out at random."""
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), counts))
    parts = partition.shards(labels, devices, 1)

    assert_shared_out(parts, devices, 60_000)
    assert {*map(len, parts)} == {60_000 // devices}
    shard_of = np.empty(60_000, np.int64)
    shard_of[np.argsort(labels, kind="stable")] = np.arange(60_000) // 200
    assert {len(np.unique(shard_of[part])) for part in parts} == {300 // devices}
    # Undealt, the first class would be on three of 25 devices, or on ten of 100.
    assert (partition.class_table(labels, parts, 10)[:, 0] > 0).sum() > 12


def test_shards_are_spread_evenly():
    held = [*map(len, partition.shards(np.repeat(np.arange(10), 600), 70, 0))]
    assert sorted(held) == [80] * 50 + [100] * 20  # 4 or 5 shards of 20


def test_classes_are_divided_as_the_names_say():
    """Tests at the level 1e-8: chi-squared of IID parts, Kolmogorov-Smirnov of Dirichlet's."""
    labels = np.repeat(np.arange(10), 1000)
    table = partition.class_table(labels, partition.iid(labels, 20, 0), 10)
    assert stats.chi2_contingency(table).pvalue > 1e-8

    # A device's shares of classes are independent, of the law Beta(a, (N - 1) a). They are rounded,
    # many to 0: so they are compared with shares that are rounded alike, ties broken at random.
    devices, classes, size = 5, 500, 2000
    labels = np.repeat(np.arange(classes), size)
    for concentration in (0.1, 10.0):
        parts = partition.dirichlet(labels, devices, 0, concentration)
        shares = partition.class_table(labels, parts, classes)[2] / size
        generator = np.random.default_rng(1)
        drawn = generator.beta(concentration, (devices - 1) * concentration, 100_000)
        compared = [shares, np.rint(drawn * size) / size]
        compared = [one + generator.uniform(-0.5, 0.5, len(one)) / size for one in compared]
        assert stats.ks_2samp(*compared).pvalue > 1e-8


def test_a_part_of_each_devices_samples_is_left_by_chance():
    parts = [np.arange(10) * 3, np.arange(7), np.array([], np.int64)]
    half, most = (partition.thin(parts, fraction, 1) for fraction in (0.5, 0.8))

    assert [len(part) for part in half] == [5, 4, 0]
    assert all((np.diff(part) > 0).all() for part in half)
    assert all(set(few) <= set(many) for few, many in zip(half, most, strict=True))
    assert [part.tolist() for part in half] != [part[: len(part) // 2].tolist() for part in parts]


@pytest.mark.parametrize(
    ("spec", "devices", "expected"),
    [
        ("iid:3", 5, "there is no partition 'iid:3'"),
        ("dirichlet:0", 5, "needs a positive concentration"),
        ("dirichlet:1e7", 5, "of at most 1e\\+06"),
        ("iid", 401, "400 samples cannot be shared out among 401 devices"),
        ("shards", 301, "300 shards cannot be shared out among 301 devices"),
        ("two-digit", 201, "400 samples cannot be cut into 402 shards"),
        ("writer", 5, "4 writers cannot be shared out among 5 devices"),
    ],
)
def test_what_cannot_be_shared_out_is_a_sentence(spec, devices, expected):
    labels = np.arange(400) % 4

    with pytest.raises(UsageError, match=expected):
        partition.make(spec, dataset(labels, writers=labels), devices, 0)
    with pytest.raises(UsageError, match="does not record its writers"):
        partition.make("writer", dataset(labels), 3, 0)
