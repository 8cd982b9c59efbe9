"""The game of an audit: runs of an instance with the canary and with its neighbouring data.

The observation of a round becomes a log-likelihood ratio, which is large if the canary is there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms import aggregation, federated
from hpcfl.algorithms.aggregation.base import Aggregate, AggregationProtocol
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.algorithms.federated.base import Federation, Spent, Vector
from hpcfl.algorithms.federated.noisysgd import NoisyGradients
from hpcfl.algorithms.federated.participation import Participation
from hpcfl.algorithms.federated.private import PrivateAlgorithm
from hpcfl.algorithms.noise import insecure_noise
from hpcfl.algorithms.parameters import Parameters
from hpcfl.audit.devices import Devices, local_options
from hpcfl.audit.instance import Instance
from hpcfl.privacy.accounting.account import REPLACE_RECORD, REPLACE_USER
from hpcfl.values import dataclass, replace

Floats = NDArray[np.float64]

# Length of the model: two classes times two features.
DIM = 4
# The two classes' weights of the canary's feature, in the model.
COORDINATES = [0, 2]


@dataclass(frozen=True)
class Run:
    """One run of an instance, with or without the canary."""

    instance: Instance
    algorithm: PrivateAlgorithm
    devices: Devices
    canary: bool
    seed: int  # for all randomness of the run

    def play(self) -> float:
        """Return the sum of all rounds' log-likelihood ratios."""
        noisy_steps = isinstance(self.algorithm, NoisyGradients)
        play = self._noisy_steps if noisy_steps else self._users
        model = np.zeros(DIM, np.float32)
        return sum(play(index, model) for index in range(self.instance.rounds))

    def _noisy_steps(self, index: int, model: Vector) -> float:
        instance, victim = self.instance, self.devices.victim
        algorithm = self.algorithm
        assert isinstance(algorithm, NoisyGradients)
        participants = algorithm.participants(index)
        if victim not in participants:
            return 0.0  # the round has no information about the canary
        senders = participants if instance.summed else [victim]
        updates = {id: self._update(id, index, model) for id in senders}
        total: Floats = np.sum([*updates.values()], axis=0, dtype=np.float64)
        if instance.summed:
            total = self._integer_sum(updates, index)
        model -= (total / len(senders)).astype(np.float32)
        std = instance.sigma * math.sqrt(instance.steps * len(senders))
        if instance.shuffle == "poisson":
            chance, times = instance.steps * instance.batch_size / instance.samples, 1
        else:
            times = self.devices.accesses[algorithm.participations(victim, index)]
            chance = 1.0
        rate = self.devices.local.rate(index)
        return self._ratio(np.asarray(total / rate), times / instance.batch_size, std, chance)

    def _users(self, index: int, model: Vector) -> float:
        instance = self.instance
        participants = self.algorithm.participants(index)
        if not (self.canary or self.devices.replaced or instance.distributed):
            participants = [id for id in participants if id != self.devices.victim]
        updates = {id: self._update(id, index, model) for id in participants}
        if instance.distributed:
            total = self._integer_sum(updates, index)
            model -= (total / instance.per_round).astype(np.float32)
            return self._ratio(total, 1.0, instance.sigma, 1.0)
        total = np.sum([np.zeros(DIM), *updates.values()], axis=0)
        mean = Aggregate(total / max(1, len(updates)), 1.0, 1.0)
        moved = self.algorithm.update(mean, list(updates), index)
        model -= moved.astype(np.float32)
        chance = instance.per_round / instance.devices
        return self._ratio(moved * instance.per_round, 1.0, instance.sigma, chance)

    def _update(self, id: int, index: int, model: Vector) -> NDArray[np.floating]:
        """Return a device's contribution."""
        learn = self.devices.learn(id, index, model, self.canary, self.seed)
        return self.algorithm.contribution(id, index, learn)

    def _integer_sum(self, updates: dict[int, NDArray[np.floating]], index: int) -> Floats:
        """Return the sum as computed by a protocol that sums integers, noise included."""
        protocol = make_protocol(self.instance)
        assert isinstance(protocol, QuantisedProtocol)
        noise = self.algorithm.integer_noise(protocol, index)
        if noise is not None:
            protocol.add_noise(noise)
        integers = [
            protocol.quantise(update, slot, index) for slot, update in enumerate(updates.values())
        ]
        return protocol.decode(np.sum(integers, axis=0)) * len(updates)

    def _ratio(self, seen: Floats, length: float, noise: float, chance: float) -> float:
        """Return the log-likelihood ratio of an observation.

        With probability `chance` the canary adds a vector of this length; `noise` is the standard
        deviation, or the scale of Laplace noise.
        """
        values = seen[COORDINATES]
        laplace = self.instance.mechanism == "laplace"
        shift = length * np.array([-1.0, 1.0]) / (2.0 if laplace else math.sqrt(2.0))

        def log_density(mean: Floats) -> float:
            away = (values - mean) / noise
            return -float(np.abs(away).sum() if laplace else (away**2).sum() / 2)

        def log_mixture(mean: Floats) -> float:
            there = log_density(mean)
            if chance >= 1:
                return there
            absent = log_density(np.zeros(2))
            return float(np.logaddexp(math.log1p(-chance) + absent, math.log(chance) + there))

        # If the canary is replaced, the neighbour adds the opposite vector instead of nothing.
        return log_mixture(shift) - log_mixture(-shift if self.devices.replaced else np.zeros(2))


def make_protocol(instance: Instance, seed: int = 0) -> AggregationProtocol:
    """Return the protocol that sums the updates of `DIM` values."""
    parameters = Parameters(
        instance.per_round, DIM, dropout=0.0, gamma=0.0, seed=seed, levels=2**24
    )
    return aggregation.find("secagg" if instance.distributed else instance.aggregate)(parameters)


class Game:
    """Runs an instance with the canary and with its neighbouring data.

    Raise UsageError if the settings are incompatible.
    """

    def __init__(self, instance: Instance, seed: int) -> None:
        self.instance = instance
        self._seed = seed
        self._kind = federated.find_private(instance.algorithm)
        self._schedule = self._participation(seed)
        times = self._schedule.before(instance.rounds)
        self._kind.check(self._federation(self._schedule, seed), instance.privacy)
        account = self._algorithm().account_for(instance.rounds, instance.sigma)
        proven = account.proven()
        self.delta, self.neighbours = proven.delta, proven.adjacency
        self.paper_neighbours = account.paper().adjacency
        replaced = self.neighbours in (REPLACE_RECORD, REPLACE_USER)
        self.devices = Devices(instance, int(times.argmax()), int(times.max()), replaced, seed)

    def _algorithm(self, **privacy: Any) -> Any:
        federation = self._federation(self._schedule, self._seed)
        options = replace(self.instance.privacy, **privacy)
        return self._kind(federation, options, insecure_noise(self._seed))

    def account(self) -> Spent:
        """Return the privacy accounts of all rounds, assuming secret noise."""
        algorithm = self._algorithm(fast_noise=False)
        for _ in range(self.instance.rounds):
            algorithm.observe(self.instance.per_round)
        spent: Spent = algorithm.spent(self.instance.rounds)
        return spent

    def play(self, canary: bool, run: int) -> float:
        """Return the log-likelihood ratio of one run, which is large with the canary."""
        seeds = np.random.SeedSequence(self._seed, spawn_key=(run, int(canary)))
        seed = int(seeds.generate_state(1, np.uint64)[0])
        # A secret schedule is drawn anew for every run; a public one stays the same.
        secret = not self.instance.by_record
        participation = self._participation(seed) if secret else self._schedule
        federation = self._federation(participation, seed)
        algorithm = self._kind(federation, self.instance.privacy, insecure_noise(seed))
        return Run(self.instance, algorithm, self.devices, canary, seed).play()

    def _participation(self, seed: int) -> Participation:
        instance = self.instance
        return Participation(instance.devices, instance.per_round, instance.sampling, seed)

    def _federation(self, participation: Participation, seed: int) -> Federation:
        instance = self.instance
        samples = instance.samples if instance.by_record else 1
        return Federation(
            np.full(instance.devices, samples, np.int64),
            participation,
            instance.rounds,
            seed,
            make_protocol(instance, seed),
            local_options(instance),
        )
