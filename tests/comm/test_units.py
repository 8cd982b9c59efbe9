"""The parts that transports are made of: placement, envelopes, notes on calls, memory."""

import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpcfl
from hpcfl.comm import calls, envelope, scratch
from hpcfl.comm.calls import Calls, WaitsFor
from hpcfl.comm.phases import room
from hpcfl.comm.placement import Placement
from hpcfl.comm.scratch import Scratch


@given(devices=st.integers(1, 200), ranks=st.integers(2, 40), data=st.data())
def test_devices_are_spread_evenly_over_all_ranks_but_the_first(devices, ranks, data):
    placement = Placement.even(devices, ranks)
    sizes = [len(placement.local(rank)) for rank in range(ranks)]

    assert (placement.devices, placement.ranks) == (devices, ranks)
    assert (sizes[0], sum(sizes)) == (0, devices)
    assert max(sizes[1:]) - min(sizes[1:]) <= 1
    for rank in range(ranks):
        assert all(placement.homes[id] == rank for id in placement.local(rank))
    ids = sorted(data.draw(st.sets(st.integers(0, devices - 1), min_size=1)))
    np.testing.assert_array_equal(placement.select(ids).homes, placement.homes[ids])
    assert list(Placement.even(devices, 1).local(0)) == list(range(devices))


@pytest.mark.parametrize("dtype", ["u1", "<u4"])
@pytest.mark.parametrize("size", [0, 4, 4000])
def test_a_payload_with_room_is_sealed_where_it_is(size, dtype):
    payload = room(size).view(dtype)
    payload[:] = np.arange(payload.size)
    message = envelope.seal(3, 7, 1, envelope.SERVER, payload)
    expected = envelope.seal(3, 7, 1, envelope.SERVER, np.array(payload))

    assert type(message) is np.ndarray
    np.testing.assert_array_equal(message, expected)
    assert not size or np.shares_memory(message, payload)
    opened = envelope.unseal(message, "upload", 3, 7, 1, envelope.SERVER)
    np.testing.assert_array_equal(opened.view(dtype), np.arange(payload.size).astype(dtype))
    if size == 4000:  # a part of it is copied
        cut = payload[1:]
        sealed = envelope.seal(3, 7, 1, envelope.SERVER, cut)
        assert not np.shares_memory(sealed, payload)
        np.testing.assert_array_equal(sealed[envelope.BYTES :].view(dtype), cut)


def test_rows_are_opened_where_they_are_unless_one_is_no_row():
    senders, held = np.arange(3), np.arange(24, dtype=np.uint8).reshape(3, 8)
    block = np.concatenate([envelope.seal_rows(2, 5, id, [9], held[id : id + 1]) for id in senders])
    sealed = block.copy()
    payloads = envelope.unseal_rows(block, 2, 5, senders, 9)

    np.testing.assert_array_equal(payloads, held)
    assert np.shares_memory(payloads, block)
    others = envelope.unseal_rows(block, 2, 5, np.array([0, 7, 2]), 9)
    np.testing.assert_array_equal(others, held * np.array([[1], [0], [1]]))
    np.testing.assert_array_equal(block, sealed)


# Notes on calls


def table(*ranks, count=1):
    """Return the notes of some ranks, each a list of notes."""
    found = []
    for notes in ranks:
        book = Calls()
        for note in notes:
            book.note(*note)
        found.append(book.table(count, 0.0))
    return np.array(found)


NOBODY, SERVER, EVERYBODY = WaitsFor


@pytest.mark.parametrize(
    ("ranks", "waited", "in_mpi"),
    [
        # A rank waits until the last comes, and is in MPI from then on; one was let go before.
        (
            [
                [(0, 1.0, 1.0, 6.0, EVERYBODY)],
                [(0, 5.0, 5.0, 6.5, EVERYBODY)],
                [(0, 2.0, 2.0, 4.0, EVERYBODY)],
            ],
            *([4.0, 0.0, 2.0], [1.0, 1.5, 0.0]),
        ),
        # What was there before is not waited for; posting, and what follows, is time in MPI.
        (
            [
                [(0, 1.0, 4.0, 5.0, EVERYBODY, 0.25), (0, 7.0, 7.0, 9.0, EVERYBODY, 0.5)],
                [(0, 2.0, 3.0, 3.5, SERVER)],
                [],
            ],
            *([0.0, 0.0, 0.0], [3.75, 0.5, 0.0]),
        ),
    ],
)
def test_time_of_a_call_is_waiting_or_in_mpi(ranks, waited, in_mpi):
    found, waiting = calls.split(table(*ranks))

    assert waiting[:, 0].tolist() == waited
    assert found[:, 0].tolist() == in_mpi


def test_a_call_that_fails_has_a_number_and_no_note():
    book = Calls()
    with pytest.raises(ValueError, match="no"), book.call(SERVER):
        raise ValueError("no")
    with book.call(EVERYBODY):
        pass
    noted = book.table(2, 0.0)

    assert not noted[0].any()
    assert noted[1, 2] >= noted[1, 1] > 0


# Memory that is used again


@pytest.fixture(autouse=True, scope="module")
def _keep_little():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scratch, "KEPT_BYTES", 8)
        yield


def test_memory_is_used_again_when_nobody_looks_at_it():
    memory = Scratch()
    place = memory.take(1000).ctypes.data

    assert memory.take(1000).ctypes.data == place
    assert memory.take(10).ctypes.data == place
    assert memory.take(1001).size == 1001
    little = memory.take(7)
    ended = weakref.ref(little)
    del little
    assert ended() is None


def test_memory_for_messages_is_given_back_when_a_run_begins(tmp_path):
    scratch.reused(1000)
    ended = weakref.ref(scratch._OF_THREAD.scratch)
    hpcfl.bench("fedavg", devices=2, dim=10, rounds=1, warmup=0, output=tmp_path)
    assert ended() is None


def test_a_long_message_is_made_where_the_last_one_was_and_sealed_there():
    places = set()
    for _ in range(3):
        payload = room(1000)
        message = envelope.seal(1, 0, 0, 1, payload)
        assert np.shares_memory(message, payload)
        places.add(message.ctypes.data)
        del payload, message
    assert len(places) == 1
    first = room(1000)
    assert not np.shares_memory(first, room(900))


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=30))
def test_whatever_is_kept_stays_as_it_was(steps):
    memory, kept = Scratch(), []
    for number, (size, keep) in enumerate(steps):
        taken = memory.take(size)
        taken[:] = number
        if keep:
            # A part of it, or seen through a buffer.
            kept.append((number, memoryview(taken) if number % 2 else taken[size // 3 :]))
        del taken

    assert all((np.asarray(part) == np.uint8(number)).all() for number, part in kept)
