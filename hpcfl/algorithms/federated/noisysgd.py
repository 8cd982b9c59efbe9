"""Noisy gradients on every device: `cdp` and `dp-dsgd`.

A device takes tau steps theta <- theta - eta (g + N(0, sigma**2 I)), where g is the mean of its
samples' gradients, each clipped to the norm G, and the server takes the mean of the models (Hu,
Gong and Guo 2021, "Concentrated differentially private federated learning", Algorithm 1). The
baseline `dp-dsgd` is the same with one step a round.

If the protocol sums integers, the noise of the last step is discrete, because Gaussian noise that
each device rounds separately proves nothing about a sum of integers. In units of the protocol's
integers, one access of a record moves the vector by at most u 2 eta G / gamma. Rounding with the
same random numbers adds at most one in each coordinate, sqrt(d) in all. The account uses a sigma
that is smaller by the same ratio.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.algorithms.federated.base import Federation, Learn, Vector
from hpcfl.algorithms.federated.private import PrivateAlgorithm
from hpcfl.algorithms.noise import IntegerNoise
from hpcfl.errors import UsageError
from hpcfl.options.privacy import ConvexOptions, MechanismOptions, PrivacyOptions, StepNoiseOptions
from hpcfl.options.protocols import ThreatOptions
from hpcfl.options.training import LocalOptions
from hpcfl.privacy.accounting.cdp import CDPAccount, DPDSGDAccount
from hpcfl.privacy.accounting.distributed import rounded_distance
from hpcfl.privacy.accounting.fedsgd_dpc import FedSGDDPCAccount

# Above it, a sum of discrete Gaussians is one itself, up to a divergence below 1e-270.
LEAST_INTEGER_SIGMA = 8


def _local(federation: Federation) -> LocalOptions:
    assert federation.local is not None
    return federation.local


class NoisyGradients(PrivateAlgorithm):
    """Algorithms whose devices add noise to the gradients of their own steps."""

    noisy_steps = True
    options = (*PrivateAlgorithm.options, StepNoiseOptions)
    one_step: ClassVar[bool] = False  # whether a device takes only one step a round

    @classmethod
    def defaults(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"momentum": 0.0, "sampling": "balanced"}
        if cls.one_step:
            found["steps"] = 1
        return found | ({"batch_size": 0} if given.get("mechanism") == "laplace" else {})

    @classmethod
    def check(cls, federation: Federation, privacy: PrivacyOptions) -> None:
        if _local(federation).steps is None:
            raise UsageError(f"{cls.name} counts local steps: give --steps")
        if cls.one_step and _local(federation).steps != 1:
            raise UsageError(f"{cls.name} takes one local step a round: give --steps 1")
        if _local(federation).momentum != 0:
            raise UsageError(f"{cls.name} is accounted without local momentum: give --momentum 0")
        protocol = federation.protocol
        if protocol.sparse_upload or not protocol.noise_adds_up:
            raise UsageError(
                f"{cls.name} is accounted for whole vectors with noise, and {protocol.name} sends "
                "parts of them, or limits them: choose another --aggregate"
            )
        participation, summed = federation.participation, protocol.summed_in is not None
        if (
            summed
            and participation.mode == "poisson"
            and participation.per_round < federation.devices
        ):
            raise UsageError(
                f"{cls.name} needs the noise of a known number of devices in every sum: give "
                "--sampling balanced, or exact"
            )

    def participations(self, device: int, round_index: int) -> int:
        """Return how often a device may have taken part before, which determines its batches."""
        before = self.federation.participation.before(self.play_index(round_index))
        return int(before[device])

    @property
    def _local(self) -> LocalOptions:
        return _local(self.federation)

    @property
    def _batch(self) -> int:
        """The divisor of gradient sums on the device with the fewest samples."""
        return self._local.divisor(int(self.federation.sizes.min()))


class NoisySGD(NoisyGradients):
    """Algorithm 1: tau noisy steps on every device of a round."""

    name = "cdp"
    # If integers are summed, the noise of the last step is discrete.
    options = (*NoisyGradients.options, ThreatOptions, ConvexOptions)
    account = CDPAccount

    @classmethod
    def check(cls, federation: Federation, privacy: PrivacyOptions) -> None:
        super().check(federation, privacy)
        if privacy.shuffle == "poisson":
            raise UsageError(
                f"the account of {cls.name} holds for epochs, not for Poisson batches: give "
                "--shuffle continuing, or fresh"
            )

    def contribution(self, device: int, round_index: int, learn: Learn) -> Vector:
        source = self.noise(round_index, device)
        steps, sigma = self._steps, self.sigma
        # If integers are summed, the last step's noise is added to them.
        noisy = steps - 1 if self._summed_in_integers else steps
        taken = 0

        def noise(size: int) -> NDArray[np.float64]:
            nonlocal taken
            taken += 1
            return source.gaussian(size, sigma) if taken <= noisy else np.zeros(size)

        return learn(participation=self.participations(device, round_index), noise=noise)

    def integer_noise(self, protocol: QuantisedProtocol, round_index: int) -> IntegerNoise | None:
        """Return the last step's noise, which devices add to their integers, or None."""
        if not self._summed_in_integers:
            return None
        eta = self._local.rate(round_index)
        sigma = math.ceil(self._unit(protocol) * eta * self.sigma)
        return IntegerNoise(sigma, self._integer_secret(round_index))

    def proven(self, rounds: int, sigma: float, survivors: Sequence[int] = ()) -> float:
        """Return the proven epsilon; if integers are summed, sigma is lowered for rounding."""
        if not self._summed_in_integers:
            return super().proven(rounds, sigma)
        protocol, local = self.federation.protocol, self._local
        assert isinstance(protocol, QuantisedProtocol)
        least = min(local.rate(index) for index in range(max(1, rounds)))
        unit = self._unit(protocol) * least
        moved = unit * 2 * self.privacy.clip_norm / self._batch
        if unit * sigma < LEAST_INTEGER_SIGMA:
            return math.inf
        less = sigma * moved / rounded_distance(moved, protocol.parameters.dim)
        account = self.account_for(rounds, less, survivors)
        discrete = replace(account, discrete=True, integer_sigma=unit * sigma)
        return float(discrete.proven().epsilon)

    @property
    def slow_account(self) -> bool:
        return False

    @property
    def counts_survivors(self) -> bool:
        return self._summed_in_integers

    def account_settings(
        self, rounds: int, sigma: float, survivors: Sequence[int] = ()
    ) -> dict[str, Any]:
        federation, privacy, protocol = self.federation, self.privacy, self.federation.protocol
        lost, failure = 0, 0.0
        if isinstance(protocol, QuantisedProtocol):
            honest = self._honest(protocol, max(1, rounds), survivors)
            lost = protocol.parameters.devices - min(honest)
            failure = protocol.hidden_failure()
        return super().account_settings(rounds, sigma) | {
            "batch_size": self._batch,
            "samples": int(federation.sizes.min()),
            "steps": self._steps,
            "secagg": self._summed_in_integers,
            "convex": privacy.convex,
            "shuffle": privacy.shuffle,
            "colluding": lost,
            "participations": federation.participation.most_before(rounds),
            "failure": failure,
        }

    @property
    def _summed_in_integers(self) -> bool:
        return self.federation.protocol.summed_in is not None

    @property
    def _steps(self) -> int:
        return self._local.steps or 1

    @staticmethod
    def _unit(protocol: QuantisedProtocol) -> float:
        """Return the number of integers per unit of a device's vector."""
        return protocol.parameters.levels * protocol.scale(0)


class DistributedSGD(NoisySGD):
    """The baseline: one noisy step a round."""

    name = "dp-dsgd"
    options = (*NoisyGradients.options, ThreatOptions)
    account = DPDSGDAccount
    one_step = True


class FedSGDDPC(NoisyGradients):
    """FedSGD-DPC (the queries-and-replies paper): one noisy gradient of b devices in turn.

    Laplace noise hides the mean over all of a device's samples, Gaussian noise the mean over a
    Poisson sample of them. A mean over fewer samples needs more noise, so each device has its own
    scale; sigma is that of the device with the fewest samples. Every answer is private by itself,
    so rounding it afterwards costs nothing.
    """

    name = "fedsgd-dpc"
    options = (*NoisyGradients.options, MechanismOptions)
    account = FedSGDDPCAccount
    one_step = True

    @classmethod
    def defaults(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        return super().defaults(given) | {"shuffle": "poisson"}

    @classmethod
    def check(cls, federation: Federation, privacy: PrivacyOptions) -> None:
        super().check(federation, privacy)
        if privacy.mechanism == "laplace" and _local(federation).batch_size != 0:
            raise UsageError(
                f"{cls.name} with Laplace noise uses all samples in every gradient: give "
                "--batch-size 0"
            )
        if privacy.mechanism == "gaussian" and privacy.shuffle != "poisson":
            raise UsageError(
                f"{cls.name} with Gaussian noise is accounted for Poisson batches: give "
                "--shuffle poisson"
            )

    def contribution(self, device: int, round_index: int, learn: Learn) -> Vector:
        source = self.noise(round_index, device)
        sigma = self.sigma
        if self._local.batch_size == 0:
            # The sensitivity of a mean is inversely proportional to the number of samples.
            sizes = self.federation.sizes
            sigma *= sizes.min() / sizes[device]
        draw = source.laplace if self.privacy.mechanism == "laplace" else source.gaussian
        participations = self.participations(device, round_index)
        return learn(participation=participations, noise=lambda size: draw(size, sigma))

    def account_settings(
        self, rounds: int, sigma: float, survivors: Sequence[int] = ()
    ) -> dict[str, Any]:
        federation, mechanism = self.federation, self.privacy.mechanism
        samples = int(federation.sizes.min())
        return super().account_settings(rounds, sigma) | {
            "samples": samples,
            "delta": None if mechanism == "laplace" else self.privacy.delta,
            "mechanism": mechanism,
            "fraction": self._batch / samples,
            "replies": federation.participation.most_before(rounds),
        }
