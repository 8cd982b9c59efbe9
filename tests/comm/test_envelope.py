"""Sealing a message, which must not cost a long one a copy."""

import numpy as np
import pytest

from hpcfl.comm import envelope
from hpcfl.comm.phases import room


def filled(size, dtype="u1"):
    payload = room(size).view(dtype)
    payload[:] = np.arange(payload.size)
    return payload


@pytest.mark.parametrize("dtype", ["u1", "<u2", "<u4"])
@pytest.mark.parametrize("size", [0, 4, 4000])
def test_a_payload_with_room_is_sealed_where_it_is(size, dtype):
    payload = filled(size, dtype)
    message = envelope.seal(3, 7, 1, envelope.SERVER, payload)
    expected = envelope.seal(3, 7, 1, envelope.SERVER, np.array(payload))

    assert type(message) is np.ndarray
    np.testing.assert_array_equal(message, expected)
    assert not size or np.shares_memory(message, payload)
    opened = envelope.unseal(message, "upload", 3, 7, 1, envelope.SERVER)
    np.testing.assert_array_equal(opened.view(dtype), np.arange(payload.size).astype(dtype))


@pytest.mark.parametrize("part", [slice(0, 8), slice(8, None), slice(None, None, 2)])
def test_a_part_of_it_is_copied(part):
    payload = filled(16)
    cut = payload[part] if part.step is None else np.ascontiguousarray(payload[part])
    before = np.array(cut)
    message = envelope.seal(3, 7, 1, envelope.SERVER, cut)

    assert not np.shares_memory(message, payload)
    np.testing.assert_array_equal(message[envelope.BYTES :], before)


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
