"""The transport within one process: server and all devices together, no MPI."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.comm import envelope
from hpcfl.comm.phases import Ids, Payload, Rows
from hpcfl.comm.placement import Placement
from hpcfl.comm.transport import Produce, Transport
from hpcfl.crypto.groups import Elements, Group
from hpcfl.errors import HpcflError


class Loopback(Transport):
    """Hands messages over in memory; the bytes are those that any transport would move."""

    name = "loopback"

    def __init__(self, devices: int) -> None:
        super().__init__(Placement.even(devices, ranks=1), rank=0)

    def select(self, ids: Sequence[int]) -> Loopback:
        return Loopback(len(ids))

    def tell(self, value: int, error: HpcflError | None = None) -> int:
        if error is not None:
            raise error
        return value

    def broadcast(self, message: Payload | None, error: HpcflError | None = None) -> Payload:
        self.agree(error)
        assert message is not None
        return message

    def scatter(self, receivers: Sequence[int], produce: Produce) -> Iterator[tuple[int, Payload]]:
        listening = set(receivers)
        for id in self.local_devices:
            message = produce(id)
            if id in listening:
                yield id, message

    def gather(
        self, senders: Sequence[int], produce: Produce, largest: int
    ) -> Iterator[tuple[int, Payload]]:
        for sender in senders:
            yield sender, produce(sender)

    def reduce(
        self, senders: Sequence[int], produce: Produce, group: Group, dim: int
    ) -> tuple[list[int], Elements]:
        total = np.zeros(dim, np.uint32)
        sent = []
        for sender in senders:
            payload = produce(sender)
            if payload.size:
                group.add_into(total, payload.view("<u4"))
                sent.append(sender)
        return sent, total

    def route(self, senders: Sequence[int], rows: list[Rows]) -> tuple[dict[int, Rows], Ids]:
        received = rows_by_receiver(np.concatenate(rows)) if rows else {}
        return received, np.array(senders, np.int64)

    def sum_to_server(self, values: NDArray[Any]) -> NDArray[Any]:
        return values

    def max_to_server(self, value: float) -> float:
        return value

    def barrier(self) -> None:
        pass

    def wait_for_all(self) -> None:
        pass


def rows_by_receiver(rows: Rows) -> dict[int, Rows]:
    """Return the sealed rows of each receiver, in the order in which they came."""
    receivers = envelope.read_headers(rows)["receiver"].astype(np.int64)
    order = np.argsort(receivers, kind="stable")
    ids, starts = np.unique(receivers[order], return_index=True)
    parts = np.split(rows[order], starts[1:])
    return dict(zip(ids.tolist(), parts, strict=True))
