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
    advertising,
    assert_tells_no_secret,
    expelled_list,
    make,
    pair_secret,
    play,
    raw,
    seeded_sources,
    sent_by,
    sent_by_device,
    sum_of,
)
from slow_reference import ABSENT, KEY_SHARE, MASK_KEY_LIMBS, SEED_SHARE, Q, SlowRound

from hpcfl.algorithms.aggregation import sharing
from hpcfl.comm.phases import Pattern
from hpcfl.crypto.keys import insecure_secrets
from hpcfl.errors import BelowThresholdError, MessageError, RefusedError

DEVICES = 5  # t = 3
VICTIM, SENDER = 2, 3
OTHERS = [0, 1, 2, 4]
OFFSETS = {"version": 0, "step": 1, "reserved": 2, "round": 4, "sender": 8, "receiver": 12}

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


def only_at_fault(played, id, phase, reason):
    """Assert that no device left but the one at fault, whose honest part finds itself left out."""
    assert {*played.left} <= {id}
    assert [id] == list(played.kept_out)
    assert_named(played.kept_out[id], phase, f"device {id}", reason)


def assert_uses_all_shares(played):
    """Assert that no device was without a share."""
    assert [] == [error for device in played.devices.values() for error in device.ignored]


def alternating(cases):
    """Return test parameters with each case on one of the topologies in turn."""
    names = itertools.cycle(LINKED)
    return [pytest.param(next(names), case, id=f"{key}") for key, case in cases.items()]


# rows of shares: device 3 sends them, device 2 is the victim


def play_with_rows(name, change, **options):
    """Play a round in which the rows that device 3 sends in share_keys are changed."""
    protocol = make(name, DEVICES, 8)
    return play(protocol, change=sent_by_device(protocol, "share_keys", SENDER, change), **options)


EXPELLED = "too many holders have no right share of its secrets: it is expelled"


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
    played.goes_on(list(uploads) if survivors is None else survivors)
    # Nobody was asked what it has in common with it.
    assert {} == played.sent("pairs")


def row_to(rows, receiver=VICTIM):
    return Header.receivers_of(rows).tolist().index(receiver)


def does_without(played):
    """Assert that device 2 has no share of device 3's, all others have, and everybody stays."""
    played.nobody_left()
    ignored = {id: device.ignored for id, device in played.devices.items() if device.ignored}
    assert [VICTIM] == list(ignored)
    (error,) = ignored[VICTIM]
    reason = "it does not decrypt"
    assert ("share_keys", f"device {SENDER}", reason) == (error.phase, error.sender, error.reason)
    assert_tells_no_secret(error, played.sources)
    played.goes_on()


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


LOST_ROWS = {
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


@pytest.mark.parametrize(("name", "change"), alternating(LOST_ROWS))
def test_a_row_that_is_not_as_it_was_sent_is_a_missing_share(name, change):
    does_without(play_with_rows(name, change))


def random_bytes(rows, chosen):
    noise = np.random.default_rng(5).integers(0, 256, rows.shape).astype(np.uint8)
    rows[chosen, 16:] = noise[chosen, 16:]
    return rows


def none(rows, chosen):
    return rows[~chosen]


def twice(rows, chosen):
    """Put altered rows behind the right ones: of several the first counts."""
    return np.vstack([rows, random_bytes(rows.copy(), chosen)])


def of_each_other(rows, chosen):
    rows[chosen, 16:] = np.roll(rows, 1, axis=0)[chosen, 16:]
    return rows


@pytest.mark.parametrize("victims", [(4,), (0, 1), (0, 1, 2, 4)])
@pytest.mark.parametrize("spoil", [random_bytes, none, of_each_other, twice])
def test_no_row_of_one_device_makes_another_one_leave(victims, spoil):
    """Whomever it spoils them to: if that are two or more, it is expelled itself."""
    name = LINKED[len(victims) % 2]
    played = play_with_rows(name, lambda rows: spoil(rows, np.isin(rows[:, 12], victims)))
    if spoil is none and len(victims) == 4:
        only_at_fault(played, SENDER, "share_keys", "it shared no keys")
        played.goes_on(OTHERS)
    elif len(victims) > 1 and spoil is not twice:
        is_expelled(played, OTHERS)
    else:
        played.nobody_left()
        # Its upload is used, with the right shares of the others.
        played.goes_on()
        assert not played.server.wants_expelled()
        assert {} == played.sent("pairs")


def test_a_share_of_another_round_or_direction_is_refused_even_if_all_keys_are_the_same():
    """A round's name and both ends go into a share: both directions of a pair have the same key."""

    def sealed(index, sender, receiver):
        other = play(make("cohort", DEVICES, 8), index=index, sources=seeded_sources(DEVICES))
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

        does_without(play_with_rows("cohort", replay))


# what is dealt: rightly sealed, but not what it should be


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


@pytest.mark.parametrize("columns", [slice(0, KEY_SHARE), slice(KEY_SHARE, None)])
@on_both_topologies
def test_a_dealer_of_contradicting_shares_is_out_and_everybody_else_stays(name, columns, deals):
    deals({SENDER}, lambda shares: contradicting(shares, columns))
    is_expelled(play(make(name, DEVICES, 8)), OTHERS)


LIMBS = [0, KEY_SHARE - 1, KEY_SHARE, KEY_SHARE + SEED_SHARE - 1]


@pytest.mark.parametrize(("name", "limb"), alternating({k: k for k in LIMBS}))
def test_one_wrong_share_of_a_dealer_is_found_before_anything_is_unmasked(name, limb, deals):
    """With t + 2 holders it is clear which; four right ones are left of the other secrets."""
    deals({SENDER}, lambda shares: wrong_at(shares, 1, limb))
    played = play(make(name, DEVICES, 8))
    slow = SlowRound(played)
    played.nobody_left()
    played.goes_on()
    wrong = {
        (id, one)
        for id, values in played.server.state.seed_shares.items()
        for one, value in zip(slow.holders(id), values, strict=True)
        if (value == ABSENT).all()
    }
    assert {(slow.holders(SENDER)[1], SENDER)} == wrong


WRONG_KEY = insecure_secrets(9, 9, 9)(32)


@pytest.mark.parametrize(
    ("change", "secrets"),
    [
        # Its shares lie on a polynomial, of another key than it advertised.
        (unchanged, {"private": WRONG_KEY}),
        # The limbs are those of no string of 32 bytes.
        (limb_moved(MASK_KEY_LIMBS - 1), {}),
    ],
    ids=["another key", "last limb"],
)
@with_each_upload
def test_a_wrong_mask_key_of_a_vanished_device_is_made_up_for_by_secrets_of_pairs(
    name, change, secrets, deals
):
    deals({1}, change, **secrets)
    played = play(make(name, DEVICES, 8), dropouts={1: "masked_input"})
    played.nobody_left()
    played.goes_on()
    # What each told is what it has masked with device 1 with, and not what their keys agree on.
    assert [0, 2, 3, 4] == list(played.sent("pairs"))
    for id, told in played.sent("pairs").items():
        assert pair_secret(played, id, 1) == told


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


def play_with(name, exchange, change, id=VICTIM, devices=DEVICES, **options):
    """Play a round in which what one device sends to the server in an exchange is changed."""
    protocol = make(name, devices, 8)
    return play(protocol, change=sent_by_device(protocol, exchange, id, change), **options)


PLACES = [0, SEED_SHARE - 1, SEED_SHARE * 4 - 1, SEED_SHARE * 4, SEED_SHARE * 4 + KEY_SHARE - 1]
NOT_AS_ANSWERED = "is not what it answered for"


@pytest.mark.parametrize(("name", "word"), alternating({k: k for k in range(5)}))
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


@pytest.mark.parametrize(
    ("devices", "dropouts"),
    [
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
    played = play_with(name, "checks", lie, devices=devices, dropouts=dropouts)
    assert len(played.sent("checks")) == played.protocol.topology.threshold + 2
    played.goes_on()
    assert {} == played.left == played.sent("pairs")
    if lie is uniform:
        only_at_fault(played, VICTIM, "unmask", NOT_AS_ANSWERED)
    else:
        # Its own word makes its shares useless, and it has sent no wrong one.
        played.nobody_left()
    for holder, shares in played.server.state.seed_shares.items():
        assert (shares == ABSENT).all() if holder == VICTIM else not (shares == ABSENT).any()


@pytest.mark.parametrize("lie", [uniform, about(0)], ids=["all", "one"])
@on_both_topologies
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


def test_the_server_takes_answers_of_those_that_shared_keys_and_once():
    protocol, before = make("secagg", DEVICES, 8), ("share_keys", Pattern.GATHER)
    played = play(protocol, dropouts={4: "share_keys"}, before=before)
    answers, take = played.devices[2].send_checks(), played.server.receive_checks
    for sender in (4, 5):
        refused_in("share_keys", sender, "it shared no keys", take, sender, answers)
    take(2, answers)
    refused_in("share_keys", 2, "it was received twice", take, 2, answers)


# envelopes


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


def test_the_server_takes_public_keys_of_64_bytes_and_once():
    """None of low order, nor one that is written otherwise than any device would."""
    server = make("cohort", DEVICES, 12).server(0, np.zeros(12, np.float32))
    take = server.receive_advertise_keys
    for number, start in itertools.product(
        (0, 1, 2**255 - 20, 2**255 - 19, 2**255 - 18, 2**256 - 1), (0, 32)
    ):
        keys = bytearray(range(64))
        keys[start : start + 32] = number.to_bytes(32, "little")
        refused_in("advertise_keys", 3, "a public key ", take, 3, raw(bytes(keys)))
    for size in (0, 32, 63, 65):
        reason = f"received {size} bytes, expected 64"
        refused_in("advertise_keys", 3, reason, take, 3, np.zeros(size, np.uint8))
    both = bytes(range(64))
    take(3, raw(both))
    refused_in("advertise_keys", 3, "it was received twice", take, 3, np.ones(64, np.uint8))
    # It refuses the keys of nobody that another device has advertised, for one use or the other.
    copies = {4: both, 1: both[32:] + both[:32], 0: both[:32] * 2, 2: both[32:] * 2}
    for id, keys in copies.items():
        take(id, raw(keys))
    assert {3: both, **copies} == server.state.public


def test_the_server_takes_one_upload_of_the_right_size_of_who_shared_keys(collecting):
    upload, take = upload_of(collecting, 2), collecting.server.receive_masked_input
    for wrong in (upload[:-1], upload[:-4], upload[:0], np.append(upload, np.zeros(4, np.uint8))):
        refused_in("masked_input", 2, "", take, 2, wrong, of=collecting)
    for value in (Q, Q + 1, 2**32 - 1):
        wrong = np.append(upload[:-4], raw(value.to_bytes(4, "little")))
        reason = "a value is not a group element"
        refused_in("masked_input", 2, reason, take, 2, wrong, of=collecting)
    for sender in (4, 5, 2**32 - 1):
        refused_in("masked_input", sender, "it shared no keys", take, sender, upload, of=collecting)
    if collecting.protocol.name == "sparse":
        # A bitmap beyond d = 12, an unknown coding, and more locations than were announced.
        for body in (b"\0\0\0\0\1\0\0\0\0\x08", b"\2" + bytes(9), b"\0\0\0\0\1\0\0\0\xc0\0"):
            refused_in("masked_input", 2, "", take, 2, raw(body + bytes(4)), of=collecting)
    take(2, upload)
    refused_in("masked_input", 2, "it was received twice", take, 2, upload, of=collecting)


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


# A header with the coding, its parameter and the number of locations; these; then the values.
def test_the_server_takes_shares_of_survivors_of_the_right_size_and_once(unmasking):
    reply, take = unmasking.devices[2].send_unmask(), unmasking.server.receive_unmask
    for sender in (1, 4, 5):
        refused_in("unmask", sender, "it is not a survivor", take, sender, reply, of=unmasking)
    for size in (0, 4, -1, -4):
        cut = reply[:size]
        refused_in("unmask", 2, f"received {cut.size} bytes", take, 2, cut, of=unmasking)
    beyond = np.append(raw(Q.to_bytes(4, "little")), reply[4:])
    refused_in("unmask", 2, "a share is not a field element", take, 2, beyond, of=unmasking)
    take(2, reply)
    refused_in("unmask", 2, "it was received twice", take, 2, reply, of=unmasking)


# keys that are another device's


def advertised_by_all(name):
    return play(make(name, DEVICES, 8), before="share_keys").sent("advertise_keys")


@pytest.mark.parametrize("cut", [32, 64], ids=["transport", "both"])
@on_both_topologies
def test_who_has_copied_a_transport_key_shares_nothing_and_is_expelled(name, cut):
    """Nothing that it seals opens, and it opens nothing; its owner and all others stay.

    Who has copied a mask key, or has one key for both uses, makes nobody leave. It does not know
    the masks that others add for it: its vector is whatever it is.
    """
    copied = advertised_by_all(name)[1]
    for change in (lambda own: own[:32] + copied[32:], lambda own: own[:32] * 2):
        played = play(make(name, DEVICES, 8), wrap=advertising(SENDER, change))
        played.nobody_left()
        assert_uses_all_shares(played)
        assert [0, 1, 2, 3, 4] == played.server.survivors

    wrap = advertising(SENDER, lambda own: copied[:cut] + own[cut:])
    played = play(make(name, DEVICES, 8), wrap=wrap)
    is_expelled(played, OTHERS)
    for id, device in played.devices.items():
        without = {f"device {one}" for one in range(DEVICES) if one != id}
        expected = without if id == SENDER else {f"device {SENDER}"}
        assert expected == {error.sender for error in device.ignored}
