"""The hosts of a run: the first rank of each looks at its own, and rank 0 puts it together.

Most ranks only say where they run: a launch starts many on few cores, and what looks at a host
takes imports and programs. On rank 0's host, which is often the only one, nobody else looks.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.system import launch, machine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcfl.comm.placement import Placement
    from hpcfl.comm.transport import Transport
    from hpcfl.comm.world import World


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
        names = world.collect(platform.node().encode()) or ()
        masks = world.collect(np.array(machine.affinity(), np.int64).tobytes()) or ()
        # Of every rank that is left, at rank 0: its host and its hardware threads.
        self._places = [
            (name.decode(errors="replace"), tuple(np.frombuffer(mask, np.int64).tolist()))
            for name, mask in zip(names, masks, strict=True)
        ]
        orders = [b""] * world.size
        for rank, order in zip(world.left, self._orders(), strict=False):
            orders[rank] = np.array(order, np.int64).tobytes()
        mine = np.frombuffer(world.give(orders), np.int64).tolist()
        # How many hosts there are, which of them this rank looks at, and its ranks' threads.
        self._count, self._mine, *self._threads = mine
        self._others: dict[int, dict[str, Any]] = {}
        if self._count > 1:
            import json  # costs milliseconds, on each of many ranks

            looks = world.rank != 0 and self._mine != NONE
            found = world.collect(self._look() if looks else b"") or ()
            self._others = {one["host"]: one for one in map(json.loads, filter(None, found))}

    def _orders(self) -> Iterator[list[int]]:
        """Yield for each rank what it is to look at."""
        # All hosts of a lab are one.
        names = ["" if launch.netlab_facts() else name for name, _ in self._places]
        hosts = list(dict.fromkeys(names))
        for rank, name in enumerate(names):
            if names.index(name) < rank:
                yield [len(hosts), NONE]
                continue
            on_host = zip(names, self._places, strict=True)
            threads = {thread for other, (_, own) in on_host if other == name for thread in own}
            yield [len(hosts), hosts.index(name), *sorted(threads)]

    def _look(self) -> bytes:
        import json

        from hpcfl.system import disturbances, environment

        facts = environment.capture_local(self._threads)
        found = {"host": self._mine, "facts": facts, "counters": disturbances.counters()}
        return json.dumps(found).encode()

    def environment(self, mpi_facts: dict[str, Any], placement: Placement) -> dict[str, Any]:
        """Return what a results file says of the environment, at rank 0."""
        from hpcfl.results import schema
        from hpcfl.system import disturbances, environment

        others = [self._others.get(host, {}) for host in range(1, self._count)]
        by_host = [environment.capture_local(self._threads), *(one.get("facts") for one in others)]
        captured = environment.capture(mpi_facts, self._places, by_host)
        captured[schema.PLACEMENT] = [
            {"host": host, "cores": machine.listed(threads), **_parties_on(placement, rank)}
            for rank, (host, threads) in enumerate(self._places)
        ]
        before = [disturbances.counters(), *(one.get("counters") for one in others)]
        return captured | disturbances.recorded(disturbances.BEFORE, before)

    def memory(self, placement: Placement) -> list[HostMemory]:
        """Return every host's memory, at rank 0."""
        devices = dict.fromkeys((host for host, _ in self._places), 0)
        for rank, (host, _) in enumerate(self._places[: placement.ranks]):
            devices[host] += len(placement.local(rank))
        free = machine.memory_available()
        if self._count < len(devices):  # a netlab: its hosts are this one
            return [HostMemory(next(iter(devices)), sum(devices.values()), free)]
        facts = [self._others.get(host, {}).get("facts", {}) for host in range(1, self._count)]
        known = [free, *(one.get("memory_available_bytes") for one in facts)]
        return [
            HostMemory(host, count, available)
            for (host, count), available in zip(devices.items(), known, strict=True)
        ]

    def unknown(self) -> dict[str, NDArray[np.float64]]:
        """Return what stands for the counters after a run until they are known."""
        from hpcfl.system import disturbances

        return disturbances.recorded(disturbances.AFTER, [None] * self._count)

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
        counted = [
            dict(zip(disturbances.COUNTERS, row[1:].tolist(), strict=True)) if row[0] else None
            for row in together
        ]
        return disturbances.recorded(disturbances.AFTER, counted)


def _parties_on(placement: Placement, rank: int) -> dict[str, list[int]]:
    """Return the devices on a rank, and the helpers of protocols that have any."""
    found = {"devices": placement.local(rank) if rank < placement.ranks else []}
    if placement.helpers:
        first = placement.devices
        found["helpers"] = [id - first for id in placement.parties_on(rank) if id >= first]
    return found
