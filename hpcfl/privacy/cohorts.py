"""How many honest devices a cohort holds, and how likely it is that they are too few.

A cohort is m of the N devices, drawn uniformly, that send one block of coordinates together. If h
of the N devices are honest and survive, the number c of them in a cohort is hypergeometric,

    Pr[c | h] = C(h, c) C(N - h, m - c) / C(N, m),

and the probability for a population is its mean over h. The anonymity set of a value in the block
is those c devices, if the honest survivors of the cohort are connected by masks.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np

from hpcfl.errors import UsageError
from hpcfl.privacy.distributions import Counts, Floats, binomial, hypergeometric
from hpcfl.privacy.population import Population
from hpcfl.privacy.threat import SPARE, Threat


@lru_cache(maxsize=64)
def cohort_size(devices: int, alpha: float) -> int:
    """Return the number m of devices in a cohort: alpha N, rounded half up, and at least 1."""
    if not 0 < alpha <= 1:
        raise UsageError(f"alpha is {alpha}; it must be above 0, at most 1")
    return max(1, int(Fraction(repr(float(alpha))) * devices + Fraction(1, 2)))


def honest_in_cohort(population: Population, cohort: int) -> Floats:
    """Return Pr[c] of the number c = 0 to m of honest survivors in a cohort of m devices."""
    _check(population, cohort)
    survivors, probability = population.honest_survivors()
    return probability @ _in_cohort(population, cohort, survivors, cohort + 1)


def below_floor_probability(
    population: Population, cohort: int, floor: int, blocks: int = 1
) -> float:
    """Return a bound on the probability that a block has fewer than `floor` honest survivors.

    Given h, each block falls below with the probability Pr[c < floor | h]; for several blocks the
    union bound min(1, blocks Pr[c < floor | h]) is taken, then the mean over h. For one block this
    is exact. A cohort without any honest survivor counts as below, although it exposes nobody.
    With the model ``"targeted"`` the probability is over the cohorts alone and holds for any choice
    of the floor(theta N) devices that drop out before cohorts are known.
    """
    _check(population, cohort)
    for name, value in (("floor", floor), ("number of blocks", blocks)):
        if value < 1:
            raise UsageError(f"the {name} is {value}; it must be at least 1")
    survivors, probability = population.honest_survivors()
    below = _in_cohort(population, cohort, survivors, min(floor, cohort + 1)).sum(axis=1)
    # Both minima keep rounding errors from making a probability larger than 1.
    return min(1.0, float(probability @ np.minimum(1, blocks * below)))


# An account asks again and again, of the same few rounds.
@lru_cache(maxsize=4096)
def below_floor(threat: Threat, cohort: int, floor: int) -> float:
    """Return a bound on the probability that a cohort of a round has too few honest survivors.

    All that collude survive, all that drop out are honest, and who they are has nothing to do with
    the ring: the honest survivors of a cohort are hypergeometric, and a union bound is over the N
    cohorts.
    """
    colluding = threat.colluding_among(threat.devices)
    numbers = np.flatnonzero(colluding > 0)
    honest = np.maximum(threat.devices - numbers - threat.dropped, 0)
    sizes = np.arange(min(floor, cohort + 1))
    below = hypergeometric(threat.devices, honest[:, np.newaxis], cohort, sizes).sum(axis=1)
    return min(1.0, float(colluding[numbers] @ np.minimum(1, threat.devices * below)))


@lru_cache(maxsize=4096)
def refused(threat: Threat, cohort: int, least: int) -> float:
    """Return a bound on the probability that any cohort of a round has fewer survivors."""
    survivors = _survivors(threat, cohort)
    return min(1.0, threat.devices * float(survivors[: max(0, least)].sum()))


@lru_cache(maxsize=4096)
def fewest_survivors(threat: Threat, cohort: int, failure: float) -> int:
    """Return the most survivors that all cohorts of a round have, but for a probability."""
    beyond = threat.devices * np.cumsum(_survivors(threat, cohort))
    return int(np.argmax(beyond > failure))


def _survivors(threat: Threat, cohort: int) -> Floats:
    """Return Pr[s] that s = 0 to m devices of a cohort survive; one that vanishes is in it."""
    numbers = np.arange(cohort + 1)
    if threat.rate is not None:
        return binomial(cohort - SPARE, 1 - threat.rate, numbers)
    return hypergeometric(threat.devices, threat.devices - threat.dropped, cohort, numbers)


def _in_cohort(population: Population, cohort: int, survivors: Counts, sizes: int) -> Floats:
    """Return Pr[c | h] for each h of `survivors` (rows) and each c below `sizes` (columns)."""
    return hypergeometric(population.devices, survivors[:, np.newaxis], cohort, np.arange(sizes))


def _check(population: Population, cohort: int) -> None:
    if not 1 <= cohort <= population.devices:
        raise UsageError(
            f"a cohort of {cohort} devices cannot be drawn from {population.devices}; "
            f"it must be 1 to {population.devices}"
        )
