"""Masks are the same whatever number of threads adds them, and all their CPU time is told."""

import threading
import time

import numpy as np
import pytest

from hpcfl.crypto import groups, threads
from hpcfl.crypto.groups import FQ, GROUPS, Field

KEYS = [k.to_bytes(16, "little") for k in range(5)]
SIGNS = [1, -1, 1, 1, -1]


@pytest.mark.parametrize(
    "group",
    [
        *(FQ, GROUPS["ring8"], GROUPS["ring12"], GROUPS["ring16"], GROUPS["ring32"]),
        *(GROUPS["field8"], GROUPS["field20"], Field(3 * 2**30)),
    ],
    ids=lambda group: f"{group.name}-{group.modulus}",
)
@pytest.mark.parametrize("size", [1, 24_577])
def test_any_number_of_threads_adds_the_same_masks(monkeypatch, group, size):
    """Also in a group that often rejects words, and in blocks that are none of keystream's."""
    vector = np.random.default_rng(1).integers(0, group.modulus, size).astype(group.dtype)
    expected = group.add_masks(vector, KEYS, SIGNS)
    monkeypatch.setattr(groups, "LONG_BLOCK_BYTES", 1 << 12)

    for count in (2, 3, 7):
        for first in (0, 64, 6720):  # a part of the vector gets its part of the masks
            found = vector[first:].copy()
            group.mask(found, KEYS, SIGNS, count, first)
            np.testing.assert_array_equal(found, expected[first:])


def test_parts_make_up_the_whole_and_all_threads_have_one():
    seen = []
    threads.spread(lambda part: seen.append((part, threading.get_ident())), 100_001, 3)

    parts = sorted(part.start for part, _ in seen)
    assert parts[0] == 0
    assert not any(start % threads.ALIGNED for start in parts)
    assert sum(part.stop - part.start for part, _ in seen) == 100_001
    assert len(seen) == 3


def test_the_cpu_time_of_all_threads_is_told():
    def work(part):
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass

    before = threads.cpu_seconds()
    threads.spread(work, 10**6, 4)

    assert 0.2 <= threads.cpu_seconds() - before < 0.3


def test_an_error_of_any_thread_is_raised():
    def work(part):
        if part.start:
            raise ValueError("of another thread")

    with pytest.raises(ValueError, match="of another thread"):
        threads.spread(work, 10**6, 2)
