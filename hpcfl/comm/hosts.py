"""The hosts of a run: the first rank of each looks at its own, and rank 0 puts it together.

Most ranks only say where they run: a launch starts many on few cores, and what looks at a host
takes imports and programs. On rank 0's host, which is often the only one, nobody else looks.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.system import launch, machine

if TYPE_CHECKING:
    from hpcfl.comm.placement import Placement
    from hpcfl.comm.transport import Transport
    from hpcfl.comm.world import World


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
        ranks: dict[str, list[int]] = {}
        for rank, (name, _) in enumerate(self._places):
            ranks.setdefault("" if launch.netlab_facts() else name, []).append(rank)
        self._firsts = [on_host[0] for on_host in ranks.values()]
        # The first rank of every host is told which threads the ranks there may use.
        orders = [b""] * world.size
        for on_host in ranks.values():
            threads = sorted({thread for rank in on_host for thread in self._places[rank][1]})
            orders[world.left[on_host[0]]] = np.array([0, *threads], np.int64).tobytes()
        order = world.give(orders)
        self._looks = bool(order)
        self._threads = np.frombuffer(order, np.int64)[1:].tolist()
        found = world.collect(self._look() if self._looks and world.rank else b"") or ()
        self._found = dict(enumerate(found))

    @property
    def count(self) -> int:
        """Number of hosts, at rank 0."""
        return len(self._firsts)

    def _look(self) -> bytes:
        import json  # costs milliseconds, on each of many ranks

        from hpcfl.system import disturbances, environment

        facts = environment.capture_local(self._threads)
        return json.dumps([facts, disturbances.counters()]).encode()

    def environment(self, mpi_facts: dict[str, Any], placement: Placement) -> dict[str, Any]:
        """Return what a results file says of the environment, at rank 0."""
        import json

        from hpcfl.results import schema
        from hpcfl.system import disturbances, environment

        here = environment.capture_local(self._threads), disturbances.counters()
        others = (json.loads(self._found[rank]) for rank in self._firsts[1:])
        by_host, before = zip(here, *others, strict=True)
        captured = environment.capture(mpi_facts, self._places, by_host)
        captured[schema.PLACEMENT] = [
            {"host": host, "cores": machine.listed(threads), **_parties_on(placement, rank)}
            for rank, (host, threads) in enumerate(self._places)
        ]
        return captured | disturbances.recorded(disturbances.BEFORE, before)

    def unknown(self) -> dict[str, NDArray[np.float64]]:
        """Return what stands for the counters after a run until they are known."""
        from hpcfl.system import disturbances

        return disturbances.recorded(disturbances.AFTER, [None] * self.count)

    def counters(self, transport: Transport) -> dict[str, NDArray[np.float64]]:
        """Return the counters of all hosts after a run at rank 0, nothing elsewhere.

        Every rank of the transport calls this. Of a host whose first rank died, or is none of
        them, nothing is known.
        """
        from hpcfl.system import disturbances

        mine = np.zeros(1 + len(disturbances.COUNTERS))
        if self._looks:
            mine[:] = 1, *disturbances.counters().values()
        rows = transport.collect(mine)
        if rows is None:
            return {}
        known = [rank for rank in self._firsts if rank < len(rows) and rows[rank, 0]]
        counted = {
            rank: dict(zip(disturbances.COUNTERS, rows[rank, 1:].tolist(), strict=True))
            for rank in known
        }
        return disturbances.recorded(disturbances.AFTER, [counted.get(r) for r in self._firsts])


def _parties_on(placement: Placement, rank: int) -> dict[str, list[int]]:
    """Return the devices on a rank, and the helpers of protocols that have any."""
    found = {"devices": placement.local(rank) if rank < placement.ranks else []}
    if placement.helpers:
        first = placement.devices
        found["helpers"] = [id - first for id in placement.parties_on(rank) if id >= first]
    return found
