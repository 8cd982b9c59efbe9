"""Ranks that die: every operation of the transport, cells of a launch, and whole rounds."""

import json
import sys

import numpy as np
import pytest
from ulfm import HERE, HPCFL, bench, job, kill, needs_ulfm

from hpcfl.results import load
from hpcfl.rounds.inputs import SyntheticUpdates

sys.path.append(str(HERE.parent / "mpirun"))

from launcher import needs_mpirun, python

DIM = 60
SMALL = ("--dim", DIM, "--warmup", 0, "--dropout", 0)
MASKED = ("model", "advertise_keys", "share_keys", "masked_input", "unmask", "result")


def full(*values):
    """Return what a test of the full tier is given."""
    return pytest.param(*values, marks=pytest.mark.full)


@needs_mpirun
def test_the_retry_logic_of_one_rank():
    options = ("-qs", "-p", "no:cacheprovider", "--noconftest")
    done = python(1, "-m", "pytest", *options, HERE / "retry_logic.py")

    assert done.returncode == 0, done.stdout[-5000:]


# Numbers of operations in dying_ranks.py
GATHER, SCATTER, ROUTE, REDUCE, LAST = 4, 5, 6, 7, 9


@needs_ulfm
@pytest.mark.parametrize(
    ("ranks", "deaths", "lost"),
    [
        # 9 devices on ranks 1 to 6, in turns: 0 and 6 on rank 1, 5 on rank 6 alone.
        (7, [[1, SCATTER, "before"], [3, GATHER, "inside"], [6, LAST, "unsaid"]], [0, 2, 5, 6, 8]),
        full(6, [[2, GATHER, "unsaid"], [4, ROUTE, "unsaid"]], [1, 3, 6, 8]),
        full(6, [[1, SCATTER, "inside"], [3, REDUCE, "inside"]], [0, 2, 5, 7]),
        full(10, [[rank, ROUTE, "inside"] for rank in (1, 4, 9)], [0, 3, 8]),
        full(10, [[rank, rank, "unsaid"] for rank in range(1, 9)], list(range(8))),
    ],
)
def test_every_operation_ends_the_same_on_all_that_are_left(ranks, deaths, lost):
    done = job(ranks, sys.executable, HERE / "dying_ranks.py", json.dumps(deaths))

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["lost"] == lost
    assert all(0 <= seconds < 60 for pair in told["seconds"] for seconds in pair)


# Rounds


def assert_sum(path, round_index, ids, devices):
    """Compare a saved sum with that of the updates of some of N devices of equal weight.

    Each of them rounds its update, divided by N, by less than a level of 2^-20.
    """
    updates = SyntheticUpdates(DIM, seed=0)
    expected = np.sum([updates.vector(round_index, id) for id in ids], axis=0, dtype=float)
    np.testing.assert_allclose(np.load(path), expected, rtol=0, atol=devices * len(ids) / 2**20)


def lost_in(run, round_index):
    """Return the devices lost in a round, and the phase, "" for outside of all phases."""
    row, names = run.lost_phase[round_index], [*run.phases, ""]
    return {int(id): names[row[id]] for id in np.flatnonzero(row >= 0)}


@needs_ulfm
@pytest.mark.parametrize(
    ("protocol", "options", "phases", "moment"),
    [
        ("secagg", ("--upload", "reduce"), MASKED[3:], "during"),
        full("sparse", ("--alpha", 0.5, "--security", "active"), MASKED[2:4], "after"),
        full("secagg", (), MASKED[:3], "before"),
        full("secagg", ("--population", "uniform"), MASKED[2:4], "during"),
        # With all others as neighbours: fewer are chosen for the dropouts that are planned, none.
        full("cohort", ("--alpha", 0.6, "--degree", 6), MASKED[:3], "before"),
        full("cohort", ("--alpha", 0.6, "--degree", 6), MASKED[3:], "before"),
        full("fedavg", (), ("model", "upload", "result"), "after"),
    ],
)
def test_a_death_in_any_phase_costs_the_round_those_devices_only(
    tmp_path, protocol, options, phases, moment
):
    # In round k the rank 2 k + 2 of 0 to 7 dies, in another phase each time; one round more.
    kills = [kill(2 * k + 2, phase, k, moment) for k, phase in enumerate(phases)]
    saved = tmp_path / "sum.npy"
    options = (*SMALL, *options, "--save-aggregate", saved)
    done, run = bench(tmp_path, 8, protocol, *options, "--rounds", 4, *sum(kills, ()))

    assert done.returncode == 0, done.stderr
    assert (run.status, run.validated.tolist()) == ("complete", [True] * 4)
    assert run.environment["fault_tolerance"] == "ulfm"
    order = run.phases
    upload = order.index("upload" if protocol == "fedavg" else "masked_input")
    gone = set()
    for k, phase in enumerate(phases):
        device = 2 * k + 1
        assert [device] == [*(lost_in(run, k) or lost_in(run, k + 1))]
        uploaded = order.index(phase) >= upload + (moment != "after")
        assert set(np.flatnonzero(~run.survived[k])) == gone | (set() if uploaded else {device})
        gone.add(device)
    assert set(np.flatnonzero(~run.survived[3])) == gone
    if protocol in ("secagg", "fedavg"):  # which send all coordinates
        assert_sum(saved, 3, sorted({*range(7)} - gone), 7)
    losses = (run.lost_phase >= 0).any(axis=1)
    assert losses.sum() == len(gone) == len(phases)
    assert (np.isfinite(run.detect_seconds) == losses).all()
    assert (np.isfinite(run.recover_seconds) == losses).all()


@needs_ulfm
@pytest.mark.parametrize(
    ("ranks", "options", "deaths", "sentence", "finished"),
    [
        full(6, ("secagg",), [kill(0, "unmask", 2)], "Error: the server's rank died", 2),
        (
            *(6, ("dp-fedavg",), [kill(rank, "masked_input", 1) for rank in (2, 4)]),
            "round 1 ends here, before anything is revealed: a sum holds the noise of 3 devices",
            1,
        ),
        # Rank 1 is the first helper; its masks are in the sum, and nobody else knows them.
        full(
            *(4, ("assisted", "--devices", 6), [kill(1, "unmask", 2)]),
            "round 2 cannot end: helper 0 did not send the sum of its masks",
            2,
        ),
        full(
            *(6, ("secagg",), [kill("1+2+4", "masked_input", 2)]),
            "Error: round 2 cannot end: 2 of 5 devices sent",
            2,
        ),
    ],
)
def test_a_round_that_lost_too_much_ends_the_job_once_with_a_sentence(
    tmp_path, ranks, options, deaths, sentence, finished
):
    """Rounds are planned for one device that vanishes, and for no helper."""
    done, run = bench(tmp_path, ranks, *options, *SMALL, "--rounds", 4, *sum(deaths, ()))

    assert done.returncode != 0
    assert done.stderr.count("Error:") == 1
    assert sentence in done.stderr
    assert run.status == ("running" if "server" in sentence else "failed")
    assert run.validated.tolist() == [True] * finished


@needs_ulfm
@pytest.mark.full
def test_later_sizes_of_a_launch_run_on_the_ranks_that_are_left(tmp_path):
    options = ("secagg", *SMALL, "--rounds", 2, "--devices", "3,5", *kill(2, "share_keys", 1))
    done = job(6, *HPCFL, "bench", *options, "--output", tmp_path)
    small, large = (load(path) for path in sorted(tmp_path.glob("*.h5")))

    assert done.returncode == 0, done.stderr
    assert (small.devices, large.devices) == (3, 5)
    assert lost_in(small, 1) == {1: "share_keys"}
    assert large.survived.all()
    assert large.validated.all()


CRASH = """
import os, signal, sys
from hpcfl.comm import ending
from hpcfl.comm.world import connect
world = connect()
if world.rank == 2 and sys.argv[2] == "after a death":
    os.kill(os.getpid(), signal.SIGKILL)
world.tell(0)
try:
    if world.rank == int(sys.argv[1]):
        raise ZeroDivisionError("divided")
    world.settle(None)
except Exception:
    ending.crash()
"""


@needs_ulfm
@pytest.mark.parametrize(("rank", "when"), [(0, "after a death"), full(3, "at first")])
def test_a_crash_ends_the_job_though_deaths_are_survived(rank, when):
    """Open MPI's launcher lets the other ranks wait for ever after an abort."""
    done = job(4, sys.executable, "-c", CRASH, rank, when)

    assert done.returncode != 0
    assert f"[rank {rank} on " in done.stderr
    assert done.stderr.count("ZeroDivisionError: divided") == 1
