"""A message that is not what its phase requires is an error that names its sender and its phase.

It costs the round that sender alone, while enough are left.
"""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from protocol_rounds import (
    LINKED,
    UPLOADING,
    Header,
    assert_tells_no_secret,
    make,
    pair_secret,
    play,
    raw,
    seeded_sources,
    sent_by,
    sent_by_device,
    sum_of,
)
from slow_reference import KEY_SHARE, MASK_KEY_LIMBS, SEED_SHARE, Q, SlowRound

from hpcfl.algorithms.aggregation import sharing
from hpcfl.comm.phases import Pattern
from hpcfl.crypto.keys import insecure_secrets
from hpcfl.errors import BelowThresholdError

DEVICES = 5  # t = 3
VICTIM, SENDER = 2, 3

with_each_upload = pytest.mark.parametrize("name", UPLOADING)


def only_at_fault(played, id, phase, reason):
    """Assert that no device left but the one at fault, whose honest part finds itself left out."""
    assert {*played.left} <= {id}
    assert [id] == list(played.kept_out)
    assert f"malformed {phase} message from device {id}: " in str(played.kept_out[id])
    assert reason in str(played.kept_out[id])


# rows of shares: device 3 sends them, device 2 is the victim


def does_without(change, name="cohort"):
    """Assert that rows of device 3 that are changed so leave device 2 alone without a share of it.

    All others have theirs, and everybody stays.
    """
    protocol = make(name, DEVICES, 8)
    played = play(protocol, change=sent_by_device(protocol, "share_keys", SENDER, change))
    played.nobody_left()
    ignored = {id: device.ignored for id, device in played.devices.items() if device.ignored}
    assert [VICTIM] == list(ignored)
    (error,) = ignored[VICTIM]
    reason = "it does not decrypt"
    assert ("share_keys", f"device {SENDER}", reason) == (error.phase, error.sender, error.reason)
    assert_tells_no_secret(error, played.sources)
    played.goes_on()


def written(start, content):
    """Return a change of the row to the victim, from a byte on."""

    def write(rows):
        rows[to_victim(rows), start : start + len(content)] = raw(content)
        return rows

    return write


def to_victim(rows):
    return Header.receivers_of(rows).tolist().index(VICTIM)


def preceded(change):
    """Return a change that puts the changed row in front of the honest ones."""
    return lambda rows: np.vstack([change(rows.copy())[to_victim(rows)], rows])


def as_id(id):
    return id.to_bytes(4, "little")


SENT_BY, SENT_TO = 8, 12  # in an envelope
LOST_ROWS = {
    "other bytes": written(16 + 35, bytes(8)),
    "another step": written(1, b"\x63"),
    # In the name of another device, from which this takes nothing, even if it is first.
    **{f"from {id}": written(SENT_BY, as_id(id)) for id in (0, VICTIM, 2**32 - 1)},
    **{f"also from {id}": preceded(written(SENT_BY, as_id(id))) for id in (0, VICTIM)},
    # To nobody, or to its own sender.
    **{f"to {id}": written(SENT_TO, as_id(id)) for id in (SENDER, DEVICES, 2**32 - 2)},
    "none": lambda rows: rows[Header.receivers_of(rows) != VICTIM],
    # Of several rows the first counts.
    "another one first": preceded(written(16, bytes(8))),
}


@pytest.mark.parametrize("change", LOST_ROWS.values(), ids=LOST_ROWS)
@pytest.mark.parametrize("name", LINKED)
def test_a_row_that_is_not_as_it_was_sent_is_a_missing_share(name, change):
    does_without(change, name)


def test_a_share_of_another_round_or_direction_is_refused_even_if_all_keys_are_the_same():
    """A round's name and both ends go into a share: both directions of a pair have the same key."""

    def sealed(index, sender, receiver):
        other = play(make("cohort", DEVICES, 8), index=index, sources=seeded_sources(DEVICES))
        (row,) = (
            m.sealed
            for m in other.messages("share_keys", Pattern.ROUTE)
            if (m.header.sender, m.header.receiver) == (sender, receiver)
        )
        return row

    does_without(written(16, sealed(1, SENDER, VICTIM)[16:]))
    does_without(written(0, sealed(1, SENDER, VICTIM)))
    does_without(written(16, sealed(0, VICTIM, SENDER)[16:]))


# what is dealt: rightly sealed, but not what it should be


@pytest.fixture
def deals(monkeypatch):
    """Return what lets one device deal other shares: its own changed, or those of another key."""
    dealt = sharing.deal

    def let(dealer, change=None, private=None):
        calls = itertools.count()

        def deal(own, *rest):
            if next(calls) % DEVICES != dealer:
                return dealt(own, *rest)
            shares = dealt(private or own, *rest).copy()
            return shares if change is None else change(shares)

        monkeypatch.setattr(sharing, "deal", deal)

    return let


def limb_moved(limb):
    """Return a change of a limb of the secret: a constant is added to all shares of it."""

    def move(shares):
        shares[:, limb] = ((shares[:, limb].astype(np.uint64) + 2**31) % Q).astype(np.uint32)
        return shares

    return move


@pytest.mark.parametrize(
    "dealing",
    [
        # Its shares lie on a polynomial, of another key than it advertised.
        {"private": insecure_secrets(9, 9, 9)(32)},
        # The limbs are those of no string of 32 bytes.
        {"change": limb_moved(MASK_KEY_LIMBS - 1)},
    ],
    ids=["another key", "last limb"],
)
@with_each_upload
def test_a_wrong_mask_key_of_a_vanished_device_is_made_up_for_by_secrets_of_pairs(
    name, dealing, deals
):
    deals(1, **dealing)
    played = play(make(name, DEVICES, 8), dropouts={1: "masked_input"})
    played.nobody_left()
    played.goes_on()
    # What each told is what it has masked with device 1 with, and not what their keys agree on.
    assert [0, 2, 3, 4] == list(played.sent("pairs"))
    for id, told in played.sent("pairs").items():
        assert pair_secret(played, id, 1) == told


def test_a_share_that_is_no_field_element_is_a_missing_one(deals):
    def beyond(shares):
        shares[VICTIM, 0] = Q
        return shares

    deals(SENDER, beyond)
    played = play(make("secagg", DEVICES, 8))
    (error,) = played.devices[VICTIM].ignored
    assert (f"device {SENDER}", "a share is not a field element") == (error.sender, error.reason)
    played.nobody_left()
    played.goes_on()


@with_each_upload
def test_a_seed_that_is_no_string_of_16_bytes_costs_its_dealer(name, deals):
    """Its upload is in the sum, under a mask of its own making: it could have sent anything."""
    deals(SENDER, limb_moved(KEY_SHARE))
    played = play(make(name, DEVICES, 8))
    assert list(range(DEVICES)) == played.server.survivors
    assert {} == played.left
    only_at_fault(played, SENDER, "unmask", "the shares do not combine to a secret")
    # Where it sent nothing, the sum is right.
    others = np.ones(8, np.bool_)
    others[sent_by(played, SENDER)] = False
    assert (sum_of(played, range(DEVICES)) == played.server.total)[others].all()


# answers, and shares that do not fit them


def play_with(name, exchange, change, id=VICTIM, devices=DEVICES, **options):
    """Play a round in which what one device sends to the server in an exchange is changed."""
    protocol = make(name, devices, 8)
    return play(protocol, change=sent_by_device(protocol, exchange, id, change), **options)


PLACES = [0, SEED_SHARE - 1, SEED_SHARE * 4 - 1, SEED_SHARE * 4, SEED_SHARE * 4 + KEY_SHARE - 1]
NOT_AS_ANSWERED = "is not what it answered for"


@pytest.mark.parametrize("word", range(5))
@pytest.mark.parametrize("name", LINKED)
def test_a_holder_that_sends_another_share_than_it_answered_for_is_refused_by_name(name, word):
    """Any word of any share; of survivors' seeds, and of the mask key of device 4 behind them."""

    def move(answer):
        words = answer.view("<u4").copy()
        words[PLACES[word]] = (int(words[PLACES[word]]) + 2**20) % Q
        return words.view(np.uint8)

    played = play_with(name, "unmask", move, dropouts={4: "masked_input"})
    assert {} == played.left
    survivors = [id for id in SlowRound(played).holders(VICTIM) if id != 4]
    owner = 4 if word > 2 else survivors[0 if word < 2 else 3]
    reason = f"its share of a secret of device {owner} {NOT_AS_ANSWERED}"
    only_at_fault(played, VICTIM, "unmask", reason)
    played.goes_on()


def uniform(answers):
    """Return answers about all dealers that have nothing to do with any share."""
    words = np.random.default_rng(2).integers(0, Q, answers.size // 4)
    return words.astype("<u4").view(np.uint8)


def all_ones(answers):
    """Return that no dealer's share came."""
    return np.full_like(answers, 255)


def about(place):
    """Return a lie about the dealer at a place of the answers."""

    def lie(answers):
        words = answers.view("<u4").copy().reshape(-1, 2)
        words[place] = (words[place].astype(np.uint64) + 12345) % Q
        return words.reshape(-1).view(np.uint8)

    return lie


@pytest.mark.parametrize("lie", [uniform, about(0)], ids=["all", "one"])
@pytest.mark.parametrize("name", LINKED)
def test_with_one_answer_less_a_liar_ends_the_round_and_nobody_is_expelled(name, lie):
    """Of t + 1 answers any t fit, and nobody can tell whether dealer or holder is wrong.

    The round ends before anybody has masked anything.
    """
    protocol, uploads = make(name, DEVICES, 8), []
    lying = sent_by_device(protocol, "checks", VICTIM, lie)

    def change(header, message):
        if header.step < len(protocol.steps) and protocol.steps[header.step].upload:
            uploads.append(header.sender)
        return lying(header, message)

    with pytest.raises(BelowThresholdError) as caught:
        play(protocol, change=change, dropouts={4: "share_keys"})
    assert re.fullmatch(
        r"the 4 answers about the shares of device \d's secrets contradict each other; it would "
        r"take 5 to tell whether that device or one of those that answered is at fault",
        str(caught.value),
    )
    assert [] == uploads
    # The t others fit, as any t do: who says that it has no shares is still not believed.
    played = play_with(name, "checks", all_ones, dropouts={4: "share_keys"})
    played.nobody_left()
    played.goes_on()


# what the server is sent


def test_the_server_takes_keys_that_another_device_has_advertised():
    """For one use or the other: whose they are nobody can know, and refusing would cost both."""
    server = make("cohort", DEVICES, 12).server(0, np.zeros(12, np.float32))
    both = bytes(range(64))
    copies = {3: both, 4: both, 1: both[32:] + both[:32], 0: both[:32] * 2}
    for id, keys in copies.items():
        server.receive_advertise_keys(id, raw(keys))
    assert copies == server.state.public
