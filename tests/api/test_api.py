from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import hpcfl
from hpcfl.benchmark.experiment import asked
from hpcfl.report import formats

SMALL: dict[str, Any] = {"devices": 6, "dim": 200, "rounds": 3, "warmup": 1}


def bench(folder, protocol="secagg", **options):
    run = hpcfl.bench(protocol, output=folder / "run.h5", **SMALL | options)
    assert run is not None
    return run


@pytest.fixture(scope="module")
def secagg(tmp_path_factory):
    return bench(tmp_path_factory.mktemp("secagg"))


def test_a_run_is_measured_without_a_word(tmp_path, capfd):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    seen: list[tuple[int, bool, list[Any]]] = []

    def progress(index, played):
        now = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        seen.append((index, played.record.validated, now))

    run = bench(tmp_path, progress=progress, note="[1, 2]")

    assert seen == [(index, True, handlers) for index in range(4)]
    assert capfd.readouterr() == ("", "")
    assert (run.rounds, run.devices, run.dim, run.status) == (4, 6, 200, "complete")
    assert run.config["note"] == "[1, 2]"
    assert run.summary()["bytes_up_mean"] == pytest.approx(
        run.bytes_up[1:].sum(axis=1)[run.survived[1:]].mean()
    )
    # The command that does the same.
    assert run.command.startswith("hpcfl bench secagg --output=")
    assert "--devices=6 --dim=200 --rounds=3 --warmup=1" in run.command


def test_what_was_finished_before_ctrl_c_is_in_the_file(tmp_path):
    def interrupt(index, played):
        if index == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench(tmp_path, progress=interrupt)
    run = hpcfl.load(tmp_path / "run.h5")

    assert (run.rounds, bool(run.validated.all())) == (3, True)
    assert run.status != "complete"


@pytest.mark.parametrize(
    ("protocol", "options", "sentence"),
    [
        ("secag", {}, "there is no protocol 'secag'"),
        ("secagg", {"device": 3}, "there is no option 'device'; did you mean 'devices'?"),
        ("secagg", {"devices": [3, 4]}, "hpcfl.sweep takes several"),
        (5, {}, "5 is neither a name nor a class"),
    ],
)
def test_wrong_use_is_an_error_in_a_sentence(tmp_path, protocol, options, sentence):
    with pytest.raises(hpcfl.UsageError) as error:
        bench(tmp_path, protocol, **options)

    assert sentence in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_run_shows_itself(secagg):
    median = formats.time(float(np.median(secagg.round_seconds[1:])))
    assert repr(secagg) == (
        f"<Run: secagg, N=6, d=200, 4 rounds, median {median}, validated, run.h5>"
    )
    assert "masked_input" in secagg._repr_html_()
    slower = secagg.summary(uplink_mbps=np.int64(1))["modelled_round_seconds_median"]
    assert slower > secagg.summary(uplink_mbps=100.0)["modelled_round_seconds_median"]
    with pytest.raises(hpcfl.HpcflError, match="no-such"):
        hpcfl.load(os.devnull + "/no-such.h5")


def test_runs_are_compared(secagg, tmp_path):
    other = bench(tmp_path, "sparse")
    found = hpcfl.compare(secagg, other, "bytes_up")

    assert found.ratio == pytest.approx(
        other.summary()["bytes_up_mean"] / secagg.summary()["bytes_up_mean"], rel=0.05
    )
    assert "B / A" in repr(found)
    assert "<table>" in found._repr_html_()
    both = hpcfl.load_many(secagg.path, tmp_path)
    assert [run.protocol for run in both] == ["secagg", "sparse"]
    assert [row["protocol"] for row in both.table().records()] == ["secagg", "sparse"]
    assert both._repr_html_().count("<tr>") == 3
    with pytest.raises(hpcfl.UsageError, match="B must be a run or several"):
        hpcfl.compare(secagg, [])
    assert asked({"protocol": "prf", "alpha": None, "dropout": None}) == asked({"protocol": "prf"})


def test_a_model_is_trained(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    losses: list[float] = []
    run = hpcfl.train(
        "fedavg",
        aggregate="sparse",
        devices=5,
        rounds=2,
        alpha=0.5,
        output=tmp_path / "run.h5",
        progress=lambda index, result: losses.append(result.figures["loss"]),
    )

    assert run is not None
    assert run.training["loss"].tolist() == losses
    assert run.weights is not None
    assert run.weights.shape == (run.dim,)
    assert hpcfl.load(run.path).weights is None
    assert "--aggregate=sparse" in run.command


def test_combinations_are_run_in_order(tmp_path):
    grid = {"protocol": ["secagg", "sparse"], "devices": [4, 5], "dim": 50, "rounds": 1}
    seen: list[int] = []
    runs = hpcfl.sweep(grid, output=tmp_path, progress=lambda index, played: seen.append(index))

    assert runs is not None
    assert [(run.protocol, run.devices) for run in runs] == [
        *(("secagg", 4), ("secagg", 5), ("sparse", 4), ("sparse", 5))
    ]
    assert len(seen) == 4 * 3


def test_rounds_are_predicted_advised_on_and_exposed(tmp_path, monkeypatch):
    """By the same code as the commands; wrong use is refused before a calibration is read."""
    found = hpcfl.exposure("sparse", devices=20, alpha=0.3, dropout=0.0)
    assert found.as_dict()["devices"] == 20
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(hpcfl.UsageError, match="there is no protocol 'secag'"):
        hpcfl.predict("secag")
    with pytest.raises(hpcfl.UsageError, match="hpcfl calibrate"):
        hpcfl.predict("secagg", devices=[10, 20])
    with pytest.raises(hpcfl.UsageError, match="hpcfl calibrate"):
        hpcfl.advise(devices=10)
