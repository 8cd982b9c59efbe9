"""Memory that is used again, for messages by the hundred megabytes."""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress

import numpy as np

from hpcfl.comm.phases import Payload

# Pieces as large as this go back to the system when they are freed (glibc's largest threshold), and
# to get them anew, page by page, can take longer than to move the messages.
KEPT_BYTES = 1 << 25
PAGES_BYTES = 1 << 20


def pages(count: int, size: int) -> Payload:
    """Return new memory for rows: ndarray of uint8, shape (count, size), with anything in it.

    Large pieces take memory only where they are written to, and give it back when nobody looks at
    them any more, unlike what the C library allocates.
    """
    if count * size < PAGES_BYTES:
        return np.empty((count, size), np.uint8)
    # What nobody shares can be had in large pages, each of which the system clears at once: an
    # eighth of the time that small shared ones take.
    memory = mmap.mmap(-1, count * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # not on this kernel
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8).reshape(count, size)


class Scratch:
    """Memory for many messages end to end; large pieces are used again once nobody looks at them.

    Smaller ones, which most messages with secrets are, end with their last user.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._references_alone = self._references()

    def _references(self) -> int:
        return sys.getrefcount(self._memory)

    def take(self, size: int) -> Payload:
        """Return some memory, with anything in it: ndarray of uint8, shape (size,).

        What was taken before is left alone if there is still an array that shows a part of it.
        """
        if size < KEPT_BYTES:
            return np.empty(size, np.uint8)
        if self._memory.size < size or self._references() > self._references_alone:
            self._memory = np.empty(size, np.uint8)
        return self._memory[:size]
