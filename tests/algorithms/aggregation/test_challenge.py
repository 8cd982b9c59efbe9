"""What the checks of shares give away, and what devices refuse to say about them.

That answers say nothing about a secret: over F_q, with the round's own coefficients, all that is
seen is linear in the secret and in what is drawn. It is independent of the secret if what any
secret adds to it can be made up for by what is drawn, which is a comparison of two ranks.
"""

from __future__ import annotations

import pytest
from protocol_rounds import (
    LINKED,
    advertising,
    agreed,
    bits,
    make,
    pair_secret,
    play,
    raw,
)
from slow_reference import KEY_SHARE, SEED_SHARE, Q, elements
from slow_ring import slots

from hpcfl.algorithms.aggregation.sharing import Challenge
from hpcfl.comm.phases import Pattern
from hpcfl.errors import MessageError, RefusedError


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
def test_over_the_field_itself_answers_say_nothing_about_either_secret(threshold, holders):
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


# what a device says, and how often


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
    if played.parameters.degree is None:
        return raw(bits(ids, 9))
    around = slots(played.order(), 2, played.parameters.degree)
    return raw(bits([slot for slot, id in enumerate(around) if id in ids], len(around)))


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


@pytest.mark.parametrize("ids", [[0], [3], [0, 3], []])
def test_secrets_of_pairs_are_told_once(answered, ids):
    device = answered.devices[2]
    device.receive_pairs(wanted(answered, ids))
    told = b"".join(pair_secret(answered, 2, id) for id in answered.devices[2].state.wanted)
    assert 16 * len(ids) == len(told)
    assert told == device.send_pairs().tobytes()
    assert {*ids} == {*device.state.wanted}
    for again in (ids, [0], [3], []):
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


# what is told of a device with another one's key


def with_a_copier(name, copier, owner=5):
    """Return a round and a mask key: another device has advertised its owner's, and vanishes.

    The copier has shared the private half that it has: it gives no key that it has advertised, so
    that the server asks for secrets of pairs with it.
    """
    others = play(make(name, 9, 12), before="share_keys").sent("advertise_keys")
    copied = others[owner][32:]
    wrap = advertising(copier, lambda own: own[:32] + copied)
    played = play(make(name, 9, 12), dropouts={copier: "masked_input"}, wrap=wrap)
    assert copied == played.sent("advertise_keys")[copier][32:]
    return played, copied


@pytest.mark.parametrize("copier", [0, 8])
@pytest.mark.parametrize("name", LINKED)
def test_what_is_told_of_a_copier_tells_nothing_of_the_device_whose_key_it_has_copied(name, copier):
    """Though the two keys are one, and all that each teller has in common with them is one."""
    played, copied = with_a_copier(name, copier)
    others = [id for id in range(9) if id != copier]
    played.nobody_left()
    played.goes_on(others)
    told = played.sent("pairs")
    assert others == sorted(told)
    assert len(others) == len({*told.values()})

    protocol, index = played.protocol, played.index
    uses = ["additive mask", "multiplicative mask", "share transport"]
    uses += [f"additive mask of the run of {id}" for id in (5, copier)]
    for id in others:
        common = agreed(played, id, copied)
        assert pair_secret(played, id, copier, copied) == told[id]
        assert common not in told[id]
        if id == 5:
            continue
        # What the teller and device 5 mask with, and what follows from what was told of the other.
        (masks,) = played.devices[id]._mask_secrets([5])[1]
        assert pair_secret(played, id, 5) == masks != told[id]
        assert masks not in protocol.mask_secrets(index, id, [5], [told[id]])
        for use in uses:
            (key,) = protocol.pair_keys(index, id, [5], [masks], use)
            assert key not in told[id]
            for secret in (told[id], *protocol.mask_secrets(index, id, [5], [told[id]])):
                assert [key] != protocol.pair_keys(index, id, [5], [secret], use)
                assert [key] != protocol.pair_keys(index, id, [copier], [secret], use)
