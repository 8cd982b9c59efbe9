"""Reusable memory for messages of hundreds of megabytes."""

from __future__ import annotations

import mmap
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.system.allocator import LARGEST_KEPT

if TYPE_CHECKING:
    from hpcfl.comm.phases import Payload

# Larger pieces go back to the system when they are freed. To get them again, page by page, can take
# longer than to move the messages.
KEPT_BYTES = LARGEST_KEPT
PAGES_BYTES = 1 << 20


def pages(count: int, size: int) -> Payload:
    """Return new, uninitialised memory for rows: ndarray of uint8, shape (count, size).

    Unlike memory of the C library, large pieces take memory only where they are written to, and
    return it to the system with their last reference.
    """
    if count * size < PAGES_BYTES:
        return np.empty((count, size), np.uint8)
    # Private memory can have huge pages. The system clears each of them at once, which takes an
    # eighth of the time of small shared pages.
    memory = mmap.mmap(-1, count * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # the kernel may not support it
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8).reshape(count, size)


class Scratch:
    """Memory for many messages end to end; a large piece is reused once no array refers to it.

    Smaller pieces, which hold most messages with secrets, are freed with their last reference.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._references_alone = self._references()

    def _references(self) -> int:
        return sys.getrefcount(self._memory)

    def take(self, size: int) -> Payload:
        """Return uninitialised memory: ndarray of uint8, shape (size,).

        Memory taken before is not reused while an array still refers to a part of it.
        """
        if size < KEPT_BYTES:
            return np.empty(size, np.uint8)
        if self._memory.size < size or self._references() > self._references_alone:
            self._memory = np.empty(size, np.uint8)
        return self._memory[:size]


_OF_THREAD = threading.local()


def release() -> None:
    """Free this thread's memory for long messages: the next run may have shorter ones."""
    vars(_OF_THREAD).clear()


def reused(size: int) -> Payload:
    """Return uninitialised memory for a long message that this thread makes or receives.

    It is that of the last one once no array refers to it: the system would clear new memory. Its
    array is no view of another one.
    """
    if size < KEPT_BYTES:
        return np.empty(size, np.uint8)
    if not hasattr(_OF_THREAD, "scratch"):
        _OF_THREAD.scratch = Scratch()
    return np.frombuffer(memoryview(_OF_THREAD.scratch.take(size)), np.uint8)
