"""Rounds of the active variant with an honest server: exact sums, and messages as documented."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cheating import enrolled_with_strangers
from hypothesis import given
from hypothesis import strategies as st
from protocol_rounds import (
    bits,
    make,
    play,
    spoiling,
)

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import Pattern
from hpcfl.errors import BelowThresholdError, UsageError

N = 10  # t = 7
EXPELLED = "too many holders have no right share of its secrets: it is expelled"
# What sparse uploads change is in their passive variant: one of its own suffices for it.
each_kind = pytest.mark.parametrize("name", ["secagg", "sparse"])


def active(name="secagg", devices=N, **options):
    return make(name, devices, security="active", **options)


@given(st.integers(2, 10**6), st.floats(0, 1, exclude_max=True))
def test_no_two_lists_are_endorsed_by_a_threshold_each(devices, part):
    parameters = Parameters(devices, 5, security="active")
    threshold = parameters.threshold
    colluding = int(part * (-(-devices // 3)))  # fewer than a third

    assert threshold > 2 * devices / 3 >= threshold - 1
    assert devices // 2 + 1 == replace(parameters, security="passive").threshold
    assert 3 * colluding < devices
    assert 2 * (threshold - colluding) > devices - colluding
    assert threshold > colluding


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dropout": 0.34}, "dropout is 0.34; with --security active it must be below 1/3"),
        ({"gamma": 0.34}, "gamma is 0.34; with --security active it must be below 1/3"),
        ({"degree": 4}, "--degree is 4; with --security active every device"),
        ({"security": "paranoid"}, "security is 'paranoid'; choose one of passive, act"),
    ],
)
def test_what_would_not_be_safe_is_refused(options, sentence):
    with pytest.raises(UsageError, match=sentence):
        Parameters(10, 5, **{"security": "active", **options})


@pytest.mark.parametrize("name", ["secagg-graph", "cohort", "common", "prf", "fedavg"])
def test_protocols_without_the_variant_are_refused(name):
    with pytest.raises(UsageError, match=f"{name} cannot be run with --security active"):
        find(name, "active")


def test_wrong_endorsements_of_a_few_devices_do_not_stop_the_others():
    played = play(active(), before=("unmask", Pattern.SCATTER))
    for id in (1, 5, 6):
        played.server.state.tags[id] ^= 1
    for id in (0, 2, 9):
        played.devices[id].receive_unmask(played.server.send_unmask(id))
        assert played.devices[id].send_unmask().size


# Devices that nobody knows, that deal wrongly, or answer falsely


@each_kind
@pytest.mark.parametrize(
    ("strangers", "dropouts"),
    [([4], {}), ([2, 4, 9], {}), ([4], {7: "unmask"}), ([4], {7: "masked_input"})],
    ids=str,
)
def test_a_device_whose_identity_is_not_signed_takes_no_part_and_all_others_stay(
    name, strangers, dropouts
):
    """With t = 7, three of ten may be absent. Nobody masks with them, or is asked about them."""
    identities = enrolled_with_strangers(name, N, strangers)
    played = play(active(name, identities=identities), dropouts=dropouts)
    honest = [id for id in range(N) if id not in strangers]
    survivors = [id for id in played.taking_part("masked_input") if id not in strangers]

    assert strangers == sorted(played.left) == sorted(played.kept_out)
    for id in strangers:
        words = f"device {id} refuses to go on: the shares of 1 devices, itself included, are"
        assert words in str(played.left[id])
        assert EXPELLED in str(played.server.refused[id])
    assert bits(strangers, N) == played.told("expelled")
    for id in honest:
        ignored = [error.sender for error in played.devices[id].ignored]
        assert [f"device {one}" for one in strangers] == ignored
        assert honest == played.devices[id]._members()
    played.goes_on(survivors)
    assert {} == played.sent("pairs")


def test_with_one_stranger_more_than_can_be_spared_devices_go_no_further():
    protocol = active(identities=enrolled_with_strangers("secagg", N, [0, 2, 4, 9]))
    with pytest.raises(BelowThresholdError, match="0 of 10 devices answered the challenge"):
        play(protocol)
    protocol = active(identities=enrolled_with_strangers("secagg", N, [0, 2, 4, 9]))
    played = play(protocol, before=("checks", Pattern.GATHER))
    assert list(range(N)) == sorted(played.left)
    for id in (1, 3, 5, 6, 7, 8):
        assert "the shares of 6 devices, itself included" in str(played.left[id])


@each_kind
@pytest.mark.parametrize("dropouts", [{}, {7: "unmask"}, {7: "masked_input"}], ids=str)
def test_a_dealer_is_expelled_if_two_holders_have_no_share_of_it_and_not_if_one_has_none(
    name, dropouts
):
    protocol = active(name)
    played = play(protocol, change=spoiling(protocol, 3, [5]), dropouts=dropouts)
    played.nobody_left()
    played.goes_on()

    protocol = active(name)
    played = play(protocol, change=spoiling(protocol, 3, [5, 8]), dropouts=dropouts)
    assert [3] == list(played.kept_out) == list(played.left)
    assert EXPELLED in str(played.kept_out[3])
    words = "device 3 is told that the shares of its secrets do not belong together"
    assert words == str(played.left[3])
    played.goes_on([id for id in played.taking_part("masked_input") if id != 3])


def test_noise_counts_on_as_few_honest_devices_as_a_server_may_choose():
    one, other = (make("secagg", 30, security=s, dropout=0.1) for s in ("active", "passive"))
    # One may vanish besides the planned ones.
    assert (21 - 3, 30 - 3 - 1 - 3) == (one.honest_in_sum(), other.honest_in_sum())
