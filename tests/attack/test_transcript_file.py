import json
from dataclasses import replace

import numpy as np
import pytest
from attack_rounds import recorded

from hpcfl.attack.transcript import FORMAT, PHASES, load
from hpcfl.errors import HpcflError, UsageError


@pytest.fixture(scope="module")
def transcript():
    return recorded("sparse", devices=8, dim=60)[1]


def rewritten(path, **arrays):
    """Return a copy of a file with some of its arrays replaced, or left out where None."""
    with np.load(path) as file:
        kept = {name: file[name] for name in file.files} | arrays
    target = path.with_name("rewritten.npz")
    np.savez(target, **{name: array for name, array in kept.items() if array is not None})
    return target


def test_what_is_written_is_read(transcript, tmp_path):
    weights = np.arange(1, 9) / 36
    transcript = replace(transcript, parameters=replace(transcript.parameters, weights=weights))
    transcript.save(tmp_path / "round.npz")
    read = load(tmp_path / "round.npz")

    assert read.parameters == transcript.parameters
    np.testing.assert_array_equal(read.parameters.weights, weights)
    for name in ("kind", "config", "round_index", "nonce", "mask_keys"):
        assert getattr(read, name) == getattr(transcript, name)
    for name in ("survived", "dropped", "colluding"):
        np.testing.assert_array_equal(getattr(read, name), getattr(transcript, name))
    for phase in PHASES:
        assert list(read.messages[phase]) == list(transcript.messages[phase])
        for id, message in transcript.messages[phase].items():
            np.testing.assert_array_equal(read.messages[phase][id], message)
    for id, values in transcript.truth.items():
        np.testing.assert_array_equal(read.truth[id], values)
    assert [path.name for path in tmp_path.iterdir()] == ["round.npz"]


def test_the_file_says_that_it_is_insecure_and_needs_no_pickle(transcript, tmp_path):
    transcript.save(tmp_path / "round.npz")
    with np.load(tmp_path / "round.npz", allow_pickle=False) as file:
        assert {file[name].dtype.kind for name in file.files} <= set("Uuibf")
        assert str(file["warning"]).startswith("INSECURE: this file holds secret keys")
        config = json.loads(file["header"].tobytes())["config"]

    assert (config["insecure_seed"], config["seed"]) == (3, 0)


def test_a_failed_write_leaves_nothing(transcript, tmp_path, monkeypatch):
    path = tmp_path / "round.npz"

    def full(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(HpcflError, match=r"cannot write .*round.npz \(No space left"):
        transcript.save(path)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read: No such file"),
        (b"", r"it is not a \.npz file"),
        (b"\x80\x04N.", r"it is not a \.npz file"),
        (b"PK\x03\x04" + bytes(18), r"it is not a \.npz file"),
        (b"PK\x05\x06" + bytes(18), "it has no 'format'"),
    ],
)
def test_foreign_files_are_refused(content, sentence, tmp_path):
    path = tmp_path / "foreign.npz"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(UsageError, match=sentence):
        load(path)


def test_a_folder_an_array_and_pickles_are_refused(tmp_path):
    np.save(tmp_path / "array.npy", np.ones(3))
    np.savez(tmp_path / "other.npz", format=np.array("mine"))
    np.savez(tmp_path / "pickle.npz", format=np.array([None], object), allow_pickle=True)

    for name, sentence in (
        ("", "cannot be read: Is a directory"),
        ("array.npy", r"it is not a \.npz file"),
        ("other.npz", f"its format is not '{FORMAT}'"),
        ("pickle.npz", "it holds 'object', not numbers, flags or text"),
    ):
        with pytest.raises(UsageError, match=sentence):
            load(tmp_path / name)


def header(transcript, **changes):
    """Return the stored header with something else in it."""
    parameters = {"devices": 8, "dim": 60, "alpha": 0.3, "levels": 2000, "gamma": 0.2}
    content = {
        "protocol": "sparse",
        "round": 0,
        "nonce": transcript.nonce.hex(),
        "parameters": parameters | changes.pop("parameters", {}),
        "config": dict(transcript.config) | changes.pop("config", {}),
    }
    return np.frombuffer(json.dumps(content | changes).encode(), np.uint8)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"protocol": "os:system"}, "name its class with --protocol"),
        ({"protocol": "fedavg"}, "rounds of fedavg cannot be attacked"),
        ({"parameters": {"devices": 9}}, "not a flag for each of the 9 devices"),
        ({"parameters": {"alpha": 2}}, "alpha is 2; it must be above 0"),
        ({"parameters": {"colour": 1}}, "unexpected keyword argument 'colour'"),
        ({"round": None}, "cannot be read as a transcript"),
        ({"nonce": "xy"}, "cannot be read as a transcript"),
        ({"config": {"dropout_model": "none"}}, "its model of dropouts is unknown"),
        ({"config": {"dropout_phase": None}}, "the phase of dropouts is missing"),
    ],
)
def test_headers_that_do_not_fit_are_refused(transcript, changes, sentence, tmp_path):
    transcript.save(tmp_path / "round.npz")

    load(rewritten(tmp_path / "round.npz", header=header(transcript)))
    with pytest.raises(UsageError, match=sentence):
        load(rewritten(tmp_path / "round.npz", header=header(transcript, **changes)))


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("header", None, "it has no 'header'"),
        ("header", lambda a: a[:-1], "cannot be read as a transcript"),
        ("survived", lambda a: a.astype(np.int8), "'survived' is not a flag for each"),
        ("survived", lambda a: ~a, "a device survived|uploads are not those of the survivors"),
        ("dropped", lambda a: np.ones_like(a), "a device survived and dropped out"),
        ("colluding", lambda a: ~a, "the mask keys are not those of the colluding devices"),
        ("masked_input_sizes", lambda a: a + 1, "its arrays 'masked_input' do not fit together"),
        ("masked_input_data", lambda a: a[1:], "its arrays 'masked_input' do not fit together"),
        ("masked_input_data", lambda a: a.astype(int), "its arrays 'masked_input' do not fit"),
        ("masked_input_devices", lambda a: a[::-1], "its arrays 'masked_input' do not fit"),
        ("masked_input_devices", lambda a: a + 100, "uploads are not those of the survivors"),
        ("advertise_keys_devices", lambda a: a + 1, "keys of a device are missing"),
        ("unmask_devices", lambda a: a + 100, "not only survivors replied"),
        ("mask_keys_devices", lambda a: a + 100, "the mask keys are not those"),
        ("truth_devices", lambda a: a + 100, "the true values are not those of the honest"),
        ("truth_data", lambda a: a.astype(float), "its arrays 'truth' do not fit together"),
        ("weights", lambda a: np.ones(3), "the weights have the shape"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(transcript, name, change, sentence, tmp_path):
    path = tmp_path / "round.npz"
    transcript.save(path)
    with np.load(path) as file:
        array = None if change is None else change(file[name])

    with pytest.raises(UsageError, match=sentence):
        load(rewritten(path, **{name: array}))


def test_mask_keys_of_another_length_and_keys_of_unknown_devices_are_refused(transcript):
    short = {id: key[:-1] for id, key in transcript.mask_keys.items()}
    keys = {**transcript.messages["advertise_keys"], 99: np.zeros(80, np.uint8)}
    messages = {**transcript.messages, "advertise_keys": keys}

    for changes, sentence in (
        ({"mask_keys": short}, "a mask key has not 32 bytes"),
        ({"messages": messages}, "there are keys of unknown devices"),
    ):
        with pytest.raises(ValueError, match=sentence):
            replace(transcript, **changes)
