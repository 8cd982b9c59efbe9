"""The hosts of a run: the first rank on each host inspects it, and rank 0 collects the results.

Most ranks only report where they run, because an inspection imports modules and runs programs, and
a launch may start many ranks on few cores. Only rank 0 inspects its own host.
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
    """The hosts of all ranks; every rank makes one at the same time, before any measurement.

    In a netlab all ranks are on one host, although their host names differ.
    """

    def __init__(self, world: World) -> None:
        names = world.collect(platform.node().encode()) or ()
        masks = world.collect(np.array(machine.affinity(), np.int64).tobytes()) or ()
        # At rank 0: the host and the hardware threads of every surviving rank.
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
        """Return, at rank 0, the environment as results files record it."""
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
        """Return the placeholder for the counters after a run."""
        from hpcfl.system import disturbances

        return disturbances.recorded(disturbances.AFTER, [None] * self.count)

    def counters(self, transport: Transport) -> dict[str, NDArray[np.float64]]:
        """Return the counters of all hosts after a run at rank 0, an empty dict elsewhere.

        Every rank of the transport calls this. The counters of a host are unknown if its first rank
        died or is not in the transport.
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
    """Return the devices on a rank, and the helpers if the protocol has any."""
    found = {"devices": placement.local(rank) if rank < placement.ranks else []}
    if placement.helpers:
        first = placement.devices
        found["helpers"] = [id - first for id in placement.parties_on(rank) if id >= first]
    return found
