"""Rounds of the active variant with an honest server: exact sums, and messages as documented."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cheating import enrolled_with_strangers
from hypothesis import given
from hypothesis import strategies as st
from protocol_rounds import (
    Header,
    bits,
    enrolled,
    make,
    play,
    raw,
    sent_by_device,
    spoiling,
    updates,
)
from slow_reference import ABSENT, Q

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.aggregation.fedavg import FedAvg
from hpcfl.algorithms.parameters import Parameters
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.loopback import Loopback
from hpcfl.comm.phases import Pattern
from hpcfl.errors import BelowThresholdError, MessageError, UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.rounds.observer import Results
from hpcfl.rounds.timed import Played

N = 10  # t = 7
DROPPABLE = ("advertise_keys", "share_keys", "masked_input", "consistency_check", "unmask")
EXPELLED = "too many holders have no right share of its secrets: it is expelled"
# What sparse uploads change is in their passive variant: one of its own suffices for it.
each_kind = pytest.mark.parametrize("name", ["secagg", "sparse"])


def active(name="secagg", devices=N, **options):
    return make(name, devices, security="active", **options)


@pytest.mark.parametrize(("name", "group"), [("secagg", "fq"), ("sparse", "ring32")])
@pytest.mark.parametrize("phase", DROPPABLE)
def test_the_sum_is_exact_whatever_the_phase_of_the_dropouts(name, phase, group):
    play(active(name, group=group), dropouts=dict.fromkeys([0, 4, 9], phase)).goes_on()


@each_kind
@given(data=st.data())
def test_the_sum_is_exact_whoever_drops_out_when(name, data):
    devices = data.draw(st.integers(2, 13))
    most = devices - (2 * devices // 3 + 1)
    ids = data.draw(st.lists(st.integers(0, devices - 1), unique=True, max_size=most))
    dropouts = {id: data.draw(st.sampled_from(DROPPABLE)) for id in ids}
    index = data.draw(st.integers(0, 2**32 - 2))
    play(active(name, devices), dropouts=dropouts, index=index).goes_on()


@pytest.mark.parametrize("phase", DROPPABLE)
def test_a_round_ends_at_the_server_below_the_threshold(phase):
    with pytest.raises(BelowThresholdError, match=r"6 of 10 devices .* at least 7 are needed"):
        play(active(), dropouts=dict.fromkeys([1, 2, 3, 4], phase))


@given(st.integers(2, 10**6), st.floats(0, 1, exclude_max=True))
def test_no_two_lists_are_endorsed_by_a_threshold_each(devices, part):
    parameters = Parameters(devices, 5, security="active")
    threshold = parameters.threshold
    colluding = int(part * (-(-devices // 3)))  # fewer than a third

    assert threshold > 2 * devices / 3 >= threshold - 1
    assert devices // 2 + 1 == replace(parameters, security="passive").threshold
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


def test_more_colluders_in_a_round_than_are_tolerated_are_refused():
    with pytest.raises(UsageError, match="at most 3 of 10 devices may collude, and should 20 of"):
        make("secagg", 10, security="active", gamma=0.1, population=200)


class Bare(FedAvg):
    """A protocol that says nothing of a variant."""

    name = "bare"
    not_active = AggregationProtocol.not_active


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("secagg-graph", "the server could choose whom a device has as neighbours"),
        ("cohort", "a cohort is left with one device"),
        ("common", "it has not been analysed against such a server"),
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


@each_kind
def test_only_some_of_the_enrolled_devices_take_part(name):
    play(active(name, 4, identities=enrolled(name, 9), members=[1, 2, 5, 8])).goes_on()


def test_messages_are_as_documented():
    played = play(active(), dropouts={4: "masked_input", 7: "consistency_check"})
    survivors = [0, 1, 2, 3, 5, 6, 7, 8, 9]
    endorsers = [id for id in survivors if id != 7]

    assert bits(survivors, N) + bits([4], N) == played.told("consistency_check")
    tags = played.sent("consistency_check")
    assert dict.fromkeys(endorsers, 16 * 8) == {id: len(sent) for id, sent in tags.items()}
    told = played.told_each("unmask")
    for receiver in endorsers:
        expected = bits(endorsers, N)
        for sender in endorsers:
            if sender != receiver:
                place = [id for id in survivors if id != sender].index(receiver)
                expected += tags[sender][16 * place : 16 * (place + 1)]
        assert expected == told[receiver]
    # What travels before the check is as large as in the passive variant.
    dropouts, phases = {4: "masked_input"}, played.protocol.phases()
    one, other = (
        play(make("secagg", N, security=s), None, dropouts) for s in ("active", "passive")
    )
    for phase in ("advertise_keys", "share_keys"):
        column = phases.index(phase)
        assert one.record.bytes_up[column].tolist() == other.record.bytes_up[column].tolist()
    assert one.server.total.tolist() == other.server.total.tolist()


def test_wrong_endorsements_of_a_few_devices_do_not_stop_the_others():
    played = play(active(), before=("unmask", Pattern.SCATTER))
    for id in (1, 5, 6):
        played.server._tags[id] ^= 1
    for id in (0, 2, 9):
        played.devices[id].receive_unmask(played.server.send_unmask(id))
        assert played.devices[id].send_unmask().size


def test_the_server_refuses_what_no_survivor_sends():
    before = ("consistency_check", Pattern.GATHER)
    played = play(active(), dropouts={4: "masked_input"}, before=before)
    right = played.devices[0].send_consistency_check()
    take = played.server.receive_consistency_check

    with pytest.raises(MessageError, match="from device 4: it is not a survivor"):
        take(4, right)
    with pytest.raises(MessageError, match="received 127 bytes, expected 128"):
        take(0, right[:-1])
    take(0, right)
    with pytest.raises(MessageError, match="from device 0: it was received twice"):
        take(0, right)


# Devices that nobody knows, that deal wrongly, or answer falsely


@each_kind
@pytest.mark.parametrize(
    ("strangers", "dropouts"),
    [([4], {}), ([2, 4, 9], {}), ([4], {7: "unmask"}), ([4], {7: "masked_input"})],
    ids=str,
)
def test_a_device_whose_identity_is_not_signed_takes_no_part_and_all_others_stay(
    name, strangers, dropouts
):
    """With t = 7, three of ten may be absent. Nobody masks with them, or is asked about them."""
    identities = enrolled_with_strangers(name, N, strangers)
    played = play(active(name, identities=identities), dropouts=dropouts)
    honest = [id for id in range(N) if id not in strangers]
    survivors = [id for id in played.taking_part("masked_input") if id not in strangers]

    assert strangers == sorted(played.left) == sorted(played.kept_out)
    for id in strangers:
        words = f"device {id} refuses to go on: the shares of 1 devices, itself included, are"
        assert words in str(played.left[id])
        assert EXPELLED in str(played.server.refused[id])
    assert bits(strangers, N) == played.told("expelled")
    for id in honest:
        ignored = [error.sender for error in played.devices[id].ignored]
        assert [f"device {one}" for one in strangers] == ignored
        assert honest == played.devices[id]._members()
    played.goes_on(survivors)
    assert {} == played.sent("pairs")


def test_with_one_stranger_more_than_can_be_spared_devices_go_no_further():
    protocol = active(identities=enrolled_with_strangers("secagg", N, [0, 2, 4, 9]))
    with pytest.raises(BelowThresholdError, match="0 of 10 devices answered the challenge"):
        play(protocol)
    protocol = active(identities=enrolled_with_strangers("secagg", N, [0, 2, 4, 9]))
    played = play(protocol, before=("checks", Pattern.GATHER))
    assert list(range(N)) == sorted(played.left)
    for id in (1, 3, 5, 6, 7, 8):
        assert "the shares of 6 devices, itself included" in str(played.left[id])


def bench(transport, **options):
    experiment = Experiment.prepare(
        BenchOptions("secagg", dim=30, rounds=2, security="active", levels=1000, **options), N
    )
    rounds = Results[Played]()
    experiment.run(transport, rounds)
    assert all(record.validated for record in rounds.records)
    return experiment, rounds


def test_a_run_goes_on_without_a_device_whose_identity_key_did_not_arrive():
    """Its message is cut. It takes no part in any round; each round ends, and is validated."""

    class Cutting(Loopback):
        def gather(self, senders, produce, largest):
            for sender, message in super().gather(senders, produce, largest):
                header = Header.of(message)
                cut = (header.round, header.sender) == (2**32 - 1, 3)
                yield sender, message[:-1] if cut else message

    _, rounds = bench(Cutting(N), warmup=0, dropout=0.0)
    assert 2 == len(rounds.results)
    for played in rounds.results:
        assert [0, 1, 2, 4, 5, 6, 7, 8, 9] == np.flatnonzero(played.record.survived).tolist()
        assert "device 3 refuses to take part: it has not enrolled" in str(played.refused[3])


@each_kind
@pytest.mark.parametrize("dropouts", [{}, {7: "unmask"}, {7: "masked_input"}], ids=str)
def test_a_dealer_is_expelled_if_two_holders_have_no_share_of_it_and_not_if_one_has_none(
    name, dropouts
):
    protocol = active(name)
    played = play(protocol, change=spoiling(protocol, 3, [5]), dropouts=dropouts)
    played.nobody_left()
    played.goes_on()

    protocol = active(name)
    played = play(protocol, change=spoiling(protocol, 3, [5, 8]), dropouts=dropouts)
    assert [3] == list(played.kept_out) == list(played.left)
    assert EXPELLED in str(played.kept_out[3])
    words = "device 3 is told that the shares of its secrets do not belong together"
    assert words == str(played.left[3])
    played.goes_on([id for id in played.taking_part("masked_input") if id != 3])


@pytest.mark.parametrize("lie", ["uniform", "all ones"])
@pytest.mark.parametrize("dropouts", [{1: "share_keys"}, {1: "unmask"}], ids=str)
def test_one_liar_about_all_dealers_costs_at_most_itself_where_nine_answer(dropouts, lie):
    """T + 2 of ten, or one more: who then vanishes is not missed."""

    def change(answers):
        words = np.full(answers.size // 4, ABSENT, "<u4")
        if lie == "uniform":
            words = np.random.default_rng(2).integers(0, Q, words.size).astype("<u4")
        return raw(words.tobytes())

    protocol = active()
    played = play(protocol, change=sent_by_device(protocol, "checks", 2, change), dropouts=dropouts)
    assert {} == played.left
    assert ([2] if lie == "uniform" else []) == list(played.kept_out)
    played.goes_on()


def test_noise_counts_on_as_few_honest_devices_as_a_server_may_choose():
    one, other = (make("secagg", 30, security=s, dropout=0.1) for s in ("active", "passive"))
    # One may vanish besides the planned ones.
    assert (21 - 3, 30 - 3 - 1 - 3) == (one.honest_in_sum(), other.honest_in_sum())


def test_a_bench_run_enrols_once_and_records_what_it_ran():
    experiment, rounds = bench(Loopback(N), warmup=1)
    phase = experiment.protocol.phases().index("advertise_keys")
    each = [int(record.bytes_up[phase, 0]) for record in rounds.records]
    assert [16 + 64 + 16 + 96, 16 + 64, 16 + 64] == each
    down = [int(record.bytes_down[phase, 0]) for record in rounds.records]
    assert down[0] - down[1] == 16 + 96 * N
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
    protocol = active(devices=5)
    vectors = updates(protocol)
    first, second = (play(protocol, vectors, index=index) for index in (0, 1))

    for phase in ("advertise_keys", "masked_input", "consistency_check"):
        for id in range(5):
            assert first.sent(phase)[id] != second.sent(phase)[id]
    first.goes_on()
    second.goes_on()
