"""Late devices leave the real round: where, with which sum, and at what cost."""

import csv
import math
from types import SimpleNamespace

import numpy as np
import pytest
from watching import experiment, watch

from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.results.record import AWAY

MORE = {"cohort": {"alpha": 0.5}}
ALL = [(name, MORE.get(name, {})) for name in PROTOCOLS if find(name).tolerates_dropouts]
ALL += [(name, {"security": "active"}) for name in ("secagg", "sparse")]


def table(path, rows, **columns):
    """Write a population of equal devices with slow links, but for these columns."""
    columns = {"uplink_mbps": 10, "downlink_mbps": 10, "latency_ms": 1000, "compute": 1} | columns
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(
            [[*columns], *zip(*(np.broadcast_to(v, rows) for v in columns.values()), strict=True)]
        )
    return str(path)


def assert_left_out(found, record, seen):
    """Check that late devices are in the sum if they uploaded in time, and are never heard late.

    Return them.
    """
    clock = seen.clocks[-1]
    upload = next(n for n, step in enumerate(found.protocol.steps) if step.upload)
    late = np.flatnonzero(record.late_phase >= 0).tolist()
    heard = {id: max((n for n, one in seen.taken if one == id), default=-1) for id in late}
    for id in late:
        # The server took all that it sent but the last message.
        sent, taken = sum(id in each for each in clock.arrivals), [one for _, one in seen.taken]
        assert taken.count(id) == max(0, sent - 1)
        assert record.late_reason[id] == AWAY or record.bytes_up[record.late_phase[id], id] > 0
    expected = [id for id, last in heard.items() if last < upload]
    assert np.flatnonzero(~record.survived).tolist() == expected
    assert record.validated
    # What the clock was given is what the ledger has, of late devices too.
    of_devices = clock.fed[:, : len(record.survived)]
    for row, name in enumerate(("bytes_up", "bytes_down", "messages_up", "messages_down")):
        np.testing.assert_array_equal(of_devices[row + 1], getattr(record, name).sum(axis=0))
    np.testing.assert_allclose(of_devices[0], record.cpu_seconds[:, :-1].sum(axis=0))
    return late


@pytest.mark.parametrize(("name", "options"), ALL)
def test_a_round_with_a_quorum_is_the_one_without_the_late_devices(monkeypatch, name, options):
    seen = watch(monkeypatch)
    found, record = experiment(name, population="mobile", quorum=0.8, **options)
    late = assert_left_out(found, record, seen)
    # Three of 15 devices, and a member of a committee.
    assert 3 <= len(late) <= 3 + found.protocol.has_committee
    if len(late) > 3 and name != "flamingo":
        return  # no plan says which of a phase's two exchanges a device misses

    planned = {id: found.phases[record.late_phase[id]] for id in late}
    plan = SimpleNamespace(draw=lambda index: planned, phase=None)
    _, other = experiment(
        name, dropout=0.2, change=lambda one: setattr(one, "schedule", plan), **options
    )
    assert other.promise_failure == pytest.approx(record.promise_failure, nan_ok=True)
    np.testing.assert_array_equal(other.survived, record.survived)
    rest = np.setdiff1d(np.arange(15), late)
    # Sizes of ckks are random, as it compresses.
    for column in ("messages_up", "messages_down", "bytes_up", "bytes_down")[
        : 2 if name == "ckks" else 4
    ]:
        both = getattr(other, column)[:, rest], getattr(record, column)[:, rest]
        np.testing.assert_array_equal(*both, err_msg=column)


@pytest.mark.parametrize(("name", "options"), ALL)
def test_a_device_that_goes_away_is_in_the_sum_if_its_vector_had_arrived(
    monkeypatch, tmp_path, name, options
):
    seen, options = watch(monkeypatch), {"dropout": 0.3} | options
    found, record = experiment(name, population=table(tmp_path / "all.csv", 15), **options)
    assert record.survived.all()

    # One device is away at the start, and one each goes before its answer in the last exchanges.
    arrivals, intervals = seen.clocks[-1].arrivals, ["0-1e9"] * 14 + ["0.1-1e9"]
    needed = found.protocol.settings().get("members_needed", found.protocol.members_in_round)
    for number in range(len(arrivals))[-3:]:
        able = [id for id in arrivals[number] if id < 14 and intervals[id] == "0-1e9"]
        if len(able) not in (0, needed):
            before = max(each.get(able[-1], 0.0) for each in [{}, *arrivals[:number]])
            intervals[able[-1]] = f"0-{(before + arrivals[number][able[-1]]) / 2}"
    seen.taken.clear()
    path = table(tmp_path / "some.csv", 15, on_intervals=intervals)
    found, record = experiment(name, population=path, **options)
    late = assert_left_out(found, record, seen)
    assert late == [id for id in range(15) if intervals[id] != "0-1e9"]
    assert {*record.late_reason[late]} == {AWAY}
    assert not record.bytes_down[:, 14].any()


def spoiling(refusing):
    """Return a change that lets a device refuse to upload its vector, which is not finite."""

    def spoil(experiment):
        right = experiment.updates.vector
        wrong = {refusing: np.nan}
        experiment.updates.vector = lambda index, id: right(index, id) * wrong.get(id, 1)

    return spoil


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
    change = spoiling(refusing if name == "committee" else -1)
    options = {"dropout": 0.0, "quorum": 0.6, "population": path}
    _, record = experiment(name, 30, change=change, **options)
    late = np.flatnonzero(record.late_phase >= 0).tolist()
    assert late == sorted([*others, *members[needed["members_needed"] :].tolist()])
    # With opa, the late members have not uploaded yet.
    assert record.survived.sum() == 18 - (1 if name == "committee" else 2)
    assert record.validated


def test_a_device_that_refuses_and_goes_away_is_not_missed(monkeypatch, tmp_path):
    """It would tell why it left with the next gather, and the sum is without it in any case."""
    watch(monkeypatch)
    intervals = np.where(np.arange(15) == 4, "0-3.5", "0-1e9")  # until after the keys
    path = table(tmp_path / "all.csv", 15, on_intervals=intervals)
    _, record = experiment("committee", change=spoiling(4), dropout=0.2, population=path)
    assert np.flatnonzero(~record.survived).tolist() == [4]
    assert record.late_phase[4] == -1
    assert record.validated
