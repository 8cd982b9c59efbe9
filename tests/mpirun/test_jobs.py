"""Benchmarks over MPI: what they bring is what one process brings, and what fails is said once."""

import re
from pathlib import Path

import numpy as np
import pytest
from launcher import HERE, assert_refused, bench, hpcfl, mpirun, needs_mpirun, python

from hpcfl.results import load
from hpcfl.system import machine

pytestmark = needs_mpirun

SMALL = ("--dim", 2000, "--rounds", 2, "--warmup", 1)
TRAFFIC = ("bytes_up", "bytes_down", "messages_up", "messages_down", "survived")


@pytest.mark.parametrize("ranks", [5, *(pytest.param(n, marks=pytest.mark.full) for n in (2, 8))])
def test_the_transport_tests_pass_under_mpirun(ranks):
    options = ("-qxs", "-p", "no:cacheprovider", "--noconftest", "--only-mpi")
    job = python(ranks, "-m", "pytest", *options, HERE / "transports.py")

    assert job.returncode == 0, job.stdout[-5000:]
    assert job.stdout.count(" passed") == ranks


@pytest.mark.parametrize(
    ("options", "on_ranks", "counts"),
    [
        (("secagg",), (), (2, 3, 8)),
        (("secagg", "--security", "active"), (), (3,)),
        (("prf",), (), (3,)),
        (("flamingo", "--insecure-seed", 1), (), (3, 8)),
        (("assisted",), (), (4, 6)),
        (("assisted", "--helpers", 3), (), (5,)),
        (("pine",), (), (3, 5)),
        (("secagg",), ("--server-ranks", 2), (4,)),
        (("common", "--alpha", 0.5, "--bits", 16), ("--server-ranks", 2), (4,)),
        (("secagg", "--group", "fq"), ("--upload", "reduce"), (4,)),
        (("prf", "--group", "ring16"), ("--upload", "reduce"), (4,)),
    ],
    ids=lambda value: "-".join(map(str, value)),
)
def test_devices_that_share_ranks_send_and_sum_the_same(tmp_path, options, on_ranks, counts):
    runs, sums = [], []
    dim = 30_000 if "--server-ranks" in on_ranks else 2000
    for ranks in (1, *counts):
        place = tmp_path / str(ranks)
        shared = ("--devices", 7, "--dim", dim, "--save-aggregate", place.with_suffix(".npy"))
        (summary,) = bench(
            ranks, place, *options, *SMALL, *shared, *(on_ranks if ranks > 1 else ())
        )
        assert summary["rounds_validated"] == summary["rounds_total"]
        runs.append(load(Path(summary["path"])))
        sums.append(np.load(place.with_suffix(".npy")))
    first, *others = runs
    helping = [f"helper_{one}" for one in TRAFFIC[:4]] if {"assisted", "pine"} & {*options} else []
    for run, total in zip(others, sums[1:], strict=True):
        # A rank that adds on the way has no envelopes.
        for name in ("survived",) if "reduce" in on_ranks else (*TRAFFIC, *helping):
            np.testing.assert_array_equal(getattr(run, name), getattr(first, name))
        np.testing.assert_array_equal(total, sums[0])
        assert run.environment["transport"] == "mpi"
        who = [run.rank_name(rank) for rank in range(run.environment["ranks"])]
        servers = ["server 0", "server 1"] if "--server-ranks" in on_ranks else ["server"]
        assert who[: len(servers)] == servers
        peaks, beside = run.peak_bytes[run.measured], len(servers)
        if helping:
            helpers = 1 if "pine" in options else 3 if "--helpers" in options else 2
            assert who[1 : 1 + helpers] == [f"helper {k}" for k in range(helpers)]
            assert (run.helper_cpu_seconds.sum(axis=(0, 1)) > 0).all()
            beside += helpers
        devices = [len(place["devices"]) for place in run.environment["placement"]]
        assert devices[:beside] == [0] * beside
        assert sum(devices) == 7
        assert max(devices) - min(devices[beside:]) <= 1
    assert summary["server_peak_bytes"] == peaks[:, : len(servers)].max()
    assert summary["device_peak_bytes"] == peaks[:, beside:].max()


@pytest.mark.full
@pytest.mark.timeout(400)
def test_the_main_job_runs_on_101_ranks(tmp_path):
    (summary,) = bench(101, tmp_path, "sparse", "--rounds", 2, "--warmup", 0, limit_seconds=360)

    assert (summary["devices"], summary["dim"], summary["theta"]) == (100, 165_000, 0.3)
    assert (summary["rounds_validated"], summary["survivors_mean"]) == (2, 70)
    if (cores := machine.usable()) < 100:
        fewer = f"mpirun -n {cores + 1} hpcfl bench sparse --devices 100"
        assert any(fewer in sentence for sentence in summary["warnings"])


def test_own_vectors_are_summed(tmp_path):
    rows = np.where(np.arange(4)[:, None] == 3, 1, np.full((4, 900), 0.5))
    np.save(tmp_path / "u.npy", rows)
    own = ("--updates", tmp_path / "u.npy", "--devices", 4, "--rounds", 1, "--dropout", 0)
    bench(3, tmp_path, "secagg", *own, "--save-aggregate", tmp_path / "sum.npy")

    # Four devices of weight 1/4, each rounded to a level of 2^-20.
    np.testing.assert_allclose(np.load(tmp_path / "sum.npy"), rows.sum(axis=0), atol=2e-5)


# What fails


def test_a_rank_that_crashes_ends_the_job_and_says_where(tmp_path):
    job = mpirun(4, "hpcfl", "bench", "faulty_protocols:Crashing", *SMALL, "--output", tmp_path)

    assert job.returncode != 0
    assert "TypeError: Cannot cast" in job.stderr
    assert re.search(
        r"\[rank 3 on \S+\] Error: round 0 of the protocol 'crashing', phase upload", job.stderr
    )


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("Dividing", "DividingDevice.send_upload"),
        pytest.param(
            *("DividingAtTheServer", "DividingServer.receive_upload"), marks=pytest.mark.full
        ),
    ],
)
def test_what_code_of_ones_own_raises_is_said_by_one_rank(name, method, tmp_path):
    job = mpirun(4, "hpcfl", "bench", f"faulty_protocols:{name}", *SMALL, "--output", tmp_path)
    (path,) = tmp_path.glob("*.h5")
    (said,) = re.findall(r"^.*Error: .*$", job.stderr, re.MULTILINE)

    assert job.returncode != 0
    assert "Error: round 1 of the protocol 'dividing" in said
    assert f"phase upload: {method} raised ZeroDivisionError: " in said
    assert "Traceback" not in job.stderr
    assert load(path).rounds == 1


def test_a_device_that_refuses_costs_the_round_itself_and_is_reported(tmp_path):
    refusing = ("faulty_protocols:Refusing", *SMALL, "--dropout", 0)
    job = hpcfl(5, "bench", *refusing, "--output", tmp_path)
    (path,) = tmp_path.glob("*.h5")
    run = load(path)

    assert job.returncode == 0, job.stderr
    for index in range(len(run.validated)):
        line = f"round {index}: device 2 left the round in upload: device 2 refuses"
        assert job.stderr.count(line) == 1
    assert run.validated.all()
    assert [2] == np.flatnonzero(~run.survived.all(axis=0)).tolist()


def test_a_wrong_sum_fails_the_run_and_is_kept_as_evidence(tmp_path):
    job = hpcfl(4, "bench", "faulty_protocols:Wrong", *SMALL, "--output", tmp_path)
    (path,) = tmp_path.glob("*.h5")
    run = load(path)

    assert job.returncode == 1
    assert job.stderr.count("the aggregate of round 2 is wrong") == 1
    assert (run.status, run.validated.tolist()) == ("failed", [True, True, False])


def test_below_the_threshold_the_job_fails_once_and_keeps_finished_rounds(tmp_path):
    # With this seed rounds 0 and 1 keep enough of the six devices, and round 2 does not.
    options = ("--dropout", 0.4, "--dropout-model", "bernoulli", "--devices", 6, "--seed", 5)
    small = ("--dim", 100, "--rounds", 9, "--output", tmp_path)
    job = hpcfl(4, "bench", "secagg", *options, *small)
    (path,) = tmp_path.glob("*.h5")
    run = load(path)

    assert_refused(job, "Error: round 2 cannot end: ", status=1)
    assert (run.status, run.validated.tolist()) == ("failed", [True, True])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["bench", "sparse", "--alpha", "1.5"], "alpha is 1.5"),
        (["bench", "secagg", "--no-such-option"], "No such option"),
        (["bench", "secagg", "--output", "/proc/nothing"], "cannot write /proc/nothing"),
        (["bench", "secagg", "--devices", "2", "--server-ranks", "3"], "hold devices: start 4"),
        (["bench", "assisted", "--devices", "2"], "hold devices: start 4"),
        (
            ["bench", "sparse", "--devices", "3", "--server-ranks", "2"],
            "sparse cannot use --server-ranks",
        ),
        # What one rank does alone fails without waiting for the others.
        (["report", "nowhere"], "no file or folder nowhere"),
        (["train", "fedavg", "--dataset", "mnist", "--data-dir", "/nowhere"], "data fetch mnist"),
        (["train", "fedavg", "--resume", "/nowhere.h5"], "/nowhere.h5"),
    ],
)
def test_wrong_use_is_refused_once_with_a_sentence(options, sentence):
    if options[0] == "train":
        pytest.importorskip("torch")
    assert_refused(hpcfl(3, *options), sentence)


def test_rank_0_alone_reads_the_command_line_and_lets_the_others_go():
    helped = mpirun(3, "hpcfl", "bench", "secagg", "--help")

    assert (helped.returncode, helped.stdout.count("Usage: ")) == (0, 1), helped.stderr


@pytest.mark.parametrize("options", [("secagg",), ("committee",), ("assisted",)], ids=" ".join)
def test_all_ranks_agree_on_who_is_late(tmp_path, options):
    """The links decide, whose latencies differ by seconds; one device goes away on the way."""
    rows = [f"10,10,{1000 * (1 + id)},1e-9,0-{20 if id == 0 else 1e9}" for id in range(7)]
    header = "uplink_mbps,downlink_mbps,latency_ms,compute,on_intervals"
    (tmp_path / "some.csv").write_text("\n".join([header, *rows]))
    options += ("--population", tmp_path / "some.csv", "--quorum", 0.8, "--dropout", 0.3)
    options += ("--devices", 7, "--insecure-seed", 1)
    places = [(1, ()), (5, ())] + ([(5, ("--server-ranks", 2))] if "secagg" in options else [])
    runs = []
    for number, (ranks, more) in enumerate(places):
        dim = ("--dim", 30_000, "--rounds", 2, "--warmup", 0)
        (summary,) = bench(ranks, tmp_path / str(number), *options, *dim, *more)
        assert summary["rounds_validated"] == 2
        runs.append(load(Path(summary["path"])))
    first = runs[0]
    assert first.late_phase[0, 6] == 1
    assert (first.late_phase[:, 0] != -1).any() or "assisted" in options
    for run in runs[1:]:
        for name in (*TRAFFIC, "late_phase", "late_reason", "promise_failure"):
            np.testing.assert_array_equal(getattr(run, name), getattr(first, name), err_msg=name)
        np.testing.assert_allclose(run.event_seconds.sum(1), first.event_seconds.sum(1), rtol=0.05)
