"""The batches of private local training.

The privacy cost of the steps depends on how often a record is used, so batches are drawn here such
that the accounting's assumptions hold. They depend only on a device's seed and the number of its
earlier rounds, so no state is kept between rounds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

SHUFFLES = ("fresh", "continuing", "poisson")
"""How a device goes through its data: see `batches`."""

# Domains of the random numbers derived from a device's seed.
_ORDER, _LAYERS = 0, 1


def epoch_steps(samples: int, batch_size: int) -> int:
    """Return the steps of an epoch: the number of full batches, but at least one."""
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

    Fresh: every round starts a new epoch on newly shuffled data. Continuing: epochs continue across
    rounds, and a reshuffle within a round moves the records already used in it behind the round's
    end. Poisson: every batch holds every record with the same probability. With E steps per epoch,
    a record is used at most this often:

    ==========  ==================================  =================================
    shuffle     in a round                          in C rounds
    ==========  ==================================  =================================
    fresh       ceil(steps / E)                     C ceil(steps / E)
    continuing  1 if steps <= E, else once an       ceil(C steps / E)
                epoch that the round reaches
    poisson     steps, on average                   C steps, on average
                steps x batch_size / samples        C steps x batch_size / samples
    ==========  ==================================  =================================

    A batch has `batch_size` samples (a Poisson batch on average). On a device with fewer samples,
    every batch has all of them. `participation` is the number of earlier rounds of this device;
    `seed` is the device's seed, the same in all rounds.
    """
    if shuffle == "continuing":
        yield from _continuing(samples, batch_size, steps, participation, seed)
        return
    rng = _generator(seed, _ORDER, participation)
    epoch = epoch_steps(samples, batch_size)
    order = np.empty(0, np.int64)
    for step in range(steps):
        if shuffle == "poisson":
            yield np.flatnonzero(rng.random(samples) * samples < batch_size)
            continue
        place = step % epoch
        if place == 0:
            order = rng.permutation(samples)
        yield order[place * batch_size : (place + 1) * batch_size]


def _continuing(
    samples: int, batch_size: int, steps: int, participation: int, seed: np.random.SeedSequence
) -> Iterator[NDArray[np.int64]]:
    """Yield batches of epochs that continue from round to round.

    An epoch that begins within a round depends on the end of the previous epoch. This chain of
    epochs is computed from its start, an epoch that begins together with a round, so it has at most
    `steps` epochs.
    """
    epoch = epoch_steps(samples, batch_size)
    start, stop = participation * steps, (participation + 1) * steps
    linked = steps <= epoch  # otherwise every order uses some record twice in a round
    first = start // epoch
    while linked and first * epoch % steps:
        first -= 1
    order = np.empty(0, np.int64)
    for begin in range(first * epoch, stop, epoch):
        before = order
        order = _generator(seed, _ORDER, begin // epoch).permutation(samples)
        done = begin % steps  # steps taken in this epoch's first round before the epoch begins
        if linked and done:
            used = before[(epoch - done) * batch_size : epoch * batch_size]
            order = _put_behind(order, used, (steps - done) * batch_size)
        for step in range(max(start, begin) - begin, min(stop, begin + epoch) - begin):
            yield order[step * batch_size : (step + 1) * batch_size]


def layers_seed(participation: int, seed: np.random.SeedSequence) -> int:
    """Return the seed of dropout layers for a round of a device."""
    return int(_generator(seed, _LAYERS, participation).integers(2**63))


def _put_behind(
    order: NDArray[np.int64], used: NDArray[np.int64], places: int
) -> NDArray[np.int64]:
    """Return `order` with its first `places` unused records moved to the front."""
    unused = ~np.isin(order, used)
    first = unused & (np.cumsum(unused) <= places)
    return np.concatenate([order[first], order[~first]])


def _generator(seed: np.random.SeedSequence, *key: int) -> np.random.Generator:
    """Return a separate generator for each key, without changing the seed."""
    child = np.random.SeedSequence(
        seed.entropy, spawn_key=(*seed.spawn_key, *key), pool_size=seed.pool_size
    )
    return np.random.Generator(np.random.PCG64(child))
