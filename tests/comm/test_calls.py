import numpy as np
import pytest

from hpcfl.comm import calls
from hpcfl.comm.calls import Calls, WaitsFor


def table(*ranks, count=1):
    """Return the notes of some ranks, each a list of notes."""
    found = []
    for notes in ranks:
        book = Calls()
        for note in notes:
            book.note(*note)
        found.append(book.table(count, 0.0))
    return np.array(found)


def test_a_rank_waits_until_the_last_comes_and_is_in_mpi_from_then_on():
    everybody = WaitsFor.EVERYBODY
    in_mpi, waited = calls.split(
        table(
            [(0, 1.0, 1.0, 6.0, everybody)],
            [(0, 5.0, 5.0, 6.5, everybody)],
            [(0, 2.0, 2.0, 4.0, everybody)],  # was let go before the last came
        )
    )

    assert waited[:, 0].tolist() == [4.0, 0.0, 2.0]
    assert in_mpi[:, 0].tolist() == [1.0, 1.5, 0.0]


def test_devices_wait_for_the_server_alone_and_whoever_needs_nobody_does_not_wait():
    in_mpi, waited = calls.split(
        table(
            [(0, 3.0, 3.0, 3.5, WaitsFor.NOBODY)],
            [(0, 1.0, 1.0, 4.0, WaitsFor.SERVER)],
            [(0, 9.0, 9.0, 9.5, WaitsFor.SERVER)],
        )
    )

    assert waited[:, 0].tolist() == [0.0, 2.0, 0.0]
    assert in_mpi[:, 0].tolist() == [0.5, 1.0, 0.5]


def test_a_message_that_was_there_before_is_not_waited_for_and_posting_is_time_in_mpi():
    in_mpi, waited = calls.split(
        table(
            [(0, 1.0, 4.0, 5.0, WaitsFor.EVERYBODY, 0.25)],
            [(0, 2.0, 3.0, 3.5, WaitsFor.SERVER)],
        )
    )

    assert waited[:, 0].tolist() == [0.0, 0.0]
    assert in_mpi[:, 0].tolist() == [1.25, 0.5]


def test_a_call_without_a_part_of_a_rank_costs_it_nothing():
    both = [(0, 1.0, 1.0, 2.0, WaitsFor.EVERYBODY), (1, 3.0, 3.0, 4.0, WaitsFor.EVERYBODY)]
    in_mpi, waited = calls.split(table(both, both[1:], count=2))

    assert in_mpi.tolist() == [[1.0, 1.0], [0.0, 1.0]]
    assert waited.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_times_are_told_on_the_servers_clock():
    book = Calls()
    book.note(0, 1.0, 2.0, 3.0, WaitsFor.SERVER, 0.5)

    assert book.table(2, 10.0).tolist() == [[11, 12, 13, 1, 0.5, 0], [0] * 6]


def test_work_within_a_call_is_no_time_in_mpi_and_no_waiting(monkeypatch):
    clock = iter([0.0, 3.0, 4.0, 5.0, 7.0, 9.0])
    monkeypatch.setattr(calls.time, "perf_counter", clock.__next__)
    book = Calls()
    with book.call(WaitsFor.EVERYBODY):
        for _ in range(2):
            with book.computing():
                pass
    late = [(0, 8.5, 8.5, 9.0, WaitsFor.EVERYBODY)]
    in_mpi, waited = calls.split(np.array([book.table(1, 0.0), table(late)[0]]))

    # Of 9 seconds 3 were work: the rank cannot have waited for more than the others.
    assert waited[:, 0].tolist() == [6.0, 0.0]
    assert in_mpi[:, 0].tolist() == [0.0, 0.5]


def test_a_call_that_fails_has_a_number_and_no_note():
    book = Calls()
    with pytest.raises(ValueError, match="no"), book.call(WaitsFor.SERVER):
        raise ValueError("no")
    with book.call(WaitsFor.EVERYBODY):
        pass
    noted = book.table(2, 0.0)

    assert not noted[0].any()
    assert noted[1, 2] >= noted[1, 1] > 0
    book.restart()
    assert (book.number, book.table(2, 0.0).any()) == (0, False)
