"""User-level differential privacy: `dp-fedavg` (McMahan, Ramage, Talwar and Zhang 2018).

Every update is clipped to the norm C, and the sum of a round's updates gets Gaussian noise of
standard deviation sigma = z C; the model moves by the sum over the expected number of updates.

central
    A trusted server adds the noise. If it sums integers, rounding can move the sum by up to
    sqrt(d) integers more, so sigma is enlarged accordingly.
distributed
    Every device adds discrete Gaussian noise to its integers (see :mod:`hpcfl.algorithms.noise`),
    enough that the honest survivors' noise alone suffices. The integers' norm is limited to a value
    that rounding hardly ever reaches. The server sees which devices take part, so sampling does not
    amplify privacy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import Aggregate, AggregationProtocol
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.algorithms.federated.base import Federation, Learn, Vector
from hpcfl.algorithms.federated.private import PrivateAlgorithm
from hpcfl.algorithms.noise import IntegerNoise, clip_l2
from hpcfl.errors import UsageError
from hpcfl.options.privacy import PrivacyOptions, UpdateNoiseOptions
from hpcfl.options.protocols import ThreatOptions
from hpcfl.privacy.accounting.dp_fedavg import DPFedAvgAccount
from hpcfl.report.formats import counted


class DPFedAvg(PrivateAlgorithm):
    """Federated averaging of clipped updates with a noisy sum."""

    name = "dp-fedavg"
    options = (*PrivateAlgorithm.options, UpdateNoiseOptions, ThreatOptions)
    account = DPFedAvgAccount

    @classmethod
    def check(cls, federation: Federation, privacy: PrivacyOptions) -> None:
        if privacy.noise == "distributed":
            cls._check_distributed(federation)
        else:
            cls._check_central(federation)

    @staticmethod
    def _check_distributed(federation: Federation) -> None:
        protocol = federation.protocol
        if not isinstance(protocol, QuantisedProtocol):
            raise UsageError(
                f"{protocol.name} sums real numbers, not the integers that distributed noise is "
                "accounted for: sum by a protocol of masked integers, as secagg, or train with "
                "fedavg and --noise central"
            )
        if not protocol.noise_adds_up:
            raise UsageError(
                f"no sum of {protocol.name} holds the noise of all devices of a round: use "
                "--aggregate cohort, or secagg"
            )
        if federation.participation.mode == "poisson":
            raise UsageError(
                "distributed noise is accounted for a known number of devices: give "
                "--sampling exact, or balanced"
            )

    @staticmethod
    def _check_central(federation: Federation) -> None:
        protocol, participation = federation.protocol, federation.participation
        everybody = participation.per_round == federation.devices
        by_chance = participation.mode == "poisson" and not everybody
        DPFedAvg._check_trusted_server(protocol, by_chance)
        if participation.mode == "balanced" and not everybody:
            raise UsageError(
                "the account of central noise needs users that are drawn anew in every round, and "
                "with --sampling balanced they take turns: give --sampling poisson, or exact"
            )
        if by_chance and protocol.sparse_upload:
            raise UsageError(
                f"with {protocol.name} a device sends coordinates that depend on who else is in "
                "the round, so a user who is there by chance changes more than its own vector: "
                "give --sampling exact, or another --aggregate"
            )
        if by_chance and max(protocol.min_devices, protocol.needed_in_sum) > 1:
            raise UsageError(
                "a round of few users ends early, which reveals how many take part, and that must "
                "stay secret: give --sampling exact, or --aggregate fedavg"
            )

    def contribution(self, device: int, round_index: int, learn: Learn) -> Vector:
        return clip_l2(learn(), self.privacy.clip_norm)

    def integer_noise(self, protocol: QuantisedProtocol, round_index: int) -> IntegerNoise | None:
        if self.privacy.noise != "distributed":
            return None
        found = self.account_for(self.federation.rounds, self.sigma).integers()
        norm = self.privacy.clip_norm * math.sqrt(protocol.inclusion)
        return IntegerNoise(found.sigma, self._integer_secret(round_index), norm, found.norm)

    @property
    def noise_in_sum(self) -> float:
        """Standard deviation of the noise on a coordinate of a round's sum, over the norm C.

        It is for the sum by which the model moves: if devices send only a part of the coordinates,
        sent values and their noise are scaled up for the others. If devices add the noise, it is
        that of the expected number of devices in a sum; the account counts on fewer. The extra
        noise for rounding to integers is included.
        """
        protocol, clip = self.federation.protocol, self.privacy.clip_norm
        if self.privacy.noise == "central":
            return self._central_sigma(protocol) / clip
        assert isinstance(protocol, QuantisedProtocol)
        parameters = protocol.parameters
        found = self.account_for(self.federation.rounds, self.sigma).integers()
        in_sum, _ = protocol.most_in_sum(parameters.devices)
        summed = in_sum * (1 - parameters.dropout)
        return found.sigma * math.sqrt(summed) / (parameters.levels * parameters.weight(0) * clip)

    def update(
        self, aggregate: Aggregate, participants: list[int], round_index: int
    ) -> NDArray[np.float64]:
        # Divided by the expected number of devices: the number of survivors would reveal something.
        expected = self.federation.participation.per_round * self._surviving
        total = aggregate.total * len(participants)
        if self.privacy.noise == "central":
            source = self.noise(round_index, self.federation.devices)
            total += source.gaussian(total.size, self._central_sigma(self.federation.protocol))
        return total / expected

    def promises(self) -> list[str]:
        if self.privacy.noise == "central":
            return super().promises()
        federation = self.federation
        assert isinstance(federation.protocol, QuantisedProtocol)
        honest = federation.protocol.honest_in_sum()
        rounds = federation.rounds + self.repeated
        proven = self.proven(rounds, self.sigma)
        return [
            f"{counted(rounds, 'round')} {'is' if rounds == 1 else 'are'} "
            f"({proven:.4g}, {self.privacy.delta:g})-differentially private for a user's whole "
            "vector, present or not, as long as the "
            f"noise of {honest} honest {'devices is' if honest > 1 else 'device is'} in each sum"
        ]

    def settings(self) -> dict[str, object]:
        return super().settings() | {"noise_in_sum": self.noise_in_sum}

    @property
    def slow_account(self) -> bool:
        return self.privacy.noise == "central"

    @property
    def counts_survivors(self) -> bool:
        return self.privacy.noise == "distributed"

    @property
    def exact_dropouts(self) -> bool:
        # In rounds of a fixed size, a user replaces another one and is not added.
        by_number = self.federation.participation.mode == "poisson"
        central = self.privacy.noise == "central"
        return central and by_number and self._exactly_so_many_drop_out()

    def account_settings(
        self, rounds: int, sigma: float, survivors: Sequence[int] = ()
    ) -> dict[str, Any]:
        participation = self.federation.participation
        settings = super().account_settings(rounds, sigma) | {
            "per_round": participation.per_round,
            "sampling": "poisson" if participation.mode == "poisson" else "exact",
            "exact_dropouts": self.exact_dropouts,
        }
        if self.privacy.noise == "distributed":
            return settings | self._integer_settings(rounds, survivors)
        parameters = self.federation.protocol.parameters
        secret = participation.mode == "poisson" and participation.per_round < participation.devices
        # See `_check_central`.
        failure = 2.0**-parameters.security_bits if secret and parameters.drop_by_chance else 0.0
        return settings | {"failure": failure}

    def _integer_settings(self, rounds: int, survivors: Sequence[int]) -> dict[str, Any]:
        """Return the additional settings of the account of distributed noise.

        A cohort's part of the coordinates is clipped to sqrt(part) of the norm, so its noise is
        smaller by that factor, as with fewer integers per unit. Parts may differ by a coordinate.
        """
        protocol = self.federation.protocol
        assert isinstance(protocol, QuantisedProtocol)
        part, unit = protocol.inclusion, protocol.parameters.levels * protocol.scale(0)
        sent = math.ceil(part * protocol.parameters.dim) + (part < 1)
        return {
            "noise": "distributed",
            "honest": protocol.honest_in_sum(),
            "honest_by_round": self._honest(protocol, rounds, survivors),
            "failure": protocol.hidden_failure(),
            "unit": unit * math.sqrt(part),
            "dim": sent,
            "participations": self.federation.participation.most_before(rounds),
        }

    def _central_sigma(self, protocol: AggregationProtocol) -> float:
        """Return the standard deviation of the server's noise for a protocol's sums.

        It is enlarged for rounding to integers: if a vector of d coordinates and norm at most C is
        multiplied by u and rounded, its norm is at most u C + sqrt(d).
        """
        sigma = self.sigma / protocol.divisor
        if isinstance(protocol, QuantisedProtocol):
            # A round of all devices has the fewest integers per unit.
            unit = protocol.quantiser.levels / self.federation.devices / protocol.divisor
            sigma *= 1 + math.sqrt(protocol.parameters.dim) / (unit * self.privacy.clip_norm)
        return sigma
