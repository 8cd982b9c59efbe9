import math

import numpy as np
import pytest
from player import parties, round_of
from run_files import new_writer

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.noise import IntegerNoise
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.loopback import Loopback
from hpcfl.comm.transport import Failure
from hpcfl.results import load
from hpcfl.results.record import RoundRecord
from hpcfl.rounds.failures import FailureWatch, as_planned, tell
from hpcfl.rounds.observer import RoundObserver
from hpcfl.rounds.timed import play

DEVICES, DIM = 8, 301
PHASES = ["model", "upload", "result"]


def vector(id):
    return np.random.default_rng(id).normal(0, 0.3, DIM)


class Moments(RoundObserver):
    def __init__(self):
        self.seen, self.uploaded = [], []

    def at(self, index, moment, phase):
        self.seen.append((moment, phase))

    def heard(self, index, step, sender, message):
        if step in ("upload", "masked_input"):
            self.uploaded.append(sender)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedavg", {}),
        ("secagg", {}),
        ("sparse", {"alpha": 0.4}),
        ("cohort", {"alpha": 0.5, "degree": 6}),
        ("common", {"alpha": 0.5}),
    ],
)
@pytest.mark.parametrize("dropout", [{}, {2: "advertise_keys", 5: "masked_input"}])
def test_a_stand_in_contributes_what_the_device_did(name, options, dropout):
    protocol = find(name)(Parameters(DEVICES, DIM, dropout=0.25, **options))
    transport, moments = Loopback(DEVICES), Moments()
    devices, server = parties(protocol, transport, 4)
    gone = {} if name == "fedavg" else dropout
    round_of(
        *(protocol, transport, devices, server, vector), index=4, dropouts=gone, observer=moments
    ).play()

    assert len(server.survivors) >= DEVICES - 2
    assert moments.uploaded == sorted(server.survivors)
    for id in server.survivors:
        where, values = devices[id].contribution(vector(id))
        found_where, found = protocol.stand_in(server, id, 4).contribution(vector(id))
        np.testing.assert_array_equal(found, values)
        np.testing.assert_array_equal(np.arange(DIM)[found_where], np.arange(DIM)[where])
    # What dies "before" a phase must not die in the middle of it, however many steps it has.
    for phase in protocol.phases():
        of_phase = [moment for moment, name in moments.seen if name == phase]
        assert (of_phase[0], of_phase[-1]) == ("before", "after")
        assert {*of_phase[1:-1]} == {"during"}


@pytest.mark.parametrize(
    ("survived", "lost", "expected"),
    [
        ([0, 1, 2], {}, True),
        ([0, 1], {}, False),
        ([0, 1, 2, 3], {}, False),
        ([0, 2], {1: 0}, True),  # lost before the upload, in phase 1
        ([0, 1, 2], {1: 0}, False),
        ([0, 2], {1: 1}, True),  # in it: the server knows
        ([0, 1, 2], {1: 1}, True),
        ([0, 2], {1: 2}, False),  # after it
        ([0, 1, 2], {1: 2}, True),
        ([0, 1, 2], {3: 1}, True),  # not to be in the sum anyway
        ([0, 1, 2, 3], {3: 1}, False),
        ([0, 1, 1, 2], {}, False),
    ],
)
def test_those_in_the_sum_are_those_who_should_be(survived, lost, expected):
    assert as_planned(survived, [0, 1, 2], lost, 1) == expected


class Losing(Loopback):
    """A transport that is told whom it lost."""

    def __init__(self):
        super().__init__(6)
        self.pending = []
        self.gone = set()

    def lose(self, *devices):
        self.pending.append(Failure(frozenset(devices), 0.5, 0.25))
        self.gone |= {*devices}

    @property
    def failed(self):
        return frozenset(self.gone)

    def take_failures(self):
        taken, self.pending = self.pending, []
        return taken


@pytest.mark.parametrize(
    ("noisy", "seed", "checkable"), [(False, None, True), (True, None, False), (True, 5, True)]
)
def test_a_sum_with_the_noise_of_a_device_that_died_is_checked_only_from_a_seed(
    noisy, seed, checkable
):
    protocol = find("secagg")(Parameters(6, DIM, dropout=0.0))
    if noisy:
        protocol.add_noise(IntegerNoise(10, b"secret of a rank"))
    transport = Losing()

    class Fate(RoundObserver):
        def at(self, index, moment, phase):
            if (moment, phase) == ("after", "masked_input"):
                transport.lose(2)

    played = play(
        protocol,
        transport,
        index=0,
        model=np.zeros(DIM, np.float32),
        inputs=vector,
        dropouts={},
        insecure_seed=seed,
        observer=Fate(),
    )

    assert played.checkable is checkable
    assert played.right or checkable


def test_failures_are_entered_with_their_phase():
    transport = Losing()
    transport.lose(0)
    watch = FailureWatch(transport, PHASES)
    watch.at(0, "before", "model")
    transport.lose(1, 2)
    watch.at(0, "after", "model")
    watch.at(0, "before", "upload")
    watch.at(0, "after", "upload")
    transport.lose(4)
    record = RoundRecord.empty(3, 6)
    watch.enter(record)

    assert (watch.absent, watch.phase_of) == (frozenset({0}), {1: 0, 2: 0, 4: 3})
    assert record.lost_phase.tolist() == [3, 0, 0, -1, 3, -1]
    assert (record.detect_seconds, record.recover_seconds) == (1.5, 0.75)

    transport.lose(5)
    FailureWatch(transport, PHASES).enter(record)
    record, watch = RoundRecord.empty(3, 6), FailureWatch(transport, PHASES)
    watch.enter(record)
    assert watch.absent == {0, 1, 2, 4, 5}
    assert record.lost_phase.tolist() == [-1] * 6
    assert math.isnan(record.detect_seconds)
    assert math.isnan(record.recover_seconds)


def test_a_run_tells_whom_it_lost(tmp_path):
    lost = RoundRecord.empty(3, 6)
    lost.lost_phase[[2, 4, 0]] = 1, 1, 3
    lost.detect_seconds, lost.recover_seconds = 0.25, 1.5
    for failures, records in ((True, [RoundRecord.empty(3, 6), lost]), (False, [lost])):
        about = {"phases": PHASES, "devices": 6, "failures": failures}
        with new_writer(tmp_path / f"{failures}.h5", **about) as writer:
            for record in records:
                writer.append(record)
    run, other = load(tmp_path / "True.h5"), load(tmp_path / "False.h5")

    assert run.lost_phase.tolist() == [[-1] * 6, [3, -1, 1, -1, 1, -1]]
    np.testing.assert_array_equal(run.detect_seconds, [math.nan, 0.25])
    assert tell(run).startswith("Round 1 lost devices 2, 4 in upload and 0 between phases; ")
    assert ((other.lost_phase == -1).all(), tell(other)) == (True, "")
