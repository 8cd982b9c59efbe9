"""One launch of a run: what devices contribute, and what of it is released."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms import aggregation
from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.algorithms.federated.audited import Instance
from hpcfl.algorithms.federated.base import Vector
from hpcfl.algorithms.federated.private import PrivateAlgorithm
from hpcfl.algorithms.parameters import Parameters
from hpcfl.audit.devices import Devices
from hpcfl.rounds.dropouts import DropoutSchedule

Floats = NDArray[np.float64]

DIM = 4
"""Length of the model: of two classes, the weights of two features."""

COORDINATES = [0, 2]
"""Of the model: the two classes' weights of the canary's feature."""


@dataclass(frozen=True)
class Stage:
    """What an algorithm plays a round of an audit with: an instance, with or without the canary."""

    instance: Instance
    devices: Devices
    canary: bool
    seed: int  # of all randomness of the run
    ranks: list[PrivateAlgorithm]

    @property
    def victim(self) -> int:
        """The device that has the canary."""
        return self.devices.victim

    @property
    def accesses(self) -> tuple[int, ...]:
        """How often the canary is used in each of its device's rounds, if its order is known."""
        return self.devices.accesses

    def update(self, id: int, index: int, model: Vector) -> NDArray[np.floating]:
        """Return what a device contributes."""
        learn = self.devices.learn(id, index, model, self.canary, self.seed)
        return self.ranks[self._rank(id)].contribution(id, index, model[:0], learn)

    def ratio(self, seen: Floats, length: float, noise: float, chance: float) -> float:
        """Return the log-likelihood ratio of what is seen, large if the canary is there.

        With `chance` the canary adds a vector of that length; `noise` is the standard deviation, or
        the scale of Laplace noise.
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

        # Replaced, its neighbour has the opposite instead of nothing.
        return log_mixture(shift) - log_mixture(-shift if self.devices.replaced else np.zeros(2))

    def crowd_ratio(self, seen: Floats) -> float:
        """Return that of a sum in which all others oppose the canary.

        With the canary it is one more who drops out, or as many; among them is the canary, or not.
        """
        instance, others = self.instance, self.instance.devices - 1
        along = (seen[COORDINATES[1]] - seen[COORDINATES[0]]) / math.sqrt(2)

        def log_density(sum_: float) -> float:
            return -(((along - sum_) / instance.sigma) ** 2) / 2

        def dropped(devices: int) -> int:
            schedule = DropoutSchedule(devices, instance.dropout, "exact", "upload", 0)
            return len(schedule.draw(0))

        there = log_density(1.0 - (others - dropped(others + 1)))
        gone = dropped(others + 1) / (others + 1)
        if gone:
            absent = log_density(-float(others - dropped(others + 1) + 1))
            there = float(np.logaddexp(math.log1p(-gone) + there, math.log(gone) + absent))
        return there - log_density(-float(others - dropped(others)))

    def there(self, participants: list[int]) -> list[int]:
        """Return a round's participants: without the canary, its user is not there or replaced."""
        if self.canary or self.devices.replaced or self.instance.distributed:
            return participants
        return [id for id in participants if id != self.victim]

    def present(self, participants: list[int]) -> list[int]:
        """Return who of a round is in the sum: all but those that are unexpectedly missing."""
        others = [id for id in participants if id != self.victim]
        missing = others[: self.instance.absent]
        return [id for id in participants if id not in missing]

    def other_rank(self, participants: list[int]) -> int | None:
        """Return a participant that is on another rank than the victim."""
        own = self._rank(self.victim)
        return next((id for id in participants if self._rank(id) != own), None)

    def _rank(self, id: int) -> int:
        """Return the rank of a device, of those that have devices."""
        return id * self.instance.ranks // self.instance.devices

    def summed(self, updates: dict[int, NDArray[np.floating]], play: int) -> Floats:
        """Return the sum of the updates of those who do not drop out."""
        instance = self.instance
        schedule = DropoutSchedule(
            len(updates), instance.dropout, instance.dropout_model, "upload", self.seed
        )
        dropped = schedule.draw(play)
        total = np.zeros(DIM)
        for slot, update in enumerate(updates.values()):
            if slot not in dropped:
                total += update
        return total

    def integer_sum(
        self, updates: dict[int, NDArray[np.floating]], participants: list[int], index: int
    ) -> Floats:
        """Return the sum as a protocol that sums integers has it, noise included."""
        protocol = make_protocol(self.instance)
        assert isinstance(protocol, QuantisedProtocol)
        noise = self.ranks[0].integer_noise(protocol, index)
        if noise is not None:
            protocol.add_noise(noise)
        integers = [
            protocol.quantise(update, participants.index(id), index)
            for id, update in updates.items()
        ]
        return protocol.decode(np.sum(integers, axis=0)) * len(participants)


def make_protocol(instance: Instance, seed: int = 0) -> AggregationProtocol:
    """Return the protocol that sums, for a model of `DIM` values."""
    parameters = Parameters(
        instance.per_round,
        DIM,
        dropout=instance.dropout,
        dropout_model=instance.dropout_model,
        gamma=0.0,
        seed=seed,
        levels=2**24,
    )
    return aggregation.find("secagg" if instance.distributed else instance.aggregate)(parameters)
