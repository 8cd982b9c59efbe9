import os
import signal
import sys
import time

import numpy as np
import pytest
from ulfm import (
    HERE,
    LIMIT_SECONDS,
    ULFM,
    bench,
    finish,
    job,
    kill,
    needs_ulfm,
    pid_of_rank,
    start,
    sum_of_updates,
)

from hpcfl.results import load

pytestmark = needs_ulfm

DIM = 60
SMALL = ("--dim", DIM, "--warmup", 0, "--dropout", 0)
MASKED = ("model", "advertise_keys", "share_keys", "masked_input", "unmask", "result")


def full(*values):
    """Return what a test of the full tier is given."""
    return pytest.param(*values, marks=pytest.mark.full)


def assert_sum(path, round_index, ids, devices):
    """Compare a saved sum with that of the updates of some of N devices of equal weight.

    Each of them rounds its update, divided by N, by less than a level of 2^-20.
    """
    tolerance = devices * len(ids) / 2**20
    expected = sum_of_updates(DIM, round_index, ids)
    np.testing.assert_allclose(np.load(path), expected, rtol=0, atol=tolerance)


def lost_in(run, round_index):
    """Return the devices lost in a round, and the phase, "" for outside of all phases."""
    row, names = run.lost_phase[round_index], [*run.phases, ""]
    return {int(id): names[row[id]] for id in np.flatnonzero(row >= 0)}


@pytest.mark.parametrize(
    ("protocol", "options", "phases", "moment"),
    [
        ("secagg", ("--upload", "reduce"), MASKED[3:], "during"),
        ("sparse", ("--alpha", 0.5, "--security", "active"), MASKED[2:4], "after"),
        full("secagg", (), MASKED[:3], "before"),
        full("sparse", ("--alpha", 0.5), MASKED[:3], "during"),
        full("sparse", ("--alpha", 0.5), MASKED[3:], "before"),
        # With all others as neighbours: fewer are chosen for the dropouts that are planned, none.
        full("cohort", ("--alpha", 0.6, "--degree", 6), MASKED[:3], "before"),
        full("cohort", ("--alpha", 0.6, "--degree", 6), MASKED[3:], "before"),
        full("fedavg", (), ("model", "upload", "result"), "after"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value)),
)
def test_a_death_in_any_phase_costs_the_round_those_devices_only(
    tmp_path, protocol, options, phases, moment
):
    # In round k the rank 2 k + 2 of 0 to 7 dies, in another phase each time; one round more.
    kills = [kill(2 * k + 2, phase, k, moment) for k, phase in enumerate(phases)]
    done, run = bench(tmp_path, 8, protocol, *SMALL, "--rounds", 4, *options, *sum(kills, ()))

    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert (run.status, run.validated.tolist()) == ("complete", [True] * 4)
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
    losses = (run.lost_phase >= 0).any(axis=1)
    assert losses.sum() == len(gone) == len(phases)
    assert (np.isfinite(run.detect_seconds) == losses).all()
    assert (np.isfinite(run.recover_seconds) == losses).all()


@pytest.mark.parametrize(
    ("protocol", "options", "phase", "moment", "among"),
    [
        ("secagg", (), "masked_input", "during", [0, 2, 3, 4]),
        full("secagg", (), "masked_input", "after", [0, 1, 2, 3, 4]),
        full("cohort", ("--alpha", 1), "unmask", "before", [0, 1, 2, 3, 4]),
        full("fedavg", (), "upload", "after", [0, 1, 2, 3, 4]),
    ],
)
def test_the_aggregate_is_the_sum_over_those_who_uploaded_alive_or_not(
    tmp_path, protocol, options, phase, moment, among
):
    saved = tmp_path / "sum.npy"
    done, run = bench(
        *(tmp_path, 6, protocol, *SMALL, "--rounds", 2, *options, "--save-aggregate", saved),
        *kill(2, phase, 1, moment),
    )

    assert done.returncode == 0, done.stderr
    assert np.flatnonzero(run.survived[1]).tolist() == among
    assert_sum(saved, 1, among, 5)


@pytest.mark.full
def test_17_ranks_lose_several_at_once_and_virtual_devices(tmp_path):
    saved = tmp_path / "sum.npy"
    # Two devices on the first twelve of 16 device ranks, one on the others.
    done, run = bench(
        *(tmp_path, 17, "secagg", "--dim", DIM, "--warmup", 0, "--dropout", 0, "--rounds", 3),
        *("--devices", 28, "--save-aggregate", saved),
        *kill("3+9+16", "masked_input", 0),
        *kill("5", "share_keys", 1),
        *kill("6", "unmask", 1),
    )
    at = [range(rank - 1, 28, 16) for rank in range(1, 17)]
    first = [id for rank in (3, 9, 16) for id in at[rank - 1]]

    assert done.returncode == 0, done.stderr
    assert run.environment["fault_tolerance"] == "ulfm"
    assert run.validated.all()
    assert lost_in(run, 0) == dict.fromkeys(first, "masked_input")
    assert lost_in(run, 1) == dict.fromkeys(at[4], "share_keys") | dict.fromkeys(at[5], "unmask")
    assert lost_in(run, 2) == {}
    missing = [*first, *at[4]]
    assert np.flatnonzero(~run.survived[0]).tolist() == sorted(first)
    assert np.flatnonzero(~run.survived[1]).tolist() == sorted(missing)
    left = sorted({*range(28)} - {*missing, *at[5]})
    assert np.flatnonzero(run.survived[2]).tolist() == left
    assert_sum(saved, 2, left, 28)


@pytest.mark.full
def test_planned_dropouts_go_on_beside_real_ones(tmp_path):
    options = ("sparse", "--dim", DIM, "--rounds", 4, "--warmup", 0, "--dropout", 0.3)
    _, plain = bench(tmp_path / "plain", 11, *options)
    done, run = bench(tmp_path / "killed", 11, *options, *kill(4, "unmask", 1))

    assert done.returncode == 0, done.stderr
    assert run.validated.all()
    np.testing.assert_array_equal(run.survived[:2], plain.survived[:2])
    expected = plain.survived[2:].copy()
    expected[:, 3] = False
    np.testing.assert_array_equal(run.survived[2:], expected)


@pytest.mark.full
def test_below_the_threshold_the_job_fails_once_and_keeps_finished_rounds(tmp_path):
    done, run = bench(
        tmp_path, 6, "secagg", *SMALL, "--rounds", 5, *kill("1+2+4", "masked_input", 2)
    )

    assert done.returncode != 0
    assert done.stderr.count("Error: round 2 cannot end: 2 of 5 devices sent") == 1
    assert done.stderr.count("Error:") == 1
    assert "Traceback" not in done.stderr
    assert (run.status, run.validated.tolist()) == ("failed", [True, True])


@pytest.mark.full
def test_noise_of_the_dead_is_not_checked_and_not_called_right(tmp_path):
    options = ("dp-fedavg", "--dim", DIM, "--rounds", 2, "--warmup", 0, "--dropout", 0)
    kills = kill(2, "unmask", 1)
    done, run = bench(tmp_path / "secret", 6, *options, *kills)
    _, seeded = bench(tmp_path / "seeded", 6, *options, *kills, "--insecure-seed", 3)

    assert done.returncode == 0, done.stderr
    assert run.survived[1].all()
    assert run.validated.tolist() == [True, False]
    assert seeded.validated.tolist() == [True, True]


@pytest.mark.parametrize(
    ("ranks", "options", "dying", "sentence"),
    [
        (
            6,
            ("dp-fedavg",),
            (2, 4),
            "a sum holds the noise of 3 devices, of which 0 may collude, and that of 4 honest ones "
            "was promised",
        ),
        full(
            9,
            ("cohort", "--alpha", 0.6, "--degree", 6),
            (2, 4, 6),
            "3 of 8 devices have dropped out: with 6 neighbours each, the honest ones among the "
            "others are not all linked",
        ),
    ],
    ids=["noise", "links"],
)
def test_a_round_that_lost_more_than_its_promises_bear_ends_before_it_is_unmasked(
    tmp_path, ranks, options, dying, sentence
):
    """Rounds are planned for one device that vanishes, rings for one more that is expelled."""
    deaths = [option for rank in dying for option in kill(rank, "masked_input", 1)]
    done, run = bench(tmp_path, ranks, *options, *SMALL, "--rounds", 3, *deaths)

    assert done.returncode != 0
    assert done.stderr.count("Error:") == 1
    assert f"round 1 ends here, before anything is revealed: {sentence}" in done.stderr
    assert "Traceback" not in done.stderr
    assert (run.status, run.validated.tolist()) == ("failed", [True])


def test_the_death_of_the_server_ends_the_job_with_one_sentence(tmp_path):
    done, run = bench(tmp_path, 6, "secagg", *SMALL, "--rounds", 5, *kill(0, "unmask", 2))

    assert done.returncode != 0
    assert done.stderr.count("Error: the server's rank died") == 1
    assert "Traceback" not in done.stderr
    assert (run.status, run.validated.tolist()) == ("running", [True, True])


@pytest.mark.full
def test_later_sizes_of_a_launch_run_on_the_ranks_that_are_left(tmp_path):
    done = job(
        *(6, "hpcfl", "bench", "secagg", *SMALL, "--rounds", 2, "--devices", "3,5"),
        *(*kill(2, "share_keys", 1), "--output", tmp_path),
    )
    small, large = (load(path) for path in sorted(tmp_path.glob("*.h5")))

    assert done.returncode == 0, done.stderr
    assert (small.devices, large.devices) == (3, 5)
    assert lost_in(small, 1) == {1: "share_keys"}
    assert large.survived.all()
    assert large.validated.all()


def test_a_death_that_nobody_planned_is_survived_as_well(tmp_path):
    launcher = (*ULFM, "-n", 5)
    running = start(
        *(*launcher, "hpcfl", "bench", "secagg", "--dim", 1000, "--dropout", 0),
        *("--rounds", 5, "--max-rounds", 3000, "--max-seconds", 8, "--output", tmp_path),
    )
    deadline = time.monotonic() + LIMIT_SECONDS
    while not list(tmp_path.glob("*.h5")) or load(next(tmp_path.glob("*.h5"))).rounds < 4:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(pid_of_rank(running.pid, 3), signal.SIGKILL)
    done = finish(running, LIMIT_SECONDS)
    run = load(next(tmp_path.glob("*.h5")))

    assert done.returncode == 0, done.stderr
    assert run.validated.all()
    assert np.flatnonzero((run.lost_phase >= 0).any(axis=0)).tolist() == [2]
    assert not run.survived[-1, 2]
    assert run.survived[-1, [0, 1, 3]].all()


@pytest.mark.full
def test_a_signal_after_the_last_round_kills_nobody(tmp_path):
    """Open MPI would wait for the dead in `MPI_Finalize`, for ever in one of a dozen such jobs."""
    path = tmp_path / "run.h5"
    options = ("fedavg", "--rounds", 2, "--output", path)
    done = job(
        5,
        *(sys.executable, HERE.parent / "mpirun" / "late_signals.py", signal.SIGTERM.value),
        *("bench", *SMALL, *options),
    )

    assert done.returncode == 0, done.stderr
    assert "this rank lives" in done.stderr
    assert load(path).status == "complete"


def test_a_dead_helper_ends_the_round_with_a_sentence_and_keeps_the_rounds_before(tmp_path):
    """Rank 1 is the first helper; its masks are in the sum, and nobody else knows them."""
    done, run = bench(
        *(tmp_path, 4, "assisted", *SMALL, "--devices", 6, "--rounds", 4),
        *kill(1, "unmask", 2, "before"),
    )

    assert done.returncode == 1
    assert "round 2 cannot end: helper 0 did not tell the sum of its masks" in done.stderr
    assert "Traceback" not in done.stderr
    assert (run.status, run.validated.tolist()) == ("failed", [True] * 2)


def test_a_round_that_can_do_without_a_helper_is_lost_where_another_one_is_dead(tmp_path):
    """Of three, one drops out of every round: the dead one is the second that is missing."""
    done, run = bench(
        *(tmp_path, 6, "assisted", *SMALL, "--devices", 6, "--rounds", 30),
        *("--helpers", 3, "--helper-dropout", 1),
        *kill(1, "masked_input", 2, "before"),
    )

    assert done.returncode == 1
    assert "cannot begin: 1 of 3 helpers are there, and 2 are needed" in done.stderr
    assert "Traceback" not in done.stderr
    assert run.status == "failed"
    assert len(run.validated) >= 2
    assert run.validated.all()


def test_helpers_go_on_without_a_dead_rank_of_devices(tmp_path):
    done, run = bench(
        *(tmp_path, 8, "assisted", *SMALL, "--rounds", 3), *kill(4, "masked_input", 1, "before")
    )

    assert done.returncode == 0, done.stderr
    assert run.validated.all()
    assert run.survived.sum(axis=1).tolist() == [run.devices, run.devices - 1, run.devices - 1]
