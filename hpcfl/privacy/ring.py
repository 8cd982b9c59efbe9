"""Degree and threshold of a ring of neighbours that keep SecAgg+'s promises (Bell et al. 2020).

N devices lie on a ring in a random order, each linked with the k nearest, k / 2 on either side, and
t of its k neighbours reconstruct its secrets. A of the N collude with the server, and D drop out.
Three things must not happen, and each has an exact or a union bound from the hypergeometric
distribution, because the neighbours of a device are k of the other N - 1, drawn uniformly:

revealed
    An honest device has t or more colluding neighbours, who can reconstruct both of its secrets:
    at most (N - A) Pr[Hyp(N - 1, A, k) >= t].
split
    The honest survivors are not connected, so that the server learns more than one sum. That takes
    k / 2 devices in a row that collude or have dropped out: at most
    N Pr[Hyp(N, A + D, k / 2) = k / 2]. A whole ring is only cut by two such runs, which would make
    the bound smaller; but a cohort is a stretch of the ring, which one run cuts.
stuck
    Fewer than t neighbours of a device survive, so that its secret cannot be reconstructed and the
    round cannot end: at most N Pr[Hyp(N - 1, N - D, k) < t], for a device that dropped out itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hpcfl.errors import UsageError
from hpcfl.privacy.distributions import Floats, hypergeometric
from hpcfl.privacy.population import Population

# With a threshold of 1, every share would be the secret.
SMALLEST_THRESHOLD = 2


@dataclass(frozen=True)
class RingParameters:
    """A degree and a threshold, and how likely it is that they do not keep what they promise.

    Attributes
    ----------
    degree : int
        Number k of a device's neighbours.
    threshold : int
        Number t of shares that reconstruct a secret.
    revealed, split, stuck : float
        Upper bounds of the probabilities that the module describes, for one round.
    """

    degree: int
    threshold: int
    revealed: float
    split: float
    stuck: float


def failures(population: Population, degree: int, threshold: int) -> RingParameters:
    """Return how likely it is that a degree and a threshold fail.

    Parameters
    ----------
    population : Population
        The devices; floor(theta N) of them drop out.
    degree : int
        Even, or N - 1, with which every device is linked with every other.
    threshold : int
        From 1 to the degree + 1: a survivor holds a share of its own secrets too.

    Raises
    ------
    UsageError
        If there is no such ring.
    """
    devices = population.devices
    if not (degree == devices - 1 or (0 < degree < devices and degree % 2 == 0)):
        raise UsageError(
            f"{devices} devices cannot have {degree} neighbours each on a ring; "
            f"the degree must be even and below {devices}"
        )
    colluding, surviving = _neighbours(population, degree)
    split = 0.0
    if degree < devices - 1:
        gone = population.colluding + population.dropped
        half = degree // 2
        split = devices * float(hypergeometric(devices, gone, half, half))
    # All others are neighbours: as many of them collude, and survive, as there are.
    everybody = degree == devices - 1
    honest, all_devices = (1, 1) if everybody else (population.honest, devices)
    return RingParameters(
        degree,
        threshold,
        revealed=_at_most_one(honest * float(colluding[threshold:].sum())),
        split=_at_most_one(split),
        stuck=_at_most_one(all_devices * float(surviving[:threshold].sum())),
    )


@lru_cache(maxsize=64)
def choose(population: Population, security_bits: int, correctness_bits: int) -> RingParameters:
    """Return the smallest degree with a threshold that keeps all promises, almost surely.

    Parameters
    ----------
    population : Population
        The devices; floor(theta N) of them drop out.
    security_bits : int
        A secret is revealed, or the honest survivors are split, with a probability of at most
        2 to the minus this, both together.
    correctness_bits : int
        The same for a round that is stuck.

    Returns
    -------
    RingParameters
        Of the thresholds that will do, the largest. If no degree below N - 1 will do: all others
        as neighbours, and the threshold floor(N / 2) + 1 of SecAgg.
    """
    devices = population.devices
    secure, correct = 2.0**-security_bits, 2.0**-correctness_bits
    for degree in range(2, devices - 1, 2):
        split = failures(population, degree, degree).split
        if split > secure:
            continue
        colluding, surviving = _neighbours(population, degree)
        # Probability that fewer than t neighbours survive, for t = 0, 1, ...
        fewer = np.concatenate([[0.0], np.cumsum(surviving)])
        threshold = int(np.flatnonzero(devices * fewer <= correct)[-1])
        if threshold < SMALLEST_THRESHOLD:
            continue
        if population.honest * float(colluding[threshold:].sum()) + split <= secure:
            return failures(population, degree, threshold)
    return failures(population, devices - 1, devices // 2 + 1)


def best_threshold(population: Population, degree: int) -> int:
    """Return the threshold of a given degree whose failures are the least likely, taken together.

    Raises
    ------
    UsageError
        If there is no such ring.
    """
    if degree == population.devices - 1:
        return population.devices // 2 + 1
    failures(population, degree, degree)  # refuses an impossible degree
    colluding, surviving = _neighbours(population, degree)
    # Expected numbers, not probabilities: those of poor thresholds are all near 1.
    expected = {
        t: population.honest * float(colluding[t:].sum())
        + population.devices * float(surviving[:t].sum())
        for t in range(SMALLEST_THRESHOLD, degree + 1)
    }
    return min(expected, key=lambda t: (expected[t], t))


def _neighbours(population: Population, degree: int) -> tuple[Floats, Floats]:
    """Return how many neighbours of a device collude, and how many survive: two distributions.

    The former seen from an honest device, the latter from one that has dropped out.
    """
    others, counts = population.devices - 1, np.arange(degree + 1)
    survivors = population.devices - max(population.dropped, 1)
    return (
        hypergeometric(others, population.colluding, degree, counts),
        hypergeometric(others, survivors, degree, counts),
    )


def _at_most_one(probability: float) -> float:
    return min(1.0, probability)


def log2(probability: float) -> str:
    """Return a probability as a power of two, as texts have it."""
    return "0" if probability <= 0 else f"2^{math.log2(probability):.1f}"
