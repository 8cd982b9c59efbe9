"""The event clock's times against a slow reference, for numbers that no one measured."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from slow_clock import Party, SlowClock
from tiers import seeded

from hpcfl.comm.phases import Role
from hpcfl.populations.population import Population
from hpcfl.results.linkmodel import LinkModel
from hpcfl.rounds.eventclock import EventClock, Times

PHASES, KNOWN = 3, 9


def clocks(random, devices, helpers, quorum, deadline, start, availability):
    """Return the fast and the slow clock of a run with random links, factors and absences."""
    rows = np.exp(random.normal(1, 1, (KNOWN, 4)))
    members = sorted(random.permutation(KNOWN)[:devices].tolist())
    switches = np.cumsum(random.exponential(10, (KNOWN, 8)), axis=1) if availability else []
    switches = [each - each[0] * random.integers(2) for each in switches]
    there = [[*zip(each[::2], each[1::2], strict=True)] for each in switches] or [None] * KNOWN
    needed = {Role.COMMITTEE: int(random.integers(1, 5))}
    link = LinkModel(helper_mbps=0.5, latency_ms=3.5)
    known = Population("", *rows.T, switches=[each.tolist() for each in switches])
    run = EventClock(known, link, quorum, deadline, start)
    slow = SlowClock(
        [Party(*rows[one], there[one]) for one in members],
        [Party(link.helper_mbps, link.helper_mbps, link.latency_ms, 1.0) for _ in range(helpers)],
        *(PHASES, quorum, deadline, start, needed),
    )
    return Times(run, members, helpers, PHASES, needed), slow


@seeded(2000)
@given(
    kinds=st.lists(st.sampled_from(["work", "receive", *Role]), min_size=1, max_size=8),
    devices=st.integers(1, 8),
    helpers=st.integers(0, 2),
    quorum=st.sampled_from([0.6, 0.8, 1.0]),
    deadline=st.sampled_from([math.inf, 0.7, 9.3]),
    start=st.sampled_from([0.0, 15.5]),
    availability=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_times_late_devices_and_reasons_are_those_of_the_slow_clock(kinds, seed, **of_run):
    random = np.random.default_rng(seed)
    both = fast, slow = clocks(random, **of_run)
    devices, parties = of_run["devices"], of_run["devices"] + of_run["helpers"]
    gone, phase = {*fast.away()}, 0
    assert sorted(gone) == slow.away()
    committee = random.random(parties) < 0.7
    for kind in kinds:
        phase = min(PHASES - 1, phase + int(random.integers(2)))
        if kind == "work":
            seconds = random.exponential(2)
            for clock in both:
                clock.work(phase, seconds)
            continue
        helps = np.arange(parties) >= devices
        playing = ~np.isin(np.arange(parties), [*gone])
        if kind != "receive":
            playing &= helps if kind is Role.HELPER else ~helps
            playing &= committee | (kind is not Role.COMMITTEE)
        # Some parties neither send nor receive, or do not compute.
        messages = 1.0 * (playing & (random.random(parties) < 0.9))
        cpu = random.exponential(1, parties) * (playing & (random.random(parties) < 0.5))
        size = random.exponential(2e5, parties) * messages
        if kind == "receive":
            for clock in both:
                clock.receive(phase, cpu, size, messages)
            continue
        late, expected = (clock.answer(phase, kind, cpu, size, messages) for clock in both)
        assert {*late} == {*expected}
        assert all(reason in expected[id] for id, reason in late.items())
        gone |= {*late}
        np.testing.assert_allclose(fast.seconds, slow.seconds, rtol=1e-9, atol=1e-12)
    end = fast.end([*gone])
    np.testing.assert_allclose(end, slow.end(gone), rtol=1e-9)
    np.testing.assert_allclose(fast.seconds, slow.seconds, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(fast.seconds.sum(), end, rtol=1e-9)
