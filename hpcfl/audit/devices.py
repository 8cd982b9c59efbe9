"""The devices' data and training in an audit: the canary, and data that do not affect it."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import TRAINING
from hpcfl.algorithms.federated.base import Vector
from hpcfl.audit.instance import Instance
from hpcfl.learning.batches import batches, epoch_steps
from hpcfl.options.training import LocalOptions

if TYPE_CHECKING:
    from hpcfl.learning.training import Trainer

# Gradients are this much longer than the clip, so that they stay clipped when the model moves a
# little.
_SLACK = 8.0

# Total movement of the model by noise; it is small, so that the canary's gradient changes little.
_MOVED = 0.01

# Limits of the search for an order that uses a record often: orders, and their samples in all.
_ORDERS, _ORDERED = 20000, 10**7


class Devices:
    """The devices of an instance; one of them, the victim, has the canary.

    The victim is in `turns` rounds. If `replaced`, neighbouring data have another record or user in
    the canary's place, else none. `seed` determines the order of samples, unless the canary is
    chosen together with an order.
    """

    def __init__(
        self, instance: Instance, victim: int, turns: int, replaced: bool, seed: int
    ) -> None:
        self.instance, self.victim, self.replaced = instance, victim, replaced
        self.position, self.order = 0, seed
        self.accesses: tuple[int, ...] = ()
        if instance.by_record and instance.shuffle != "poisson":
            self.position, self.order, self.accesses = _worst_record(instance, victim, turns)
        self.local = local_options(instance)
        self.trainer = _make_trainer(instance, self.local)

    def learn(self, id: int, index: int, model: Vector, canary: bool, seed: int) -> Any:
        """Return a function that trains on a device's data."""
        inputs, labels = self._data(id, canary)
        instance = self.instance
        if instance.by_record:
            secret = instance.shuffle == "poisson"
            order = seed if secret else self.order
            seeds = np.random.SeedSequence(order, spawn_key=(TRAINING, id))
        else:
            seeds = np.random.SeedSequence(seed, spawn_key=(TRAINING, index, id))
        return partial(self.trainer.local_update, model, inputs, labels, seeds, index)

    def _data(self, id: int, canary: bool) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return a device's samples.

        The canary's gradient is along the first feature; the label, 0 or 1, gives its direction.
        All other gradients are along the second feature. A record of zeros has no gradient: it
        stands for a record that is left out, without changing the public number of samples.
        """
        samples = self.instance.samples if self.instance.by_record else 1
        inputs = np.zeros((samples, 2), np.float32)
        labels = np.zeros(samples, np.int64)
        inputs[:, 1] = _feature(self.instance)
        if id == self.victim:
            inputs[self.position] = 0
            if canary or self.replaced:
                inputs[self.position, 0] = _feature(self.instance)
            labels[self.position] = 0 if canary else 1
        return inputs, labels


def _travel(instance: Instance) -> float:
    """Return the expected movement of the model along a coordinate, in learning rates."""
    steps = instance.rounds * (instance.steps if instance.by_record else 1)
    return (1 + instance.sigma * math.sqrt(steps)) * math.sqrt(steps)


def _feature(instance: Instance) -> float:
    """Return the size of a feature; a gradient of the untrained model is 0.7 times as long."""
    return _SLACK if instance.by_record else _MOVED / _travel(instance)


def local_options(instance: Instance) -> LocalOptions:
    """Return the options of local training; a high learning rate makes a user's update long."""
    by_record = instance.by_record
    all_samples = instance.mechanism == "laplace" and instance.batch_size == instance.samples
    return LocalOptions(
        epochs=None,
        steps=instance.steps if by_record else 1,
        batch_size=instance.batch_size if by_record and not all_samples else 0,
        learning_rate=_MOVED / _travel(instance) if by_record else _SLACK / _feature(instance),
        momentum=0.0,
    )


def _make_trainer(instance: Instance, local: LocalOptions) -> Trainer:
    from torch import nn

    from hpcfl.learning.private import PrivateOptions, PrivateTrainer
    from hpcfl.learning.training import Trainer

    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False))
    if not instance.by_record:
        return Trainer(model, local)
    norm = "l1" if instance.mechanism == "laplace" else "l2"
    private = PrivateOptions(clip_norm=norm, shuffle=instance.shuffle)
    return PrivateTrainer(model, local, private)


def _worst_record(instance: Instance, device: int, turns: int) -> tuple[int, int, tuple[int, ...]]:
    """Return a record, an order that uses it often, and its number of uses in each round."""
    epoch = epoch_steps(instance.samples, instance.batch_size)
    most = turns * -(-instance.steps // epoch)
    if instance.shuffle == "continuing":
        most = -(-turns * instance.steps // epoch)
    best: tuple[int, int, tuple[int, ...]] = (0, 0, (0,) * turns)
    for order in range(min(_ORDERS, 1 + _ORDERED // (turns * instance.samples))):
        seeds = np.random.SeedSequence(order, spawn_key=(TRAINING, device))
        used = np.zeros((turns, instance.samples), np.int64)
        for turn in range(turns):
            for batch in batches(
                instance.shuffle, instance.samples, instance.batch_size, instance.steps, turn, seeds
            ):
                used[turn, batch] += 1
        position = int(used.sum(axis=0).argmax())
        if used[:, position].sum() > sum(best[2]):
            best = (position, order, tuple(used[:, position].tolist()))
        if sum(best[2]) >= most:
            break
    return best
