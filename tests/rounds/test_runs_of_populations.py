"""Whole runs with a population: training, resumed runs, and runs without one."""

import h5py
import numpy as np
import pytest
from run_files import cut
from test_late_devices import table

import hpcfl
from hpcfl.errors import UsageError
from hpcfl.results import load

LINKS_DECIDE = {"compute": 1e-9}


def test_the_clock_of_a_resumed_run_goes_on(tmp_path):
    # A round takes 2 s, for the model and the vector. The device leaves in the third one.
    intervals = ["0-1e9", "0-5", "0-1e9", "0-7;9.5-1e9"]
    path = table(tmp_path / "all.csv", 4, on_intervals=intervals, **LINKS_DECIDE)
    run = hpcfl.bench(
        *("fedavg",), devices=4, dim=10, rounds=5, warmup=1, population=path, output=tmp_path / "r"
    )
    late = run.late_phase.T.tolist()
    assert late == [[-1] * 6, [-1, -1, 1, 0, 0, 0], [-1] * 6, [-1, -1, -1, 1, 0, -1]]

    cut(run.path, 3)
    again = hpcfl.bench(resume=run.path)
    assert again.late_phase.T.tolist() == late
    np.testing.assert_allclose(again.event_seconds.sum(axis=1), 2, rtol=0.1)


def test_participants_have_their_own_rows(tmp_path):
    pytest.importorskip("torch")
    slow = np.isin(np.arange(12), [1, 5, 8])
    path = table(tmp_path / "all.csv", 12, latency_ms=np.where(slow, 60_000, 1000), **LINKS_DECIDE)
    options = {"epochs": 1, "batch_size": 20, "learning_rate": 0.1, "population": path}
    run = hpcfl.train(
        *("fedavg",), aggregate="secagg", devices=12, per_round=8, rounds=4, dropout=0.4,
        deadline=30.0, output=tmp_path, **options,
    )  # fmt: skip
    taking_part = run.bytes_down.sum(axis=1) > 0
    assert (taking_part.sum(axis=1) == 8).all()
    assert run.validated.all()
    np.testing.assert_array_equal(run.late_phase >= 0, taking_part & slow)
    np.testing.assert_array_equal(run.survived, taking_part & ~slow)
    np.testing.assert_allclose(run.training["modelled_seconds"], run.event_seconds.sum(axis=1))

    # A round in which nobody takes part takes no time, and is not of another model.
    run = hpcfl.train(
        *("fedavg",), devices=3, per_round=1, sampling="poisson", rounds=6,
        output=tmp_path / "empty", **options,
    )  # fmt: skip
    nobody = run.training["participants"] == 0
    assert 0 < nobody.sum() < 6
    assert (run.event_seconds[nobody] == 0).all()
    assert (run.event_seconds[~nobody].sum(axis=1) > 2).all()


def test_a_run_without_a_population_has_none_of_it(tmp_path):
    run = hpcfl.bench("fedavg", devices=4, dim=10, rounds=1, warmup=0, output=tmp_path)
    with h5py.File(run.path) as file:
        assert "population" not in file
        assert not {"event_seconds", "late_phase", "late_reason"} & {*file["rounds"]}
    assert np.isnan(load(run.path).event_seconds).all()
    assert not {"population", "quorum", "deadline"} & {*run.config}


@pytest.mark.parametrize(
    ("protocol", "options", "reason"),
    [
        ("fedavg", {"quorum": 0.8}, "are for the devices of a --population"),
        ("fedavg", {"deadline": 3.0}, "are for the devices of a --population"),
        ("prf", {"population": "mobile", "deadline": 3.0}, "prf tolerates no missing device"),
        ("prf", {"population": "mobile", "quorum": 0.8}, "prf tolerates no missing device"),
        ("secagg", {"population": "mobile", "upload": "reduce"}, "sums vectors on the way"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, protocol, options, reason):
    with pytest.raises(UsageError, match=reason):
        hpcfl.bench(protocol, devices=4, dim=10, output=tmp_path, **options)
    assert not [*tmp_path.iterdir()]
