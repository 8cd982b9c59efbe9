"""Whole runs with a population: training, resumed runs, and runs without one."""

import h5py
import numpy as np
import pytest
from commandline import invoke
from run_files import cut
from test_late_devices import table

import hpcfl
from hpcfl.errors import UsageError
from hpcfl.results.record import LINK


def test_the_clock_of_a_resumed_run_goes_on(tmp_path):
    # A round takes 2 s, for the model and the vector. The device leaves in the third one.
    intervals = ["0-1e9", "0-5", "0-1e9", "0-7;9.5-1e9"]
    path = table(tmp_path / "all.csv", 4, on_intervals=intervals, compute=1e-9)
    options = {"devices": 4, "dim": 10, "rounds": 5, "warmup": 1, "population": path}
    run = hpcfl.bench("fedavg", output=tmp_path / "run.h5", **options)
    late = run.late_phase.T.tolist()
    assert late == [[-1] * 6, [-1, -1, 1, 0, 0, 0], [-1] * 6, [-1, -1, -1, 1, 0, -1]]
    assert (
        "those of its population's links" in invoke("report", run.path, "--uplink-mbps", 1).stderr
    )
    cut(run.path, 3)
    moved = table(tmp_path / "moved.csv", 4, on_intervals=intervals, compute=1e-9)
    with pytest.raises(UsageError, match="is of a run with population_table"):
        hpcfl.bench(resume=run.path, population="mobile")
    assert hpcfl.bench(resume=run.path, population=moved).late_phase.T.tolist() == late


def test_participants_have_their_own_rows(tmp_path):
    pytest.importorskip("torch")
    slow = np.isin(np.arange(12), [1, 5, 8])
    latency = np.where(slow, 60_000, 1000)
    path = table(tmp_path / "all.csv", 12, latency_ms=latency, compute=1e-9)
    options = {"epochs": 1, "batch_size": 20, "learning_rate": 0.1, "population": path}
    common, some = {"devices": 12, "per_round": 8, "dropout": 0.4}, {"deadline": 30.0, "rounds": 4}
    run = hpcfl.train(
        *("fedavg",), aggregate="secagg", output=tmp_path / "1.h5", **options, **common, **some
    )
    taking_part = run.bytes_down.sum(axis=1) > 0
    assert (taking_part.sum(axis=1) == 8).all()
    assert run.validated.all()
    np.testing.assert_array_equal(run.late_reason == LINK, taking_part & slow)
    np.testing.assert_array_equal(run.survived, taking_part & ~slow)
    seconds = run.event_seconds.sum(axis=1)
    np.testing.assert_allclose(run.training["modelled_seconds"], seconds)
    # The server waits until the deadline for the keys, and for nobody late after that.
    assert ((seconds > 30) & (seconds < 45))[(run.late_phase == 1).any(axis=1)].all()

    # A round without participants takes no time, and training takes its own, times the factor.
    options["population"] = table(tmp_path / "slow.csv", 3, compute=1e6)
    some = {"devices": 3, "per_round": 1, "sampling": "poisson", "rounds": 6}
    run = hpcfl.train("fedavg", output=tmp_path / "2.h5", **options, **some)
    nobody = run.training["participants"] == 0
    assert 0 < nobody.sum() < 6
    seconds = run.event_seconds.sum(axis=1)
    np.testing.assert_array_equal(seconds == 0, nobody)
    assert (seconds >= 1e6 * run.training["train_cpu_seconds"]).all()


def test_a_run_without_a_population_has_none_of_it(tmp_path):
    run = hpcfl.bench("fedavg", devices=4, dim=10, rounds=1, warmup=0, output=tmp_path)
    with h5py.File(run.path) as file:
        assert "population" not in file
        assert not {"event_seconds", "late_phase", "late_reason"} & {*file["rounds"]}
    assert np.isnan(run.event_seconds).all()
    assert not {"population", "quorum", "deadline"} & {*run.config}
    for protocol, options in (
        ("fedavg", {"quorum": 0.8}),
        ("prf", {"population": "mobile", "deadline": 3.0}),
        ("secagg", {"population": "mobile", "upload": "reduce"}),
    ):
        with pytest.raises(UsageError, match=r"--population|tolerates no missing|on the way"):
            hpcfl.bench(protocol, devices=4, dim=10, output=tmp_path, **options)


@pytest.mark.parametrize("late", ["quorum", "deadline", "on_intervals"])
def test_no_account_of_privacy_or_of_what_was_sent_where_devices_may_be_late(tmp_path, late):
    columns = {"on_intervals": ["0-9"] * 4} if late == "on_intervals" else {}
    options = {"devices": 4, "population": table(tmp_path / "all.csv", 4, **columns)}
    options |= {"quorum": {"quorum": 0.8}, "deadline": {"deadline": 9.0}}.get(late, {})
    noisy = {"noise_multiplier": 1.0, "output": tmp_path, **options}
    with pytest.raises(UsageError, match="who do not affect each other"):
        hpcfl.bench("dp-fedavg", dim=10, **noisy)
    pytest.importorskip("torch")
    with pytest.raises(UsageError, match="who do not affect each other"):
        hpcfl.train("dp-fedavg", per_round=2, sampling="poisson", **noisy)
    with pytest.raises(UsageError, match="counts what a late device has sent as sent"):
        hpcfl.train("top-k", error_feedback=True, output=tmp_path, **options)
