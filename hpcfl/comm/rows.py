"""Rows on their way from device to device, behind the id of the device that really sent them.

The label belongs to the transport, as an address on an envelope belongs to the post: it is not part
of a message, and is not entered in the ledger. A device that lies about itself in its rows is known
by its labels all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcfl.comm import envelope
from hpcfl.comm.phases import Ids, Rows

LABEL_BYTES = 4


@dataclass(frozen=True)
class Received:
    """The sealed rows that one device received, in the order of receipt."""

    senders: Ids  # shape (k,)
    rows: Rows  # shape (k, width)


def label(senders: Sequence[int], rows: list[Rows], width: int, homes: Ids) -> Rows:
    """Return all rows that can be delivered, in the order of the receivers' ranks and ids.

    Each is behind its sender's id: ndarray of uint8, shape (k, LABEL_BYTES + width). Rows that are
    not `width` bytes long, or are addressed to nobody or to their sender, are left out. `homes` has
    each device's rank, shape (N,). The list is emptied, as all rows of a round take much memory.
    """
    for index, sender in enumerate(senders):
        block = rows[index]
        if block.ndim != 2 or block.shape[1] != width:
            rows[index] = np.empty((0, width), np.uint8)
            continue
        receivers = _addressees(block)
        deliverable = (receivers < homes.size) & (receivers != sender)
        if not deliverable.all():
            rows[index] = block[deliverable]
    receivers = np.concatenate([np.empty(0, np.int64), *map(_addressees, rows)])
    places = np.empty_like(receivers)
    places[np.lexsort((receivers, homes[receivers]))] = np.arange(receivers.size)
    together = np.empty((receivers.size, LABEL_BYTES + width), np.uint8)
    start = 0
    for sender in senders:
        block = rows.pop(0)
        there = places[start : start + len(block)]
        together[there, :LABEL_BYTES] = np.array([sender], "<u4").view(np.uint8)
        together[there, LABEL_BYTES:] = block
        start += len(block)
    return together


def _addressees(block: Rows) -> Ids:
    return envelope.read_headers(block)["receiver"].astype(np.int64)


def receivers_of(labelled: Rows) -> Ids:
    """Return to whom labelled rows are addressed: ndarray of int64, shape (k,)."""
    return _addressees(labelled[:, LABEL_BYTES:])


def senders_of(labelled: Rows) -> Ids:
    """Return who sent labelled rows: ndarray of int64, shape (k,)."""
    return np.ascontiguousarray(labelled[:, :LABEL_BYTES]).view("<u4").reshape(-1).astype(np.int64)


def by_receiver(labelled: Rows) -> dict[int, Received]:
    """Return what each device received, in the order of receipt."""
    if not len(labelled):
        return {}
    receivers = receivers_of(labelled)
    if (np.diff(receivers) < 0).any():
        order = np.argsort(receivers, kind="stable")
        receivers, labelled = receivers[order], labelled[order]
    ids, starts = np.unique(receivers, return_index=True)
    parts = np.split(labelled, starts[1:])
    return {
        id: Received(senders_of(part), part[:, LABEL_BYTES:])
        for id, part in zip(ids.tolist(), parts, strict=True)
    }
