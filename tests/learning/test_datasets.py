"""Readers of data sets, on tiny files in their publishers' formats and on the real ones."""

import gzip
import json
import pickle

import numpy as np
import pytest
from data_files import (
    BATCHES,
    adult_row,
    batch_bytes,
    idx_bytes,
    leaf_bytes,
    real_data,
    write_adult,
    write_batches,
    write_femnist,
    write_mnist,
)

from hpcfl.errors import UsageError
from hpcfl.learning import adult, datasets, images
from hpcfl.learning.datasets import load
from hpcfl.options.names import DATASETS

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32), np.uint8)


def assert_consistent(data):
    """Check what holds for every data set."""
    kind = DATASETS[data.name]
    assert (data.shape, data.classes) == (kind.shape, kind.classes)
    for inputs, labels in (
        (data.train_inputs, data.train_labels),
        (data.test_inputs, data.test_labels),
    ):
        assert (inputs.dtype, labels.dtype) == (np.float32, np.int64)
        assert inputs.shape == (len(labels), *data.shape)
        assert np.isfinite(inputs).all()
        assert 0 <= labels.min() <= labels.max() < data.classes


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mnist", "mnist/train-images-idx3-ubyte.gz"),
        ("cifar10", "cifar-10-batches-py/data_batch_1"),
        ("adult-raw", "adult/adult.data"),
        ("femnist", "femnist/train/"),
    ],
)
def test_a_data_set_that_is_not_there_is_a_sentence(name, file, tmp_path, monkeypatch):
    monkeypatch.delenv("HPCFL_DATA", raising=False)
    with pytest.raises(UsageError, match=f"{file}.* is missing: "):
        load(name, tmp_path)
    with pytest.raises(UsageError, match=r"give DIR with --data-dir or .* HPCFL_DATA"):
        load(name)
    with pytest.raises(UsageError, match="is missing"):
        datasets.check(name, tmp_path)
    datasets.check("digits")


def test_mnist_is_read_packed_or_not_from_the_folder_or_as_torchvision_has_it(
    tmp_path, monkeypatch
):
    write_mnist(tmp_path / "packed")
    arrays = write_mnist(tmp_path, packed=False)
    (tmp_path / "MNIST").mkdir()
    (tmp_path / "mnist").rename(tmp_path / "MNIST" / "raw")
    for path in (tmp_path / "MNIST" / "raw").glob("train-*"):  # as some hand them on
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    monkeypatch.setenv("HPCFL_DATA", str(tmp_path))
    datasets.check("mnist")

    expected = (arrays["t10k-images-idx3-ubyte"] / 255 - 0.1307) / 0.3081
    for folder in (None, tmp_path / "packed"):
        data = load("mnist", folder)
        assert_consistent(data)
        np.testing.assert_allclose(data.test_inputs[:, 0], expected, atol=1e-5)
        assert data.train_labels.tolist() == arrays["train-labels-idx1-ubyte"].tolist()


def test_cifar10_is_read_from_the_batches_that_are_there(tmp_path, monkeypatch):
    contents = {
        "data_batch_1": batch_bytes(IMAGES[:2], [0, 9]),
        "data_batch_3": batch_bytes(IMAGES[2:3], [5]),
        "test_batch": batch_bytes(IMAGES[3:], [1]),
    }
    for name, digest in write_batches(tmp_path, contents).items():
        monkeypatch.setitem(images.CIFAR10_DIGESTS, name, digest)
    (tmp_path / BATCHES).rename(tmp_path / "cifar-10-batches-py")  # as torchvision has it
    data = load("cifar10", tmp_path)

    assert_consistent(data)
    assert data.train_labels.tolist() == [0, 9, 5]
    assert "there is no data_batch_2 and no data_batch_4 and no data_batch_5" in data.incomplete
    green = (IMAGES[3, 1] / 255 - 0.4822) / 0.2435
    np.testing.assert_allclose(data.test_inputs[0, 1], green, atol=1e-5)


def test_a_batch_with_another_checksum_is_not_unpickled(tmp_path, monkeypatch):
    def unpickle(content, **options):
        raise AssertionError("it was unpickled")

    monkeypatch.setattr(pickle, "loads", unpickle)
    write_batches(tmp_path, {"data_batch_1": batch_bytes(IMAGES[:1], [0])})

    with pytest.raises(UsageError, match=r"data_batch_1 cannot be read .*its SHA-256 is not that"):
        load("cifar10", tmp_path)


def test_adult_is_standardised_and_one_hot_by_its_training_part(tmp_path, monkeypatch):
    train = [
        adult_row(age=20, workclass="Private", country="Cuba"),
        adult_row(age=40, workclass="?", country="Cuba", label=">50K"),
        adult_row(age=60, workclass="Private", country="Peru"),
    ]
    test = [adult_row(age=80, workclass="?", country="Laos", label=">50K.")]
    write_adult(tmp_path, train, test)
    monkeypatch.setattr(adult, "ROWS", {"adult.data": 3, "adult.test": 1})

    data, raw = load("adult", tmp_path), load("adult-raw", tmp_path)

    assert (data.train_labels.tolist(), data.test_labels.tolist()) == ([0, 1, 0], [1])
    # age, workclass (? and Private), fnlwgt, 1, 1, 1, 1, 1, 1, 1, gain, loss, hours, country (2)
    assert data.shape == raw.shape == (1 + 2 + 1 + 1 + 1 + 5 + 3 + 2,)
    np.testing.assert_allclose(data.train_inputs[:, 0], [-(1.5**0.5), 0, 1.5**0.5], rtol=1e-6)
    assert data.train_inputs[:, 1:3].tolist() == [[0, 1], [1, 0], [0, 1]]
    assert data.train_inputs[:, 3].tolist() == [0, 0, 0]  # a constant fnlwgt
    np.testing.assert_allclose(data.test_inputs[0, 0], 2 * 1.5**0.5, rtol=1e-6)
    assert data.test_inputs[0, [1, 2, -2, -1]].tolist() == [1, 0, 0, 0]  # no Laos in training
    assert raw.train_inputs[:, 0].tolist() == [20, 40, 60]


def test_femnist_keeps_writers_across_files(tmp_path):
    train = [leaf_bytes({"f01": [0, 61], "f00": [3]}), leaf_bytes({"f02": [5], "f01": [7]})]
    write_femnist(tmp_path, train, [leaf_bytes({"f00": [1]}, ink=1.0)])

    data = load("femnist", tmp_path)

    assert_consistent(data)
    assert data.train_labels.tolist() == [0, 61, 3, 5, 7]
    assert data.writers.tolist() == [0, 0, 1, 2, 0]
    assert np.unique(data.train_inputs).tolist() == [0.25]
    assert np.unique(data.test_inputs).tolist() == [1.0]


def changed(**parts):
    content = json.loads(leaf_bytes({"a": [1, 2]}))
    content["user_data"]["a"] |= parts
    return json.dumps(content).encode()


PIXELS = np.zeros((20, 28, 28), np.uint8)
DAMAGED = [
    ("mnist", "images", gzip.compress(idx_bytes(PIXELS))[:-9]),
    ("mnist", "images", gzip.compress(idx_bytes(PIXELS, magic=2049))),
    ("mnist", "images", gzip.compress(idx_bytes(PIXELS[1:]))),
    ("mnist", "labels", gzip.compress(idx_bytes(PIXELS[:, 0, 0] + 10))),
    ("adult", "", adult_row() * 3),
    ("adult", "", adult_row() + adult_row()[:40] + "\n"),
    ("adult", "", adult_row() + adult_row(label="yes")),
    ("femnist", "", leaf_bytes({"a": [1]})[:-30]),
    ("femnist", "", changed(y=[1, 62])),
    ("femnist", "", changed(x=[[0.0] * 784, [2.0] * 784])),
]


@pytest.mark.parametrize(("name", "part", "content"), DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_files_are_refused(name, part, content, tmp_path, monkeypatch):
    if name == "mnist":
        write_mnist(tmp_path)
        number = {"images": 3, "labels": 1}[part]
        (tmp_path / "mnist" / f"train-{part}-idx{number}-ubyte.gz").write_bytes(content)
    elif name == "adult":
        write_adult(tmp_path, [content], [adult_row(label="<=50K.")])
        monkeypatch.setattr(adult, "ROWS", {"adult.data": 2, "adult.test": 1})
    else:
        write_femnist(tmp_path, [content], [leaf_bytes({"a": [1]})])

    with pytest.raises(UsageError, match=f"cannot be read as a file of {name} .*: move it away"):
        load(name, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("mnist", [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]),
        ("cifar10", [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]),  # first batch
        ("adult", [24_720, 7_841]),
    ],
)
def test_the_real_files_are_read(name, counts):
    data = load(name, real_data(name))
    assert_consistent(data)
    first = data.train_labels[:10_000] if name == "cifar10" else data.train_labels
    assert np.bincount(first).tolist() == counts
    if name == "mnist":  # the constants of the normalisation are those of this very file
        assert abs(float(data.train_inputs.mean(dtype=np.float64))) < 1e-3
        assert abs(float(data.train_inputs.std(dtype=np.float64)) - 1) < 1e-3


def test_digits_are_scaled_and_split_by_class():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    data = load("digits")

    assert_consistent(data)
    assert (data.train_inputs.min(), data.train_inputs.max()) == (0, 1)
    tested, trained = np.bincount(data.test_labels), np.bincount(data.train_labels)
    assert tested.sum() + trained.sum() == 1797
    np.testing.assert_allclose(tested / (tested + trained), 0.2, atol=0.01)


def test_synthetic_data_are_drawn_from_the_seed_and_can_be_classified():
    """The nearest mean of the training part is nearly the best classifier: about 98 %."""
    data, again, other = (load("synthetic", seed=seed) for seed in (1, 1, 2))

    assert_consistent(data)
    np.testing.assert_array_equal(data.train_inputs, again.train_inputs)
    assert not np.array_equal(data.train_inputs, other.train_inputs)
    means = np.stack([data.train_inputs[data.train_labels == c].mean(axis=0) for c in range(10)])
    distances = ((data.test_inputs[:, None] - means) ** 2).sum(axis=2)
    assert (distances.argmin(axis=1) == data.test_labels).mean() > 0.9
