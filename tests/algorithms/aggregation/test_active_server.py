"""A server that cheats: what it gets from the passive variant, and that the active one refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cheating import (
    TwoFaced,
    TwoFacedActive,
    digest,
    endorsement,
    enrolled_with_strangers,
)
from hypothesis import given
from hypothesis import strategies as st
from protocol_rounds import bits, enrolled, make, play, raw

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.active import ActiveServer
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import Pattern
from hpcfl.crypto import keys
from hpcfl.crypto.keys import KeyPair, insecure_secrets
from hpcfl.errors import HpcflError, MessageError, RefusedError, UsageError

EXPELLED = "too many holders have no right share of its secrets: it is expelled"
N = 10  # t = 7 against a server that cheats, 6 against a curious one
VICTIM = 9
EVERYBODY = list(range(N))
BEFORE_REQUEST = ("consistency_check", Pattern.BROADCAST)
BEFORE_ANSWER = ("unmask", Pattern.SCATTER)


def active(name="secagg", **options):
    return make(name, N, security="active", **options)


def refused(call, *arguments):
    """Return in which words a device refuses."""
    with pytest.raises(HpcflError) as caught:
        call(*arguments)
    assert caught.type is RefusedError, caught.value
    return str(caught.value)


# Different survivors to different devices, so as to get both secrets of one


@pytest.mark.parametrize(
    ("security", "accomplices", "threshold", "refusing"),
    [
        ("passive", [0, 1], 6, []),
        ("active", [0, 1], 7, [2, 3, 4, 5, 6, 7, 8, 9]),
        # With as many accomplices as are allowed for, only one of the lists is answered.
        ("active", [0, 1, 8], 7, [5, 6, 7]),
        # Endorsements alone do not help below two thirds.
        ("active", [0, 1], 6, []),
    ],
)
def test_two_lists_tell_the_server_a_vector_unless_devices_compare_them(
    security, accomplices, threshold, refusing
):
    protocol = make("secagg", N, security=security, alpha=0.5)
    protocol.topology.threshold = threshold
    deceived, knows = {5, 6, 7, 8} - {*accomplices}, {}

    def wrap(id, device):
        if id in accomplices:
            knows[id] = device
        return device

    def server(*arguments):
        kind = TwoFaced if security == "passive" else TwoFacedActive
        return kind(*arguments).scheme(VICTIM, deceived, knows)

    played = play(protocol, server=server, apart=True, wrap=wrap)
    honest = sorted({*played.left} - {*accomplices})
    assert refusing == honest
    for id in honest:
        assert isinstance(played.left[id], RefusedError)
        assert "endorsed the list of survivors" in str(played.left[id])
    # With both secrets of the victim, its masks can be taken off its upload.
    assert played.server.stolen() == (None if refusing else played.sources[VICTIM].drawn[1:3])


# Keys that are not the devices'


def substituting(part, told):
    """Return a server that tells some devices another key of device 5, in one of its parts."""
    other = KeyPair.generate(insecure_secrets(3, 0, 0)).public

    class Substitutes(ActiveServer):
        def send_advertise_keys(self, receiver=None):
            listed = super().send_advertise_keys(receiver).copy()
            if receiver in told:
                start = 2 + 64 * 5 + (0 if part == "transport" else 32)
                listed[start : start + 32] = raw(other)
            return listed

    return {"server": Substitutes, "apart": True}


@pytest.mark.parametrize("part", ["transport", "mask"])
@pytest.mark.parametrize("count", [4, 5])
def test_a_server_that_shows_two_lists_of_keys_finds_no_threshold(part, count):
    """Though every device sees the same survivors, and all but device 5 open seven's shares."""
    told = {*range(count + 1)} - {5}
    played = play(active(), before=BEFORE_ANSWER, **substituting(part, told))
    assert [5] == list(played.left)
    assert 1 == len({*played.told_each("consistency_check").values()})
    for id, device in played.devices.items():
        if id != 5:
            words = refused(device.receive_unmask, played.server.send_unmask(id))
            assert "endorsed the list of survivors that it was shown: the threshold is 7" in words
            refused(device.send_unmask)


def rows_to_device_2(played, *altered):
    """Return from whom rows of shares come to device 2, and the rows; those of some are altered."""
    senders = [id for id in range(N) if id != 2]
    rows = []
    for sender in range(N):
        receivers, sent = played.devices[sender].send_share_keys()
        if sender != 2:
            rows.append(sent[receivers.tolist().index(2)].copy())
            rows[-1][-1] ^= sender in altered
    return np.array(senders), np.stack(rows)


@pytest.mark.parametrize("genuine", [5, 6])
def test_a_device_goes_on_if_the_shares_of_seven_open_and_not_if_those_of_six_do(genuine):
    """Rows of three more are no use to it, and no reason to leave."""
    played = play(active(), before=("share_keys", Pattern.ROUTE))
    altered, device = [id for id in range(N) if id != 2][genuine:], played.devices[2]
    rows = rows_to_device_2(played, *altered)

    if genuine == 5:
        words = refused(device.receive_share_keys, *rows)
        assert "refuses to go on: the shares of 6 devices, itself included, are sealed" in words
        assert "the threshold is 7" in words
    else:
        device.receive_share_keys(*rows)
        assert EVERYBODY == device._members()
    assert [f"device {id}" for id in altered] == [e.sender for e in device.ignored]


# Devices that are expelled


@pytest.mark.parametrize(("expelled", "enough"), [(9, True), (0, False), (5, False)])
def test_a_device_counts_those_whose_shares_opened_again_when_one_is_expelled(expelled, enough):
    """Seven with itself are just enough; of the three others any may be expelled."""
    played = play(active(), before=("share_keys", Pattern.ROUTE))
    device = played.devices[2]
    device.receive_share_keys(*rows_to_device_2(played, 7, 8, 9))
    device.send_checks()
    if enough:
        device.receive_expelled(raw(bits([expelled], N)))
        assert [id for id in range(N) if id != expelled] == device._members()
    else:
        words = refused(device.receive_expelled, raw(bits([expelled], N)))
        assert "refuses to go on: the shares of 6 devices, itself included, are sealed" in words
        assert "the threshold is 7" in words


# The list of survivors


def ask(played, id, survivors, dropped):
    played.devices[id].receive_consistency_check(raw(bits(survivors, N) + bits(dropped, N)))


def test_a_list_is_endorsed_once_and_nothing_is_unmasked_before_endorsements_are_shown():
    played = play(active(), before=BEFORE_REQUEST)
    device = played.devices[2]
    words = "malformed consistency_check message from the server: received 2 bytes, expected 4"
    with pytest.raises(MessageError, match=words):
        device.receive_consistency_check(raw(bits(range(N), N)))
    refused(device.send_consistency_check)
    refused(device.send_unmask)
    refused(device.receive_unmask, raw(bits([], N)))
    ask(played, 2, EVERYBODY, [])
    device.send_consistency_check()
    assert "that nobody endorsed" in refused(device.send_unmask)
    for again in ((EVERYBODY, []), (EVERYBODY[:-1], EVERYBODY[-1:])):
        assert "a second unmasking request" in refused(ask, played, 2, *again)


# Endorsements


def endorse(tags):
    """Return the message with which the server hands over tags, by who made them."""
    return raw(bits(list(tags), N) + b"".join(tags[id] for id in sorted(tags)))


def tag_of(played, id, receiver, survivors, dropped=(), identity=None):
    """Return the tag with which a device, or another identity, endorses a list."""
    protocol = played.protocol
    request = bits(survivors, N) + bits(dropped, N)
    seen = digest(protocol, played.sent("advertise_keys"), request)
    identity = protocol.enrolled[protocol.members[id]] if identity is None else identity
    return endorsement(protocol, identity, id, receiver, seen, played.index).tobytes()


def tags_for(played, receiver):
    """Return the tags that all survivors sent for one."""
    everybody = sorted(played.sent("consistency_check"))
    found = {}
    for sender, sent in played.sent("consistency_check").items():
        if sender != receiver:
            place = [id for id in everybody if id != sender].index(receiver)
            found[sender] = sent[16 * place : 16 * (place + 1)]
    return found


def first(tags, count):
    return {id: tags[id] for id in sorted(tags)[:count]}


def assert_unmasks_nothing(device, message, endorsed):
    """Assert that so many endorsements are found to be good, itself included, and too few."""
    words = refused(device.receive_unmask, message)
    assert f"refuses to unmask: {endorsed} devices, itself included, endorsed the list" in words
    assert "the threshold is 7" in words
    refused(device.send_unmask)


def test_six_others_are_enough_and_five_are_not():
    played = play(active(), before=BEFORE_ANSWER)
    tags, device = tags_for(played, 2), played.devices[2]
    five = first(tags, 5)
    assert_unmasks_nothing(device, endorse(five), 6)
    # Its own name does not count twice.
    message = raw(bits([*five, 2], N) + b"".join(five.values()))
    assert "6 devices, itself included" in refused(device.receive_unmask, message)
    device.receive_unmask(endorse(first(tags, 6)))
    assert device.send_unmask().size


FORGED = {
    "under the names of others": lambda p, tags: dict(
        zip(tags, [*list(tags.values())[1:], tags[0]], strict=True)
    ),
    "meant for another": lambda p, tags: {id: tags_for(p, 3).get(id, bytes(16)) for id in tags},
    "its own for the others": lambda p, tags: {
        id: p.sent("consistency_check")[2][16 * k : 16 * (k + 1)] for k, id in enumerate(tags)
    },
    "of registered strangers": lambda p, tags: {
        id: tag_of(p, id, 2, EVERYBODY, identity=enrolled("secagg", N, seed=6)[id]) for id in tags
    },
    "of another list": lambda p, tags: {id: tag_of(p, id, 2, range(9), [9]) for id in tags},
    "of the round before": None,
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_endorsements_by_others_of_others_and_of_old_count_for_nothing(forge):
    protocol = active()
    earlier = play(protocol, index=0, before=BEFORE_ANSWER)
    played = play(protocol, index=1, before=BEFORE_ANSWER)
    tags, device = tags_for(played, 2), played.devices[2]
    forged = tags_for(earlier, 2) if forge is None else forge(played, tags)

    assert [*range(2), *range(3, N)] == sorted(forged)
    assert_unmasks_nothing(device, endorse(forged), 1)
    # The right ones are still good: what was forged was not worth a refusal for the whole round.
    device.receive_unmask(endorse(tags))
    assert "endorsements twice" in refused(device.receive_unmask, endorse(tags))


def test_an_identity_takes_part_in_every_round_once():
    """What was said in a round could be shown again in another one of its number."""
    identities = enrolled("secagg", N)
    protocol = active(identities=identities)

    def enter(index):
        return protocol.device(2, index, insecure_secrets(7, index, 2)).send_advertise_keys()

    assert 64 == enter(3).size
    for index in (3, 0, 2):
        words = f"device 2 refuses round {index}: it has taken part in round 3 already"
        assert words in refused(enter, index)
    assert 64 == enter(4).size
    # It is the identity that remembers, not the protocol that is run with it.
    protocol = make("secagg", 4, security="active", identities=identities, members=[0, 2, 5, 7])
    device = protocol.device(1, 4, insecure_secrets(8, 4, 1))
    assert "it has taken part in round 4 already" in refused(device.send_advertise_keys)
    # One that enrols anew begins anew.
    protocol = active()
    assert 64 == enter(0).size


# Rounds with devices that nobody knows, that deal wrongly, or answer falsely


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


@pytest.mark.parametrize("name", ["secagg-graph", "cohort", "common", "prf", "fedavg"])
def test_protocols_without_the_variant_are_refused(name):
    with pytest.raises(UsageError, match=f"{name} cannot be run with --security active"):
        find(name, "active")


@pytest.mark.parametrize("name", ["secagg", "sparse"])
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


def test_noise_counts_on_as_few_honest_devices_as_a_server_may_choose():
    one, other = (make("secagg", 30, security=s, dropout=0.1) for s in ("active", "passive"))
    # One may vanish besides the planned ones.
    assert (21 - 3, 30 - 3 - 1 - 3) == (one.honest_in_sum(), other.honest_in_sum())


# The enrolment


class Meeting:
    """Five devices that are about to hear of each other's identity keys."""

    def __init__(self, seed=1, protocol="secagg"):
        registration = find(protocol, "active").enrolment(5)
        self.devices = [registration.device(id, insecure_secrets(seed, 0, id)) for id in range(5)]
        registry = np.stack([raw(device.registers()) for device in self.devices])
        for device in self.devices:
            device.learn(registry)
        self.sent = [device.send_advertise_keys().tobytes() for device in self.devices]

    def tell(self, id, sent):
        self.devices[id].receive_advertise_keys(raw(b"".join(sent)))

    def secrets(self, i, j):
        """Return what device i has in common with another one."""
        return self.devices[i].sealing_secret(j), self.devices[i].tagging_secret(j)


def identity_key(id, seed=1):
    """Return the pair of identity keys that a device of a meeting has drawn."""
    draw = insecure_secrets(seed, 0, id)
    return [KeyPair.from_private(draw(32)) for _ in range(2)][1]


def as_if_agreed(i, j, listed, secret):
    """Return the two secrets of a pair that has agreed on this, each having seen this list."""
    low, high = min(i, j), max(i, j)
    context = f"hpcfl/1 secagg pair {low} {high} of 5 identities ".encode()
    both = keys.derive(secret, context + listed[low][:32] + listed[high][:32], 64)
    return both[:32], both[32:]


@pytest.mark.parametrize(
    "case", ["key", "signature", "of another", "old", "protocol", "unsigned", "none"]
)
def test_a_device_without_a_valid_signature_on_its_identity_key_is_absent_for_all_others(case):
    """Nothing that they have in common with it follows from its key, and they agree without it."""
    meeting = Meeting()
    own, other = meeting.sent[3], KeyPair.generate(insecure_secrets(4, 0, 0))
    told, known = {
        "key": (other.public + own[32:], other),
        "signature": (own[:-1] + bytes([own[-1] ^ 1]), identity_key(3)),
        "of another": (meeting.sent[4], identity_key(4)),
        "old": (Meeting(seed=2).sent[3], identity_key(3, seed=2)),
        "protocol": (Meeting(protocol="sparse").sent[3], identity_key(3)),
        "unsigned": (own[:32] + bytes(64), identity_key(3)),
        "none": (bytes(96), identity_key(3)),
    }[case]
    sent = [*meeting.sent[:3], told, meeting.sent[4]]
    others, drawn = [0, 1, 2, 4], set()
    for id in others:
        meeting.tell(id, sent)
    for i in others:
        for j in {*others} - {i}:
            (secret,) = keys.agree(identity_key(i).private, [sent[j][:32]])
            assert as_if_agreed(i, j, sent, secret) == meeting.secrets(i, j)
        drawn |= {*meeting.secrets(i, 3)}
        (agreed,) = keys.agree(known.private, [sent[i][:32]])
        for secret in (agreed, bytes(32)):
            assert not {secret, *as_if_agreed(i, 3, sent, secret)} & {*meeting.secrets(i, 3)}
        # Nor does anything follow from its own, which is in the same place.
        assert not {*meeting.secrets(i, i)} & {*meeting.secrets(i, 3)}
    assert {32} == {len(one) for one in drawn}
    assert 2 * len(others) == len(drawn)


def test_a_device_enrols_once_with_its_own_key_a_whole_list_and_a_registry():
    meeting = Meeting()
    for own in (Meeting(seed=2).sent[0], bytes(96)):
        assert "own identity key" in refused(meeting.tell, 0, [own, *meeting.sent[1:]])
    assert "has not enrolled" in refused(meeting.devices[0].enter, 1)
    with pytest.raises(MessageError, match="received 384 bytes, expected 480"):
        meeting.tell(0, meeting.sent[:-1])
    meeting.tell(0, meeting.sent)
    assert "refuses to enrol twice" in refused(meeting.tell, 0, meeting.sent)

    stranger = find("secagg", "active").enrolment(5).device(0, insecure_secrets(1, 0, 0))
    told = raw(b"".join(meeting.sent))
    assert "knows no registered keys" in refused(stranger.receive_advertise_keys, told)


def test_the_server_keeps_one_identity_key_of_each_and_zeros_for_those_that_sent_none():
    meeting, server = Meeting(), find("secagg", "active").enrolment(5).server()
    for id in range(4):
        server.receive_advertise_keys(id, raw(meeting.sent[id]))
    with pytest.raises(MessageError, match="from device 0: it was received twice"):
        server.receive_advertise_keys(0, raw(meeting.sent[0]))
    with pytest.raises(MessageError, match="received 95 bytes, expected 96"):
        server.receive_advertise_keys(4, raw(meeting.sent[4][:-1]))
    server.finish_advertise_keys()  # does not end without it
    assert b"".join(meeting.sent[:4]) + bytes(96) == server.send_advertise_keys().tobytes()
