"""What every aggregation protocol has: parameters, steps, and its two parties."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.noise import IntegerNoise
from hpcfl.algorithms.parameters import Parameters
from hpcfl.algorithms.quantisation import Quantiser, check_levels
from hpcfl.comm.phases import Payload, Step, phase_names
from hpcfl.crypto.groups import Group
from hpcfl.crypto.keys import SecretSource
from hpcfl.errors import MessageError, UsageError


class Enrolment(ABC):
    """What devices and server do once, before the first round of a run.

    Attributes
    ----------
    steps : tuple of Step
        Its exchanges, in order.
    largest_message : int
        No device sends more than this to the server at once, in bytes, less envelope.
    registered_bytes : int
        Size of the public key with which a device is registered beforehand, apart from the server:
        its ``registers()`` returns it, and ``learn(registry)`` takes those of all devices, uint8 of
        shape (n, registered_bytes). 0 if nothing is registered.
    """

    steps: ClassVar[tuple[Step, ...]]
    largest_message: ClassVar[int]
    registered_bytes: ClassVar[int] = 0

    @abstractmethod
    def device(self, id: int, secrets: SecretSource) -> Any:
        """Return the side of a device, which keeps what it learns for all rounds."""

    @abstractmethod
    def server(self) -> Any:
        """Return the server's side."""


class AggregationProtocol(ABC):
    """A protocol that forms the weighted sum of the devices' vectors.

    Attributes
    ----------
    name : str
        Name on the command line and in every key derivation.
    steps : tuple of Step
        Its exchanges, in order.
    min_devices : int
        Fewer devices make no sense.
    sparse_upload : bool
        Whether an upload is only some coordinates of the vector, as the parameters alpha, sampler
        and locations say.
    tolerates_dropouts : bool
        Whether a round can end without a device that began it.
    summed_in : Group or None
        The group in which uploads are summed; None for real numbers.
    """

    name: ClassVar[str]
    steps: tuple[Step, ...]
    min_devices: ClassVar[int] = 1
    sparse_upload: ClassVar[bool] = False
    tolerates_dropouts: ClassVar[bool] = True

    def __init__(self, parameters: Parameters) -> None:
        if parameters.devices < self.min_devices:
            raise UsageError(
                f"{self.name} needs at least {self.min_devices} devices, but there are "
                f"{parameters.devices}: start more ranks, or give --devices or --per-round"
            )
        if parameters.dropout > 0 and not self.tolerates_dropouts:
            raise UsageError(
                f"{self.name} has no dropouts, but the dropout rate is {parameters.dropout}: it "
                "has no way to remove a missing device's masks; give --dropout 0, or use secagg"
            )
        self.parameters = parameters

    @property
    def summed_in(self) -> Group | None:
        return None

    @property
    def arrival(self) -> float:
        """Probability that a coordinate of a device reaches the sum; its inverse scales vectors."""
        return 1 - self.parameters.dropout

    @property
    def largest_message(self) -> int:
        """An upper bound of what a device sends to the server at once, in bytes, less envelope."""
        return 4 * self.parameters.dim

    def settings(self) -> dict[str, Any]:
        """Return what the protocol has chosen by itself, for the record."""
        return {}

    def promises(self) -> list[str]:
        """Return, in sentences, what the protocol hides with these parameters, and how surely."""
        return []

    @classmethod
    def enrolment(cls, devices: int) -> Enrolment | None:
        """Return what `devices` devices do once, before the first round; None for nothing."""
        return None

    def join(  # noqa: B027
        self, enrolled: Mapping[int, Any], members: Sequence[int], population: int
    ) -> None:
        """Let enrolled devices play the rounds; a protocol without enrolment needs nothing.

        Parameters
        ----------
        enrolled : mapping of int to device
            The devices of this rank as their enrolment left them, by the ids they enrolled with.
        members : sequence of int
            Those ids of the devices 0 to N - 1 of the rounds, in increasing order.
        population : int
            Number n of devices that enrolled.
        """

    @classmethod
    def phases(cls) -> list[str]:
        """Return the names of the phases, in order."""
        return phase_names(cls.steps)

    @classmethod
    def upload_phase(cls) -> str:
        """Return the phase in which the devices' vectors are sent."""
        return next(step.phase for step in cls.steps if step.upload)

    @abstractmethod
    def device(self, id: int, round_index: int, secrets: SecretSource) -> Any:
        """Return the device's side of a round."""

    @abstractmethod
    def server(self, round_index: int, model: NDArray[np.float32]) -> Any:
        """Return the server's side of a round, which starts from `model`, shape (d,)."""

    @abstractmethod
    def decode(self, total: NDArray[Any]) -> NDArray[np.float64]:
        """Return the sum of vectors that the server's `total` stands for."""


class QuantisedProtocol(AggregationProtocol):
    """A protocol that sums quantised vectors in a group."""

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters)
        self.quantiser = Quantiser(parameters.clip, parameters.levels)
        self.noise: IntegerNoise | None = None
        self._check_levels(0)

    def _check_levels(self, reserve: int) -> None:
        parameters = self.parameters
        check_levels(
            parameters.levels,
            parameters.arithmetic,
            parameters.devices,
            parameters.clip,
            self.smallest_arrival,
            reserve,
        )

    def add_noise(self, noise: IntegerNoise) -> None:
        """Let every device add noise to its integers.

        Raises
        ------
        UsageError
            If a sum with its noise could wrap around, except with the probability that
            `correctness_bits` says: privacy would be kept, but not the sum.
        """
        parameters = self.parameters
        self._check_levels(
            noise.bound(parameters.devices, parameters.dim, 2.0**-parameters.correctness_bits)
        )
        self.noise = noise

    def honest_in_sum(self, bernoulli: bool = False) -> int:
        """Return the fewest honest survivors whose vectors, and noise, are in one coordinate.

        Parameters
        ----------
        bernoulli : bool
            Devices drop out by chance: of as many as the threshold needs, at the worst.
        """
        parameters = self.parameters
        dropped = math.floor(Fraction(repr(parameters.dropout)) * parameters.devices)
        colluding = math.floor(Fraction(repr(parameters.gamma)) * parameters.devices)
        survivors = parameters.threshold if bernoulli else parameters.devices - dropped
        return max(1, survivors - colluding)

    @property
    def summed_in(self) -> Group:
        return self.parameters.arithmetic

    @property
    def smallest_arrival(self) -> float:
        """What `arrival` can be in a round in which devices vanish early; no sum wraps around."""
        return self.arrival

    def quantise(
        self,
        values: NDArray[np.floating],
        device: int,
        round_index: int,
        arrival: float | None = None,
    ) -> NDArray[np.int64]:
        """Return a device's `values`, weighted, scaled and rounded to integers.

        The same arguments give the same rounding, and the same noise if there is any: that is how
        a round is validated. `arrival` is the protocol's, unless the round has another.
        """
        if self.noise is not None:
            values = self.noise.clip(values)
        spawn_key = (ROUNDING, round_index, device)
        seeds = np.random.SeedSequence(self.parameters.seed, spawn_key=spawn_key)
        generator = np.random.Generator(np.random.SFC64(seeds))
        integers = self.quantiser.quantise(values, self.scale(device, arrival), generator)
        if self.noise is not None:
            integers += self.noise.draw(integers.size, device, round_index)
        return integers

    def scale(self, device: int, arrival: float | None = None) -> float:
        """Return what a device multiplies its vector by, beta / arrival."""
        return self.parameters.weight(device) / (arrival or self.arrival)

    def decode(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.quantiser.dequantise(total)


# First element of the spawn keys of the run's seed: what the random numbers are for.
ROUNDING, UPDATES, DROPOUTS, TRAINING, SAMPLING, SPARSIFICATION, COLLUSION, NOISE = range(8)


class ModelReceiver:
    """The part of a device that receives the current model."""

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self.model: NDArray[np.float32] | None = None

    def receive_model(self, payload: Payload) -> None:
        """Keep the model, float32 of shape (d,)."""
        self.model = parse_vector(payload, "<f4", self._dim, "model", "the server")


class ModelSender:
    """The part of a server that sends the current model."""

    def __init__(self, model: NDArray[np.float32]) -> None:
        self.model = model.astype("<f4", copy=False)

    def send_model(self) -> Payload:
        """Return the model, float32 of shape (d,), little-endian."""
        return self.model.view(np.uint8)


def parse_vector(
    payload: Payload, dtype: str, length: int, phase: str, sender: str
) -> NDArray[Any]:
    """Return `payload` as a vector of exactly `length` numbers.

    Raises
    ------
    MessageError
        If it has another size.
    """
    expected = np.dtype(dtype).itemsize * length
    if payload.size != expected:
        raise MessageError(phase, sender, f"{payload.size} bytes came, {expected} were expected")
    return payload.view(dtype)
