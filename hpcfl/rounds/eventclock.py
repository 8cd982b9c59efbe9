"""The event clock: modelled times of a round's exchanges, and who is too late for them.

Every device has a link and a processor of its own. A device that received a message at some time
computes, which takes its measured CPU seconds times its factor, and sends; latency counts once for
every direction. The server goes on from an exchange when a quorum has answered, or everybody who
will, or at the deadline. Then it computes, which takes its measured CPU seconds. Devices that have
not answered by then are late: they leave the real round, and the server never takes their message.

Modelled times are those at which bytes arrive and work ends; they share no name with measured ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.comm.phases import Role
from hpcfl.comm.transport import Transport
from hpcfl.errors import UsageError
from hpcfl.options.definition import part
from hpcfl.options.shared import RunOptions
from hpcfl.populations.population import Population, load
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.record import AWAY, COMPUTE, LINK, RoundRecord
from hpcfl.rounds.ledger import Ledger
from hpcfl.values import dataclass

_MOVED = ("bytes_up", "bytes_down", "messages_up", "messages_down")


@dataclass
class EventClock:
    """The clock of a run; it stands still between rounds. Every rank has one."""

    population: Population
    link: LinkModel  # of helpers
    quorum: float = 1.0  # the fraction of the devices, or of the committee, to wait for
    deadline_seconds: float = math.inf  # of an exchange
    seconds: float = 0.0  # at the server: when the next round begins

    def of_round(
        self,
        transport: Transport,
        ledger: Ledger,
        members: Sequence[int],
        needed: Mapping[Role, int],
    ) -> RoundClock:
        """Return the clock of a round of some devices; every rank calls this.

        `members` are their numbers in the population. The server waits for at least `needed` of a
        role: with fewer, the protocol cannot go on.
        """
        return RoundClock(self, transport, ledger, members, needed)


class RoundClock:
    """The clock of a round; only the server's rank knows times.

    Devices have the ids 0 to N - 1, helpers those from N on. `late` are the devices that were late
    or away, on every rank: the number of the step, and an index of `record.LATE_REASONS`.
    """

    def __init__(
        self,
        run: EventClock,
        transport: Transport,
        ledger: Ledger,
        members: Sequence[int],
        needed: Mapping[Role, int],
    ) -> None:
        self._run, self._transport, self._needed = run, transport, needed
        self._ledger = ledger
        self._members, self._devices = members, len(members)
        known, chosen = run.population, np.asarray(members, np.int64)
        helpers = transport.placement.helpers
        of_helper = (run.link.helper_mbps, run.link.helper_mbps, run.link.latency_ms, 1.0)
        columns = (known.uplink_mbps, known.downlink_mbps, known.latency_ms, known.compute)
        self._up, self._down, self._latency, self._factor = (
            np.concatenate([column[chosen], np.full(helpers, value)])
            for column, value in zip(columns, of_helper, strict=True)
        )
        count = self._devices + helpers
        self._trained = np.zeros(count)  # CPU seconds outside the ledger, of this rank
        self._before: NDArray[np.float64] | None = None  # the ledger's totals at the last look
        self._server = 0.0  # when the server has ended its work
        self._at = np.zeros(count)  # when a party has ended its work
        self._answered = np.zeros(count)  # when it sent its last answer
        self._linked = np.zeros(count)  # seconds on its link since then
        # By phase, and by phase and party since its last answer: seconds of work and transfers.
        self._seconds = np.zeros(len(ledger.record.bytes_up))
        self._path = np.zeros((len(self._seconds), count))
        self._asked: dict[Role, int] = {}
        self.late: dict[int, tuple[int, int]] = {}
        self._look()
        away = [
            id
            for id, member in enumerate(members)
            if transport.has_server and known.there_until(member, run.seconds) < run.seconds
        ]
        self._tell(0, away, [AWAY] * len(away))

    def trained(self, cpu_seconds: Mapping[int, float]) -> None:
        """Add CPU seconds that devices of this rank spent on their vectors."""
        for id, seconds in cpu_seconds.items():
            self._trained[id] += seconds

    def after(self, phase: str) -> None:
        """Move the times on after a step: the server worked, and parties received its messages."""
        seen = self._look()
        if seen is None:
            return
        server, cpu, _, down, _, received = seen
        index = self._ledger.index(phase)
        self._server += server
        self._seconds[index] += server
        moved = 1e-3 * self._latency * (received > 0) + 8e-6 * down / self._down
        self._at = np.where(received > 0, np.maximum(self._at, self._server), self._at)
        self._move(index, self._factor * cpu, moved)

    def _move(self, phase: int, computed: Any, moved: Any) -> None:
        self._at = self._at + computed + moved
        self._path[phase] += computed + moved
        self._linked += moved

    def answers(self, number: int, phase: str, role: Role) -> list[int]:
        """Return the devices whose answers are late, before the server takes any.

        Every rank calls this after its parties have made their messages of the step.
        """
        seen = self._look()
        if seen is None:
            return self._tell(number, [], [])
        server, cpu, up, _, sent, _ = seen
        index = self._ledger.index(phase)
        self._server += server
        self._seconds[index] += server
        computed = self._factor * cpu
        moved = 1e-3 * self._latency * (sent > 0) + 8e-6 * up / self._up
        self._move(index, computed, moved)
        ids = np.flatnonzero(sent > 0)
        if not ids.size:
            return self._tell(number, [], [])
        arrivals = np.where(self._stay(ids), self._at[ids], np.inf)
        end, last = self._goes_on(role, ids, arrivals)
        self._jump(index, end, last)
        is_late = arrivals > end
        late = ids[is_late]
        on_link = 2 * self._linked[late] >= self._at[late] - self._answered[late]
        reasons = np.where(np.isinf(arrivals[is_late]), AWAY, np.where(on_link, LINK, COMPUTE))
        self._answered[ids] = self._at[ids]
        self._path[:, ids] = self._linked[ids] = 0.0
        return self._tell(number, late.tolist(), reasons.tolist())

    def _goes_on(
        self, role: Role, ids: NDArray[np.int64], arrivals: NDArray[np.float64]
    ) -> tuple[float, int | None]:
        """Return when the server goes on, and the party that it waited for, if any."""
        order = np.argsort(arrivals, kind="stable")
        coming = int(np.isfinite(arrivals).sum())
        if role is Role.HELPER:
            return float(arrivals[order[-1]]), int(ids[order[-1]])
        # The quorum is of those who were asked first, not of those who are left.
        all_ = self._devices if role is Role.DEVICE else self._asked.setdefault(role, ids.size)
        wanted = max(math.ceil(self._run.quorum * all_ - 1e-9), self._needed.get(role, 1))
        deadline = self._server + self._run.deadline_seconds
        which = min(wanted, coming) - 1
        if which < 0 or arrivals[order[which]] > deadline:
            return deadline if math.isfinite(deadline) else self._server, None
        return float(arrivals[order[which]]), int(ids[order[which]])

    def _stay(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which parties are there from their last answer until this one has arrived."""
        known, start = self._run.population, self._run.seconds
        if known.always_there:
            return np.ones(ids.size, np.bool_)
        return np.array([
            id >= self._devices
            or known.there_until(self._members[id], start + self._answered[id])
            >= start + self._at[id]
            for id in ids.tolist()
        ])  # fmt: skip

    def _jump(self, phase: int, end: float, waited_for: int | None) -> None:
        """Let the server wait until `end`; phases get the seconds that its last party spent."""
        left = max(0.0, end - self._server)
        self._server += left
        if waited_for is not None:
            for index in range(len(self._seconds) - 1, -1, -1):
                part = min(left, float(self._path[index, waited_for]))
                self._seconds[index] += part
                left -= part
        self._seconds[phase] += left

    def finish(self, record: RoundRecord, phases: Sequence[str]) -> None:
        """Enter the round into the server's record: it ends when those who stayed have all of it.

        `phases` are those of the steps.
        """
        if not self._transport.has_server:
            return
        stayed = np.ones(self._at.size, np.bool_)
        stayed[[*self.late]] = False
        if stayed.any():
            last = int(np.where(stayed, self._at, -np.inf).argmax())
            self._jump(len(self._seconds) - 1, float(self._at[last]), last)
        self._run.seconds += self._server
        record.event_seconds = self._seconds
        for id, (number, reason) in self.late.items():
            record.late_phase[id] = self._ledger.index(phases[number])
            record.late_reason[id] = reason

    def _look(self) -> tuple[Any, ...] | None:
        """Return, at the server, what all parties spent since the last look; None elsewhere.

        It has the server's CPU seconds, and those, the bytes up and down and the messages up and
        down of every device and helper.
        """
        record = self._ledger.record
        rows = [record.cpu_seconds[:, :-1].sum(axis=0), *(
            getattr(record, name).sum(axis=0) for name in _MOVED
        )]  # fmt: skip
        helped = [
            getattr(record, f"helper_{name}").sum(axis=0) for name in ("cpu_seconds", *_MOVED)
        ]
        totals = np.array([np.concatenate(pair) for pair in zip(rows, helped, strict=True)])
        totals[0] += self._trained
        now = np.append(totals.ravel(), record.cpu_seconds[:, -1].sum())
        before, self._before = self._before, now
        spent = self._transport.sum_to_server(now if before is None else now - before)
        if spent is None:
            return None
        return float(spent[-1]), *spent[:-1].reshape(5, -1)

    def _tell(self, number: int, late: list[int], reasons: list[int]) -> list[int]:
        """Return the late devices on every rank, as the server knows them."""
        message = None
        if self._transport.has_server:
            message = np.array([number, *late, *reasons], np.int64).view(np.uint8)
        told = self._transport.broadcast(message).view(np.int64)
        ids, why = told[1:].reshape(2, -1).tolist()
        self.late |= {id: (number, reason) for id, reason in zip(ids, why, strict=True)}
        return list(ids)


def clock_of(
    options: RunOptions, devices: int, kind: type[AggregationProtocol]
) -> EventClock | None:
    """Return the clock of a run, checked; None without a population.

    Raise UsageError if the options do not go together.
    """
    link = part(options, LinkModel)
    if options.population is None:
        if options.quorum < 1 or options.deadline is not None:
            raise UsageError("--quorum and --deadline are for the devices of a --population")
        return None
    waits = options.quorum == 1 and options.deadline is None
    if not kind.tolerates_dropouts and not waits:
        raise UsageError(
            f"{kind.name} tolerates no missing device: leave --quorum and --deadline out"
        )
    if options.upload == "reduce":
        raise UsageError("--upload reduce sums vectors on the way, whoever is late: leave it out")
    known = load(options.population, devices, options.seed, link)
    return EventClock(known, link, options.quorum, options.deadline or math.inf)
