from itertools import count

import numpy as np
import pytest
from player import parties, round_of

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.loopback import Loopback
from hpcfl.crypto import threads
from hpcfl.rounds import ledger
from hpcfl.rounds.ledger import Ledger


@pytest.fixture
def ticking(monkeypatch):
    """Let every look at the CPU clock take a second."""
    monkeypatch.setattr(ledger.time, "thread_time", count().__next__)
    # Of tests before this one: a fraction beside which whole seconds are rounded.
    monkeypatch.setattr(threads, "_helped_seconds", 0)


@pytest.mark.parametrize(
    ("local", "live", "has_server", "expected"),
    [
        ([1, 3], [1, 3], False, [0, 0.5, 0, 0.5, 0]),
        ([1, 3], [3], False, [0, 0, 0, 1, 0]),
        ([1, 3], [], False, [0, 0, 0, 0, 1]),
        ([], [], False, [0, 0, 0, 0, 1]),
        ([0, 1], [0, 1], True, [0, 0, 0, 0, 1]),
        ([], [], True, [0] * 4 + [1]),
    ],
    ids=[
        *("devices' rank", "one dropped out", "all dropped out", "none"),
        *("one process", "server's rank"),
    ],
)
def test_work_of_a_rank_is_its_servers_or_its_live_devices_alike(
    ticking, local, live, has_server, expected
):
    book = Ledger(["upload"], 4, local, has_server)
    with book.work_of_rank("upload", live):
        pass

    assert book.record.cpu_seconds.tolist() == [expected]


def test_sums_of_a_reduction_are_charged(ticking):
    """In one process to the server, a second for each of the devices' vectors."""
    protocol, inner = find("secagg")(Parameters(5, 100)), Loopback(5)
    vectors = np.zeros((5, 100))
    played = [
        round_of(protocol, inner, *parties(protocol, inner), vectors, reduce=reduce)
        for reduce in (False, True)
    ]
    for each in played:
        each.play()
    upload = protocol.phases().index("masked_input")
    one_by_one, reduced = (each.ledger.record.cpu_seconds[upload] for each in played)

    # Five messages to unseal and add; five sums; what was summed, and the phase's end.
    assert one_by_one[-1] >= 5
    assert reduced[-1] >= 5 + 1
    assert (reduced[:-1] > 0).all()
