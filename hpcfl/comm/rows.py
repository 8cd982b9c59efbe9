"""Rows on their way from device to device, behind the id of the device that really sent them.

The label belongs to the transport: it is not part of a message, and not entered in the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hpcfl.comm import envelope
from hpcfl.comm.phases import Ids, Rows
from hpcfl.comm.placement import within
from hpcfl.comm.scratch import pages

LABEL_BYTES = 4
# What a rank sends, or has received, of the rows of a step is in pieces of about this size, which
# are put together from so many bytes at a time.
WINDOW_BYTES = 1 << 24
BATCH_BYTES = 1 << 22


@dataclass(frozen=True)
class Received:
    """The sealed rows that one device received, in the order of receipt."""

    senders: Ids  # shape (k,)
    rows: Rows  # shape (k, width)


def windows(devices: int, size: int) -> list[range]:
    """Return the receivers' ids in pieces, whose rows, `size` bytes in all, move one after another.

    At least one id a piece.
    """
    count = min(devices, max(1, -(-size // WINDOW_BYTES)))
    bounds = [devices * k // count for k in range(count + 1)]
    return [range(first, stop) for first, stop in pairwise(bounds)]


def label(senders: Iterable[int], rows: Iterable[Rows], width: int, devices: int) -> list[Rows]:
    """Return all rows that can be delivered, each behind its sender's id, in batches.

    Rows that are not `width` bytes long, or are addressed to nobody or to their sender, are left
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
    """Return those of a sender's rows that can be delivered."""
    if block.ndim != 2 or block.shape[1] != width:
        return np.empty((0, width), np.uint8)
    receivers = _addressees(block)
    deliverable = (receivers < devices) & (receivers != sender)
    return block if deliverable.all() else block[deliverable]


def by_window(batches: list[Rows], windows: Sequence[range], homes: Ids) -> list[Rows]:
    """Return labelled rows window by window, in the order of the receivers' ranks and ids.

    `homes` has each device's rank, shape (N,). The list is emptied on the way: rows are there once.
    """
    stops = [window.stop for window in windows]
    number = np.searchsorted(stops, np.arange(homes.size), side="right")  # of each id's window
    counts = np.zeros(len(windows), np.int64)
    for batch in batches:
        counts += np.bincount(number[receivers_of(batch)], minlength=len(windows))
    ordered = [pages(count, batches[0].shape[1]) for count in counts.tolist()]
    filled = [0] * len(windows)
    # One behind the other at first, though not in their places yet: a window takes memory only as
    # far as it is filled, while batches are given back.
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
    """Write some of the rows, in some order, to memory for them."""
    # With a mode for numbers that are out of range, there being none, numpy needs no copy between.
    np.take(rows, order, axis=0, out=found, mode="clip")


def _addressees(block: Rows) -> Ids:
    return envelope.read_headers(block)["receiver"].astype(np.int64)


def receivers_of(labelled: Rows) -> Ids:
    """Return to whom labelled rows are addressed: ndarray of int64, shape (k,)."""
    return _addressees(labelled[:, LABEL_BYTES:])


def senders_of(labelled: Rows) -> Ids:
    """Return who sent labelled rows: ndarray of int64, shape (k,)."""
    return np.ascontiguousarray(labelled[:, :LABEL_BYTES]).view("<u4").reshape(-1).astype(np.int64)


def delivered(
    ids: Sequence[int], windows: Sequence[range], labelled: list[Rows]
) -> Iterator[tuple[int, Received]]:
    """Yield what each of some devices received, by id, in the order of receipt.

    `labelled` are the rows of each window, in any order. The list is emptied on the way.
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
