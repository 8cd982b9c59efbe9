"""What devices keep of an enrolment."""

from __future__ import annotations

import pytest

from hpcfl.algorithms.aggregation import find
from hpcfl.comm.loopback import Loopback
from hpcfl.crypto import keys
from hpcfl.rounds import enrolment as rounds

DEVICES = 5


@pytest.mark.parametrize(("name", "security"), [("prf", "passive"), ("secagg", "active")])
def test_the_key_that_pairs_agreed_with_is_forgotten_after_the_enrolment(
    name, security, monkeypatch
):
    """All secrets of pairs would follow from it, also for who breaks in years later."""
    made: list[bytes] = []
    generate = keys.KeyPair.generate

    def noted(secrets):
        pair = generate(secrets)
        made.append(pair.private)
        return pair

    monkeypatch.setattr(keys.KeyPair, "generate", noted)
    protocol = find(name, security)
    enrolled = rounds.enrol(protocol, Loopback(DEVICES), first_round=0)

    assert enrolled is not None
    assert len(made) == DEVICES
    kept = [one for device in enrolled.devices.values() for one in everything_in(device)]
    assert b"".join(kept), "nothing was looked at"
    assert not any(private in one for private in made for one in kept)


def everything_in(thing):
    """Return all bytes in the attributes of an object, and in those of what they hold."""
    found = []
    for value in vars(thing).values():
        if isinstance(value, bytes):
            found.append(value)
        elif hasattr(value, "__dict__"):
            found += everything_in(value)
    return found
