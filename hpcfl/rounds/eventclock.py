"""The event clock: modelled times of a round's exchanges, and who is too late for them.

Every device has a link and a processor of its own. A device that received a message at some time
computes, which takes its measured CPU seconds times its factor, and sends; a message arrives after
the latency of the link. The server goes on from an exchange when a quorum has answered, or
everybody who will, or at the deadline. Devices that have not answered by then are late: they leave
the real round, and the server never takes their message. Then the server computes, which takes its
measured CPU seconds. An `early` upload leaves with the answer before it, as in frameworks: devices
do not wait to be told that an optional step before it is skipped.

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
from hpcfl.options.definition import OptionGroup, part
from hpcfl.options.protocols import ProtocolOptions
from hpcfl.options.shared import LinkOptions, PopulationOptions, SeedOptions
from hpcfl.populations.population import Population, load
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.record import AWAY, COMPUTE, LINK, RoundRecord
from hpcfl.rounds.ledger import Ledger
from hpcfl.values import dataclass

Floats = NDArray[np.float64]
_MOVED = ("bytes_up", "bytes_down", "messages_up", "messages_down")


@dataclass
class EventClock:
    """The clock of a run; it stands still between rounds. Every rank has one."""

    population: Population
    link: LinkModel  # of helpers
    quorum: float = 1.0  # the fraction of the devices, or of the committee, to wait for
    deadline_seconds: float = math.inf  # of an exchange
    seconds: float = 0.0  # at the server: when the next round begins

    @property
    def loses_devices(self) -> bool:
        """Whether devices may be late or away."""
        waits = self.quorum == 1 and math.isinf(self.deadline_seconds)
        return not (waits and self.population.always_there)


class Times:
    """The times of a round's parties since its beginning, by phase.

    Devices have the ids 0 to N - 1, helpers those from N on. `members` are the devices' numbers in
    the population. The server waits for at least `needed` of a role: with fewer, the protocol
    cannot go on. `seconds` are those of each phase: what the party took that the server waited for.
    """

    def __init__(
        self,
        run: EventClock,
        members: Sequence[int] | NDArray[np.int64],
        helpers: int,
        phases: int,
        needed: Mapping[Role, int],
    ) -> None:
        self._run, self._members, self._needed = run, members, needed
        self._devices, known = len(members), run.population
        of_helper = (run.link.helper_mbps, run.link.helper_mbps, run.link.latency_ms, 1.0)
        columns = (known.uplink_mbps, known.downlink_mbps, known.latency_ms, known.compute)
        self._up, self._down, self._latency, self._factor = (
            np.concatenate([column[np.asarray(members, np.int64)], np.full(helpers, value)])
            for column, value in zip(columns, of_helper, strict=True)
        )
        count = self._devices + helpers
        self.seconds = np.zeros(phases)
        self._server = 0.0  # when the server has ended its work
        self._at = np.zeros(count)  # when a party has ended its work
        self._answered = np.zeros(count)  # when it sent its last answer
        # Seconds since then, by phase, and those on its link.
        self._path, self._linked = np.zeros((phases, count)), np.zeros(count)
        self._asked: dict[Role, int] = {}

    def away(self) -> list[int]:
        """Return the devices that are away at the beginning."""
        known, start = self._run.population, self._run.seconds
        members = () if known.always_there else self._members
        return [id for id, one in enumerate(members) if known.there_until(one, start) < start]

    def work(self, phase: int, seconds: float) -> None:
        """Let the server compute."""
        self._server += seconds
        self.seconds[phase] += seconds

    def receive(self, phase: int, cpu: Floats, size: Floats, messages: Floats) -> None:
        """Let parties receive what the server sent after its work, `size` bytes, and compute."""
        begin = np.where(messages > 0, np.maximum(self._at, self._server), self._at)
        there = np.where(messages > 0, self._server + 1e-3 * self._latency, self._at)
        lag = np.maximum(there - begin, 0.0)
        self._at = begin
        self._move(phase, 0.0, lag)
        self._move(phase, cpu, 8e-6 * size / self._down)

    def _move(self, phase: int, cpu: Floats | float, moved: Floats) -> None:
        spent = self._factor * cpu + moved
        self._at = self._at + spent
        self._path[phase] += spent
        self._linked += moved

    def answer(
        self, phase: int, role: Role, cpu: Floats, size: Floats, messages: Floats
    ) -> dict[int, int]:
        """Let parties compute and send `size` bytes, and the server go on.

        Return the late devices, each with the reason, an index of `record.LATE_REASONS`.
        """
        sent = messages > 0
        self._move(phase, cpu, 8e-6 * size / self._up)
        # A party does not wait until what it sent has arrived.
        lag = 1e-3 * self._latency * sent
        self._path[phase] += lag
        self._linked += lag
        ids = np.flatnonzero(sent)
        if not ids.size:
            return {}
        arrivals = (self._at + lag)[ids]
        arrivals = np.where(self._stay(ids, arrivals), arrivals, np.inf)
        end, heard = self._goes_on(role, ids, arrivals)
        end = max(end, self._server)  # it takes what has come while it worked
        self._wait(phase, end, heard)
        late = ids[arrivals > end]
        on_link = 2 * self._linked[late] >= self._path[:, late].sum(axis=0)
        reasons = np.where(on_link, LINK, COMPUTE)
        reasons[np.isinf(arrivals[arrivals > end])] = AWAY
        self._answered[ids] = self._at[ids]
        self._path[:, ids] = self._linked[ids] = 0.0
        return dict(zip(late.tolist(), reasons.tolist(), strict=True))

    def _goes_on(
        self, role: Role, ids: NDArray[np.int64], arrivals: Floats
    ) -> tuple[float, tuple[int, float] | None]:
        """Return when the server goes on, and the last party heard until then, and when."""
        coming = int(np.isfinite(arrivals).sum())
        wanted, deadline = ids.size, math.inf
        if role is not Role.HELPER:
            # The quorum is of those who were asked first, not of those who are left.
            all_ = self._devices if role is Role.DEVICE else self._asked.setdefault(role, ids.size)
            wanted = max(math.ceil(self._run.quorum * all_ - 1e-9), self._needed.get(role, 1))
            deadline = self._server + self._run.deadline_seconds
        which = min(wanted, coming) - 1
        end = np.inf if which < 0 else float(np.partition(arrivals, which)[which])
        if which < 0 or end > deadline:
            end = deadline if math.isfinite(deadline) else self._server
        in_time = np.where(arrivals <= end, arrivals, -np.inf)
        last = int(in_time.argmax())
        return end, (int(ids[last]), float(in_time[last])) if in_time[last] > -np.inf else None

    def _stay(self, ids: NDArray[np.int64], arrivals: Floats) -> NDArray[np.bool_]:
        """Return which parties are there from their last answer until this one has arrived."""
        known, start = self._run.population, self._run.seconds
        stay = np.ones(ids.size, np.bool_)
        for place, id in enumerate([] if known.always_there else ids.tolist()):
            if id < self._devices:
                until = known.there_until(self._members[id], start + self._answered[id])
                stay[place] = until >= start + arrivals[place]
        return stay

    def _wait(self, phase: int, end: float, heard: tuple[int, float] | None) -> None:
        """Let the server wait until `end`; what the last party spent until heard is its phases'."""
        waited = max(0.0, end - self._server)
        if heard is not None:
            left = max(0.0, heard[1] - self._server)
            for index in range(len(self.seconds) - 1, -1, -1):
                spent = min(left, float(self._path[index, heard[0]]))
                self.seconds[index] += spent
                left, waited = left - spent, waited - spent
        self._server = max(self._server, end)
        self.seconds[phase] += waited

    def end(self, gone: Sequence[int]) -> float:
        """Return when all but the parties that are `gone` have received what the server sent."""
        stayed = np.ones(self._at.size, np.bool_)
        stayed[[*gone]] = False
        if stayed.any():
            last = int(np.where(stayed, self._at, -np.inf).argmax())
            self._wait(len(self.seconds) - 1, float(self._at[last]), (last, float(self._at[last])))
        return self._server


class RoundClock:
    """The clock of a round in play; only the server's rank knows times.

    `late` are the devices that were late or away, on every rank, each with the number of the step
    and the reason.
    """

    def __init__(
        self,
        run: EventClock,
        transport: Transport,
        ledger: Ledger,
        members: Sequence[int],
        needed: Mapping[Role, int],
    ) -> None:
        self._run, self._transport, self._ledger = run, transport, ledger
        helpers, phases = transport.placement.helpers, len(ledger.record.bytes_up)
        self._times = Times(run, members, helpers, phases, needed)
        self._trained = np.zeros(len(members) + helpers)  # CPU seconds outside the ledger
        self._refusals = np.zeros(len(members) + helpers)  # messages that are no answers
        self._before: Floats | float = 0.0  # the ledger's totals at the last look
        self.late: dict[int, tuple[int, int]] = {}
        away = self._times.away() if transport.has_server else []
        self._tell(0, dict.fromkeys(away, AWAY))

    def trained(self, cpu_seconds: Mapping[int, float]) -> None:
        """Add CPU seconds that devices of this rank spent on their vectors."""
        for id, seconds in cpu_seconds.items():
            self._trained[id] += seconds

    def refused(self, id: int) -> None:
        """Note that a party here sends why it left; the server waits for no such message."""
        self._refusals[id] += 1

    def after(self, phase: str) -> None:
        """Move the times on after a step: the server worked, and parties received its messages."""
        seen = self._look()
        if seen is not None:
            (server, cpu, _, down, _, received), index = seen, self._ledger.index(phase)
            self._times.work(index, server)
            self._times.receive(index, cpu, down, received)

    def answers(self, number: int, phase: str, role: Role) -> set[int]:
        """Return the devices whose answers are late, before the server takes any.

        Every rank calls this after its parties have made their messages of the step.
        """
        seen, late = self._look(), dict[int, int]()
        if seen is not None:
            (server, cpu, up, _, sent, _), index = seen, self._ledger.index(phase)
            self._times.work(index, server)
            late = self._times.answer(index, role, cpu, up, sent)
        return self._tell(number, late)

    def finish(self, record: RoundRecord, phases: Sequence[str]) -> None:
        """Enter the round into the server's record; `phases` are those of the steps."""
        if not self._transport.has_server:
            return
        self._run.seconds += self._times.end([*self.late])
        record.event_seconds = self._times.seconds
        for id, (number, reason) in self.late.items():
            record.late_phase[id] = self._ledger.index(phases[number])
            record.late_reason[id] = reason

    def _look(self) -> tuple[Any, ...] | None:
        """Return, at the server, what all parties spent since the last look; None elsewhere.

        It has the server's CPU seconds, and those, the bytes up and down and the messages up and
        down of every device and helper.
        """
        record = self._ledger.record
        rows = [record.cpu_seconds[:, :-1], *(getattr(record, name) for name in _MOVED)]
        helped = [getattr(record, f"helper_{name}") for name in ("cpu_seconds", *_MOVED)]
        pairs = zip(rows, helped, strict=True)
        totals = np.array([np.concatenate(pair, axis=1).sum(axis=0) for pair in pairs])
        totals[0] += self._trained
        totals[3] -= self._refusals
        now = np.append(totals.ravel(), record.cpu_seconds[:, -1].sum())
        spent = self._transport.sum_to_server(now - self._before)
        self._before = now
        return None if spent is None else (float(spent[-1]), *spent[:-1].reshape(5, -1))

    def _tell(self, number: int, late: Mapping[int, int]) -> set[int]:
        """Return the late devices on every rank, as the server knows them."""
        message = None
        if self._transport.has_server:
            message = np.array([number, *late, *late.values()], np.int64).view(np.uint8)
        told = self._transport.broadcast(message).view(np.int64)
        ids, reasons = told[1:].reshape(2, -1).tolist()
        self.late |= {id: (number, reason) for id, reason in zip(ids, reasons, strict=True)}
        return {*ids}


def needed_in(protocol: AggregationProtocol) -> dict[Role, int]:
    """Return the least number of answers of each role, besides devices, for a round to go on."""
    return {Role.COMMITTEE: protocol.settings().get("members_needed", protocol.members_in_round)}


def clock_of(
    options: OptionGroup,
    devices: int,
    kind: type[AggregationProtocol] | None = None,
    private: str | None = None,
) -> EventClock | None:
    """Return the clock of a run, checked for a protocol if any; None without a population.

    `private` is the name of the algorithm if it has an account of privacy. Raise UsageError if the
    options do not go together.
    """
    asked, link = part(options, PopulationOptions), part(options, LinkModel)
    if asked.population is None:
        if asked.quorum < 1 or asked.deadline is not None:
            raise UsageError("--quorum and --deadline are for the devices of a --population")
        return None
    if isinstance(options, ProtocolOptions) and options.upload == "reduce":
        raise UsageError("--upload reduce sums vectors on the way, whoever is late: leave it out")
    seed = options.seed if isinstance(options, SeedOptions) else 0
    known = load(asked.population, devices, seed, part(options, LinkOptions))
    clock = EventClock(known, link, asked.quorum, asked.deadline or math.inf)
    if kind is not None and not kind.tolerates_dropouts and clock.loses_devices:
        raise UsageError(
            f"{kind.name} tolerates no missing device: leave --quorum, --deadline and a table with "
            "absences out"
        )
    if private is not None and clock.loses_devices:
        # One user more could make many others late, and epsilon would be too small.
        raise UsageError(
            f"{private} accounts for users who do not affect each other, and who is late depends "
            "on all of them: leave --quorum, --deadline and a table with absences out"
        )
    return clock
