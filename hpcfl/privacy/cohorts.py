"""How many honest devices a cohort holds, and how likely it is that they are too few.

A cohort is m of the N devices, drawn uniformly, that send one block of coordinates together. If h
of the N devices are honest and survive, the number c of them in a cohort is hypergeometric,
Pr[c | h] = C(h, c) C(N - h, m - c) / C(N, m). The anonymity set of a value in the block is those c
devices, if the honest survivors of the cohort are connected by masks.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np

from hpcfl.privacy.distributions import Floats, binomial, hypergeometric
from hpcfl.privacy.masking import check_alpha
from hpcfl.privacy.threat import SPARE, Threat


@lru_cache(maxsize=64)
def cohort_size(devices: int, alpha: float) -> int:
    """Return the number m of devices in a cohort: alpha N, rounded half up, and at least 1."""
    check_alpha(alpha)
    return max(1, int(Fraction(repr(float(alpha))) * devices + Fraction(1, 2)))


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
