"""A round in which any one message is changed ends with the exact sum, or with a sentence."""

import tracemalloc

import fuzzed_wire as wire
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from tiers import seeded

PEAK_BYTES = 32 << 20
numbers = st.integers(0, 10**6)


@st.composite
def dropouts_of(draw, case, devices):
    protocol = wire.protocol(case, devices)
    if not protocol.tolerates_dropouts:
        return {}
    phases = st.sampled_from(protocol.phases()[1:])
    return draw(st.dictionaries(st.integers(0, devices - 1), phases, max_size=2))


@pytest.mark.parametrize("case", wire.each(wire.CASES))
def test_a_changed_message_gives_no_wrong_sum(case):
    ended = set()

    @seeded(25)
    @given(st.data())
    def rounds(data):
        devices = data.draw(st.integers(5, 8))
        dropouts = data.draw(dropouts_of(case, devices))
        kind = data.draw(st.sampled_from(wire.KINDS))
        outcome = wire.fuzzed(
            *(case, devices, dropouts, data.draw(numbers), kind),
            *(data.draw(numbers), data.draw(numbers)),
        )
        event(outcome.kind)
        ended.add(outcome.kind)
        assert "wrong" != outcome.kind, (outcome.wire.target, outcome.differing())
        if outcome.error is None:
            planned = {
                id for id in range(devices) if not dropped_before_upload(case, dropouts.get(id))
            }
            assert {*outcome.server.survivors} <= planned
            # Whose message was taken away has dropped out, and was not refused.
            silent = {outcome.wire.target.sender} if outcome.wire.delivered == b"" else set()
            assert planned - {*outcome.server.survivors} <= {*outcome.refused} | silent

    rounds()
    assert "exact" in ended


def dropped_before_upload(case, phase):
    protocol = wire.protocol(case, 5)
    phases = protocol.phases()
    return phase is not None and phases.index(phase) <= phases.index(protocol.upload_phase())


@pytest.mark.parametrize("case", ["fedavg", "secagg", "sparse-gaps", "cohort"])
@pytest.mark.parametrize("kind", ["huge", pytest.param("word", marks=pytest.mark.full)])
def test_a_changed_message_takes_no_memory(case, kind):
    messages, _ = wire.honest(case, 5)
    tracemalloc.start()
    try:
        for target in range(0, len(messages), 3):
            # Every word of the envelope and the next ones in turn, all of them as large as can be.
            wire.fuzzed(case, 5, {}, target, kind, target, len(wire.BOUNDARIES) - 1)
        assert tracemalloc.get_traced_memory()[1] < PEAK_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("case", wire.each(wire.CASES))
def test_every_device_can_be_malformed_in_every_gather(case):
    """Whoever it is and whenever: the others end the round, where the protocol lets them."""
    messages, _ = wire.honest(case, 6)
    for target, message in enumerate(messages):
        if message.step.pattern.name != "GATHER" or message.sender not in (0, 3, 5):
            continue
        # Not by a number of bytes: ciphertexts are of another size each time.
        outcome = wire.play(case, 6, target=target, change=lambda sent: sent.sealed[:-1])
        if not wire.protocol(case, 6).tolerates_dropouts:
            assert f"device {message.sender}" in str(outcome.error)
            continue
        if message.step.name == "shared_key":
            # Without the key that one device makes for all, nobody can take part.
            assert "it has not enrolled" in str(outcome.error)
            continue
        assert "exact" == outcome.kind, outcome.error
        assert [message.sender] == list(outcome.refused)
        if message.enrolment:
            # It has not enrolled, and takes no part in the round that follows.
            words = str(outcome.refused[message.sender])
            assert f"device {message.sender} refuses" in words
            assert words.endswith("it has not enrolled")
            assert [id for id in range(6) if id != message.sender] == outcome.server.survivors
            continue
        assert f"malformed {message.step.phase} message from device {message.sender}: " in str(
            outcome.refused[message.sender]
        )
        steps = wire.protocol(case, 6).steps
        upload = next(number for number, step in enumerate(steps) if step.upload)
        after = next(n for n, step in enumerate(steps) if step == message.step) > upload
        assert (message.sender in outcome.server.survivors) == after


# What a helper sends in the place of a message, of this round and of the same of the last round.
HELPERS_LIES = {
    "cut off": (lambda sent, last: sent[:-1], "received"),
    "too long": (lambda sent, last: sent + b"\0", "received"),
    "nothing": (lambda sent, last: b"", None),
    "of the last round": (lambda sent, last: last, "its round is"),
    "of another helper": (
        lambda sent, last: sent[:8] + bytes([sent[8] ^ 1]) + sent[9:],
        "its sender",
    ),
    "of a device": (
        lambda sent, last: sent[:8] + bytes(4) + sent[12:],
        "its sender is 0, expected",
    ),
}


def helpers_messages(case, index=3):
    """Return a round's messages of helpers, by their number among all."""
    found = wire.play(case, 6, index=index).wire.messages
    return {n: one for n, one in enumerate(found) if wire.HELPERS <= one.sender < wire.HELPERS + 64}


@pytest.mark.parametrize("case", wire.each(wire.HELPED))
@pytest.mark.parametrize("lie", HELPERS_LIES)
def test_a_malformed_message_of_a_helper_costs_it_or_ends_the_round_in_its_name(case, lie):
    change, words = HELPERS_LIES[lie]
    messages, last = helpers_messages(case), helpers_messages(case, index=2)
    assert {True, False} == {one.enrolment for one in messages.values()}
    for target, sent in messages.items():
        # All enrol once.
        if lie == "of the last round" and sent.enrolment:
            continue
        lied = change(sent.sealed, last[target].sealed)
        outcome = wire.play(case, 6, target=target, change=lambda message, lied=lied: lied)
        number = sent.sender - wire.HELPERS
        refused = f"malformed {sent.step.phase} message from helper {number}: "
        if sent.step.name == "ready":
            # Before devices mask the round can do without it. That it sent nothing is no lie, but
            # to answer afterwards is.
            assert "exact" == outcome.kind, outcome.error
            late = f"malformed unmask message from helper {number}: its masks are in no vector"
            assert str(outcome.refused[6 + number]).startswith(refused if words else late)
            continue
        assert f"cannot end: helper {number} " in str(outcome.error)
        assert words is None or refused + words in str(outcome.error)


@pytest.mark.parametrize("case", wire.each(wire.HELPED))
def test_what_a_helper_told_in_the_last_round_is_taken_for_its_masks_of_this_one(case):
    """In an envelope of this round nobody can tell: docs/security.md says so."""
    last = helpers_messages(case, index=2)
    told = {target: one for target, one in last.items() if one.step.name == "unmask"}
    assert told
    for target, one in told.items():
        body = one.sealed[wire.ENVELOPE :]
        outcome = wire.play(
            case, 6, target=target, change=lambda m, body=body: m.sealed[: wire.ENVELOPE] + body
        )
        assert "own choice" == outcome.kind
        assert outcome.differing().size


@pytest.mark.parametrize("case", wire.each(wire.HELPED))
@pytest.mark.parametrize(
    ("key", "words"),
    [
        (bytes(32), "a public key has low order"),
        ((1).to_bytes(32, "little"), "a public key has low order"),
        (None, "it is another helper's public key"),
    ],
    ids=["zeros", "low order", "copied"],
)
def test_a_helper_whose_key_is_of_no_use_ends_the_enrolment_and_is_named(case, key, words):
    """Passed on, it would have every device refuse, for a reason that nobody is told."""
    offers = {n: one for n, one in helpers_messages(case).items() if one.enrolment}
    first, *_, last = offers
    name = f"helper {offers[last].sender - wire.HELPERS}"
    key = offers[first].sealed[wire.ENVELOPE :] if key is None else key
    outcome = wire.play(
        case, 6, target=last, change=lambda message: message.sealed[: wire.ENVELOPE] + key
    )
    assert (
        f"the enrolment cannot end: {name} sent no public key; refused: "
        f"malformed advertise_keys message from {name}: {words}"
    ) == str(outcome.error)
