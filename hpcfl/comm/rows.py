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


def label(senders: Sequence[int], rows: Sequence[Rows], width: int, devices: int) -> Rows:
    """Return all rows that can be delivered, in the order of the receivers.

    Each is behind its sender's id: ndarray of uint8, shape (k, LABEL_BYTES + width). Rows that are
    not `width` bytes long, or are addressed to nobody or to their sender, are left out.
    """
    parts = [np.empty((0, LABEL_BYTES + width), np.uint8)]
    for sender, block in zip(senders, rows, strict=True):
        if block.ndim != 2 or block.shape[1] != width:
            continue
        receivers = envelope.read_headers(block)["receiver"]
        block = block[(receivers < devices) & (receivers != sender)]
        labelled = np.empty((len(block), LABEL_BYTES + width), np.uint8)
        labelled[:, :LABEL_BYTES] = np.array([sender], "<u4").view(np.uint8)
        labelled[:, LABEL_BYTES:] = block
        parts.append(labelled)
    together = np.concatenate(parts)
    return together[np.argsort(receivers_of(together), kind="stable")]


def receivers_of(labelled: Rows) -> Ids:
    """Return to whom labelled rows are addressed: ndarray of int64, shape (k,)."""
    return envelope.read_headers(labelled[:, LABEL_BYTES:])["receiver"].astype(np.int64)


def senders_of(labelled: Rows) -> Ids:
    """Return who sent labelled rows: ndarray of int64, shape (k,)."""
    return np.ascontiguousarray(labelled[:, :LABEL_BYTES]).view("<u4").reshape(-1).astype(np.int64)


def by_receiver(labelled: Rows) -> dict[int, Received]:
    """Return what each device received, in the order of receipt."""
    if not len(labelled):
        return {}
    receivers = receivers_of(labelled)
    order = np.argsort(receivers, kind="stable")
    ids, starts = np.unique(receivers[order], return_index=True)
    # Of no rows, split would make one part too.
    parts = np.split(labelled[order], starts[1:]) if ids.size else []
    return {
        id: Received(senders_of(part), part[:, LABEL_BYTES:])
        for id, part in zip(ids.tolist(), parts, strict=True)
    }
