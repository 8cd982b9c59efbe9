"""What `proven` counts on is so in every run that the algorithms let begin."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from hpcfl.algorithms import federated
from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.base import QuantisedProtocol
from hpcfl.algorithms.federated.base import Federation
from hpcfl.algorithms.federated.participation import Participation
from hpcfl.algorithms.noise import insecure_noise
from hpcfl.algorithms.parameters import Parameters
from hpcfl.cli import group
from hpcfl.errors import UsageError
from hpcfl.options.privacy import PrivacyOptions


@dataclass(frozen=True)
class Local:
    steps: int | None = 1
    batch_size: int = 8
    momentum: float = 0.0
    weight_decay: float = 0.0

    def rate(self, round_index):
        return 0.5 / (round_index + 1)


def algorithm(
    name,
    protocol,
    privacy,
    mode="balanced",
    devices=40,
    per_round=None,
    local=Local(),
    dim=100,
    **parameters,
):
    per_round = per_round or devices
    federation = Federation(
        sizes=np.full(devices, 64),
        participation=Participation(devices, per_round, mode, 3),
        rounds=6,
        seed=3,
        protocol=find(protocol)(Parameters(per_round, dim, **parameters)),
        local=local,
    )
    options = PrivacyOptions(**privacy)
    kind = federated.find(name)
    kind.check(federation, options)
    return kind(federation, options, insecure_noise(4))  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["cdp", "dp-dsgd"])
@pytest.mark.parametrize("protocol", ["secagg", "prf"])
def test_a_sum_of_an_unknown_number_of_noises_is_refused(name, protocol):
    """A round of three would be accounted as if it had the noise of ten."""
    with pytest.raises(UsageError, match="known number of devices"):
        algorithm(name, protocol, {"sigma": 1.0}, "poisson", per_round=10, dropout=0.0)
    algorithm(name, "fedavg", {"sigma": 1.0}, "poisson", per_round=10)  # each for itself


def test_steps_that_move_models_apart_by_weight_decay_are_refused():
    local = Local(steps=3, weight_decay=4.1)
    with pytest.raises(UsageError, match="--weight-decay must be at most 2"):
        algorithm("cdp", "secagg", {"sigma": 1.0}, local=local)
    algorithm("cdp", "fedavg", {"sigma": 1.0}, local=local)
    algorithm("cdp", "secagg", {"sigma": 1.0}, local=Local(steps=3, weight_decay=4.0))
    algorithm("dp-dsgd", "secagg", {"sigma": 1.0}, local=Local(weight_decay=9.0))


@pytest.mark.parametrize("protocol", ["sparse", "cohort"])
def test_users_by_chance_do_not_go_with_coordinates_that_depend_on_who_is_there(protocol):
    privacy = {"noise_multiplier": 1.0}
    with pytest.raises(UsageError, match="which coordinates the others send"):
        algorithm("dp-fedavg", protocol, privacy, "poisson", per_round=20, alpha=0.5)
    algorithm("dp-fedavg", protocol, privacy, "exact", per_round=20, alpha=0.5)


def test_a_user_by_chance_changes_the_integers_of_all_others():
    """The noise covers what one more user moves the decoded sum by, rounding of all included."""
    privacy = {"noise_multiplier": 1.0}
    given: dict[str, Any] = {"levels": 2**9, "dim": 500, "devices": 16, "per_round": 15}
    dp = algorithm("dp-fedavg", "secagg", privacy, "poisson", gamma=0.0, dropout=0.0, **given)
    # Whole numbers of integers for 15 users, and half a one more or less for 16.
    update = np.full(500, 8 * 15 / 2**9)
    sums = []
    for count in (15, 16):
        protocol = find("secagg")(Parameters(count, 500, levels=2**9, gamma=0.0, dropout=0.0))
        assert isinstance(protocol, QuantisedProtocol)
        # A user more, who sends nothing: all that moves is how the others are rounded.
        sent = [*[update] * 15, np.zeros(500)][:count]
        integers = [protocol.quantise(vector, id, 0) for id, vector in enumerate(sent)]
        sums.append(protocol.decode(np.sum(integers, axis=0)) * count)
    moved = float(np.linalg.norm(sums[1] - sums[0]))
    std = np.std([dp._central_noise(500, 0) for _ in range(40)])
    unit = 2**9 / 16

    assert moved > 1.5 * math.sqrt(500) / unit  # more than the rounding of one
    assert std > 1.0 + moved


def test_chance_that_leaves_too_few_to_sum_is_refused_before_it_comes():
    """The run would otherwise end in that round, and by that tell how many came."""
    privacy = {"noise_multiplier": 1.0}
    given: dict[str, Any] = {"devices": 9, "dropout": 0.0}
    with pytest.raises(
        UsageError, match=r"round [0-5] of those to come chance draws 1 of the devices"
    ):
        algorithm("dp-fedavg", "prf", privacy, "poisson", per_round=2, **given)
    algorithm("dp-fedavg", "fedavg", privacy, "poisson", per_round=2, **given)
    algorithm("dp-fedavg", "prf", privacy, "exact", per_round=2, **given)


def test_a_cohorts_noise_covers_the_longest_run():
    privacy = {"noise_multiplier": 0.7, "noise": "distributed"}
    dp = algorithm("dp-fedavg", "cohort", privacy, dropout=0.2, gamma=0.1, alpha=0.25, dim=1000)
    protocol = dp.federation.protocol
    noise = dp.integer_noise(protocol, 0)
    unit = protocol.parameters.levels * protocol.scale(0)
    size = max(protocol.segments.length(place) for place in range(40))
    largest = unit * noise.norm + math.sqrt(size)
    assert noise.sigma * math.sqrt(protocol.honest_in_sum()) >= 0.7 * largest * (1 - 1e-9)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_gradient_in_float32_is_not_longer_than_the_clip(norm):
    torch = pytest.importorskip("torch")
    from hpcfl.learning import models
    from hpcfl.learning.persample import ClippedGradients

    model = models.build("softmax", (784,), 10, 0)
    sums = ClippedGradients(model, 0.37, norm)
    generator = torch.Generator().manual_seed(2)
    for index in range(40):
        inputs = torch.randn(1, 784, generator=generator) * 10 ** (index % 5)
        total, _ = sums(inputs, torch.tensor([index % 10]))
        assert np.linalg.norm(total.double().numpy(), 1 if norm == "l1" else 2) <= 0.37


def clipped_gradient(weights, x, label, clip):
    """Return the clipped gradient of a sample's loss in softmax regression, shape (classes, d)."""
    scores = weights @ x
    chances = np.exp(scores - scores.max())
    chances /= chances.sum()
    chances[label] -= 1
    gradient = np.outer(chances, x)
    return gradient * min(1.0, clip / np.linalg.norm(gradient))


def least_eigenvalue(weights, x, label, clip):
    """Return that of the symmetric part of the clipped gradient's Jacobian, and its direction."""
    columns, step = [], 1e-5
    for index in range(weights.size):
        moved = np.zeros(weights.size)
        moved[index] = step
        moved = moved.reshape(weights.shape)
        up, down = (clipped_gradient(weights + s * moved, x, label, clip) for s in (1, -1))
        columns.append((up - down).ravel() / (2 * step))
    jacobian = np.array(columns).T
    values, vectors = np.linalg.eigh((jacobian + jacobian.T) / 2)
    return float(values[0]), vectors[:, 0].reshape(weights.shape)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_clipped_steps_of_two_classes_never_expand_and_of_three_do(classes):
    """P2's condition: convexity is not enough, as clipping undoes it with three classes."""
    rng = np.random.default_rng(3)
    worst: tuple[float, Any] = (math.inf, None)
    for _ in range(400):
        x = rng.normal(size=2) * 3
        weights = rng.normal(size=(classes, 2))
        label = int(rng.integers(classes))
        value, direction = least_eigenvalue(weights, x, label, 1.0)
        if value < worst[0]:
            worst = value, (weights, x, label, direction)
    assert worst[0] > -1e-7 if classes == 2 else worst[0] < -0.005
    weights, x, label, direction = worst[1]
    for rate in (1e-3, 1e-1):
        apart = 1e-4 * direction
        steps = [clipped_gradient(weights + s * apart, x, label, 1.0) for s in (0.5, -0.5)]
        growth = np.linalg.norm(apart - rate * (steps[0] - steps[1])) / np.linalg.norm(apart)
        if classes == 2:
            assert growth <= 1 + 1e-9
        else:
            assert growth > 1 + 1e-3 * rate


def train(folder, *arguments):
    options = (*arguments, "--devices", 3, "--rounds", 1, "--output", folder)
    return CliRunner().invoke(group, ["train", *map(str, options)])


def test_a_run_whose_first_round_costs_too_much_says_so(tmp_path):
    result = train(tmp_path, "cdp", "--steps", "1", "--sigma", "0.001", "--epsilon", "0.1")
    assert result.exit_code == 0
    assert "no round is within epsilon 0.1" in result.stdout


def test_a_pure_epsilon_is_shown_with_delta_0_and_its_neighbours(tmp_path):
    plain = ("--sigma", 1)
    result = train(tmp_path, "fedsgd-dpc", "--mechanism", "laplace", *plain)
    assert "epsilon at delta 0:" in result.stdout
    assert "neighbours: replace one record" in result.stdout
    result = train(tmp_path, "cdp", "--steps", "1", *plain)
    assert "epsilon at delta 1e-05:" in result.stdout
