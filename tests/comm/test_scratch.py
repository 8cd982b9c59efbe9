import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfl.comm import scratch as module
from hpcfl.comm.scratch import Scratch


@pytest.fixture(autouse=True, scope="module")
def _keep_little():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "KEPT_BYTES", 8)
        yield


def test_memory_is_used_again_when_nobody_looks_at_it():
    scratch = Scratch()
    place = scratch.take(1000).ctypes.data

    assert scratch.take(1000).ctypes.data == place
    assert scratch.take(10).ctypes.data == place
    assert scratch.take(1001).size == 1001


def test_memory_that_is_looked_at_is_left_alone():
    scratch = Scratch()
    # A part of a part, of another type, as messages are read.
    kept = scratch.take(1000)[8:80][:64].view("<u4")
    kept[:] = 7
    scratch.take(1000)[:] = 9
    scratch.take(10)[:] = 9

    assert kept.tolist() == [7] * 16


def test_memory_seen_through_a_buffer_is_left_alone():
    scratch = Scratch()
    scratch.take(64)[:] = 7
    kept = memoryview(scratch.take(64))  # type: ignore[arg-type]
    scratch.take(64)[:] = 9

    assert bytes(kept) == bytes([7] * 64)


def test_little_is_not_kept_when_nobody_looks_at_it():
    scratch = Scratch()
    taken = scratch.take(7)
    ended = weakref.ref(taken)
    del taken

    assert ended() is None
    assert scratch._memory.size == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=30))
def test_whatever_is_kept_stays_as_it_was(steps):
    scratch, kept = Scratch(), []
    for number, (size, keep) in enumerate(steps):
        taken = scratch.take(size)
        taken[:] = number
        if keep:
            kept.append((number, taken[size // 3 :]))
        del taken

    assert all((part == np.uint8(number)).all() for number, part in kept)
