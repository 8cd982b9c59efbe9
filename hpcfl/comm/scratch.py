"""Memory that is used again, for messages by the hundred megabytes."""

from __future__ import annotations

import sys

import numpy as np

from hpcfl.comm.phases import Payload


class Scratch:
    """Memory for many messages end to end, used again as soon as nobody looks at it.

    Pieces this large go back to the system when they are freed. To get them anew, page by page,
    can take longer than to move the messages.
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
        if self._memory.size < size or self._references() > self._references_alone:
            self._memory = np.empty(size, np.uint8)
        return self._memory[:size]
