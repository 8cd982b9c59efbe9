"""The sum that leaves a round is exactly the sum of the survivors' quantised vectors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from protocol_rounds import (
    DROP_PHASES,
    SECURE,
    UPLOADING,
    make,
    on_ring,
    play,
    sum_of,
    updates,
)
from slow_ring import holders
from tiers import examples

from hpcfl.algorithms.quantisation import largest_levels
from hpcfl.errors import BelowThresholdError, UsageError


def assert_exact(played, survivors=None):
    """Check the sum over the survivors: by default all that were there to upload."""
    if survivors is None:
        survivors = played.taking_part("masked_input")
    assert survivors == played.server.survivors
    total = sum_of(played, survivors)
    assert total.tolist() == played.server.total.tolist()
    decoded = played.protocol.decode(played.server.total)
    assert (total / played.parameters.levels).tolist() == decoded.tolist()


@st.composite
def dropouts(draw, devices, most=None):
    """Draw at most N - t devices that disappear, each before a phase of its own."""
    most = devices - (devices // 2 + 1) if most is None else most
    ids = draw(st.lists(st.integers(0, devices - 1), unique=True, max_size=most))
    return {id: draw(st.sampled_from(DROP_PHASES)) for id in ids}


@st.composite
def options(draw, name, devices, dim):
    """Draw a protocol's parameters; where a ring is not asked for, everybody is a neighbour."""
    weights = None
    if draw(st.booleans()):
        raw = np.array(draw(st.lists(st.integers(0, 9), min_size=devices, max_size=devices)))
        weights = (raw + (raw.sum() == 0)) / (raw + (raw.sum() == 0)).sum()
    # The cohorts of 3 or more stay of more than one where half of the devices vanish.
    least = 3 / devices if name == "cohort" else 1e-3
    found = {
        "alpha": draw(st.floats(least, 1)),
        "dropout": draw(st.floats(0, 0.49)),
        "group": draw(st.sampled_from(["fq", "ring32"])),
        "sampler": draw(st.sampled_from(["gaps", "dense"])),
        "locations": draw(st.sampled_from(["auto", "bitmap", "gaps"])),
        "clip": draw(st.sampled_from([1e-3, 1.0, 7.5])),
        "weights": weights,
        "seed": draw(st.integers(0, 2**31)),
        "scaling": draw(st.sampled_from(["survivors", "paper"])),
    }
    tentative = make(name, devices, dim, **{**found, "levels": 1})
    group, clip = tentative.parameters.arithmetic, tentative.parameters.clip
    most = largest_levels(group, devices, clip, tentative.divisor)
    return found | {"levels": draw(st.sampled_from([1, most // 1000 + 1, most]))}


@st.composite
def configurations(draw, name):
    """Draw a protocol with its parameters, its dropouts, and the number of the round."""
    devices, dim = draw(st.integers(3, 20)), draw(st.integers(1, 300))
    protocol = make(name, devices, dim, **draw(options(name, devices, dim)))
    return protocol, draw(dropouts(devices)), draw(st.integers(0, 2**32 - 1))


@st.composite
def rings(draw):
    """Draw a protocol on a ring of any degree and threshold, and dropouts that may be too many.

    It promises nothing, so that no round ends because of how likely a promise is to fail.
    """
    name = draw(st.sampled_from(SECURE))
    devices, dim = draw(st.integers(3, 30)), draw(st.integers(1, 100))
    degree = 2 * draw(st.integers(1, devices // 2 + 1))
    threshold = draw(st.integers(2, 2 + min(degree, devices - 1) // 2))
    chosen = draw(options(name, devices, dim))
    protocol = on_ring(name, devices, dim, degree, threshold, **chosen)
    protocol.promises = list
    most = draw(st.sampled_from([devices // 5, devices // 2, devices]))
    return protocol, draw(dropouts(devices, most)), draw(st.integers(0, 2**32 - 1))


def survivors_of(protocol, dropouts, index):
    """Return who is in the sum of a round on a ring, worked out from sets of devices.

    A device that finds too few of its neighbours refuses, and leaves. None for a round that has to
    end early.
    """
    devices = protocol.parameters.devices
    degree, threshold = protocol.topology.degree, protocol.topology.threshold
    gone = {id: DROP_PHASES.index(phase) for id, phase in dropouts.items()}
    u1, u2, u3, u4 = ({i for i in range(devices) if gone.get(i, 4) > k} for k in range(4))
    majority = devices // 2 + 1
    if len(u1) < majority:
        return None
    order = play(protocol, dropouts=dropouts, index=index, before="share_keys").order()
    held = {i: {*holders(order, i, degree, u1)} for i in u1}
    u2 = {i for i in u2 if len(held[i]) >= threshold}
    u3 = {i for i in u3 & u2 if len(held[i] & u2) >= threshold}
    u4 = {i for i in u4 & u3 if len(held[i] & u3) >= threshold}
    if min(len(u2), len(u3), len(u4)) < majority:
        return None
    if any(len(held[i] & u4) < threshold for i in u3):
        return None
    # A mask key can be made up for, if everybody who masked with it tells what they had in common.
    if any(len(held[i] & u4) < threshold and not held[i] & u3 <= u4 for i in u2 - u3):
        return None
    return sorted(u3)


@pytest.mark.parametrize("name", SECURE)
@given(data=st.data())
def test_a_round_sums_exactly_what_the_survivors_sent(name, data):
    protocol, dropouts, index = data.draw(configurations(name))
    # Whole vectors can be summed on the way.
    whole = name in ("secagg", "secagg-graph")
    upload = data.draw(st.sampled_from(["gather", "reduce"] if whole else ["gather"]))
    assert_exact(play(protocol, dropouts=dropouts, index=index, upload=upload))


@given(rings())
def test_a_round_on_a_ring_ends_exactly_or_for_want_of_neighbours(drawn):
    """Which of the two it is follows from who is whose neighbour and who is still there."""
    protocol, dropouts, index = drawn
    survivors = survivors_of(protocol, dropouts, index)
    event("early" if survivors is None else "exact")
    if survivors is not None:
        assert_exact(play(protocol, dropouts=dropouts, index=index), survivors)
        return
    with pytest.raises(BelowThresholdError):
        play(protocol, dropouts=dropouts, index=index)


def test_a_ring_that_is_too_small_for_a_secret_ends_the_round_at_the_server():
    """Two of three devices are a majority, but a secret takes three holders."""
    protocol = on_ring("secagg-graph", 3, 10, 2, 3)

    sentence = (
        "0 of 3 devices shared keys.*refuses to share keys with 2 devices: the threshold is 3"
    )
    with pytest.raises(BelowThresholdError, match=sentence):
        play(protocol, dropouts={0: "advertise_keys"})


@pytest.mark.parametrize("name", UPLOADING)
def test_any_number_of_devices_loses_all_it_can_spare_in_mixed_phases_and_ends_exactly(name):
    generator = np.random.default_rng(1)
    for devices in [*range(3, 12), 25, 40]:
        spare = devices - (devices // 2 + 1)
        ids = generator.permutation(devices)[:spare].tolist()
        dropouts = {id: DROP_PHASES[generator.integers(4)] for id in ids}
        group = ("fq", "ring32")[devices % 2]
        alpha = float(generator.uniform(0.05 if name != "cohort" else 3 / devices, 1))
        protocol = make(name, devices, int(generator.integers(1, 400)), alpha=alpha, group=group)
        assert_exact(play(protocol, dropouts=dropouts, index=devices))


@pytest.mark.parametrize("name", UPLOADING)
def test_every_way_in_which_five_devices_can_drop_out_ends_exactly_or_below_the_threshold(name):
    protocol = make(name, 5, 20, alpha=0.9)
    ways = [
        {id: phase for id, phase in enumerate(way) if phase is not None}
        for way in itertools.product([None, *DROP_PHASES], repeat=5)
    ]
    enough = [way for way in ways if len(way) <= 2]
    assert 1 + 5 * 4 + 10 * 16 == len(enough)
    # The quick tier tries every fourth.
    for way in enough[:: len(enough) // examples(len(enough))]:
        assert_exact(play(protocol, dropouts=way))
    for way in ways[::37]:
        if way not in enough:
            with pytest.raises(BelowThresholdError):
                play(protocol, dropouts=way)


@pytest.mark.parametrize("name", SECURE)
@pytest.mark.parametrize("phase", DROP_PHASES)
def test_devices_that_drop_before_one_phase_cost_the_round_nothing_but_themselves(name, phase):
    played = play(make(name, 12, 150, alpha=0.5), dropouts=dict.fromkeys([0, 3, 4, 10, 11], phase))

    assert_exact(played)
    gone = phase != "unmask"
    assert ([1, 2, 5, 6, 7, 8, 9] if gone else list(range(12))) == played.server.survivors
    assert played.server.total.any()


@pytest.mark.parametrize("name", SECURE)
def test_two_devices_are_enough_for_a_round(name):
    assert_exact(play(make(name, 2, 50, alpha=1.0)))


@pytest.mark.parametrize("group", ["fq", "ring32"])
@pytest.mark.parametrize("name", UPLOADING)
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_the_largest_admissible_levels_do_not_wrap_around(name, group, side):
    options = {"group": group, "alpha": 1.0, "dropout": 0.0, "clip": 0.5}
    tentative = make(name, 8, 40, **options)
    levels = largest_levels(tentative.summed_in, 8, 0.5, tentative.inclusion)
    protocol = make(name, 8, 40, **options, levels=levels)
    played = play(protocol, np.full((8, 40), side))

    assert_exact(played)
    # Where all eight devices contributed, the sum is within their rounding of the half range.
    assert tentative.summed_in.half_range - 16 <= int(np.abs(played.server.total).max())


@pytest.mark.parametrize("group", ["fq", "ring32"])
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_the_largest_levels_do_not_wrap_around_where_devices_vanish_before_there_is_a_ring(
    side, group
):
    """Of 10 devices 3 make a cohort, whoever vanishes: vectors are scaled by 10 / 3.

    One device has all the weight, so that its vector alone is at the end of the range.
    """
    weights = np.zeros(10)
    weights[5] = 1
    options = {"group": group, "alpha": 0.25, "clip": 0.5, "weights": weights}
    levels = largest_levels(make("cohort", 10, 40, **options).summed_in, 10, 0.5, 3 / 10)
    with pytest.raises(UsageError, match=f"number of levels is {levels}"):
        make("cohort", 10, 40, **options, levels=levels + 1)
    protocol = make("cohort", 10, 40, **options, levels=levels)
    gone = dict.fromkeys([0, 9], "advertise_keys")
    played = play(protocol, np.full((10, 40), side), gone)

    assert_exact(played)
    assert protocol.summed_in.half_range - 20 <= int(np.abs(played.server.total).max())


@pytest.mark.parametrize("name", SECURE)
def test_a_device_that_drops_out_before_unmask_is_still_in_the_sum(name):
    protocol = make(name, 6, 60, alpha=0.8)
    leaving, staying = play(protocol, dropouts={1: "unmask", 5: "unmask"}), play(protocol)

    assert list(range(6)) == leaving.server.survivors
    assert staying.server.total.tolist() == leaving.server.total.tolist()


def test_a_device_that_selects_nothing_sends_no_value_and_is_a_survivor():
    played = play(make("sparse", 4, 3, alpha=1e-6, levels=1))

    assert [0, 1, 2, 3] == played.server.survivors
    assert [0, 0, 0] == played.server.total.tolist()
    assert [8 + 0] * 4 == [len(payload) for payload in played.sent("masked_input").values()]


def test_selection_depends_on_the_round_so_that_every_coordinate_gets_its_turn():
    protocol = make("sparse", 5, 40, alpha=0.3)
    sums = [play(protocol, updates(protocol) + 2, index=index).server.total for index in range(30)]

    assert 40 == np.count_nonzero(np.sum(sums, axis=0))
