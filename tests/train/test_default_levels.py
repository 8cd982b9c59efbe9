"""Levels that nobody asked for suit every round of a run, or are refused before it leaves files."""

import numpy as np
import pytest
from commandline import refusal
from runs import right, train

from hpcfl.errors import HpcflError
from hpcfl.options.training import TrainOptions
from hpcfl.results import load
from hpcfl.rounds.build import build
from hpcfl.training.build import make_algorithm, make_federation, with_precision

COHORT = {"aggregate": "cohort", "alpha": 0.3, "devices": 20, "rounds": 1}


@pytest.mark.parametrize("bits", ["12", "auto"])
def test_levels_have_room_for_the_weights_that_the_data_give_devices(tmp_path, bits):
    """With weights that differ, a cohort may weigh more than its part of the devices."""
    trained = train(tmp_path, **COHORT, bits=bits)

    assert right(trained)
    if bits == "12":
        more = load(trained.path).config["levels"] + 1
        with pytest.raises(HpcflError, match="could overflow the group ring12"):
            train(tmp_path, **COHORT, bits=bits, levels=more)


@pytest.mark.parametrize(
    "typed",
    [
        # With as few integers as there are in eight bits, the noise depends on their number.
        "dp-dsgd --aggregate prf --devices 12 --per-round 3 --clip 0.001 --seed 4",
        "cdp --aggregate secagg --devices 20 --clip 3 --dropout 0.1 --steps 1",
    ],
)
def test_noise_that_leaves_no_room_is_refused_before_a_file_is_written(tmp_path, typed):
    said = refusal(
        *("train", *typed.split(), "--bits", 8, "--epsilon", 20, "--rounds", 1),
        *("--output", f"{tmp_path}/"),
    )

    assert "no number of levels leaves room for the noise in the group ring8" in said
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("sampling", ["exact", "poisson", "balanced"])
@pytest.mark.parametrize("aggregate", ["secagg", "cohort"])
def test_levels_suit_every_round_whoever_takes_part(aggregate, sampling):
    sizes = np.random.default_rng(3).integers(1, 100, 24)
    options = TrainOptions(
        "fedavg", aggregate=aggregate, devices=24, per_round=12, rounds=30, sampling=sampling,
        dropout=0.0, alpha=0.5, bits="12",
    )  # fmt: skip
    found = with_precision(options, sizes, 100)
    algorithm = make_algorithm(found, make_federation(found, sizes, 100))
    room = []
    for index in range(30):
        participants = algorithm.participants(index)
        if len(participants) >= algorithm.federation.protocol.min_devices:
            weights = algorithm.weights(participants)
            protocol, _ = build(aggregate, found, len(participants), 100, weights, 24)
            room.append(protocol.largest_levels())

    assert found.levels <= min(room)
    # Not fewer than it takes, where all are in every sum.
    if (aggregate, sampling) == ("secagg", "exact"):
        assert found.levels == min(room)
