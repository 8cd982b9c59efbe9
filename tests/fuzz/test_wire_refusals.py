"""Devices that refuse to go on: the round costs them alone, and the server is told why."""

import fuzzed_wire as wire
import numpy as np
import pytest

from hpcfl.algorithms.aggregation.secagg import SecAgg
from hpcfl.algorithms.parameters import Parameters
from hpcfl.cli.watching import Spoken
from hpcfl.comm import envelope
from hpcfl.comm.loopback import Loopback
from hpcfl.comm.phases import Pattern
from hpcfl.errors import BelowThresholdError, RefusedError
from hpcfl.rounds import timed as rounds

DEVICES, DIM = 6, 9


def play(what, who, reduce=False):
    """Play a round in which some devices refuse to do one thing, in their own words."""
    protocol = SecAgg(Parameters(DEVICES, DIM, levels=1000))
    make = protocol.device

    def device(id, *arguments):
        def refuse(*arguments):
            raise RefusedError(f"device {id} does not want to {what}")

        made = make(id, *arguments)
        if id in who:
            setattr(made, what, refuse)
        return made

    protocol.device = device
    vectors = np.random.default_rng(0).uniform(-1, 1, (DEVICES, DIM))
    return rounds.play(
        protocol,
        Loopback(DEVICES),
        index=2,
        model=np.zeros(DIM, np.float32),
        inputs=vectors.__getitem__,
        dropouts={},
        reduce=reduce,
        observer=Spoken(),
    )


BEFORE_UPLOADS = (
    *("receive_model", "send_advertise_keys", "receive_advertise_keys", "send_share_keys"),
    *("receive_share_keys", "receive_challenge", "send_checks", "send_masked_input"),
)


@pytest.mark.parametrize("reduce", [False, True])
@pytest.mark.parametrize("what", [*BEFORE_UPLOADS, "receive_unmask", "send_unmask"])
def test_a_device_that_refuses_is_out_of_the_round(what, reduce, capsys):
    played = play(what, (1, 4), reduce)
    assert played.record.validated
    missing = [1, 4] if what in BEFORE_UPLOADS else []
    assert missing == np.flatnonzero(~played.record.survived).tolist()
    assert [1, 4] == sorted(played.refused)
    told = capsys.readouterr().err
    for id in (1, 4):
        assert told.count(f"round 2: device {id} left the round in ") == 1
        assert told.count(f"device {id} does not want to {what}") == 1


@pytest.mark.parametrize("what", ["receive_model", "send_share_keys", "receive_unmask"])
def test_if_all_refuse_the_error_says_why(what):
    with pytest.raises(BelowThresholdError) as caught:
        play(what, range(DEVICES))
    # The server misses shares before devices can tell it by a message, but here it sees them.
    told = "" if what == "send_share_keys" else "device 0 left the round in "
    assert f"; refused: {told}" in str(caught.value)
    assert f"device 0 does not want to {what} (and 5 more)" in str(caught.value)


def test_a_message_of_a_device_that_was_refused_is_ignored():
    """Device 3's keys are cut; what it sends afterwards is none of the round's."""

    class Stubborn(wire.Wire):
        """Device 3 answers everything, though it was refused."""

        def passed(self, sealed):
            message = super().passed(sealed)
            sent = self.messages[-1]
            if sent.sender != 3 or sent.step.pattern is not Pattern.GATHER:
                return message
            if sent.step.phase == "advertise_keys":
                return message[:-1]
            return envelope.seal(4, 3, 3, envelope.SERVER, np.zeros(12, "<u4"))

    stubborn = Stubborn(6)
    outcome = wire.play("secagg", 6, wire=stubborn)
    assert "malformed advertise_keys message from device 3" in str(outcome.refused[3])
    assert [3] == list(outcome.refused)
    assert [0, 1, 2, 4, 5] == outcome.server.survivors
    assert not outcome.differing().size
    assert ("refusal", 3) in {(one.step.phase, one.sender) for one in stubborn.messages}


def test_a_row_that_goes_astray_is_missing_and_costs_nobody_anything():
    """Device 4's row to device 2: that 4 takes part, all are told, and 2 masks with it."""
    messages, _ = wire.honest("secagg", 6)
    (target,) = [
        number
        for number, message in enumerate(messages)
        if message.step.pattern is Pattern.ROUTE and (message.sender, message.receiver) == (4, 2)
    ]
    outcome = wire.play(
        "secagg",
        6,
        target=target,
        change=lambda m: m.sealed[:12] + (99).to_bytes(4, "little") + m.sealed[16:],
    )
    assert "exact" == outcome.kind
    assert ({}, list(range(6))) == (outcome.refused, outcome.server.survivors)
    (error,) = outcome.devices[2].ignored
    assert "device 4" == error.sender


def test_a_refusal_in_place_of_an_upload_is_shown_as_a_sentence():
    messages, _ = wire.honest("secagg", 6)
    (target,) = [
        number
        for number, message in enumerate(messages)
        if (message.step.phase, message.sender, message.receiver)
        == ("masked_input", 2, envelope.SERVER)
    ]
    lie = envelope.seal_refusal("\x1b[31mnone\n" * 90, 3, 2).tobytes()
    outcome = wire.play("secagg", 6, target=target, change=lambda m: lie)
    assert "exact" == outcome.kind
    assert [0, 1, 3, 4, 5] == outcome.server.survivors
    text = str(outcome.refused[2])
    assert text.isprintable()
    assert len(text) < 300
