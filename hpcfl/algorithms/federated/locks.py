"""Sampling by noisy norms in two stages: `locks`.

In a round, stage 1 invites each of n users with probability m / n. They train, clip their updates
to the norm C and send the norms z in a separate phase, `norms`. Stage 2 keeps b of them in
expectation, each with probability pi = min(1, b z / Z'), where Z' is the noisy sum of norms, at
least b C. Users with larger updates are kept more often (the LOCKS paper; where its text is
ambiguous, we take the reading under which b users are kept). An update y = g / pi makes the sum
unbiased.

trusted
    The trusted server adds noise twice: to the sum of the norms, and to the sum of the y, each of
    which has the norm S = Z' / b.
local
    Every user adds noise to its norm and to its update. The server sees which users take part. In
    g / pi, a pi below `LEAST_PROBABILITY` is replaced by it, which biases such updates; the paper's
    limit, 1e-6, would let one update, or its noise, outweigh all others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import MODEL, Aggregate, ModelReceiver, ModelSender
from hpcfl.algorithms.aggregation.messages import parse_vector
from hpcfl.algorithms.federated.base import Federation, FirstStage, Learn, Vector
from hpcfl.algorithms.federated.private import PrivateAlgorithm
from hpcfl.algorithms.noise import clip_l2
from hpcfl.comm.phases import Pattern, Payload, Step
from hpcfl.crypto.noise import NoiseSource
from hpcfl.errors import MessageError, UsageError
from hpcfl.options.privacy import NormOptions, PrivacyOptions
from hpcfl.privacy.accounting.locks import LocksAccount

SMALLEST_NORM = 1e-6
LEAST_PROBABILITY = 0.05


class Locks(PrivateAlgorithm):
    """Two-stage sampling: all users send norms, then the kept users send updates.

    At a trusted server, `scale` is the norm S of the vectors that the latest round's users sent.
    """

    name = "locks"
    options = (*PrivateAlgorithm.options, NormOptions)
    account = LocksAccount

    def __init__(self, federation: Federation, privacy: PrivacyOptions, secrets: Any) -> None:
        super().__init__(federation, privacy, secrets)
        self.scale = privacy.clip_norm

    @classmethod
    def check(cls, federation: Federation, privacy: PrivacyOptions) -> None:
        protocol = federation.protocol
        if federation.participation.mode != "poisson":
            raise UsageError("locks invites each user by chance: give --sampling poisson")
        if protocol.summed_in is not None:
            raise UsageError(
                f"locks cannot be aggregated by {protocol.name}: its server learns the users' "
                "norms, and is trusted or sees noisy updates; use --aggregate fedavg"
            )
        if privacy.variant == "trusted":
            cls._check_trusted_server(protocol, by_chance=True)

    @classmethod
    def defaults(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"sampling": "poisson"}

    @classmethod
    def invited(cls, per_round: int, devices: int, privacy: PrivacyOptions) -> int:
        return privacy.first_stage or min(devices, math.ceil(1.5 * per_round))

    @property
    def kept(self) -> int:
        """Number b of users that stage 2 keeps in expectation."""
        return self.federation.protocol.parameters.devices

    def contribution(self, device: int, round_index: int, learn: Learn) -> Vector:
        return clip_l2(learn(), self.privacy.clip_norm)

    def update(
        self, aggregate: Aggregate, participants: list[int], round_index: int
    ) -> NDArray[np.float64]:
        """Return the sum, with the noise of a trusted server, divided by m."""
        federation, total = self.federation, aggregate.total * len(participants)
        if self.privacy.variant == "trusted":
            relative = self.sigma / self.privacy.clip_norm
            source = self.noise(round_index, federation.devices)
            std = relative * self.scale / federation.protocol.divisor
            total = total + source.gaussian(total.size, std)
        return total / (federation.participation.per_round * self._surviving)

    @property
    def exact_dropouts(self) -> bool:
        # This is about stage 2: no user drops out of stage 1.
        return self.privacy.variant == "trusted" and self._exactly_so_many_drop_out()

    def account_settings(
        self, rounds: int, sigma: float, survivors: Sequence[int] = ()
    ) -> dict[str, Any]:
        participation, privacy = self.federation.participation, self.privacy
        settings = super().account_settings(rounds, sigma) | {
            "first_stage": participation.per_round,
            "sigma_norms": privacy.sigma_norms,
            "variant": privacy.variant,
            "exact_dropouts": self.exact_dropouts,
        }
        if privacy.variant == "local":
            settings["first_stages"] = participation.most_before(rounds)
        return settings

    @property
    def sigma_norms(self) -> float:
        """Parameter of the noise on a norm, or on the sum of the norms."""
        return self.sigma if self.privacy.sigma_norms is None else self.privacy.sigma_norms

    @property
    def first_stage(self) -> FirstStage:
        return FirstStage(STEPS, partial(NormsDevice, self), partial(NormsServer, self))


class NormsDevice(ModelReceiver):
    """A user of the first stage; `factor` multiplies its update: 1 / pi, or 0 if it is not kept."""

    def __init__(self, algorithm: Locks, id: int, round_index: int, dim: int) -> None:
        super().__init__(dim)
        self.id = id
        self.factor = 0.0
        self._algorithm = algorithm
        self._round = round_index

    def send_norms(self, update: Vector) -> Payload:
        """Return the update's norm, little-endian float64; with noise in the local variant."""
        algorithm = self._algorithm
        norm = float(np.linalg.norm(update.astype(np.float64)))
        if algorithm.privacy.variant == "local":
            # No device has this number, so the noise differs from that of any update.
            source = algorithm.noise(self._round, algorithm.federation.devices + 1 + self.id)
            norm += float(source.gaussian(1, algorithm.sigma_norms)[0])
        return np.array([norm], "<f8").view(np.uint8)

    def receive_norms(self, payload: Payload) -> None:
        """Keep the factor of the update."""
        factor = float(parse_vector(payload, "<f8", 1, "norms", "the server")[0])
        if not (np.isfinite(factor) and factor >= 0):
            raise MessageError("norms", "the server", f"{factor} is not a factor of an update")
        self.factor = factor

    @property
    def kept(self) -> bool:
        """Whether this user's update is to be in the sum."""
        return self.factor > 0

    def kept_update(self, update: Vector) -> Vector:
        """Return a kept user's update times its factor; with noise in the local variant."""
        algorithm = self._algorithm
        if algorithm.privacy.variant == "local":
            source = algorithm.noise(self._round, self.id)
            noise = source.gaussian(update.size, algorithm.sigma)
            update = (update + noise).astype(np.float32)
        return update * np.float32(self.factor)


class NormsServer(ModelSender):
    """The server of the first stage; `factors` are those of the kept users."""

    def __init__(self, algorithm: Locks, round_index: int, model: NDArray[np.float32]) -> None:
        super().__init__(model)
        self._algorithm = algorithm
        self._round = round_index
        self._norms: dict[int, float] = {}
        self.factors: dict[int, float] = {}

    @property
    def kept(self) -> list[int]:
        """Users whose updates are to be in the sum, increasing."""
        return sorted(self.factors)

    def receive_norms(self, sender: int, payload: Payload) -> None:
        """Check and keep a user's norm."""
        norm = float(parse_vector(payload, "<f8", 1, "norms", f"device {sender}")[0])
        if not np.isfinite(norm):
            raise MessageError("norms", f"device {sender}", "its norm is not finite")
        if sender in self._norms:
            raise MessageError("norms", f"device {sender}", "it was received twice")
        self._norms[sender] = norm

    def finish_norms(self) -> None:
        """Draw the kept users."""
        algorithm = self._algorithm
        clip, kept = algorithm.privacy.clip_norm, algorithm.kept
        source = algorithm.noise(self._round, -1)
        ids = list(self._norms)
        norms = np.array([self._norms[id] for id in ids])
        trusted = algorithm.privacy.variant == "trusted"
        least = 0.0 if trusted else SMALLEST_NORM
        norms = np.clip(norms, least, clip)
        total = float(norms.sum())
        if trusted:
            total += float(source.gaussian(1, algorithm.sigma_norms)[0])
        total = min(max(total, kept * clip), algorithm.federation.devices * clip)
        divisors = np.minimum(1.0, kept * norms / total)
        chosen = uniform(source, len(ids)) < divisors
        algorithm.scale = total / kept
        if not trusted:
            divisors = np.maximum(divisors, LEAST_PROBABILITY)
        self.factors = {
            id: 1 / float(divisor)
            for id, divisor, one in zip(ids, divisors, chosen, strict=True)
            if one
        }

    def send_norms(self, receiver: int) -> Payload:
        """Return the factor of a user's update, 0 if the user is not kept."""
        return np.array([self.factors.get(receiver, 0.0)], "<f8").view(np.uint8)


def uniform(source: NoiseSource, size: int) -> NDArray[np.float64]:
    """Return uniform numbers in [0, 1]: the distribution function applied to Laplace noise."""
    noise = source.laplace(size, 1.0)
    return np.where(noise < 0, 0.5 * np.exp(-np.abs(noise)), 1 - 0.5 * np.exp(-np.abs(noise)))


# Norms go up, and the factors of updates come down, 0 for a user that is not kept.
STEPS = (
    MODEL,
    Step(
        "norms",
        Pattern.GATHER,
        NormsDevice.send_norms,
        NormsServer.receive_norms,
        upload=True,
        finish=NormsServer.finish_norms,
    ),
    Step("norms", Pattern.SCATTER, NormsServer.send_norms, NormsDevice.receive_norms),
)
