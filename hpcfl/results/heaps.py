"""Looks at the texts of an HDF5 file before HDF5 does, which on some damage never ends.

Texts of variable length lie in global heaps ("HDF5 File Format Specification", section III.E).
HDF5 goes from one object of a heap to the next by their sizes, and a free space of size 0 keeps it
at the same place for ever (HDF5 2.0.0).
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from hpcfl.system import files

# Signature, version and reserved bytes. As other data they would be by chance once in 2^64 places.
_HEAP = b"GCOL\x01\x00\x00\x00"
_HEADER = struct.Struct("<8xQ")  # and the size of the heap, itself included
_OBJECT = struct.Struct("<H6xQ")  # index, 0 for the free space at the end, and size
_SMALLEST = 4096  # bytes of a heap
_ALIGNED = 8


def check(path: Path) -> None:
    """Go through all global heaps of a file.

    Raises OSError if it cannot be read, and ValueError if a heap's objects do not end where it ends
    or the file is empty.
    """
    with (
        files.opened(path) as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        at = content.find(_HEAP)
        while at >= 0:
            _check_heap(content, at)
            at = content.find(_HEAP, at + len(_HEAP))


def _check_heap(content: mmap.mmap, at: int) -> None:
    if len(content) - at < _HEADER.size:
        raise ValueError(f"the heap at byte {at} is cut off")
    (size,) = _HEADER.unpack_from(content, at)
    if not _SMALLEST <= size <= len(content) - at:
        raise ValueError(f"the heap at byte {at} claims {size} bytes")
    place, end = at + _HEADER.size, at + size
    # What is too small for another object is left free without a word.
    while end - place >= _OBJECT.size:
        index, length = _OBJECT.unpack_from(content, place)
        if index == 0:
            if length != end - place:
                raise ValueError(f"the heap at byte {at} has a free space of {length} bytes")
            return
        if length > end - place - _OBJECT.size:
            raise ValueError(f"the heap at byte {at} has an object of {length} bytes")
        place += _OBJECT.size + -(-length // _ALIGNED) * _ALIGNED
