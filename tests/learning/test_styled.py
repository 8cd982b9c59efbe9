"""The stand-in for FEMNIST: made-up writers are the same for a seed, and differ from each other."""

import itertools

import numpy as np
import pytest
from data_files import write_mnist

from hpcfl.errors import UsageError
from hpcfl.learning import partition, styled
from hpcfl.learning.base import STYLES, generator_of
from hpcfl.learning.datasets import check, load
from hpcfl.results.statistics import kruskal_wallis, mann_whitney

WRITERS = 12
# Of each writer. Tests of one writer against another have enough of them, and take no time.
IMAGES = 60


@pytest.fixture(scope="module")
def digits():
    """Return 720 images of digits, 28 x 28, uint8: those of scikit-learn, each pixel nine times."""
    datasets = pytest.importorskip("sklearn.datasets")
    small = datasets.load_digits().images[: WRITERS * IMAGES]
    large = np.kron(255 * small / 16, np.ones((1, 3, 3)))
    return np.pad(large, ((0, 0), (2, 2), (2, 2))).astype(np.uint8)


@pytest.fixture(scope="module")
def written(digits):
    """Return the images as twelve writers write them, and who wrote which."""
    owners = styled.assign(len(digits), WRITERS, 7)
    return styled.rewritten(digits, owners, styled.styles(WRITERS, 7), 7), owners


def slant(images):
    """Return how far the top is right of the bottom, in heights: a regression over the rows."""
    ink = images.astype(float)
    rows, columns = np.mgrid[: ink.shape[1], : ink.shape[2]]
    total = ink.sum(axis=(1, 2))
    r = rows - ((ink * rows).sum(axis=(1, 2)) / total)[:, None, None]
    c = columns - ((ink * columns).sum(axis=(1, 2)) / total)[:, None, None]
    return -(ink * r * c).sum(axis=(1, 2)) / (ink * r * r).sum(axis=(1, 2))


def thickness(images):
    """Return the mean of how dark the tenth of the pixels is that is darkest."""
    ordered = np.sort(images.reshape(len(images), -1), axis=1).astype(float)
    return ordered[:, -ordered.shape[1] // 10 :].mean(axis=1)


def noise(images):
    """Return the mean of what is at the corners, where no ink is."""
    return images[:, :2, :2].reshape(len(images), -1).mean(axis=1)


def height(images):
    """Return the rows that have much ink in them."""
    return (images.max(axis=2) > 150).sum(axis=1).astype(float)


MEASURES = [slant, thickness, noise, height]


@pytest.mark.parametrize("measure", MEASURES)
def test_writers_differ_in_each_part_of_their_style(written, measure):
    """Writers that were all alike would pass with a probability below 1e-6, for each measure."""
    images, owners = written
    groups = [measure(images[owners == writer]) for writer in range(WRITERS)]

    assert kruskal_wallis(groups).p_value < 1e-6


@pytest.mark.parametrize("measure", MEASURES)
def test_one_writer_is_like_himself(written, measure):
    """Two halves of a writer's images are samples of one distribution.

    With another seed a right implementation fails with a probability of 1e-3 at most: twelve tests
    at 1e-3 / 12 each (Bonferroni), for each measure.
    """
    images, owners = written
    for writer in range(WRITERS):
        own = measure(images[owners == writer])
        assert mann_whitney(own[::2], own[1::2]).p_value > 1e-3 / WRITERS


def test_two_writers_lie_further_apart_than_two_halves_of_one(written):
    """In what style is, slant, thickness, size and noise together, in units of their spread."""
    images, owners = written
    values = np.stack([measure(images) for measure in MEASURES])
    values = (values - values.mean(axis=1, keepdims=True)) / values.std(axis=1, keepdims=True)
    halves = [
        [values[:, owners == writer][:, part::2].mean(axis=1) for part in (0, 1)]
        for writer in range(WRITERS)
    ]
    within = [float(np.linalg.norm(one - other)) for one, other in halves]
    between = [
        float(np.linalg.norm(one[0] - other[0])) for one, other in itertools.combinations(halves, 2)
    ]

    assert np.median(between) > 3 * np.median(within)
    # Were all writers alike, each order would be as likely: one in more than a million.
    assert mann_whitney(within, between).p_value < 1e-6


def test_a_seed_gives_the_same_writers_and_another_one_others(digits):
    def made(seed):
        owners = styled.assign(len(digits), WRITERS, seed)
        return owners, styled.rewritten(digits, owners, styled.styles(WRITERS, seed), seed)

    (owners, images), (again, same), (others, different) = made(1), made(1), made(2)

    np.testing.assert_array_equal(owners, again)
    np.testing.assert_array_equal(images, same)
    assert (owners != others).any()
    assert (images != different).any()
    # More writers leave the first ones as they are.
    assert styled.styles(20, 1)[:WRITERS] == styled.styles(WRITERS, 1)
    assert len({*styled.styles(200, 1)}) == 200


def test_styles_are_spread_as_is_said():
    found = styled.styles(2000, 3)
    slants = np.array([style.slant for style in found])
    sizes = np.array([style.size for style in found])

    # Standard errors are 2 % of the deviations; nine of them are never seen.
    assert abs(slants.mean()) < 0.2 * styled.SLANT
    assert slants.std() == pytest.approx(styled.SLANT, rel=0.2)
    assert sizes.mean() == pytest.approx(styled.MEAN_SIZE, abs=0.2 * styled.SIZE)
    assert sizes.min() >= styled.MEAN_SIZE - 2.5 * styled.SIZE > 0
    assert all(abs(style.thickness) <= 2.5 * styled.THICKNESS <= 1 for style in found)
    assert all(0 <= style.noise <= styled.LARGEST_NOISE for style in found)


@pytest.mark.parametrize(
    ("style", "measure", "sign"),
    [
        (styled.Style(0.4, 0, 1, 0), slant, 1),
        (styled.Style(-0.4, 0, 1, 0), slant, -1),
        (styled.Style(0, 1, 1, 0), thickness, 1),
        (styled.Style(0, -1, 1, 0), thickness, -1),
        (styled.Style(0, 0, 0.7, 0), height, -1),
        (styled.Style(0, 0, 1, 0.1), noise, 1),
    ],
)
def test_a_style_changes_what_it_says(digits, style, measure, sign):
    before = measure(digits)
    after = measure(styled.write(digits, style, generator_of(0, STYLES)))

    assert np.median(sign * (after - before)) > 0
    if measure is slant:
        # The shift of the top in heights, on images that are not cut off.
        assert np.median(after - before) == pytest.approx(style.slant, abs=0.1)
    plain = styled.write(digits, styled.Style(0, 0, 1, 0), generator_of(0, STYLES))
    np.testing.assert_array_equal(plain, digits)


def test_every_writer_has_own_samples_and_all_about_equally_many():
    owners = styled.assign(1001, 10, 0)

    assert owners.dtype == np.int64
    assert sorted(np.bincount(owners).tolist()) == [100] * 9 + [101]


def test_the_data_set_is_mnist_with_writers(tmp_path, monkeypatch):
    arrays = write_mnist(tmp_path)
    monkeypatch.setattr(styled, "WRITERS", 4)
    styled._pixels.cache_clear()
    data, again = load("styled-mnist", tmp_path, seed=1), load("styled-mnist", tmp_path, seed=2)

    assert (data.name, data.shape, data.classes) == ("styled-mnist", (1, 28, 28), 10)
    assert data.train_inputs.dtype == data.test_inputs.dtype == np.float32
    assert data.train_labels.dtype == np.int64
    assert data.train_labels.tolist() == arrays["train-labels-idx1-ubyte"].tolist()
    assert data.test_labels.tolist() == arrays["t10k-labels-idx1-ubyte"].tolist()
    assert data.writers.shape == data.train_labels.shape
    # Ink from 0 to 1, normalised as MNIST is.
    assert data.train_inputs.min() == pytest.approx(-0.1307 / 0.3081, abs=1e-4)
    # Runs of other seeds train on the same data.
    np.testing.assert_array_equal(data.train_inputs, again.train_inputs)
    parts = partition.make("writer", data, 2, 0)
    assert sorted(len({*data.writers[part]}) for part in parts) == [2, 2]
    styled._pixels.cache_clear()


def test_errors_are_sentences(tmp_path, monkeypatch):
    monkeypatch.delenv("HPCFL_DATA", raising=False)
    with pytest.raises(UsageError, match=r"hpcfl data fetch mnist --data-dir"):
        load("styled-mnist", tmp_path)
    with pytest.raises(UsageError, match=r"hpcfl data fetch mnist --data-dir"):
        check("styled-mnist", tmp_path)
    with pytest.raises(UsageError, match="the data set mnist is read from files"):
        load("styled-mnist")
    with pytest.raises(UsageError, match="there must be one at least"):
        styled.styles(0, 1)
    with pytest.raises(UsageError, match="3 samples are too few for 4 writers"):
        styled.assign(3, 4, 1)
    with pytest.raises(UsageError, match=r"float64 of shape \(2, 3\); they must be uint8"):
        styled.write(np.zeros((2, 3)), styled.Style(0, 0, 1, 0), generator_of(0, STYLES))
