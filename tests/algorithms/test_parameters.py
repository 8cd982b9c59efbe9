"""Parameters that cannot work are refused in a sentence; the others give the documented numbers."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcfl.algorithms.parameters import Parameters
from hpcfl.algorithms.quantisation import Quantiser, largest_levels
from hpcfl.crypto.groups import GROUPS
from hpcfl.errors import UsageError
from hpcfl.options.shared import DEVICES, DIM


def make(**changes):
    return Parameters(**{"devices": 4, "dim": 10, **changes})


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("devices", 0, "--devices is 0; it must be at least 1"),
        ("devices", -3, "--devices is -3"),
        ("devices", DEVICES["at_most"] + 1, f"at most {DEVICES['at_most']}"),
        ("dim", 0, "--dim is 0; it must be at least 1"),
        ("dim", 2**32, f"--dim is {2**32}; .* at most {DIM['at_most']}"),
        ("alpha", 1.5, "--alpha is 1.5; .* at most 1"),
        ("group", "fp", "--group is 'fp'; choose one of fq, ring32"),
    ],
)
def test_a_bad_value_is_refused_in_a_sentence_that_names_it(name, value, sentence):
    with pytest.raises(UsageError, match=sentence):
        make(**{name: value})


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ([0.5, 0.5], r"shape \(2,\) for 4 devices"),
        ([0.2] * 5, r"shape \(5,\) for 4 devices"),
        ([0.5, 0.5, 0.5, -0.5], "must not be negative"),
        ([0.25, 0.25, 0.25, 0.26], "must add up to 1"),
        ([0.0] * 4, "must add up to 1"),
        ([1.0, 0.0, 0.0, math.nan], "must not be negative and must add up to 1"),
        ([math.inf, 0.0, 0.0, 0.0], "must add up to 1"),
    ],
)
def test_bad_weights_are_refused(weights, sentence):
    with pytest.raises(UsageError, match=sentence):
        make(weights=np.array(weights))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("devices", 1),
        ("devices", DEVICES["at_most"]),
        ("dim", 1),
        ("dim", DIM["at_most"]),
        ("weights", np.array([0.0, 0.0, 1.0, 0.0])),
        ("weights", np.full(4, 0.25)),
    ],
)
def test_a_value_at_the_edge_of_what_is_allowed_is_taken(name, value):
    assert value is getattr(make(**{name: value}), name)


def test_the_defaults_are_those_of_the_papers_experiment():
    chosen = make()
    expected = {"alpha": 0.1, "dropout": 0.3, "group": "fq", "sampler": "gaps", "locations": "auto"}
    assert expected == {name: getattr(chosen, name) for name in expected}


@pytest.mark.parametrize(
    ("devices", "threshold"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (99, 50), (100, 51)]
)
def test_the_threshold_is_more_than_half_of_the_devices(devices, threshold):
    assert threshold == make(devices=devices).threshold


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 24, 25, 26, 100, 1001])
@pytest.mark.parametrize("dropout", [0.0, 0.3, 0.49])
def test_the_expected_dropouts_leave_at_least_the_threshold(devices, dropout):
    chosen = make(devices=devices, dropout=dropout)
    assert devices - math.floor(dropout * devices) >= chosen.threshold


@settings(deadline=None)
@given(devices=st.integers(2, 10**6), alpha=st.floats(0, 1, exclude_min=True))
def test_the_pair_probability_is_alpha_over_n_minus_1_without_rounding(devices, alpha):
    probability = make(devices=devices, alpha=alpha).pair_probability
    assert Fraction(alpha) == probability * (devices - 1)
    assert 0 < probability <= 1


@pytest.mark.parametrize(
    ("devices", "probability"), [(25, 0.09535), (50, 0.09526), (75, 0.09522), (100, 0.09521)]
)
def test_the_selection_probability_has_the_documented_values(devices, probability):
    assert probability == round(make(devices=devices).selection_probability, 5)


@settings(deadline=None)
@given(devices=st.integers(2, 300), alpha=st.floats(1e-6, 1))
@example(devices=2, alpha=1.0)
def test_the_selection_probability_is_that_of_at_least_one_peer(devices, alpha):
    """As a sum over the peer that is the first to select: pi (1 + x + x**2 + ...)."""
    pair = alpha / (devices - 1)
    expected = pair * math.fsum((1 - pair) ** peer for peer in range(devices - 1))
    chosen = make(devices=devices, alpha=alpha)
    assert pytest.approx(expected, rel=1e-9) == chosen.selection_probability


@pytest.mark.parametrize("name", GROUPS)
def test_the_arithmetic_is_the_group_of_that_name(name):
    assert GROUPS[name] is make(group=name).arithmetic


def test_weights_are_equal_by_default():
    expected = [0.25] * 4
    assert expected == [make().weight(device) for device in range(4)]


def test_a_device_has_the_weight_it_was_given():
    weights = [0.1, 0.2, 0.3, 0.4]
    chosen = make(weights=np.array(weights))
    assert weights == [chosen.weight(device) for device in range(4)]


def test_weights_that_are_taken_cannot_make_the_largest_levels_wrap():
    """However far from 1 the sum of the weights may be."""
    group = GROUPS["fq"]
    levels = largest_levels(group, 1, 1.0, 1.0)
    for excess in (1e-6, 9e-10, 1e-10, 1e-12):
        try:
            chosen = make(devices=1, weights=np.array([1 + excess]))
        except UsageError:
            continue
        generator = np.random.default_rng(1)
        quantised = Quantiser(1.0, levels).quantise(np.ones(1000), chosen.weight(0), generator)
        assert quantised.tolist() == group.decode(group.reduce(quantised)).tolist()
