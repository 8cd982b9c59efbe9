"""Masks or vectors that are dealt in coded pieces: lightsecagg to all, committee to its members."""

import hashlib
import itertools
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from protocol_rounds import bits, make, play, raw, sent_by_device
from scipy import stats
from slow_reference import Q, elements, hkdf, lagrange

from hpcfl.algorithms.aggregation import committee
from hpcfl.algorithms.aggregation.committee import Committee
from hpcfl.algorithms.aggregation.lightsecagg import LightSecAgg
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import Pattern
from hpcfl.crypto import keystream
from hpcfl.crypto.groups import FIELDS, FQ
from hpcfl.crypto.keys import agree
from hpcfl.errors import BelowThresholdError, MessageError, RefusedError, UsageError

LIGHT, MANY = 9, 12
DEALING = {"lightsecagg": "share_masks", "committee": "share_input"}
ANSWERING = {"lightsecagg": "unmask", "committee": "sum_shares"}
both = pytest.mark.parametrize("name", DEALING)


def light(devices=LIGHT, dim=20, **options):
    return make("lightsecagg", devices, dim, **options)


def shared(devices=MANY, dim=20, **options):
    return make("committee", devices, dim, **options)


def coded(name, **options):
    """Return a protocol, those that hold pieces, and one that need hold none."""
    if name == "lightsecagg":
        return light(dropout=0.2, **options), [*range(LIGHT)], 4
    protocol = shared(30, dropout=0.2, **options)
    members = play(protocol, before="share_input").server.committee
    return protocol, members, next(id for id in range(30) if id not in members)


# Rows


def test_a_row_from_a_device_without_a_listed_key_is_no_piece():
    """The pieces of the others are kept, as they were dealt."""
    played = play(light(), before="share_masks")
    device, dealt = played.devices[0], {}
    for id, dealer in played.devices.items():
        receivers, rows = dealer.send_share_masks()
        if id:
            dealt[id] = rows[receivers.tolist().index(0)]
    del device.state.transport_keys[3], device.state.transport_keys[8]
    dealt[5] = dealt[5] ^ 1
    device.receive_share_masks(np.array([*dealt]), np.stack([*dealt.values()]))

    no_key = "it advertised no key"
    reasons = {"device 3": no_key, "device 8": no_key, "device 5": "it does not decrypt"}
    assert reasons == {error.sender: error.reason for error in device.ignored}
    assert {0, 1, 2, 4, 6, 7} == device.state.pieces.keys()
    other = play(light(), before=("share_masks", Pattern.GATHER)).devices[0].state.pieces
    assert all(np.array_equal(piece, other[id]) for id, piece in device.state.pieces.items())


# How many pieces, and of how many


@pytest.mark.parametrize(
    ("devices", "options", "needed", "private"),
    [
        (100, {"dropout": 0.28, "gamma": 0.33}, 70, 33),
        (100, {"dropout": 0.3, "gamma": 0.1}, 68, 10),
        (100, {"dropout": 0.0, "gamma": 0.0}, 98, 1),
        (4, {"dropout": 0.3, "gamma": 0.0}, 3, 1),
        (2, {"dropout": 0.3, "gamma": 0.1}, 2, 1),
    ],
)
def test_the_code_follows_from_the_plan_of_the_round(devices, options, needed, private):
    code = LightSecAgg(Parameters(devices, 10, **options)).code

    assert (needed, private) == (code.needed, code.private)


def test_where_more_may_collude_than_stay_the_protocol_refuses_to_be_run():
    with pytest.raises(UsageError, match="38 of 40 devices may collude, and 21 stay to the end"):
        LightSecAgg(Parameters(40, 10, gamma=0.45, dropout=0.49, population=1000))


@pytest.mark.parametrize(
    ("devices", "gamma", "dropout"),
    [(100, 0.1, 0.3), (1000, 0.1, 0.1), (1000, 0.33, 0.0), (40, 0.0, 0.1), (300, 0.2, 0.2)],
)
def test_a_committee_is_private_and_decodable_by_the_tails_of_its_draw(devices, gamma, dropout):
    """SciPy's hypergeometric tails; one member more vanishes, and one answers falsely."""
    code = Committee(Parameters(devices, 10_000, gamma=gamma, dropout=dropout)).code
    colluding, dropped = int(gamma * devices), int(dropout * devices)
    members, private, needed = code.devices, code.private, code.needed

    assert members < devices
    assert stats.hypergeom.sf(private, devices, colluding, members) <= 2**-40
    assert private == 1 or stats.hypergeom.sf(private - 1, devices, colluding, members) > 2**-40
    spare = members - needed - 2
    assert stats.hypergeom.sf(spare, devices, dropped, members) <= 2**-20
    assert spare == 0 or stats.hypergeom.sf(spare - 1, devices, dropped, members) > 2**-20


def test_the_committee_is_the_smallest_that_costs_at_most_twice_what_all_would():
    plan = Parameters(100, 1000, gamma=0.1, dropout=0.1)
    protocol = Committee(plan)

    def expansion(members):
        code = committee.choose_code(plan, protocol.threat, members, 5_000, protocol.field)
        return members / code.pieces if code else float("inf")

    chosen = protocol.code.devices
    assert expansion(chosen) <= 2 * expansion(100)
    assert all(expansion(fewer) > 2 * expansion(100) for fewer in range(2, chosen))


def drawn(devices, size, nonce, index):
    """Return the committee of a round, of so many devices."""
    plan, code = SimpleNamespace(devices=devices), SimpleNamespace(devices=size)
    context = partial(Committee.context, Committee)
    return Committee.drawn(
        SimpleNamespace(parameters=plan, code=code, context=context), nonce, index
    )


def test_the_committee_follows_from_a_nonce_and_is_any_set_equally_often():
    """The first different words of a keystream, by hand; chi-squared over all pairs of five."""
    nonce, index = bytes(range(16)), 3
    key = hashlib.sha256(b"hpcfl/1 committee round 3 members" + nonce).digest()[:16]
    stream = keystream.open_stream(key).update(bytes(8 * 200))
    words = [int.from_bytes(stream[k : k + 8], "little") % 30 for k in range(0, len(stream), 8)]
    first = [*dict.fromkeys(words)]
    assert sorted(first[:7]) == drawn(30, 7, nonce, index)
    # Of 30, 20 are all but the first ten.
    assert sorted({*range(30)} - {*first[:10]}) == drawn(30, 20, nonce, index)
    assert [*range(30)] == drawn(30, 30, nonce, index)

    for size in (2, 3):
        counts = dict.fromkeys(itertools.combinations(range(5), size), 0)
        for trial in range(2000):
            counts[tuple(drawn(5, size, trial.to_bytes(16, "little"), 0))] += 1
        # A right draw fails here once in a million times; the seeds are fixed.
        assert stats.chisquare(list(counts.values())).pvalue > 1e-6


@pytest.mark.parametrize(
    ("options", "claim", "fails"),
    [
        ({"gamma": 0.0}, "or, with one device colluding, the sum of the others. One piece", False),
        ({"gamma": 0.1, "population": 400}, "probability that more collude is at most 2^-", True),
    ],
)
def test_what_is_promised_counts_those_who_collude(options, claim, fails):
    (promise,) = LightSecAgg(Parameters(40, 10, **options)).promises()
    assert claim in promise.claim
    assert (0 < promise.worst < 2**-40) == fails


# The code, again in Python's integers


def slow_rows(played, code, members, words_of):
    """Return the rows that devices send to members: Lagrange coding, then AES-GCM."""
    name = f"hpcfl/1 {played.label}"
    found = {}
    for i in range(played.parameters.devices):
        words = words_of(i)
        pieces = [words[k : k + code.width] for k in range(0, len(words), code.width)]
        points = range(code.devices + 1, code.devices + code.needed + 1)
        for place, member in enumerate(members, 1):
            if member == i:
                continue
            share = [
                lagrange(zip(points, p, strict=True), place) for p in zip(*pieces, strict=True)
            ]
            (secret,) = agree(played.sources[i].drawn[0], [played.sent("advertise_keys")[member]])
            key = hkdf(secret, f"{name} pair {min(i, member)} {max(i, member)} piece transport")
            nonce = i.to_bytes(4, "little") + member.to_bytes(4, "little") + bytes(4)
            content = np.array(share, "<u4").tobytes()
            labels = f"{name} from {i} to {member}".encode()
            found[i, member] = AESGCM(key).encrypt(nonce, content, labels)
    return found


def rows_of(played):
    routed = played.messages(DEALING[played.protocol.name], Pattern.ROUTE)
    return {(m.header.sender, m.header.receiver): m.payload for m in routed}


def padded(vector, code):
    return [*vector, *[0] * ((code.needed - code.private) * code.width - len(vector))]


def test_rows_are_the_sealed_coded_pieces_of_a_mask():
    """From what the devices drew: keys, mask, random pieces."""
    devices, dim = 5, 11
    played = play(light(devices, dim, dropout=0.0, gamma=0.3), index=4)
    code = played.protocol.code
    assert (3, 1, 6) == (code.needed, code.private, code.width)

    def words_of(id):
        mask, random = (elements(key, 11, Q) for key in played.sources[id].drawn[1:3])
        return [*padded(mask, code), *random[: code.private * code.width]]

    assert slow_rows(played, code, range(devices), words_of) == rows_of(played)


def test_rows_are_the_sealed_shares_of_quantised_vectors_and_only_members_are_asked():
    devices, dim = 7, 11
    played = play(shared(devices, dim, dropout=0.0, gamma=0.0, committee=5), index=4)
    code, members = played.protocol.code, played.server.committee
    assert (5, 3, 1, 6) == (code.devices, code.needed, code.private, code.width)

    def words_of(id):
        vector = played.protocol.quantise(played.vectors[id], id, 4) % Q
        random = elements(played.sources[id].drawn[1], code.private * code.width, Q)
        return [*padded(vector.tolist(), code), *random]

    assert slow_rows(played, code, members, words_of) == rows_of(played)
    down = played.record.bytes_down[Committee.phases().index("sum_shares")]
    assert {*np.flatnonzero(down)} == {*members}


# Hostile devices


def one_more(payload):
    """Change the last element of a sum of pieces, by one."""
    payload[-1] ^= 1
    return payload


@pytest.mark.parametrize("field", [FQ, *FIELDS.values()], ids=lambda field: field.name)
def test_a_wrong_sum_of_pieces_is_found_and_left_out(field):
    """One combination of 8 bits alone would miss one of 251: there are as many as it takes."""
    assert field.modulus**field.checks > 2**62
    protocol = light(dropout=0.2, group=field.name, levels=10)
    played = play(protocol, change=sent_by_device(protocol, "unmask", 3, one_more))
    played.goes_on(range(9))
    assert {3} == {*played.kept_out}
    assert "its sum of pieces, or a piece that it was dealt" in str(played.kept_out[3])


def other_sum(payload):
    # Two that are wrong by the same may look like a third one that is wrong.
    payload.view("<u4")[1] //= 2
    return payload


def test_a_wrong_sum_of_shares_is_found_even_after_dropouts():
    protocol, members, _ = coded("committee")
    gone = dict.fromkeys(members[: len(members) - protocol.code.needed - 2], "sum_shares")
    change = sent_by_device(protocol, "sum_shares", members[-1], other_sum)
    played = play(protocol, dropouts=gone, change=change)

    played.goes_on(range(30))
    assert {members[-1]} == {*played.kept_out}


@pytest.mark.parametrize(
    ("liars", "absent", "words"),
    [
        ([3], 2, "that 7 devices sent contradict each other: 1 or more are wrong"),
        ([3, 4], 1, "that 8 devices sent contradict each other: 2 or more are wrong"),
        ([3, 4], 0, "that 9 devices sent contradict each other: 2 or more are wrong"),
    ],
)
def test_wrong_sums_that_cannot_be_told_apart_end_the_round(liars, absent, words):
    """One of U + 1 cannot be told from the others, nor can two of U + 2 or U + 3."""
    protocol = light(dropout=0.2)
    gone = dict.fromkeys(range(9 - absent, 9), "unmask")

    with pytest.raises(BelowThresholdError, match=words):
        play(protocol, dropouts=gone, change=sent_by_device(protocol, "unmask", liars, other_sum))


@both
def test_pieces_that_do_not_belong_together_end_the_round(name):
    protocol, _, liar = coded(name)

    def wrap(id, device):
        if id == liar:
            send = getattr(device, f"send_{DEALING[name]}")

            def dealing(*vector):
                keys = device.state.transport_keys
                receivers, rows = send(*vector)
                device.state.done.clear()
                device.state.transport_keys = keys
                if vector:
                    rows[::2] = send(vector[0] * 0.5)[1][::2]
                else:
                    device.state.mask_key = b""
                    # A piece of another mask, sealed as it should be.
                    rows[3] = send()[1][3]
                return receivers, rows

            setattr(device, f"send_{DEALING[name]}", dealing)
        return device

    with pytest.raises(BelowThresholdError, match="dealt pieces that do not belong together"):
        play(protocol, wrap=wrap)


@pytest.mark.parametrize("group", ["fq", "field8", "field28"])
@pytest.mark.parametrize("dim", [20, 40_000])
def test_pieces_that_are_no_field_elements_cost_their_dealer_alone(group, dim):
    """Those of the others are kept, which short ones are unpacked with."""

    def wrap(id, device):
        if id == 4:
            seal = device._sealed

            def dealing(peers, pieces):
                pieces = pieces.copy()
                pieces[[peers.index(2), peers.index(3)], -1] = 2**protocol.summed_in.bits - 1
                return seal(peers, pieces)

            device._sealed = dealing
        return device

    protocol = light(dropout=0.2, dim=dim, group=group, levels=10)
    played = play(protocol, wrap=wrap)

    played.goes_on([id for id in range(LIGHT) if id != 4])
    for id in range(LIGHT):
        wrong = [error.sender for error in played.devices[id].ignored]
        assert (["device 4"] if id in (2, 3) else []) == wrong
        assert all("not a group element" in str(e) for e in played.devices[id].ignored)


# What devices refuse


def test_a_round_ends_with_a_sentence_where_too_few_members_are_left():
    protocol = shared(dropout=0.1)
    members = play(protocol, before="share_input").server.committee
    gone = members[: len(members) - protocol.code.needed + 1]
    for phase, what in (
        ("share_input", "committee hold shares, at least"),
        ("sum_shares", "committee added up the shares that they hold, at least"),
        ("advertise_keys", "members of the committee advertised keys"),
    ):
        with pytest.raises(BelowThresholdError, match=what):
            play(protocol, dropouts=dict.fromkeys(gone, phase))


@pytest.mark.parametrize(
    ("name", "survivors", "words"),
    [
        ("lightsecagg", range(4), "the sum of 4 devices: 5 are needed"),
        ("lightsecagg", range(1, 9), "it is named as dropped"),
        ("committee", range(6), "of 6 devices: 7 are needed"),
    ],
)
def test_pieces_are_added_up_of_enough_devices_once(name, survivors, words):
    """The difference of two sums would be what one device's pieces hide."""
    protocol = light() if name == "lightsecagg" else shared()
    step = ANSWERING[name]
    played = play(protocol, before=(step, Pattern.BROADCAST))
    device = played.devices[0 if name == "lightsecagg" else played.server.committee[0]]
    receive, send = (getattr(device, f"{what}_{step}") for what in ("receive", "send"))

    devices = protocol.parameters.devices
    told = raw(bits(survivors, devices))
    assert words in str(played.refused(RefusedError, receive, told))
    played.refused(RefusedError, send)
    receive(raw(bits(range(devices), devices)))
    error = played.refused(RefusedError, receive, raw(bits(range(devices - 1), devices)))
    assert "refuses a second request to" in str(error)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda told: np.concatenate([told[:16], raw(bits(range(1, 12), 12))]), "not received"),
        (lambda told: np.concatenate([told[:17], raw(b"\xff"), told[18:]]), "beyond the last, 11"),
        # Another committee has other members, of which too few advertised keys.
        (
            lambda told: np.concatenate([told[:16], raw(bits([0], 12)), told[18 : 18 + 32]]),
            "bytes, expected|devices: 7 are needed|members: ",
        ),
    ],
)
def test_a_committee_that_is_none_is_refused(change, words):
    played = play(shared(), before=("advertise_keys", Pattern.BROADCAST))
    told = played.server.send_advertise_keys()
    with pytest.raises((MessageError, RefusedError), match=words):
        played.devices[0].receive_advertise_keys(change(told))
