"""Rounds under the event clock with fixed CPU seconds, each compared with the slow clock's."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
from slow_clock import Party, SlowClock

from hpcfl.benchmark.experiment import Experiment, resolved
from hpcfl.comm.loopback import Loopback
from hpcfl.rounds import eventclock
from hpcfl.rounds.driver import Round
from hpcfl.rounds.ledger import Ledger
from hpcfl.rounds.observer import Results


def watch(monkeypatch, tick=1e-6, server_tick=1e-6):
    """Make every piece of work take a tick; return what clocks were given and servers took."""
    seen = SimpleNamespace(clocks=[], taken=[], tick=tick, server_tick=server_tick)

    class Watched(eventclock.Times):
        def __init__(self, run, members, helpers, phases, needed):
            super().__init__(run, members, helpers, phases, needed)
            known, link = run.population, run.link
            columns = known.uplink_mbps, known.downlink_mbps, known.latency_ms, known.compute
            rows = np.column_stack(columns)[[*members]].tolist()
            on = [[*zip(each[::2], each[1::2], strict=True)] for each in known.switches]
            there = [on[one] for one in members] if on else [None] * len(rows)
            self.slow = SlowClock(
                [Party(*row, there=each) for row, each in zip(rows, there, strict=True)],
                [Party(link.helper_mbps, link.helper_mbps, link.latency_ms, 1.0)] * helpers,
                *(phases, run.quorum, run.deadline_seconds, run.seconds, needed),
            )
            helping = [(link.helper_mbps,) * 2 + (link.latency_ms, 1.0) for _ in range(helpers)]
            self.slow.parties[len(rows) :] = [Party(*each) for each in helping]
            self.fed = np.zeros((5, len(rows) + helpers))  # CPU, bytes and messages up and down
            self.worked, self.arrivals = 0.0, []  # by exchange
            seen.clocks.append(self)

        def work(self, phase, seconds):
            super().work(phase, seconds)
            self.slow.work(phase, seconds)
            self.worked += seconds

        def receive(self, phase, cpu, size, messages):
            super().receive(phase, cpu, size, messages)
            self.slow.receive(phase, cpu, size, messages)
            self.fed[[0, 2, 4]] += cpu, size, messages

        def answer(self, phase, role, cpu, size, messages):
            late = super().answer(phase, role, cpu, size, messages)
            expected = self.slow.answer(phase, role, cpu, size, messages)
            assert {*late} == {*expected}
            assert all(reason in expected[id] for id, reason in late.items())
            self.fed[[0, 1, 3]] += cpu, size, messages
            self.arrivals.append({id: self._at[id] for id in np.flatnonzero(messages).tolist()})
            return late

        def end(self, gone):
            ended = super().end(gone)
            np.testing.assert_allclose(ended, self.slow.end(gone), rtol=1e-9)
            np.testing.assert_allclose(self.seconds, self.slow.seconds, rtol=1e-9, atol=1e-12)
            return ended

    @contextmanager
    def work(self, phase, device):
        yield
        if device is None:
            self.record.cpu_seconds[self.index(phase), -1] += seen.server_tick
        else:
            self._enter("cpu_seconds", phase, device, seen.tick)

    take, route = Round._take, Loopback.route

    def taken(self, number, step, id, message):
        if self._clock is not None:  # not in an enrolment
            seen.taken.append((number, id))
        take(self, number, step, id, message)

    def routed(self, senders, rows, width):
        rows = list(rows)
        pairs = zip(senders, rows, strict=True)
        seen.taken.extend((self.step, id) for id, row in pairs if len(row) and seen.clocks)
        return route(self, senders, rows, width)

    monkeypatch.setattr(eventclock, "Times", Watched)
    monkeypatch.setattr(Ledger, "work", work)
    monkeypatch.setattr(Round, "_take", taken)
    monkeypatch.setattr(Loopback, "route", routed)
    return seen


def experiment(protocol, devices=15, change=lambda experiment: None, **options):
    """Return an experiment and the record of its only round."""
    options = {"dim": 60, "rounds": 1, "warmup": 0, "insecure_seed": 1} | options
    found = Experiment.prepare(resolved({"protocol": protocol, **options}), devices)
    change(found)
    rounds = Results()
    found.run(Loopback(devices, found.protocol.helpers), rounds)
    return found, rounds.records[0]
