"""The sum that leaves a round is exactly the sum of the survivors' quantised vectors.

A round ends with t = floor(N / 2) + 1 devices, and never with fewer.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from protocol_rounds import (
    DROP_PHASES,
    SECURE,
    UPLOADING,
    make,
    on_ring,
    play,
)

from hpcfl.algorithms.quantisation import largest_levels
from hpcfl.crypto.groups import GROUPS
from hpcfl.errors import BelowThresholdError, UsageError


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
    least = {"cohort": min(1, 3 / devices), "common": 0.01}.get(name, 1e-3)
    found = {
        "alpha": draw(st.floats(least, 1)),
        "dropout": draw(st.floats(0, 0.49)),
        "group": draw(st.sampled_from([name for name in GROUPS if not name.startswith("field")])),
        "locations": draw(st.sampled_from(["auto", "bitmap", "gaps"])),
        "clip": draw(st.sampled_from([1e-3, 1.0, 7.5])),
        "rotate": draw(st.booleans()),
        "weights": weights,
        "seed": draw(st.integers(0, 2**31)),
        "scaling": draw(st.sampled_from(["survivors", "paper"])),
    }
    try:
        tentative = make(name, devices, dim, **found, levels=1)
    except UsageError:
        # Few bits have no room for values that are large after scaling.
        found |= {"clip": 1e-3}
        tentative = make(name, devices, dim, **found, levels=1)
    most = tentative.largest_levels()
    return found | {"levels": draw(st.sampled_from([1, most // 1000 + 1, most]))}


@st.composite
def rings(draw):
    """Draw a protocol on a ring of any degree and threshold, and dropouts that may be too many.

    It promises nothing, so that no round ends because of how likely a promise is to fail.
    """
    name = draw(st.sampled_from(SECURE))
    devices, dim = draw(st.integers(3, 20)), draw(st.integers(1, 60))
    degree = 2 * draw(st.integers(1, devices // 2 + 1))
    threshold = draw(st.integers(2, 2 + min(degree, devices - 1) // 2))
    chosen = draw(options(name, devices, dim))
    protocol = on_ring(name, devices, dim, degree, threshold, **chosen)
    protocol.promises = list
    most = draw(st.sampled_from([devices // 5, devices // 2, devices]))
    return protocol, draw(dropouts(devices, most)), draw(st.integers(0, 2**32 - 1))


def test_a_ring_that_is_too_small_for_a_secret_ends_the_round_at_the_server():
    """Two of three devices are a majority, but a secret takes three holders."""
    protocol = on_ring("secagg-graph", 3, 10, 2, 3)

    sentence = (
        "0 of 3 devices shared keys.*refuses to share keys with 2 devices: the threshold is 3"
    )
    with pytest.raises(BelowThresholdError, match=sentence):
        play(protocol, dropouts={0: "advertise_keys"})


@pytest.mark.parametrize(("devices", "degree"), [(100, 6), (50, 6)])
def test_a_degree_that_is_asked_for_has_a_threshold_with_which_rounds_can_end(devices, degree):
    """Of k neighbours, 0.7 k stay on average where 30 % drop out."""
    protocol = make("secagg-graph", devices, 5, degree=degree, dropout=0.3)
    assert protocol.topology.threshold <= 0.7 * degree
    # Without colluding devices a few shares are enough, so the threshold is as low as it can be.
    protocol = make("cohort", 11, 30, degree=4, alpha=0.5, gamma=0.0)
    play(protocol, dropouts={3: "masked_input"}).goes_on()


@pytest.mark.parametrize("group", ["fq", "ring32", "ring12"])
@pytest.mark.parametrize("name", UPLOADING)
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_the_largest_admissible_levels_do_not_wrap_around(name, group, side):
    options = {"group": group, "alpha": 1.0, "dropout": 0.0, "clip": 0.5, "levels": 1}
    tentative = make(name, 8, 40, **options)
    levels = tentative.largest_levels()
    protocol = make(name, 8, 40, **options | {"levels": levels})
    played = play(protocol, np.full((8, 40), side))

    played.goes_on()
    # Where all eight devices contributed, the sum is within their rounding of the half range.
    assert tentative.summed_in.half_range - 16 <= int(np.abs(played.server.total).max())


@pytest.mark.parametrize("group", ["fq", "ring32", "ring12"])
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
    # Of the ten devices three are in a coordinate's sum, and round.
    levels = largest_levels(GROUPS[group], 3, 0.5, 3 / 10)
    with pytest.raises(UsageError, match=f"number of levels is {levels}"):
        make("cohort", 10, 40, **options, levels=levels + 1)
    protocol = make("cohort", 10, 40, **options, levels=levels)
    gone = dict.fromkeys([0, 9], "advertise_keys")
    played = play(protocol, np.full((10, 40), side), gone)

    played.goes_on()
    assert protocol.summed_in.half_range - 20 <= int(np.abs(played.server.total).max())


def test_a_device_that_selects_nothing_sends_no_value_and_is_a_survivor():
    played = play(make("sparse", 4, 3, alpha=1e-6, levels=1))

    assert [0, 1, 2, 3] == played.server.survivors
    assert [0, 0, 0] == played.server.total.tolist()
    assert [8 + 0] * 4 == [len(payload) for payload in played.sent("masked_input").values()]
