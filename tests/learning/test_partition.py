"""Partitions share out every sample once, and as their names promise.

Seeds are fixed, so what passes once passes always. Distributions are tested at the level 1e-8;
there are four such tests, so that together they would raise a false alarm with a probability
below 1e-7 for other seeds.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hpcfl.errors import UsageError
from hpcfl.learning import partition
from hpcfl.learning.base import Dataset

LEVEL = 1e-8

LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=60).map(
    lambda labels: np.array(labels, np.int64)
)
SEEDS = st.integers(0, 2**32)


def dataset(labels, writers=None):
    inputs = np.zeros((len(labels), 1), np.float32)
    return Dataset("some", inputs, labels, inputs, labels, 6, writers)


def assert_shared_out(parts, devices, samples):
    """Check that each sample is on exactly one device, in ascending order there."""
    assert len(parts) == devices
    assert {part.dtype for part in parts} == {np.dtype(np.int64)}
    assert np.sort(np.concatenate(parts)).tolist() == list(range(samples))
    assert all((np.diff(part) > 0).all() for part in parts)


def sizes(parts):
    return [len(part) for part in parts]


@given(labels=LABELS, seed=SEEDS, data=st.data())
def test_every_sample_is_on_one_device(labels, seed, data):
    devices = data.draw(st.integers(1, len(labels)))
    count = data.draw(st.integers(devices, len(labels)))
    concentration = data.draw(st.sampled_from([1e-6, 1e-3, 0.5, 1e6]))

    for parts in (
        partition.iid(labels, devices, seed),
        partition.shards(labels, devices, seed, count),
        partition.dirichlet(labels, devices, seed, concentration),
    ):
        assert_shared_out(parts, devices, len(labels))
        assert min(sizes(parts)) >= 1
    held = sizes(partition.iid(labels, devices, seed))
    assert max(held) - min(held) <= 1


PARTITIONS = {
    "iid": partition.iid,
    "shards": partition.shards,
    "two-digit": lambda labels, devices, seed: partition.shards(labels, devices, seed, 2 * devices),
    "dirichlet:0.5": lambda labels, devices, seed: partition.dirichlet(labels, devices, seed, 0.5),
    "writer": partition.by_writer,
}


@pytest.mark.parametrize("spec", PARTITIONS)
def test_a_seed_gives_the_same_partition_and_another_seed_another(spec):
    """Two seeds agree by chance with a probability below 20! / 20**20 < 1e-7."""
    values = np.repeat(np.arange(100), 10)  # classes, or writers
    one, again, other = (PARTITIONS[spec](values, 20, seed) for seed in (1, 1, 2))

    assert [part.tolist() for part in one] == [part.tolist() for part in again]
    assert [part.tolist() for part in one] != [part.tolist() for part in other]


@pytest.mark.parametrize("spec", PARTITIONS)
def test_make_gives_the_partition_of_that_name(spec):
    values = np.arange(1000) % 100
    made = partition.make(spec, dataset(values, writers=values), 20, 3)

    expected = PARTITIONS[spec](values, 20, 3)
    assert [part.tolist() for part in made] == [part.tolist() for part in expected]


def test_iid_parts_have_all_classes_in_proportion():
    """Chi-squared of the table of devices and classes, sorted labels."""
    labels = np.repeat(np.arange(10), 1000)
    table = partition.class_table(labels, partition.iid(labels, 20, 0), 10)

    assert stats.chi2_contingency(table).pvalue > LEVEL


@pytest.mark.parametrize("devices", [25, 50, 75, 100])
def test_shards_are_the_papers(devices):
    """On MNIST's 60,000 samples: 300 shards of 200, 300/N a device, as many samples as IID."""
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), counts))

    parts = partition.shards(labels, devices, 1)

    assert_shared_out(parts, devices, 60_000)
    assert set(sizes(parts)) == {60_000 // devices}
    shard_of = np.empty(60_000, np.int64)
    shard_of[np.argsort(labels, kind="stable")] = np.arange(60_000) // 200
    assert {len(np.unique(shard_of[part])) for part in parts} == {300 // devices}
    most = (partition.class_table(labels, parts, 10) > 0).sum(axis=1).max()
    assert most <= 2 * 300 // devices


def test_shards_that_do_not_divide_are_spread_evenly():
    labels = np.repeat(np.arange(10), 600)

    held = sizes(partition.shards(labels, 70, 0))

    assert sorted(held) == [80] * 50 + [100] * 20  # 4 or 5 shards of 20


def test_shards_are_dealt_out_at_random():
    """Neighbouring shards are rarely on one device: each device's classes are a random draw.

    Undealt, the first class's 30 shards would be on three of the 25 devices, which have 12 each.
    At random they are on 18 on average; all on seven or fewer has a probability below
    C(25, 7) C(84, 30) / C(300, 30) < 1e-12.
    """
    labels = np.repeat(np.arange(10), 600)
    table = partition.class_table(labels, partition.shards(labels, 25, 0), 10)

    assert (table[:, 0] > 0).sum() >= 8


def test_two_digit_parts_are_two_shards_each():
    """With ten classes of equal size and ten devices, a shard is half a class."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))

    parts = partition.shards(labels, 10, 0, 20)
    table = partition.class_table(labels, parts, 10)

    assert set(sizes(parts)) == {100}
    assert set(table.ravel().tolist()) <= {0, 50, 100}
    assert (table > 0).sum(axis=1).max() == 2


@pytest.mark.parametrize("concentration", [0.1, 1.0, 10.0])
def test_a_class_is_divided_by_dirichlet_proportions(concentration):
    """One device's shares of 500 classes are independent, of the law Beta(a, (N - 1) a).

    Shares are rounded to multiples of 1/2000, many of them to 0. So they are compared with drawn
    shares that are rounded alike, and ties are broken at random in both.
    """
    devices, classes, size = 5, 500, 2000
    labels = np.repeat(np.arange(classes), size)
    parts = partition.dirichlet(labels, devices, 0, concentration)
    shares = partition.class_table(labels, parts, classes)[2] / size

    generator = np.random.default_rng(1)
    drawn = generator.beta(concentration, (devices - 1) * concentration, 100_000)
    reference = np.rint(drawn * size) / size

    jitter = generator.uniform(-0.5, 0.5, classes) / size
    other_jitter = generator.uniform(-0.5, 0.5, len(reference)) / size
    compared = stats.ks_2samp(shares + jitter, reference + other_jitter)
    assert compared.pvalue > LEVEL


def test_rounding_favours_no_device():
    """With equal proportions 5 samples of a class cannot be cut for 20 devices without rounding.

    Each of 400 classes gives a device 0 or 1 samples, 1/4 on average and independently: outside
    of 30 to 170 is 8 standard deviations, below 1e-12 for a device.
    """
    labels = np.repeat(np.arange(400), 5)

    held = sizes(partition.dirichlet(labels, 20, 0, 1e6))

    assert min(held) > 30
    assert max(held) < 170


def test_dirichlet_parts_of_a_class_are_drawn_from_all_of_it():
    """Not the first and the last half: both are about half and half on either device."""
    one, other = partition.dirichlet(np.zeros(1000, np.int64), 2, 0, 1e6)

    assert 400 < one.mean() < 600
    assert 400 < other.mean() < 600


@given(writers=LABELS, seed=SEEDS, data=st.data())
def test_writers_stay_whole_and_are_dealt_out_evenly(writers, seed, data):
    devices = data.draw(st.integers(1, len(np.unique(writers))))

    parts = partition.by_writer(writers, devices, seed)

    assert_shared_out(parts, devices, len(writers))
    held = [set(writers[part].tolist()) for part in parts]
    assert sum(map(len, held)) == len(set.union(*held))
    assert max(map(len, held)) - min(map(len, held)) <= 1


@pytest.mark.parametrize(
    ("spec", "devices", "expected"),
    [
        ("IID", 5, "there is no partition 'IID'"),
        ("iid:3", 5, "there is no partition 'iid:3'"),
        ("dirichlet:a", 5, "needs a positive concentration"),
        ("dirichlet:0", 5, "needs a positive concentration"),
        ("dirichlet:nan", 5, "needs a positive concentration"),
        ("dirichlet:1e7", 5, "of at most 1e\\+06"),
        ("iid", 401, "400 samples cannot be shared out among 401 devices"),
        ("iid", 0, "among 0 devices"),
        ("shards", 301, "300 shards cannot be shared out among 301 devices"),
        ("two-digit", 201, "400 samples cannot be cut into 402 shards"),
        ("dirichlet:1", 401, "400 samples cannot be shared out among 401 devices"),
        ("writer", 5, "4 writers cannot be shared out among 5 devices"),
    ],
)
def test_what_cannot_be_shared_out_is_a_sentence(spec, devices, expected):
    labels = np.arange(400) % 4

    with pytest.raises(UsageError, match=expected):
        partition.make(spec, dataset(labels, writers=labels), devices, 0)
    with pytest.raises(UsageError, match="does not say who wrote what"):
        partition.make("writer", dataset(labels), 3, 0)


def test_the_class_table_counts_samples():
    labels = np.array([0, 2, 2, 1])
    parts = [np.array([1, 2]), np.array([0, 3]), np.array([], np.int64)]
    table = partition.class_table(labels, parts, 4)

    assert table.dtype == np.int64
    assert table.tolist() == [[0, 0, 2, 0], [1, 1, 0, 0], [0, 0, 0, 0]]
