"""What devices refuse, because answering could reveal more than a sum (safety rules 1 and 2).

Every refusal is checked twice: that it is raised, and by `Played.refused` that it names no secret.
"""

from __future__ import annotations

import struct

import pytest
from protocol_rounds import (
    LINKED,
    bits,
    bits_near,
    expelled_list,
    key_list,
    make,
    on_ring,
    pair_secret,
    play,
    raw,
    request,
    ring_list,
    shares_by_receiver,
    spoiling,
)
from slow_reference import KEY_SHARE, SEED_SHARE, Q, elements
from slow_ring import slots

from hpcfl.algorithms.aggregation.sharing import Challenge
from hpcfl.comm.phases import Pattern
from hpcfl.errors import BelowThresholdError, MessageError, RefusedError

DEVICES = 9  # t = 5
WITHOUT_SHARES = 8  # dropped out before share_keys
DROPPED = [0, 3]  # dropped out before masked_input
SURVIVORS = [1, 2, 4, 5, 6, 7]


# the request to unmask


@pytest.fixture(params=LINKED)
def asked(request):
    """Return a round in which the server is about to ask for shares."""
    dropouts = dict.fromkeys(DROPPED, "masked_input") | {WITHOUT_SHARES: "share_keys"}
    return play(make(request.param, DEVICES, 12), dropouts=dropouts, before="unmask")


def ask(played, survivors, dropped):
    """Ask device 2 to unmask; return its answer."""
    device = played.devices[2]
    device.receive_unmask(request(played, 2, survivors, dropped))
    return device.send_unmask()


NOT_EXACTLY = "does not name exactly the devices that shared keys with it"
HIDDEN = sorted({*SURVIVORS, *DROPPED} - {2})


@pytest.mark.parametrize(
    ("survivors", "dropped", "reason"),
    [
        ([*SURVIVORS, 3], DROPPED, "both secrets of device 3"),
        (SURVIVORS, [*DROPPED, 5], "both secrets of device 5"),
        (SURVIVORS[:4], [6, 7, *DROPPED], "the sum of 4 devices"),
        ([], [2, *HIDDEN], "the sum of 0 devices"),
        (SURVIVORS, [0], NOT_EXACTLY),
        ([1, 4, 5, 6, 7], DROPPED, NOT_EXACTLY),
        ([*SURVIVORS, WITHOUT_SHARES], DROPPED, NOT_EXACTLY),
        (SURVIVORS, [*DROPPED, WITHOUT_SHARES], NOT_EXACTLY),
        (SURVIVORS, [0, WITHOUT_SHARES], NOT_EXACTLY),
        ([1, 4, 5, 6, 7], [*DROPPED, 2], "it is named as dropped"),
    ],
)
def test_a_request_that_could_reveal_more_than_a_sum_is_refused(asked, survivors, dropped, reason):
    assert reason in str(asked.refused(RefusedError, ask, asked, survivors, dropped))
    asked.refused(RefusedError, asked.devices[2].send_unmask)
    # The sum of exactly t devices is not, and nothing is told beside it.
    assert 4 * (5 * 6 + 3 * 10) == ask(asked, SURVIVORS[:5], [*DROPPED, 7]).size
    error = asked.refused(RefusedError, ask, asked, survivors, dropped)
    assert "both secrets" in reason or "a second unmasking request" in str(error)


def test_bits_of_nobody_and_numbers_that_cannot_be_are_refused(asked):
    """Nine devices or slots: the last bits of the second byte of either list are nobody's."""
    right = asked.server.send_unmask(2)
    on_ring = asked.parameters.degree is not None
    assert right.tobytes() == request(asked, 2, SURVIVORS, DROPPED).tobytes()
    for place in (1, 3):
        changed = right.copy()
        changed[place + 4 * on_ring] |= 1
        error = asked.refused(MessageError, asked.devices[2].receive_unmask, changed)
        assert ("a slot that nobody is in" if on_ring else "beyond the last") in error.reason
    for total in (len(SURVIVORS) - 1, DEVICES + 1) if on_ring else ():
        wrong = request(asked, 2, SURVIVORS, DROPPED, total)
        error = asked.refused(MessageError, asked.devices[2].receive_unmask, wrong)
        assert f"{total} survivors of 9 cannot be" in error.reason


# the list of public keys


def listing(name):
    """Return a round in which the server is about to send the list of public keys."""
    protocol = make(name, DEVICES, 12)
    return play(protocol, before=("advertise_keys", protocol.topology.pattern))


def refuse_list(played, content, reason, kind=MessageError, sender="the server"):
    """Assert that device 2 refuses a key list, and for which reason."""
    error = played.refused(kind, played.devices[2].receive_advertise_keys, raw(content))
    assert reason in str(error)
    if kind is MessageError:
        assert ("advertise_keys", sender) == (error.phase, error.sender)


@pytest.mark.parametrize("name", LINKED)
def test_keys_of_low_order_are_refused_before_they_are_used(name):
    """With them every shared secret is zero."""
    listed = listing(name)
    keys, low = listed.sent("advertise_keys"), bytes(32)
    for changed in (low + keys[6][32:], keys[6][:32] + low):
        content = key_list(listed, 2, {**keys, 6: changed})
        refuse_list(listed, content, "low order", sender="device 6")


# the list of keys on a ring: behind the nonce the place, the bits of the slots, the neighbours


RING, DEGREE = 11, 4
ENTRY, PLACE, BITS, LISTED = 4 + 64, 16, 20, 21


def on_small_ring(
    degree=DEGREE, name="cohort", dropouts=(), before=("advertise_keys", Pattern.SCATTER), **more
):
    """Return a round on a ring, and its order."""
    protocol = on_ring(name, RING, 12, degree, 3, alpha=0.6)
    played = play(protocol, dropouts=dict(dropouts), before=before, **more)
    return played, played.order()


def malformed_lists(right, neighbours):
    """Yield changed key lists, and why they are refused."""
    for size in (0, 15, LISTED - 1):
        yield right[:size], f"{size} bytes hold no place on a ring"
    for other in (right[:LISTED], right[:-ENTRY], right + bytes(ENTRY)):
        yield other, f"received {len(other) - LISTED} bytes, expected {4 * ENTRY}"

    def with_slots(slots, count=DEGREE + 1):
        return right[:BITS] + bits(slots, count) + right[LISTED:]

    # There is an entry for every slot that somebody else is in.
    for some in ([2], [0, 1, 2, 3]):
        yield with_slots(some), f"received 272 bytes, expected {ENTRY * (len(some) - 1)}"
    # Slots without the device, or beyond the last.
    for some in ([], [0, 1, 3, 4], [0, 1, 2, 3, 4, 5], [2, 7]):
        yield with_slots(some, 8), "its slots are not those of this device"
    for position in (RING, 2**32 - 1):
        changed = right[:PLACE] + struct.pack("<I", position) + right[BITS:]
        yield changed, f"there is no position {position} of 11"

    def with_neighbour(entry, id):
        start = LISTED + ENTRY * entry
        return right[:start] + struct.pack("<I", id) + right[start + 4 :]

    for entry in (0, DEGREE - 1):
        # With its own id, it would agree on a key with itself.
        for id in (neighbours[entry - 1], 2):
            yield with_neighbour(entry, id), "a neighbour is listed twice"
    # A row of shares would go to a device that does not exist: under MPI, a traceback.
    for id in (RING, 2**32 - 2):
        yield with_neighbour(0, id), "beyond the last, 10"


def test_key_lists_that_are_malformed_or_of_nobody_else_are_refused():
    played, order = on_small_ring()
    right = key_list(played, 2, played.sent("advertise_keys")).tobytes()
    assert right == played.server.send_advertise_keys(2).tobytes()
    neighbours = [id for id in slots(order, 2, DEGREE) if id != 2]
    for content, reason in malformed_lists(right, neighbours):
        refuse_list(played, content, reason)
    alone = right[:BITS] + bits([2], DEGREE + 1)
    refuse_list(played, alone, "share keys with 1 devices", RefusedError)
    played.devices[2].receive_advertise_keys(raw(right))


@pytest.mark.parametrize("gone", [0, 1, 5])
def test_on_a_complete_ring_only_the_place_that_follows_from_nonce_and_keys_is_taken(gone):
    """Absentees have places of their own; without their keys, the keys of the others decide."""
    degree = RING - 1
    dropouts = dict.fromkeys(range(RING - gone, RING), "advertise_keys")
    played, order = on_small_ring(degree, dropouts=dropouts)
    keys, nonce, place = played.sent("advertise_keys"), played.nonce, order.index(2)
    assert list(range(RING)) == sorted(order)
    # Two have changed places, one of them absent if any is; or where the ring begins is wrong:
    # other segments would be sent.
    one, other = order.index(RING - 1), order.index(0)
    swapped, rotated = order.copy(), order[1:] + order[:1]
    swapped[one], swapped[other] = swapped[other], swapped[one]
    wrong = [
        ring_list(nonce, changed, changed.index(2), keys, degree)
        for changed in (swapped, rotated, order[::-1], sorted(order))
    ]
    # Another nonce gives another order, of which this is not; and so do another device's keys.
    wrong.append(ring_list(bytes(16), order, place, keys, degree))
    altered = {**keys, 0: bytes([1]) * 32 + keys[0][32:]}
    wrong.append(ring_list(nonce, order, place, altered, degree))
    for content in wrong:
        refuse_list(played, content, "device 2 refuses its place", RefusedError)
    right = ring_list(nonce, order, place, keys, degree)
    played.devices[2].receive_advertise_keys(right)
    # Who knows only its neighbours takes the order on trust.
    played, order = on_small_ring(6)
    rotated = order[1:] + order[:1]
    content = ring_list(played.nonce, rotated, rotated.index(2), played.sent("advertise_keys"), 6)
    played.devices[2].receive_advertise_keys(content)


# shares, and devices that are expelled


@pytest.mark.parametrize("name", LINKED)
def test_a_device_with_the_shares_of_fewer_than_t_devices_refuses_to_go_on(name):
    def received(count):
        played = play(make(name, DEVICES, 12), before="share_keys")
        senders, rows = shares_by_receiver(played.devices)[2]
        return played, (played.devices[2].receive_share_keys, senders[:count], rows[:count])

    played, (receive, *shares) = received(3)
    error = played.refused(RefusedError, receive, *shares)
    assert "refuses to go on with 4 devices: the threshold is 5" in str(error)
    played, (receive, *shares) = received(4)
    receive(*shares)
    assert played.devices[2].send_masked_input(played.vectors[2]).size
    error = played.refused(RefusedError, receive, *shares)
    assert "refuses to open its shares twice in a round" in str(error)


def expel(played, *ids):
    """Tell device 2 who is expelled."""
    played.devices[2].receive_expelled(expelled_list(played, 2, ids))


@pytest.mark.parametrize("name", LINKED)
@pytest.mark.parametrize("first", [[3, 5], []], ids=str)
def test_devices_are_expelled_once_between_their_answers_and_their_uploads(name, first):
    """A device that has not answered helps nobody to find out who is to be.

    One that has uploaded has masked with all: without their masks its vector would lack some.
    """

    def too_early_or_late(*ids):
        error = played.refused(RefusedError, expel, played, *ids)
        assert "device 2 refuses to expel devices at this point" in str(error)

    played = play(make(name, DEVICES), before=("share_keys", Pattern.GATHER))
    device = played.devices[2]
    too_early_or_late(3)
    too_early_or_late()
    device.send_checks()
    expel(played, *first)
    for again in ([3], [6], first, []):
        too_early_or_late(*again)
    assert [id for id in range(DEVICES) if id not in first] == sorted(device._members())

    played = play(make(name, DEVICES), before="masked_input")
    played.devices[2].send_masked_input(played.vectors[2])
    too_early_or_late(*first)
    assert list(range(DEVICES)) == sorted(played.devices[2]._members())


TOLD = "device 2 is told that the shares of its secrets do not belong together"


@pytest.mark.parametrize("name", LINKED)
@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        ([2], TOLD),
        ([1, 2, 3, 4, 5], TOLD),
        ([0, 3, 5, 7, 8], "device 2 refuses to go on with 4 devices: the threshold is 5"),
    ],
    ids=str,
)
def test_a_device_leaves_if_it_is_expelled_or_too_few_are_left(name, ids, sentence):
    checked = play(make(name, DEVICES, 12), before="masked_input")
    assert sentence == str(checked.refused(RefusedError, expel, checked, *ids))


@pytest.mark.parametrize("place", [0, 5, RING - 1])
def test_all_are_told_how_many_were_expelled_and_their_neighbours_who(place):
    """Also who is not linked with them: what is promised depends on how many they are."""
    begun, order = on_small_ring(before="share_keys")
    protocol, dealer = begun.protocol, order[place]
    around = slots(order, dealer, DEGREE)
    played = play(protocol, change=spoiling(protocol, dealer, [around[0], around[3]]))

    assert [dealer] == list(played.kept_out) == list(played.left)
    expected = {id: expelled_list(played, id, [dealer]).tobytes() for id in range(RING)}
    assert expected == played.told_each("expelled")
    survivors = [id for id in range(RING) if id != dealer]
    played.goes_on(survivors)
    outcomes = [played.server.outcome()]
    for id in survivors:
        left = [one for one in slots(order, id, DEGREE) if one != dealer]
        assert sorted(left) == sorted(played.devices[id]._members())
        outcomes.append(played.devices[id]._outcome(played.devices[id].state.request))
    assert {(RING, RING - 1, 1)} == {(o.devices, o.survivors, o.expelled) for o in outcomes}


def test_a_secret_of_which_too_few_shares_came_is_not_reconstructed():
    """Places 3 to 5 are silent: of the five holders around each of them, two are left."""
    played, order = on_small_ring(name="secagg-graph", before=("unmask", Pattern.GATHER))
    for id in {*order} - {*order[3:6]}:
        played.server.receive_unmask(id, played.devices[id].send_unmask())
    error = played.refused(BelowThresholdError, played.server.finish_unmask)
    assert f"2 of the 5 devices that hold shares of device {min(order[3:6])}'s" in str(error)


# the challenge


def rank(rows):
    """Return the rank of a matrix over F_q, by elimination in whole numbers."""
    rows, found = [row.copy() for row in rows], 0
    for column in range(len(rows[0])):
        pivot = next((k for k in range(found, len(rows)) if rows[k][column] % Q), None)
        if pivot is None:
            continue
        rows[found], rows[pivot] = rows[pivot], rows[found]
        inverse = pow(rows[found][column], -1, Q)
        rows[found] = [value * inverse % Q for value in rows[found]]
        for k in range(found + 1, len(rows)):
            factor = rows[k][column]
            if factor:
                rows[k] = [(a - factor * b) % Q for a, b in zip(rows[k], rows[found], strict=True)]
        found += 1
    return found


def is_independent(challenges, threshold, holders, seen):
    """Return whether what is seen of both secrets is independent of them.

    Columns are the limbs, the checks, and the coefficients; rows are the shares of `seen` holders
    and the answers of all.
    """
    width = KEY_SHARE + SEED_SHARE
    checks = (KEY_SHARE - 1, width - 1)
    powers = [[pow(x, p, Q) for p in range(threshold)] for x in range(1, holders + 1)]

    def row(weights, x):
        """Return the weighted sum of a holder's values, by what each of them is made of."""
        return [weights.get(k, 0) * power % Q for power in powers[x] for k in range(width)]

    rows = [row({k: 1}, x) for x in range(seen) for k in range(width)]
    for coefficients in challenges:
        for part in (range(KEY_SHARE), range(KEY_SHARE, width)):
            rows += [row({k: coefficients[k] for k in part}, x) for x in range(holders)]
    drawn = [k for k in range(width * threshold) if k >= width or k in checks]
    return rank(rows) == rank([[one[k] for k in drawn] for one in rows])


def coefficients_of(seed):
    """Return a challenge by value of a share, the checks with 1, and check the project's."""
    limbs = elements(seed, KEY_SHARE + SEED_SHARE - 2, Q)
    found = [*limbs[: KEY_SHARE - 1], 1, *limbs[KEY_SHARE - 1 :], 1]
    assert found == Challenge.of(seed).coefficients.tolist()
    return found


@pytest.mark.parametrize(("threshold", "holders"), [(2, 3), (3, 5)])
def test_answers_to_one_challenge_say_nothing_about_either_secret(threshold, holders):
    first, second = (coefficients_of(bytes([k]) * 16) for k in (3, 4))
    known = [1] * (KEY_SHARE + SEED_SHARE)
    assert known == Challenge.known().coefficients.tolist()

    assert is_independent([first], threshold, holders, threshold - 1)
    assert is_independent([known], threshold, holders, threshold - 1)
    assert not is_independent([first, second], threshold, holders, threshold - 1)
    assert not is_independent([first], threshold, holders, threshold)
    # Nor would answers be harmless without a check behind the limbs.
    unchecked = [c if k not in (KEY_SHARE - 1, 15) else 0 for k, c in enumerate(first)]
    assert not is_independent([unchecked], threshold, holders, threshold - 1)


def test_with_a_server_that_may_cheat_there_is_no_challenge():
    played = play(make("secagg", 10, security="active"), before="masked_input")
    assert "challenge" not in {step.name for step in played.protocol.steps}
    device = played.devices[2]
    error = played.refused(RefusedError, device.receive_challenge, raw(bytes(16)))
    assert "device 2 refuses a second challenge" in str(error)
    assert "refuses to answer a challenge" in str(played.refused(RefusedError, device.send_checks))


# secrets of pairs


GONE = {0: "masked_input", 3: "masked_input", 8: "share_keys"}


def wanted(played, ids):
    """Return the message to device 2 that asks for secrets of pairs."""
    return raw(bits_near(played, 2, ids))


@pytest.fixture(params=LINKED)
def answered(request):
    """Return a round in which all have been asked to unmask; 0 and 3 have dropped out."""
    protocol = make(request.param, 9, 12)
    return play(protocol, dropouts=GONE, before=("unmask", Pattern.GATHER))


@pytest.mark.parametrize("ids", [[1], [2], [0, 1], [0, 3, 7], [8]], ids=lambda ids: f"of {ids}")
def test_secrets_with_others_than_dropped_devices_are_not_told(answered, ids):
    """A survivor's would take its masks off; its seed is known already. Device 8 shared no keys."""
    device = answered.devices[2]
    error = answered.refused(RefusedError, device.receive_pairs, wanted(answered, ids))
    assert "in common with others than the dropped devices" in str(error)
    answered.refused(RefusedError, device.send_pairs)
    for size in (0, 1, 3):
        answered.refused(MessageError, device.receive_pairs, raw(bytes(size)))


def test_secrets_of_pairs_are_told_once(answered):
    device = answered.devices[2]
    device.receive_pairs(wanted(answered, [0]))
    assert pair_secret(answered, 2, 0) == device.send_pairs().tobytes()
    for again in ([0], [3], []):
        error = answered.refused(RefusedError, device.receive_pairs, wanted(answered, again))
        assert "has told already" in str(error)


def test_secrets_of_pairs_are_not_taken_from_a_device_that_has_not_unmasked(answered):
    error = answered.refused(MessageError, answered.server.receive_pairs, 2, raw(bytes(16)))
    assert ("device 2", "unmask") == (error.sender, error.phase)
    assert "it has not answered the unmasking request" in error.reason


def test_a_server_that_may_cheat_learns_no_pair_before_the_survivors_are_endorsed():
    protocol = make("secagg", 10, security="active")
    played = play(protocol, before=("unmask", Pattern.SCATTER), dropouts={4: "masked_input"})
    device, message = played.devices[2], raw(bits([4], 10))
    error = played.refused(RefusedError, device.receive_pairs, message)
    assert "nobody endorsed as dropped" in str(error)
    played.refused(RefusedError, device.send_pairs)
    device.receive_unmask(played.server.send_unmask(2))
    error = played.refused(RefusedError, device.receive_pairs, raw(bits([5], 10)))
    assert "others than the dropped" in str(error)
    device.receive_pairs(message)
    assert pair_secret(played, 2, 4) == device.send_pairs().tobytes()
