"""The ledger of a rank: bytes, messages and time of its devices, its helpers and its server."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from hpcfl.comm.transport import Transport
from hpcfl.crypto.threads import cpu_seconds
from hpcfl.results.record import RoundRecord


class Ledger:
    """Entries of one round for the parties of one rank: `local` devices, helpers and the server.

    The record holds zeros for all other parties, so that the ranks' records add up to the round's.
    Helpers have the ids from `devices` on.
    """

    def __init__(
        self,
        phases: list[str],
        devices: int,
        local: Sequence[int],
        has_server: bool,
        helpers: Sequence[int] = (),  # of this rank
        all_helpers: int = 0,
    ) -> None:
        self.record = RoundRecord.empty(len(phases), devices, all_helpers)
        self._index = {name: index for index, name in enumerate(phases)}
        self._parties = [*local, *([devices] if has_server else [])]
        self._server = self._devices = devices
        self._helpers = [id - devices for id in helpers]

    @classmethod
    def of(cls, phases: list[str], transport: Transport) -> Ledger:
        """Return the ledger of this rank for a round over a transport."""
        who = transport.placement
        return cls(
            *(phases, who.devices, transport.local_devices, transport.has_server),
            *(transport.local_helpers, who.helpers),
        )

    def index(self, phase: str) -> int:
        """Return the index of a phase in the record."""
        return self._index[phase]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the elapsed time to the phase's wall time of every party on this rank."""
        start = time.perf_counter()
        yield
        elapsed = time.perf_counter() - start
        self.record.wall_seconds[self._index[name], self._parties] += elapsed
        self.record.helper_wall_seconds[self._index[name], self._helpers] += elapsed

    @contextmanager
    def work(self, phase: str, device: int | None) -> Iterator[None]:
        """Add the CPU time to the phase for a device or a helper, or for the server if None."""
        start = cpu_seconds()
        yield
        spent = cpu_seconds() - start
        if device is None:
            self.record.cpu_seconds[self._index[phase], self._server] += spent
        else:
            self._enter("cpu_seconds", phase, device, spent)

    @contextmanager
    def work_of_rank(self, phase: str, live: Collection[int]) -> Iterator[None]:
        """Add the CPU time to the phase for the rank's server, or for its `live` devices.

        It is for work that a rank does as a network node: the devices share the time equally. The
        time counts for the server if the rank has no live device, because it is then a mere relay.
        """
        relay = self._server in self._parties or not live
        parties = [self._server] if relay else list(live)
        start = cpu_seconds()
        yield
        spent = cpu_seconds() - start
        self.record.cpu_seconds[self._index[phase], parties] += spent / len(parties)

    def sent(self, phase: str, device: int, size: int, messages: int = 1) -> None:
        """Enter messages that a device or helper sent, of `size` bytes in total."""
        self._enter("bytes_up", phase, device, size)
        self._enter("messages_up", phase, device, messages)

    def received(self, phase: str, device: int, size: int, messages: int = 1) -> None:
        """Enter messages that a device or helper received, of `size` bytes in total."""
        self._enter("bytes_down", phase, device, size)
        self._enter("messages_down", phase, device, messages)

    def _enter(self, what: str, phase: str, id: int, value: float) -> None:
        helps = id >= self._devices
        whose = getattr(self.record, f"helper_{what}" if helps else what)
        whose[self._index[phase], id - self._devices if helps else id] += value
