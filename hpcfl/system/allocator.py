"""Settings of the C library's allocator that keep freed memory in the process.

By default glibc requests each array of 128 KiB or more from the operating system, which clears its
pages, and returns it when it is freed. It then keeps up to twice the largest size freed so far, so
the time of a round would depend on what the process did before.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

# Numbers of mallopt's parameters, from malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# Larger arrays come from the system, and go back to it as soon as they are freed.
LARGEST_KEPT = 1 << 23
# The heap keeps up to this much free memory at its end.
KEPT_FREE = 1 << 30
# Environment variables by which users choose these values themselves.
SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


@cache
def keep_freed() -> bool:
    """Make the C library keep freed memory in this process; return whether it does.

    Arrays larger than `LARGEST_KEPT` still go back to the system at once, and so does free memory
    beyond `KEPT_FREE` at the end of the heap. Settings in the environment are left as they are.
    """
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or {*SETTINGS} & {*os.environ}:
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False  # not glibc
    kept: bool = all([mallopt(_MMAP_THRESHOLD, LARGEST_KEPT), mallopt(_TRIM_THRESHOLD, KEPT_FREE)])
    return kept
