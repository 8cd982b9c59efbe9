"""The base of federated algorithms: participants, their contributions, and privacy costs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
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
from hpcfl.values import dataclass

Vector = NDArray[np.float32]


class Learn(Protocol):
    """Trains on a device's data, starting from the model that the device received.

    The arguments are those that `PrivateTrainer.local_update` has and a plain trainer does not.
    """

    def __call__(self, **private: object) -> Vector: ...


@dataclass(frozen=True)
class Federation:
    """The devices of a run, their data sizes and rounds, and how they train and aggregate."""

    sizes: NDArray[np.int64]  # shape (n,): number of samples of every device
    participation: Participation  # the devices that take part in each round
    rounds: int  # number of planned rounds
    seed: int  # of the run
    protocol: AggregationProtocol  # how vectors are summed, for a round of r devices
    local: LocalOptions | None  # how a device trains, if it does

    @property
    def devices(self) -> int:
        """Number n of devices."""
        return self.sizes.size


@dataclass(frozen=True)
class Spent:
    """The privacy cost of rounds: two epsilons at the run's delta."""

    paper: float  # epsilon that the algorithm's paper claims
    proven: float  # epsilon that is proven for the actual rounds


@dataclass(frozen=True)
class FirstStage:
    """Exchanges at the beginning of a round that decide which devices go on to the sum."""

    steps: tuple[Step, ...]  # including the step of the model
    # Returns a device's side from its id, the number of the round and the length of the model.
    # After the exchanges, its ``kept`` says whether the device goes on, and
    # ``kept_update(update)`` returns its contribution to the sum.
    device: Callable[[int, int, int], Any]
    # Returns the server's side from the number of the round and the model. Its ``kept`` lists the
    # devices that go on, by their slots among the invited ones, increasing.
    server: Callable[[int, Vector], Any]


class FederatedAlgorithm(ABC):
    """Decides a round's participants, contributions, noise and privacy cost; one per rank.

    All ranks have equal objects and make the same random choices. A new algorithm has a `name` and
    a `contribution`; everything else has a default.
    """

    name: ClassVar[str]  # on the command line
    # Options that the algorithm accepts; those of neither it nor the protocol are refused.
    options: ClassVar[tuple[type[OptionGroup], ...]] = (LocalOptions,)
    noisy_steps: ClassVar[bool] = False  # whether devices clip gradients and add noise in each step
    private: ClassVar[bool] = False  # whether the algorithm accounts for its privacy cost
    leaves_out: ClassVar[bool] = False  # whether a device sends only some coordinates

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        # Rounds that earlier launches may have played in vain, after their last checkpoint.
        self.repeated = 0

    # Options

    @classmethod
    def make(cls, federation: Federation, options: TrainOptions, secrets: NoiseSecrets) -> Self:
        """Return the algorithm of one rank; cryptographic noise comes from `secrets`."""
        return cls(federation)

    @classmethod
    def defaults(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return options with different defaults, which may depend on the `given` options."""
        return {}

    @classmethod  # noqa: B027
    def check(cls, federation: Federation, privacy: PrivacyOptions) -> None:
        """Refuse options that conflict; the numbers of samples and d may be unknown yet."""

    # Participants

    @classmethod
    def invited(cls, per_round: int, devices: int, privacy: PrivacyOptions) -> int:
        """Return how many of the n devices begin a round, if its sum is to have `per_round`."""
        return per_round

    def play_index(self, round_index: int) -> int:
        """Return the number of rounds that may have been played before this one.

        All random choices follow from it. A round that is played again from a checkpoint has a new
        number, so its participants, batches and noise differ, and it costs as much privacy as a
        new round.
        """
        return round_index + self.repeated

    def resume(self, survivors: Sequence[int], repeated: int) -> None:
        """Resume a run whose earlier launches may have played `repeated` rounds in vain.

        `survivors` are the numbers of devices in the sums of all rounds so far.
        """
        self.repeated = repeated

    def participants(self, round_index: int) -> list[int]:
        """Return the ids of the devices that take part in a round, increasing."""
        return self.federation.participation.draw(self.play_index(round_index))

    # Contributions

    @property
    def first_stage(self) -> FirstStage | None:
        """The exchanges before vectors are summed; None if all participants go on."""
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
        """Return a device's contribution to the sum of a round, shape (d,).

        `learn` trains on the device's data, starting from the model that it received.
        """

    def take_choices(self, dim: int) -> tuple[list[NDArray[np.int64]], int] | None:
        """Return the coordinates that this rank's devices chose since the last call.

        The second item is how many of `dim` a device chooses. None if it chooses no coordinates.
        """
        return None

    def integer_noise(self, protocol: QuantisedProtocol, round_index: int) -> IntegerNoise | None:
        """Return the noise that every device adds to its integers, or None."""
        return None

    # The use of the sum, and its cost

    def weights(self, participants: list[int]) -> NDArray[np.float64]:
        """Return the weights, adding up to 1, with which the participants' vectors are summed."""
        sizes = self.federation.sizes[participants]
        return sizes / sizes.sum()

    def update(
        self, aggregate: Aggregate, participants: list[int], round_index: int
    ) -> NDArray[np.float64]:
        """Return, at the server, the vector to subtract from the model, shape (d,)."""
        return aggregate.mean

    def observe(self, survivors: int) -> None:  # noqa: B027
        """Record, at the server, the number of devices in the sum of a round."""

    def spent(self, rounds: int) -> Spent | None:
        """Return the privacy cost of `rounds` rounds, including those played in vain.

        None if the algorithm promises no privacy.
        """
        return None

    def promises(self) -> list[str]:
        """Return sentences that state what the account assumes in this run."""
        return []

    def settings(self) -> Mapping[str, object]:
        """Return the settings that the algorithm has chosen by itself, for the record."""
        return {}


class FederatedAveraging(FederatedAlgorithm):
    """Federated averaging (McMahan et al. 2017): every device sends its update.

    With error feedback (Seide et al. 2014), a device adds the unsent part of its update to its next
    one; this needs a protocol whose devices all send the same coordinates. Sent coordinates count
    as delivered even if the device drops out.
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
        # The sum is divided by the fraction of rounds in which a coordinate is sent. With error
        # feedback, the coordinate itself makes up for the other rounds.
        return np.float32(protocol.inclusion) * update
