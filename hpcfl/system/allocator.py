"""Settings of the C library's allocator that keep freed memory in the process.

By default glibc takes arrays from 128 KiB on from the operating system anew, which clears each page
first, and gives them back when they are freed. It keeps up to twice the largest that was freed so
far: what a round took depended on what had come before it in the process.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

# Parameters of mallopt, as in malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# Larger arrays are the system's, which has them back at once: the most that glibc allows for.
LARGEST_KEPT = 1 << 23
# So much may be free at the end of the heap before it is given back.
KEPT_FREE = 1 << 30
# By which users of glibc say so themselves.
SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


@cache
def keep_freed() -> bool:
    """Let freed memory stay with this process; return whether the C library can.

    An array larger than `LARGEST_KEPT` goes back at once, and so does all that is free behind the
    last array in use where it is more than `KEPT_FREE`. Where the environment says how glibc is to
    do it, it stays so.
    """
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or {*SETTINGS} & {*os.environ}:
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False  # not glibc
    kept: bool = all([mallopt(_MMAP_THRESHOLD, LARGEST_KEPT), mallopt(_TRIM_THRESHOLD, KEPT_FREE)])
    return kept
