"""The event clock against a slow one that a reader can check, and against the link model."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import seeded
from watching import Compared, experiment, watch

from hpcfl.algorithms.aggregation import PROTOCOLS
from hpcfl.comm.phases import Role
from hpcfl.populations.population import Population
from hpcfl.results.linkmodel import LinkModel
from hpcfl.rounds.eventclock import EventClock

PHASES, KNOWN = 3, 9


@seeded(2000)
@given(
    kinds=st.lists(st.sampled_from(["work", "receive", *Role]), min_size=1, max_size=8),
    devices=st.integers(1, 8),
    helpers=st.integers(0, 2),
    quorum=st.sampled_from([0.6, 0.8, 1.0]),
    deadline=st.sampled_from([math.inf, 0.7, 9.3]),
    start=st.sampled_from([0.0, 15.5]),
    absences=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_times_late_devices_and_reasons_are_those_of_the_slow_clock(
    kinds, devices, helpers, quorum, deadline, start, absences, seed
):
    random = np.random.default_rng(seed)
    switches = np.cumsum(random.exponential(10, (KNOWN, 8)), axis=1) if absences else []
    switches = [(each - each[0] * random.integers(2)).tolist() for each in switches]
    known = Population("", *np.exp(random.normal(1, 1, (4, KNOWN))), switches=switches)
    run = EventClock(known, LinkModel(helper_mbps=0.5, latency_ms=3.5), quorum, deadline, start)
    members = sorted(random.permutation(KNOWN)[:devices].tolist())
    needed = {Role.COMMITTEE: int(random.integers(1, 5))}
    clock = Compared(run, members, helpers, PHASES, needed)

    ids, gone, phase = np.arange(devices + helpers), {*clock.away()}, 0
    committee = random.random(ids.size) < 0.7
    for kind in kinds:
        phase = min(PHASES - 1, phase + int(random.integers(2)))
        if kind == "work":
            clock.work(phase, random.exponential(2))
            continue
        playing = ~np.isin(ids, [*gone])
        if kind != "receive":
            playing &= (ids >= devices) == (kind is Role.HELPER)
            playing &= committee | (kind is not Role.COMMITTEE)
        # Some parties neither send nor receive, or do not compute.
        messages = 1.0 * (playing & (random.random(ids.size) < 0.9))
        cpu = random.exponential(1, ids.size) * (playing & (random.random(ids.size) < 0.5))
        columns = cpu, random.exponential(2e5, ids.size) * messages, messages
        if kind == "receive":
            clock.receive(phase, *columns)
        else:
            gone |= {*clock.answer(phase, kind, *columns)}
    clock.end([*gone])


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("latency", [0.0, 500.0])
def test_devices_alike_take_the_time_of_the_link_model(monkeypatch, name, latency):
    """But for rules that only the clock has.

    The link model counts a latency once a phase and direction, also where devices wait more often
    (`lightsecagg`, `committee`). What helpers or the server do while devices work takes no time of
    its own (`pine`). If all devices send to members, which then receive, the slowest of each
    counts, not the slowest sum (`opa`).
    """
    link = {"uplink_mbps": 1.0, "downlink_mbps": 2.0, "helper_mbps": 4.0, "latency_ms": latency}
    options = {"alpha": 0.5} if name == "cohort" else {}
    options |= {"population": "uniform", "dropout": 0.0, **link}
    seen = watch(monkeypatch, tick=0.25, server_tick=0.0)
    found, record = experiment(name, 12, **options)
    modelled = LinkModel(**link).seconds_of(record)
    expected = modelled.sum() + 1e-3 * latency * {"lightsecagg": 2, "committee": 1}.get(name, 0)
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
