"""User-level differential privacy: `dp-fedavg` (McMahan, Ramage, Talwar and Zhang 2018).

Every update is shortened to the norm C, and the sum of a round's updates gets Gaussian noise of
standard deviation sigma = z C; the model moves by the sum over the expected number of updates.

central
    A trusted server adds the noise. If it sums integers, their rounding can move the sum by
    sqrt(d) of them more, which sigma is enlarged for.
distributed
    Every device adds discrete Gaussian noise to its integers (see :mod:`hpcfl.algorithms.noise`),
    so much that the honest survivors' alone is enough. The server sees who takes part, so that no
    sampling amplifies anything.

The norm C can adapt (Andrew, Thakkar, McMahan and Ramaswamy 2021): a device sends one coordinate
more, plus or minus one half (times a weight) by whether its update was shorter than C, and C moves
geometrically so that a given quantile is. It has the same noise as every coordinate, and a weight
such that it costs little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import QuantisedProtocol
from hpcfl.algorithms.federated.base import Federation, Learn, Vector
from hpcfl.algorithms.federated.private import PrivacyOptions, PrivateAlgorithm
from hpcfl.algorithms.noise import IntegerNoise, shorten
from hpcfl.errors import UsageError
from hpcfl.privacy.accounting.distributed import rounded_norm

# How fast the norm adapts, as Andrew et al. have it.
ADAPTATION_RATE = 0.2


@dataclass(frozen=True)
class Integers:
    """What a device sends of a vector, with distributed noise.

    Attributes
    ----------
    clip : float
        Norm that what it sends is shortened to, before it is scaled and rounded.
    norm : float
        The most that its integers' norm can be.
    size : int
        Number of coordinates, at the most.
    sigma : int
        Its noise.
    """

    clip: float
    norm: float
    size: int
    sigma: int


class DPFedAvg(PrivateAlgorithm):
    """Shortened updates, a noisy sum."""

    name = "dp-fedavg"

    @classmethod
    def check(cls, federation: Federation, privacy: PrivacyOptions) -> None:
        protocol = federation.protocol
        distributed = privacy.noise == "distributed"
        if distributed and not isinstance(protocol, QuantisedProtocol):
            raise UsageError(
                f"{protocol.name} sums real numbers in the clear, where distributed noise hides "
                "nobody: sum by secagg, secagg-graph or cohort, or train with --noise central"
            )
        if distributed and protocol.name == "sparse":
            raise UsageError(
                "sparse does not sum over all devices of a round, so their noise does not add up: "
                "use --aggregate cohort"
            )
        participation = federation.participation
        turns = participation.mode == "balanced" and participation.per_round < federation.devices
        if not distributed and turns:
            raise UsageError(
                "central noise is accounted for users that are drawn anew in every round, and "
                "those in turn are not: give --sampling poisson, or exact"
            )
        if distributed and participation.mode == "poisson":
            raise UsageError(
                "distributed noise is accounted for a known number of devices: give "
                "--sampling exact, or balanced"
            )

    def weights(self, participants: list[int]) -> NDArray[np.float64]:
        """Return equal weights: a user's influence is bounded by its norm alone."""
        return np.full(len(participants), 1 / len(participants))

    @property
    def first_state(self) -> Vector:
        if self.privacy.quantile is None:
            return super().first_state
        return np.array([self.privacy.clip_norm], np.float32)

    def contribution(self, device: int, round_index: int, state: Vector, learn: Learn) -> Vector:
        update = learn()
        if not state.size:
            return shorten(update, self.privacy.clip_norm)
        norm = float(state[0])
        within = np.linalg.norm(update.astype(np.float64)) <= norm
        bit = np.array([0.5 if within else -0.5], np.float32) * np.float32(self._bit_weight)
        # In units of the norm that C is at first: when C adapts, the noise need not change.
        sent = shorten(update, norm) * np.float32(self.privacy.clip_norm / norm)
        return np.concatenate([shorten(sent, self.privacy.clip_norm), bit])

    def integer_noise(self, protocol: QuantisedProtocol, round_index: int) -> IntegerNoise | None:
        if self.privacy.noise != "distributed":
            return None
        integers = self._integers(protocol, self.sigma)
        return IntegerNoise(integers.sigma, self._secrets(16), integers.clip)

    def update(
        self,
        aggregate: NDArray[np.float64],
        state: Vector,
        participants: list[int],
        round_index: int,
    ) -> NDArray[np.float64]:
        expected = self.federation.participation.per_round
        total = aggregate * len(participants)
        if self.privacy.noise == "central":
            total += self._central_noise(total.size, round_index)
        if not state.size:
            return total / expected
        norm, first = float(state[0]), self.privacy.clip_norm
        within = total[-1] / self._bit_weight / expected + 0.5
        assert self.privacy.quantile is not None
        moved = norm * math.exp(-ADAPTATION_RATE * (within - self.privacy.quantile))
        return np.append(total[:-1] / expected * (norm / first), norm - moved)

    def proven(self, rounds: int, sigma: float) -> float:
        """Return the epsilon; of distributed noise, what the integers and their sum make of it."""
        if self.privacy.noise == "central":
            return super().proven(rounds, sigma)
        from hpcfl.privacy.accounting import distributed, zcdp

        protocol = self.federation.protocol
        assert isinstance(protocol, QuantisedProtocol)
        integers = self._integers(protocol, sigma)
        honest = protocol.honest_in_sum(self.federation.bernoulli)
        rho = distributed.rho(honest, integers.sigma, integers.size, integers.norm)
        most = int(self.federation.participation.before(rounds).max())
        if most == 0 or math.isinf(rho):
            return 0.0 if most == 0 else math.inf
        return zcdp.rdp_epsilon(most * rho, self.privacy.delta)

    def promise(self) -> str:
        """Return in a sentence what distributed noise proves, and for whom."""
        federation = self.federation
        spent = self.spent(federation.rounds)
        assert isinstance(federation.protocol, QuantisedProtocol)
        honest = federation.protocol.honest_in_sum(federation.bernoulli)
        return (
            f"{federation.rounds} rounds are ({spent.proven:.4g}, {self.privacy.delta:g})-"
            "differentially private for a user's whole vector, present or not, as long as the "
            f"noise of {honest} honest {'devices is' if honest > 1 else 'device is'} in each sum"
        )

    def account_settings(self, rounds: int) -> dict[str, Any]:
        federation, privacy = self.federation, self.privacy
        poisson = federation.participation.mode == "poisson"
        return {
            "rounds": rounds,
            "devices": federation.devices,
            "per_round": federation.participation.per_round,
            "clip": privacy.clip_norm,
            "delta": privacy.delta,
            "sampling": "poisson" if poisson else "fixed",
            "sigma_count": None if privacy.quantile is None else self._sigma_count,
        }

    @property
    def _sigma_count(self) -> float:
        """Noise on the number of updates within the norm, as Andrew et al. have it."""
        return self.federation.participation.per_round / 20

    @property
    def _bit_weight(self) -> float:
        """What a bit is multiplied by, to have the noise of every coordinate."""
        return self.sigma / self._sigma_count

    @property
    def _norm(self) -> float:
        """Norm of what a device sends, its bit included."""
        bit = 0.0 if self.privacy.quantile is None else self._bit_weight / 2
        return math.hypot(self.privacy.clip_norm, bit)

    def _with_rounding(self, protocol: QuantisedProtocol, size: int, norm: float) -> float:
        """Return by what noise is enlarged for the rounding of `size` coordinates to integers.

        Of integers u times a vector of at most `norm`, the norm is at most u norm + sqrt(size).
        """
        # The most devices that a round can have: the fewest integers to a unit.
        parameters = protocol.parameters
        unit = parameters.levels / self.federation.devices / protocol.arrival
        return 1 + math.sqrt(size) / (unit * norm)

    def _central_noise(self, size: int, round_index: int) -> NDArray[np.float64]:
        """Return the server's noise for the sum of a round's vectors."""
        protocol = self.federation.protocol
        sigma = self.sigma / protocol.arrival
        if isinstance(protocol, QuantisedProtocol):
            sigma *= self._with_rounding(protocol, size, self._norm)
        return self.noise(round_index, self.federation.devices).gaussian(size, sigma)

    def _integers(self, protocol: QuantisedProtocol, sigma: float) -> Integers:
        """Return what noise of sigma on a sum is on integers.

        Of a cohort's m / N of the coordinates, the norm is bounded by sqrt(m / N) of the whole's,
        so that the noise may be smaller by as much.
        """
        parameters = protocol.parameters
        part = protocol.arrival / (1 - parameters.dropout)
        size = math.ceil(part * (parameters.dim + self.first_state.size))
        unit = parameters.levels * protocol.scale(0)
        clip = self._norm * math.sqrt(part)
        norm = rounded_norm(unit * clip, size)
        whole = norm * sigma / self._norm
        honest = protocol.honest_in_sum(self.federation.bernoulli)
        return Integers(clip, norm, size, math.ceil(whole / math.sqrt(honest)))
