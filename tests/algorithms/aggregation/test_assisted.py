"""Helpers that know masks: exact sums, masks by an independent path, and what is refused."""

import hashlib
import hmac

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol_rounds import Wire, bits, play, raw, updates
from slow_reference import elements, hkdf, modulus_of, unpacked

import hpcfl
from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.assisted import (
    AgreedWithHelpers,
    Assisted,
    HelpingMember,
    Offers,
)
from hpcfl.algorithms.aggregation.prf import PairwiseSeeds, Prf
from hpcfl.algorithms.parameters import Parameters
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm import envelope
from hpcfl.comm.loopback import Loopback
from hpcfl.comm.phases import Pattern, Role, Step
from hpcfl.comm.placement import Placement
from hpcfl.crypto.keys import KeyPair, agree, helper_secrets, insecure_secrets
from hpcfl.errors import BelowThresholdError, HpcflError, MessageError, RefusedError, UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.plots import tradeoff
from hpcfl.rounds.enrolment import NO_ROUND, enrol
from hpcfl.rounds.observer import Results
from hpcfl.rounds.timed import Played as Timed

DEVICES, SEED = 7, 5
GROUPS = ["fq", "ring32", "ring16", "ring12"]


def assisted(devices=DEVICES, dim=20, helpers=2, members=None, **options):
    """Return a protocol whose devices and helpers have enrolled; `members` of them are selected."""
    found = enrol(Assisted, Loopback(devices, helpers), first_round=0, insecure_seed=SEED)
    members = range(devices) if members is None else members
    given = {"levels": 1000, "helpers": helpers} | options
    protocol = Assisted(Parameters(len(members), dim, **given))
    protocol.join(found.devices, members, devices)
    return protocol


# Exact sums


@given(data=st.data(), group=st.sampled_from(GROUPS))
def test_the_sum_is_exact_whoever_drops_out(data, group):
    devices = data.draw(st.integers(2, 12))
    members = sorted(data.draw(st.sets(st.integers(0, devices - 1), min_size=2)))
    dim, helpers = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 4))
    rotate = data.draw(st.booleans())
    levels = 10 if group == "ring12" else 1000
    more = {"group": group, "rotate": rotate, "levels": levels}
    more |= {"shared": data.draw(st.booleans()), "alpha": data.draw(st.sampled_from([0.2, 1.0]))}
    protocol = assisted(devices, dim, helpers, members, **more)
    most = len(members) - protocol.parameters.threshold
    ids = st.integers(0, len(members) - 1)
    for index in sorted(data.draw(st.sets(st.integers(0, 2**32 - 2), min_size=1, max_size=3))):
        gone = data.draw(st.lists(ids, unique=True, max_size=most))
        phases = st.sampled_from(["model", "masked_input", "unmask"])
        dropouts = {id: data.draw(phases) for id in gone}
        played = play(protocol, dropouts=dropouts, index=index)
        played.goes_on([id for id in range(len(members)) if dropouts.get(id) in (None, "unmask")])


def test_a_round_ends_with_a_sentence_where_too_few_devices_stay():
    gone = dict.fromkeys(range(4), "masked_input")
    with pytest.raises(BelowThresholdError, match=r"3 of 7 devices sent .*, at least 4 are needed"):
        play(assisted(), dropouts=gone)


# Masks by an independent path


def slow_mask(device, helper, index, dim, group, count=DEVICES):
    """Return the mask of a device and a helper: X25519, HKDF-SHA256 twice, AES-CTR."""
    private = insecure_secrets(SEED, NO_ROUND, device)(32)
    public = KeyPair.from_private(helper_secrets(SEED, NO_ROUND, helper)(32)).public
    (agreed,) = agree(private, [public])
    key = hmac.digest(bytes(32), agreed, hashlib.sha256)
    info = f"hpcfl/1 assisted device {device} helper {helper} secret".encode()
    secret = hmac.digest(key, info + b"\x01", hashlib.sha256)
    seed = hkdf(secret, f"hpcfl/1 assisted round {index} additive mask")
    return np.array(elements(seed, dim, modulus_of(group)), object)


@pytest.mark.parametrize("group", GROUPS)
def test_uploads_and_answers_are_masks_of_what_was_agreed_on_once(group):
    dim, index, modulus = 9, 6, modulus_of(group)
    levels = 10 if group == "ring12" else 1000
    played = play(
        assisted(dim=dim, group=group, levels=levels), dropouts={2: "masked_input"}, index=index
    )
    sent, protocol = played.sent("masked_input"), played.protocol
    for id in played.server.survivors:
        integers = protocol.quantise(played.vectors[id], id, index).astype(object)
        masks = [slow_mask(id, helper, index, dim, group) for helper in range(2)]
        expected = (integers + sum(masks)) % modulus
        assert expected.tolist() == unpacked(sent[id], dim, modulus)

    answers = played.sent("unmask")
    for helper in range(2):
        masks = [slow_mask(id, helper, index, dim, group) for id in played.server.survivors]
        expected = -sum(masks) % modulus
        assert expected.tolist() == unpacked(answers[envelope.HELPERS + helper], dim, modulus)


def test_messages_and_the_ledger_have_the_sizes_of_the_document():
    played = play(assisted(devices=9, dim=11, helpers=3))
    (told,) = played.messages("unmask", Pattern.BROADCAST)
    record, unmask = played.record, played.protocol.phases().index("unmask")

    assert bits(range(9), 9) == told.payload
    assert {4 * 11} == {len(one) for one in played.sent("unmask").values()}
    assert [[16 + 44] * 3, [16 + 2] * 3] == [
        record.helper_bytes_up[unmask].tolist(),
        record.helper_bytes_down[unmask].tolist(),
    ]
    assert not record.bytes_up[unmask].any()
    assert (record.helper_cpu_seconds[unmask] > 0).all()
    assert 16 + 44 == record.bytes_up.sum(axis=0).max()


# What is refused


def member(protocol, helper):
    return protocol.enrolled[DEVICES + helper]


def asked(protocol, survivors, index=0):
    """Return a helper's side of a round, asked for these devices' masks."""
    helper = protocol.helper(0, index, None)
    helper.receive_unmask(raw(bits(survivors, DEVICES)))
    return helper


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (bits(range(3), DEVICES), RefusedError, "a sum of 3 devices is not one of 4"),
        (bits([], DEVICES), RefusedError, "a sum of 0 devices"),
        (b"\xff", MessageError, "a device beyond the last, 6"),
        (bytes(2), MessageError, "received 2 bytes, expected 1"),
    ],
)
def test_a_helper_tells_its_masks_of_no_fewer_devices_than_the_threshold(content, kind, words):
    helper = assisted().helper(0, 0, None)
    with pytest.raises(kind, match=words):
        helper.receive_unmask(raw(content))
    with pytest.raises(RefusedError, match="was not asked to unmask"):
        helper.send_unmask()


@pytest.mark.parametrize("index", [0, 3, 4])
def test_a_helper_answers_once_a_round(index):
    """The difference of two answers would be the masks of fewer devices than the threshold."""
    protocol = assisted()
    asked(protocol, range(7), 4)
    with pytest.raises(RefusedError, match="refuses a second list of survivors for round"):
        asked(protocol, range(6), index)
    asked(protocol, range(6), 5)


def test_a_helper_counts_only_devices_that_have_enrolled():
    enrolment = AgreedWithHelpers(DEVICES, 1)
    helper = enrolment.helper(0, helper_secrets(SEED, NO_ROUND, 0))
    keys = [KeyPair.generate(insecure_secrets(SEED, NO_ROUND, id)).public for id in range(6)]
    helper.receive_advertise_keys(raw(b"".join(keys) + bytes(32)))

    assert 6 == len(helper.mask_keys(0, range(7)))
    assert list(range(6)) == helper.known(range(7))
    with pytest.raises(RefusedError, match="refuses to enrol devices twice"):
        helper.receive_advertise_keys(raw(bytes(32 * DEVICES)))


def test_a_device_masks_once_a_round():
    protocol = assisted()
    device = protocol.device(0, 4, None)
    device.send_masked_input(updates(protocol)[0])
    for index in (4, 3):
        again = protocol.device(0, index, None)
        with pytest.raises(RefusedError, match="it has masked a vector for round 4 already"):
            again.send_masked_input(updates(protocol)[0])


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (lambda key: key + key, "two helpers have the same public key"),
        (lambda key: key + bytes(32), "low order"),
        (lambda key: key, "received 33 bytes, expected 64"),
        (lambda key: key + bytes(range(32)) + b"\xfe", "received 2 bytes, expected 1"),
    ],
)
def test_a_device_agrees_with_helpers_that_are_two(keys, words):
    """One behind two names would know both masks by itself."""
    device = AgreedWithHelpers(DEVICES, 2).device(0, insecure_secrets(1, 0, 0))
    key = KeyPair.generate(insecure_secrets(1, 0, 1)).public
    with pytest.raises(MessageError, match=words):
        device.receive_offer(raw(keys(key) + b"\xfe"))
    with pytest.raises(RefusedError, match="it has not enrolled"):
        device.mask_keys(0, range(2))


def test_a_device_whose_key_was_not_received_takes_no_part_and_costs_itself_alone():
    def lost(header, message):
        first = header.step == 1 and header.sender == 3
        return message[:-1] if first else message

    class Losing(Wire):
        def __init__(self):
            super().__init__(DEVICES, lost, 2)

    found = enrol(Assisted, Losing(), first_round=0, insecure_seed=SEED)
    protocol = assisted()
    protocol.join(found.devices, range(DEVICES), DEVICES)
    played = play(protocol)

    played.goes_on([0, 1, 2, 4, 5, 6])
    assert "device 3 refuses round 0: it has not enrolled" in str(played.left[3])


def test_shared_coordinates_are_those_of_common_and_others_in_the_next_round():
    protocol, whole = assisted(dim=50, shared=True, alpha=0.2), find("common")
    common = whole(Parameters(DEVICES, 50, alpha=0.2))
    for index in range(3):
        where = protocol.sent_in(index)
        assert where.tolist() == common.sent_in(index).tolist()
        assert len({*where.tolist()}) == 10
        played = play(protocol, index=index)
        assert {40} == {len(one) for one in played.sent("masked_input").values()}
        untouched = np.delete(played.server.total, where)
        assert not untouched.any()
        played.goes_on()
    assert protocol.sent_in(0).tolist() != protocol.sent_in(1).tolist()


def test_shared_coordinates_need_a_protocol_that_knows_them_and_no_noise():
    with pytest.raises(UsageError, match=r"secagg does not know --shared: leave it out"):
        find("secagg")(Parameters(DEVICES, 50, shared=True))
    with pytest.raises(UsageError, match="with --shared adds no noise"):
        assisted(shared=True).add_noise(None)


def test_a_helper_that_does_not_answer_ends_the_round():
    """Its masks are in the sum; a malformed answer is none."""

    def cut(header, message):
        return message[:-1] if header.sender == envelope.HELPERS + 1 else message

    with pytest.raises(BelowThresholdError) as caught:
        play(assisted(), change=cut)
    assert (
        "round 0 cannot end: helper 1 did not tell the sum of its masks; refused: malformed "
        "unmask message from helper 1: received 79 bytes, expected 80"
    ) == str(caught.value)


def test_a_device_that_was_refused_before_is_not_why_a_helper_did_not_answer():
    def cut(header, message):
        return message[:-1] if header.sender in (2, envelope.HELPERS) else message

    with pytest.raises(BelowThresholdError) as caught:
        play(assisted(), change=cut)
    assert "malformed unmask message from helper 0" in str(caught.value)
    assert "device 2" not in str(caught.value)


def test_a_helper_that_refuses_says_why():
    protocol = assisted()
    member(protocol, 1)._last_round = 8
    with pytest.raises(BelowThresholdError) as caught:
        play(protocol)
    assert "helper 1 left the round in unmask: helper 1 refuses a second list" in str(caught.value)


@pytest.mark.parametrize("place", [0, 3, 7, 8])
def test_a_changed_envelope_of_a_helper_is_no_answer(place):
    def change(header, message):
        if header.sender == envelope.HELPERS:
            message = message.copy()
            message[place] ^= 1
        return message

    with pytest.raises(HpcflError, match="helper 0 did not tell the sum of its masks"):
        play(assisted(), change=change)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"degree": 4}, "so --degree 4 has no effect"),
        ({"helpers": 65}, "--helpers is 65, and assisted has at most 64 of them"),
        ({"helper_dropout": 2}, "--helper-dropout is 2, of 2: at least one helper must stay"),
    ],
)
def test_options_that_it_has_no_use_for_are_refused(options, words):
    with pytest.raises(UsageError, match=words):
        Assisted(Parameters(10, 10, **options))


class Unhelped(Prf):
    """A protocol that says it has helpers, and nothing of what they do."""

    name = "unhelped"
    most_helpers = default_helpers = 1


def test_a_protocol_that_has_helpers_must_say_what_they_do(monkeypatch):
    """Its enrolment need not: here it is one of devices alone."""
    experiment = Experiment.prepare(BenchOptions(f"{__name__}:Unhelped", dim=5, dropout=0.0), 3)
    with pytest.raises(UsageError, match="need a method helper, which the class of 'unhelped' la"):
        experiment.run(Loopback(3, 1))

    offering = HelpingMember.send_offer, Offers.receive_offer
    step = Step("advertise_keys", Pattern.GATHER, *offering, role=Role.HELPER)
    monkeypatch.setattr(PairwiseSeeds, "steps", (step, *PairwiseSeeds.steps))
    with pytest.raises(UsageError, match="method helper, which the class PairwiseSeeds lacks"):
        experiment.run(Loopback(3, 1))


def test_uploads_are_not_summed_on_ranks_of_helpers(tmp_path):
    """One that knows all masks would learn the sum of whatever it passes on."""
    given = {"devices": 4, "dim": 5, "rounds": 1, "upload": "reduce"}
    with pytest.raises(UsageError, match="helpers' ranks would take part in the sum"):
        hpcfl.bench("assisted", **given, output=tmp_path / "run.h5")


@pytest.mark.parametrize("helpers", [1, 2])
@pytest.mark.parametrize("seed", [5, 35])  # nobody is in the first round, or in the second
def test_training_with_helpers_is_modelled_and_may_have_rounds_without_devices(
    helpers, seed, tmp_path
):
    pytest.importorskip("torch")
    given = {"devices": 6, "per_round": 2, "sampling": "poisson", "seed": seed, "rounds": 2}
    given |= {"dataset": "synthetic", "helpers": helpers, "helper_mbps": 0.01, "dropout": 0.0}
    run = hpcfl.train("fedavg", aggregate="assisted", **given, output=tmp_path / "run.h5")
    assert run.validated.all()
    assert helpers == run.helpers
    links = run.modelled_seconds(run.link()).sum(axis=1)
    modelled = run.training["modelled_seconds"] - run.training["train_cpu_seconds"]
    np.testing.assert_allclose(links, modelled, atol=1e-9)
    assert (links[run.training["participants"] > 0] > 1).all()


# Rounds that can do without some helpers


BEFORE_UPLOADS = st.sampled_from(["model", "masked_input"])


@given(data=st.data(), group=st.sampled_from(GROUPS))
def test_the_sum_is_exact_whichever_helpers_and_devices_drop_out(data, group):
    helpers = data.draw(st.integers(2, 10))
    spare = data.draw(st.integers(1, helpers - 1))
    levels = 10 if group == "ring12" else 1000
    protocol = assisted(helpers=helpers, helper_dropout=spare, group=group, levels=levels)
    numbers = st.lists(st.integers(0, helpers - 1), unique=True, max_size=spare)
    ids = st.lists(st.integers(0, DEVICES - 1), unique=True, max_size=3)
    for index in (0, 1, 7):
        gone = {DEVICES + k: data.draw(BEFORE_UPLOADS) for k in data.draw(numbers)}
        gone |= dict.fromkeys(data.draw(ids), "masked_input")
        played = play(protocol, dropouts=gone, index=index)
        played.goes_on([id for id in range(DEVICES) if id not in gone])


def test_devices_mask_with_just_the_helpers_that_are_there():
    dim, index, there = 9, 6, (0, 2, 3)
    protocol = assisted(dim=dim, helpers=5, helper_dropout=2)
    played = play(protocol, dropouts={DEVICES + k: "masked_input" for k in (1, 4)}, index=index)

    assert bits(there, 5) == played.told("ready")
    assert {*(envelope.HELPERS + k for k in there)} == {*played.sent("ready")}
    sent, modulus = played.sent("masked_input"), modulus_of("fq")
    for id in range(DEVICES):
        integers = protocol.quantise(played.vectors[id], id, index).astype(object)
        masks = [slow_mask(id, helper, index, dim, "fq") for helper in there]
        assert ((integers + sum(masks)) % modulus).tolist() == unpacked(sent[id], dim, modulus)


def test_a_round_does_not_begin_with_fewer_helpers_than_it_needs():
    """Those that are there might be just the ones that pool what they know with the server."""
    gone = dict.fromkeys((DEVICES, DEVICES + 2), "masked_input")
    with pytest.raises(BelowThresholdError) as caught:
        play(assisted(helpers=3, helper_dropout=1), dropouts=gone)
    words = "round 0 cannot begin: 1 of 3 helpers are there, and 2 are needed"
    assert words == str(caught.value)


def test_a_helper_that_vanishes_behind_the_upload_costs_the_round():
    with pytest.raises(BelowThresholdError, match="helper 1 did not tell the sum of its masks"):
        play(assisted(helpers=3, helper_dropout=1), dropouts={DEVICES + 1: "unmask"})


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (bits([2], 3), RefusedError, "device 0 refuses to mask: 1 of 3 helpers are there, and 2"),
        (bits([], 3), RefusedError, "0 of 3 helpers are there"),
        (b"\xff", MessageError, "it names a helper beyond the last, 2"),
        (b"", MessageError, "received 0 bytes, expected 1"),
    ],
)
def test_a_device_masks_with_no_fewer_helpers_than_were_promised(content, kind, words):
    """A server that names one helper alone, which it runs, would know all masks."""
    device = assisted(helpers=3, helper_dropout=1).device(0, 0, None)
    with pytest.raises(kind, match=words):
        device.receive_ready(raw(content))


def test_an_answer_of_a_helper_whose_masks_are_in_no_vector_is_not_added():
    def lost(header, message):
        says_ready = header.step == 1 and header.sender == envelope.HELPERS + 1
        return message[:0] if says_ready else message

    played = play(assisted(helpers=3, helper_dropout=1), change=lost)
    played.goes_on()
    assert "its masks are in no vector of this round" in str(played.kept_out[DEVICES + 1])


def test_a_helper_says_that_it_is_there_once_and_nothing_else():
    server = assisted(helpers=3, helper_dropout=1).server(0, np.zeros(20, np.float32))
    server.receive_ready(1, raw(b""))
    with pytest.raises(MessageError, match="it was received twice"):
        server.receive_ready(1, raw(b""))
    with pytest.raises(MessageError, match="it is not empty"):
        server.receive_ready(2, raw(b"x"))


def test_other_helpers_drop_out_in_every_round_and_are_no_part_of_means(tmp_path):
    options = {"devices": 5, "dim": 40, "rounds": 12, "warmup": 1, "helpers": 3}
    run = hpcfl.bench("assisted", **options, helper_dropout=1, output=tmp_path / "run.h5")

    assert run.validated.all()
    assert 1 == run.config["helper_dropout"]
    assert "as long as 2 of 3 helpers do not pool" in str(run.config["promises"])
    unmask = run.phases.index("unmask")
    answered = run.helper_bytes_up[:, unmask] > 0
    assert {2} == {*answered.sum(axis=1).tolist()}
    assert 3 == np.unique(answered, axis=0).shape[0]
    assert answered[1:].tolist() == run.helped[1:].tolist()
    summary = run.summary()
    assert 16 + 160 == summary.phases[unmask].helper_bytes_up_mean
    assert 16 + 16 + 160 == summary.total.helper_bytes_up_mean
    assert 16 + 1 == summary.total.helper_bytes_down_mean
    cpu = run.helper_cpu_seconds[1:].sum(axis=1)[answered[1:]].mean()
    assert (16 + 16 + 160, pytest.approx(cpu)) == tradeoff.figures(run)["helper"]


def test_helpers_that_enrolled_and_dropped_out_of_the_first_round_are_no_part_of_means(tmp_path):
    options = {"devices": 8, "dim": 200, "rounds": 1, "warmup": 0, "helpers": 3}
    run = hpcfl.bench("assisted", **options, helper_dropout=2, output=tmp_path / "run.h5")

    assert [1] == run.helped.sum(axis=1).tolist()
    sent = {phase.name: phase.helper_bytes_up_mean for phase in run.summary().phases}
    expected = {"advertise_keys": 48, "model": 0, "masked_input": 16, "unmask": 816, "result": 0}
    assert expected == sent
    assert 48 + 16 + 816 == run.summary().total.helper_bytes_up_mean


def test_a_protocol_without_helpers_refuses_them():
    with pytest.raises(UsageError, match="--helpers is 2, and secagg has none: leave it out"):
        hpcfl.bench("secagg", devices=4, dim=5, helpers=2, rounds=1, output="never.h5")


# As it is used


def test_a_device_drops_out_of_a_round_not_of_the_enrolment_before_it(tmp_path):
    words = "assisted: there is no phase 'advertise_keys'; choose one of masked_input"
    given = {"devices": 4, "dim": 5, "rounds": 1, "dropout_phase": "advertise_keys"}
    with pytest.raises(UsageError, match=words):
        hpcfl.bench("assisted", **given, output=tmp_path / "run.h5")


def test_helpers_have_ranks_of_their_own():
    for ranks, helpers, homes in ((1, 2, [0] * 7), (4, 2, [3] * 5 + [1, 2]), (9, 1, None)):
        placement = Placement.even(5, ranks, helpers=helpers)
        assert (5, 5 + helpers) == (placement.devices, placement.parties)
        assert homes is None or homes == placement.homes.tolist()
    assert [[], [5], [0], [1], [2], [3], [4]] == [placement.parties_on(k) for k in range(7)]
    assert [[], [], [0], [1], [2], [3], [4]] == [placement.local(k) for k in range(7)]
    chosen = placement.select([1, 4])
    assert [[], [2], [], [0], [], [], [1]] == [chosen.parties_on(k) for k in range(7)]


@pytest.mark.parametrize("helpers", [None, 1, 3])
def test_results_and_reports_tell_what_helpers_spent(helpers, tmp_path):
    options = {"devices": 5, "dim": 40, "rounds": 2, "warmup": 1, "helpers": helpers}
    run = hpcfl.bench("assisted", **options, output=tmp_path / "run.h5")
    count = helpers or 2

    assert run.validated.all()
    assert count == run.helpers == run.config["helpers"]
    shape = (3, len(run.phases), count)
    assert shape == run.helper_bytes_up.shape == run.helper_wall_seconds.shape
    assert {16 + 160} == {*run.helper_bytes_up[1:].sum(axis=1).ravel().tolist()}
    enrolled = run.phases.index("advertise_keys")
    assert {16 + 32} == {*run.helper_bytes_up[0, enrolled].tolist()}
    summary = run.summary()
    assert 16 + 160 == summary.total.helper_bytes_up_mean
    assert 16 + 1 == summary.total.helper_bytes_down_mean
    assert summary.total.helper_cpu_seconds.median > 0
    spent = run.cpu_seconds.sum(axis=(1, 2)) + run.helper_cpu_seconds.sum(axis=(1, 2))
    assert np.median(spent[1:]) == pytest.approx(summary.all_cpu_seconds.median)


def test_slow_links_of_helpers_are_modelled():
    from hpcfl.results.linkmodel import LinkModel

    up, down = np.array([[[1000, 3000]]]), np.array([[[0, 1000]]])
    found = LinkModel(helper_mbps=8, latency_ms=2).helper_seconds(
        up, down, up > 0, down > 0, np.array([[[0.5, 0.25]]])
    )
    assert [[max(0.5 + 0.001 + 0.002, 0.25 + 0.004 + 0.004)]] == found.tolist()


def test_noise_of_honest_devices_is_counted_on():
    options = {"aggregate": "assisted", "noise_multiplier": 1.0, "dim": 50, "rounds": 2}
    rounds = Results[Timed]()
    experiment = Experiment.prepare(BenchOptions("dp-fedavg", warmup=0, **options), 12)
    experiment.run(Loopback(12, 2), rounds)

    assert [True, True] == [record.validated for record in rounds.records]
