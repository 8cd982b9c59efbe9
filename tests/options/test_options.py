"""Options are defined once: types, ranges, defaults and what they are for."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from hpcfl.benchmark.experiment import asked
from hpcfl.crypto.groups import GROUPS
from hpcfl.errors import UsageError
from hpcfl.learning.batches import SHUFFLES
from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import make, options_of, part
from hpcfl.options.exposure import ExposureOptions
from hpcfl.options.predict import PredictOptions
from hpcfl.options.shared import LinkOptions
from hpcfl.options.training import LocalOptions, TrainOptions
from hpcfl.privacy.accounting import dp_fedavg, fedsgd_dpc, locks

GROUPS_OF_OPTIONS = (BenchOptions, TrainOptions, PredictOptions, ExposureOptions)
SMALLEST = 1e-9


def edges(about):
    """Return values of a number that are just within its range, and just beyond it."""
    step = 1 if about.type in (int, tuple[int, ...]) else SMALLEST
    inside, outside = [], [] if step == 1 else [math.nan, math.inf]
    for closed, opened, sign in (
        (about.at_least, about.above, 1),
        (about.at_most, about.below, -1),
    ):
        if closed is not None:
            inside.append(closed)
            outside.append(closed - sign * max(step, abs(closed) / 2))
        elif opened is not None:
            inside.append(opened + sign * step)
            outside.append(opened)
    return inside, outside


def test_a_value_is_taken_up_to_the_edge_and_refused_by_name_beyond():
    for group in GROUPS_OF_OPTIONS:
        for about in options_of(group).values():
            if about.type not in (int, float, tuple[int, ...]):
                continue
            inside, outside = edges(about)
            several = about.type not in (int, float)
            for value in inside:
                about.check((value,) if several else value)
            for value in outside:
                with pytest.raises(UsageError, match=f"--{about.dashed} is "):
                    about.check((value,) if several else value)


def test_choices_are_those_that_there_are():
    known = options_of(BenchOptions) | options_of(TrainOptions)

    assert known["group"].choices == tuple(GROUPS)
    widths = [str(group.bits) for group in GROUPS.values() if group.name.startswith("ring")]
    assert known["bits"].choices == ("auto", *widths)
    assert set(known["shuffle"].choices) == set(SHUFFLES)
    assert known["variant"].choices == locks.VARIANTS
    assert set(known["mechanism"].choices) == set(fedsgd_dpc.MECHANISMS)
    assert set(known["noise"].choices) == set(dp_fedavg.NOISES)


def test_keywords_are_read_as_their_type_says_or_refused_in_a_sentence():
    made = make(BenchOptions, {"protocol": "secagg", "devices": 20, "clip": 1, "updates": "u.npy"})
    assert (made.devices, made.updates) == ((20,), Path("u.npy"))
    assert isinstance(made.clip, float)
    for typed, sentence in (
        ({"dimm": 3}, "there is no option 'dimm'; did you mean 'dim'?"),
        ({"xyzzy": 3}, "there is no option 'xyzzy'$"),
        ({"dim": 1.5}, "--dim is 1.5; it must be a whole number"),
        ({"dim": True}, "--dim is True; it must be a whole number"),
        ({"dim": 0}, "--dim is 0; it must be at least 1 and at most 4294967295"),
        ({"alpha": "x"}, "--alpha is 'x'; it must be a number"),
        ({"devices": "3,x"}, "--devices is '3,x'; it must be whole numbers like 25,50,100"),
        ({"group": 3.2}, "--group is 3.2; it must be text"),
        ({"bits": 18}, "--bits is '18'; choose one of auto, 8, 12, 16"),
        ({"bits": 16, "group": "ring32"}, "ring32 and --bits 16 disagree: give one of them"),
        ({"dropout": 0.5}, "--dropout is 0.5; it must be at least 0 and below 0.5"),
        ({"noise_multiplier": 2.0}, "are for dp-fedavg: secagg adds no noise"),
    ):
        with pytest.raises(UsageError, match=sentence):
            asked({"protocol": "secagg"} | typed)


def test_a_protocol_without_dropouts_has_none_unless_some_are_given():
    assert asked({"protocol": "secagg"}).dropout == 0.3
    assert asked({"protocol": "prf"}).dropout == 0.0
    assert asked({"protocol": "dp-fedavg", "aggregate": "prf"}).dropout == 0.0
    assert asked({"protocol": "prf", "dropout": 0.1}).dropout == 0.1


def test_a_part_of_options_is_the_group_that_they_inherit():
    chosen = TrainOptions("fedavg", momentum=0.25, latency_ms=3)

    assert part(chosen, LocalOptions) == LocalOptions(momentum=0.25)
    assert part(chosen, LinkOptions) == LinkOptions(latency_ms=3)
