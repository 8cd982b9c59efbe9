import json
from dataclasses import replace

import numpy as np
import pytest
from attack_rounds import recorded

from hpcfl.algorithms.aggregation.fedavg import FedAvg
from hpcfl.attack.transcript import FORMAT, PHASES, load
from hpcfl.errors import HpcflError, UsageError


@pytest.fixture(scope="module")
def transcript():
    return recorded("sparse", devices=8, dim=60)[1]


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
    [(None, "cannot be read: No such file"), (b"text", r"it is not a \.npz file")],
)
def test_foreign_files_are_refused(content, sentence, tmp_path):
    path = tmp_path / "foreign.npz"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(UsageError, match=sentence):
        load(path)


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("header", lambda a: None, "it has no 'header'"),
        ("format", lambda a: np.array("mine"), f"its format is not '{FORMAT}'"),
        ("header", lambda a: a[:-1], "cannot be read as a transcript"),
        ("masked_input_sizes", lambda a: a[1:], "cannot be read as a transcript"),
    ],
)
def test_damaged_files_are_refused(transcript, name, change, sentence, tmp_path):
    path = tmp_path / "round.npz"
    transcript.save(path)
    with np.load(path) as file:
        arrays = dict(file)
    changed = arrays | {name: change(arrays[name])}
    np.savez(path, **{one: array for one, array in changed.items() if array is not None})

    with pytest.raises(UsageError, match=sentence):
        load(path)


def test_a_protocol_that_cannot_be_attacked_is_refused(transcript, tmp_path):
    replace(transcript, kind=FedAvg).save(tmp_path / "round.npz")

    with pytest.raises(UsageError, match="rounds of fedavg cannot be attacked"):
        load(tmp_path / "round.npz")
