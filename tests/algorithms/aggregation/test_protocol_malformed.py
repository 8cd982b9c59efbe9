"""A message that is not what its phase requires is an error that names its sender and its phase.

It costs the round that sender alone, while enough are left.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from protocol_rounds import (
    LINKED,
    UPLOADING,
    Header,
    advertising,
    assert_tells_no_secret,
    expelled_list,
    make,
    pair_secret,
    play,
    raw,
    seeded_sources,
    sent_by,
    sum_of,
)
from slow_reference import ABSENT, KEY_SHARE, MASK_KEY_LIMBS, SEED_SHARE, Q, SlowRound

from hpcfl.algorithms.aggregation import sharing
from hpcfl.comm.phases import Pattern
from hpcfl.crypto.keys import insecure_secrets
from hpcfl.errors import BelowThresholdError, MessageError, RefusedError

DEVICES = 5
VICTIM, SENDER = 2, 3
OFFSETS = {"version": 0, "step": 1, "reserved": 2, "round": 4, "sender": 8, "receiver": 12}
Rows = NDArray[np.uint8]
RowChange = Callable[[Rows], Rows]

on_both_topologies = pytest.mark.parametrize("name", LINKED)
with_each_upload = pytest.mark.parametrize("name", UPLOADING)


def refused_in(phase, sender, reason, call, *arguments, of=None):
    """Assert that a call ends with the right error, which holds no secret of the round `of`."""
    with pytest.raises(MessageError) as caught:
        call(*arguments)
    if of is not None:
        assert_tells_no_secret(caught.value, of.sources)
    sender = f"device {sender}" if isinstance(sender, int) else sender
    assert (phase, sender) == (caught.value.phase, caught.value.sender)
    assert reason in caught.value.reason
    assert f"malformed {phase} message from {sender}: {caught.value.reason}" == str(caught.value)


def assert_named(error, phase, sender, reason):
    """Assert that an error says what was wrong, and with whose message."""
    assert f"malformed {phase} message from {sender}: " in str(error)
    assert reason in str(error)


def goes_on(played, survivors):
    """Assert that a round ended with the sum over these devices."""
    assert survivors == played.server.survivors
    assert (sum_of(played, survivors) == played.server.total).all()


def nobody_left(played):
    assert ({}, {}) == (played.kept_out, played.left)


def only_at_fault(played, id, phase, reason):
    """Assert that no device left but the one at fault, whose honest part finds itself left out."""
    assert {*played.left} <= {id}
    assert [id] == list(played.kept_out)
    assert_named(played.kept_out[id], phase, f"device {id}", reason)


def assert_uses_all_shares(played):
    """Assert that no device was without a share."""
    assert [] == [error for device in played.devices.values() for error in device.ignored]


# rows of shares: device 3 sends them, device 2 is the victim


def play_with_rows(name, change, **options):
    """Play a round in which the rows that device 3 sends in share_keys are changed."""
    protocol = make(name, DEVICES, 8)
    route = [step.pattern for step in protocol.steps].index(Pattern.ROUTE)

    def changed(header, message):
        at_fault = (header.step, header.sender) == (route, SENDER)
        return change(message.copy()) if at_fault else message

    return play(protocol, change=changed, **options)


EXPELLED = "two holders or more have no right share of its secrets: it is expelled"


def is_expelled(played, survivors=None):
    """Assert that device 3 was expelled before anybody masked, and that nobody else left.

    All who answered were told, nobody masked with it, and nothing of it was ever asked for.
    """
    assert [SENDER] == list(played.kept_out) == list(played.left)
    assert_named(played.kept_out[SENDER], "share_keys", "device 3", EXPELLED)
    assert isinstance(played.left[SENDER], RefusedError)
    reason = "device 3 is told that the shares of its secrets do not belong together"
    assert reason == str(played.left[SENDER])
    members = played.taking_part("share_keys")
    pattern = played.protocol.topology.pattern
    told = {m.header.receiver: m.payload for m in played.messages("expelled", pattern)}
    if pattern is Pattern.BROADCAST:
        assert [expelled_list(played, 0, [SENDER]).tobytes()] == list(told.values())
    else:
        assert {one: expelled_list(played, one, [SENDER]).tobytes() for one in members} == told
    for one in members:
        assert (one == SENDER) or SENDER not in played.devices[one]._members()
    uploads = played.sent("masked_input")
    assert SENDER not in [*uploads, *played.server.survivors, *played.server.dropped]
    goes_on(played, list(uploads) if survivors is None else survivors)
    # Nobody was asked what it has in common with it.
    assert {} == played.sent("pairs")


def row_to(rows, receiver=VICTIM):
    return Header.receivers_of(rows).tolist().index(receiver)


def does_without(played):
    """Assert that device 2 has no share of device 3's, all others have, and everybody stays."""
    nobody_left(played)
    ignored = {id: device.ignored for id, device in played.devices.items() if device.ignored}
    assert [VICTIM] == list(ignored)
    (error,) = ignored[VICTIM]
    reason = "it does not decrypt"
    assert ("share_keys", f"device {SENDER}", reason) == (error.phase, error.sender, error.reason)
    assert_tells_no_secret(error, played.sources)
    goes_on(played, played.taking_part("masked_input"))


def altered(place, bits=1):
    """Return a change of one byte of the row to the victim."""

    def alter(rows):
        rows[row_to(rows), place] ^= bits
        return rows

    return alter


def written(field, id):
    """Return a change of a device in the envelope of the row to the victim."""

    def write(rows):
        start = OFFSETS[field]
        rows[row_to(rows), start : start + 4] = raw(id.to_bytes(4, "little"))
        return rows

    return write


def preceded(change):
    """Return a change that puts the changed row in front of the honest ones."""
    return lambda rows: np.vstack([change(rows.copy())[row_to(rows)], rows])


LOST_ROWS: dict[str, RowChange] = {
    **{
        f"byte {place}": altered(place, 0x40)
        for place in (16, 16 + 35, 16 + 4 * (KEY_SHARE + SEED_SHARE), -1)
    },
    **{f: altered(OFFSETS[f]) for f in ("version", "step", "reserved", "round", "sender")},
    # In the name of another device, from which this takes nothing, even if it is first.
    **{f"from {id}": written("sender", id) for id in (0, VICTIM, DEVICES, 2**32 - 1)},
    **{f"also from {id}": preceded(written("sender", id)) for id in (0, VICTIM, 2**32 - 1)},
    # To nobody, or to its own sender.
    **{f"to {id}": written("receiver", id) for id in (SENDER, DEVICES, 2**32 - 2, 2**32 - 1)},
    "none": lambda rows: rows[Header.receivers_of(rows) != VICTIM],
    # Of several rows the first counts.
    "an altered one first": preceded(altered(-1)),
}


@pytest.mark.parametrize("change", LOST_ROWS.values(), ids=LOST_ROWS)
@on_both_topologies
def test_a_row_that_is_not_as_it_was_sent_is_a_missing_share(name, change):
    does_without(play_with_rows(name, change))


@on_both_topologies
def test_of_several_rows_the_first_counts(name):
    played = play_with_rows(name, lambda rows: np.vstack([rows, altered(-1)(rows.copy()), rows]))
    nobody_left(played)
    assert_uses_all_shares(played)
    goes_on(played, list(range(DEVICES)))
    assert not (played.server._seed_shares[VICTIM] == ABSENT).any()


@on_both_topologies
def test_a_row_to_another_device_is_missing_here_and_ignored_there(name):
    def readdress(rows):
        rows = written("receiver", 4)(rows)
        # The rows are sorted by receiver on the way, in the order in which they were sent.
        return rows[np.argsort(Header.receivers_of(rows) == 4, kind="stable")]

    played = play_with_rows(name, readdress)
    ignored = {id: [e.sender for e in one.ignored] for id, one in played.devices.items()}
    own = {VICTIM: ["device 3"]}
    # Which of the two comes first at device 4 depends on the places on the ring.
    assert {id: who for id, who in ignored.items() if who} in (own, {**own, 4: ["device 3"]})
    if ignored[4]:
        # With a share missing at both, two holders have none.
        is_expelled(played)
    else:
        nobody_left(played)
        goes_on(played, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("size", [None, 0, 15, 16, 16 + 79, 16 + 81, 16 + 160])
@on_both_topologies
def test_who_sends_rows_of_another_size_has_sent_none(name, size):
    """Or no row at all. It takes no part, which everybody is told alike: nobody masks with it."""

    def cut(rows):
        return rows[:0] if size is None else np.pad(rows, ((0, 0), (0, 99)))[:, :size]

    played = play_with_rows(name, cut)
    only_at_fault(played, SENDER, "share_keys", "it shared no keys")
    assert_uses_all_shares(played)
    goes_on(played, [0, 1, 2, 4])


def envelopes_of_another_round(rows, chosen):
    rows[chosen, OFFSETS["round"]] ^= 1
    return rows


def random_bytes(rows, chosen):
    noise = np.random.default_rng(5).integers(0, 256, rows.shape).astype(np.uint8)
    rows[chosen, 16:] = noise[chosen, 16:]
    return rows


def none(rows, chosen):
    return rows[~chosen]


def of_each_other(rows, chosen):
    rows[chosen, 16:] = np.roll(rows, 1, axis=0)[chosen, 16:]
    return rows


@pytest.mark.parametrize(
    ("spoil", "victims"),
    [
        *product([random_bytes], [(4,), (0,), (0, 1), (2, 4), (0, 1, 2), (0, 1, 2, 4)]),
        *product([envelopes_of_another_round, none, of_each_other], [(4,), (0, 1)]),
    ],
)
@on_both_topologies
def test_no_row_of_one_device_makes_another_one_leave(name, victims, spoil):
    """Whomever it spoils them to: if that are two or more, it is expelled itself."""
    played = play_with_rows(name, lambda rows: spoil(rows, np.isin(rows[:, 12], victims)))
    if len(victims) > 1:
        is_expelled(played, survivors=[0, 1, 2, 4])
        return
    nobody_left(played)
    goes_on(played, [0, 1, 2, 3, 4])
    # Its upload is used, with the right shares of the others.
    assert SENDER in played.sent("masked_input")
    assert not played.server.wants_expelled()


@on_both_topologies
def test_a_device_says_which_shares_it_was_not_sent(name):
    """All ones stand for a share; the secret is reconstructed from the others' shares."""
    played = play_with_rows(name, altered(-1, 0x40))
    slow = SlowRound(played)
    for sent, width in (("checks", 2), ("unmask", SEED_SHARE)):
        for id, content in played.sent(sent).items():
            values = np.frombuffer(content, "<u4").reshape(-1, width)
            absent = (values == ABSENT).all(axis=1).tolist()
            assert [id == VICTIM and one == SENDER for one in slow.holders(id)] == absent


@on_both_topologies
def test_a_share_of_another_round_or_direction_is_refused_even_if_all_keys_are_the_same(name):
    """A round's name and both ends go into a share: both directions of a pair have the same key."""

    def sealed(index, sender, receiver):
        other = play(make(name, DEVICES, 8), index=index, sources=seeded_sources(DEVICES))
        (row,) = (
            m.sealed
            for m in other.messages("share_keys", Pattern.ROUTE)
            if (m.header.sender, m.header.receiver) == (sender, receiver)
        )
        return raw(row)

    for row, start in [
        (sealed(1, SENDER, VICTIM), 16),
        (sealed(1, SENDER, VICTIM), 0),
        (sealed(0, VICTIM, SENDER), 16),
    ]:

        def replay(rows, row=row, start=start):
            rows[row_to(rows), start:] = row[start:]
            return rows

        does_without(play_with_rows(name, replay))


# what is dealt: rightly sealed, but not what it should be


Deal = Callable[[NDArray[np.uint32]], NDArray[np.uint32]]


def unchanged(shares):
    return shares


@pytest.fixture
def deals(monkeypatch):
    """Return what lets devices of so many change the shares that they deal, or their secrets."""
    dealt = sharing.deal

    def let(dealers, change, devices=DEVICES, **secrets):
        calls = itertools.count()

        def deal(private, seed, *rest):
            if next(calls) % devices not in dealers:
                return dealt(private, seed, *rest)
            both = {"private": private, "seed": seed} | secrets
            return change(dealt(both["private"], both["seed"], *rest).copy())

        monkeypatch.setattr(sharing, "deal", deal)

    return let


def contradicting(shares, columns=slice(None)):
    """Return shares of no polynomial of degree t - 1, in these columns."""
    generator = np.random.default_rng(1)
    shares[:, columns] = generator.integers(0, Q, shares.shape).astype(np.uint32)[:, columns]
    return shares


def wrong_at(shares, holder, limb=0):
    """Return shares of which one holder's is another one."""
    shares[holder, limb] = (int(shares[holder, limb]) + 1) % Q
    return shares


def limb_moved(limb):
    """Return a change of a limb of the secret: a constant is added to all shares of it."""

    def move(shares):
        shares[:, limb] = ((shares[:, limb].astype(np.uint64) + 2**31) % Q).astype(np.uint32)
        return shares

    return move


@pytest.mark.parametrize("columns", [slice(None), slice(0, KEY_SHARE), slice(KEY_SHARE, None)])
@on_both_topologies
def test_a_dealer_of_contradicting_shares_is_out_and_everybody_else_stays(name, columns, deals):
    deals({SENDER}, lambda shares: contradicting(shares, columns))
    is_expelled(play(make(name, DEVICES, 8)), survivors=[0, 1, 2, 4])


@pytest.mark.parametrize("name", ["secagg", "secagg-graph"])
def test_uploads_that_are_summed_on_the_way_go_on_without_a_dealer_of_contradicting_shares(
    name, deals
):
    """With `--upload reduce` nothing could be taken back: it is out before anybody uploads."""
    deals({SENDER}, contradicting)
    played = play(make(name, DEVICES, 8), upload="reduce")
    assert [0, 1, 2, 4] == list(played.wire.summed)
    is_expelled(played, survivors=[0, 1, 2, 4])


@pytest.mark.parametrize("name", ["secagg", "secagg-graph"])
def test_uploads_that_are_summed_on_the_way_hold_that_of_a_dealer_of_one_wrong_share(name, deals):
    deals({SENDER}, lambda shares: wrong_at(shares, 1))
    played = play(make(name, DEVICES, 8), upload="reduce")
    assert [0, 1, 2, 3, 4] == list(played.wire.summed)
    nobody_left(played)
    goes_on(played, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("upload", ["gather", "reduce"])
def test_the_server_takes_no_upload_of_a_device_that_is_expelled(upload, deals):
    deals({SENDER}, contradicting)
    played = play(make("secagg", DEVICES, 8), upload=upload, before="masked_input")
    vector = played.devices[0].send_masked_input(played.vectors[0])
    server = played.server
    for call, arguments in (
        (server.receive_masked_input, (SENDER, vector)),
        (server.receive_sum_masked_input, ([0, SENDER], vector.view("<u4"))),
    ):
        refused_in("masked_input", 3, "it shared no keys", call, *arguments, of=played)
    assert [] == server.survivors
    server.receive_masked_input(0, vector)
    assert [0] == server.survivors


@pytest.mark.parametrize(
    "dropouts",
    [
        {SENDER: "masked_input"},
        {4: "unmask"},
        {4: "masked_input"},
        {0: "unmask", SENDER: "masked_input"},
        {1: "masked_input", SENDER: "unmask"},
    ],
    ids=str,
)
@on_both_topologies
def test_whoever_vanishes_beside_a_dealer_of_contradicting_shares_the_round_ends(
    name, dropouts, deals
):
    """An honest device before it unmasks, or before it uploads, or the dealer itself.

    Nobody needs a secret of the dealer, nor what anybody has in common with it.
    """
    deals({SENDER}, contradicting)
    played = play(make(name, DEVICES, 8), dropouts=dropouts)
    there = played.taking_part("masked_input")
    is_expelled(played, survivors=[id for id in there if id != SENDER])


@on_both_topologies
def test_of_two_dealers_of_contradicting_shares_both_are_expelled_while_t_are_left(name, deals):
    """Of seven, with t = 4, three can be; with four the round ends, before anybody masks."""
    for dealers in ({1, 5}, {1, 2, 5}):
        deals(dealers, contradicting, devices=7)
        played = play(make(name, 7, 8))
        assert dealers == {*played.kept_out} == {*played.left}
        for id in dealers:
            assert_named(played.kept_out[id], "share_keys", f"device {id}", EXPELLED)
        goes_on(played, [id for id in range(7) if id not in dealers])
    deals({1, 2, 4, 5}, contradicting, devices=7)
    with pytest.raises(BelowThresholdError) as caught:
        play(make(name, 7, 8))
    assert "round 0 cannot end: 3 of 7 devices" in str(caught.value)
    assert "at least 4 are needed" in str(caught.value)


@pytest.mark.parametrize("limb", [0, KEY_SHARE - 1, KEY_SHARE, KEY_SHARE + SEED_SHARE - 1])
@on_both_topologies
def test_one_wrong_share_of_a_dealer_is_found_before_anything_is_unmasked(name, limb, deals):
    """With t + 2 holders it is clear which; four right ones are left of the other secrets."""
    deals({SENDER}, lambda shares: wrong_at(shares, 1, limb))
    played = play(make(name, DEVICES, 8))
    slow = SlowRound(played)
    holder = slow.holders(SENDER)[1]
    nobody_left(played)
    goes_on(played, [0, 1, 2, 3, 4])
    wrong = {
        (id, one)
        for id, values in played.server._seed_shares.items()
        for one, value in zip(slow.holders(id), values, strict=True)
        if (value == ABSENT).all()
    }
    assert {(holder, SENDER)} == wrong


@pytest.mark.parametrize("value", [Q, 2**32 - 1])
@on_both_topologies
def test_shares_that_are_no_field_elements_are_missing_shares(name, value, deals):
    def of_all(shares):
        shares[:, -1] = value
        return shares

    deals({SENDER}, of_all)
    played = play(make(name, DEVICES, 8))
    is_expelled(played, survivors=[0, 1, 2, 4])
    for id in (0, 1, 2, 4):
        (error,) = played.devices[id].ignored
        assert_named(error, "share_keys", "device 3", "a share is not a field element")


WRONG_KEY = insecure_secrets(9, 9, 9)(32)


@pytest.mark.parametrize(
    ("change", "secrets"),
    [
        # Its shares lie on a polynomial, of another key than it advertised.
        (unchanged, {"private": WRONG_KEY}),
        # The limbs are those of no string of 32 bytes.
        (limb_moved(MASK_KEY_LIMBS - 1), {}),
        (limb_moved(0), {}),
    ],
    ids=["another key", "last limb", "first limb"],
)
@with_each_upload
def test_a_wrong_mask_key_of_a_vanished_device_is_made_up_for_by_secrets_of_pairs(
    name, change, secrets, deals
):
    deals({1}, change, **secrets)
    played = play(make(name, DEVICES, 8), dropouts={1: "masked_input"})
    nobody_left(played)
    goes_on(played, [0, 2, 3, 4])
    # What each told is what it has masked with device 1 with, and not what their keys agree on.
    assert [0, 2, 3, 4] == list(played.sent("pairs"))
    for id, told in played.sent("pairs").items():
        assert pair_secret(played, id, 1) == told


@on_both_topologies
def test_a_wrong_mask_key_and_another_device_that_vanishes_later_end_a_round(name, deals):
    """What one device can still do: the masks of those two nobody can tell."""
    deals({1}, unchanged, private=WRONG_KEY)
    with pytest.raises(BelowThresholdError) as caught:
        play(make(name, DEVICES, 8), dropouts={1: "masked_input", 4: "unmask"})
    assert (
        "round 0 cannot end: the mask key of device 1 cannot be reconstructed, and device 4 did "
        "not tell what they have in common"
    ) == str(caught.value)


@on_both_topologies
def test_pairs_are_not_asked_for_where_mask_keys_are_right(name):
    played = play(make(name, DEVICES, 8), dropouts={1: "masked_input"})
    assert {} == played.sent("pairs")
    phases = played.protocol.phases()
    # The request and the answer of the only gather, and no more.
    assert [1] * 4 == played.record.messages_up[phases.index("unmask"), [0, 2, 3, 4]].tolist()


@with_each_upload
def test_a_seed_that_is_no_string_of_16_bytes_costs_its_dealer(name, deals):
    """Its upload is in the sum, under a mask of its own making: it could have sent anything."""
    deals({SENDER}, limb_moved(KEY_SHARE))
    played = play(make(name, DEVICES, 8))
    assert list(range(DEVICES)) == played.server.survivors
    assert {} == played.left
    only_at_fault(played, SENDER, "unmask", "the shares do not combine to a secret")
    # Where it sent nothing, the sum is right.
    others = np.ones(8, np.bool_)
    others[sent_by(played, SENDER)] = False
    assert (sum_of(played, range(DEVICES)) == played.server.total)[others].all()


# answers, and shares that do not fit them


def change_gathered(name, step, change, id=VICTIM):
    """Return a change of what one device sends to the server in a step."""
    number = [one.name if one.pattern is Pattern.GATHER else "" for one in make(name, 5, 1).steps]
    of = number.index(step)

    def changed(header, message):
        if (header.step, header.sender) != (of, id):
            return message
        return np.concatenate([message[:16], change(message[16:].copy())])

    return changed


@pytest.mark.parametrize("word", range(5))
@on_both_topologies
def test_a_holder_that_sends_another_share_than_it_answered_for_is_refused_by_name(name, word):
    """Any word of any share; of survivors' seeds, and of the mask key of device 4 behind them."""
    places = [0, SEED_SHARE - 1, SEED_SHARE * 4 - 1, SEED_SHARE * 4, SEED_SHARE * 4 + KEY_SHARE - 1]

    def move(answer):
        words = answer.view("<u4").copy()
        words[places[word]] = (int(words[places[word]]) + 2**20) % Q
        return words.view(np.uint8)

    change = change_gathered(name, "unmask", move)
    played = play(make(name, DEVICES, 8), dropouts={4: "masked_input"}, change=change)
    assert {} == played.left
    slow = SlowRound(played)
    survivors = [id for id in slow.holders(VICTIM) if id != 4]
    owner = 4 if word > 2 else survivors[0 if word < 2 else 3]
    reason = f"its share of a secret of device {owner} is not what it answered for"
    only_at_fault(played, VICTIM, "unmask", reason)
    goes_on(played, [0, 1, 2, 3])


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


NOT_AS_ANSWERED = "is not what it answered for"


@pytest.mark.parametrize("place", range(DEVICES))
@on_both_topologies
def test_a_wrong_answer_makes_the_holders_share_useless_and_no_dealer_suspect(name, place):
    """One wrong answer among five is found, about itself too; the holder's other shares count."""
    played = play(make(name, DEVICES, 8), change=change_gathered(name, "checks", about(place)))
    goes_on(played, [0, 1, 2, 3, 4])
    # The share does not fit the answer that it gave for it.
    assert {} == played.left
    only_at_fault(played, VICTIM, "unmask", NOT_AS_ANSWERED)
    assert {} == played.sent("pairs")


@pytest.mark.parametrize(
    ("devices", "dropouts"),
    [
        (5, {}),
        (5, {4: "unmask"}),
        (5, {0: "masked_input"}),
        # Two of nine are gone before anything is shared, and t = 5.
        (9, {0: "advertise_keys", 7: "share_keys"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("lie", [uniform, all_ones])
@on_both_topologies
def test_one_liar_about_all_dealers_costs_at_most_itself_where_t_and_two_more_answer(
    name, lie, devices, dropouts
):
    """Who vanishes after the answers vanishes as if nobody had lied."""
    change = change_gathered(name, "checks", lie)
    played = play(make(name, devices, 8), change=change, dropouts=dropouts)
    assert len(played.sent("checks")) == played.protocol.topology.threshold + 2
    goes_on(played, played.taking_part("masked_input"))
    assert {} == played.left == played.sent("pairs")
    if lie is uniform:
        only_at_fault(played, VICTIM, "unmask", NOT_AS_ANSWERED)
    else:
        # Its own word makes its shares useless, and it has sent no wrong one.
        nobody_left(played)
    for holder, shares in played.server._seed_shares.items():
        found = (shares == ABSENT).any() if holder != VICTIM else (shares != ABSENT).any()
        assert not found


@pytest.mark.parametrize("lies", [uniform, about(0)], ids=["all", "one"])
@on_both_topologies
def test_with_one_answer_less_a_liar_ends_the_round_and_nobody_is_expelled(name, lies):
    """Of t + 1 answers any t fit, and nobody can tell whether dealer or holder is wrong.

    The round ends before anybody has masked anything.
    """
    uploads = []

    def change(header, message):
        if header.step < len(steps) and steps[header.step].upload:
            uploads.append(header.sender)
        return lie(header, message)

    protocol, lie = make(name, DEVICES, 8), change_gathered(name, "checks", lies)
    steps = protocol.steps
    with pytest.raises(BelowThresholdError) as caught:
        play(protocol, change=change, dropouts={4: "share_keys"})
    assert re.fullmatch(
        r"the 4 answers about the shares of device \d's secrets contradict each other; it would "
        r"take 5 to tell whether that device or one of those that answered is at fault",
        str(caught.value),
    )
    assert [] == uploads


@on_both_topologies
def test_with_one_answer_less_who_says_that_it_has_no_shares_is_still_not_believed(name):
    """The t others fit, as any t do, and one holder without a share expels nobody."""
    change, dropouts = change_gathered(name, "checks", all_ones), {4: "share_keys"}
    played = play(make(name, DEVICES, 8), change=change, dropouts=dropouts)
    nobody_left(played)
    goes_on(played, [0, 1, 2, 3])


@on_both_topologies
def test_a_holder_whose_answers_are_lost_costs_nobody_anything(name):
    """Its vector is in the sum. What it has of others is of no use, as it has not answered."""
    lose = change_gathered(name, "checks", lambda answers: answers)

    def change(header, message):
        return message[:0] if lose(header, message) is not message else message

    played = play(make(name, DEVICES, 8), change=change)
    nobody_left(played)
    goes_on(played, [0, 1, 2, 3, 4])
    assert (played.server._seed_shares[VICTIM] == ABSENT).all()


@pytest.mark.parametrize("wrong", range(DEVICES))
@on_both_topologies
def test_a_dealer_of_a_wrong_share_that_lies_about_another_dealer_costs_nobody_else(
    name, wrong, deals
):
    """Whom it gives the wrong share, and whom it lies about: the same, another one, or itself."""
    for place in range(DEVICES):
        deals({SENDER}, lambda shares: wrong_at(shares, wrong))
        lie = change_gathered(name, "checks", about(place), SENDER)
        played = play(make(name, DEVICES, 8), change=lie)
        holders = SlowRound(played).holders(SENDER)
        if holders[place] == SENDER != holders[wrong]:
            # Two holders of its own have no right share: the one that it wronged, and itself.
            is_expelled(played, survivors=[0, 1, 2, 4])
            continue
        assert {} == played.left
        only_at_fault(played, SENDER, "unmask", NOT_AS_ANSWERED)
        goes_on(played, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("silent", [0, 6])
@on_both_topologies
def test_it_costs_nobody_else_either_if_an_honest_device_vanishes_as_planned(name, silent, deals):
    """Seven devices, t = 4, of whom six answer in the end; whomever it wrongs and frames."""
    for wrong, place in [(k, (k + shift) % 7) for k in range(7) for shift in (0, 2)]:
        deals({SENDER}, lambda shares, at=wrong: wrong_at(shares, at), devices=7)
        lie = change_gathered(name, "checks", about(place), SENDER)
        played = play(make(name, 7, 8), change=lie, dropouts={silent: "unmask"})
        assert {*played.kept_out} == {SENDER}
        assert {*played.left} <= {SENDER}
        goes_on(played, [id for id in range(7) if id not in played.left])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        *((lambda answers, k=size: answers[:k], "expected 40") for size in (0, 4, -1, -8)),
        (
            lambda answers: np.concatenate([answers[:-4], raw(Q.to_bytes(4, "little"))]),
            "a share is not a field element",
        ),
    ],
)
@on_both_topologies
def test_malformed_answers_cost_their_holder_the_round(name, change, reason):
    played = play(make(name, DEVICES, 8), change=change_gathered(name, "checks", change))
    only_at_fault(played, VICTIM, "share_keys", reason)
    goes_on(played, [0, 1, 3, 4])


def test_the_server_takes_answers_of_those_that_shared_keys_and_once():
    protocol, before = make("secagg", DEVICES, 8), ("share_keys", Pattern.GATHER)
    played = play(protocol, dropouts={4: "share_keys"}, before=before)
    answers, take = played.devices[2].send_checks(), played.server.receive_checks
    for sender in (4, 5):
        refused_in("share_keys", sender, "it shared no keys", take, sender, answers)
    take(2, answers)
    refused_in("share_keys", 2, "it was received twice", take, 2, answers)


# envelopes


def phase_of(protocol, header):
    """Return the phase and pattern of a message; a refusal is of none."""
    if header.step >= len(protocol.steps):
        return "", None
    return protocol.steps[header.step].phase, protocol.steps[header.step].pattern


@pytest.mark.parametrize("field", ["version", "step", "reserved", "round", "sender", "receiver"])
@pytest.mark.parametrize("phase", ["advertise_keys", "masked_input", "unmask"])
def test_the_server_refuses_a_message_with_a_wrong_envelope(phase, field):
    protocol = make("cohort", DEVICES, 8)

    def change(header, message):
        if phase_of(protocol, header)[0] == phase and header.sender == 3:
            message = message.copy()
            message[OFFSETS[field]] ^= 1
        return message

    played = play(protocol, change=change)
    assert 3 == next(iter(played.kept_out))
    assert_named(played.kept_out[3], phase, "device 3", f"its {field} is")
    goes_on(played, [id for id in range(DEVICES) if id != 3 or phase == "unmask"])


@pytest.mark.parametrize("phase", ["model", "advertise_keys", "unmask"])
@on_both_topologies
def test_a_device_refuses_a_message_of_the_server_of_another_round(name, phase):
    protocol = make(name, DEVICES, 8)

    def change(header, message):
        told = (Pattern.BROADCAST, Pattern.SCATTER)
        if phase_of(protocol, header) in [(phase, pattern) for pattern in told]:
            message = message.copy()
            message[4] ^= 1
        return message

    with pytest.raises(BelowThresholdError) as caught:
        play(protocol, change=change)
    assert_named(caught.value, phase, "the server", "its round is 1, expected 0 (and 4 more)")


def test_a_message_without_room_for_an_envelope_is_refused():
    def change(header, message):
        return message[:15] if header.sender == 3 and header.step == 1 else message

    played = play(make("secagg", DEVICES, 8), change=change)
    assert_named(played.kept_out[3], "advertise_keys", "device 3", "15 bytes hold no envelope")
    goes_on(played, [0, 1, 2, 4])


@pytest.mark.parametrize("phase", ["advertise_keys", "masked_input", "unmask"])
@on_both_topologies
def test_of_several_malformed_messages_the_first_is_reported(name, phase):
    protocol = make(name, DEVICES, 8)

    def change(header, message):
        gathered = phase_of(protocol, header) == (phase, Pattern.GATHER)
        return message[:20] if header.sender in (1, 2, 4) and gathered else message

    with pytest.raises(BelowThresholdError) as caught:
        play(protocol, change=change)
    assert_named(caught.value, phase, "device 1", " (and 2 more)")


# what the server is sent


@pytest.fixture(params=UPLOADING)
def collecting(request):
    """Return a round in which devices 0 to 3 are about to upload; device 4 shared no keys."""
    protocol = make(request.param, DEVICES, 12, alpha=0.9, locations="bitmap")
    return play(protocol, dropouts={4: "share_keys"}, before="masked_input")


@pytest.fixture(params=LINKED)
def unmasking(request):
    """Return a round in which devices 0, 2 and 3 are about to answer; 1 uploaded nothing."""
    protocol = make(request.param, DEVICES, 12)
    dropouts = {1: "masked_input", 4: "share_keys"}
    return play(protocol, dropouts=dropouts, before=("unmask", Pattern.GATHER))


def upload_of(played, id):
    return played.devices[id].send_masked_input(played.vectors[id])


def test_the_model_has_d_numbers():
    receive = make("secagg", DEVICES, 12).device(0, 0, seeded_sources(1)[0]).receive_model
    for size in (0, 47, 49, 96):
        reason = f"received {size} bytes, expected 48"
        refused_in("model", "the server", reason, receive, np.zeros(size, np.uint8))


@on_both_topologies
def test_the_server_takes_public_keys_of_64_bytes_and_once(name):
    """None of low order, nor one that is written otherwise than any device would."""
    take = make(name, DEVICES, 12).server(0, np.zeros(12, np.float32)).receive_advertise_keys
    for number, start in product(
        (0, 1, 2**255 - 20, 2**255 - 19, 2**255 - 18, 2**256 - 1), (0, 32)
    ):
        keys = bytearray(range(64))
        keys[start : start + 32] = number.to_bytes(32, "little")
        refused_in("advertise_keys", 3, "a public key ", take, 3, raw(bytes(keys)))
    for size in (0, 32, 63, 65):
        reason = f"received {size} bytes, expected 64"
        refused_in("advertise_keys", 3, reason, take, 3, np.zeros(size, np.uint8))
    take(3, raw(bytes(range(64))))
    refused_in("advertise_keys", 3, "it was received twice", take, 3, np.ones(64, np.uint8))


@on_both_topologies
def test_the_server_refuses_shares_of_a_device_without_keys(name):
    played = play(make(name, DEVICES, 12), dropouts={1: "advertise_keys"}, before="share_keys")
    take, ids = played.server.receive_share_keys, np.array([0, 1, 2, 3])
    refused_in("share_keys", 1, "it advertised no keys", take, ids, of=played)


def test_the_server_refuses_an_upload_of_another_size(collecting):
    upload, take = upload_of(collecting, 2), collecting.server.receive_masked_input
    for wrong in (upload[:-1], upload[:-4], upload[:0], np.append(upload, np.zeros(4, np.uint8))):
        refused_in("masked_input", 2, "", take, 2, wrong, of=collecting)


def test_the_server_refuses_an_upload_of_a_device_that_shared_no_keys(collecting):
    upload, take = upload_of(collecting, 2), collecting.server.receive_masked_input
    for sender in (4, 5, 2**32 - 1):
        refused_in("masked_input", sender, "it shared no keys", take, sender, upload, of=collecting)


def test_the_server_refuses_a_second_upload_of_a_device(collecting):
    upload, take = upload_of(collecting, 2), collecting.server.receive_masked_input
    take(2, upload)
    refused_in("masked_input", 2, "it was received twice", take, 2, upload, of=collecting)


@on_both_topologies
def test_the_server_takes_keys_that_another_device_has_advertised(name):
    """Of a lower or a higher id, for one use or the other: it refuses the keys of nobody."""
    server = make(name, DEVICES, 12).server(0, np.zeros(12, np.float32))
    both = bytes(range(64))
    advertised = {3: both, 4: both, 1: both[32:] + both[:32], 0: both[:32] * 2, 2: both[32:] * 2}
    for id, keys in advertised.items():
        server.receive_advertise_keys(id, raw(keys))
    assert advertised == server._public


# keys that are another device's


def advertised_by_all(name):
    return play(make(name, DEVICES, 8), before="share_keys").sent("advertise_keys")


COPIES = pytest.mark.parametrize(("copier", "owner"), [(1, 3), (3, 1), (4, 0)])


@pytest.mark.parametrize("part", ["transport", "both"])
@on_both_topologies
def test_who_has_copied_a_transport_key_shares_nothing_and_is_expelled(name, part):
    """Nothing that it seals opens, and it opens nothing; its owner and all others stay."""
    copied = advertised_by_all(name)[1]
    cut = 32 if part == "transport" else 64
    protocol = advertising(make(name, DEVICES, 8), SENDER, lambda own: copied[:cut] + own[cut:])
    played = play(protocol)
    is_expelled(played, [0, 1, 2, 4])
    for id, device in played.devices.items():
        without = {f"device {one}" for one in range(DEVICES) if one != id}
        expected = without if id == SENDER else {f"device {SENDER}"}
        assert expected == {error.sender for error in device.ignored}


@pytest.mark.parametrize("dropouts", [{}, {2: "masked_input"}], ids=str)
@COPIES
@on_both_topologies
def test_who_has_copied_a_mask_key_makes_nobody_leave(name, copier, owner, dropouts):
    """It does not know the masks that others add for it: its vector is whatever it is."""
    copied = advertised_by_all(name)[owner][32:]
    protocol = advertising(make(name, DEVICES, 8), copier, lambda own: own[:32] + copied)
    played = play(protocol, dropouts=dropouts)
    nobody_left(played)
    assert_uses_all_shares(played)
    assert played.taking_part("masked_input") == played.server.survivors


@COPIES
@on_both_topologies
def test_the_sum_without_a_device_that_has_copied_a_mask_key_is_right(name, copier, owner):
    """It vanishes, and its shares do not give the key: all tell what they masked with it."""
    copied = advertised_by_all(name)[owner][32:]
    protocol = advertising(make(name, DEVICES, 8), copier, lambda own: own[:32] + copied)
    played = play(protocol, dropouts={copier: "masked_input"})
    nobody_left(played)
    others = [id for id in range(DEVICES) if id != copier]
    goes_on(played, others)
    assert others == list(played.sent("pairs"))
    for id, told in played.sent("pairs").items():
        assert pair_secret(played, id, copier, copied) == told


@on_both_topologies
def test_a_device_with_one_key_for_both_uses_is_like_any_other(name):
    played = play(advertising(make(name, DEVICES, 8), SENDER, lambda own: own[:32] * 2))
    nobody_left(played)
    assert_uses_all_shares(played)
    assert [0, 1, 2, 3, 4] == played.server.survivors


@pytest.mark.parametrize(
    ("senders", "total", "at_fault", "reason"),
    [
        ([0, 1, 2, 3], np.zeros(1, np.uint32), "the devices", "shape"),
        ([0, 1, 2, 3], np.full(4, Q, np.uint32), "the devices", "not a group element"),
        ([0, 1, 2, 4], np.zeros(4, np.uint32), 4, "it shared no keys"),
    ],
)
def test_the_server_refuses_a_sum_of_another_form_or_with_a_device_that_shared_no_keys(
    senders, total, at_fault, reason
):
    played = play(make("secagg", DEVICES, 4), dropouts={4: "share_keys"}, before="masked_input")
    take = played.server.receive_sum_masked_input
    refused_in("masked_input", at_fault, reason, take, senders, total, of=played)
    assert [] == played.server.survivors


def test_the_server_refuses_a_value_that_is_no_field_element(collecting):
    upload, take = upload_of(collecting, 2), collecting.server.receive_masked_input
    for value in (Q, Q + 1, 2**32 - 1):
        wrong = np.append(upload[:-4], raw(value.to_bytes(4, "little")))
        refused_in(
            "masked_input", 2, "a value is not a group element", take, 2, wrong, of=collecting
        )


@with_each_upload
def test_every_word_is_an_element_of_the_ring(name):
    played = play(make(name, 3, 12, alpha=0.9, group="ring32"), before="masked_input")
    upload = upload_of(played, 2).copy()
    upload[-4:] = 255

    played.server.receive_masked_input(2, upload)
    assert [2] == played.server.survivors


# A header with the coding, its parameter and the number of locations; these; then the values.
NO_LOCATIONS: dict[str, tuple[bytes, int]] = {
    "bitmap beyond d": (b"\0\0\0\0\1\0\0\0\0\x08", 1),
    # One gap of 12, in unary: twelve zeros and a one; then the same with a Rice parameter.
    "gaps beyond d": (b"\1\0\0\0\1\0\0\0\0\x08", 1),
    "Rice gaps beyond d": (b"\1\2\0\0\1\0\0\0\x10", 1),
    "unknown coding": (b"\2\0\0\0\0\0\0\0\0\0", 0),
    "reserved bytes": (b"\0\0\1\0\0\0\0\0\0\0", 0),
    "fewer bits than announced": (b"\0\0\0\0\2\0\0\0\x80\0", 2),
    "more bits than announced": (b"\0\0\0\0\1\0\0\0\xc0\0", 1),
    "more than d": (b"\0\0\0\0\x0d\0\0\0\xff\xf8", 13),
    "fewer gaps than announced": (b"\1\0\0\0\2\0\0\0\x80", 0),
    "no header": (b"\0\0\0\0", 0),
}


def test_the_server_refuses_locations_that_no_device_writes():
    played = play(make("sparse", DEVICES, 12), before="masked_input")
    take = played.server.receive_masked_input
    for body, values in NO_LOCATIONS.values():
        refused_in("masked_input", 2, "", take, 2, raw(body + bytes(4 * values)), of=played)
    # One coordinate less than beyond d is the last one.
    take(1, raw(b"\0\0\0\0\1\0\0\0\0\x10" + bytes(4)))


def test_the_server_takes_shares_of_survivors_of_the_right_size_and_once(unmasking):
    reply, take = unmasking.devices[2].send_unmask(), unmasking.server.receive_unmask
    for sender in (1, 4, 5):
        refused_in("unmask", sender, "it is not a survivor", take, sender, reply, of=unmasking)
    for size in (0, 4, -1, -4):
        refused_in(
            "unmask", 2, f"received {reply[:size].size} bytes", take, 2, reply[:size], of=unmasking
        )
    beyond = np.append(raw(Q.to_bytes(4, "little")), reply[4:])
    refused_in("unmask", 2, "a share is not a field element", take, 2, beyond, of=unmasking)
    take(2, reply)
    refused_in("unmask", 2, "it was received twice", take, 2, reply, of=unmasking)


def finish_with(played, word):
    """Let the survivors answer, device 2 with one word changed; take off the masks."""
    for id in (0, 2, 3):
        shares = played.devices[id].send_unmask().view("<u4").copy()
        if id == 2 and word is not None:
            shares[word] = (int(shares[word]) + 1) % Q
        played.server.receive_unmask(id, shares.view(np.uint8))
    played.server.finish_unmask()


@pytest.mark.parametrize(
    "word", [0, SEED_SHARE - 1, 3 * SEED_SHARE - 1, 3 * SEED_SHARE, 3 * SEED_SHARE + KEY_SHARE - 1]
)
def test_the_last_share_that_is_needed_is_checked_too(unmasking, word):
    """Three shares of three are consistent whatever they are: what tells is the holder's answer."""
    refused_in("unmask", 2, NOT_AS_ANSWERED, finish_with, unmasking, word, of=unmasking)


def test_unaltered_shares_combine(unmasking):
    finish_with(unmasking, None)
    unmasking.server.finish_result()

    assert 12 == unmasking.server.total.size
