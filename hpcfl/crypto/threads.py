"""Work on parts of a vector by several threads of this rank, and the CPU time that it takes.

The cipher and numpy let other threads run while they work on a block, so that threads help where
blocks are as long as a keystream's. All other work of a rank stays in one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

# Fewer words than this a thread are not worth waking it for.
LEAST = 1 << 13
# Where parts begin: with a whole number of 16-byte blocks of keystream, and in a cache line.
ALIGNED = 64

# Of other threads than the one that has asked for it.
_helped_seconds = 0.0


def cpu_seconds() -> float:
    """Return the CPU time of the calling thread, and of all that worked for it in `spread`."""
    return time.thread_time() + _helped_seconds


def spread(work: Callable[[slice], None], size: int, threads: int) -> None:
    """Call `work` with parts of ``range(size)`` that make it up, on so many threads at most."""
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
        # What they raise counts after what this thread raises.
        for each in started:
            each.exception()
    _helped_seconds += sum(each.result() for each in started)


def _timed(work: Callable[[slice], None], part: slice) -> float:
    """Return the CPU seconds that a part takes."""
    start = time.thread_time()
    work(part)
    return time.thread_time() - start


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads - 1, "hpcfl-crypto")
