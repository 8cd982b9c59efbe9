"""Readers give what the files say, and one sentence where the files are not what they should be."""

import gzip
import json
import pickle
import re
import sys

import numpy as np
import pytest
from data_files import (
    BATCHES,
    adult_row,
    batch_bytes,
    idx_bytes,
    leaf_bytes,
    only_text,
    real_data,
    write_adult,
    write_batches,
    write_femnist,
    write_mnist,
)

from hpcfl.errors import UsageError
from hpcfl.learning import adult, cifar10, datasets, digits, leaf
from hpcfl.learning.datasets import load


def assert_consistent(data):
    """Check types and shapes, and that labels are classes."""
    for inputs, labels in (
        (data.train_inputs, data.train_labels),
        (data.test_inputs, data.test_labels),
    ):
        assert (inputs.dtype, labels.dtype) == (np.float32, np.int64)
        assert inputs.shape == (len(labels), *data.shape)
        assert labels.min() >= 0
        assert labels.max() < data.classes
        assert np.isfinite(inputs).all()
    if data.writers is not None:
        assert data.writers.dtype == np.int64
        assert data.writers.shape == data.train_labels.shape


def refused(read, path, expected, name):
    """Check for one sentence with the file, what was expected and how to get it."""
    with pytest.raises(UsageError) as caught:
        read()
    message = str(caught.value)
    assert message.startswith(str(path))
    assert re.search(expected, message)
    fetched = f"get it with `hpcfl data fetch {name} --data-dir "
    assert ("make it with LEAF" if name == "femnist" else fetched) in message
    assert "\n" not in message


# Names and folders


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="there is no data set 'minst'; did you mean 'mnist'"):
        load("minst")


def test_raw_adult_is_fetched_and_kept_as_adult(tmp_path):
    refused(
        lambda: load("adult-raw", tmp_path), tmp_path / "adult" / "adult.data", "missing", "adult"
    )


@pytest.mark.parametrize("name", ["mnist", "cifar10", "adult", "femnist"])
def test_without_a_folder_the_error_says_how_to_give_one(name, monkeypatch):
    monkeypatch.delenv("HPCFL_DATA", raising=False)

    how = "with LEAF.* DIR/femnist/test" if name == "femnist" else f"fetch {name} --data-dir DIR"
    with pytest.raises(UsageError, match=f"{how}.* give DIR with --data-dir or .* HPCFL_DATA"):
        load(name)


@pytest.mark.parametrize("given", [False, True])
def test_the_folder_is_the_given_one_or_else_the_environments(given, tmp_path, monkeypatch):
    write_mnist(tmp_path)
    monkeypatch.setenv("HPCFL_DATA", str(tmp_path / "nowhere" if given else tmp_path))

    assert len(load("mnist", tmp_path if given else None).train_labels) == 20


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mnist", "mnist/train-images-idx3-ubyte.gz"),
        ("cifar10", "cifar10/cifar-10-batches-py/data_batch_1"),
        ("adult", "adult/adult.data"),
        ("femnist", "femnist/train/*.json"),
    ],
)
def test_a_missing_file_is_named(name, file, tmp_path):
    refused(lambda: load(name, tmp_path), tmp_path / file, "is missing", name)


# MNIST


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_is_read_packed_or_not(packed, tmp_path):
    arrays = write_mnist(tmp_path, packed)

    data = load("mnist", tmp_path)

    assert_consistent(data)
    assert (data.shape, data.classes) == ((1, 28, 28), 10)
    expected = (arrays["t10k-images-idx3-ubyte"] / 255 - 0.1307) / 0.3081
    np.testing.assert_allclose(data.test_inputs[:, 0], expected, atol=1e-5)
    assert data.train_labels.tolist() == arrays["train-labels-idx1-ubyte"].tolist()


def test_mnist_is_read_as_torchvision_and_others_name_it(tmp_path):
    expected = write_mnist(tmp_path, packed=False)["train-labels-idx1-ubyte"].tolist()
    (tmp_path / "MNIST").mkdir()
    (tmp_path / "mnist").rename(tmp_path / "MNIST" / "raw")
    for path in (tmp_path / "MNIST" / "raw").glob("train-*"):
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    datasets.check("mnist", tmp_path)

    assert load("mnist", tmp_path).train_labels.tolist() == expected
    # What is fetched then comes before it.
    write_mnist(tmp_path)
    (tmp_path / "MNIST" / "raw" / "train-labels.idx1-ubyte").write_bytes(b"")
    assert len(load("mnist", tmp_path).train_labels) == 20


def test_a_bad_file_beside_a_good_one_is_to_be_moved_away(tmp_path):
    """The good one is what `hpcfl data fetch` gets: it would change nothing by itself."""
    write_mnist(tmp_path)
    bad = tmp_path / "mnist" / "train-images-idx3-ubyte"
    bad.write_bytes(b"")

    refused(lambda: load("mnist", tmp_path), bad, "move it away, and get it with", "mnist")
    bad.unlink()
    assert len(load("mnist", tmp_path).train_labels) == 20


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "ends in the header"),
        (idx_bytes(np.zeros(20, np.uint8)), "magic number is 2049, that of images is 2051"),
        (idx_bytes(np.zeros((20, 28, 27), np.uint8)), "28 x 27 pixels, not 28 x 28"),
        (idx_bytes(np.zeros((20, 28, 28), np.uint8))[:-1], "fewer values than the 20 images"),
        (idx_bytes(np.zeros((20, 28, 28), np.uint8)) + b"\x00", "more values than the 20 images"),
        (idx_bytes(np.zeros((19, 28, 28), np.uint8)), "20 labels for the 19 images"),
        (idx_bytes(np.zeros((0, 28, 28), np.uint8)), "claims 0 images"),
        (None, "the label 10, where labels are 0 to 9"),
    ],
    ids=only_text,
)
def test_damaged_files_of_mnist_are_refused(content, expected, tmp_path):
    write_mnist(tmp_path)
    images = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    labels = images.with_name("train-labels-idx1-ubyte.gz")
    if content is None:
        labels.write_bytes(gzip.compress(idx_bytes(np.full(20, 10, np.uint8))))
    else:
        images.write_bytes(gzip.compress(content))

    refused(
        lambda: load("mnist", tmp_path),
        labels if "label" in expected else images,
        expected,
        "mnist",
    )


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda packed: packed[:-9], "end-of-stream"),
        (lambda packed: b"<html>not found</html>", "[Nn]ot a gzip"),
        (lambda packed: packed[:40] + b"\xff" * 40 + packed[80:], "cannot be read"),
    ],
    ids=["truncated", "a web page", "altered"],
)
def test_damaged_packing_of_mnist_is_refused(damage, expected, tmp_path):
    write_mnist(tmp_path)
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))

    refused(lambda: load("mnist", tmp_path), path, expected, "mnist")


def test_the_real_mnist():
    data = load("mnist", real_data("mnist"))

    assert_consistent(data)
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(data.train_labels).tolist() == counts
    assert data.test_inputs.shape == (10_000, 1, 28, 28)
    # The constants of the normalisation are those of this very file.
    assert abs(float(data.train_inputs.mean(dtype=np.float64))) < 1e-3
    assert abs(float(data.train_inputs.std(dtype=np.float64)) - 1) < 1e-3


# CIFAR-10

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32), np.uint8)


def test_cifar10_is_read_from_the_batches_that_are_there(tmp_path):
    contents = {
        "data_batch_1": batch_bytes(IMAGES[:2], [0, 9]),
        "data_batch_3": batch_bytes(IMAGES[2:3], [5]),
        "test_batch": batch_bytes(IMAGES[3:], [1]),
    }
    digests = write_batches(tmp_path, contents)
    data = cifar10.read(tmp_path, digests)

    assert_consistent(data)
    assert (data.shape, data.classes) == ((3, 32, 32), 10)
    assert data.train_labels.tolist() == [0, 9, 5]
    assert data.incomplete == (
        "trained with 2 of the 5 batches of CIFAR-10: there is no data_batch_2 and no data_batch_4 "
        f"and no data_batch_5 in {tmp_path / 'cifar10/cifar-10-batches-py'}"
    )
    green = (IMAGES[3, 1] / 255 - 0.4822) / 0.2435
    np.testing.assert_allclose(data.test_inputs[0, 1], green, atol=1e-5)
    (tmp_path / BATCHES).rename(tmp_path / "cifar-10-batches-py")  # as torchvision has it
    assert cifar10.read(tmp_path, digests).train_labels.tolist() == [0, 9, 5]


@pytest.mark.parametrize("absent", ["data_batch_1", "test_batch"])
def test_cifar10_needs_its_first_and_its_test_batch(absent, tmp_path):
    names = ["data_batch_1", "data_batch_2", "test_batch"]
    batch = batch_bytes(IMAGES[:1], [0])
    digests = write_batches(tmp_path, {name: batch for name in names if name != absent})
    path = tmp_path / BATCHES / absent

    refused(lambda: cifar10.read(tmp_path, digests), path, "is missing", "cifar10")


def test_a_batch_with_another_checksum_is_not_unpickled(tmp_path, monkeypatch):
    def unpickle(content, **options):
        raise AssertionError("it was unpickled")

    monkeypatch.setattr(pickle, "loads", unpickle)
    write_batches(tmp_path, {"data_batch_1": batch_bytes(IMAGES[:1], [0])})
    path = tmp_path / BATCHES / "data_batch_1"

    refused(lambda: load("cifar10", tmp_path), path, "not the published file", "cifar10")


def test_the_real_cifar10():
    data = load("cifar10", real_data("cifar10"))

    assert_consistent(data)
    counts = [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]
    assert np.bincount(data.train_labels[:10_000]).tolist() == counts
    assert np.bincount(data.test_labels).tolist() == [1000] * 10
    assert data.test_labels[:5].tolist() == [3, 8, 8, 0, 6]
    assert np.abs(data.train_inputs.mean(axis=(0, 2, 3), dtype=np.float64)).max() < 0.02
    # Neighbouring pixels are alike: rows, columns and channels are not mixed up.
    steps = [np.abs(np.diff(data.test_inputs[:100], axis=axis)).mean() for axis in (2, 3)]
    assert max(steps) < 0.3


# Adult


def test_adult_is_standardised_and_one_hot_by_its_training_part(tmp_path):
    train = [
        adult_row(age=20, workclass="Private", country="Cuba"),
        adult_row(age=40, workclass="?", country="Cuba", label=">50K"),
        adult_row(age=60, workclass="Private", country="Peru"),
    ]
    test = [adult_row(age=80, workclass="?", country="Laos", label=">50K.")]
    write_adult(tmp_path, train, test)

    data = adult.read(tmp_path, train_rows=3, test_rows=1)

    assert_consistent(data)
    assert data.train_labels.tolist() == [0, 1, 0]
    assert data.test_labels.tolist() == [1]
    # age, workclass (? and Private), fnlwgt, 1, 1, 1, 1, 1, 1, 1, gain, loss, hours, country (2)
    assert data.shape == (1 + 2 + 1 + 1 + 1 + 5 + 3 + 2,)
    np.testing.assert_allclose(data.train_inputs[:, 0], [-(1.5**0.5), 0, 1.5**0.5], rtol=1e-6)
    assert data.train_inputs[:, 1:3].tolist() == [[0, 1], [1, 0], [0, 1]]
    assert data.train_inputs[:, 3].tolist() == [0, 0, 0]  # a constant fnlwgt
    assert data.train_inputs[:, -2:].tolist() == [[1, 0], [1, 0], [0, 1]]
    np.testing.assert_allclose(data.test_inputs[0, 0], 2 * 1.5**0.5, rtol=1e-6)
    assert data.test_inputs[0, 1:3].tolist() == [1, 0]
    assert data.test_inputs[0, -2:].tolist() == [0, 0]  # Laos is not in the training part


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([adult_row()], "has 1 of the 2 rows"),
        ([adult_row()] * 3, "more than the 2 rows"),
        ([adult_row(), adult_row()[:40]], "line 2 has . fields, where a row has 15"),
        ([adult_row(), adult_row(label="yes")], "line 2 has none of the labels <=50K and >50K"),
        ([adult_row(age="?"), adult_row()], "line 1 has no whole number as its age"),
        ([adult_row(country="Perú"), adult_row()], "cannot be read"),
    ],
    ids=only_text,
)
def test_damaged_files_of_adult_are_refused(rows, expected, tmp_path):
    write_adult(tmp_path, rows, [adult_row(label="<=50K.")])
    path = tmp_path / "adult" / "adult.data"

    refused(lambda: adult.read(tmp_path, 2, 1), path, expected, "adult")


def test_numbers_of_raw_adult_are_those_of_the_file(tmp_path):
    rows = [adult_row(age=30), adult_row(age=50, weight=300_000)]
    write_adult(tmp_path, rows, [adult_row(label="<=50K.")])

    raw, scaled = (adult.read(tmp_path, 2, 1, standardise=one) for one in (False, True))

    assert raw.train_inputs[:, 0].tolist() == [30, 50]
    assert raw.train_inputs[:, 2].tolist() == [100_000, 300_000]
    assert scaled.train_inputs[:, 0].tolist() == [-1, 1]
    assert (raw.name, raw.shape) == ("adult-raw", scaled.shape)
    np.testing.assert_array_equal(raw.train_inputs[:, 1], scaled.train_inputs[:, 1])


def test_the_real_adult():
    data = load("adult", real_data("adult"))

    assert_consistent(data)
    assert np.bincount(data.train_labels).tolist() == [24_720, 7_841]
    assert np.bincount(data.test_labels).tolist() == [12_435, 3_846]
    assert data.shape == (108,)
    assert np.abs(data.train_inputs[:, 0].std(dtype=np.float64) - 1) < 1e-5
    # Of the 14 attributes eight are categories, and each row has exactly one value of each.
    binary = ((data.train_inputs == 0) | (data.train_inputs == 1)).all(axis=0)
    assert binary.sum() == 102
    assert (data.train_inputs[:, binary].sum(axis=1) == 8).all()


# FEMNIST


def test_femnist_keeps_writers_across_files(tmp_path):
    train = [leaf_bytes({"f01": [0, 61], "f00": [3]}), leaf_bytes({"f02": [5], "f01": [7]})]
    write_femnist(tmp_path, train, [leaf_bytes({"f00": [1]}, ink=1.0)])

    data = load("femnist", tmp_path)

    assert_consistent(data)
    assert (data.shape, data.classes) == ((1, 28, 28), 62)
    assert data.train_labels.tolist() == [0, 61, 3, 5, 7]
    assert data.writers is not None
    assert data.writers.tolist() == [0, 0, 1, 2, 0]
    assert np.unique(data.train_inputs).tolist() == [0.25]
    assert np.unique(data.test_inputs).tolist() == [1.0]


def changed(key, value):
    content = json.loads(leaf_bytes({"a": [1, 2]}))
    if key in content:
        content[key] = value
    else:
        content["user_data"]["a"][key] = value
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is not a file of LEAF"),
        (leaf_bytes({"a": [1]})[:-30], "is not a file of LEAF"),
        (changed("users", ["b"]), "has no 'b'"),
        (changed("y", [1, 62]), "labels that are not 0 to 61"),
        (changed("x", [[0.0] * 784]), "does not have 2 images of 784 pixels"),
        (changed("x", [[0.0] * 784, [2.0] * 784]), "pixels that are not 0 to 1"),
        (leaf_bytes({}), "has no samples"),
    ],
    ids=only_text,
)
def test_damaged_files_of_femnist_are_refused(content, expected, tmp_path):
    write_femnist(tmp_path, [content], [leaf_bytes({"a": [1]})])
    path = tmp_path / "femnist" / "train" / "all_data_0.json"

    refused(lambda: leaf.read_femnist(tmp_path), path, expected, "femnist")


# Without files


def test_digits_are_scaled_and_split_by_class_for_every_seed_alike(monkeypatch):
    monkeypatch.delenv("HPCFL_DATA", raising=False)
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    data = load("digits")

    np.testing.assert_array_equal(data.test_inputs, load("digits", seed=2).test_inputs)
    assert_consistent(data)
    assert (data.shape, data.classes) == ((1, 8, 8), 10)
    assert len(data.train_labels) + len(data.test_labels) == 1797
    assert (data.train_inputs.min(), data.train_inputs.max()) == (0, 1)
    counts = np.bincount(data.test_labels) / np.bincount(
        np.concatenate([data.train_labels, data.test_labels])
    )
    np.testing.assert_allclose(counts, 0.2, atol=0.01)


def test_digits_without_scikit_learn_say_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)

    with pytest.raises(UsageError, match=r"pip install 'hpcfl\[train\]'"):
        digits.read()


def test_synthetic_data_are_drawn_from_the_seed(monkeypatch):
    monkeypatch.delenv("HPCFL_DATA", raising=False)
    one, again, other = (load("synthetic", seed=seed) for seed in (1, 1, 2))

    np.testing.assert_array_equal(one.train_inputs, again.train_inputs)
    np.testing.assert_array_equal(one.test_labels, again.test_labels)
    assert not np.array_equal(one.train_inputs, other.train_inputs)


@pytest.mark.parametrize("seed", range(3))
def test_synthetic_data_can_be_classified(seed):
    """The nearest mean of the training part is nearly the best classifier: about 98 %."""
    data = load("synthetic", seed=seed)
    assert_consistent(data)
    assert np.bincount(data.train_labels).tolist() == [400] * 10

    means = np.stack([data.train_inputs[data.train_labels == c].mean(axis=0) for c in range(10)])
    distances = ((data.test_inputs[:, None] - means) ** 2).sum(axis=2)

    assert (distances.argmin(axis=1) == data.test_labels).mean() > 0.9
