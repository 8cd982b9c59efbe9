"""The book in which a rank enters what its devices and its server sent, received and spent."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from hpcfl.crypto.threads import cpu_seconds
from hpcfl.results.record import RoundRecord


class Ledger:
    """Entries of one round for the devices, `local`, and the server of one rank.

    The record holds zeros for everybody else, so that the ranks' records add up to the round's.
    """

    def __init__(
        self, phases: list[str], devices: int, local: Sequence[int], has_server: bool
    ) -> None:
        self.record = RoundRecord.empty(len(phases), devices)
        self._index = {name: index for index, name in enumerate(phases)}
        self._parties = [*local, *([devices] if has_server else [])]
        self._server = devices

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the elapsed time to the phase's wall time of every party on this rank."""
        start = time.perf_counter()
        yield
        elapsed = time.perf_counter() - start
        self.record.wall_seconds[self._index[name], self._parties] += elapsed

    @contextmanager
    def work(self, phase: str, device: int | None) -> Iterator[None]:
        """Add the CPU time to the phase of a device, or of the server for None."""
        party = self._server if device is None else device
        start = cpu_seconds()
        yield
        self.record.cpu_seconds[self._index[phase], party] += cpu_seconds() - start

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
        """Enter `messages` messages of `size` bytes together that `device` sent."""
        self.record.bytes_up[self._index[phase], device] += size
        self.record.messages_up[self._index[phase], device] += messages

    def received(self, phase: str, device: int, size: int, messages: int = 1) -> None:
        """Enter `messages` messages of `size` bytes together that `device` received."""
        self.record.bytes_down[self._index[phase], device] += size
        self.record.messages_down[self._index[phase], device] += messages
