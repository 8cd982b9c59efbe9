"""How many values a round exposes alone: for the very round that is attacked, and before it.

A value is alone if the honest survivor that sent it masked that coordinate with no other one. In
``secagg``, ``secagg-graph`` and ``cohort`` that follows from who is linked with whom and who
survived. In ``sparse`` pairs select coordinates by secret keys, so that it is a random number, with
the exact mean and variance below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.cohort import Cohort
from hpcfl.algorithms.aggregation.topology import RingLinks
from hpcfl.attack.stripping import Adversary
from hpcfl.attack.transcript import Transcript
from hpcfl.privacy.cohorts import honest_in_cohort
from hpcfl.privacy.formulas import SparseGraph, ring_alone, seen_from_a_value, size_biased
from hpcfl.privacy.population import Population
from hpcfl.privacy.threat import Threat

# What a count may be off from its mean, in standard errors: by chance once in 1.7 million times.
STANDARD_ERRORS = 5


@dataclass(frozen=True)
class Prediction:
    """A number of values exposed alone.

    Attributes
    ----------
    count : float
        Its mean, given who colludes, who survived and who is linked with whom.
    standard_error : float
        Its standard deviation; 0 where nothing is random.
    before : float or None
        The part of the sent values, before colluders, dropouts and links are drawn. None where
        devices dropped out before they shared keys, or where no closed form is known.
    """

    count: float
    standard_error: float
    before: float | None

    @property
    def low(self) -> float:
        """The least count that agrees with the prediction."""
        return self.count - STANDARD_ERRORS * self.standard_error

    @property
    def high(self) -> float:
        """The largest."""
        return self.count + STANDARD_ERRORS * self.standard_error


def predict(adversary: Adversary, transcript: Transcript) -> Prediction:
    """Return how many values of honest survivors are alone in a round."""
    if transcript.protocol == "sparse":
        count, error = _by_pairs(adversary)
    elif transcript.protocol == "cohort":
        count, error = float(_in_cohorts(adversary)), 0.0
    else:
        dim = transcript.parameters.dim
        lonely = [id for id in _honest(adversary) if not _honest_neighbours(adversary, id)]
        count, error = float(dim * len(lonely)), 0.0
    return Prediction(count, error, _before(adversary, transcript))


def _by_pairs(adversary: Adversary) -> tuple[float, float]:
    """Return mean and standard deviation of the number of values that are alone in ``sparse``.

    Every pair of linked devices that shared keys selects a coordinate with the probability
    pi = 1 - x. Honest survivor i, linked with g_i other honest survivors and o_i devices else, is
    alone at a coordinate if none of the former pairs selects it, but one of the latter does:

        P_i = x**g_i (1 - x**o_i).

    Coordinates are independent. At one, two that are linked with each other have a pair in common,
    so that both are alone with x**(g_i + g_j - 1) (1 - x**o_i) (1 - x**o_j), and two that are not
    with P_i P_j.
    """
    parameters = adversary.protocol.parameters
    ids = _honest(adversary)
    row = {id: k for k, id in enumerate(ids)}
    linked = np.zeros((len(ids), len(ids)), np.bool_)
    for id in ids:
        linked[row[id], [row[other] for other in _honest_neighbours(adversary, id)]] = True
    inside = linked.sum(axis=1)
    outside = _neighbours(adversary, ids) - inside
    x = 1 - float(parameters.pair_probability)
    some_outside = 1 - x**outside
    alone = x**inside * some_outside
    first, second = np.nonzero(np.triu(linked))
    both = x ** (inside[first] + inside[second] - 1) * some_outside[first] * some_outside[second]
    covariance = both - alone[first] * alone[second]
    variance = float((alone * (1 - alone)).sum() + 2 * covariance.sum())
    return float(parameters.dim * alone.sum()), math.sqrt(parameters.dim * variance)


def _in_cohorts(adversary: Adversary) -> int:
    """Return how many values of honest survivors are alone in their cohorts.

    A device at position p sends the segments p to p + m - 1. Those from p + a are masked with one
    that is a positions ahead, those before p + m - b with one that is b behind. With the nearest
    honest survivors that it is linked with, it is alone from p + m - b to before p + a.
    """
    links = cast(RingLinks, adversary.links)
    segments = cast(Cohort, adversary.protocol).segments
    total = 0
    for id in _honest(adversary):
        position = int(links.position[id])
        others = links.position[_honest_neighbours(adversary, id)]
        ahead = int(np.min((others - position) % segments.ring, initial=segments.size))
        behind = int(np.min((position - others) % segments.ring, initial=segments.size))
        first, last = position + segments.size - behind, position + ahead
        if first < last:
            total += segments.bound(last) - segments.bound(first)
    return total


def _before(adversary: Adversary, transcript: Transcript) -> float | None:
    """Return the part of what is sent that is alone, before anything is drawn."""
    config, parameters = transcript.config, transcript.parameters
    phase = config["dropout_phase"]
    if phase not in ("masked_input", "unmask"):
        return None
    dropout = parameters.dropout if phase == "masked_input" else 0.0
    colluding = Threat.of(parameters).colluding
    who = Population(parameters.devices, colluding, dropout, config["dropout_model"])
    degree = adversary.protocol.topology.degree
    if transcript.protocol == "cohort":
        size = cast(Cohort, adversary.protocol).cohort_size
        if degree < min(2 * (size - 1), who.devices - 1):
            return None
        sizes, weight = size_biased(np.arange(size + 1), honest_in_cohort(who, size))
        return float(weight[sizes == 1].sum())
    survivors, weight = seen_from_a_value(who)
    if transcript.protocol == "sparse":
        graph = SparseGraph(who.devices, parameters.alpha, degree)
        return float(weight @ graph.alone(survivors)) / graph.sent
    return float(weight @ ring_alone(who.devices, degree, survivors))


def _honest(adversary: Adversary) -> list[int]:
    return np.flatnonzero(adversary.honest).tolist()


def _honest_neighbours(adversary: Adversary, id: int) -> list[int]:
    return adversary.links.neighbours(id, adversary.honest)


def _neighbours(adversary: Adversary, ids: list[int]) -> NDArray[np.int64]:
    """Return how many devices each is linked with that shared keys."""
    links, shared = adversary.links, adversary.shared
    return np.array([len(links.neighbours(id, shared)) for id in ids], np.int64)
