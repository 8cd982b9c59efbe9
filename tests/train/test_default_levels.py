"""Levels that nobody asked for suit every round of a run, or are refused before it leaves files."""

import numpy as np
import pytest
from commandline import refusal
from runs import right, train, train_privately

from hpcfl.algorithms.federated.base import FederatedAveraging, Federation
from hpcfl.algorithms.federated.participation import Participation
from hpcfl.errors import HpcflError
from hpcfl.options.training import TrainOptions
from hpcfl.results import load
from hpcfl.training import planned
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


def test_levels_have_room_for_the_state_behind_the_model(tmp_path):
    """A bit behind the vector makes the part of the coordinates that is sent another one."""
    options = {"aggregate": "common", "devices": 20, "sampling": "exact", "bits": "24"}
    options |= {"alpha": 0.1, "quantile": 0.5, "noise_multiplier": 1.0, "rounds": 1}

    assert right(train_privately(tmp_path, "dp-fedavg", **options))


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
            room.append(planned.summing(found, algorithm, participants, 100)[0].largest_levels())

    assert found.levels <= min(room)
    # Not fewer than it takes, where everybody's part is known beforehand.
    if sampling != "poisson":
        assert found.levels == min(room)


def test_rounds_of_the_same_devices_are_looked_at_once():
    sizes = np.arange(1, 11)
    options = TrainOptions("fedavg", aggregate="cohort", devices=10, rounds=10**6, alpha=0.5)
    protocol = make_federation(options, sizes, 50).protocol
    everybody = Participation(10, 10, "exact", 0)
    algorithm = FederatedAveraging(Federation(sizes, everybody, 10**6, 0, protocol, options))

    assert [index for index, _ in planned.protocols(options, algorithm, 50)] == [0, 10**6 - 1]
