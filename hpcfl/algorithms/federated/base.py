"""What every federated algorithm decides: who takes part, what they contribute, what it costs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import Aggregate, AggregationProtocol
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.algorithms.federated.participation import Participation
from hpcfl.algorithms.noise import IntegerNoise, NoiseSecrets
from hpcfl.comm.phases import Step, phase_names
from hpcfl.options.definition import OptionGroup
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.options.training import LocalOptions, TrainOptions

Vector = NDArray[np.float32]


class Learn(Protocol):
    """Trains on a device's data from the model that it received.

    The arguments are those of `PrivateTrainer.local_update` that a plain trainer does not have.
    """

    def __call__(self, **private: object) -> Vector: ...


@dataclass(frozen=True)
class Federation:
    """Who trains what."""

    sizes: NDArray[np.int64]  # shape (n,): number of samples of every device
    participation: Participation  # who takes part in which round
    rounds: int  # that are planned
    seed: int  # of the run
    protocol: AggregationProtocol  # how vectors are summed, as it is for r devices
    local: LocalOptions | None  # how a device trains, where it does

    @property
    def devices(self) -> int:
        """Number n of devices."""
        return self.sizes.size


@dataclass(frozen=True)
class Spent:
    """What rounds cost in privacy, each an epsilon at the run's delta."""

    paper: float  # what the algorithm's paper claims
    proven: float  # what is proven for the rounds as they were run


@dataclass(frozen=True)
class FirstStage:
    """Exchanges that a round begins with: they say which devices go on to the sum."""

    steps: tuple[Step, ...]  # the model's among them
    # From the device's id, the number of the round and the length of the model to the device's
    # side. After the exchanges, its ``kept`` says whether the device goes on, and
    # ``kept_update(update)`` returns what it then puts into the sum.
    device: Callable[[int, int, int], Any]
    # From the number of the round and the model to the server's side. Its ``kept`` are the slots,
    # among those invited, of the devices that go on, increasing.
    server: Callable[[int, Vector], Any]


class FederatedAlgorithm(ABC):
    """Who takes part, what they contribute, with what noise, and what it costs; on one rank.

    All ranks have the same, and the same random choices. A new algorithm has a `name` and a
    `contribution`; everything else has a default.
    """

    name: ClassVar[str]  # on the command line
    # What it can be told; options that neither it nor the protocol has are refused.
    options: ClassVar[tuple[type[OptionGroup], ...]] = (LocalOptions,)
    noisy_steps: ClassVar[bool] = False  # whether devices clip gradients and add noise in each step
    private: ClassVar[bool] = False  # whether there is an account of what rounds cost in privacy
    leaves_out: ClassVar[bool] = False  # whether a device sends some coordinates only

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        # Rounds that earlier launches may have played besides those before the present one.
        self.repeated = 0

    # Options

    @classmethod
    def make(cls, federation: Federation, options: TrainOptions, secrets: NoiseSecrets) -> Self:
        """Return the algorithm of one rank; cryptographic noise comes from `secrets`."""
        return cls(federation)

    @classmethod
    def defaults(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that have another default, which may depend on those `given`."""
        return {}

    @classmethod  # noqa: B027
    def check(cls, federation: Federation, privacy: PrivacyOptions) -> None:
        """Refuse what does not go together; the samples' numbers and d may not be known yet."""

    # Who takes part

    @classmethod
    def invited(cls, per_round: int, devices: int, privacy: PrivacyOptions) -> int:
        """Return how many of the n devices begin a round in whose sum `per_round` are to be."""
        return per_round

    def play_index(self, round_index: int) -> int:
        """Return the number of rounds that may have been played before this one is.

        All that chance decides follows from it. A round that is played again, by a launch that goes
        on from a checkpoint, has another number than before: so it has other participants, batches
        and noise, and costs as much privacy as a new round does.
        """
        return round_index + self.repeated

    def resume(self, survivors: Sequence[int], repeated: int) -> None:
        """Take up a run whose earlier launches may have played `repeated` rounds in vain.

        `survivors` are the devices in the sum of each round before the one to go on with.
        """
        self.repeated = repeated

    def participants(self, round_index: int) -> list[int]:
        """Return the ids of the devices that take part in a round, increasing."""
        return self.federation.participation.draw(self.play_index(round_index))

    # What they contribute

    @property
    def first_stage(self) -> FirstStage | None:
        """What a round begins with, before vectors are summed; None if all participants go on."""
        return None

    def phases(self, protocol: AggregationProtocol) -> list[str]:
        """Return the names of a round's phases, in order."""
        first = self.first_stage
        if first is None:
            return protocol.phases()
        summing = [phase for phase in protocol.phases() if phase != "model"]
        return [*phase_names(first.steps), *summing]

    @abstractmethod
    def contribution(self, device: int, round_index: int, learn: Learn) -> NDArray[np.floating]:
        """Return what a device puts into the sum of a round, shape (d,).

        `learn` trains on the device's data from the model that the device received.
        """

    def take_choices(self, dim: int) -> tuple[list[NDArray[np.int64]], int] | None:
        """Return the coordinates that this rank's devices chose since this was last asked.

        With them, how many of `dim` a device chooses. None for an algorithm that chooses none.
        """
        return None

    def integer_noise(self, protocol: QuantisedProtocol, round_index: int) -> IntegerNoise | None:
        """Return what every device adds to its integers."""
        return None

    # What becomes of the sum, and what it costs

    def weights(self, participants: list[int]) -> NDArray[np.float64]:
        """Return the weights, adding up to 1, with which the participants' vectors are summed."""
        sizes = self.federation.sizes[participants]
        return sizes / sizes.sum()

    def update(
        self, aggregate: Aggregate, participants: list[int], round_index: int
    ) -> NDArray[np.float64]:
        """Return, at the server, what to subtract from the model, shape (d,)."""
        return aggregate.mean

    def observe(self, survivors: int) -> None:  # noqa: B027
        """Take note, at the server, of how many devices were in the sum of a round."""

    def spent(self, rounds: int) -> Spent | None:
        """Return what `rounds` rounds cost in privacy, those played in vain among them.

        None without any promise.
        """
        return None

    def promises(self) -> list[str]:
        """Return, in sentences, what the account counts on in this run besides its settings."""
        return []

    def settings(self) -> Mapping[str, object]:
        """Return what the algorithm has chosen by itself, for the record."""
        return {}


class FederatedAveraging(FederatedAlgorithm):
    """Federated averaging (McMahan et al. 2017): every device sends its update.

    With error feedback (Seide et al. 2014), a device adds to its next update what the protocol did
    not send of it; for protocols that send the same coordinates of all. What is sent counts as
    delivered, though the device may drop out.
    """

    name = "fedavg"

    def __init__(self, federation: Federation, error_feedback: bool = False) -> None:
        super().__init__(federation)
        self._unsent: dict[int, Vector] | None = {} if error_feedback else None

    @classmethod
    def make(cls, federation: Federation, options: TrainOptions, secrets: NoiseSecrets) -> Self:
        return cls(federation, options.error_feedback)

    def contribution(self, device: int, round_index: int, learn: Learn) -> Vector:
        update = learn()
        if self._unsent is None:
            return update
        protocol = self.federation.protocol
        update += self._unsent.get(device, 0)
        self._unsent[device] = update.copy()
        self._unsent[device][protocol.sent_in(round_index)] = 0
        # The sum is divided by the part of the rounds in which a coordinate is sent: here the
        # coordinate makes up for the other rounds by itself.
        return np.float32(protocol.inclusion) * update
