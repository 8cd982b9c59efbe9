"""A round ends with t = floor(N / 2) + 1 devices, and never with fewer."""

from __future__ import annotations

import re

import pytest
from protocol_rounds import DROP_PHASES, LINKED, UPLOADING, make, plain_sum, play

from hpcfl.errors import BelowThresholdError

DID = {
    "advertise_keys": "advertised keys",
    "share_keys": "shared keys",
    "masked_input": "sent their masked vectors",
    "unmask": "answered the unmasking request",
}


@pytest.mark.parametrize("devices", [3, 10])
@pytest.mark.parametrize("phase", DROP_PHASES)
@pytest.mark.parametrize("name", UPLOADING)
def test_exactly_t_devices_are_enough_in_every_phase(name, phase, devices):
    t = devices // 2 + 1
    played = play(
        make(name, devices, 30, alpha=0.9), dropouts=dict.fromkeys(range(t, devices), phase)
    )

    assert list(range(t)) == list(played.sent("unmask"))
    assert plain_sum(played).tolist() == played.server.total.tolist()


@pytest.mark.parametrize("devices", [4, 9])
@pytest.mark.parametrize("phase", DROP_PHASES)
@pytest.mark.parametrize("name", LINKED)
def test_one_device_less_ends_the_round_with_a_sentence_that_says_how_many_are_missing(
    name, phase, devices
):
    t = devices // 2 + 1
    sentence = (
        f"round 8 cannot end: {t - 1} of {devices} devices {DID[phase]}, at least {t} are needed"
    )
    dropouts = dict.fromkeys(range(t - 1, devices), phase)

    with pytest.raises(BelowThresholdError, match=f"^{re.escape(sentence)}$") as caught:
        play(make(name, devices, 30), dropouts=dropouts, index=8)
    # Loopback raises the server's own error, not a copy as on other ranks.
    assert BelowThresholdError is caught.type
    assert 1 == caught.value.exit_status


@pytest.mark.parametrize("name", LINKED)
def test_devices_lost_in_several_phases_together_end_the_round_where_the_last_one_too_many_goes(
    name,
):
    dropouts = {0: "advertise_keys", 1: "share_keys", 2: "masked_input", 3: "unmask"}

    with pytest.raises(BelowThresholdError, match="3 of 7 devices answered"):
        play(make(name, 7, 10), dropouts=dropouts)


@pytest.mark.parametrize("name", LINKED)
def test_a_round_below_the_threshold_reveals_no_total(name):
    played = play(make(name, 5, 10), dropouts={0: "unmask", 1: "unmask"}, before="unmask")
    server = played.server
    for id in (3, 4):
        played.devices[id].receive_unmask(server.send_unmask(id))
        server.receive_unmask(id, played.devices[id].send_unmask())

    played.refused(BelowThresholdError, server.finish_unmask)
    assert 0 == server.total.size


def test_with_reduce_a_round_below_the_threshold_ends_as_with_gather():
    dropouts = dict.fromkeys([1, 2], "masked_input")
    with pytest.raises(BelowThresholdError, match="2 of 4 devices sent their masked vectors"):
        play(make("secagg", 4, 10), dropouts=dropouts, upload="reduce")


@pytest.mark.parametrize("name", UPLOADING)
def test_a_ring_without_colluding_devices_can_be_played(name):
    """A few shares are then enough, so the threshold is as low as it can be."""
    played = play(make(name, 11, 30, degree=4, alpha=0.5, gamma=0.0), dropouts={3: "masked_input"})

    assert plain_sum(played).tolist() == played.server.total.tolist()


@pytest.mark.parametrize(("devices", "degree"), [(100, 6), (100, 10), (50, 6)])
def test_a_degree_that_is_asked_for_has_a_threshold_with_which_rounds_can_end(devices, degree):
    """Of k neighbours, 0.7 k stay on average where 30 % drop out."""
    protocol = make("secagg-graph", devices, 5, degree=degree, dropout=0.3)

    assert protocol.topology.threshold <= 0.7 * degree
