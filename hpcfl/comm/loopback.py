"""The transport within one process: server and all devices together, no MPI."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.comm import rows as rows_of
from hpcfl.comm.phases import Payload, Rows
from hpcfl.comm.placement import Placement
from hpcfl.comm.rows import Received
from hpcfl.comm.transport import AddInto, Produce, Transport
from hpcfl.crypto.groups import Elements
from hpcfl.errors import HpcflError


class Loopback(Transport):
    """Hands messages over in memory; they have the same bytes as on any transport."""

    name = "loopback"

    def __init__(self, devices: int, helpers: int = 0) -> None:
        super().__init__(Placement.even(devices, ranks=1, helpers=helpers), rank=0)

    def select(self, ids: Sequence[int]) -> Loopback:
        return Loopback(len(ids), self.placement.helpers)

    def tell(self, value: int, error: HpcflError | None = None) -> int:
        if error is not None:
            raise error
        return value

    def broadcast(self, message: Payload | None, error: HpcflError | None = None) -> Payload:
        self.raise_everywhere(error)
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
        self, senders: Sequence[int], produce: Produce, add_into: AddInto, zeros: Elements
    ) -> tuple[list[int], Elements]:
        total, sent = zeros, []
        for sender in senders:
            payload = produce(sender)
            if payload.size:
                add_into(total, payload.view(total.dtype))
                sent.append(sender)
        return sent, total

    def route(
        self, senders: Sequence[int], rows: Iterable[Rows], width: int
    ) -> tuple[Iterator[tuple[int, Received]], NDArray[np.bool_]]:
        devices = self.placement.parties
        batches = rows_of.label(senders, rows, width, devices)
        took_part = np.zeros(devices, np.bool_)
        for batch in batches:
            took_part[rows_of.senders_of(batch)] = True
        windows = rows_of.windows(devices, sum(batch.size for batch in batches))
        labelled = rows_of.by_window(batches, windows, self.placement.homes)
        return rows_of.delivered(self.local_devices, windows, labelled), took_part

    def sum_to_server(self, values: NDArray[Any]) -> NDArray[Any]:
        return values

    def collect(self, values: NDArray[Any]) -> NDArray[Any]:
        return values[None]

    def barrier(self) -> None:
        pass

    def wait_for_all(self) -> None:
        pass
