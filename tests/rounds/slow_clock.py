"""A slow event clock in plain Python, written from the description of the fast one."""

import heapq
import math

LINK, COMPUTE, AWAY = range(3)


class Party:
    """A device or helper: when it is done, and what it did since its last answer."""

    def __init__(self, up, down, latency_ms, factor, there=None):
        self.rates, self.latency, self.factor = (up, down), latency_ms, factor
        self.there = [(0.0, math.inf)] if there is None else there
        self.now, self.done = self.answered, [] = 0.0, []

    def spend(self, phase, cpu, size, messages, rate):
        work = self.factor * cpu
        link = 1e-3 * self.latency * (messages > 0) + 8e-6 * size / rate
        begin, self.now = self.now, self.now + (work + link)
        self.done.append((phase, begin, self.now, work, link))

    def leaves(self, when):
        return next((off for on, off in self.there if on <= when < off), -math.inf)


class SlowClock:
    """Takes what is given to `Times` in the same order."""

    def __init__(self, devices, helpers, phases, quorum, deadline, start, needed):
        self.devices, self.parties = len(devices), [*devices, *helpers]
        self.quorum, self.deadline, self.start, self.needed = quorum, deadline, start, needed
        self.server, self.seconds, self.asked = 0.0, [0.0] * phases, {"devices": len(devices)}

    def away(self):
        return [k for k, one in enumerate(self.parties) if one.leaves(self.start) < 0]

    def work(self, phase, seconds):
        self.server += seconds
        self.seconds[phase] += seconds

    def receive(self, phase, *columns):
        for party, cpu, size, messages in zip(self.parties, *columns, strict=True):
            if messages:
                party.now = max(party.now, self.server)
            party.spend(phase, cpu, size, messages, party.rates[1])

    def answer(self, phase, role, *columns):
        """Return the late devices, each with the reasons that are right (two if both are equal)."""
        events, senders = [(self.server + self.deadline, math.inf)], []
        for id, each in enumerate(zip(self.parties, *columns, strict=True)):
            party, (_, _, messages) = each[0], each[1:]
            party.spend(phase, *each[1:], party.rates[0])
            if messages:
                senders.append(id)
                if self.start + party.now <= party.leaves(self.start + party.answered):
                    heapq.heappush(events, (party.now, id))
        if not senders:
            return {}
        wanted = len(senders)
        if role.value != "helpers":
            asked = self.asked.setdefault(role.value, len(senders))
            wanted = max(math.ceil(self.quorum * asked - 1e-9), self.needed.get(role, 1))
        wanted, answered = min(wanted, len(events) - 1), set()
        end = last = None
        while len(answered) < wanted or end is None:
            end, last = heapq.heappop(events)
            if role.value == "helpers" and last == math.inf:
                continue  # a helper is always waited for
            if last == math.inf or (not answered.add(last) and len(answered) >= wanted):
                break
        if not math.isfinite(end):
            end = self.server  # nobody will ever answer
        end = max(end, self.server)  # it was busy until then
        answered |= {id for when, id in events if when <= end}
        self._wait(phase, end, None if last == math.inf else self.parties[last])
        late = {id: self._reasons(id, events) for id in senders if id not in answered}
        for id in senders:
            self.parties[id].answered, self.parties[id].done = self.parties[id].now, []
        return late if role.value != "helpers" else {}

    def _reasons(self, id, events):
        if id not in [other for _, other in events]:
            return {AWAY}
        work, link = (sum(each[k] for each in self.parties[id].done) for k in (3, 4))
        close = math.isclose(work, link, rel_tol=1e-9)
        return {LINK, COMPUTE} if close else {LINK if link > work else COMPUTE}

    def _wait(self, phase, end, whom):
        left = max(0.0, end - self.server)
        for own, begin, until, *_ in [] if whom is None else whom.done:
            part = max(0.0, min(until, end) - max(begin, self.server))
            self.seconds[own] += part
            left -= part
        self.seconds[phase] += left
        self.server = max(self.server, end)

    def end(self, gone):
        there = [party for id, party in enumerate(self.parties) if id not in gone]
        if there:
            last = max(there, key=lambda party: party.now)
            self._wait(len(self.seconds) - 1, last.now, last)
        return self.server
