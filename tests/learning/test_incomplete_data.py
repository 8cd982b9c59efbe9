"""Whoever trains with a part of a data set is told, and so is whoever reads the results."""

import json

import numpy as np
import pytest
from commandline import hpcfl
from data_files import batch_bytes, write_batches

from hpcfl.learning import cifar10
from hpcfl.results import load

pytest.importorskip("torch")


def trained(tmp_path, monkeypatch, batches):
    images = np.random.default_rng(1).integers(0, 256, (12, 3, 32, 32), np.uint8)
    content = batch_bytes(images, [number % 10 for number in range(12)])
    names = [f"data_batch_{number}" for number in batches] + ["test_batch"]
    digests = write_batches(tmp_path, dict.fromkeys(names, content))
    for name, digest in digests.items():
        monkeypatch.setitem(cifar10.DIGESTS, name, digest)
    found = hpcfl(
        *("train", "fedavg", "--dataset", "cifar10", "--model", "softmax", "--devices", 3),
        *("--data-dir", tmp_path, "--rounds", 2, "--epochs", 1, "--dropout", 0, "--json"),
        *("--output", tmp_path / "results"),
    )
    assert found.returncode == 0, found.stderr
    return found, json.loads(found.stdout)["path"]


def test_missing_batches_are_said_once_stored_and_reported(tmp_path, monkeypatch):
    found, path = trained(tmp_path, monkeypatch, (1, 2, 3, 4))
    sentence = "trained with 4 of the 5 batches of CIFAR-10: there is no data_batch_5 in "

    assert found.stderr.count(f"warning: {sentence}") == 1
    assert sentence in load(path).config["incomplete_data"]
    shown = hpcfl("report", path).stdout
    assert "4 of the 5 batches of CIFAR-10" in " ".join(shown.split())


def test_of_a_whole_data_set_nothing_is_said(tmp_path, monkeypatch):
    found, path = trained(tmp_path, monkeypatch, (1, 2, 3, 4, 5))

    assert "Warning" not in found.stderr
    assert "incomplete_data" not in load(path).config
