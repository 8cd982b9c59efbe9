"""A message that is not what its phase requires is an error that names its sender and its phase.

It costs the round that sender alone, while enough are left.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from protocol_rounds import (
    SECURE,
    Change,
    Header,
    Played,
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
from hpcfl.errors import BelowThresholdError, HpcflError, MessageError, RefusedError

DEVICES = 5
VICTIM, SENDER = 2, 3
OFFSETS = {"version": 0, "step": 1, "reserved": 2, "round": 4, "sender": 8, "receiver": 12}
Rows = NDArray[np.uint8]


def refused_in(
    phase: str, sender: str, reason: str, call: Callable[[], Any], of: Played | None = None
) -> None:
    """Assert that a call ends with the right error, which holds no secret of the round `of`."""
    with pytest.raises(MessageError) as caught:
        call()
    if of is not None:
        assert_tells_no_secret(caught.value, of.sources)
    assert (phase, sender) == (caught.value.phase, caught.value.sender)
    assert reason in caught.value.reason
    assert f"malformed {phase} message from {sender}: {caught.value.reason}" == str(caught.value)


def assert_named(error: HpcflError, phase: str, sender: str, reason: str) -> None:
    """Assert that an error says what was wrong, and with whose message."""
    assert f"malformed {phase} message from {sender}: " in str(error)
    assert reason in str(error)


def goes_on(played: Played, survivors: list[int]) -> None:
    """Assert that a round ended with the sum over these devices."""
    assert survivors == played.server.survivors
    assert (sum_of(played, survivors) == played.server.total).all()


def assert_uses_all_shares(played: Played) -> None:
    """Assert that no device was without a share."""
    assert [] == [error for device in played.devices.values() for error in device.ignored]


# rows of shares: device 3 sends them, device 2 is the victim


def change_rows(name: str, change: Callable[[Rows], Rows]) -> Change:
    """Return a change of the rows that device 3 sends in share_keys."""
    route = next(
        number
        for number, step in enumerate(make(name, DEVICES, 1).steps)
        if step.pattern is Pattern.ROUTE
    )

    def changed(header: Header, message: Rows) -> Rows:
        if header.step == route and header.sender == SENDER:
            return change(message.copy())
        return message

    return changed


def play_with_rows(name: str, change: Callable[[Rows], Rows], **options: Any) -> Played:
    return play(make(name, DEVICES, 8), change=change_rows(name, change), **options)


def nobody_else_left(played: Played, id: int = SENDER) -> None:
    """Assert that no device left but the one at fault, whose honest part finds itself left out."""
    assert {*played.left} <= {id}
    assert [id] == list(played.kept_out)


EXPELLED = "two holders or more have no right share of its secrets: it is expelled"


def is_expelled(played: Played, id: int = SENDER, survivors: list[int] | None = None) -> None:
    """Assert that a device was expelled before anybody masked, and that nobody else left.

    All who answered were told, nobody masked with it, and nothing of it was ever asked for.
    """
    assert [id] == list(played.kept_out) == list(played.left)
    assert_named(played.kept_out[id], "share_keys", f"device {id}", EXPELLED)
    assert isinstance(played.left[id], RefusedError)
    reason = f"device {id} is told that the shares of its secrets do not belong together"
    assert reason == str(played.left[id])
    members = played.taking_part("share_keys")
    pattern = played.protocol.topology.pattern
    told = {m.header.receiver: m.payload for m in played.messages("expelled", pattern)}
    if pattern is Pattern.BROADCAST:
        assert [expelled_list(played, 0, [id]).tobytes()] == list(told.values())
    else:
        assert {one: expelled_list(played, one, [id]).tobytes() for one in members} == told
    for one in members:
        assert (one == id) or id not in played.devices[one]._members()
    uploads = played.sent("masked_input")
    assert id not in uploads
    assert id not in [*played.server.survivors, *played.server.dropped]
    goes_on(played, list(uploads) if survivors is None else survivors)


def row_to(rows: Rows, receiver: int = VICTIM) -> int:
    return Header.receivers_of(rows).tolist().index(receiver)


def without_row(rows: Rows, receiver: int = VICTIM) -> Rows:
    return rows[Header.receivers_of(rows) != receiver]


def does_without(played: Played, reason: str = "it does not decrypt") -> None:
    """Assert that device 2 has no share of device 3's, all others have, and everybody stays."""
    assert ({}, {}) == (played.kept_out, played.left)
    ignored = {id: device.ignored for id, device in played.devices.items() if device.ignored}
    assert [VICTIM] == list(ignored)
    (error,) = ignored[VICTIM]
    assert ("share_keys", f"device {SENDER}", reason) == (error.phase, error.sender, error.reason)
    assert_tells_no_secret(error, played.sources)
    goes_on(played, played.taking_part("masked_input"))


@pytest.mark.parametrize("name", SECURE)
@pytest.mark.parametrize("place", [16, 16 + 35, 16 + 4 * (KEY_SHARE + SEED_SHARE), -1])
def test_a_share_altered_on_the_way_is_missing(name: str, place: int) -> None:
    def alter(rows: Rows) -> Rows:
        rows[row_to(rows), place] ^= 0x40
        return rows

    does_without(play_with_rows(name, alter))


@pytest.mark.parametrize("field", ["version", "step", "reserved", "round", "sender"])
@pytest.mark.parametrize("name", SECURE)
def test_a_row_in_a_wrong_envelope_is_an_unusable_row_of_its_sender(name: str, field: str) -> None:
    def alter(rows: Rows) -> Rows:
        rows[row_to(rows), OFFSETS[field]] ^= 1
        return rows

    does_without(play_with_rows(name, alter))


@pytest.mark.parametrize("claimed", [0, 1, VICTIM, DEVICES, 2**32 - 1])
@pytest.mark.parametrize("name", SECURE)
def test_a_row_in_the_name_of_another_device_takes_nothing_from_that_device(
    name: str, claimed: int
) -> None:
    """Whatever the row says, and if it comes before the other's own."""

    def claim(rows: Rows) -> Rows:
        rows[row_to(rows), 8:12] = raw(claimed.to_bytes(4, "little"))
        return rows

    does_without(play_with_rows(name, claim))

    def claim_first(rows: Rows) -> Rows:
        honest = rows.copy()
        return np.vstack([claim(rows)[row_to(rows)], honest])

    does_without(play_with_rows(name, claim_first))


@pytest.mark.parametrize(
    "receiver", [None, SENDER, DEVICES, 2**31, 2**32 - 2, 2**32 - 1], ids=lambda id: f"to {id}"
)
@pytest.mark.parametrize("name", SECURE)
def test_a_row_to_nobody_is_a_missing_row(name: str, receiver: int | None) -> None:
    """To its own sender, too; or no row at all."""

    def readdress(rows: Rows) -> Rows:
        if receiver is None:
            return without_row(rows)
        rows[row_to(rows), 12:16] = raw(receiver.to_bytes(4, "little"))
        return rows

    does_without(play_with_rows(name, readdress))


@pytest.mark.parametrize("name", SECURE)
def test_a_row_to_another_device_is_missing_here_and_ignored_there(name: str) -> None:
    def readdress(rows: Rows) -> Rows:
        rows[row_to(rows), 12:16] = raw((4).to_bytes(4, "little"))
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
        assert ({}, {}) == (played.kept_out, played.left)
        goes_on(played, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("name", SECURE)
def test_of_several_rows_the_first_counts(name: str) -> None:
    def forged(rows: Rows) -> Rows:
        row = rows[row_to(rows)].copy()
        row[-1] ^= 1
        return row

    played = play_with_rows(name, lambda rows: np.vstack([rows, forged(rows), rows]))
    assert ({}, {}) == (played.kept_out, played.left)
    assert_uses_all_shares(played)
    goes_on(played, list(range(DEVICES)))
    assert not (played.server._seed_shares[VICTIM] == ABSENT).any()

    does_without(play_with_rows(name, lambda rows: np.vstack([forged(rows), rows])))


@pytest.mark.parametrize("size", [0, 15, 16, 16 + 79, 16 + 81, 16 + 160])
@pytest.mark.parametrize("name", SECURE)
def test_who_sends_rows_of_another_size_has_sent_none(name: str, size: int) -> None:
    """It takes no part, which everybody is told alike: nobody masks with it."""
    played = play_with_rows(name, lambda rows: np.pad(rows, ((0, 0), (0, 99)))[:, :size])
    nobody_else_left(played)
    assert_named(played.kept_out[SENDER], "share_keys", "device 3", "it shared no keys")
    assert_uses_all_shares(played)
    goes_on(played, [0, 1, 2, 4])


@pytest.mark.parametrize("name", SECURE)
def test_who_sends_no_row_at_all_takes_no_part(name: str) -> None:
    played = play_with_rows(name, lambda rows: rows[:0])
    nobody_else_left(played)
    assert_named(played.kept_out[SENDER], "share_keys", "device 3", "it shared no keys")
    goes_on(played, [0, 1, 2, 4])


def envelopes_of_another_round(rows: Rows, chosen: Any) -> Rows:
    rows[chosen, OFFSETS["round"]] ^= 1
    return rows


def random_bytes(rows: Rows, chosen: Any) -> Rows:
    noise = np.random.default_rng(5).integers(0, 256, rows.shape).astype(np.uint8)
    rows[chosen, 16:] = noise[chosen, 16:]
    return rows


def none(rows: Rows, chosen: Any) -> Rows:
    return rows[~chosen]


def of_each_other(rows: Rows, chosen: Any) -> Rows:
    rows[chosen, 16:] = np.roll(rows, 1, axis=0)[chosen, 16:]
    return rows


@pytest.mark.parametrize("spoil", [envelopes_of_another_round, random_bytes, none, of_each_other])
@pytest.mark.parametrize("victims", [(4,), (0,), (0, 1), (2, 4), (0, 1, 2), (0, 1, 2, 4)], ids=str)
@pytest.mark.parametrize("name", SECURE)
def test_no_row_of_one_device_makes_another_one_leave(
    name: str, victims: tuple[int, ...], spoil: Callable[[Rows, Any], Rows]
) -> None:
    """Whomever it spoils them to: if that are two or more, it is expelled itself."""
    if spoil is none and len(victims) == 4:
        # As if it had dropped out, which is another test.
        return
    played = play_with_rows(name, lambda rows: spoil(rows, np.isin(rows[:, 12], victims)))

    if len(victims) == 1:
        assert ({}, {}) == (played.kept_out, played.left)
        goes_on(played, [0, 1, 2, 3, 4])
        # Its upload is used, with the right shares of the others.
        assert SENDER in played.sent("masked_input")
        assert not played.server.wants_expelled()
        return
    is_expelled(played, survivors=[0, 1, 2, 4])
    # Nobody was asked for either of its secrets, nor what it has in common with others.
    assert {} == played.sent("pairs")


@pytest.mark.parametrize("name", SECURE)
def test_a_device_says_which_shares_it_was_not_sent(name: str) -> None:
    """All ones stand for a share; the secret is reconstructed from the others' shares."""

    def alter(rows: Rows) -> Rows:
        rows[row_to(rows), -1] ^= 0x40
        return rows

    played = play_with_rows(name, alter)
    slow = SlowRound(played)
    for sent, width in (("checks", 2), ("unmask", SEED_SHARE)):
        for id, content in played.sent(sent).items():
            values = np.frombuffer(content, "<u4").reshape(-1, width)
            absent = (values == ABSENT).all(axis=1).tolist()
            assert [id == VICTIM and one == SENDER for one in slow.holders(id)] == absent


@pytest.mark.parametrize("name", SECURE)
def test_a_share_of_another_round_is_refused_even_if_all_keys_are_the_same(name: str) -> None:
    other = play(make(name, DEVICES, 8), index=1, sources=seeded_sources(DEVICES))
    rows_before = {
        (m.header.sender, m.header.receiver): raw(m.sealed)
        for m in other.messages("share_keys", Pattern.ROUTE)
    }

    def replay(rows: Rows) -> Rows:
        rows[row_to(rows), 16:] = rows_before[3, VICTIM][16:]
        return rows

    def replay_envelope(rows: Rows) -> Rows:
        rows[row_to(rows)] = rows_before[3, VICTIM]
        return rows

    does_without(play_with_rows(name, replay))
    does_without(play_with_rows(name, replay_envelope))


@pytest.mark.parametrize("name", SECURE)
def test_a_share_that_is_sent_back_to_its_sender_is_refused(name: str) -> None:
    """Both directions of a pair have the same key."""
    honest = play(make(name, DEVICES, 8))
    own = {
        m.header.receiver: m
        for m in honest.messages("share_keys", Pattern.ROUTE)
        if m.header.sender == VICTIM
    }

    def reflect(rows: Rows) -> Rows:
        rows[row_to(rows), 16:] = raw(own[SENDER].payload)
        return rows

    does_without(play_with_rows(name, reflect))


# what is dealt: rightly sealed, but not what it should be


Deal = Callable[[NDArray[np.uint32]], NDArray[np.uint32]]


@pytest.fixture
def deals(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what lets a device change the shares that it deals, or the secrets in them."""

    def let(device: int, change: Deal, **secrets: bytes) -> None:
        dealt = sharing.deal
        calls = itertools.count()

        def deal(private: bytes, seed: bytes, *rest: Any) -> NDArray[np.uint32]:
            if next(calls) % DEVICES != device:
                return dealt(private, seed, *rest)
            both = {"private": private, "seed": seed} | secrets
            return change(dealt(both["private"], both["seed"], *rest).copy())

        monkeypatch.setattr(sharing, "deal", deal)

    return let


def contradicting(shares: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return shares of no polynomial of degree t - 1."""
    generator = np.random.default_rng(1)
    return generator.integers(0, Q, shares.shape).astype(np.uint32)


def wrong_at(shares: NDArray[np.uint32], holder: int, limb: int = 0) -> NDArray[np.uint32]:
    """Return shares of which one holder's is another one."""
    shares[holder, limb] = (int(shares[holder, limb]) + 1) % Q
    return shares


@pytest.mark.parametrize("columns", [slice(None), slice(0, KEY_SHARE), slice(KEY_SHARE, None)])
@pytest.mark.parametrize("name", SECURE)
def test_a_dealer_of_contradicting_shares_is_out_and_everybody_else_stays(
    name: str, columns: slice, deals: Callable[..., None]
) -> None:
    def change(shares: NDArray[np.uint32]) -> NDArray[np.uint32]:
        shares[:, columns] = contradicting(shares)[:, columns]
        return shares

    deals(SENDER, change)
    played = play(make(name, DEVICES, 8))
    is_expelled(played, survivors=[0, 1, 2, 4])
    assert {} == played.sent("pairs")


@pytest.mark.parametrize("name", ["secagg", "secagg-graph"])
def test_uploads_that_are_summed_on_the_way_go_on_without_a_dealer_of_contradicting_shares(
    name: str, deals: Callable[..., None]
) -> None:
    """With `--upload reduce` nothing could be taken back: it is out before anybody uploads."""
    deals(SENDER, contradicting)
    played = play(make(name, DEVICES, 8), upload="reduce")
    assert [0, 1, 2, 4] == list(played.wire.summed)
    is_expelled(played, survivors=[0, 1, 2, 4])


@pytest.mark.parametrize("name", ["secagg", "secagg-graph"])
def test_uploads_that_are_summed_on_the_way_hold_that_of_a_dealer_of_one_wrong_share(
    name: str, deals: Callable[..., None]
) -> None:
    deals(SENDER, lambda shares: wrong_at(shares, 1))
    played = play(make(name, DEVICES, 8), upload="reduce")
    assert [0, 1, 2, 3, 4] == list(played.wire.summed)
    assert ({}, {}) == (played.kept_out, played.left)
    goes_on(played, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("upload", ["gather", "reduce"])
def test_the_server_takes_no_upload_of_a_device_that_is_expelled(
    upload: str, deals: Callable[..., None]
) -> None:
    deals(SENDER, contradicting)
    played = play(make("secagg", DEVICES, 8), upload=upload, before="masked_input")
    vector = played.devices[0].send_masked_input(played.vectors[0])
    take = played.server.receive_masked_input
    for action in (
        lambda: take(SENDER, vector),
        lambda: played.server.receive_sum_masked_input([0, SENDER], vector.view("<u4")),
    ):
        refused_in("masked_input", "device 3", "it shared no keys", action, of=played)
    assert [] == played.server.survivors
    take(0, vector)
    assert [0] == played.server.survivors


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
@pytest.mark.parametrize("name", SECURE)
def test_whoever_vanishes_beside_a_dealer_of_contradicting_shares_the_round_ends(
    name: str, dropouts: dict[int, str], deals: Callable[..., None]
) -> None:
    """An honest device before it unmasks, or before it uploads, or the dealer itself.

    Nobody needs a secret of the dealer, nor what anybody has in common with it.
    """
    deals(SENDER, contradicting)
    played = play(make(name, DEVICES, 8), dropouts=dropouts)
    there = played.taking_part("masked_input")
    is_expelled(played, survivors=[id for id in there if id != SENDER])
    assert {} == played.sent("pairs")


@pytest.mark.parametrize("name", SECURE)
def test_of_two_dealers_of_contradicting_shares_both_are_expelled_while_t_are_left(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of seven, with t = 4, three can be; with four the round ends, before anybody masks."""
    dealt = sharing.deal

    def let(dealers: set[int]) -> Played:
        calls = itertools.count()

        def deal(*arguments: Any) -> NDArray[np.uint32]:
            shares = dealt(*arguments)
            return contradicting(shares) if next(calls) % 7 in dealers else shares

        monkeypatch.setattr(sharing, "deal", deal)
        return play(make(name, 7, 8))

    for dealers in ({1, 5}, {1, 2, 5}):
        played = let(dealers)
        assert dealers == {*played.kept_out} == {*played.left}
        for id in dealers:
            assert_named(played.kept_out[id], "share_keys", f"device {id}", EXPELLED)
        goes_on(played, [id for id in range(7) if id not in dealers])
    with pytest.raises(BelowThresholdError) as caught:
        let({1, 2, 4, 5})
    assert "round 0 cannot end: 3 of 7 devices" in str(caught.value)
    assert "at least 4 are needed" in str(caught.value)


@pytest.mark.parametrize("limb", [0, KEY_SHARE - 1, KEY_SHARE, KEY_SHARE + SEED_SHARE - 1])
@pytest.mark.parametrize("name", SECURE)
def test_one_wrong_share_of_a_dealer_is_found_before_anything_is_unmasked(
    name: str, limb: int, deals: Callable[..., None]
) -> None:
    """With t + 2 holders it is clear which; four right ones are left of the other secrets."""
    deals(SENDER, lambda shares: wrong_at(shares, 1, limb))
    played = play(make(name, DEVICES, 8))
    slow = SlowRound(played)
    holder = slow.holders(SENDER)[1]
    assert ({}, {}) == (played.kept_out, played.left)
    goes_on(played, [0, 1, 2, 3, 4])
    wrong = {
        (id, one)
        for id, values in played.server._seed_shares.items()
        for one, value in zip(slow.holders(id), values, strict=True)
        if (value == ABSENT).all()
    }
    assert {(holder, SENDER)} == wrong


@pytest.mark.parametrize("value", [Q, Q + 1, 2**32 - 1])
@pytest.mark.parametrize("name", SECURE)
def test_shares_that_are_no_field_elements_are_missing_shares(
    name: str, value: int, deals: Callable[..., None]
) -> None:
    def of_all(shares: NDArray[np.uint32]) -> NDArray[np.uint32]:
        shares[:, -1] = value
        return shares

    deals(SENDER, of_all)
    played = play(make(name, DEVICES, 8))
    is_expelled(played, survivors=[0, 1, 2, 4])
    for id in (0, 1, 2, 4):
        (error,) = played.devices[id].ignored
        assert_named(error, "share_keys", "device 3", "a share is no field element")


@pytest.mark.parametrize("name", SECURE)
def test_a_wrong_mask_key_of_a_vanished_device_is_made_up_for_by_secrets_of_pairs(
    name: str, deals: Callable[..., None]
) -> None:
    """Its shares lie on a polynomial, of another key than it advertised."""
    wrong = insecure_secrets(9, 9, 9)(32)
    deals(1, lambda shares: shares, private=wrong)
    played = play(make(name, DEVICES, 8), dropouts={1: "masked_input"})
    assert ({}, {}) == (played.kept_out, played.left)
    goes_on(played, [0, 2, 3, 4])
    # What each told is what it has masked with device 1 with, and not what their keys agree on.
    assert [0, 2, 3, 4] == list(played.sent("pairs"))
    for id, told in played.sent("pairs").items():
        assert pair_secret(played, id, 1) == told


@pytest.mark.parametrize("name", SECURE)
def test_a_wrong_mask_key_and_another_device_that_vanishes_later_end_a_round(
    name: str, deals: Callable[..., None]
) -> None:
    """What one device can still do: the masks of those two nobody can tell."""
    deals(1, lambda shares: shares, private=insecure_secrets(9, 9, 9)(32))
    with pytest.raises(BelowThresholdError) as caught:
        play(make(name, DEVICES, 8), dropouts={1: "masked_input", 4: "unmask"})
    assert (
        "round 0 cannot end: the mask key of device 1 cannot be reconstructed, and device 4 did "
        "not tell what they have in common"
    ) == str(caught.value)


@pytest.mark.parametrize("limb", [MASK_KEY_LIMBS - 1, 0])
@pytest.mark.parametrize("name", SECURE)
def test_a_mask_key_that_is_no_string_of_32_bytes_is_made_up_for_as_well(
    name: str, limb: int, deals: Callable[..., None]
) -> None:
    """A constant that is added to all shares of a limb is added to the limb."""

    def change(shares: NDArray[np.uint32]) -> NDArray[np.uint32]:
        shares[:, limb] = ((shares[:, limb].astype(np.uint64) + 2**31) % Q).astype(np.uint32)
        return shares

    deals(1, change)
    played = play(make(name, DEVICES, 8), dropouts={1: "masked_input"})
    assert ({}, {}) == (played.kept_out, played.left)
    goes_on(played, [0, 2, 3, 4])
    assert 4 == len(played.sent("pairs"))


@pytest.mark.parametrize("name", SECURE)
def test_pairs_are_not_asked_for_where_mask_keys_are_right(name: str) -> None:
    played = play(make(name, DEVICES, 8), dropouts={1: "masked_input"})
    assert {} == played.sent("pairs")
    phases = played.protocol.phases()
    # The request and the answer of the only gather, and no more.
    assert [1] * 4 == played.record.messages_up[phases.index("unmask"), [0, 2, 3, 4]].tolist()


@pytest.mark.parametrize("name", SECURE)
def test_a_seed_that_is_no_string_of_16_bytes_costs_its_dealer(
    name: str, deals: Callable[..., None]
) -> None:
    """Its upload is in the sum, under a mask of its own making: it could have sent anything."""

    def change(shares: NDArray[np.uint32]) -> NDArray[np.uint32]:
        shares[:, KEY_SHARE] = ((shares[:, KEY_SHARE].astype(np.uint64) + 2**31) % Q).astype("u4")
        return shares

    deals(SENDER, change)
    played = play(make(name, DEVICES, 8))
    assert list(range(DEVICES)) == played.server.survivors
    assert {} == played.left
    assert [SENDER] == list(played.kept_out)
    assert_named(
        played.kept_out[SENDER], "unmask", "device 3", "the shares do not combine to a secret"
    )
    # Where it sent nothing, the sum is right.
    others = np.ones(8, np.bool_)
    others[sent_by(played, SENDER)] = False
    assert (sum_of(played, range(DEVICES)) == played.server.total)[others].all()


# answers, and shares that do not fit them


def change_gathered(name: str, step: str, change: Callable[[Rows], Rows], id: int = 2) -> Change:
    """Return a change of what one device sends to the server in a step."""
    number = [one.name if one.pattern is Pattern.GATHER else "" for one in make(name, 5, 1).steps]
    of = number.index(step)

    def changed(header: Header, message: Rows) -> Rows:
        if (header.step, header.sender) != (of, id):
            return message
        return np.concatenate([message[:16], change(message[16:].copy())])

    return changed


@pytest.mark.parametrize("word", range(5))
@pytest.mark.parametrize("name", SECURE)
def test_a_holder_that_sends_another_share_than_it_answered_for_is_refused_by_name(
    name: str, word: int
) -> None:
    """Any word of any share; of survivors' seeds, and of the mask key of device 4 behind them."""
    places = [0, SEED_SHARE - 1, SEED_SHARE * 4 - 1, SEED_SHARE * 4, SEED_SHARE * 4 + KEY_SHARE - 1]

    def move(answer: Rows) -> Rows:
        words = answer.view("<u4").copy()
        words[places[word]] = (int(words[places[word]]) + 2**20) % Q
        return words.view(np.uint8)

    played = play(
        make(name, DEVICES, 8),
        dropouts={4: "masked_input"},
        change=change_gathered(name, "unmask", move),
    )
    assert {} == played.left
    assert [VICTIM] == list(played.kept_out)
    slow = SlowRound(played)
    survivors = [id for id in slow.holders(VICTIM) if id != 4]
    owner = 4 if word > 2 else survivors[0 if word < 2 else 3]
    reason = f"its share of a secret of device {owner} is not what it answered for"
    assert_named(played.kept_out[VICTIM], "unmask", "device 2", reason)
    goes_on(played, [0, 1, 2, 3])


def uniform(answers: Rows) -> Rows:
    """Return answers about all dealers that have nothing to do with any share."""
    words = np.random.default_rng(2).integers(0, Q, answers.size // 4)
    return words.astype("<u4").view(np.uint8)


def all_ones(answers: Rows) -> Rows:
    """Return that no dealer's share came."""
    return np.full_like(answers, 255)


def about(*places: int) -> Callable[[Rows], Rows]:
    """Return a lie about the dealers at some places of the answers."""

    def lie(answers: Rows) -> Rows:
        words = answers.view("<u4").copy().reshape(-1, 2)
        for place in places:
            words[place] = (words[place].astype(np.uint64) + 12345) % Q
        return words.reshape(-1).view(np.uint8)

    return lie


def lied(played: Played) -> None:
    """Assert that a lie of device 2 cost nobody else: its shares do not fit what it answered."""
    assert {} == played.left
    assert [VICTIM] == list(played.kept_out)
    assert_named(played.kept_out[VICTIM], "unmask", "device 2", "is not what it answered for")
    assert {} == played.sent("pairs")


@pytest.mark.parametrize("place", range(DEVICES))
@pytest.mark.parametrize("name", SECURE)
def test_a_wrong_answer_makes_the_holders_share_useless_and_no_dealer_suspect(
    name: str, place: int
) -> None:
    """One wrong answer among five is found, about itself too; the holder's other shares count."""
    played = play(make(name, DEVICES, 8), change=change_gathered(name, "checks", about(place)))
    goes_on(played, [0, 1, 2, 3, 4])
    # The share does not fit the answer that it gave for it.
    lied(played)


@pytest.mark.parametrize("name", SECURE)
def test_a_holder_that_says_that_it_has_no_shares_is_not_believed(name: str) -> None:
    """Everybody stays in the sum, though nothing that it holds is of use."""
    complain = change_gathered(name, "checks", all_ones)
    played = play(make(name, DEVICES, 8), change=complain)
    assert ({}, {}) == (played.kept_out, played.left)
    goes_on(played, [0, 1, 2, 3, 4])
    assert (played.server._seed_shares[VICTIM] == ABSENT).all()


@pytest.mark.parametrize("dropouts", [{}, {4: "unmask"}, {0: "masked_input"}], ids=str)
@pytest.mark.parametrize("lie", [uniform, all_ones])
@pytest.mark.parametrize("name", SECURE)
def test_one_liar_about_all_dealers_costs_at_most_itself_where_t_and_two_more_answer(
    name: str, lie: Callable[[Rows], Rows], dropouts: dict[int, str]
) -> None:
    """Five answers, t = 3. Who vanishes after them vanishes as if nobody had lied."""
    change = change_gathered(name, "checks", lie)
    played = play(make(name, DEVICES, 8), change=change, dropouts=dropouts)
    assert DEVICES == len(played.sent("checks")) == played.protocol.topology.threshold + 2
    goes_on(played, played.taking_part("masked_input"))
    if lie is uniform:
        lied(played)
    else:
        # Its own word makes its shares useless, and it has sent no wrong one.
        assert ({}, {}) == (played.kept_out, played.left)
    for holder, shares in played.server._seed_shares.items():
        assert (holder == VICTIM) == bool((shares == ABSENT).any())


@pytest.mark.parametrize("lie", [uniform, all_ones])
@pytest.mark.parametrize("name", SECURE)
def test_one_liar_among_the_seven_answers_that_are_left_of_nine_costs_at_most_itself(
    name: str, lie: Callable[[Rows], Rows]
) -> None:
    """Two are gone before anything is shared, and t = 5."""
    gone = {0: "advertise_keys", 7: "share_keys"}
    change = change_gathered(name, "checks", lie)
    played = play(make(name, 9, 8), change=change, dropouts=gone)
    assert 7 == len(played.sent("checks")) == played.protocol.topology.threshold + 2
    goes_on(played, [1, 2, 3, 4, 5, 6, 8])
    assert [VICTIM][lie is all_ones :] == list(played.kept_out)
    assert {} == played.left


@pytest.mark.parametrize("lies", [uniform, about(0)], ids=["all", "one"])
@pytest.mark.parametrize("name", SECURE)
def test_with_one_answer_less_a_liar_ends_the_round_and_nobody_is_expelled(
    name: str, lies: Callable[[Rows], Rows]
) -> None:
    """Of t + 1 answers any t fit, and nobody can tell whether dealer or holder is wrong.

    The round ends before anybody has masked anything.
    """
    uploads = []

    def change(header: Header, message: Rows) -> Rows:
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


@pytest.mark.parametrize("name", SECURE)
def test_with_one_answer_less_who_says_that_it_has_no_shares_is_still_not_believed(
    name: str,
) -> None:
    """The t others fit, as any t do, and one holder without a share expels nobody."""
    change, dropouts = change_gathered(name, "checks", all_ones), {4: "share_keys"}
    played = play(make(name, DEVICES, 8), change=change, dropouts=dropouts)
    assert ({}, {}) == (played.kept_out, played.left)
    goes_on(played, [0, 1, 2, 3])


@pytest.mark.parametrize("name", SECURE)
def test_a_holder_whose_answers_are_lost_costs_nobody_anything(name: str) -> None:
    """Its vector is in the sum. What it has of others is of no use, as it has not answered."""
    lose = change_gathered(name, "checks", lambda answers: answers)

    def change(header: Header, message: Rows) -> Rows:
        return message[:0] if lose(header, message) is not message else message

    played = play(make(name, DEVICES, 8), change=change)
    assert ({}, {}) == (played.kept_out, played.left)
    goes_on(played, [0, 1, 2, 3, 4])
    assert (played.server._seed_shares[VICTIM] == ABSENT).all()


@pytest.mark.parametrize("place", range(DEVICES))
@pytest.mark.parametrize("wrong", range(DEVICES))
@pytest.mark.parametrize("name", SECURE)
def test_a_dealer_of_a_wrong_share_that_lies_about_another_dealer_costs_nobody_else(
    name: str, wrong: int, place: int, deals: Callable[..., None]
) -> None:
    """Whom it gives the wrong share, and whom it lies about: the same, another one, or itself."""
    deals(SENDER, lambda shares: wrong_at(shares, wrong))
    lie = change_gathered(name, "checks", about(place), SENDER)
    played = play(make(name, DEVICES, 8), change=lie)
    holders = SlowRound(played).holders(SENDER)
    if holders[place] == SENDER != holders[wrong]:
        # Two holders of its own have no right share: the one that it wronged, and itself.
        is_expelled(played, survivors=[0, 1, 2, 4])
        return
    assert {} == played.left
    assert [SENDER] == list(played.kept_out)
    reason = "is not what it answered for"
    assert_named(played.kept_out[SENDER], "unmask", "device 3", reason)
    goes_on(played, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("silent", [0, 6])
@pytest.mark.parametrize("name", SECURE)
def test_it_costs_nobody_else_either_if_an_honest_device_vanishes_as_planned(
    name: str, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven devices, t = 4, of whom six answer in the end; whomever it wrongs and frames."""
    dealt, calls = sharing.deal, itertools.count()
    wrong = 0

    def deal(*arguments: Any) -> NDArray[np.uint32]:
        shares = dealt(*arguments)
        return wrong_at(shares, wrong) if next(calls) % 7 == SENDER else shares

    monkeypatch.setattr(sharing, "deal", deal)
    for wrong, place in itertools.product(range(7), repeat=2):  # noqa: B007
        lie = change_gathered(name, "checks", about(place), SENDER)
        played = play(make(name, 7, 8), change=lie, dropouts={silent: "unmask"})
        assert {*played.kept_out} == {SENDER}
        assert {*played.left} <= {SENDER}
        goes_on(played, [id for id in range(7) if id not in played.left])


@pytest.mark.parametrize("size", [0, 4, -1, -8])
@pytest.mark.parametrize("name", SECURE)
def test_answers_of_another_size_cost_their_holder_the_round(name: str, size: int) -> None:
    change = change_gathered(name, "checks", lambda answers: answers[:size])
    played = play(make(name, DEVICES, 8), change=change)
    nobody_else_left(played, VICTIM)
    assert_named(played.kept_out[VICTIM], "share_keys", "device 2", "40 were expected")
    goes_on(played, [0, 1, 3, 4])


@pytest.mark.parametrize("name", SECURE)
def test_answers_that_are_no_field_elements_cost_their_holder_the_round(name: str) -> None:
    def beyond(answers: Rows) -> Rows:
        return np.concatenate([answers[:-4], raw(Q.to_bytes(4, "little"))])

    played = play(make(name, DEVICES, 8), change=change_gathered(name, "checks", beyond))
    nobody_else_left(played, VICTIM)
    reason = "a share is not a field element"
    assert_named(played.kept_out[VICTIM], "share_keys", "device 2", reason)
    goes_on(played, [0, 1, 3, 4])


def test_the_server_takes_answers_of_those_that_shared_keys_and_once() -> None:
    played = play(
        make("secagg", DEVICES, 8),
        dropouts={4: "share_keys"},
        before=("share_keys", Pattern.GATHER),
    )
    answers = played.devices[2].send_checks()
    for sender in (4, 5):
        refused_in(
            "share_keys",
            f"device {sender}",
            "it shared no keys",
            lambda sender=sender: played.server.receive_checks(sender, answers),
        )
    played.server.receive_checks(2, answers)
    refused_in(
        "share_keys",
        "device 2",
        "it came twice",
        lambda: played.server.receive_checks(2, answers),
    )


# envelopes


def phase_of(protocol: Any, header: Header) -> tuple[str, Pattern | None]:
    """Return the phase and pattern of a message; a refusal is of none."""
    if header.step >= len(protocol.steps):
        return "", None
    return protocol.steps[header.step].phase, protocol.steps[header.step].pattern


@pytest.mark.parametrize("field", ["version", "step", "reserved", "round", "sender", "receiver"])
@pytest.mark.parametrize("phase", ["advertise_keys", "masked_input", "unmask"])
@pytest.mark.parametrize("name", SECURE)
def test_the_server_refuses_a_message_with_a_wrong_envelope(
    name: str, phase: str, field: str
) -> None:
    protocol = make(name, DEVICES, 8)

    def change(header: Header, message: Rows) -> Rows:
        if phase_of(protocol, header)[0] == phase and header.sender == 3:
            message = message.copy()
            message[OFFSETS[field]] ^= 1
        return message

    played = play(protocol, change=change)
    assert 3 == next(iter(played.kept_out))
    assert_named(played.kept_out[3], phase, "device 3", f"its {field} is")
    goes_on(played, [id for id in range(DEVICES) if id != 3 or phase == "unmask"])


@pytest.mark.parametrize("phase", ["model", "advertise_keys", "unmask"])
@pytest.mark.parametrize("name", SECURE)
def test_a_device_refuses_a_message_of_the_server_of_another_round(name: str, phase: str) -> None:
    protocol = make(name, DEVICES, 8)

    def change(header: Header, message: Rows) -> Rows:
        told = (Pattern.BROADCAST, Pattern.SCATTER)
        if phase_of(protocol, header) in [(phase, pattern) for pattern in told]:
            message = message.copy()
            message[4] ^= 1
        return message

    with pytest.raises(BelowThresholdError) as caught:
        play(protocol, change=change)
    assert_named(caught.value, phase, "the server", "its round is 1, expected 0 (and 4 more)")


@pytest.mark.parametrize("name", SECURE)
def test_a_message_without_room_for_an_envelope_is_refused(name: str) -> None:
    def change(header: Header, message: Rows) -> Rows:
        return message[:15] if header.sender == 3 and header.step == 1 else message

    played = play(make(name, DEVICES, 8), change=change)
    assert_named(played.kept_out[3], "advertise_keys", "device 3", "15 bytes hold no envelope")
    goes_on(played, [0, 1, 2, 4])


@pytest.mark.parametrize("phase", ["advertise_keys", "masked_input", "unmask"])
@pytest.mark.parametrize("name", SECURE)
def test_of_several_malformed_messages_the_first_is_reported(name: str, phase: str) -> None:
    protocol = make(name, DEVICES, 8)

    def change(header: Header, message: Rows) -> Rows:
        return message[:20] if header.sender in (1, 2, 4) and is_gather(header) else message

    def is_gather(header: Header) -> bool:
        return phase_of(protocol, header) == (phase, Pattern.GATHER)

    with pytest.raises(BelowThresholdError) as caught:
        play(protocol, change=change)
    assert_named(caught.value, phase, "device 1", " (and 2 more)")


# what the server is sent


@pytest.fixture(params=SECURE)
def collecting(request: pytest.FixtureRequest) -> Played:
    """Return a round in which devices 0 to 3 are about to upload; device 4 shared no keys."""
    protocol = make(request.param, DEVICES, 12, alpha=0.9, locations="bitmap")
    return play(protocol, dropouts={4: "share_keys"}, before="masked_input")


@pytest.fixture(params=SECURE)
def unmasking(request: pytest.FixtureRequest) -> Played:
    """Return a round in which devices 0, 2 and 3 are about to answer; 1 uploaded nothing."""
    protocol = make(request.param, DEVICES, 12)
    dropouts = {1: "masked_input", 4: "share_keys"}
    return play(protocol, dropouts=dropouts, before=("unmask", Pattern.GATHER))


def upload_of(played: Played, id: int) -> Rows:
    return played.devices[id].send_masked_input(played.vectors[id])


@pytest.mark.parametrize("name", SECURE)
def test_the_model_has_d_numbers(name: str) -> None:
    device = make(name, DEVICES, 12).device(0, 0, seeded_sources(1)[0])
    for size in (0, 47, 49, 96):
        refused_in(
            "model",
            "the server",
            f"{size} bytes came, 48 were expected",
            lambda size=size: device.receive_model(np.zeros(size, np.uint8)),
        )


@pytest.mark.parametrize("name", SECURE)
def test_the_server_refuses_public_keys_of_another_size(name: str) -> None:
    server = make(name, DEVICES, 12).server(0, np.zeros(12, np.float32))
    for size in (0, 32, 63, 65):
        refused_in(
            "advertise_keys",
            "device 3",
            f"{size} bytes came, 64 were expected",
            lambda size=size: server.receive_advertise_keys(3, np.zeros(size, np.uint8)),
        )


@pytest.mark.parametrize("name", SECURE)
def test_the_server_refuses_shares_of_a_device_without_keys(name: str) -> None:
    played = play(make(name, DEVICES, 12), dropouts={1: "advertise_keys"}, before="share_keys")

    refused_in(
        "share_keys",
        "device 1",
        "it advertised no keys",
        lambda: played.server.receive_share_keys(np.array([0, 1, 2, 3])),
        of=played,
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m[:-1],
        lambda m: m[:-4],
        lambda m: m[:0],
        lambda m: np.append(m, np.zeros(4, np.uint8)),
    ],
)
def test_the_server_refuses_an_upload_of_another_size(collecting: Played, change: Any) -> None:
    upload = change(upload_of(collecting, 2))

    refused_in(
        "masked_input",
        "device 2",
        "",
        lambda: collecting.server.receive_masked_input(2, upload),
        of=collecting,
    )


def test_the_server_refuses_an_upload_of_a_device_that_shared_no_keys(collecting: Played) -> None:
    upload = upload_of(collecting, 2)
    for sender in (4, 5, 2**32 - 1):
        refused_in(
            "masked_input",
            f"device {sender}",
            "it shared no keys",
            lambda sender=sender: collecting.server.receive_masked_input(sender, upload),
            of=collecting,
        )


def test_the_server_refuses_a_second_upload_of_a_device(collecting: Played) -> None:
    upload = upload_of(collecting, 2)
    collecting.server.receive_masked_input(2, upload)

    refused_in(
        "masked_input",
        "device 2",
        "it came twice",
        lambda: collecting.server.receive_masked_input(2, upload),
        of=collecting,
    )


@pytest.mark.parametrize("name", SECURE)
def test_the_server_refuses_second_keys_of_a_device(name: str) -> None:
    server = make(name, DEVICES, 12).server(0, np.zeros(12, np.float32))
    server.receive_advertise_keys(3, raw(bytes(range(64))))

    refused_in(
        "advertise_keys",
        "device 3",
        "it came twice",
        lambda: server.receive_advertise_keys(3, np.ones(64, np.uint8)),
    )


@pytest.mark.parametrize("name", SECURE)
def test_the_server_takes_keys_that_another_device_has_advertised(name: str) -> None:
    """Of a lower or a higher id, for one use or the other: it refuses the keys of nobody."""
    server = make(name, DEVICES, 12).server(0, np.zeros(12, np.float32))
    both = bytes(range(64))
    advertised = {3: both, 4: both, 1: both[32:] + both[:32], 0: both[:32] * 2, 2: both[32:] * 2}
    for id, keys in advertised.items():
        server.receive_advertise_keys(id, raw(keys))
    assert advertised == server._public


# keys that are another device's


def advertised_by_all(name: str) -> dict[int, bytes]:
    return play(make(name, DEVICES, 8), before="share_keys").sent("advertise_keys")


@pytest.mark.parametrize("part", ["transport", "both"])
@pytest.mark.parametrize(("copier", "owner"), [(1, 3), (3, 1), (4, 0)])
@pytest.mark.parametrize("name", SECURE)
def test_who_has_copied_a_transport_key_shares_nothing_and_is_expelled(
    name: str, copier: int, owner: int, part: str
) -> None:
    """Nothing that it seals opens, and it opens nothing; its owner and all others stay."""
    copied = advertised_by_all(name)[owner]
    cut = 32 if part == "transport" else 64
    protocol = advertising(make(name, DEVICES, 8), copier, lambda own: copied[:cut] + own[cut:])
    played = play(protocol)
    is_expelled(played, copier, [id for id in range(DEVICES) if id != copier])
    for id, device in played.devices.items():
        without = {f"device {one}" for one in range(DEVICES) if one != id}
        expected = without if id == copier else {f"device {copier}"}
        assert expected == {error.sender for error in device.ignored}


@pytest.mark.parametrize("dropouts", [{}, {2: "masked_input"}], ids=str)
@pytest.mark.parametrize(("copier", "owner"), [(1, 3), (3, 1), (4, 0)])
@pytest.mark.parametrize("name", SECURE)
def test_who_has_copied_a_mask_key_makes_nobody_leave(
    name: str, copier: int, owner: int, dropouts: dict[int, str]
) -> None:
    """It does not know the masks that others add for it: its vector is whatever it is."""
    copied = advertised_by_all(name)[owner][32:]
    protocol = advertising(make(name, DEVICES, 8), copier, lambda own: own[:32] + copied)
    played = play(protocol, dropouts=dropouts)
    assert ({}, {}) == (played.kept_out, played.left)
    assert_uses_all_shares(played)
    assert played.taking_part("masked_input") == played.server.survivors


@pytest.mark.parametrize(("copier", "owner"), [(1, 3), (3, 1), (4, 0)])
@pytest.mark.parametrize("name", SECURE)
def test_the_sum_without_a_device_that_has_copied_a_mask_key_is_right(
    name: str, copier: int, owner: int
) -> None:
    """It vanishes, and its shares do not give the key: all tell what they masked with it."""
    copied = advertised_by_all(name)[owner][32:]
    protocol = advertising(make(name, DEVICES, 8), copier, lambda own: own[:32] + copied)
    played = play(protocol, dropouts={copier: "masked_input"})
    assert ({}, {}) == (played.kept_out, played.left)
    others = [id for id in range(DEVICES) if id != copier]
    goes_on(played, others)
    assert others == list(played.sent("pairs"))
    for id, told in played.sent("pairs").items():
        assert pair_secret(played, id, copier, copied) == told


@pytest.mark.parametrize("name", SECURE)
def test_a_device_with_one_key_for_both_uses_is_like_any_other(name: str) -> None:
    played = play(advertising(make(name, DEVICES, 8), SENDER, lambda own: own[:32] * 2))
    assert ({}, {}) == (played.kept_out, played.left)
    assert_uses_all_shares(played)
    assert [0, 1, 2, 3, 4] == played.server.survivors


def test_the_server_refuses_a_second_answer_of_a_device(unmasking: Played) -> None:
    answer = unmasking.devices[2].send_unmask()
    unmasking.server.receive_unmask(2, answer)

    refused_in(
        "unmask",
        "device 2",
        "it came twice",
        lambda: unmasking.server.receive_unmask(2, answer),
        of=unmasking,
    )


@pytest.mark.parametrize(
    ("total", "reason"),
    [(np.zeros(1, np.uint32), "shape"), (np.full(4, Q, np.uint32), "no group element")],
)
def test_the_server_refuses_a_sum_of_another_form(total: np.ndarray, reason: str) -> None:
    played = play(make("secagg", DEVICES, 4), before="masked_input")

    refused_in(
        "masked_input",
        "the devices",
        reason,
        lambda: played.server.receive_sum_masked_input([0, 1, 2, 3], total),
        of=played,
    )


def test_the_server_refuses_a_sum_with_a_device_that_shared_no_keys() -> None:
    played = play(make("secagg", DEVICES, 4), dropouts={4: "share_keys"}, before="masked_input")

    refused_in(
        "masked_input",
        "device 4",
        "it shared no keys",
        lambda: played.server.receive_sum_masked_input([0, 1, 2, 4], np.zeros(4, np.uint32)),
        of=played,
    )
    assert [] == played.server.survivors


@pytest.mark.parametrize("value", [Q, Q + 1, 2**32 - 1])
def test_the_server_refuses_a_value_that_is_no_field_element(
    collecting: Played, value: int
) -> None:
    upload = upload_of(collecting, 2).copy()
    upload[-4:] = raw(value.to_bytes(4, "little"))

    refused_in(
        "masked_input",
        "device 2",
        "a value is no group element",
        lambda: collecting.server.receive_masked_input(2, upload),
        of=collecting,
    )


@pytest.mark.parametrize("name", SECURE)
def test_every_word_is_an_element_of_the_ring(name: str) -> None:
    played = play(make(name, 3, 12, alpha=0.9, group="ring32"), before="masked_input")
    upload = upload_of(played, 2).copy()
    upload[-4:] = 255

    played.server.receive_masked_input(2, upload)
    assert [2] == played.server.survivors


def sparse_upload(body: bytes, values: int) -> Rows:
    return np.concatenate([raw(body), np.zeros(4 * values, np.uint8)])


@pytest.mark.parametrize(
    "upload",
    [
        pytest.param(sparse_upload(b"\0\0\0\0\1\0\0\0" + b"\0\x08", 1), id="bitmap"),
        # One gap of 12, in unary: twelve zeros and a one; then the same with a Rice parameter.
        pytest.param(sparse_upload(b"\1\0\0\0\1\0\0\0" + b"\0\x08", 1), id="gaps"),
        pytest.param(sparse_upload(b"\1\2\0\0\1\0\0\0" + b"\x10", 1), id="gaps-rice"),
    ],
)
def test_the_server_refuses_a_location_beyond_the_last_coordinate(upload: Rows) -> None:
    played = play(make("sparse", DEVICES, 12), before="masked_input")

    refused_in(
        "masked_input",
        "device 2",
        "",
        lambda: played.server.receive_masked_input(2, upload),
        of=played,
    )
    # One coordinate less is the last one.
    played.server.receive_masked_input(1, sparse_upload(b"\0\0\0\0\1\0\0\0" + b"\0\x10", 1))


@pytest.mark.parametrize(
    "upload",
    [
        pytest.param(sparse_upload(b"\2\0\0\0\0\0\0\0\0\0", 0), id="unknown coding"),
        pytest.param(sparse_upload(b"\0\0\1\0\0\0\0\0\0\0", 0), id="reserved bytes"),
        pytest.param(sparse_upload(b"\0\0\0\0\2\0\0\0\x80\0", 2), id="fewer bits than announced"),
        pytest.param(sparse_upload(b"\0\0\0\0\1\0\0\0\xc0\0", 1), id="more bits than announced"),
        pytest.param(sparse_upload(b"\0\0\0\0\x0d\0\0\0\xff\xf8", 13), id="more than d"),
        pytest.param(sparse_upload(b"\1\0\0\0\2\0\0\0\x80", 0), id="fewer gaps than announced"),
        pytest.param(sparse_upload(b"\0\0\0\0", 0), id="no header"),
    ],
)
def test_the_server_refuses_locations_that_no_device_writes(upload: Rows) -> None:
    played = play(make("sparse", DEVICES, 12), before="masked_input")

    refused_in(
        "masked_input",
        "device 2",
        "",
        lambda: played.server.receive_masked_input(2, upload),
        of=played,
    )


def test_the_server_refuses_shares_of_a_device_that_is_no_survivor(unmasking: Played) -> None:
    reply = unmasking.devices[2].send_unmask()
    for sender in (1, 4, 5):
        refused_in(
            "unmask",
            f"device {sender}",
            "it is no survivor",
            lambda sender=sender: unmasking.server.receive_unmask(sender, reply),
            of=unmasking,
        )


@pytest.mark.parametrize("size", [0, 4, -1, -4])
def test_the_server_refuses_a_reply_of_another_size(unmasking: Played, size: int) -> None:
    reply = unmasking.devices[2].send_unmask()[:size]

    refused_in(
        "unmask",
        "device 2",
        "bytes came",
        lambda: unmasking.server.receive_unmask(2, reply),
        of=unmasking,
    )


def test_the_server_refuses_a_share_that_is_no_field_element(unmasking: Played) -> None:
    reply = unmasking.devices[2].send_unmask().copy()
    reply[:4] = raw(Q.to_bytes(4, "little"))

    refused_in(
        "unmask",
        "device 2",
        "a share is not a field element",
        lambda: unmasking.server.receive_unmask(2, reply),
        of=unmasking,
    )


def finish_with(played: Played, change: Callable[[NDArray[np.uint32]], None]) -> None:
    """Let the survivors answer, device 2 with changed shares; take off the masks."""
    for id in (0, 2, 3):
        shares = played.devices[id].send_unmask().view("<u4").copy()
        if id == 2:
            change(shares)
        played.server.receive_unmask(id, shares.view(np.uint8))
    played.server.finish_unmask()


@pytest.mark.parametrize("word", range(3 * SEED_SHARE + KEY_SHARE))
def test_the_last_share_that_is_needed_is_checked_too(unmasking: Played, word: int) -> None:
    """Three shares of three are consistent whatever they are: what tells is the holder's answer."""

    def move(shares: NDArray[np.uint32]) -> None:
        shares[word] = (int(shares[word]) + 1) % Q

    refused_in(
        "unmask",
        "device 2",
        "is not what it answered for",
        lambda: finish_with(unmasking, move),
        of=unmasking,
    )


def test_unaltered_shares_combine(unmasking: Played) -> None:
    finish_with(unmasking, lambda shares: None)
    unmasking.server.finish_result()

    assert 12 == unmasking.server.total.size
