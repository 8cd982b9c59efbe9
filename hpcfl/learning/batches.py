"""The batches of private local training.

How often a record is used decides what the steps cost in privacy, so the batches are drawn here
such that the accounting's assumptions hold, and from nothing but a device's seed and the number of
its earlier rounds: there is no state to keep between rounds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

SHUFFLES = ("fresh", "continuing", "poisson")
"""How a device goes through its data: see `batches`."""

# Domains of the random numbers that come of a device's seed.
_ORDER, _LAYERS = 0, 1


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

    Fresh: every round starts a new epoch on newly shuffled data. Continuing: epochs continue across
    rounds, and a reshuffle within a round puts the records already used in it behind the round's
    end. Poisson: every batch holds every record with the same probability. With E steps an epoch,
    no record is used more often than this:

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


def layers_seed(participation: int, seed: np.random.SeedSequence) -> int:
    """Return the seed of dropout layers for a round of a device."""
    return int(_generator(seed, _LAYERS, participation).integers(2**63))


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
