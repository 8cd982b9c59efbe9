"""Rows in transit between devices, each behind a label: the id of the device that really sent it.

The label belongs to the transport. It is not part of a message, and not entered in the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from hpcfl.comm import envelope
from hpcfl.comm.phases import Ids, Rows
from hpcfl.comm.placement import within
from hpcfl.comm.scratch import pages
from hpcfl.values import dataclass

LABEL_BYTES = 4
# The approximate size of the pieces in which a rank sends or holds the rows of a step, and of the
# batches from which the pieces are put together.
WINDOW_BYTES = 1 << 24
BATCH_BYTES = 1 << 22


@dataclass(frozen=True)
class Received:
    """The sealed rows that one device received, in the order of receipt."""

    senders: Ids  # shape (k,)
    rows: Rows  # shape (k, width)


def windows(devices: int, size: int) -> list[range]:
    """Return windows of receivers' ids; the rows of one window move after those of another.

    `size` is the number of bytes of all rows. A window has at least one id.
    """
    count = min(devices, max(1, -(-size // WINDOW_BYTES)))
    bounds = [devices * k // count for k in range(count + 1)]
    return [range(first, stop) for first, stop in pairwise(bounds)]


def label(senders: Iterable[int], rows: Iterable[Rows], width: int, devices: int) -> list[Rows]:
    """Return all deliverable rows in batches, each row behind its sender's id.

    Rows that are not `width` bytes long, or are addressed to no device or to their sender, are left
    out. A batch is an ndarray of uint8, shape (k, LABEL_BYTES + width).
    """
    size = LABEL_BYTES + width
    rows_of_batch = max(1, BATCH_BYTES // size)
    batches, batch, filled = [], pages(rows_of_batch, size), 0
    for sender, block in zip(senders, rows, strict=True):
        found = _deliverable(sender, block, width, devices)
        if filled + len(found) > len(batch):
            batches.append(batch[:filled])
            batch, filled = pages(max(rows_of_batch, len(found)), size), 0
        labelled = batch[filled : filled + len(found)]
        labelled[:, :LABEL_BYTES] = np.array([sender], "<u4").view(np.uint8)
        labelled[:, LABEL_BYTES:] = found
        filled += len(found)
    return [*batches, batch[:filled]]


def _deliverable(sender: int, block: Rows, width: int, devices: int) -> Rows:
    """Return the deliverable ones of a sender's rows."""
    if block.ndim != 2 or block.shape[1] != width:
        return np.empty((0, width), np.uint8)
    receivers = _addressees(block)
    deliverable = (receivers < devices) & (receivers != sender)
    return block if deliverable.all() else block[deliverable]


def by_window(batches: list[Rows], windows: Sequence[range], homes: Ids) -> list[Rows]:
    """Return labelled rows window by window, in the order of the receivers' ranks and ids.

    `homes` has each device's rank, shape (N,). The list `batches` is emptied to save memory.
    """
    stops = [window.stop for window in windows]
    number = np.searchsorted(stops, np.arange(homes.size), side="right")  # of each id's window
    counts = np.zeros(len(windows), np.int64)
    for batch in batches:
        counts += np.bincount(number[receivers_of(batch)], minlength=len(windows))
    ordered = [pages(count, batches[0].shape[1]) for count in counts.tolist()]
    filled = [0] * len(windows)
    # First copy the rows of each window, not sorted yet. A window takes memory only as far as it is
    # filled, while the batches are freed.
    while batches:
        batch = batches.pop(0)
        there = number[receivers_of(batch)]
        order = np.argsort(there, kind="stable")
        bounds = np.searchsorted(there, range(len(windows) + 1), sorter=order).tolist()
        for k, (start, stop) in enumerate(pairwise(bounds)):
            end = filled[k] + stop - start
            _take(batch, order[start:stop], ordered[k][filled[k] : end])
            filled[k] = end
    for k, window in enumerate(ordered):
        receivers = receivers_of(window)
        ordered[k] = pages(*window.shape)
        _take(window, np.lexsort((receivers, homes[receivers])), ordered[k])
    return ordered


def _take(rows: Rows, order: Ids, found: Rows) -> None:
    """Write the rows with the indices `order` to `found`."""
    # No index is out of range; with mode="clip" numpy makes no intermediate copy.
    np.take(rows, order, axis=0, out=found, mode="clip")


def _addressees(block: Rows) -> Ids:
    return envelope.read_headers(block)["receiver"].astype(np.int64)


def receivers_of(labelled: Rows) -> Ids:
    """Return the receivers of labelled rows: ndarray of int64, shape (k,)."""
    return _addressees(labelled[:, LABEL_BYTES:])


def senders_of(labelled: Rows) -> Ids:
    """Return the senders of labelled rows: ndarray of int64, shape (k,)."""
    return np.ascontiguousarray(labelled[:, :LABEL_BYTES]).view("<u4").reshape(-1).astype(np.int64)


def delivered(
    ids: Sequence[int], windows: Sequence[range], labelled: list[Rows]
) -> Iterator[tuple[int, Received]]:
    """Yield each device's id with the rows that it received, in the order of receipt.

    `labelled` are the rows of each window, in any order. The list is emptied to save memory.
    """
    for window in windows:
        rows = labelled.pop(0)
        receivers = receivers_of(rows)
        if (np.diff(receivers) < 0).any():
            order = np.argsort(receivers, kind="stable")
            receivers, rows = receivers[order], rows[order]
        for id in within(ids, window):
            mine = rows[slice(*np.searchsorted(receivers, [id, id + 1]).tolist())]
            yield id, Received(senders_of(mine), mine[:, LABEL_BYTES:])
