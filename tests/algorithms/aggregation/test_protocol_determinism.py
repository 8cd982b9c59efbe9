"""With all randomness fixed, a round is the same to the bit, in whatever order it is played."""

from __future__ import annotations

import numpy as np
import pytest
from protocol_rounds import UPLOADING, make, play, seeded_sources

from hpcfl.comm.phases import Pattern

DROPOUTS = {0: "share_keys", 4: "masked_input", 7: "masked_input", 2: "unmask"}


def by_parties(played):
    found = {
        (m.header.step, m.header.sender, m.header.receiver): m.sealed for m in played.wire.messages
    }
    assert len(found) == len(played.wire.messages)
    return found


@pytest.mark.parametrize(("group", "sampler"), [("fq", "gaps"), ("ring32", "dense")])
@pytest.mark.parametrize("name", UPLOADING)
def test_the_same_secrets_and_seed_give_the_same_messages_to_the_bit(name, group, sampler):
    protocol = make(name, 9, 70, alpha=0.6, group=group, sampler=sampler)
    one, other = play(protocol, dropouts=DROPOUTS), play(protocol, dropouts=DROPOUTS)

    assert [m.sealed for m in one.wire.messages] == [m.sealed for m in other.wire.messages]
    assert one.server.total.tobytes() == other.server.total.tobytes()


@pytest.mark.parametrize("name", UPLOADING)
def test_the_same_secrets_with_another_seed_give_another_rounding_only(name):
    one, other = (play(make(name, 9, 70, alpha=0.6, seed=seed)) for seed in (0, 1))

    for phase in ("advertise_keys", "unmask"):
        assert one.sent(phase) == other.sent(phase)
    difference = one.server.total - other.server.total
    assert difference.any()
    assert np.abs(difference).max() <= 9


@pytest.mark.parametrize("name", UPLOADING)
def test_other_secrets_change_every_message_but_model_challenge_and_requests(name):
    """The server draws the same in both: only the keys decide on the places of a ring."""
    protocol = make(name, 9, 70, alpha=0.6)
    one = by_parties(play(protocol))
    other = by_parties(play(protocol, sources=seeded_sources(9, seed=1)))

    same = {
        step
        for (step, sender, receiver) in one
        if one[step, sender, receiver] == other[step, sender, receiver]
    }
    steps = [(step.name, step.pattern) for step in protocol.steps]
    pattern = protocol.topology.pattern
    told = [("model", Pattern.BROADCAST), ("challenge", Pattern.BROADCAST), ("unmask", pattern)]
    assert {steps.index(step) for step in told} == same


@pytest.mark.parametrize("name", UPLOADING)
def test_the_order_in_which_devices_are_played_does_not_matter(name):
    protocol = make(name, 9, 70, alpha=0.6)
    one = play(protocol, dropouts=DROPOUTS)
    other = play(protocol, dropouts=DROPOUTS, order=[3, 0, 8, 1, 6, 2, 7, 5, 4])

    assert by_parties(one) == by_parties(other)
    assert one.server.survivors == other.server.survivors
    assert one.server.total.tolist() == other.server.total.tolist()
