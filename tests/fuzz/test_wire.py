"""A round in which one party lies ends with the exact sum, or with a sentence that names it."""

import fuzzed_wire as wire
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from tiers import seeded

numbers = st.integers(0, 10**6)


@pytest.mark.parametrize("case", wire.CASES)
def test_a_changed_message_gives_no_wrong_sum(case):
    ended = set()
    phases = wire.protocol(case, 5).phases()
    before = phases[: phases.index(wire.protocol(case, 5).upload_phase()) + 1]

    @seeded(25)
    @given(st.data())
    def rounds(data):
        devices = data.draw(st.integers(5, 8))
        gone = st.dictionaries(st.integers(0, devices - 1), st.sampled_from(phases[1:]), max_size=2)
        dropouts = data.draw(gone)
        outcome = wire.fuzzed(
            *(case, devices, dropouts, data.draw(numbers), data.draw(st.sampled_from(wire.KINDS))),
            *(data.draw(numbers), data.draw(numbers)),
        )
        event(outcome.kind)
        ended.add(outcome.kind)
        assert outcome.kind != "wrong", (outcome.wire.target, outcome.differing())
        if outcome.error is None:
            played = outcome.played
            planned = {id for id in range(devices) if dropouts.get(id) not in before}
            assert {*played.server.survivors} <= planned
            # Whose message was taken away has dropped out, and was not refused.
            silent = {outcome.wire.target.sender} if outcome.wire.delivered == b"" else set()
            assert planned - {*played.server.survivors} <= {*played.kept_out} | silent

    rounds()
    assert "exact" in ended


def helpers_messages():
    """Return a round's messages of helpers, by their number among all."""
    found = wire.play("assisted", 6).wire.messages
    return {n: one for n, one in enumerate(found) if wire.HELPERS <= one.sender < wire.HELPERS + 64}


@pytest.mark.parametrize(
    "change", [lambda sent: sent[:-1], lambda sent: sent[:8] + bytes([sent[8] ^ 1]) + sent[9:]]
)
def test_a_malformed_message_of_a_helper_costs_it_or_ends_the_round_in_its_name(change):
    messages = helpers_messages()
    assert {True, False} == {one.enrolment for one in messages.values()}
    for target, sent in messages.items():
        outcome = wire.play("assisted", 6, target=target, change=lambda one: change(one.sealed))
        number = sent.sender - wire.HELPERS
        refused = f"malformed {sent.step.phase} message from helper {number}: "
        if sent.step.name == "ready":  # before devices mask the round can do without it
            assert outcome.kind == "exact", outcome.error
            assert str(outcome.played.kept_out[6 + number]).startswith(refused)
        else:
            assert f"cannot end: helper {number} " in str(outcome.error)
            assert refused in str(outcome.error)


def test_a_helper_whose_key_is_of_no_use_ends_the_enrolment_and_is_named():
    """Passed on, it would have every device refuse, for a reason that nobody is told."""
    offers = {n: one for n, one in helpers_messages().items() if one.enrolment}
    first, *_, last = offers
    name = f"helper {offers[last].sender - wire.HELPERS}"
    for key, words in (
        (bytes(32), "a public key has low order"),
        (offers[first].sealed[wire.ENVELOPE :], "it is another helper's public key"),
    ):
        outcome = wire.play(
            *("assisted", 6),
            target=last,
            change=lambda one, key=key: one.sealed[: wire.ENVELOPE] + key,
        )
        assert f"malformed advertise_keys message from {name}: {words}" in str(outcome.error)
