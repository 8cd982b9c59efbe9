"""Differentially private local training: noisy SGD on clipped per-sample gradients.

A step is that of Abadi et al., 2016, "Deep Learning with Differential Privacy", Algorithm 1. How
often a record is used decides what the steps cost in privacy, so the batches are drawn here such
that the accounting's assumptions hold, and from nothing but a device's seed and the number of its
earlier rounds: there is no state to keep between rounds. Imported without torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError
from hpcfl.learning.persample import ClippedGradients, check_clip
from hpcfl.learning.training import Trainer
from hpcfl.options.training import LocalOptions
from hpcfl.report.formats import counted

if TYPE_CHECKING:
    from torch import nn

    from hpcfl.learning.training import Data

    Noise = Callable[[int], NDArray[Any]]

SHUFFLES = {
    "fresh": "every round starts a new epoch on newly shuffled data",
    "continuing": "epochs continue across rounds, and a reshuffle within a round puts the records "
    "already used in it behind the round's end",
    "poisson": "every batch holds every record with the same probability",
}
"""How a device goes through its data."""

# Domains of the random numbers that come of a device's seed.
_ORDER, _LAYERS = 0, 1


@dataclass(frozen=True)
class PrivateOptions:
    """What makes local training private; the rest of it are `LocalOptions`."""

    clip: float = 1.0  # of every sample's gradient
    clip_norm: str = "l2"  # one of `persample.NORMS`
    shuffle: str = "fresh"  # one of `SHUFFLES`

    def __post_init__(self) -> None:
        check_clip(self.clip, self.clip_norm)
        if self.shuffle not in SHUFFLES:
            raise UsageError(
                f"the shuffle must be one of {', '.join(SHUFFLES)}, not {self.shuffle!r}"
            )


class PrivateTrainer(Trainer):
    """Trains one model with differential privacy, for as many devices and rounds as are asked.

    In each of a round's tau steps, theta <- theta - eta (sum / gamma + w): `sum` of the batch's
    clipped gradients, gamma the batch size, also where a batch holds another number of samples
    (Poisson batches; devices with less data than gamma), w noise. A record that is replaced changes
    sum / gamma by at most 2 clip / gamma. An epoch is floor(samples / gamma) steps, at least one,
    and leaves out what does not fill a batch. The momentum must be 0, which the accounting assumes.

    As with `Trainer`, nothing is carried from one call to the next, and the same arguments and
    noise give the same result, bit for bit. `clipped` alone is of the latest `local_update`: the
    part of the gradients that were clipped, NaN if there were none. It is computed from the data
    without noise: for diagnosis, not for release.
    """

    def __init__(
        self,
        model: nn.Module,
        options: LocalOptions,
        private: PrivateOptions,
        torch_device: str = "cpu",
    ) -> None:
        if options.momentum != 0:
            raise UsageError(
                f"private training needs the momentum 0, not {options.momentum}: its accounting "
                "assumes plain SGD"
            )
        super().__init__(model, options, torch_device)
        self.private = private
        self.clipped = math.nan
        self._gradients = ClippedGradients(self.model, private.clip, private.clip_norm)

    def local_update(
        self,
        weights: NDArray[np.float32],
        inputs: Data,
        labels: Data,
        seed: np.random.SeedSequence,
        round_index: int,
        participation: int | None = None,
        noise: Noise | None = None,
    ) -> NDArray[np.float32]:
        """Train from given weights and return what to subtract from them, as `Trainer` does.

        The seed is the device's, the same in all rounds. It fixes the batches, which privacy
        amplification by sampling or shuffling requires to be secret. The batches are those of
        `participation`, the rounds before this one that this device took part in; by default it was
        in every round. `noise` makes the noise of one step, shape (d,), from d; without it there is
        none. Without any samples the update is noise alone.
        """
        import torch

        start = self._load(weights)
        x, y = self._samples(inputs, labels)
        participation = round_index if participation is None else participation
        batch_size = self.options.divisor(len(y))
        rate = self.options.rate(round_index)
        clipped = torch.zeros((), dtype=torch.int64, device=self.device)
        used = 0
        layers_seed = int(_generator(seed, _LAYERS, participation).integers(2**63))
        self.model.train()
        with self._reproducible(layers_seed):
            for batch in batches(
                self.private.shuffle, len(y), batch_size, self.steps(len(y)), participation, seed
            ):
                chosen = torch.from_numpy(batch).to(self.device)
                # The memory of the gradients, which the velocity of `Trainer` is here.
                gradient, some = self._gradients(
                    x.index_select(0, chosen), y.index_select(0, chosen), out=self._velocity
                )
                clipped += some
                used += len(batch)
                if self.options.weight_decay:
                    self._weights.mul_(1 - rate * self.options.weight_decay)
                self._weights.add_(gradient, alpha=-rate / batch_size)
                if noise is not None:
                    self._weights.add_(self._noise(noise), alpha=-rate)
        self.clipped = int(clipped) / used if used else math.nan
        update = torch.sub(start, self._weights)
        return update.cpu().numpy()

    def steps(self, samples: int) -> int:
        """Return the steps tau of a round on a device with so many samples."""
        if self.options.steps is not None:
            return self.options.steps
        assert self.options.epochs is not None
        return self.options.epochs * epoch_steps(samples, self.options.divisor(samples))

    def _noise(self, noise: Noise) -> Any:
        """Return the noise of a step as a tensor."""
        import torch

        drawn = np.asarray(noise(len(self._weights)), np.float32)
        if drawn.shape != self._weights.shape:
            raise ValueError(
                f"the model has {counted(len(self._weights), 'parameter')}, the noise has shape "
                f"{drawn.shape}"
            )
        return torch.from_numpy(drawn).to(self.device)


def epoch_steps(samples: int, batch_size: int) -> int:
    """Return the steps of an epoch: full batches only, unless there is not even one."""
    return max(1, samples // batch_size)


def batches(
    shuffle: str,
    samples: int,
    batch_size: int,
    steps: int,
    participation: int,
    seed: np.random.SeedSequence,
) -> Iterator[NDArray[np.int64]]:
    """Yield the positions of the samples of each step of one round of one device.

    With E steps an epoch, no record is used more often than this:

    ==========  ==================================  =================================
    shuffle     in a round                          in C rounds
    ==========  ==================================  =================================
    fresh       ceil(steps / E)                     C ceil(steps / E)
    continuing  1 if steps <= E, else once an       ceil(C steps / E)
                epoch that the round reaches
    poisson     steps, on average                   C steps, on average
                steps x batch_size / samples        C steps x batch_size / samples
    ==========  ==================================  =================================

    A batch has `batch_size` samples, of Poisson batches on average; a device with fewer has all of
    them in every batch. `participation` is the number of rounds of this device before this one,
    `seed` the device's, the same in all rounds.
    """
    ways = {"fresh": _fresh, "continuing": _continuing, "poisson": _poisson}
    return ways[shuffle](samples, batch_size, steps, participation, seed)


def _poisson(
    samples: int, batch_size: int, steps: int, participation: int, seed: np.random.SeedSequence
) -> Iterator[NDArray[np.int64]]:
    rng = _generator(seed, _ORDER, participation)
    for _ in range(steps):
        yield np.flatnonzero(rng.random(samples) * samples < batch_size)


def _fresh(
    samples: int, batch_size: int, steps: int, participation: int, seed: np.random.SeedSequence
) -> Iterator[NDArray[np.int64]]:
    rng = _generator(seed, _ORDER, participation)
    epoch = epoch_steps(samples, batch_size)
    for begin in range(0, steps, epoch):
        order = rng.permutation(samples)
        for step in range(min(epoch, steps - begin)):
            yield order[step * batch_size : (step + 1) * batch_size]


def _continuing(
    samples: int, batch_size: int, steps: int, participation: int, seed: np.random.SeedSequence
) -> Iterator[NDArray[np.int64]]:
    """Yield batches of epochs that go on from round to round.

    An epoch that begins within a round depends on the end of the epoch before. Such a chain begins
    with an epoch that begins with a round, so it has at most `steps` epochs, and is followed from
    there.
    """
    epoch = epoch_steps(samples, batch_size)
    start, stop = participation * steps, (participation + 1) * steps
    linked = steps <= epoch  # else no order could keep a record from being used twice in a round
    first = start // epoch
    while linked and first * epoch % steps:
        first -= 1
    order = np.empty(0, np.int64)
    for begin in range(first * epoch, stop, epoch):
        before = order
        order = _generator(seed, _ORDER, begin // epoch).permutation(samples)
        done = begin % steps  # of the steps of the round in which this epoch begins
        if linked and done:
            used = before[(epoch - done) * batch_size : epoch * batch_size]
            order = _put_behind(order, used, (steps - done) * batch_size)
        for step in range(max(start, begin) - begin, min(stop, begin + epoch) - begin):
            yield order[step * batch_size : (step + 1) * batch_size]


def _put_behind(
    order: NDArray[np.int64], used: NDArray[np.int64], places: int
) -> NDArray[np.int64]:
    """Return an order whose first `places` are not among the used, and that is else the same."""
    unused = ~np.isin(order, used)
    first = unused & (np.cumsum(unused) <= places)
    return np.concatenate([order[first], order[~first]])


def _generator(seed: np.random.SeedSequence, *key: int) -> np.random.Generator:
    """Return a generator of its own for each key, without changing the seed."""
    child = np.random.SeedSequence(
        seed.entropy, spawn_key=(*seed.spawn_key, *key), pool_size=seed.pool_size
    )
    return np.random.Generator(np.random.PCG64(child))
