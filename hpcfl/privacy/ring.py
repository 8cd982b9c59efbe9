"""Ring degree and threshold that keep SecAgg+'s promises (Bell et al. 2020), and cohorts.

N devices lie on a ring in a random order. Each is linked with its k nearest, k / 2 on either side,
and t of the k neighbours can reconstruct its secrets. A devices collude and stay; D others drop
out (:class:`~hpcfl.privacy.threat.Threat`). Three failures are possible. Each has an exact or a
union bound from the hypergeometric distribution, because the k neighbours of a device are drawn
uniformly from the other N - 1 (from n - 1 if a round draws its devices from n):

revealed
    An honest device has t or more colluding neighbours, which can reconstruct both of its secrets:
    at most (N - A) Pr[Hyp(n - 1, A, k) >= t].
split
    The honest survivors are not connected, so the server learns more than one sum. This requires
    k / 2 consecutive devices that collude, dropped out, or were expelled by an adversary that knows
    the ring: at most N Pr[Hyp(N, a + D, k / 2) >= k / 2 - E], with a colluders in the round and E
    devices expelled. One such run cuts a cohort, which is a stretch of the ring.
stuck
    Fewer than t + 2 neighbours of a device survive. Then a neighbour that answers falsely cannot be
    identified, and the round may not end: at most N Pr[Hyp(N - 1, N - D, k) < t + 2], for
    a dropped device; a binomial distribution if each device drops out independently.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from hpcfl.errors import UsageError
from hpcfl.privacy.distributions import Floats, binomial, hypergeometric
from hpcfl.privacy.threat import REDUNDANT, SPARE, Threat
from hpcfl.values import dataclass

# With a threshold of 1, every share would be the secret.
SMALLEST_THRESHOLD = 2


@dataclass(frozen=True)
class RingParameters:
    """A degree and a threshold, with bounds on the probabilities that they fail."""

    degree: int  # number k of a device's neighbours
    threshold: int  # number t of shares that reconstruct a secret
    # Upper bounds on the failure probabilities of one round (see the module docstring).
    revealed: float
    split: float
    stuck: float


@lru_cache(maxsize=256)
def failures(threat: Threat, degree: int, threshold: int, expelled: int = SPARE) -> RingParameters:
    """Return bounds on the probabilities that a degree and a threshold fail.

    The degree must be even or N - 1, which links every pair of devices. The adversary expels
    `expelled` devices after it knows the ring.
    """
    devices = threat.devices
    if not (degree == devices - 1 or (0 < degree < devices and degree % 2 == 0)):
        raise UsageError(
            f"{devices} devices cannot have {degree} neighbours each on a ring; "
            f"the degree must be even and below {devices}"
        )
    surviving = threat.surviving_neighbours(degree)
    if degree == devices - 1:
        # All others are neighbours, so all colluders and all survivors are among them.
        revealed, split = float(threat.colluding_among(devices)[threshold:].sum()), 0.0
        stuck = float(surviving[: threshold + REDUNDANT].sum())
    else:
        revealed = threat.honest * float(threat.colluding_neighbours(degree)[threshold:].sum())
        split = devices * threat.all_gone(degree // 2, expelled)
        stuck = devices * float(surviving[: threshold + REDUNDANT].sum())
    found = (min(1.0, one) for one in (revealed, split, stuck))
    return RingParameters(degree, threshold, *found)


@lru_cache(maxsize=64)
def choose(
    threat: Threat, security_bits: int, correctness_bits: int, least: int = 2
) -> RingParameters:
    """Return the smallest degree and the largest threshold that satisfy both bounds.

    The probabilities of `revealed` and `split` sum to at most 2**-`security_bits`; that of `stuck`
    is at most 2**-`correctness_bits`. If no degree from `least` to below N - 1 satisfies them,
    every device is a neighbour of all others, with SecAgg's threshold.
    """
    devices = threat.devices
    secure, correct = 2.0**-security_bits, 2.0**-correctness_bits
    for degree in range(least + least % 2, devices - 1, 2):
        split = devices * threat.all_gone(degree // 2, SPARE)
        if split > secure:
            continue
        # Probability that fewer than t neighbours survive, for t = 0, 1, ...
        fewer = np.concatenate([[0.0], np.cumsum(threat.surviving_neighbours(degree))])
        threshold = int(np.flatnonzero(devices * fewer <= correct)[-1]) - REDUNDANT
        if threshold < SMALLEST_THRESHOLD:
            continue
        found = failures(threat, degree, threshold)
        if found.revealed + found.split <= secure:
            return found
    return failures(threat, devices - 1, devices // 2 + 1)


def best_threshold(threat: Threat, degree: int) -> int:
    """Return the threshold that minimises the expected number of failures for a degree."""
    if degree == threat.devices - 1:
        return threat.devices // 2 + 1
    failures(threat, degree, degree)  # refuses an impossible degree
    colluding = threat.colluding_neighbours(degree)
    surviving = threat.surviving_neighbours(degree)
    # Expected numbers, because the probabilities of poor thresholds are all near 1.
    expected = {
        t: threat.honest * float(colluding[t:].sum())
        + threat.devices * float(surviving[: t + REDUNDANT].sum())
        for t in range(SMALLEST_THRESHOLD, degree + 1)
    }
    return min(expected, key=lambda t: (expected[t], t))


# A privacy account asks repeatedly about the same few rounds.
@lru_cache(maxsize=4096)
def below_floor(threat: Threat, cohort: int, floor: int) -> float:
    """Return a bound on the probability that a cohort of a round has too few honest survivors."""
    colluding = threat.colluding_among(threat.devices)
    numbers = np.flatnonzero(colluding > 0)
    honest = np.maximum(threat.devices - numbers - threat.dropped, 0)
    sizes = np.arange(min(floor, cohort + 1))
    below = hypergeometric(threat.devices, honest[:, np.newaxis], cohort, sizes).sum(axis=1)
    return min(1.0, float(colluding[numbers] @ np.minimum(1, threat.devices * below)))


@lru_cache(maxsize=4096)
def refused(threat: Threat, cohort: int, least: int) -> float:
    """Bound the probability that any cohort of a round has fewer than `least` survivors."""
    survivors = _survivors(threat, cohort)
    return min(1.0, threat.devices * float(survivors[: max(0, least)].sum()))


@lru_cache(maxsize=4096)
def fewest_survivors(threat: Threat, cohort: int, failure: float) -> int:
    """Return the least survivors of any cohort of a round, but for probability `failure`."""
    beyond = threat.devices * np.cumsum(_survivors(threat, cohort))
    return int(np.argmax(beyond > failure))


def _survivors(threat: Threat, cohort: int) -> Floats:
    """Return Pr[s] that s = 0, ..., m devices of a cohort survive; the `SPARE` one is in it."""
    numbers = np.arange(cohort + 1)
    if threat.rate is not None:
        return binomial(cohort - SPARE, 1 - threat.rate, numbers)
    return hypergeometric(threat.devices, threat.devices - threat.dropped, cohort, numbers)


def log2(probability: float) -> str:
    """Return a probability as the text of a power of two."""
    return "0" if probability <= 0 else f"2^{math.log2(probability):.1f}"
