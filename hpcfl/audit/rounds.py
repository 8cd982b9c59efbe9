"""The rounds of a run: what devices send, what is released, and what the observer makes of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms import aggregation
from hpcfl.algorithms.aggregation.base import Aggregate, AggregationProtocol, QuantisedProtocol
from hpcfl.algorithms.federated.base import Vector
from hpcfl.algorithms.federated.dpfedavg import DPFedAvg
from hpcfl.algorithms.federated.locks import Locks
from hpcfl.algorithms.federated.noisysgd import NoisyGradients
from hpcfl.algorithms.federated.private import PrivateAlgorithm
from hpcfl.algorithms.parameters import Parameters
from hpcfl.audit.devices import Devices
from hpcfl.audit.instance import Instance
from hpcfl.audit.scores import crowd_ratio, ratio
from hpcfl.rounds.dropouts import DropoutSchedule

Floats = NDArray[np.float64]

DIM = 4
"""Length of the model: of two classes, the weights of two features."""


@dataclass(frozen=True)
class Run:
    """One run of an instance, with the canary or with what its neighbour has instead.

    Attributes
    ----------
    instance : Instance
    devices : Devices
    canary : bool
    seed : int
        Of all randomness of the run.
    """

    instance: Instance
    devices: Devices
    canary: bool
    seed: int

    def round(self, ranks: list[PrivateAlgorithm], index: int, model: Vector) -> float | None:
        """Play a round; move the model and return the round's score, None if nothing is sent."""
        algorithm = ranks[0]
        if isinstance(algorithm, NoisyGradients):
            return self._noisy_round(ranks, index, model)
        if isinstance(algorithm, Locks):
            return self._locks_round(algorithm, index, model)
        assert isinstance(algorithm, DPFedAvg)
        return self._dp_fedavg_round(algorithm, index, model)

    def _noisy_round(self, ranks: list[PrivateAlgorithm], index: int, model: Vector) -> float:
        """Play a round of a record-level algorithm; move the model and return the round's score.

        A round without the canary's device tells nothing of it.
        """
        instance, victim = self.instance, self.devices.victim
        algorithm = ranks[0]
        assert isinstance(algorithm, NoisyGradients)
        participants = algorithm.participants(index)
        if victim not in participants:
            return 0.0
        eta = self.devices.trainer.options.rate(index)
        summed = instance.aggregate == "secagg"
        present = self._present(participants)
        other = next((id for id in participants if self._rank(id) != self._rank(victim)), -1)
        seen = present if summed else [victim, *([other] if instance.ranks > 1 else [])]
        updates = {}
        for id in seen:
            updates[id] = self._update(ranks[self._rank(id)], id, index, model)
        total: Floats = np.stack(list(updates.values())).sum(axis=0, dtype=np.float64)
        if summed:
            total = self._integer_sum(algorithm, updates, participants, index)
        model -= (total / len(seen)).astype(np.float32)
        if instance.ranks > 1:
            # In the canary's coordinates, the other device has nothing but its noise.
            total = updates[victim].astype(np.float64) - updates[other]
        std = instance.sigma * math.sqrt(instance.steps * len(seen))
        if instance.shuffle == "poisson" or instance.secret_order:
            chance, times = instance.steps * instance.batch / instance.samples, 1
        else:
            turn = algorithm.participations(victim, index)
            chance, times = 1.0, self.devices.accesses[turn]
        return self._ratio(total / eta, times / instance.batch, std, chance)

    def _dp_fedavg_round(self, algorithm: DPFedAvg, index: int, model: Vector) -> float:
        """Play a round of `dp-fedavg`; move the model and return the round's score."""
        instance = self.instance
        participants = self._there(algorithm.participants(index))
        updates: dict[int, NDArray[np.floating]] = {}
        for id in self._present(participants):
            updates[id] = self._update(algorithm, id, index, model)
        if instance.distributed:
            total = self._integer_sum(algorithm, updates, participants, index)
            model -= (total / instance.per_round).astype(np.float32)
            std = instance.sigma * math.sqrt(len(updates) / instance.per_round)
            return self._ratio(total, 1.0, std, 1.0)
        total = self._summed(updates, algorithm.play_index(index))
        mean = total / max(1, len(participants))
        moved = algorithm.update(Aggregate(mean, 1.0, 1.0), model[:0], participants, index)
        model -= moved.astype(np.float32)
        seen = moved * instance.per_round * (1 - instance.dropout)
        if instance.opposed:
            return crowd_ratio(instance, seen)
        chance = instance.per_round / instance.devices * (1 - instance.dropout)
        return self._ratio(seen, 1.0, instance.sigma, chance)

    def _locks_round(self, algorithm: Locks, index: int, model: Vector) -> float | None:
        """Play a round of `locks`; move the model and return its score, None if nothing is sent."""
        instance, victim = self.instance, self.devices.victim
        updates, devices = {}, {}
        stage = algorithm.first_stage
        server = stage.server(index, model)
        for id in self._there(algorithm.participants(index)):
            updates[id] = self._update(algorithm, id, index, model)
            devices[id] = stage.device(id, index, DIM)
            server.receive_norms(id, devices[id].send_norms(updates[id]))
        server.finish_norms()
        sent = {}
        for id, device in devices.items():
            device.receive_norms(server.send_norms(id))
            if device.kept:
                sent[id] = device.kept_update(updates[id])
        mean = self._summed(sent, algorithm.play_index(index)) / max(1, len(sent))
        moved = algorithm.update(Aggregate(mean, 1.0, 1.0), model[:0], list(sent), index)
        model -= moved.astype(np.float32)
        if instance.variant == "local":
            if victim not in sent:
                return None
            own = sent[victim].astype(np.float64) / server.factors[victim]
            return self._ratio(own, 1.0, instance.sigma, 1.0)
        # Scaled to the norm 1, an update is in the sum if its user is invited, and then kept.
        kept = min(1.0, 1 / algorithm.scale)
        chance = instance.first_stage / instance.devices * kept
        scaled = moved * instance.first_stage * (1 - instance.dropout) / algorithm.scale
        if instance.opposed:
            return crowd_ratio(instance, scaled)
        return self._ratio(scaled, 1.0, instance.sigma, chance * (1 - instance.dropout))

    def _update(
        self, algorithm: PrivateAlgorithm, id: int, index: int, model: Vector
    ) -> NDArray[np.floating]:
        """Return what a device sends."""
        learn = self.devices.learn(id, index, model, self.canary, self.seed)
        return algorithm.contribution(id, index, model[:0], learn)

    def _ratio(self, seen: Floats, length: float, noise: float, chance: float) -> float:
        return ratio(self.instance, seen, length, noise, chance, self.devices.replaced)

    def _there(self, participants: list[int]) -> list[int]:
        """Return a round's participants: without the canary, its user is not there, or replaced."""
        if self.canary or self.devices.replaced or self.instance.distributed:
            return participants
        return [id for id in participants if id != self.devices.victim]

    def _present(self, participants: list[int]) -> list[int]:
        """Return who of a round is in the sum: all but those that are unexpectedly missing."""
        others = [id for id in participants if id != self.devices.victim]
        missing = others[: self.instance.absent]
        return [id for id in participants if id not in missing]

    def _rank(self, id: int) -> int:
        """Return the rank of a device, of those that have devices."""
        return id * self.instance.ranks // self.instance.devices

    def _summed(self, updates: dict[int, NDArray[np.floating]], play: int) -> Floats:
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

    def _integer_sum(
        self,
        algorithm: PrivateAlgorithm,
        updates: dict[int, NDArray[np.floating]],
        participants: list[int],
        index: int,
    ) -> Floats:
        """Return the sum of vectors as a protocol that sums integers has it, noise included."""
        protocol = make_protocol(self.instance)
        assert isinstance(protocol, QuantisedProtocol)
        noise = algorithm.integer_noise(protocol, index)
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
