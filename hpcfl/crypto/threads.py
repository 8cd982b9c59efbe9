"""Work on parts of a vector by several threads of this rank, and its CPU time.

The cipher and NumPy release the interpreter lock while they work on a block, so threads help where
blocks are as long as the keystream's. All other work of a rank stays in one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

# Fewest words per thread: waking a thread for less does not pay.
LEAST = 1 << 13
# Parts begin at multiples of this: at a 16-byte keystream block and at a cache line.
ALIGNED = 64

# CPU time of the helper threads.
_helped_seconds = 0.0


def cpu_seconds() -> float:
    """Return the CPU time of the calling thread and of the threads that `spread` used."""
    return time.thread_time() + _helped_seconds


def spread(work: Callable[[slice], None], size: int, threads: int) -> None:
    """Call `work` with slices that together cover ``range(size)``, on at most `threads` threads."""
    global _helped_seconds
    count = max(1, min(threads, size // LEAST))
    bounds = [k * size // count // ALIGNED * ALIGNED for k in range(count)]
    mine, *others = (slice(*ends) for ends in pairwise([*bounds, size]))
    if not others:
        work(mine)
        return
    started = [_pool(threads).submit(_timed, work, part) for part in others]
    try:
        work(mine)
    finally:
        # Wait for the other threads; an exception of this thread has precedence over theirs.
        for each in started:
            each.exception()
    _helped_seconds += sum(each.result() for each in started)


def _timed(work: Callable[[slice], None], part: slice) -> float:
    """Return the CPU seconds that `work` takes on a part."""
    start = time.thread_time()
    work(part)
    return time.thread_time() - start


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(threads - 1, "hpcfl-crypto")
