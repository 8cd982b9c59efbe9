"""Flamingo: the key that decryptors make once, and who can decrypt what in a round."""

import builtins
import hashlib
import sys
from copy import deepcopy
from functools import cache

import numpy as np
import pytest
from protocol_rounds import Wire, bits, enrolled, make, play, raw, sent_by_device

pytest.importorskip("nacl")

from hpcfl.algorithms.aggregation import find, flamingo
from hpcfl.algorithms.aggregation.base import DIRECTORY
from hpcfl.algorithms.aggregation.flamingo import MAKING, POINT, SHARE, SURE
from hpcfl.algorithms.aggregation.promises import Outcome, objection
from hpcfl.algorithms.parameters import Parameters
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.loopback import Loopback
from hpcfl.crypto import edwards, keys
from hpcfl.errors import BelowThresholdError, HpcflError, MessageError, RefusedError, UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.rounds.enrolment import NO_ROUND, enrol

ORDER_2 = (2**255 - 20).to_bytes(32, "little")  # the point (0, -1)
IDENTITY = (1).to_bytes(32, "little")
TWISTED = bytes.fromhex("07" + 31 * "00")  # no point at all


@cache
def parties_of(devices, gamma, dropout):
    protocol = make("flamingo", devices, gamma=gamma, dropout=dropout)
    return enrolled(protocol, devices)


def together(devices=40, dim=20, gamma=0.1, dropout=0.1, **options):
    """Return a protocol whose devices have enrolled."""
    protocol = make("flamingo", devices, dim, gamma=gamma, dropout=dropout, **options)
    there = deepcopy(parties_of(devices, gamma, dropout))
    protocol.join(there, range(devices), devices)
    return protocol


def scalar(raw):
    return int.from_bytes(raw, "little")


# The group, and the numbers


def test_the_known_vector_comes_out():
    """The numbers of an independent computation of the same formulas."""
    polynomials = [(5, 7), (11, 13), (17, 19)]
    shares = [sum(dealt) for dealt in zip(*(edwards.share(p, 3) for p in polynomials), strict=True)]
    assert shares == [72, 111, 150]
    public = edwards.combine([1, 1, 1], [edwards.base(first) for first, _ in polynomials])
    assert public.hex().startswith("712889851ae266657db3")
    context, seed = b"flamingo edge 4 9 round 1", bytes(range(16))
    sent = flamingo.encrypted(public, [seed], [context], [12345])
    assert sent[:32].hex().startswith("ef4f62f8479733ad879c")
    assert sent[32:].hex() == "ce3a708f45de36bb9bf4c7bb2fca4196"
    parts = {x: edwards.multiply(shares[x - 1], sent[:32]) for x in (1, 3)}
    assert parts[1].hex().startswith("898901e635781cdf4613")
    assert parts[3].hex().startswith("1ddc98b1304acb36ba9f")
    common = edwards.combine(edwards.weights((1, 3)), parts.values())
    assert common.hex().startswith("25c6dc4b856fac3b5424")
    assert flamingo.xor(sent[32:], keys.derive(common, context)) == seed


@pytest.mark.parametrize("point", [IDENTITY, ORDER_2, TWISTED, bytes(32), b"\xff" * 32])
def test_what_is_no_point_of_the_group_is_never_multiplied(point):
    """A point of small order would tell the scalar modulo its order."""
    mixed = edwards.library().crypto_core_ed25519_add(edwards.base(3), ORDER_2)
    for wrong in (point, mixed):
        assert not edwards.is_point(wrong)
        with pytest.raises(ValueError, match="not in the group"):
            edwards.multiply(8, wrong)


@pytest.mark.parametrize(
    ("devices", "setting", "chance"),
    [(100, (22, 11), 0.337), (1000, (37, 21), 0.0430), (10_000, (39, 22), 0.00482)],
)
def test_the_numbers_are_the_least_that_keep_the_promises(devices, setting, chance):
    protocol = find("flamingo")(Parameters(devices, 10, dropout=0.1, gamma=0.1, levels=100))
    assert setting == protocol.setting
    assert protocol.chance / SURE == pytest.approx(chance, rel=0.01)
    planned = devices - protocol.threat.dropped
    assert planned == protocol.needed_in_sum
    honest = planned - protocol.threat.colluding
    assert flamingo.split(honest, protocol.chance) <= protocol.accepted
    assert flamingo.split(honest, protocol.chance - 1) > protocol.accepted
    assert flamingo.split(honest - 1, protocol.chance) > protocol.accepted
    assert sum(promise.worst for promise in protocol.promises()) <= 2**-40
    assert objection(protocol.promises(), Outcome(devices, planned)) is None
    assert "is not one of" in objection(protocol.promises(), Outcome(devices, planned - 1))


def test_links_are_mutual_and_as_many_as_the_probability_says():
    devices, seed = 300, bytes(range(16))
    near = [set(flamingo.linked(seed, id, devices, SURE // 5).tolist()) for id in range(devices)]
    assert all(id in near[peer] for id in range(devices) for peer in near[id])
    assert all(id not in near[id] for id in range(devices))
    count = sum(map(len, near)) / 2
    pairs = devices * (devices - 1) / 2
    assert abs(count - pairs / 5) < 6 * np.sqrt(pairs * 0.16)
    assert len(flamingo.linked(seed, 3, devices, SURE)) == devices - 1
    assert near[0] != {*flamingo.linked(bytes(16), 0, devices, SURE // 5).tolist()}


def test_unconnected_devices_are_seen():
    chain = {0: [1], 1: [0, 2], 2: [1, 3], 3: [2]}
    assert flamingo.connected(chain.__getitem__, [0, 1, 2, 3])
    assert not flamingo.connected(chain.__getitem__, [0, 1, 3])
    assert flamingo.connected(chain.__getitem__, [2])


def test_the_bound_of_split_graphs_covers_what_happens():
    generator, devices, chance = np.random.default_rng(1), 12, 0.3
    split = 0
    for _ in range(2000):
        drawn = np.triu(generator.random((devices, devices)) < chance, 1)
        near = [np.flatnonzero(row).tolist() for row in drawn | drawn.T]
        split += not flamingo.connected(near.__getitem__, range(devices))
    bound = flamingo.split(devices, int(chance * SURE))
    assert split / 2000 < bound + 0.02
    assert bound < 0.4


# The key


def shares_of(protocol):
    """Return each decryptor's share of the private key, by its number."""
    (known, *_) = members = [protocol.enrolled[id] for id in range(protocol.parameters.devices)]
    return {known.makers.index(id) + 1: scalar(members[id]._share) for id in known.decryptors}


def private_key(shares, threshold):
    some = dict([*shares.items()][-threshold:])
    return sum(w * s for w, s in zip(edwards.weights(tuple(some)), some.values(), strict=True))


@pytest.mark.parametrize("devices", [2, 3, 10, 40])
def test_any_t_decryptors_share_the_private_key(devices):
    protocol = together(devices)
    shares, known = shares_of(protocol), protocol.enrolled[DIRECTORY]
    members, threshold = protocol.setting
    assert members == len(shares)
    assert edwards.base(private_key(shares, threshold)) == known.public
    few = dict([*shares.items()][: threshold - 1])
    assert edwards.base(private_key(few, threshold)) != known.public
    everybody = [protocol.enrolled[id] for id in range(devices)]
    assert {known.public} == {one.public for one in everybody}
    assert {tuple(known.decryptors)} == {tuple(one.decryptors) for one in everybody}


def changed_key_making(protocol, change):
    """Return the enrolment with changed messages: `change(step name, sender, payload)`."""
    steps = protocol.enrolment(protocol.parameters.devices).steps

    def passed(header, message):
        if message.ndim > 1 or header.step >= len(steps):
            return message
        payload = change(steps[header.step].name, header.sender, message[16:].copy())
        return np.concatenate([message[:16], payload])

    wire = Wire(protocol.parameters.devices, passed)
    return enrol(protocol, wire, insecure_seed=5)


def makers_of(protocol):
    return protocol.enrolled[DIRECTORY].makers


def spoiled(place, by):
    """Return what changes some bytes of a dealing."""

    def change(payload):
        payload[place : place + len(by)] = np.frombuffer(by, np.uint8)
        return payload

    return change


@pytest.mark.parametrize(
    "change",
    [
        spoiled(0, ORDER_2),
        spoiled(0, TWISTED),
        spoiled(POINT, IDENTITY),
        spoiled(POINT, edwards.base(77) if "nacl" in sys.modules else b""),
        spoiled(5 * POINT, bytes(64)),
        spoiled(5 * POINT + 32, (1).to_bytes(32, "little")),
        spoiled(5 * POINT + 64, b"\x55"),
        lambda payload: payload[:-1],
    ],
)
def test_a_maker_whose_part_is_wrong_is_left_out_for_all(change):
    """Points off the curve, of small order, of another polynomial; no proof; a wrong share."""
    protocol = together()
    liar = makers_of(protocol)[3]

    def once(name, sender, payload):
        return change(payload) if (name, sender) == ("dealing", liar) else payload

    protocol.join(changed_key_making(protocol, once).devices, range(40), 40)
    decryptors = [id for id in makers_of(protocol) if id != liar]
    assert protocol.enrolled[DIRECTORY].decryptors == decryptors
    assert edwards.base(private_key(shares_of(protocol), 5)) == protocol.enrolled[0].public
    play(protocol, None, {decryptors[0]: "unmask", liar: "masked_input"}).goes_on()


def test_nobody_can_subtract_the_others_parts_of_the_key():
    """The points fit shares of t - 1 honest makers, but the maker does not know their secret."""
    protocol = together()
    makers, (_, threshold) = makers_of(protocol), protocol.setting
    member, others = protocol.enrolled[makers[0]], [edwards.base(31), edwards.base(37)]
    own = edwards.combine([1, -1, -1], [edwards.base(1000), *others])
    # A line through the point at 0, and through a known share at this maker's place.
    second = edwards.combine([1, -1], [edwards.base(999), own])
    points = [own, second, *[edwards.base(1)] * (threshold - 2)]
    place = 1
    share = (999 + sum(place**k for k in range(2, threshold))) % edwards.ORDER
    fits = member._is_right(makers[1], [*points, bytes(32), bytes(32)], edwards.packed(share))
    assert not fits
    # With a polynomial whose secret it knows, and its proof, the same check passes.
    known = [7, 9, *[1] * (threshold - 2)]
    committed = list(map(edwards.base, known))
    challenge = member._challenge(makers[1], b"".join(committed), edwards.base(55))
    proof = [edwards.packed(challenge), edwards.packed(55 + challenge * 7)]
    (share,) = edwards.share(known, 1)
    assert member._is_right(makers[1], [*committed, *proof], edwards.packed(share))
    assert not member._is_right(makers[2], [*committed, *proof], edwards.packed(share))
    assert not member._is_right(makers[1], [*committed, *proof], edwards.packed(share + 1))


def test_a_maker_that_rejects_too_many_ends_the_enrolment():
    """Of t parts one is of an honest device; of fewer, the server may know all."""
    protocol = together()
    liar = makers_of(protocol)[2]

    def rejecting(count):
        def change(name, sender, payload):
            if (name, sender) == ("held", liar):
                return np.packbits(np.arange(11) >= count)
            return payload

        return change

    protocol.join(changed_key_making(protocol, rejecting(2)).devices, range(40), 40)
    assert len(protocol.enrolled[0].decryptors) == 9
    play(protocol).goes_on()
    with pytest.raises(BelowThresholdError, match=r"4 of 11 devices .* 5 are needed"):
        changed_key_making(protocol, rejecting(7))


def test_no_share_is_sealed_under_a_key_that_the_server_knows():
    """With a device that did not enrol, nobody has a secret: not even one of zeros."""
    protocol = make("flamingo", 10, gamma=0.0, dropout=0.1)
    absent = 7

    def lost(header, message):
        return message[:-1] if (header.step, header.sender) == (0, absent) else message

    found = enrol(protocol, Wire(10, lost), insecure_seed=5)
    member, known = found.devices[0], found.devices[DIRECTORY]
    assert not known.there[absent]
    assert bytes(32) != member._secret(absent) != found.devices[1]._secret(absent)
    protocol.join(found.devices, range(10), 10)
    played = play(protocol)
    played.goes_on([id for id in range(10) if id != absent])
    assert "has not enrolled" in str(played.left[absent])


def test_devices_take_no_key_that_is_not_of_enough_makers():
    protocol = together()
    known = protocol.enrolled[DIRECTORY]
    right = known.send_public_key()
    enrolment = protocol.enrolment(40)
    keys_told = known.send_advertise_keys()

    def fresh(id):
        """Return a device before it learns the public key."""
        member = enrolment.device(id, keys.insecure_secrets(5, NO_ROUND, id))
        member.send_advertise_keys()
        member.receive_advertise_keys(keys_told)
        if member.in_committee:
            member.receive_dealings(known.send_dealings())
        return member

    def told(ids, public):
        return raw(bits(ids, 40) + public)

    maker, other = known.makers[0], next(id for id in range(40) if id not in known.makers)
    few, public = known.makers[:4], right[5:].tobytes()
    wrong = [
        (other, told(few, public)),
        (other, told([*few, other], public)),
        (other, told(known.makers, ORDER_2)),
        (maker, told(known.makers, edwards.base(3))),
        (maker, told(known.makers[:-1], public)),
    ]
    for id, payload in wrong:
        member = fresh(id)
        with pytest.raises(MessageError, match="is not the sum of the decryptors' parts"):
            member.receive_public_key(payload)
        with pytest.raises(RefusedError, match="has not enrolled"):
            member.enter(0)
    for id in (maker, other):
        member = fresh(id)
        if id == maker:
            member.send_dealing()
            with pytest.raises(RefusedError, match="to deal parts of a key twice"):
                member.send_dealing()
        member.receive_public_key(right)
        assert (member.public, member._share) == (
            public,
            protocol.enrolled[id]._share,
        )
        with pytest.raises(MessageError):
            member.receive_public_key(right)
    with pytest.raises(RefusedError, match="second key"):
        protocol.enrolled[maker].receive_dealings(known.send_dealings())


def test_makers_are_drawn_by_the_keys_of_all():
    one, other = together(), make("flamingo", 40, dropout=0.1)
    other.join(enrolled(other, 40, seed=6), range(40), 40)
    assert makers_of(one) != makers_of(other)
    listed = one.enrolled[DIRECTORY].send_advertise_keys().tobytes()
    assert one.enrolled[7].digest == hashlib.sha256(b"hpcfl/1 flamingo key" + listed).digest()


# Rounds


@pytest.mark.parametrize("devices", [*range(3, 12), 17, 29, 40])
def test_sums_are_exact_whoever_drops_out_when(devices):
    protocol = together(devices, gamma=0.1 if devices > 9 else 0.0)
    members, threshold = protocol.setting
    decryptors = protocol.enrolled[0].decryptors
    others = [id for id in range(devices) if id not in decryptors]
    spare = devices - protocol.needed_in_sum
    before = [*decryptors[: min(spare, members - threshold)], *others][:spare]
    for index, phase in enumerate(("model", "masked_input", "unmask")):
        gone = dict.fromkeys(before, phase)
        play(protocol, None, gone, index=index).goes_on()
    # Half of those that may go do so before the upload, and then as many decryptors as can.
    gone = dict.fromkeys(others[:spare], "masked_input")
    gone |= dict.fromkeys(decryptors[: members - threshold], "unmask")
    play(protocol, None, gone, index=3).goes_on()


@pytest.mark.parametrize("group", ["ring16", "ring32", "field16"])
def test_other_groups(group):
    if group == "field16":
        with pytest.raises(UsageError, match="not in field16"):
            make("flamingo", 10, group=group, levels=10)
        return
    protocol = together(10, group=group, levels=100, weights=np.arange(1, 11) / 55)
    play(protocol, None, {4: "masked_input"}).goes_on()


def answers(protocol, senders, change):
    return sent_by_device(protocol, "unmask", senders, change)


def flipped(payload):
    return payload ^ 1


def shifted_shares(payload):
    """Add 1 to every share of a seed: without a tag, the seed would be another one."""
    rows = payload.reshape(-1, 32)[-35:]
    for row in rows:
        row[:] = np.frombuffer(edwards.packed(scalar(row.tobytes()) + 1), np.uint8)
    return payload


@pytest.mark.parametrize("change", [flipped, shifted_shares, np.zeros_like, np.roll])
@pytest.mark.parametrize("place", [0, -1])
def test_one_decryptor_that_answers_falsely_does_no_harm(change, place):
    protocol = together()
    liar = protocol.enrolled[0].decryptors[place]
    others = [id for id in range(40) if id not in protocol.enrolled[0].decryptors]
    gone = dict.fromkeys(others[:5], "masked_input")
    spoil = (lambda payload: np.roll(payload, 32)) if change is np.roll else change
    play(protocol, None, gone, change=answers(protocol, liar, spoil)).goes_on()


@pytest.mark.parametrize("change", [flipped, shifted_shares])
def test_of_several_the_round_ends_and_no_wrong_sum_comes_out(change):
    protocol = together()
    liars = protocol.enrolled[0].decryptors[:3]
    with pytest.raises(BelowThresholdError, match="give no seed of device"):
        play(protocol, change=answers(protocol, liars, change))


def test_a_false_answer_among_t_ends_the_round():
    protocol = together()
    decryptors = protocol.enrolled[0].decryptors
    gone = dict.fromkeys(decryptors[5:], "unmask")
    play(protocol, None, gone).goes_on()
    with pytest.raises(BelowThresholdError, match="the answers of 5 decryptors give no seed"):
        play(protocol, None, gone, index=1, change=answers(protocol, decryptors[2], flipped))
    with pytest.raises(BelowThresholdError, match=r"4 of 11 decryptors answered, .* 5 are needed"):
        play(protocol, None, dict.fromkeys(decryptors[4:], "unmask"), index=2)
    before = dict.fromkeys(decryptors[4:8], "masked_input")
    gone = before | dict.fromkeys(decryptors[8:], "unmask")
    with pytest.raises(BelowThresholdError, match=r"4 of 11 decryptors answered"):
        play(protocol, None, gone, index=3)


def uploads(protocol, sender, change):
    return sent_by_device(protocol, "masked_input", sender, change)


@pytest.mark.parametrize(
    "wrong", [ORDER_2, IDENTITY, TWISTED, bytes(32), b"\xff" * 32, b"\x09" + bytes(47)]
)
def test_a_device_that_encrypts_wrongly_ends_the_round_and_is_named(wrong):
    """Its vector is in the sum already, under masks that nobody can remove."""
    protocol = together()
    near = protocol.near(protocol.enrolled[0], 0)
    liar, gone = 1, 2
    while gone not in near(liar) or gone in protocol.enrolled[0].decryptors:
        gone += 1
    start = 48 * near(liar).index(gone)

    def spoil(payload):
        payload[start : start + len(wrong)] = np.frombuffer(wrong, np.uint8)
        return payload

    with pytest.raises(BelowThresholdError, match=r"give no seed of device 1: it sent wrong ones"):
        play(protocol, None, {gone: "masked_input"}, change=uploads(protocol, liar, spoil))
    # If no key of the pair is needed, nobody notices, and nothing is wrong.
    play(protocol, index=1, change=uploads(protocol, liar, spoil)).goes_on()


@pytest.mark.parametrize("count", [1, 6, 7])
def test_shares_that_do_not_open_cost_the_round_if_too_few_are_left(count):
    protocol = together()
    known = protocol.enrolled[0]
    tail = 48 * len(protocol.near(known, 0)(1))

    def spoil(payload):
        payload[tail : tail + SHARE * count : SHARE] ^= 1
        return payload

    change = uploads(protocol, 1, spoil)
    if count <= 6:
        played = play(protocol, change=change)
        played.goes_on()
        for id in known.decryptors[:count]:
            answer = played.sent("unmask")[id]
            assert answer[32:64] == b"\xff" * 32
            assert b"\xff" * 32 not in (answer[:32], answer[64:96])
    else:
        with pytest.raises(BelowThresholdError, match=r"answers of 4 decryptors .* device 1:"):
            play(protocol, change=change)


def asked(protocol, index=0, gone=()):
    """Return a round in which the decryptors are next, one of them, and what it is to be told."""
    out = dict.fromkeys(gone, "masked_input")
    played = play(protocol, None, out, index=index, before="unmask")
    id = played.server.committee[0]
    return played, played.devices[id], played.server.send_unmask(id)


def request(played, device, survivors):
    """Return a request about some survivors, with what was uploaded."""
    server = played.server
    pairs = flamingo.pairs_cut(server._known, server._near, survivors)
    points = b"".join(server.state.seeds[id][peer][:POINT] for id, peer in pairs)
    shares = b"".join(server.state.shares[id][device.id] for id in survivors)
    return raw(bits(survivors, 40) + points + shares)


def test_a_decryptor_refuses_what_would_reveal_more():
    protocol = together()
    played, device, right = asked(protocol)
    decryptors = protocol.enrolled[0].decryptors
    others = [id for id in range(40) if id not in decryptors]
    # The request of the server is the one that the test makes.
    assert request(played, device, range(40)).tobytes() == right.tobytes()
    cases = [
        ([*decryptors, *others[:23]], "is not one of 35"),
        ([*decryptors, *others[:5]], "is not one of 21"),
        ([id for id in range(40) if id != device.id], "without its own vector"),
        ([*others, *decryptors[:4]], "is not one of 35"),
    ]
    for survivors, sentence in cases:
        played, device, _ = asked(
            protocol, len(played.devices) + cases.index((survivors, sentence))
        )
        with pytest.raises(RefusedError, match=sentence):
            device.receive_unmask(request(played, device, sorted(survivors)))
        with pytest.raises(RefusedError, match="was not asked"):
            device.send_unmask()


def test_a_decryptor_refuses_too_few_decryptors_and_a_graph_that_is_not_connected(monkeypatch):
    protocol = together()
    decryptors = protocol.enrolled[0].decryptors
    missing = decryptors[4:]
    monkeypatch.setattr(flamingo.promises, "objection", lambda promises, outcome: None)
    played, device, _ = asked(protocol)
    survivors = [id for id in range(40) if id not in missing]
    with pytest.raises(RefusedError, match="there are 4 decryptors, and 5 are needed"):
        device.receive_unmask(request(played, device, survivors))
    played, device, right = asked(protocol, 1)
    monkeypatch.setattr(flamingo, "connected", lambda near, ids: False)
    with pytest.raises(RefusedError, match="masks do not connect"):
        device.receive_unmask(right)


def test_a_decryptor_answers_once_a_round_and_only_in_a_round_it_uploaded_in():
    protocol = together()
    _, device, right = asked(protocol)
    device.receive_unmask(right)
    first = device.send_unmask()
    assert first.size == POINT * 40
    with pytest.raises(RefusedError, match="twice"):
        device.receive_unmask(right)
    with pytest.raises(RefusedError, match="has answered"):
        device.send_unmask()
    again = protocol.device(device.id, 0, keys.insecure_secrets(1, 0, 0))
    with pytest.raises(RefusedError, match="without its own vector"):
        again.receive_unmask(right)
    with pytest.raises(RefusedError, match="masked a vector for round 0 already"):
        again.send_masked_input(np.zeros(20))


def test_an_answer_has_a_seed_for_each_link_that_is_cut_and_for_each_survivor():
    """What a decryptor answers has a point for each link that is cut, a share for each survivor."""
    protocol = together()
    others = [id for id in range(40) if id not in protocol.enrolled[0].decryptors]
    gone = others[:3]
    played, device, right = asked(protocol, gone=gone)
    near = protocol.near(protocol.enrolled[0], 0)
    cut = [(id, peer) for peer in gone for id in near(peer) if id not in gone]
    assert played.server.state.pairs == cut
    device.receive_unmask(right)
    answer = device.send_unmask().tobytes()
    assert len(answer) == POINT * (len(cut) + 37)
    _, other, _ = asked(protocol, 1)
    with pytest.raises(MessageError):
        other.receive_unmask(right[:-1])


def test_shares_of_other_devices_rounds_and_receivers_do_not_open():
    """A server that swaps them would learn a second seed of a device."""
    protocol = together()
    _, device, right = asked(protocol)
    later, same, wanted = asked(protocol, 1)
    assert same.id == device.id
    start = len(right) - SHARE * 40
    swapped = wanted.copy()
    swapped[start : start + SHARE] = wanted[start + SHARE : start + 2 * SHARE]
    swapped[start + 2 * SHARE : start + 3 * SHARE] = right[start + 2 * SHARE : start + 3 * SHARE]
    other = later.server.send_unmask(later.server.committee[1])
    swapped[start + 4 * SHARE : start + 5 * SHARE] = other[start + 4 * SHARE : start + 5 * SHARE]
    same.receive_unmask(swapped)
    told = keys.cut(same.send_unmask().tobytes(), 32)
    assert [k for k, one in enumerate(told) if one == b"\xff" * 32] == [0, 2, 4]


def test_uploads_of_one_round_do_not_repeat_in_another():
    protocol = together(10)
    sent = [play(protocol, index=index).sent("masked_input")[3] for index in (0, 1)]
    blocks = [{one[k : k + 16] for k in range(0, len(one) - 15, 16)} for one in sent]
    assert not blocks[0] & blocks[1]


def test_a_server_that_is_told_twice_or_by_others_refuses():
    protocol = together()
    played, device, right = asked(protocol)
    device.receive_unmask(right)
    answer = device.send_unmask()
    stranger = next(id for id in range(40) if id not in played.server.committee)
    with pytest.raises(MessageError, match="it is no decryptor"):
        played.server.receive_unmask(stranger, answer)
    assert played.server.send_unmask(stranger) is None


@pytest.mark.parametrize("dropped", [0, 10])
def test_bytes_are_those_of_the_formula(dropped):
    devices, dim = 100, 50
    protocol = together(devices, dim)
    known = protocol.enrolled[0]
    others = [id for id in range(devices) if id not in known.decryptors]
    gone = others[:dropped]
    played = play(protocol, None, dict.fromkeys(gone, "masked_input"))
    near = protocol.near(known, 0)
    cut = sum(id not in gone for peer in gone for id in near(peer))
    for id, payload in played.sent("masked_input").items():
        assert len(payload) == 4 * dim + 48 * len(near(id)) + 48 * 22
    assert {len(one) for one in played.told_each("unmask").values()} == {
        13 + 32 * cut + 48 * (devices - dropped)
    }
    assert {len(one) for one in played.sent("unmask").values()} == {
        32 * cut + 32 * (devices - dropped)
    }
    assert {*played.sent("unmask")} == {*known.decryptors}
    assert 32 * cut + 32 * (devices - dropped) <= protocol.largest_reply
    once = protocol.enrolment(devices)
    assert once.largest_message == 32 * 11 + 64 + 48 * 22


def test_the_enrolment_is_in_no_round():
    protocol = make("flamingo", 12, gamma=0.0, dropout=0.1)
    found = enrol(protocol, Loopback(12))
    spent = found.record.bytes_up[protocol.enrolment_phases().index(MAKING)].sum()
    members, threshold = protocol.setting
    dealing = 32 * threshold + 64 + 48 * members
    assert spent == members * (16 + dealing + 16 + 1)
    assert MAKING not in protocol.phases()


# What is refused before


def test_rounds_of_some_of_the_devices_are_refused():
    plan = Parameters(10, 5, levels=100, population=20)
    with pytest.raises(UsageError, match="are of all 20 devices that enrol, and not of 10"):
        find("flamingo")(plan)
    protocol = make("flamingo", 10)
    with pytest.raises(UsageError, match="are of all 12 devices"):
        protocol.join({}, range(10), 12)


def test_uploads_are_not_summed_on_the_way():
    """What MPI sums are whole vectors; here each comes with seeds and shares."""
    with pytest.raises(UsageError, match="flamingo cannot use --upload reduce"):
        Experiment.prepare(BenchOptions("flamingo", dim=10, upload="reduce"), 5)


def test_devices_enrolled_for_other_colluders_refuse_a_round():
    careless, protocol = together(40, gamma=0.0), make("flamingo", 40, gamma=0.2, dropout=0.1)
    protocol.join(careless.enrolled, range(40), 40)
    device = protocol.device(0, 0, keys.insecure_secrets(1, 0, 0))
    with pytest.raises(RefusedError, match="other numbers of devices may collude"):
        device.send_masked_input(np.zeros(20))


def test_without_pynacl_a_sentence_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def no_nacl(name, *rest):
        if name.startswith("nacl"):
            raise ImportError(name)
        return real(name, *rest)

    edwards.library.cache_clear()
    monkeypatch.setattr(builtins, "__import__", no_nacl)
    with pytest.raises(HpcflError, match=r"flamingo needs PyNaCl: pip install 'hpcfl\[flamingo\]'"):
        make("flamingo", 5)


def test_a_device_that_has_not_enrolled_is_refused_alone():
    """Nobody is linked with it, so decryptors would refuse a sum that it is in."""
    protocol = together()
    server = play(protocol, before="masked_input").server
    server._known.there[7] = False
    payload = np.zeros(10, np.uint8)
    with pytest.raises(MessageError, match="device 7: it has not enrolled"):
        server.receive_masked_input(7, payload)
