"""Ranks that kill themselves on purpose: `hpcfl bench --kill rank=7,phase=masked_input,round=3`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hpcfl.comm.world import World
from hpcfl.errors import UsageError, no_such
from hpcfl.rounds.driver import BEFORE, MOMENTS
from hpcfl.rounds.observer import RoundObserver

EXAMPLE = "rank=7,phase=masked_input,round=3"
HOW = "start ranks that may fail: mpirun --with-ft ulfm -n 101 hpcfl bench ..."


@dataclass(frozen=True)
class Kill:
    """Who dies when."""

    ranks: frozenset[int]  # as they were started; 0 is the server's
    phase: str
    round: int  # counted from 0, warm-up included
    moment: str = BEFORE  # one of `MOMENTS`

    @classmethod
    def parse(cls, text: str) -> Kill:
        """Return what the value of an option says, or refuse it with a UsageError."""
        given = dict(part.partition("=")[::2] for part in text.split(","))
        if not {"rank", "phase", "round"} <= given.keys() <= {"rank", "phase", "round", "moment"}:
            raise UsageError(f"--kill {text} cannot be read: write it like {EXAMPLE}")
        moment = given.get("moment", BEFORE)
        if moment not in MOMENTS:
            raise UsageError(f"--kill {text}: the moment is one of {', '.join(MOMENTS)}")
        try:
            ranks = frozenset(int(rank) for rank in given["rank"].split("+"))
            return cls(ranks, given["phase"], int(given["round"]), moment)
        except ValueError:
            raise UsageError(f"--kill {text} cannot be read: write it like {EXAMPLE}") from None


def plan(texts: Iterable[str], world: World, experiments: Sequence[Any]) -> list[Kill]:
    """Return the kills of the values of ``--kill``.

    A UsageError, the same on every rank, says that one cannot be read, or that one of the
    experiments has no such phase, round or rank.
    """
    kills = [Kill.parse(text) for text in texts]
    if not kills:
        return []
    if world.size == 1:
        raise UsageError(f"--kill ends ranks, and this is a process without any: {HOW}")
    if not world.tolerant:
        raise UsageError(f"--kill is refused: MPI would end the whole job; {HOW}")
    for kill in kills:
        for experiment in experiments:
            _check(kill, experiment, world.size)
    return kills


def _check(kill: Kill, experiment: Any, ranks: int) -> None:
    phases = experiment.protocol.phases()
    beside = experiment.options.server_ranks + experiment.protocol.helpers
    last_rank = min(ranks, experiment.devices + beside) - 1
    if kill.phase not in phases:
        raise no_such(
            f"phase of {experiment.protocol.name} called", kill.phase, phases, place="--kill: "
        )
    if max(kill.ranks) > last_rank:
        raise UsageError(
            f"--kill: rank {max(kill.ranks)} holds no device; the ranks are 0, the server's, to "
            f"{last_rank}"
        )
    if kill.round >= experiment.options.planned_rounds:
        raise UsageError(
            f"--kill: there is no round {kill.round}; the rounds are 0 to "
            f"{experiment.options.planned_rounds - 1}, warm-up included"
        )


class Killer(RoundObserver):
    """Ends this rank, numbered as it was started, when its time has come."""

    def __init__(self, kills: Sequence[Kill], rank: int) -> None:
        self._times = {
            (kill.round, kill.moment, kill.phase) for kill in kills if rank in kill.ranks
        }

    def at(self, index: int, moment: str, phase: str) -> None:
        """Kill this process, uncatchably, if it is to die now."""
        if (index, moment, phase) in self._times:
            os.kill(os.getpid(), signal.SIGKILL)
