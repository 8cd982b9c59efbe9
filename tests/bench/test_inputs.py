import h5py
import numpy as np
import pytest
from commandline import refusal

from hpcfl.errors import UsageError
from hpcfl.rounds import inputs
from hpcfl.rounds.input_files import FileUpdates, save_aggregate
from hpcfl.rounds.inputs import Held, SyntheticUpdates


def test_synthetic_updates_repeat_for_a_seed_and_differ_otherwise():
    updates = SyntheticUpdates(1000, seed=1)
    vector = updates.vector(2, 3)

    assert (vector.shape, vector.dtype) == ((1000,), np.float32)
    np.testing.assert_array_equal(SyntheticUpdates(1000, seed=1).vector(2, 3), vector)
    for other in (
        updates.vector(2, 4),
        updates.vector(3, 3),
        SyntheticUpdates(1000, 2).vector(2, 3),
    ):
        assert not np.array_equal(other, vector)


def test_prepared_vectors_are_those_of_their_devices_and_cannot_be_changed():
    updates = SyntheticUpdates(10, seed=1)
    before = updates.vector(2, 3)
    updates.prepare(2, [3, 5])
    vector = updates.vector(2, 3)

    np.testing.assert_array_equal(vector, before)
    assert updates.vector(2, 3) is vector
    with pytest.raises(ValueError, match="read-only"):
        vector[0] = 1
    updates.prepare(3, [3])
    assert not np.array_equal(updates.vector(3, 3), vector)


def test_vectors_that_take_too_much_memory_together_are_parts_of_one_stream(monkeypatch):
    monkeypatch.setattr(inputs, "INDEPENDENT_BYTES", 4 * 1000 * 3)
    few, many = (SyntheticUpdates(1000, 1, devices) for devices in (3, 4))
    vectors = [many.vector(0, id) for id in range(4)]

    assert few.vector(0, 0).base is None
    assert all(np.shares_memory(vector, many._stream) for vector in vectors)
    assert all(vector.shape == (1000,) and not vector.flags.writeable for vector in vectors)
    assert not any(np.array_equal(vectors[0], other) for other in vectors[1:])
    np.testing.assert_array_equal(SyntheticUpdates(1000, 1, 4).vector(0, 2), vectors[2])


def save_hdf5(path, **arrays):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array


@pytest.mark.parametrize(
    ("name", "save"),
    [
        ("updates.npy", lambda path, updates, weights: np.save(path, updates)),
        ("updates.h5", save_hdf5),
        ("updates", save_hdf5),
    ],
)
def test_a_file_gives_each_device_its_row(tmp_path, name, save):
    rows = np.random.default_rng(1).normal(size=(3, 5))
    path = tmp_path / name
    save(path, updates=rows, weights=np.array([1.0, 2.0, 1.0]))
    updates = FileUpdates(path, devices=3)

    assert updates.dim == 5
    if path.read_bytes().startswith(b"\x93NUMPY"):
        assert updates.weights is None
    else:
        assert updates.weights.tolist() == [0.25, 0.5, 0.25]
    for device in range(3):
        np.testing.assert_array_equal(updates.vector(7, device), rows[device])


@pytest.mark.parametrize("room", [0, 79, 10**9])
def test_rows_that_are_not_held_are_read_when_they_are_needed(tmp_path, monkeypatch, room):
    monkeypatch.setattr("hpcfl.rounds.input_files.HELD_BYTES", room)
    rows = np.random.default_rng(1).normal(size=(6, 5))
    np.save(tmp_path / "u.npy", rows)
    updates = FileUpdates(tmp_path / "u.npy", devices=6)

    updates.prepare(0, [0, 2, 3, 5])
    updates.prepare(1, [0, 2, 3, 5])
    rest = min(4, room // 40)
    assert len(updates._read) == rest
    for device in range(6):
        np.testing.assert_array_equal(updates.vector(1, device), rows[device])


@pytest.mark.parametrize("room", [0, 40, 100, 10**9])
def test_vectors_are_the_same_wherever_they_are_held(monkeypatch, room):
    monkeypatch.setattr("hpcfl.rounds.inputs.HELD_BYTES", room)
    generator = np.random.default_rng(1)
    kinds = (np.float32, np.float64)
    vectors = {id: generator.normal(size=10).astype(kinds[id % 2]) for id in range(7)}
    held = Held()
    for id, vector in vectors.items():
        held[id] = vector
    vectors[3] = held[3] = held[3] + 1  # as one that is changed before it is sent

    kept = [vector.nbytes for vector in held.values() if not isinstance(vector, np.memmap)]
    assert sum(kept) <= room
    assert (len(kept) == 7) == (room == 10**9)
    for id in (6, 3, 0, 1, 3):
        np.testing.assert_array_equal(held[id], vectors[id])
        assert held[id].dtype == vectors[id].dtype


def bad_weights(weights):
    return lambda path: save_hdf5(path, updates=np.ones((2, 5)), weights=weights)


READ = "or HDF5 with an array called updates"


@pytest.mark.parametrize(
    ("name", "write", "sentence"),
    [
        ("u.npy", lambda path: None, "there is no file"),
        ("u.npy", lambda path: path.write_bytes(b"junk"), "cannot be read"),
        ("u.npy", lambda path: np.save(path, np.ones(5)), r"shape \(5,\); numbers of shape"),
        ("u.npy", lambda path: np.save(path, np.array([["a"]])), "numbers of shape"),
        ("u.npy", lambda path: np.save(path, np.ones((3, 5))), "3 rows for 2 devices; give"),
        ("u.h5", bad_weights([1.0, 2.0, 3.0]), r"\(3,\): 2 positive numbers of shape \(2,\)"),
        ("u.h5", bad_weights([[1.0], [2.0]]), r"float64 of shape \(2, 1\): 2 positive numbers"),
        ("u.h5", lambda path: save_hdf5(path, x=np.ones(2)), READ),
        ("u.csv", lambda path: path.write_text("1,2"), READ),
    ],
)
def test_a_file_of_another_form_is_refused_with_a_sentence(tmp_path, name, write, sentence):
    write(tmp_path / name)  # type: ignore[operator]
    with pytest.raises(UsageError, match=sentence):
        FileUpdates(tmp_path / name, devices=2)


def test_the_aggregate_is_saved_as_the_name_says(tmp_path):
    total, mean = np.array([0.5, -0.25]), np.array([0.125, -0.5])
    for name in ("sum.npy", "sum.H5"):
        save_aggregate(tmp_path / name, total, mean)

    np.testing.assert_array_equal(np.load(tmp_path / "sum.npy"), total)
    with h5py.File(tmp_path / "sum.H5") as file:
        np.testing.assert_array_equal(file["sum"], total)
        np.testing.assert_array_equal(file["mean"], mean)


def test_an_aggregate_of_no_known_format_is_refused():
    said = refusal("bench", "fedavg", "--devices", 3, "--save-aggregate", "sum.csv")

    assert "sum.csv does not end in one of .npy, .h5" in said
