"""Closed forms of what a curious server sees, each derived in its docstring.

N devices, A of them colluding, H = N - A honest, h honest and surviving. After a round the server
knows the private masks of all survivors, the pairwise masks of dropped devices, and those its
colluders share. Two honest survivors that mask a coordinate together form an edge; at every
coordinate the server learns the sum over each connected component of this graph, and nothing else.
The component of a value is its *anonymity set*.

Secret sharing is taken to hold: who colludes cannot open further masks.

Functions of h are vectorised over an array of them; :class:`~hpcfl.privacy.population.Population`
has their probabilities. "As seen from a sent value" weights every h by how many values are sent.
"""

from __future__ import annotations

import math

import numpy as np

from hpcfl.privacy.distributions import Counts, Floats, hypergeometric, log_binomial


def theorem_2(alpha: float, dropout: float, honest: int) -> float:
    """Return T = (1 - exp(-alpha)) (1 - theta) H (SparseSecAgg, Theorem 2)."""
    return -math.expm1(-alpha) * (1 - dropout) * honest


# --- SparseSecAgg: every pair of partners selects a coordinate with the probability pi ---


class SparseGraph:
    """SparseSecAgg at one coordinate, where pairs select it independently.

    A pair selects it with the probability pi = alpha / k (eq. 13), where `degree` is the number k
    of partners of a device: N - 1 by default, as in the paper.
    """

    def __init__(self, devices: int, alpha: float, degree: int | None = None) -> None:
        self.devices = devices
        self.degree = devices - 1 if degree is None else degree
        self.pair_probability = alpha / self.degree
        # Only one pair that always selects has x = 0; this stands for its logarithm.
        self._log_x = math.log1p(-self.pair_probability) if self.pair_probability < 1 else -1e9

    @property
    def sent(self) -> float:
        """Probability p = 1 - x**k that a device selects a coordinate (eq. 14), x = 1 - pi.

        It does if any of its k pairs does.
        """
        return -math.expm1(self.degree * self._log_x)

    def alone(self, survivors: Counts) -> Floats:
        """Return Pr[a given honest survivor sends a coordinate, and alone], for each h.

        With g honest surviving partners: none of the g pairs with them selects the coordinate, but
        one of the k - g others does, x**g (1 - x**(k - g)). If all devices are partners, g = h - 1;
        if the k partners are at random, g is hypergeometric.
        """
        others = survivors - 1
        if self.degree == self.devices - 1:
            return self._alone_beside(others)
        g = np.arange(self.degree + 1)
        likely = hypergeometric(self.devices - 1, others[:, np.newaxis], self.degree, g)
        return likely @ self._alone_beside(g)

    def _alone_beside(self, partners: Counts) -> Floats:
        """Return the same, given how many of its partners are honest and survive."""
        silent = np.exp(partners * self._log_x)
        return silent * -np.expm1((self.degree - partners) * self._log_x)

    def sole(self, survivors: Counts) -> Floats:
        """Return Pr[a given honest survivor is the only one that sends], for each h.

        All C(h, 2) pairs of honest survivors and all pairs of the h - 1 others with the N - h
        other devices must not select the coordinate, and one of its own with those must:
        x**(C(h, 2) + (h - 1)(N - h)) (1 - x**(N - h)). All devices must be partners.
        """
        h, outside = survivors, self.devices - survivors
        silent = h * (h - 1) // 2 + (h - 1) * outside
        return np.exp(silent * self._log_x) * -np.expm1(outside * self._log_x)

    def component_sizes(self, survivors: Counts) -> Floats:
        """Return Pr[a given honest survivor sends, in a component of size s], for each h and s.

        The s - 1 others are one of C(h - 1, s - 1) choices, together they are connected, and no
        pair of one of them with the h - s honest survivors outside selects (Gilbert 1959):
        C(h - 1, s - 1) conn(s) x**(s (h - s)). For s = 1, :meth:`alone` instead, as the survivor
        must also send. All devices must be partners, and every h at least 1.
        Column s is for size s.
        """
        largest = int(survivors.max())
        h, s = survivors[:, np.newaxis], np.arange(largest + 1)
        sizes = np.exp(
            log_binomial(h - 1, s - 1)
            + self._log_connected(largest)
            + s * np.maximum(h - s, 0) * self._log_x
        )
        sizes[:, 1] = self.alone(survivors)
        return sizes

    def one_sum(self, survivors: Counts) -> Floats:
        """Return Pr[the honest survivors that send are one component, or none], for each h.

        For each size s: C(h, s) choices, connected, no pair of one of them with one of the h - s
        other honest survivors selects, nor any pair of two of these, or of one with the N - h
        outside: C(h, s) conn(s) x**(s (h - s) + C(h - s, 2) + (h - s)(N - h)). For s = 1 the one
        must have a pair outside, see :meth:`sole`. All devices must be partners.
        """
        largest = int(survivors.max(initial=1))
        h, s = survivors[:, np.newaxis], np.arange(largest + 1)
        others = np.maximum(h - s, 0)
        silent = s * others + others * (others - 1) // 2 + others * (self.devices - h)
        ways = np.exp(log_binomial(h, s) + self._log_connected(largest) + silent * self._log_x)
        ways[:, 1] = survivors * self.sole(np.maximum(survivors, 1))
        return ways.sum(axis=1)

    def _log_connected(self, largest: int) -> Floats:
        """Return log conn(s) for s = 0 to `largest`: that G(s, pi) is connected; conn(0) = 1.

        Take vertex s away: vertex 1 is then in a component of some k of the s - 1 others. It is
        connected, it had an edge to s, none to the s - 1 - k further ones, and those and s are
        connected:

            conn(s) = sum_k C(s - 2, k - 1) conn(k) conn(s - k) (1 - x**k) x**(k (s - 1 - k)).

        No term is negative, so that nothing cancels (Gilbert's recursion, 1 minus a sum, does).
        """
        log_connected = np.zeros(largest + 1)
        k = np.arange(1, largest + 1)
        touches = np.log(-np.expm1(k * self._log_x))
        for s in range(2, largest + 1):
            k = np.arange(1, s)
            terms = (
                log_binomial(s - 2, k - 1)
                + log_connected[1:s]
                + log_connected[s - 1 : 0 : -1]
                + touches[: s - 1]
                + k * (s - 1 - k) * self._log_x
            )
            top = terms.max()
            log_connected[s] = top + math.log(np.exp(terms - top).sum())
        return log_connected


# --- A Harary graph: devices on a ring in random order, each with its k / 2 next on either side ---


def ring_alone(ring: int, degree: int, survivors: Counts) -> Floats:
    """Return Pr[a given honest survivor has no honest surviving neighbour], for each h.

    The other h - 1 of the ring's n devices are anywhere but at its k places:
    C(n - 1 - k, h - 1) / C(n - 1, h - 1). Every h must be at least 1.
    """
    away = log_binomial(ring - 1 - degree, survivors - 1)
    return np.exp(away - log_binomial(ring - 1, survivors - 1))


def ring_split(ring: int, degree: int, survivors: int) -> float:
    """Return Pr[the honest survivors in a ring are in more than one component].

    Two survivors that follow each other are neighbours if their distance is at most r = k / 2, so
    the ring falls apart if at least two of the h distances are longer. The distances are a uniform
    composition of n into h parts, and j given ones are all longer with the probability
    q_j = C(n - 1 - r j, h - 1) / C(n - 1, h - 1). By inclusion and exclusion (Feller 1968, IV.5),

        Pr[at least two] = sum_{j >= 2} (-1)**j (j - 1) C(h, j) q_j,

    summed in whole numbers, as the terms cancel, until they are below 1e-21 of the sum. The degree
    k is n - 1 or an even number.
    """
    if survivors < 2 or degree >= ring - 1:
        return 0.0
    reach, others, free = degree // 2, survivors - 1, ring - 1
    compositions = long = math.comb(free, others)
    choices, ways = 1, 0
    for j in range(1, survivors + 1):
        if free - others < reach:
            break
        # C(n - r, k) = C(n, k) perm(n - k, r) / perm(n, r), much faster than C(n - r, k) anew.
        long = long * math.perm(free - others, reach) // math.perm(free, reach)
        free -= reach
        choices = choices * (survivors - j + 1) // j
        term = (j - 1) * choices * long
        ways += (-1) ** j * term
        if j > 1 and term << 70 < abs(ways):
            break  # terms fall ever faster once they fall
    return ways / compositions


def size_biased(sizes: Counts, probability: Floats) -> tuple[Counts, Floats]:
    """Return sizes above 0 and their probabilities as seen from a member, s Pr[s] / E[s]."""
    weight = (sizes * probability)[sizes > 0]
    return sizes[sizes > 0], weight / weight.sum()
