"""The event clock's times against a slow reference, for numbers that no one measured."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow_clock import Party, SlowClock
from tiers import seeded
from watching import experiment, watch

from hpcfl.algorithms.aggregation import PROTOCOLS
from hpcfl.comm.phases import Pattern, Role
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


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("latency", [0.0, 500.0])
def test_devices_alike_take_the_time_of_the_link_model(monkeypatch, name, latency):
    """But for rules that only the clock has.

    The clock counts a latency in each exchange, the link model once a phase and direction. What
    helpers or the server do while devices work takes no time of its own (`pine`). If all devices
    send to members, which then receive, the slowest of each counts, not the slowest sum (`opa`).
    """
    link = {"uplink_mbps": 1.0, "downlink_mbps": 2.0, "helper_mbps": 4.0, "latency_ms": latency}
    options = {"alpha": 0.5} if name == "cohort" else {}
    options |= {"population": "uniform", "dropout": 0.0, **link}

    seen = watch(monkeypatch, tick=0.25, server_tick=0.0)
    found, record = experiment(name, 12, **options)
    modelled = LinkModel(**link).seconds_of(record)
    again = -2 * len(found.phases)  # exchanges after the first of a phase and direction
    for phase in found.phases:
        steps = [step for step in found.protocol.steps if step.phase == phase]
        patterns = [step.pattern for step in steps if step.wants is None]
        for one in (Pattern.GATHER, Pattern.BROADCAST):
            again += max(1, sum(each in (one, Pattern.ROUTE) for each in patterns))
    expected = modelled.sum() + 1e-3 * latency * again
    if name == "pine":  # helpers send their keys while devices receive the model
        expected -= modelled[found.phases.index("verify_key")]
    assert (record.late_phase == -1).all()
    if name == "opa":
        assert expected < record.event_seconds.sum() < expected + 0.1
    else:
        np.testing.assert_allclose(record.event_seconds.sum(), expected, rtol=1e-12)

    seen.server_tick = 0.125
    _, busy = experiment(name, 12, **options)
    longer, most = busy.event_seconds.sum() - record.event_seconds.sum(), busy.cpu_seconds[:, -1]
    assert 0 < longer < most.sum() + 0.01
