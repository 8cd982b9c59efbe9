"""A slow event clock in plain Python, written from the description of the fast one."""

import heapq
import math

from hpcfl.comm.phases import Role

LINK, COMPUTE, AWAY = range(3)


class Party:
    """A device or helper; `done` is what it did since its last answer, by phase, begin and end."""

    def __init__(self, up, down, latency_ms, factor, there=((0.0, math.inf),)):
        self.up, self.down, self.latency, self.factor = up, down, latency_ms, factor
        self.there, self.now = there, 0.0
        self.begin_anew()

    def begin_anew(self):
        self.answered, self.done, self.work, self.link = self.now, [], 0.0, 0.0

    def spend(self, phase, cpu, size, mbps):
        work, link = self.factor * cpu, 8e-6 * size / mbps
        self.done.append((phase, self.now, self.now + (work + link)))
        self.now, self.work, self.link = self.done[-1][2], self.work + work, self.link + link

    def send(self, phase, cpu, size, messages, mbps):
        """Return when a message arrives that has been sent until now."""
        self.spend(phase, cpu, size, mbps)
        lag = 1e-3 * self.latency * (messages > 0)
        self.done.append((phase, self.now, self.now + lag))
        self.link += lag
        return self.now + lag

    def leaves(self, when):
        return next((off for on, off in self.there if on <= when < off), -math.inf)

    def slow_by(self):
        """Return what took longer; both, if one was about as long."""
        near = math.isclose(self.work, self.link, rel_tol=1e-9)
        return {LINK, COMPUTE} if near else {LINK if self.link > self.work else COMPUTE}


class SlowClock:
    """Has the methods of `Times`, but that late devices have all reasons that are right."""

    def __init__(self, run, members, helpers, phases, needed):
        known, link, self.run, self.needed = run.population, run.link, run, needed
        columns = known.uplink_mbps, known.downlink_mbps, known.latency_ms, known.compute
        parties = [Party(*row) for row in zip(*columns, strict=True)]
        for party, switches in zip(parties, known.switches, strict=False):
            party.there = [*zip(switches[::2], switches[1::2], strict=True)]
        self.parties = [parties[one] for one in members]
        helper = link.helper_mbps, link.helper_mbps, link.latency_ms, 1.0
        self.parties += [Party(*helper) for _ in range(helpers)]
        self.server, self.seconds, self.asked = 0.0, [0.0] * phases, {Role.DEVICE: len(members)}

    def away(self):
        return [id for id, one in enumerate(self.parties) if one.leaves(self.run.seconds) < 0]

    def work(self, phase, seconds):
        self.server += seconds
        self.seconds[phase] += seconds

    def receive(self, phase, *columns):
        for party, cpu, size, messages in zip(self.parties, *columns, strict=True):
            if messages:
                begin = max(party.now, self.server)
                party.now = max(begin, self.server + 1e-3 * party.latency)
                party.done.append((phase, begin, party.now))
                party.link += party.now - begin
            party.spend(phase, cpu, size, party.down)

    def answer(self, phase, role, *columns):
        senders, coming, start = {}, [], self.run.seconds
        for id, (party, *spent) in enumerate(zip(self.parties, *columns, strict=True)):
            arrival = party.send(phase, *spent, party.up)
            if spent[2]:
                senders[id] = party
                if start + arrival <= party.leaves(start + party.answered):
                    heapq.heappush(coming, (arrival, id))
        if not senders:
            return {}
        deadline, wanted = math.inf, len(senders)
        if role is not Role.HELPER:
            deadline = self.server + self.run.deadline_seconds
            of = self.asked.setdefault(role, len(senders))
            wanted = max(math.ceil(round(self.run.quorum * of, 9)), self.needed.get(role, 1))
        answered, end, last = set(), self.server, None
        while coming and len(answered) < wanted and coming[0][0] <= deadline:
            end, last = heapq.heappop(coming)
            answered.add(last)
        if deadline < math.inf and (not answered or (coming and len(answered) < wanted)):
            end = deadline
        end = max(end, self.server)  # it was busy until then
        answered |= {id for when, id in coming if when <= end}
        self._wait(phase, end, [] if last is None else senders[last].done)
        there = {id for _, id in coming}
        late = {
            id: one.slow_by() if id in there else {AWAY}
            for id, one in senders.items()
            if id not in answered
        }
        for party in senders.values():
            party.begin_anew()
        return late

    def _wait(self, phase, end, done):
        left = max(0.0, end - self.server)
        for own, begin, until in done:
            part = max(0.0, min(until, end) - max(begin, self.server))
            self.seconds[own] += part
            left -= part
        self.seconds[phase] += left
        self.server = max(self.server, end)

    def end(self, gone):
        there = [party for id, party in enumerate(self.parties) if id not in gone]
        if there:
            last = max(there, key=lambda party: party.now)
            self._wait(len(self.seconds) - 1, last.now, last.done)
        return self.server
