"""A committee that adds up shares: exact sums, shares by an independent path, what is refused."""

import hashlib
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from protocol_rounds import Header, bits, make, play, raw, sent_by_device, updates
from scipy import stats
from slow_reference import elements, hkdf

from hpcfl.algorithms.aggregation import committee
from hpcfl.algorithms.aggregation.committee import Committee
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import Pattern
from hpcfl.crypto.keys import agree
from hpcfl.errors import BelowThresholdError, MessageError, RefusedError

Q = 2**32 - 5
DEVICES = 12


def shared(devices=DEVICES, dim=20, **options):
    return make("committee", devices, dim, **options)


# Exact sums


def test_a_round_ends_with_a_sentence_where_too_few_members_are_left():
    protocol = shared(dropout=0.1)
    members = play(protocol, before="share_input").server.committee
    gone = members[: len(members) - protocol.code.needed + 1]
    for phase, what in (
        ("share_input", "hold shares"),
        ("sum_shares", "added up the shares that they hold"),
    ):
        with pytest.raises(BelowThresholdError, match=f"committee {what}, at least"):
            play(protocol, dropouts=dict.fromkeys(gone, phase))
    with pytest.raises(BelowThresholdError, match="members of the committee advertised keys"):
        play(protocol, dropouts=dict.fromkeys(gone, "advertise_keys"))


# C, l and T


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
        code = committee.choose_code(plan, protocol.threat, members, protocol.field)
        return members / code.pieces if code else float("inf")

    chosen = protocol.code.devices
    assert expansion(chosen) <= 2 * expansion(100)
    assert all(expansion(fewer) > 2 * expansion(100) for fewer in range(2, chosen))


def drawn(devices, size, nonce, index):
    """Return the committee of a round, of so many devices."""
    plan, code = SimpleNamespace(devices=devices), SimpleNamespace(devices=size)
    return Committee.drawn(SimpleNamespace(parameters=plan, code=code), nonce, index)


def test_the_committee_follows_from_a_nonce_and_is_any_set_equally_often():
    """The first different words of a keystream, by hand; chi-squared over all pairs of five."""
    from hpcfl.crypto import keystream

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
        for trial in range(4000):
            counts[tuple(drawn(5, size, trial.to_bytes(16, "little"), 0))] += 1
        # A right draw fails here once in a million times; the seeds are fixed.
        assert stats.chisquare(list(counts.values())).pvalue > 1e-6


# Messages


def slow_value(points, values, place):
    total = 0
    for x, value in zip(points, values, strict=True):
        up, down = value, 1
        for other in points:
            if other != x:
                up, down = up * (place - other) % Q, down * (x - other) % Q
        total += up * pow(down, -1, Q)
    return total % Q


def test_rows_are_the_sealed_shares_of_quantised_vectors():
    """From what the devices drew: keys, random pieces, packed sharing, AES-GCM."""
    devices, dim, index = 7, 11, 4
    played = play(shared(devices, dim, dropout=0.0, gamma=0.0, committee=5), index=index)
    code, members = played.protocol.code, played.server.committee
    needed, private, width = code.needed, code.private, code.width
    assert (5, 3, 1, 6) == (code.devices, needed, private, width)

    rows = {
        (message.header.sender, message.header.receiver): message.payload
        for message in played.messages("share_input", Pattern.ROUTE)
    }
    assert {*rows} == {(i, m) for i in range(devices) for m in members if i != m}
    for (i, member), row in rows.items():
        random = elements(played.sources[i].drawn[1], private * width, Q)
        vector = played.protocol.quantise(played.vectors[i], i, index) % Q
        words = [*vector.tolist(), *[0] * ((needed - private) * width - dim), *random]
        pieces = [words[k * width : (k + 1) * width] for k in range(needed)]
        points = range(code.devices + 1, code.devices + needed + 1)
        place = members.index(member) + 1
        share = [slow_value(points, column, place) for column in zip(*pieces, strict=True)]

        secret = agree(played.sources[i].drawn[0], [played.sent("advertise_keys")[member]])[0]
        name = f"hpcfl/1 committee round {index}"
        pair = f"{name} pair {min(i, member)} {max(i, member)} piece transport"
        nonce = i.to_bytes(4, "little") + member.to_bytes(4, "little") + bytes(4)
        content = np.array(share, "<u4").tobytes()
        sealed = AESGCM(hkdf(secret, pair)).encrypt(
            nonce, content, f"{name} from {i} to {member}".encode()
        )
        assert sealed == row


def test_only_members_are_told_whose_shares_to_add_up():
    record = play(shared()).record
    phases = Committee.phases()
    members = play(shared()).server.committee
    down = record.bytes_down[phases.index("sum_shares")]
    assert {*np.flatnonzero(down)} == {*members}


# Hostile devices, and messages that are none


def committee_of(protocol):
    return play(protocol, before="share_input").server.committee


def test_a_device_of_whose_shares_two_members_hold_none_is_left_out():
    protocol = shared(dropout=0.1)
    members = committee_of(protocol)

    def spoil(rows):
        rows[np.isin(Header.receivers_of(rows), members[:2]), -1] ^= 1
        return rows

    liar = next(id for id in range(DEVICES) if id not in members)
    played = play(protocol, change=sent_by_device(protocol, "share_input", liar, spoil))

    played.goes_on([id for id in range(DEVICES) if id != liar])
    assert {liar} == {*played.kept_out}
    assert "too many devices hold no share of it" in str(played.kept_out[liar])


def test_a_wrong_sum_of_shares_is_found_and_left_out_even_after_dropouts():
    protocol = shared(30, dropout=0.2)
    members = committee_of(protocol)
    code = protocol.code
    gone = dict.fromkeys(members[: code.devices - code.needed - 2], "sum_shares")

    def other_sum(payload):
        payload.view("<u4")[1] //= 2
        return payload

    change = sent_by_device(protocol, "sum_shares", members[-1], other_sum)
    played = play(protocol, dropouts=gone, change=change)

    played.goes_on(range(30))
    assert {members[-1]} == {*played.kept_out}


# What devices refuse


def member_about_to_add_up(**options):
    played = play(shared(**options), before=("sum_shares", Pattern.BROADCAST))
    return played, played.devices[played.server.committee[0]]


def test_a_member_adds_up_shares_of_enough_devices_once():
    played, member = member_about_to_add_up()
    error = played.refused(RefusedError, member.receive_sum_shares, raw(bits(range(6), DEVICES)))
    assert "refuses to add up the shares of 6 devices: 7 are needed" in str(error)
    played.refused(RefusedError, member.send_sum_shares)

    member.receive_sum_shares(raw(bits(range(DEVICES), DEVICES)))
    for survivors in (range(DEVICES), range(11)):
        request = raw(bits(survivors, DEVICES))
        error = played.refused(RefusedError, member.receive_sum_shares, request)
        assert "refuses a second request to add up the shares" in str(error)


def test_a_device_shares_a_vector_once_a_round():
    played, member = member_about_to_add_up()
    vector = updates(played.protocol)[0]
    error = played.refused(RefusedError, member.send_share_input, vector)
    assert "refuses to share a vector twice" in str(error)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda told: told[:17], "1 bytes hold no list of devices"),
        (lambda told: told[:-1], "bytes, expected"),
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


# Figures of members are apart


def test_shares_that_do_not_belong_together_end_the_round_or_cost_a_member():
    protocol = shared(dropout=0.1)
    members = committee_of(protocol)
    liar = next(id for id in range(DEVICES) if id not in members)

    def wrap(id, device):
        if id == liar:
            send = device.send_share_input

            def dealing(vector):
                receivers, rows = send(vector)
                device.state.dealt = False
                other, rows_of_other = send(vector * 0.5)
                assert receivers.tolist() == other.tolist()
                rows[:3] = rows_of_other[:3]
                return receivers, rows

            device.send_share_input = dealing
        return device

    with pytest.raises(BelowThresholdError, match="dealt pieces that do not belong together"):
        play(protocol, wrap=wrap)
