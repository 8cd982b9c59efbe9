"""The book in which a rank enters what its devices and its server sent, received and spent."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from hpcfl.comm.transport import Transport
from hpcfl.crypto.threads import cpu_seconds
from hpcfl.results.record import RoundRecord


class Ledger:
    """Entries of one round for the parties of one rank: devices, `local`, helpers and the server.

    The record holds zeros for everybody else, so that the ranks' records add up to the round's.
    Helpers have the ids from the number of devices on.
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
        """Return the book of this rank for a round over a transport."""
        who = transport.placement
        return cls(
            *(phases, who.devices, transport.local_devices, transport.has_server),
            *(transport.local_helpers, who.helpers),
        )

    def index(self, phase: str) -> int:
        """Return the number of a phase among all that the record has."""
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
        """Add the CPU time to the phase of a device or a helper, or of the server for None."""
        start = cpu_seconds()
        yield
        spent = cpu_seconds() - start
        if device is None:
            self.record.cpu_seconds[self._index[phase], self._server] += spent
        else:
            self._enter("cpu_seconds", phase, device, spent)

    @contextmanager
    def work_of_rank(self, phase: str, live: Collection[int]) -> Iterator[None]:
        """Add the CPU time to the phase of the rank's server, else to its `live` devices.

        For what a rank does as a node of the network that they stand for: to each of them alike.
        Where there is none of them, it is a relay of the server's.
        """
        relay = self._server in self._parties or not live
        parties = [self._server] if relay else list(live)
        start = cpu_seconds()
        yield
        spent = cpu_seconds() - start
        self.record.cpu_seconds[self._index[phase], parties] += spent / len(parties)

    def sent(self, phase: str, device: int, size: int, messages: int = 1) -> None:
        """Enter `messages` messages of `size` bytes together that a device or helper sent."""
        self._enter("bytes_up", phase, device, size)
        self._enter("messages_up", phase, device, messages)

    def received(self, phase: str, device: int, size: int, messages: int = 1) -> None:
        """Enter `messages` messages of `size` bytes together that a device or helper received."""
        self._enter("bytes_down", phase, device, size)
        self._enter("messages_down", phase, device, messages)

    def _enter(self, what: str, phase: str, id: int, value: float) -> None:
        helps = id >= self._devices
        whose = getattr(self.record, f"helper_{what}" if helps else what)
        whose[self._index[phase], id - self._devices if helps else id] += value
