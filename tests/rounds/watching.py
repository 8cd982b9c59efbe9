"""Rounds under the event clock with fixed CPU seconds, each compared with the slow clock's."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
from slow_clock import SlowClock

from hpcfl.benchmark.experiment import Experiment, resolved
from hpcfl.comm.loopback import Loopback
from hpcfl.rounds import eventclock
from hpcfl.rounds.driver import Round
from hpcfl.rounds.ledger import Ledger
from hpcfl.rounds.observer import Results


class Compared(eventclock.Times):
    """Times that are equal to those of the slow clock."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.slow, self.fed = SlowClock(*arguments), np.zeros((5, len(self._at)))
        self.arrivals = []  # of each exchange, by id
        assert self.away() == self.slow.away()

    def work(self, phase, seconds):
        super().work(phase, seconds)
        self.slow.work(phase, seconds)

    def receive(self, phase, *columns):
        super().receive(phase, *columns)
        self.slow.receive(phase, *columns)
        self.fed[[0, 2, 4]] += columns

    def answer(self, phase, role, *columns):
        late = super().answer(phase, role, *columns)
        expected = self.slow.answer(phase, role, *columns)
        assert {*late} == {*expected}
        assert all(reason in expected[id] for id, reason in late.items())
        self.fed[[0, 1, 3]] += columns
        self.arrivals.append({id: self._at[id] for id in np.flatnonzero(columns[2]).tolist()})
        return late

    def end(self, gone):
        ended = super().end(gone)
        np.testing.assert_allclose(ended, self.slow.end(gone), rtol=1e-9)
        np.testing.assert_allclose(self.seconds, self.slow.seconds, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(self.seconds.sum(), ended, rtol=1e-9)
        return ended


def watch(monkeypatch, tick=1e-6, server_tick=1e-6):
    """Make every piece of work take a tick; return the clocks, and what servers took of whom."""
    seen = SimpleNamespace(clocks=[], taken=[], tick=tick, server_tick=server_tick)
    take, route = Round._take, Loopback.route

    def times(*arguments):
        seen.clocks.append(Compared(*arguments))
        return seen.clocks[-1]

    @contextmanager
    def work(self, phase, device):
        yield
        if device is None:
            self.record.cpu_seconds[self.index(phase), -1] += seen.server_tick
        else:
            self._enter("cpu_seconds", phase, device, seen.tick)

    def taken(self, number, step, id, message):
        if self._clock is not None:  # not in an enrolment
            seen.taken.append((number, id))
        take(self, number, step, id, message)

    def routed(self, senders, rows, width):
        sent = [*zip(senders, rows, strict=True)]
        seen.taken.extend((self.step, id) for id, row in sent if len(row) and seen.clocks)
        return route(self, senders, [row for _, row in sent], width)

    monkeypatch.setattr(eventclock, "Times", times)
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
