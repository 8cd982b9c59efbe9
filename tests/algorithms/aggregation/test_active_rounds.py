"""Rounds of the active variant with an honest server: exact sums, and messages as documented."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cheating import converse, enrolled, make
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol_rounds import bits, plain_sum, play, updates

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.parameters import Parameters
from hpcfl.bench.experiment import Experiment, Options
from hpcfl.comm.loopback import Loopback
from hpcfl.comm.phases import Pattern
from hpcfl.errors import BelowThresholdError, MessageError, UsageError

NAMES = ("secagg", "sparse")
DROPPABLE = ("advertise_keys", "share_keys", "masked_input", "consistency_check", "unmask")


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.mark.parametrize("group", ["fq", "ring32"])
@pytest.mark.parametrize("phase", DROPPABLE)
def test_the_sum_is_exact_whatever_the_phase_of_the_dropouts(
    name: str, phase: str, group: str
) -> None:
    played = play(make(name, 10, group=group), dropouts=dict.fromkeys([0, 4, 9], phase))

    assert played.server.survivors == played.taking_part("masked_input")
    assert played.server.total.tolist() == plain_sum(played).tolist()


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_the_sum_is_exact_whoever_drops_out_when(data: st.DataObject) -> None:
    name, devices = data.draw(st.sampled_from(NAMES)), data.draw(st.integers(2, 13))
    most = devices - (2 * devices // 3 + 1)
    ids = data.draw(st.lists(st.integers(0, devices - 1), unique=True, max_size=most))
    dropouts = {id: data.draw(st.sampled_from(DROPPABLE)) for id in ids}
    played = play(
        make(name, devices), dropouts=dropouts, index=data.draw(st.integers(0, 2**32 - 2))
    )

    assert played.server.survivors == played.taking_part("masked_input")
    assert played.server.total.tolist() == plain_sum(played).tolist()


def test_the_active_sum_is_the_passive_one(name: str) -> None:
    dropouts = {3: "masked_input", 5: "unmask"}
    active, passive = (
        play(make(name, 10, security=security), dropouts=dropouts)
        for security in ("active", "passive")
    )

    if name == "secagg":
        assert active.server.total.tolist() == passive.server.total.tolist()
    assert active.server.survivors == passive.server.survivors


@pytest.mark.parametrize("phase", DROPPABLE)
def test_a_round_ends_at_the_server_below_the_threshold(name: str, phase: str) -> None:
    with pytest.raises(BelowThresholdError, match=r"6 of 10 devices .* at least 7 are needed"):
        play(make(name, 10), dropouts=dict.fromkeys([1, 2, 3, 4], phase))


@pytest.mark.parametrize(
    ("devices", "threshold"), [(2, 2), (3, 3), (4, 3), (5, 4), (6, 5), (9, 7), (10, 7), (100, 67)]
)
def test_the_threshold_is_more_than_two_thirds(devices: int, threshold: int) -> None:
    parameters = Parameters(devices, 5, security="active")

    assert threshold == parameters.threshold
    assert threshold > 2 * devices / 3 >= threshold - 1
    assert devices // 2 + 1 == replace(parameters, security="passive").threshold


@given(st.integers(2, 10**6), st.floats(0, 1, exclude_max=True))
def test_no_two_lists_are_endorsed_by_a_threshold_each(devices: int, part: float) -> None:
    threshold = Parameters(devices, 5, security="active").threshold
    colluding = int(part * (-(-devices // 3)))  # fewer than a third

    assert 3 * colluding < devices
    assert 2 * (threshold - colluding) > devices - colluding
    assert threshold > colluding


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dropout": 0.34}, "dropout is 0.34; with --security active it must be below 1/3"),
        ({"gamma": 0.34}, "gamma is 0.34; with --security active it must be below 1/3"),
        ({"degree": 4}, "the degree is 4; with --security active every device"),
        ({"security": "paranoid"}, "security is 'paranoid'; choose one of passive, act"),
    ],
)
def test_what_would_not_be_safe_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Parameters(10, 5, **{"security": "active", **options})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("secagg-graph", "the server could choose whom a device has as neighbours"),
        ("cohort", "a cohort is left with one device"),
        ("prf", "no survivors to agree on"),
        ("fedavg", "it hides nothing"),
        ("some.where:Protocol", "no such variant"),
    ],
)
def test_protocols_without_the_variant_are_refused(name: str, reason: str) -> None:
    with pytest.raises(
        UsageError, match=f"{name} cannot be run with --security active: .*{reason}"
    ):
        find(name, "active")


def test_only_some_of_the_enrolled_devices_take_part(name: str) -> None:
    identities = enrolled(name, 9)
    members = [1, 2, 5, 8]
    played = play(make(name, 4, identities=identities, members=members))

    assert played.server.total.tolist() == plain_sum(played).tolist()


def test_messages_are_as_documented(name: str) -> None:
    played = play(make(name, 10), dropouts={4: "masked_input", 7: "consistency_check"})
    survivors = [0, 1, 2, 3, 5, 6, 7, 8, 9]
    endorsers = [id for id in survivors if id != 7]

    assert bits(survivors, 10) + bits([4], 10) == played.told("consistency_check")
    tags = played.sent("consistency_check")
    assert dict.fromkeys(endorsers, 16 * 8) == {id: len(sent) for id, sent in tags.items()}
    told = played.told_each("unmask")
    for receiver in endorsers:
        expected = bits(endorsers, 10)
        for sender in endorsers:
            if sender != receiver:
                place = [id for id in survivors if id != sender].index(receiver)
                expected += tags[sender][16 * place : 16 * (place + 1)]
        assert expected == told[receiver]


def test_what_travels_before_the_check_is_as_large_as_in_the_passive_variant(name: str) -> None:
    active, passive = (play(make(name, 10, security=kind)) for kind in ("active", "passive"))

    for phase in ("advertise_keys", "share_keys"):
        column = active.protocol.phases().index(phase)
        assert active.record.bytes_up[column].tolist() == passive.record.bytes_up[column].tolist()
    assert 5 == active.protocol.phases().index("consistency_check") + 1


def test_wrong_endorsements_of_a_few_devices_do_not_stop_the_others(name: str) -> None:
    found = converse(make(name, 10), before=("unmask", Pattern.SCATTER))
    for id in (1, 5, 6):
        found.server._tags[id] ^= 1

    for id in (0, 2, 9):
        found.devices[id].receive_unmask(found.server.send_unmask(id))
        assert found.devices[id].send_unmask().size


def test_the_server_refuses_what_no_survivor_sends(name: str) -> None:
    found = converse(
        make(name, 10), before=("consistency_check", Pattern.GATHER), dropouts={4: "masked_input"}
    )
    right = found.devices[0].send_consistency_check()

    with pytest.raises(MessageError, match="from device 4: it is no survivor"):
        found.server.receive_consistency_check(4, right)
    with pytest.raises(MessageError, match="127 bytes came, 128 were expected"):
        found.server.receive_consistency_check(0, right[:-1])
    found.server.receive_consistency_check(0, right)
    with pytest.raises(MessageError, match="from device 0: it came twice"):
        found.server.receive_consistency_check(0, right)


def test_noise_counts_on_as_few_honest_devices_as_a_server_may_choose() -> None:
    active, passive = (
        make("secagg", 30, security=kind, dropout=0.1) for kind in ("active", "passive")
    )

    assert 21 - 3 == active.honest_in_sum()
    # One may vanish besides the planned ones.
    assert 30 - 3 - 1 - 3 == passive.honest_in_sum()


def test_a_bench_run_enrols_once_and_records_what_it_ran() -> None:
    options = Options(protocol="secagg", dim=30, rounds=2, warmup=1, security="active", levels=1000)
    experiment = Experiment.prepare(options, 10)
    records: list[Any] = []
    experiment.run(Loopback(10), records.append)

    assert [True] * 3 == [record.validated for record in records]
    phase = experiment.protocol.phases().index("advertise_keys")
    each = [int(record.bytes_up[phase, 0]) for record in records]
    assert [16 + 64 + 16 + 96, 16 + 64, 16 + 64] == each
    down = [int(record.bytes_down[phase, 0]) for record in records]
    assert down[0] - down[1] == 16 + 96 * 10
    config = experiment.config()
    assert ("active", 7) == (config["security"], config["threshold"])
    assert any("a server that cheats" in sentence for sentence in config["promises"])


def test_a_transcript_is_of_a_curious_server(tmp_path: Any) -> None:
    options = Options(
        protocol="secagg", security="active", insecure_seed=1, keep_transcript=tmp_path / "t.npz"
    )
    with pytest.raises(UsageError, match="--keep-transcript is for attacks of a curious server"):
        Experiment.prepare(options, 10)


def test_rounds_differ_though_identities_stay() -> None:
    protocol = make("secagg", 5)
    vectors = updates(protocol)
    first, second = (play(protocol, vectors, index=index) for index in (0, 1))

    for phase in ("advertise_keys", "masked_input", "consistency_check"):
        for id in range(5):
            assert first.sent(phase)[id] != second.sent(phase)[id]
    np.testing.assert_allclose(
        protocol.decode(first.server.total), protocol.decode(second.server.total), atol=0.02
    )
