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


@pytest.mark.parametrize("case", wire.each([*wire.CASES, *wire.WHOLE]))
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


@pytest.mark.parametrize("case", wire.each([*wire.CASES, *wire.WHOLE]))
def test_every_device_can_be_malformed_in_every_gather(case):
    """Whoever it is and whenever: the others end the round, where the protocol lets them."""
    messages, _ = wire.honest(case, 6)
    for target, message in enumerate(messages):
        if message.step.pattern.name != "GATHER" or message.sender not in (0, 3, 5):
            continue
        outcome = wire.fuzzed(case, 6, {}, target, "cut", len(message.sealed) - 1, 0)
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
