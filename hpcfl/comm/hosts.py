"""The hosts of a run: the first rank of each looks at its own, and rank 0 puts it together.

Most ranks only say where they run: a launch starts many on few cores, and what looks at a host
takes imports and programs. On rank 0's host, which is often the only one, nobody else looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.system import launch, machine

if TYPE_CHECKING:
    from hpcfl.comm.placement import Placement
    from hpcfl.comm.transport import Transport
    from hpcfl.comm.world import World

_NAME_BYTES = 64
# Of a rank that looks at no host.
NONE = -1


@dataclass(frozen=True)
class HostMemory:
    """A host, the devices on it, and the memory that it has for them, if that is known."""

    name: str
    devices: int
    available_bytes: int | None


class Hosts:
    """The hosts of all ranks; every rank makes one, at the same time, before what is measured.

    In a netlab all ranks are on one host, whatever their hosts are called.
    """

    def __init__(self, world: World) -> None:
        told = np.zeros(2 + machine.MASK_BYTES, np.int64)
        rows = world.exchange(_row(), _orders, told)
        self._places = [] if rows is None else [_place(row) for row in rows]
        # How many hosts there are, and which of them this rank looks at, if any.
        self._count, self._mine = int(told[0]), int(told[1])
        self._threads = machine.from_mask(told[2:].astype(np.uint8))
        self._found: list[dict[str, Any] | None] = [None] * self._count
        if self._count > 1:
            looks = world.rank != 0 and self._mine != NONE
            self._keep(world.collect(_look(self._mine, self._threads) if looks else b""))

    def _keep(self, messages: list[bytes] | None) -> None:
        import json

        for message in filter(None, messages or []):
            found = json.loads(message)
            self._found[found.pop("host")] = found

    def environment(self, mpi_facts: dict[str, Any], placement: Placement) -> dict[str, Any]:
        """Return what a results file says of the environment, at rank 0."""
        from hpcfl.results import schema
        from hpcfl.system import disturbances, environment

        facts = environment.capture_local(self._threads)
        others = self._found[1:]
        by_host = [facts, *(None if other is None else other["facts"] for other in others)]
        captured = environment.capture(mpi_facts, self._places, by_host)
        captured[schema.PLACEMENT] = [
            {
                "host": host,
                "cores": machine.listed(threads),
                "devices": placement.local(rank) if rank < placement.ranks else [],
                **_helpers_on(placement, rank),
            }
            for rank, (host, threads) in enumerate(self._places)
        ]
        before = [other and other["counters"] for other in others]
        return captured | disturbances.before([disturbances.counters(), *before])

    def memory(self, placement: Placement) -> list[HostMemory]:
        """Return every host's memory, at rank 0."""
        devices = dict.fromkeys((host for host, _ in self._places), 0)
        for rank, (host, _) in enumerate(self._places[: placement.ranks]):
            devices[host] += len(placement.local(rank))
        free = machine.memory_available()
        if len(self._found) < len(devices):  # a netlab: its hosts are this one
            return [HostMemory(next(iter(devices)), sum(devices.values()), free)]
        others = [
            None if other is None else other["facts"]["memory_available_bytes"]
            for other in self._found[1:]
        ]
        return [
            HostMemory(host, count, known)
            for (host, count), known in zip(devices.items(), [free, *others], strict=True)
        ]

    def unknown(self) -> dict[str, NDArray[np.float64]]:
        """Return what stands for the counters after a run until they are known."""
        from hpcfl.system import disturbances

        return disturbances.after([None] * self._count)

    def counters(self, transport: Transport) -> dict[str, NDArray[np.float64]]:
        """Return the counters of all hosts after a run at rank 0, nothing elsewhere.

        Every rank of the transport calls this. Of a host whose first rank died, or is none of
        them, nothing is known.
        """
        if self._mine == NONE and self._count == 1:
            return {}
        from hpcfl.system import disturbances

        rows = np.zeros((self._count, 1 + len(disturbances.COUNTERS)))
        if self._mine != NONE:
            rows[self._mine] = 1, *disturbances.counters().values()
        together = rows if self._count == 1 else transport.sum_to_server(rows)
        if together is None:
            return {}
        return disturbances.after(
            [
                dict(zip(disturbances.COUNTERS, row[1:].tolist(), strict=True)) if row[0] else None
                for row in together
            ]
        )


def _orders(rows: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return for each rank the number of hosts, and the one it looks at with its ranks' threads."""
    one = bool(launch.netlab_facts())
    homes: dict[bytes, list[int]] = {}
    for rank, row in enumerate(rows):
        homes.setdefault(b"" if one else row[:_NAME_BYTES].tobytes(), []).append(rank)
    orders = np.zeros((len(rows), 2 + machine.MASK_BYTES), np.int64)
    orders[:, 0], orders[:, 1] = len(homes), NONE
    for number, ranks in enumerate(homes.values()):
        orders[ranks[0], 1] = number
        orders[ranks[0], 2:] = np.bitwise_or.reduce(rows[ranks, _NAME_BYTES:])
    return orders


def _look(host: int, threads: Sequence[int]) -> bytes:
    import json

    from hpcfl.system import disturbances, environment

    facts = environment.capture_local(threads)
    found = {"host": host, "facts": facts, "counters": disturbances.counters()}
    return json.dumps(found).encode()


def _row() -> NDArray[np.uint8]:
    """Return where this rank runs, as `_place` reads it."""
    import platform

    name = platform.node().encode()[:_NAME_BYTES]
    return np.concatenate(
        [
            np.frombuffer(name.ljust(_NAME_BYTES, b"\0"), np.uint8),
            machine.to_mask(machine.affinity()),
        ]
    )


def _place(row: NDArray[np.uint8]) -> tuple[str, tuple[int, ...]]:
    name = row[:_NAME_BYTES].tobytes().rstrip(b"\0").decode(errors="replace")
    return name, machine.from_mask(row[_NAME_BYTES:])


def _helpers_on(placement: Placement, rank: int) -> dict[str, list[int]]:
    """Return the numbers of the helpers on a rank, for protocols that have any."""
    if not placement.helpers:
        return {}
    first = placement.devices
    return {"helpers": [id - first for id in placement.parties_on(rank) if id >= first]}
