"""Rounds of the active variant with an honest server: exact sums, and messages as documented."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cheating import converse, enrolled, enrolled_with_strangers, make
from hypothesis import given
from hypothesis import strategies as st
from protocol_rounds import Header, bits, plain_sum, play, raw, sum_of, updates
from slow_reference import ABSENT, Q

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.parameters import Parameters
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.loopback import Loopback
from hpcfl.comm.phases import Pattern
from hpcfl.errors import BelowThresholdError, MessageError, UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.rounds.observer import Results
from hpcfl.rounds.timed import Played

NAMES = ("secagg", "sparse")
DROPPABLE = ("advertise_keys", "share_keys", "masked_input", "consistency_check", "unmask")


@pytest.fixture(params=NAMES)
def name(request):
    found: str = request.param
    return found


@pytest.mark.parametrize("group", ["fq", "ring32"])
@pytest.mark.parametrize("phase", DROPPABLE)
def test_the_sum_is_exact_whatever_the_phase_of_the_dropouts(name, phase, group):
    played = play(make(name, 10, group=group), dropouts=dict.fromkeys([0, 4, 9], phase))

    assert played.server.survivors == played.taking_part("masked_input")
    assert played.server.total.tolist() == plain_sum(played).tolist()


@given(st.data())
def test_the_sum_is_exact_whoever_drops_out_when(data):
    name, devices = data.draw(st.sampled_from(NAMES)), data.draw(st.integers(2, 13))
    most = devices - (2 * devices // 3 + 1)
    ids = data.draw(st.lists(st.integers(0, devices - 1), unique=True, max_size=most))
    dropouts = {id: data.draw(st.sampled_from(DROPPABLE)) for id in ids}
    played = play(
        make(name, devices), dropouts=dropouts, index=data.draw(st.integers(0, 2**32 - 2))
    )

    assert played.server.survivors == played.taking_part("masked_input")
    assert played.server.total.tolist() == plain_sum(played).tolist()


def test_the_active_sum_is_the_passive_one(name):
    dropouts = {3: "masked_input", 5: "unmask"}
    active, passive = (
        play(make(name, 10, security=security), dropouts=dropouts)
        for security in ("active", "passive")
    )

    if name == "secagg":
        assert active.server.total.tolist() == passive.server.total.tolist()
    assert active.server.survivors == passive.server.survivors


@pytest.mark.parametrize("phase", DROPPABLE)
def test_a_round_ends_at_the_server_below_the_threshold(name, phase):
    with pytest.raises(BelowThresholdError, match=r"6 of 10 devices .* at least 7 are needed"):
        play(make(name, 10), dropouts=dict.fromkeys([1, 2, 3, 4], phase))


@pytest.mark.parametrize(
    ("devices", "threshold"), [(2, 2), (3, 3), (4, 3), (5, 4), (6, 5), (9, 7), (10, 7), (100, 67)]
)
def test_the_threshold_is_more_than_two_thirds(devices, threshold):
    parameters = Parameters(devices, 5, security="active")

    assert threshold == parameters.threshold
    assert threshold > 2 * devices / 3 >= threshold - 1
    assert devices // 2 + 1 == replace(parameters, security="passive").threshold


@given(st.integers(2, 10**6), st.floats(0, 1, exclude_max=True))
def test_no_two_lists_are_endorsed_by_a_threshold_each(devices, part):
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
        ({"degree": 4}, "--degree is 4; with --security active every device"),
        ({"security": "paranoid"}, "security is 'paranoid'; choose one of passive, act"),
    ],
)
def test_what_would_not_be_safe_is_refused(options, sentence):
    with pytest.raises(UsageError, match=sentence):
        Parameters(10, 5, **{"security": "active", **options})


class Bare(AggregationProtocol):
    """A protocol that says nothing of a variant."""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("secagg-graph", "the server could choose whom a device has as neighbours"),
        ("cohort", "a cohort is left with one device"),
        ("prf", "no survivors to agree on"),
        ("fedavg", "it hides nothing"),
        ("test_active_rounds:Bare", "there is no such variant of it"),
    ],
)
def test_protocols_without_the_variant_are_refused(name, reason):
    with pytest.raises(
        UsageError, match=f"{name} cannot be run with --security active: .*{reason}"
    ):
        find(name, "active")


def test_only_some_of_the_enrolled_devices_take_part(name):
    identities = enrolled(name, 9)
    members = [1, 2, 5, 8]
    played = play(make(name, 4, identities=identities, members=members))

    assert played.server.total.tolist() == plain_sum(played).tolist()


def test_messages_are_as_documented(name):
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


def test_what_travels_before_the_check_is_as_large_as_in_the_passive_variant(name):
    active, passive = (play(make(name, 10, security=kind)) for kind in ("active", "passive"))

    for phase in ("advertise_keys", "share_keys"):
        column = active.protocol.phases().index(phase)
        assert active.record.bytes_up[column].tolist() == passive.record.bytes_up[column].tolist()
    assert 5 == active.protocol.phases().index("consistency_check") + 1


def test_wrong_endorsements_of_a_few_devices_do_not_stop_the_others(name):
    found = converse(make(name, 10), before=("unmask", Pattern.SCATTER))
    for id in (1, 5, 6):
        found.server._tags[id] ^= 1

    for id in (0, 2, 9):
        found.devices[id].receive_unmask(found.server.send_unmask(id))
        assert found.devices[id].send_unmask().size


def test_the_server_refuses_what_no_survivor_sends(name):
    found = converse(
        make(name, 10), before=("consistency_check", Pattern.GATHER), dropouts={4: "masked_input"}
    )
    right = found.devices[0].send_consistency_check()

    with pytest.raises(MessageError, match="from device 4: it is not a survivor"):
        found.server.receive_consistency_check(4, right)
    with pytest.raises(MessageError, match="received 127 bytes, expected 128"):
        found.server.receive_consistency_check(0, right[:-1])
    found.server.receive_consistency_check(0, right)
    with pytest.raises(MessageError, match="from device 0: it was received twice"):
        found.server.receive_consistency_check(0, right)


# Devices that nobody knows, that deal wrongly, or answer falsely

EXPELLED = "two holders or more have no right share of its secrets: it is expelled"


@pytest.mark.parametrize("strangers", [[4], [0, 4], [2, 4, 9]], ids=str)
def test_a_device_whose_identity_is_not_signed_takes_no_part_and_all_others_stay(name, strangers):
    """With t = 7, three of ten may be absent. Nobody masks with them, or is asked about them."""
    identities = enrolled_with_strangers(name, 10, strangers)
    played = play(make(name, 10, identities=identities))
    honest = [id for id in range(10) if id not in strangers]

    assert strangers == sorted(played.left) == sorted(played.kept_out)
    for id in strangers:
        words = f"device {id} refuses to go on: the shares of 1 devices, itself included, are"
        assert words in str(played.left[id])
        assert EXPELLED in str(played.server.refused[id])
    assert bits(strangers, 10) == played.told("expelled")
    assert bits(honest, 10) + bits([], 10) == played.told("consistency_check")
    for id in honest:
        ignored = [error.sender for error in played.devices[id].ignored]
        assert [f"device {one}" for one in strangers] == ignored
        assert honest == played.devices[id]._members()
    assert honest == played.server.survivors == sorted(played.sent("unmask"))
    assert sum_of(played, honest).tolist() == played.server.total.tolist()
    assert {} == played.sent("pairs")


def test_with_one_stranger_more_than_can_be_spared_devices_go_no_further(name):
    identities = enrolled_with_strangers(name, 10, [0, 2, 4, 9])
    with pytest.raises(BelowThresholdError, match="0 of 10 devices answered the challenge"):
        play(make(name, 10, identities=identities))
    found = converse(
        make(name, 10, identities=enrolled_with_strangers(name, 10, [0, 2, 4, 9])),
        before=("checks", Pattern.GATHER),
    )
    assert list(range(10)) == sorted(found.refusals)
    for id in (1, 3, 5, 6, 7, 8):
        assert "the shares of 6 devices, itself included" in str(found.refusals[id])


@pytest.mark.parametrize("dropouts", [{}, {7: "unmask"}, {7: "masked_input"}], ids=str)
def test_strangers_and_planned_dropouts_do_not_add_up_to_more(name, dropouts):
    identities = enrolled_with_strangers(name, 10, [4])
    played = play(make(name, 10, identities=identities), dropouts=dropouts)
    survivors = [id for id in played.taking_part("masked_input") if id != 4]
    assert survivors == played.server.survivors
    assert sum_of(played, survivors).tolist() == played.server.total.tolist()


def test_a_run_goes_on_without_a_device_whose_identity_key_did_not_arrive(capsys):
    """Its message is cut. It takes no part in any round; each round ends, and is validated."""

    class Cutting(Loopback):
        def gather(self, senders, produce, largest):
            for sender, message in super().gather(senders, produce, largest):
                header = Header.of(message)
                cut = (header.round, header.sender) == (2**32 - 1, 3)
                yield sender, message[:-1] if cut else message

    options = BenchOptions(
        protocol="secagg", dim=30, rounds=2, warmup=0, security="active", levels=1000, dropout=0.0
    )
    experiment = Experiment.prepare(options, 10)
    rounds = Results[Played]()
    experiment.run(Cutting(10), rounds)
    assert [True, True] == [record.validated for record in rounds.records]
    for played in rounds.results:
        assert [0, 1, 2, 4, 5, 6, 7, 8, 9] == np.flatnonzero(played.record.survived).tolist()
        assert "device 3 refuses to take part: it has not enrolled" in str(played.refused[3])


def change_sent(protocol, step, sender, change):
    """Return a change of what one device sends in a step."""
    (number,) = [
        number
        for number, one in enumerate(protocol.steps)
        if one.name == step and one.pattern in (Pattern.GATHER, Pattern.ROUTE)
    ]

    def changed(header, message):
        return (
            change(message.copy()) if (header.step, header.sender) == (number, sender) else message
        )

    return changed


def spoil_for(*victims):
    def spoil(block):
        block[np.isin(Header.receivers_of(block), victims), -1] ^= 1
        return block

    return spoil


@pytest.mark.parametrize("dropouts", [{}, {7: "unmask"}, {7: "masked_input"}], ids=str)
def test_a_dealer_is_expelled_if_two_holders_have_no_share_of_it_and_not_if_one_has_none(
    name, dropouts
):
    for victims in ([5], [5, 8]):
        protocol = make(name, 10)
        change = change_sent(protocol, "share_keys", 3, spoil_for(*victims))
        played = play(protocol, change=change, dropouts=dropouts)
        survivors = played.taking_part("masked_input")
        if len(victims) == 1:
            assert ({}, {}) == (played.kept_out, played.left)
        else:
            survivors.remove(3)
            assert [3] == list(played.kept_out) == list(played.left)
            assert EXPELLED in str(played.kept_out[3])
            words = "device 3 is told that the shares of its secrets do not belong together"
            assert words == str(played.left[3])
        assert survivors == played.server.survivors
        assert sum_of(played, survivors).tolist() == played.server.total.tolist()


@pytest.mark.parametrize("lie", ["uniform", "all ones"])
@pytest.mark.parametrize("dropouts", [{1: "share_keys"}, {1: "unmask"}], ids=str)
def test_one_liar_about_all_dealers_costs_at_most_itself_where_nine_answer(name, dropouts, lie):
    """T + 2 of ten, or one more: who then vanishes is not missed."""

    def change(message):
        words = np.full(message.size // 4 - 4, ABSENT, "<u4")
        if lie == "uniform":
            words = np.random.default_rng(2).integers(0, Q, words.size).astype("<u4")
        return np.concatenate([message[:16], raw(words.tobytes())])

    protocol = make(name, 10)
    played = play(protocol, change=change_sent(protocol, "checks", 2, change), dropouts=dropouts)
    survivors = played.taking_part("masked_input")
    assert {} == played.left
    assert ([2] if lie == "uniform" else []) == list(played.kept_out)
    assert survivors == played.server.survivors
    assert sum_of(played, survivors).tolist() == played.server.total.tolist()


def test_noise_counts_on_as_few_honest_devices_as_a_server_may_choose():
    active, passive = (
        make("secagg", 30, security=kind, dropout=0.1) for kind in ("active", "passive")
    )

    assert 21 - 3 == active.honest_in_sum()
    # One may vanish besides the planned ones.
    assert 30 - 3 - 1 - 3 == passive.honest_in_sum()


def test_a_bench_run_enrols_once_and_records_what_it_ran():
    options = BenchOptions(
        protocol="secagg", dim=30, rounds=2, warmup=1, security="active", levels=1000
    )
    experiment = Experiment.prepare(options, 10)
    rounds = Results[Played]()
    experiment.run(Loopback(10), rounds)
    records = rounds.records

    assert [True] * 3 == [record.validated for record in records]
    phase = experiment.protocol.phases().index("advertise_keys")
    each = [int(record.bytes_up[phase, 0]) for record in records]
    assert [16 + 64 + 16 + 96, 16 + 64, 16 + 64] == each
    down = [int(record.bytes_down[phase, 0]) for record in records]
    assert down[0] - down[1] == 16 + 96 * 10
    config = experiment.config()
    assert ("active", 7) == (config["security"], config["threshold"])
    assert any("a server that cheats" in sentence for sentence in config["promises"])


def test_a_transcript_is_of_a_curious_server(tmp_path):
    options = BenchOptions(
        protocol="secagg", security="active", insecure_seed=1, keep_transcript=tmp_path / "t.npz"
    )
    with pytest.raises(UsageError, match="--keep-transcript is for attacks of a curious server"):
        Experiment.prepare(options, 10)


def test_rounds_differ_though_identities_stay():
    protocol = make("secagg", 5)
    vectors = updates(protocol)
    first, second = (play(protocol, vectors, index=index) for index in (0, 1))

    for phase in ("advertise_keys", "masked_input", "consistency_check"):
        for id in range(5):
            assert first.sent(phase)[id] != second.sent(phase)[id]
    np.testing.assert_allclose(
        protocol.decode(first.server.total), protocol.decode(second.server.total), atol=0.02
    )
