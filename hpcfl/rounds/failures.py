"""Devices whose ranks died, for a round's record and its validation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.comm.transport import Transport
from hpcfl.results.record import NOT_LOST, RoundRecord
from hpcfl.rounds.driver import AFTER
from hpcfl.rounds.observer import RoundObserver

if TYPE_CHECKING:
    from hpcfl.results.reader import Run


class FailureWatch(RoundObserver):
    """Notes the phase of a round in which each device fails."""

    def __init__(self, transport: Transport, phases: Sequence[str]) -> None:
        self._transport = transport
        self._phases = list(phases)
        self.absent = transport.failed  # before the round began
        # The phase's index for each device that failed since; the number of phases if outside all.
        self.phase_of: dict[int, int] = {}
        self._seconds: list[tuple[float, float]] = []
        self._before: dict[int, int] = {}
        self._note(self._before, len(self._phases))

    def at(self, index: int, moment: str, phase: str) -> None:
        if moment == AFTER:
            self._note(self.phase_of, self._phases.index(phase))

    def _note(self, book: dict[int, int], phase: int) -> None:
        for failure in self._transport.take_failures():
            book |= dict.fromkeys(failure.devices, phase)
            self._seconds.append((failure.detect_seconds, failure.recover_seconds))

    def enter(self, record: RoundRecord) -> None:
        """Enter the devices that failed since the last round's record into this one."""
        self._note(self.phase_of, len(self._phases))
        for device, phase in (self._before | self.phase_of).items():
            record.lost_phase[device] = phase
        if self._seconds:
            record.detect_seconds = sum(detect for detect, _ in self._seconds)
            record.recover_seconds = sum(recover for _, recover in self._seconds)


def as_planned(
    survived: Sequence[int], planned: Collection[int], lost: Mapping[int, int], upload: int
) -> bool:
    """Return whether the devices in the sum, `survived`, are the expected ones, in order.

    The `planned` devices are expected, except those that failed before the upload. A device that
    failed during the upload may be in the sum or not; only the server knows. `lost` maps a device
    to the index of the phase in which it failed; `upload` is the index of the upload.
    """
    certain = {id for id in planned if lost.get(id, upload + 1) > upload}
    possible = {id for id in planned if lost.get(id, upload + 1) >= upload}
    found = list(survived)
    return found == sorted({*found}) and certain <= {*found} <= possible


def tell(run: Run) -> str:
    """Return a line for each round with failed devices that names them; "" if there are none."""
    lines = []
    places = [*(f"in {phase}" for phase in run.phases), "between phases"]
    for index in np.flatnonzero((run.lost_phase != NOT_LOST).any(axis=1)).tolist():
        row = run.lost_phase[index]
        lost = [
            f"{', '.join(map(str, np.flatnonzero(row == phase).tolist()))} {places[phase]}"
            for phase in sorted(set(row[row != NOT_LOST].tolist()))
        ]
        lines.append(
            f"Round {index} lost devices {' and '.join(lost)}; detected after "
            f"{run.detect_seconds[index]:.3f} s, resumed "
            f"{run.recover_seconds[index]:.3f} s later"
        )
    return "\n".join(lines)
