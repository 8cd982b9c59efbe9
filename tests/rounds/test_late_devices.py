"""Late devices leave the real round: where, with which sum, and at what cost."""

import csv
import math
from types import SimpleNamespace

import numpy as np
import pytest
from watching import experiment, watch

from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.results.record import AWAY, COMPUTE, LINK

TOLERANT = [(name, {}) for name in PROTOCOLS if find(name).tolerates_dropouts]
ALL = [*TOLERANT, ("secagg", {"security": "active"}), ("sparse", {"security": "active"})]
MORE = {"cohort": {"alpha": 0.5}}


def table(path, rows, **columns):
    """Write a population of equal devices with slow links, but for these columns."""
    columns = {"uplink_mbps": 10, "downlink_mbps": 10, "latency_ms": 1000, "compute": 1} | columns
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(
            zip(*([v] * rows if np.isscalar(v) else v for v in columns.values()), strict=True)
        )
    return str(path)


def assert_left_out(experiment, record, seen):
    """Check that late devices are in the sum if they uploaded in time, and are never heard late."""
    (clock,) = seen.clocks
    steps, phases = experiment.protocol.steps, experiment.phases
    upload = next(number for number, step in enumerate(steps) if step.upload)
    late = np.flatnonzero(record.late_phase >= 0).tolist()
    last = {id: max((n for n, one in seen.taken if one == id), default=-1) for id in late}
    for id in late:
        # Nothing was taken in the exchange that it missed, or after.
        assert last[id] < len(steps)
        assert last[id] == -1 or phases.index(steps[last[id]].phase) <= record.late_phase[id]
        assert record.survived[id] == (last[id] >= upload)
    assert sorted(np.flatnonzero(~record.survived)) == [id for id in late if last[id] < upload]
    assert record.validated
    # What the clock was given is what the ledger has, of late devices too.
    devices = len(record.survived)
    up, down = clock.fed[1, :devices], clock.fed[2, :devices]
    np.testing.assert_array_equal(up, record.bytes_up.sum(axis=0))
    np.testing.assert_array_equal(down, record.bytes_down.sum(axis=0))
    np.testing.assert_allclose(clock.fed[0, :devices], record.cpu_seconds[:, :-1].sum(axis=0))
    for id in late:
        if record.late_reason[id] != AWAY:
            assert record.bytes_up[record.late_phase[id], id] > 0
    return late


@pytest.mark.parametrize(("name", "options"), ALL)
def test_a_round_with_a_quorum_is_the_one_without_the_late_devices(monkeypatch, name, options):
    seen = watch(monkeypatch)
    options = {"population": "mobile", "quorum": 0.8} | MORE.get(name, {}) | options
    found, record = experiment(name, **options)
    late = assert_left_out(found, record, seen)
    # Three of 15 devices, and a member of a committee.
    assert 3 <= len(late) <= 3 + found.protocol.has_committee

    if len(late) > 3 and name != "flamingo":
        return  # No plan says which of a phase's two exchanges a device misses.
    # The same devices drop out by plan.
    planned = {id: found.phases[record.late_phase[id]] for id in late}
    del options["population"], options["quorum"]

    def plan(experiment):
        experiment.schedule = SimpleNamespace(draw=lambda index: planned, phase=None)

    _, other = experiment(name, dropout=0.2, change=plan, **options)
    np.testing.assert_array_equal(other.survived, record.survived)
    np.testing.assert_equal(other.promise_failure, record.promise_failure)
    rest = np.setdiff1d(np.arange(15), late)
    sized = () if name == "ckks" else ("bytes_up", "bytes_down")  # random, as it is compressed
    for column in (*sized, "messages_up", "messages_down"):
        np.testing.assert_array_equal(
            getattr(other, column)[:, rest], getattr(record, column)[:, rest], err_msg=column
        )
    assert math.isnan(other.event_seconds.sum())


@pytest.mark.parametrize(("name", "options"), ALL)
def test_a_device_that_goes_away_is_in_the_sum_if_its_vector_had_arrived(
    monkeypatch, tmp_path, name, options
):
    seen = watch(monkeypatch)
    options = {"dropout": 0.3} | MORE.get(name, {}) | options
    found, record = experiment(name, population=table(tmp_path / "all.csv", 15), **options)
    assert record.survived.all()

    # One device is away at the start, and one each goes before its answer in the last exchanges.
    (calm,) = seen.clocks
    earlier, intervals = [dict.fromkeys(range(15), 0.0)], ["0-1e9"] * 15
    for exchange in calm.arrivals:
        earlier.append(earlier[-1] | exchange)
    intervals[14] = "0.1-1e9"
    needed = found.protocol.settings().get("members_needed", found.protocol.members_in_round)
    for before, exchange in [*zip(earlier, calm.arrivals, strict=False)][::-1][:3]:
        able = [id for id in exchange if id < 15 and intervals[id] == "0-1e9"]
        if len(able) not in (0, needed):
            intervals[able[-1]] = f"0-{(before[able[-1]] + exchange[able[-1]]) / 2}"
    seen.clocks.clear()
    seen.taken.clear()
    path = table(tmp_path / "some.csv", 15, on_intervals=intervals)
    found, record = experiment(name, population=path, **options)

    late = assert_left_out(found, record, seen)
    assert late == [id for id in range(15) if intervals[id] != "0-1e9"]
    assert {*record.late_reason[late]} == {AWAY}
    assert record.late_phase[14] == 0
    assert not record.bytes_down[:, 14].any()


def test_at_the_deadline_the_server_goes_on(monkeypatch, tmp_path):
    seen = watch(monkeypatch)
    latency = np.where(np.arange(12) % 4 == 1, 60_000, 1000)
    compute = np.where(np.arange(12) == 3, 1e8, 1.0)
    path = table(tmp_path / "all.csv", 12, latency_ms=latency, compute=compute)
    found, record = experiment("secagg", 12, dropout=0.4, population=path, deadline=30.0)

    assert assert_left_out(found, record, seen) == [1, 3, 5, 9]
    assert record.late_reason[[1, 3, 5, 9]].tolist() == [LINK, COMPUTE, LINK, LINK]
    assert (record.late_phase[[1, 3, 5, 9]] == found.phases.index("advertise_keys")).all()
    # Without them, the server waits only for those that are left.
    assert record.event_seconds[1] == pytest.approx(30 + 1, rel=1e-3)  # and the list of keys
    assert record.event_seconds[2:].max() < 10


@pytest.mark.parametrize("name", ["committee", "opa"])
def test_a_quorum_leaves_as_many_members_as_are_needed(monkeypatch, tmp_path, name):
    watch(monkeypatch)
    found, record = experiment(name, 30, dropout=0.0)
    members, needed = np.flatnonzero(record.in_committee), found.protocol.settings()
    assert math.ceil(0.6 * members.size) < needed["members_needed"] < members.size

    # The devices that the first quorum leaves out are none of the members, nor is one that refuses
    # to share its vector: its refusal comes first and counts for no member's answer.
    refusing, *others = np.flatnonzero(~record.in_committee)[:13].tolist()
    latency = 1000.0 + np.arange(30)
    latency[others], latency[refusing] = 5000, 10
    path = table(tmp_path / "all.csv", 30, latency_ms=latency)
    options = {"dropout": 0.0, "quorum": 0.6, "population": path}
    change = spoiling(refusing if name == "committee" else -1)
    found, record = experiment(name, 30, change=change, **options)
    late = np.flatnonzero(record.late_phase >= 0).tolist()
    assert late == sorted([*others, *members[needed["members_needed"] :].tolist()])
    # With opa, the late members have not uploaded yet.
    assert record.survived.sum() == 18 - (1 if name == "committee" else 2)
    assert record.validated


def spoiling(refusing):
    """Return a change that lets a device refuse to upload its vector, which is not finite."""

    def spoil(experiment):
        right = experiment.updates.vector
        experiment.updates.vector = lambda index, id: (
            right(index, id) * (np.nan if id == refusing else 1)
        )

    return spoil


def test_a_device_that_refuses_and_goes_away_is_not_missed(monkeypatch, tmp_path):
    """It would tell why it left with the next gather, and the sum is without it in any case."""
    watch(monkeypatch)
    intervals = ["0-1e9"] * 15
    intervals[4] = "0-3.5"  # until after the keys
    path = table(tmp_path / "all.csv", 15, on_intervals=intervals)
    _, record = experiment("committee", change=spoiling(4), dropout=0.2, population=path)

    assert np.flatnonzero(~record.survived).tolist() == [4]
    assert record.late_phase[4] == -1
    assert record.validated
