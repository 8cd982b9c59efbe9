"""A server that cheats: what it gets from the passive variant, and that the active one refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cheating import (
    TwoFaced,
    TwoFacedActive,
    combined,
    converse,
    digest,
    endorsement,
    enrolled,
    enrolled_with_strangers,
    make,
    server_of,
)
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray
from protocol_rounds import bits, raw, updates
from slow_reference import KEY_SHARE, MASK_KEY_LIMBS, SEED_LIMBS

from hpcfl.algorithms.aggregation.active import Identity, Registration
from hpcfl.algorithms.aggregation.secagg import pair_sign
from hpcfl.algorithms.aggregation.sharing import SHARE_BYTES
from hpcfl.comm.phases import Pattern
from hpcfl.crypto import keys, shamir, signatures
from hpcfl.crypto.keys import KeyPair, insecure_secrets
from hpcfl.errors import HpcflError, MessageError, RefusedError

N = 10  # t = 7 against a server that cheats, 6 against a curious one
VICTIM = 9
BEFORE_REQUEST = ("consistency_check", Pattern.BROADCAST)
BEFORE_ANSWER = ("unmask", Pattern.SCATTER)


def refused(call, *arguments):
    """Return in which words a device refuses."""
    with pytest.raises(HpcflError) as caught:
        call(*arguments)
    assert caught.type is RefusedError, caught.value
    return str(caught.value)


# Different survivors to different devices, so as to get both secrets of one


def two_lists(security, accomplices, threshold=None):
    """Play a round in which the server is after the vector of the victim."""
    protocol = make("secagg", N, security=security)
    if threshold is not None:
        protocol.topology.threshold = threshold
    kind = TwoFacedActive if security == "active" else TwoFaced
    server: Any = server_of(protocol, kind=kind)
    # Devices are made by `converse`: the accomplices tell the server what they know as they go.
    knows: dict[int, Any] = {}
    device = protocol.device

    def made(id, *arguments):
        one = device(id, *arguments)
        if id in accomplices:
            knows[id] = one
        return one

    protocol.device = made
    server.scheme(VICTIM, [id for id in (5, 6, 7, 8) if id not in accomplices], knows)
    return converse(protocol, server)


def integers_of_victim(found):
    integers = found.protocol.quantise(found.vectors[VICTIM], VICTIM, 0)
    return [int(value) for value in integers]


def test_two_lists_tell_the_server_a_vector_of_the_passive_variant():
    found = two_lists("passive", accomplices=[0, 1])

    assert {} == found.refusals
    assert integers_of_victim(found) == found.server.stolen().tolist()


def test_devices_that_compare_refuse_two_lists():
    found = two_lists("active", accomplices=[0, 1])

    honest = [id for id in range(N) if id > 1]
    assert honest == [id for id in sorted(found.refusals) if id > 1]
    for id in honest:
        assert "6 devices, itself included, endorsed the list of survivors" in str(
            found.refusals[id]
        )
        assert isinstance(found.refusals[id], RefusedError)
    assert found.server.stolen() is None


def test_with_as_many_accomplices_as_are_allowed_for_only_one_list_is_answered():
    found = two_lists("active", accomplices=[0, 1, 8])

    assert [5, 6, 7] == [id for id in sorted(found.refusals) if id not in (0, 1, 8)]
    assert found.server.stolen() is None


def test_endorsements_alone_do_not_help_below_two_thirds():
    found = two_lists("active", accomplices=[0, 1], threshold=6)

    assert {} == found.refusals
    assert integers_of_victim(found) == found.server.stolen().tolist()


# Keys that are not the devices'


def as_far_as_known(protocol, i, j, secret, public):
    """Return the key of a pair's shares but for what only the pair has: all that goes into it."""
    low, high = min(i, j), max(i, j)
    context = f"hpcfl/1 {protocol.name} round 0 pair {low} {high} share transport ".encode()
    return keys.derive(secret, context + public[low] + public[high])


class Pretender:
    """What a server makes in the place of all other devices, to have one for itself."""

    def __init__(self, protocol):
        self.protocol = protocol
        self.transport = {id: KeyPair.generate(insecure_secrets(8, 0, id)) for id in range(N)}
        self.mask = {id: KeyPair.generate(insecure_secrets(9, 0, id)) for id in range(N)}
        self.victim = protocol.device(VICTIM, 0, insecure_secrets(1, 0, VICTIM))
        self.vector = updates(protocol)[VICTIM]
        self.others = [id for id in range(N) if id != VICTIM]

    def open(self):
        """Give the victim keys of the server's own; return the shares it sends, as far as read."""
        self.advertised = self.victim.send_advertise_keys().tobytes()
        public = {id: self.transport[id].public + self.mask[id].public for id in self.others}
        public[VICTIM] = self.advertised
        self.public = public
        listed = b"".join(public[id] for id in range(N))
        self.victim.receive_advertise_keys(raw(bits(range(N), N) + listed))
        shares: dict[int, NDArray[np.uint32]] = {}
        receivers, rows = self.victim.send_share_keys()
        for receiver, row in zip(receivers.tolist(), rows, strict=True):
            labels = self.victim._share_labels(VICTIM, receiver)
            try:
                plain = AESGCM(self.key(receiver)).decrypt(labels[0], row.tobytes(), labels[1])
            except InvalidTag:
                continue
            shares[receiver] = np.frombuffer(plain, "<u4")
        return receivers, rows, shares

    def key(self, id):
        """Return the key that the server knows for shares between the victim and one other."""
        pair, size = self.transport[id], keys.KEY_BYTES
        (secret,) = keys.agree(pair.private, [self.advertised[:size]])
        if not hasattr(self.protocol, "members"):
            (key,) = self.protocol.pair_keys(0, id, [VICTIM], [secret], "share transport")
            return key
        return as_far_as_known(self.protocol, id, VICTIM, secret, self.public)

    def forged(self):
        """Return shares of nothing, as if the others had sent them."""
        rows = np.empty((len(self.others), SHARE_BYTES), np.uint8)
        for k, id in enumerate(self.others):
            nonce, associated = self.victim._share_labels(id, VICTIM)
            plain = bytes(SHARE_BYTES - 16)
            sealed = AESGCM(self.key(id)).encrypt(nonce, plain, associated)
            rows[k] = np.frombuffer(sealed, np.uint8)
        return np.array(self.others), rows


def test_keys_of_the_servers_own_open_a_vector_of_the_passive_variant():
    pretender = Pretender(make("secagg", N, security="passive"))
    protocol, victim = pretender.protocol, pretender.victim
    _, _, shares = pretender.open()
    victim.receive_share_keys(*pretender.forged())
    upload = victim.send_masked_input(pretender.vector).view("<u4")

    limbs = combined(shares, protocol.topology.threshold)
    seed = shamir.from_limbs(limbs[KEY_SHARE : KEY_SHARE + SEED_LIMBS], 16)
    private = shamir.from_limbs(limbs[:MASK_KEY_LIMBS], 32)
    others = pretender.others
    secrets = keys.agree(private, [pretender.mask[id].public for id in others])
    masks = [
        protocol.private_mask_key(0, VICTIM, seed),
        *protocol.pair_keys(0, VICTIM, others, secrets, "additive mask"),
    ]
    group = protocol.parameters.arithmetic
    signs = [-1, *(-pair_sign(VICTIM, id) for id in others)]
    seen = group.decode(group.add_masks(upload.copy(), masks, signs))
    assert protocol.quantise(pretender.vector, VICTIM, 0).tolist() == seen.tolist()


def test_keys_of_the_servers_own_open_nothing_of_the_active_variant():
    pretender = Pretender(make("secagg", N))
    _, _, shares = pretender.open()

    assert {} == shares
    reason = refused(pretender.victim.receive_share_keys, *pretender.forged())
    assert "the shares of 1 devices, itself included, are sealed by them for the keys" in reason


def substituting(protocol, part, told):
    """Return a server that tells some devices another key of device 5, in one of its parts."""
    other = KeyPair.generate(insecure_secrets(3, 0, 0)).public

    class Substitutes(type(server_of(protocol))):  # type: ignore[misc]
        def send_advertise_keys(self, receiver=None):
            listed: NDArray[np.uint8] = super().send_advertise_keys(receiver).copy()
            if receiver in told:
                start = 2 + 64 * 5 + (0 if part == "transport" else 32)
                listed[start : start + 32] = raw(other)
            return listed

    return server_of(protocol, kind=Substitutes)


@pytest.mark.parametrize("part", ["transport", "mask"])
def test_one_substituted_key_is_noticed_at_both_ends(part):
    """The shares of the two do not open; whoever was told another list than t unmasks nothing."""
    protocol = make("secagg", N)
    found = converse(protocol, substituting(protocol, part, {2}), before=("result", Pattern.LOCAL))

    ignored = {
        id: [error.sender for error in device.ignored] for id, device in found.devices.items()
    }
    assert {2: ["device 5"], 5: ["device 2"]} == {id: who for id, who in ignored.items() if who}
    assert [2] == list(found.refusals)
    assert "1 devices, itself included, endorsed the list" in str(found.refusals[2])
    assert N - 1 == len(found.sent["unmask"])


@pytest.mark.parametrize("part", ["transport", "mask"])
@pytest.mark.parametrize("count", [4, 5])
def test_a_server_that_shows_two_lists_of_keys_finds_no_threshold(part, count):
    """Though every device sees the same survivors, and all but device 5 open seven's shares."""
    protocol = make("secagg", N)
    server = substituting(protocol, part, {*range(count + 1)} - {5})
    found = converse(protocol, server, before=BEFORE_ANSWER)
    assert [5] == list(found.refusals)
    assert 1 == len({*found.told["consistency_check"].values()})
    for id, device in found.devices.items():
        if id == 5:
            continue
        words = refused(device.receive_unmask, server.send_unmask(id))
        assert "endorsed the list of survivors that it was shown; the threshold is 7" in words
        refused(device.send_unmask)


def test_an_added_device_gets_no_share_that_can_be_read_and_counts_for_nothing():
    # Device 8 has vanished; the server has keys in its place.
    protocol = make("secagg", N)
    found = converse(
        protocol, before=("advertise_keys", Pattern.BROADCAST), dropouts={8: "advertise_keys"}
    )
    pretended = KeyPair.generate(insecure_secrets(3, 0, 0))
    found.server._public[8] = pretended.public + KeyPair.generate(insecure_secrets(4, 0, 0)).public
    device = found.devices[2]
    device.receive_advertise_keys(found.server._links.key_list(2))
    receivers, rows = device.send_share_keys()
    row = rows[receivers.tolist().index(8)].tobytes()
    nonce, associated = device._share_labels(2, 8)
    own = found.sent["advertise_keys"][2]
    (secret,) = keys.agree(pretended.private, [own[:32]])
    key = as_far_as_known(protocol, 2, 8, secret, found.server._public)

    with pytest.raises(InvalidTag):
        AESGCM(key).decrypt(nonce, row, associated)
    sealed = raw(AESGCM(key).encrypt(nonce, bytes(SHARE_BYTES - 16), associated))
    forged = np.tile(sealed, (6, 1))
    reason = refused(device.receive_share_keys, np.array([0, 1, 3, 4, 5, 8]), forged)
    assert "the shares of 1 devices, itself included, are sealed by them for the keys" in reason


def rows_to_device_2(found, *altered):
    """Return from whom rows of shares come to device 2, and the rows; those of some are altered."""
    senders = [id for id in range(N) if id != 2]
    rows = []
    for sender in range(N):
        receivers, sent = found.devices[sender].send_share_keys()
        if sender != 2:
            rows.append(sent[receivers.tolist().index(2)].copy())
            rows[-1][-1] ^= sender in altered
    return np.array(senders), np.stack(rows)


@pytest.mark.parametrize("genuine", [5, 6])
def test_a_device_goes_on_if_the_shares_of_seven_open_and_not_if_those_of_six_do(genuine):
    """Rows of three more are no use to it, and no reason to leave."""
    found = converse(make("secagg", N), before=("share_keys", Pattern.ROUTE))
    altered, device = [id for id in range(N) if id != 2][genuine:], found.devices[2]
    rows = rows_to_device_2(found, *altered)

    if genuine == 5:
        words = refused(device.receive_share_keys, *rows)
        assert "refuses to go on: the shares of 6 devices, itself included, are sealed" in words
        assert "the threshold is 7" in words
    else:
        device.receive_share_keys(*rows)
        assert list(range(N)) == device._members()
    assert [f"device {id}" for id in altered] == [e.sender for e in device.ignored]


def test_survivors_of_whom_fewer_than_seven_opened_are_not_endorsed():
    """A server that adds devices of its own, and lets real ones vanish, finds it out here."""
    found = converse(make("secagg", N), before=("share_keys", Pattern.ROUTE))
    device = found.devices[2]
    device.receive_share_keys(*rows_to_device_2(found, 0, 1, 3))
    device.send_checks()
    device.send_masked_input(found.vectors[2])

    without = [id for id in range(N) if id != 9]
    words = refused(ask, found, 2, without, [9])
    assert "refuses to endorse these survivors: the shares of 6 devices" in words
    refused(device.send_consistency_check)


# Devices that are expelled


def test_a_device_counts_those_whose_shares_opened_again_when_one_is_expelled():
    """Seven with itself are just enough; of the three others any may be expelled."""
    for expelled, enough in ((9, True), (0, False), (5, False)):
        found = converse(make("secagg", N), before=("share_keys", Pattern.ROUTE))
        device = found.devices[2]
        device.receive_share_keys(*rows_to_device_2(found, 7, 8, 9))
        device.send_checks()
        if enough:
            device.receive_expelled(raw(bits([expelled], N)))
            assert [id for id in range(N) if id != expelled] == device._members()
        else:
            words = refused(device.receive_expelled, raw(bits([expelled], N)))
            assert "refuses to go on: the shares of 6 devices, itself included, are sealed" in words
            assert "the threshold is 7" in words


def test_nobody_is_expelled_before_devices_have_answered_nor_twice():
    found = converse(make("secagg", N), before=("checks", Pattern.GATHER))
    device, nobody = found.devices[2], raw(bits([], N))
    for ids in ([5], []):
        assert "refuses to expel" in refused(device.receive_expelled, raw(bits(ids, N)))
    device.send_checks()
    device.receive_expelled(nobody)
    for ids in ([5], []):
        assert "refuses to expel" in refused(device.receive_expelled, raw(bits(ids, N)))
    assert list(range(N)) == device._members()


def expelling(told):
    """Return a round whose server has told some devices that device 5 is expelled.

    And which request each of them endorses: one that names exactly its members.
    """
    found = converse(make("secagg", N), before=("expelled", Pattern.BROADCAST))
    without = [id for id in range(N) if id != 5]
    for id, device in found.devices.items():
        device.receive_expelled(raw(bits([5] if id in told else [], N)))
        device.send_masked_input(found.vectors[id])
    for id in found.devices:
        # Neither as a survivor nor as dropped may it be named to whom it is expelled.
        others = [(list(range(N)), []), (without, [5])] if id in told else [(without, [])]
        for survivors, dropped in others:
            words = refused(ask, found, id, survivors, dropped)
            assert "does not name exactly the devices that shared keys with it" in words
    requests = {True: without, False: list(range(N))}
    for id in found.devices:
        ask(found, id, requests[id in told], [])
    return found, lambda id: bits(requests[id in told], N) + bits([], N)


@pytest.mark.parametrize("count", [4, 5, 6])
def test_a_server_that_expels_a_device_for_some_only_finds_no_threshold(count):
    """Those who were told count as many of their kind, and so do the others: neither are seven."""
    told = {*[id for id in range(N) if id != 5][:count]}
    found, request = expelling(told)
    protocol, public = found.protocol, found.sent["advertise_keys"]
    for receiver, device in found.devices.items():
        tags = {}
        for id in range(N):
            if id != receiver:
                seen = digest(protocol, public, request(id))
                identity = protocol.identity(id)
                tags[id] = endorsement(protocol, identity, id, receiver, seen).tobytes()
        words = refused(device.receive_unmask, endorse(tags))
        expected = count if receiver in told else N - count
        assert f"refuses to unmask: {expected} devices, itself included, endorsed" in words
        refused(device.send_unmask)


def test_a_device_that_is_not_registered_is_beyond_the_last():
    protocol = make("secagg", N)
    found = converse(protocol, before=("advertise_keys", Pattern.BROADCAST))
    told = found.server.send_advertise_keys(2)
    extra = bits([*range(N), 10], 16)[:2] + told[2:].tobytes() + bytes(64)

    with pytest.raises(MessageError, match="a device beyond the last, 9"):
        found.devices[2].receive_advertise_keys(raw(extra))


# The list of survivors


def ask(found, id, survivors, dropped):
    found.devices[id].receive_consistency_check(raw(bits(survivors, N) + bits(dropped, N)))


@pytest.mark.parametrize(
    ("survivors", "dropped", "reason"),
    [
        (range(6), range(6, N), "refuses to unmask the sum of 6 devices: the threshold is 7"),
        (range(N), [4], "both secrets of device 4"),
        (range(9), [], "does not name exactly the devices that shared keys"),
        ([0, 1, 3, 4, 5, 6, 7, 8, 9], [2], "it is named as dropped"),
    ],
)
def test_a_list_that_is_no_ones_is_refused(survivors, dropped, reason):
    found = converse(make("secagg", N), before=BEFORE_REQUEST)

    assert reason in refused(ask, found, 2, list(survivors), list(dropped))
    refused(found.devices[2].send_consistency_check)
    refused(found.devices[2].send_unmask)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (bits(range(N), N), "received 2 bytes, expected 4"),
        (bits(range(N), N) + bits([10], 16), "it names a device beyond the last, 9"),
    ],
)
def test_a_malformed_list_is_named(message, reason):
    found = converse(make("secagg", N), before=BEFORE_REQUEST)
    words = f"malformed consistency_check message from the server: {reason}"

    with pytest.raises(MessageError, match=words):
        found.devices[2].receive_consistency_check(raw(message))


def test_a_list_is_endorsed_once():
    found = converse(make("secagg", N), before=BEFORE_REQUEST)
    everybody = list(range(N))
    ask(found, 2, everybody, [])
    found.devices[2].send_consistency_check()

    assert "a second unmasking request" in refused(ask, found, 2, everybody, [])
    assert "a second unmasking request" in refused(ask, found, 2, everybody[:-1], everybody[-1:])


def test_nothing_is_unmasked_unless_it_was_checked():
    found = converse(make("secagg", N), before=BEFORE_REQUEST)
    refused(found.devices[2].send_consistency_check)
    refused(found.devices[2].send_unmask)
    refused(found.devices[2].receive_unmask, raw(bits([], N)))
    ask(found, 2, list(range(N)), [])

    assert "that nobody endorsed" in refused(found.devices[2].send_unmask)


# Endorsements


def endorse(tags):
    """Return the message with which the server hands over tags, by who made them."""
    return raw(bits(list(tags), N) + b"".join(tags[id] for id in sorted(tags)))


def tags_for(found, receiver):
    """Return the tags that all survivors sent for one."""
    everybody = sorted(found.sent["consistency_check"])
    found_tags = {}
    for sender, sent in found.sent["consistency_check"].items():
        if sender != receiver:
            place = [id for id in everybody if id != sender].index(receiver)
            found_tags[sender] = sent[16 * place : 16 * (place + 1)]
    return found_tags


def test_six_others_are_enough_and_five_are_not():
    found = converse(make("secagg", N), before=BEFORE_ANSWER)
    for count, receiver in ((5, 2), (6, 3)):
        tags = tags_for(found, receiver)
        message = endorse({id: tags[id] for id in sorted(tags)[:count]})
        device = found.devices[receiver]
        if count == 5:
            reason = refused(device.receive_unmask, message)
            assert "6 devices, itself included, endorsed the list" in reason
            assert "the threshold is 7" in reason
            refused(device.send_unmask)
        else:
            device.receive_unmask(message)
            assert device.send_unmask().size


def test_the_own_name_does_not_count_twice():
    found = converse(make("secagg", N), before=BEFORE_ANSWER)
    tags = tags_for(found, 2)
    senders = sorted(tags)[:5]
    message = raw(bits([*senders, 2], N) + b"".join(tags[id] for id in senders))

    assert "6 devices, itself included" in refused(found.devices[2].receive_unmask, message)


def test_who_is_no_survivor_endorses_nothing():
    protocol = make("secagg", N)
    found = converse(protocol, before=BEFORE_ANSWER, dropouts={8: "masked_input"})
    tags = tags_for(found, 2)
    told = digest(protocol, found.sent["advertise_keys"], found.told["consistency_check"][2])
    five = {id: tags[id] for id in sorted(tags)[:5]}
    eight = endorsement(protocol, protocol.identity(8), 8, 2, told).tobytes()
    message = endorse({**five, 8: eight})

    assert "6 devices, itself included" in refused(found.devices[2].receive_unmask, message)


def swapped(found, tags):
    """Return tags under the names of others."""
    ids = sorted(tags)
    return {id: tags[ids[(k + 1) % len(ids)]] for k, id in enumerate(ids)}


def replayed(found, tags):
    """Return the tags of the round before."""
    return tags_for(found.earlier, 2)


def of_others(found, tags):
    """Return the tags that were meant for another device."""
    meant = tags_for(found, 3)
    return {id: meant[id] if id in meant else bytes(16) for id in tags}


def reflected(found, tags):
    """Return the tags that the device made itself, for the others."""
    others = [id for id in sorted(found.devices) if id != 2]
    own = found.sent["consistency_check"][2]
    return {id: own[16 * k : 16 * (k + 1)] for k, id in enumerate(others)}


def strangers(found, tags):
    """Return the tags of devices with the same ids, registered with other keys."""
    protocol = found.protocol
    told = digest(protocol, found.sent["advertise_keys"], found.told["consistency_check"][2])
    others = enrolled(protocol.name, N, seed=6)
    return {id: endorsement(protocol, others[id], id, 2, told, 1).tobytes() for id in tags}


def of_another_list(found, tags):
    """Return tags, by the right devices, of another list."""
    protocol = found.protocol
    told = digest(protocol, found.sent["advertise_keys"], bits(range(9), N) + bits([9], N))
    return {
        id: endorsement(protocol, protocol.identity(id), id, 2, told, 1).tobytes() for id in tags
    }


@pytest.mark.parametrize(
    "forge", [swapped, replayed, of_others, reflected, strangers, of_another_list]
)
def test_endorsements_by_others_of_others_and_of_old_count_for_nothing(forge):
    protocol = make("secagg", N)
    earlier = converse(protocol, index=0, before=BEFORE_ANSWER)
    found = converse(protocol, index=1, before=BEFORE_ANSWER)
    found.earlier = earlier
    tags = tags_for(found, 2)
    forged = forge(found, tags)
    device = found.devices[2]

    assert [*range(2), *range(3, N)] == sorted(forged)
    reason = refused(device.receive_unmask, endorse(forged))
    assert "1 devices, itself included" in reason
    refused(device.send_unmask)
    # The right ones are still good: what was forged was not worth a refusal for the whole round.
    device.receive_unmask(endorse(tags))
    assert "endorsements twice" in refused(device.receive_unmask, endorse(tags))


def test_an_identity_takes_part_in_every_round_once():
    """What was said in a round could be shown again in another one of its number."""
    identities = enrolled("secagg", N)
    protocol = make("secagg", N, identities=identities)

    def enter(index):
        return protocol.device(2, index, insecure_secrets(7, index, 2)).send_advertise_keys()

    assert 64 == enter(3).size
    for index in (3, 0, 2):
        assert f"device 2 refuses round {index}: it has taken part in round 3 already" in refused(
            enter, index
        )
    assert 64 == enter(4).size
    # It is the identity that remembers, not the protocol that is run with it.
    protocol = make("secagg", 4, identities=identities, members=[0, 2, 5, 7])
    device = protocol.device(1, 4, insecure_secrets(8, 4, 1))
    assert "it has taken part in round 4 already" in refused(device.send_advertise_keys)
    # One that enrols anew begins anew.
    assert (
        64 == make("secagg", N).device(2, 0, insecure_secrets(7, 0, 2)).send_advertise_keys().size
    )


def test_two_rounds_of_one_number_under_one_enrolment_have_no_tag_in_common():
    """Even of an identity that was put back: the round's keys are in what is endorsed."""
    identities = enrolled("secagg", N)
    rounds = []
    for seed in range(2):
        protocol = make("secagg", N, identities=identities)
        found = converse(protocol, seed=seed, before=BEFORE_ANSWER)
        rounds.append(found)
        for identity in identities.values():
            identity._last_round = -1

    one, other = rounds
    assert one.told["consistency_check"] == other.told["consistency_check"]
    for id in range(N):
        assert not {*tags_for(one, id).values()} & {*tags_for(other, id).values()}
    # The tags of the one are worth nothing in the other.
    tags = tags_for(one, 2)
    message = endorse(tags)
    assert "1 devices, itself included" in refused(other.devices[2].receive_unmask, message)


def test_devices_that_took_part_under_other_numbers_endorse_nothing():
    # Slot 3 is device 30 to some and device 31 to others: the lists read the same.
    identities = enrolled("secagg", 12)
    one = make("secagg", N, identities=identities, members=range(N))
    other = make("secagg", N, identities=identities, members=[*range(9), 10])
    message = raw(bits(range(N), N) + bits([], N)).tobytes()

    found = converse(one, before=BEFORE_ANSWER)
    public = found.sent["advertise_keys"]
    assert digest(one, public, message) != digest(other, public, message)
    expected = digest(one, public, found.told["consistency_check"][2])
    assert found.devices[2]._digest == expected


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\xff", "1 bytes hold no list of devices"),
        (bits(range(7), N) + bytes(16 * 5), "received 80 bytes, expected 96"),
        (bits(range(7), N) + bytes(16 * 7), "received 112 bytes, expected 96"),
    ],
)
def test_malformed_endorsements_are_named(message, reason):
    found = converse(make("secagg", N), before=BEFORE_ANSWER)

    with pytest.raises(MessageError, match=f"malformed unmask message from the server: {reason}"):
        found.devices[2].receive_unmask(raw(message))


# The enrolment


class Meeting:
    """Devices that are about to hear of each other's identity keys."""

    def __init__(self, devices=5, seed=1, protocol="secagg"):
        registration = Registration(protocol, devices)
        self.devices: list[Identity] = [
            registration.device(id, insecure_secrets(seed, 0, id)) for id in range(devices)
        ]
        self.registry = np.stack([raw(device.registers()) for device in self.devices])
        for device in self.devices:
            device.learn(self.registry)
        self.sent = [device.send_advertise_keys().tobytes() for device in self.devices]

    def tell(self, id, sent):
        self.devices[id].receive_advertise_keys(raw(b"".join(sent)))


def changed(sent, id, to):
    return [*sent[:id], to, *sent[id + 1 :]]


def test_pairs_have_two_secrets_that_nobody_else_has():
    meeting = Meeting()
    for id in range(5):
        meeting.tell(id, meeting.sent)

    secrets = set()
    for i in range(5):
        for j in range(i):
            for kind in ("sealing_secret", "tagging_secret"):
                one, other = (getattr(meeting.devices[a], kind)(b) for a, b in ((i, j), (j, i)))
                assert one == other
                assert len(one) == 32
                secrets.add(one)
    assert 20 == len(secrets)


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


def secrets_with(device, id):
    return device.sealing_secret(id), device.tagging_secret(id)


def absent_for_all(meeting, sent, absent, known):
    """Assert that what a device sent is worth nothing to the others, who agree among themselves.

    Of the private half of its identity key nothing follows that they have in common with it, nor
    has it anything in common with any two of them.
    """
    others = [id for id in range(5) if id != absent]
    for id in others:
        meeting.tell(id, sent)
    drawn = {}
    for i in others:
        for j in others:
            if i < j:
                found = secrets_with(meeting.devices[i], j)
                assert found == secrets_with(meeting.devices[j], i)
                (secret,) = keys.agree(identity_key(i).private, [sent[j][:32]])
                assert as_if_agreed(i, j, sent, secret) == found
        drawn[i] = secrets_with(meeting.devices[i], absent)
        assert [32, 32] == [len(one) for one in drawn[i]]
        (own,) = keys.agree(known.private, [sent[i][:32]])
        for secret in (own, bytes(32)):
            assert not {*as_if_agreed(i, absent, sent, secret)} & {*drawn[i]}
        assert not {own, bytes(32)} & {*drawn[i]}
        # Nor does anything follow from its own, which is in the same place.
        assert not {*secrets_with(meeting.devices[i], i)} & {*drawn[i]}
    assert 2 * len(others) == len({one for both in drawn.values() for one in both})


@pytest.mark.parametrize("case", ["key", "signature", "of another", "old", "protocol", "unsigned"])
def test_a_device_without_a_valid_signature_on_its_identity_key_is_absent_for_all_others(case):
    meeting = Meeting()
    own = meeting.sent[3]
    other = KeyPair.generate(insecure_secrets(4, 0, 0))
    told, known = {
        "key": (other.public + own[32:], other),
        "signature": (own[:-1] + bytes([own[-1] ^ 1]), identity_key(3)),
        "of another": (meeting.sent[4], identity_key(4)),
        "old": (Meeting(seed=2).sent[3], identity_key(3, seed=2)),
        "protocol": (Meeting(protocol="sparse").sent[3], identity_key(3)),
        "unsigned": (own[:32] + bytes(64), identity_key(3)),
    }[case]
    assert known.public == told[:32]
    absent_for_all(meeting, changed(meeting.sent, 3, told), 3, known)


def test_a_device_whose_identity_key_is_as_it_sent_it_but_for_the_signature_enrols_alone():
    """It knows those of the others, who know nothing of it."""
    meeting = Meeting()
    sent = changed(meeting.sent, 3, meeting.sent[3][:32] + bytes(64))
    for id in range(5):
        meeting.tell(id, sent)
    for id in (0, 1, 2, 4):
        one, other = meeting.devices[3], meeting.devices[id]
        assert not {*secrets_with(one, id)} & {*secrets_with(other, 3)}


def test_a_device_that_signs_a_key_with_which_nothing_can_be_agreed_is_absent():
    for number in (0, 1, 2**255 - 20):
        meeting = Meeting()
        device, low = meeting.devices[3], number.to_bytes(32, "little")
        signature = device._signing.sign(device._context(3), low)
        sent = changed(meeting.sent, 3, low + signature)
        absent_for_all(meeting, sent, 3, identity_key(3))


def test_of_absent_devices_nobody_has_the_same_secrets_in_another_run():
    """They are drawn: what stands for a device that enrolled with nobody is nobody's to know."""
    drawn = set()
    for seed in (1, 2):
        meeting = Meeting(seed=seed)
        sent = changed(meeting.sent, 3, bytes(96))
        for id in (0, 1, 2, 4):
            meeting.tell(id, sent)
            drawn |= {*secrets_with(meeting.devices[id], 3)}
    assert 16 == len(drawn)


def test_all_others_may_be_absent():
    meeting = Meeting()
    meeting.tell(0, [meeting.sent[0], *[bytes(96)] * 4])
    secrets = {one for id in range(5) for one in secrets_with(meeting.devices[0], id)}
    assert 10 == len(secrets)


def test_a_device_knows_its_own_identity_key():
    meeting = Meeting()
    other = Meeting(seed=2).sent[0]

    assert "own identity key" in refused(meeting.tell, 0, changed(meeting.sent, 0, other))


def test_a_device_enrols_once_and_not_without_a_registry():
    meeting = Meeting()
    meeting.tell(0, meeting.sent)
    assert "refuses to enrol twice" in refused(meeting.tell, 0, meeting.sent)

    stranger = Registration("secagg", 5).device(0, insecure_secrets(1, 0, 0))
    told = raw(b"".join(meeting.sent))
    assert "knows no registered keys" in refused(stranger.receive_advertise_keys, told)


def test_a_list_of_identities_that_lacks_one_is_malformed():
    meeting = Meeting()

    with pytest.raises(MessageError, match="received 384 bytes, expected 480"):
        meeting.tell(0, meeting.sent[:-1])


def test_the_server_keeps_one_identity_key_of_each():
    meeting, server = Meeting(), Registration("secagg", 5).server()
    for id in range(4):
        server.receive_advertise_keys(id, raw(meeting.sent[id]))
    with pytest.raises(MessageError, match="from device 0: it was received twice"):
        server.receive_advertise_keys(0, raw(meeting.sent[0]))
    with pytest.raises(MessageError, match="received 95 bytes, expected 96"):
        server.receive_advertise_keys(4, raw(meeting.sent[4][:-1]))
    # Nor does the enrolment end without it: it goes on with zeros in its place.
    assert not hasattr(server, "finish_advertise_keys")
    listed = server.send_advertise_keys().tobytes()
    assert b"".join(meeting.sent[:4]) + bytes(96) == listed
    absent_for_all(meeting, [*meeting.sent[:4], bytes(96)], 4, identity_key(4))
    assert "own identity key" in refused(meeting.devices[4].receive_advertise_keys, raw(listed))
    assert "has not enrolled" in refused(meeting.devices[4].sealing_secret, 1)
    assert "has not enrolled" in refused(meeting.devices[4].tagging_secret, 1)

    server.receive_advertise_keys(4, raw(meeting.sent[4]))
    assert b"".join(meeting.sent) == server.send_advertise_keys().tobytes()


def test_a_server_that_nobody_sent_an_identity_key_lists_zeros():
    assert bytes(96 * 5) == Registration("secagg", 5).server().send_advertise_keys().tobytes()


# Rounds with devices that nobody knows


def test_a_server_can_endorse_nothing_for_a_device_whose_identity_is_not_signed():
    """Though it says that this device is a survivor, has made it itself, and expels nobody."""
    identities = enrolled_with_strangers("secagg", N, [4])
    protocol = make("secagg", N, identities=identities)
    found = converse(protocol, before=("expelled", Pattern.BROADCAST))
    assert [4] == list(found.refusals)
    everybody = list(range(N))
    for id in (2, 6):
        found.devices[id].send_masked_input(found.vectors[id])
        ask(found, id, everybody, [])
    request = bits(everybody, N) + bits([], N)
    told = digest(protocol, found.sent["advertise_keys"], request)
    context = b"hpcfl/1 secagg round 0 request from 4 to 2"
    forged = [
        endorsement(protocol, identities[4], 4, 2, told).tobytes(),
        endorsement(protocol, identities[4], 4, 6, told).tobytes(),
        *(signatures.tag(secret, context, told) for secret in (bytes(32), b"")),
        *(signatures.tag(identities[4].tagging_secret(id), context, told) for id in (4, 6)),
        bytes(16),
    ]
    honest = {
        id: endorsement(protocol, protocol.identity(id), id, 2, told).tobytes()
        for id in (0, 1, 3, 5, 6, 7)
    }
    five = [id for id in sorted(honest) if id != 7]
    for tag in forged:
        tags = {**{id: honest[id] for id in five}, 4: tag}
        words = refused(found.devices[2].receive_unmask, endorse(tags))
        assert "6 devices, itself included, endorsed the list" in words
        refused(found.devices[2].send_unmask)
    found.devices[2].receive_unmask(endorse(honest))
    assert found.devices[2].send_unmask().size


def test_identities_come_from_the_operating_system_unless_seeded():
    seeded, again = Meeting().sent, Meeting().sent
    assert seeded == again

    one, other = enrolled("secagg", 3, seed=None), enrolled("secagg", 3, seed=None)
    assert one[0].tagging_secret(1) != other[0].tagging_secret(1)


def test_no_secret_is_shown():
    meeting = Meeting()
    meeting.tell(0, meeting.sent)
    device = meeting.devices[0]
    private = insecure_secrets(1, 0, 0)
    drawn = [private(32), private(32)]

    shown = f"{device!r} {device._signing!r} {device._pair!r}"
    assert not any(secret.hex() in shown or repr(secret)[2:-1] in shown for secret in drawn)
