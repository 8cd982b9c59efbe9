"""What the devices of an audit have and learn: the canary, and data that leave it alone."""

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

# Gradients are this much longer than they are clipped to, so that a model that moves a little
# leaves them clipped.
_SLACK = 8.0

# How far noise moves the model in all, so that the canary's gradient changes little.
_MOVED = 0.01

# Orders of samples that are tried for one that uses a record often, and their samples in all.
_ORDERS, _ORDERED = 20000, 10**7


class Devices:
    """The devices of an instance, one of which, the victim, has the canary.

    It is in `turns` rounds. Neighbouring data have another record or user in the canary's place if
    it is `replaced`, else none. The seed is of the order of samples, where the canary is not chosen
    by it.
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
        """Return what trains on a device's data."""
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

        The canary's gradient is along the first feature, with the label 0 one way, with the label 1
        the other, all others' along the second. A record of zeros has none: it is a record that is
        left out, with the number of samples, which is public, left as it is.
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
    """How far the model can be expected to move along a coordinate, in learning rates."""
    steps = instance.rounds * (instance.steps if instance.by_record else 1)
    return (1 + instance.sigma * math.sqrt(steps)) * math.sqrt(steps)


def _feature(instance: Instance) -> float:
    """Size of a feature: with two classes, an untrained model's gradient is 0.7 times it."""
    return _SLACK if instance.by_record else _MOVED / _travel(instance)


def local_options(instance: Instance) -> LocalOptions:
    """How a device trains; a user's update is made long by the learning rate."""
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
    """Return a record, an order that uses it often, and its accesses in each of its rounds."""
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
