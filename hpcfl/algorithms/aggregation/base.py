"""The base of aggregation protocols: parameters, steps, and the parties that play them.

A protocol is a class with a `name`, `steps`, and the methods `device`, `server` and `decode`.
Everything else has a default: what the protocol promises (`promises`, see the module `promises`),
what it exposes (`masking`, see :mod:`hpcfl.privacy.masking`) and what its rounds cost (`sizes`, and
the module `work`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.messages import bits, check_public_keys, parse_vector
from hpcfl.algorithms.aggregation.promises import Outcome, Promise, objection
from hpcfl.algorithms.parameters import Parameters
from hpcfl.algorithms.quantisation import all_finite
from hpcfl.comm.phases import (
    Method,
    Pattern,
    Payload,
    Role,
    Step,
    Where,
    ends_with_messages,
    phase_names,
)
from hpcfl.crypto.groups import Group
from hpcfl.crypto.keys import SecretSource, system_secrets
from hpcfl.errors import (
    BelowThresholdError,
    HpcflError,
    MessageError,
    PromiseError,
    RefusedError,
    UsageError,
)
from hpcfl.options.definition import OptionGroup
from hpcfl.options.protocols import CommonOptions, MaskingOptions
from hpcfl.privacy.masking import Masking
from hpcfl.values import dataclass

# First element of each spawn key of the run's seed: the purpose of the random numbers.
ROUNDING, UPDATES, DROPOUTS, TRAINING, SAMPLING, SPARSIFICATION, COLLUSION, NOISE = range(8)
ALL = slice(None)
# The key of the server's side of the enrolment in `AggregationProtocol.enrolled`.
DIRECTORY = -1


@dataclass(frozen=True)
class Enrolment:
    """The exchanges of devices, server and helpers once, before the first round of a run."""

    steps: tuple[Step, ...]  # its exchanges, in order
    # Upper bound of a device's message to the server, in bytes without the envelope.
    largest_message: int
    # Return the server's side, the side of a device by its id, and that of a helper by its number.
    # Devices and helpers keep what they learn for all rounds.
    server: Callable[[], Any]
    device: Callable[[int, SecretSource], Any]
    helper: Callable[[int, SecretSource], Any] | None = None
    # Size of the public key that a device registers beforehand, without the server; 0 for none. A
    # device's ``registers()`` returns its key, and its ``learn(registry)`` takes the keys of all
    # devices, uint8 of shape (n, registered_bytes).
    registered_bytes: int = 0


@dataclass(frozen=True, repr=False)
class Aggregate:
    """The result of a round."""

    encoded: NDArray[Any]  # the sum in the form that the server holds, shape (d,)
    # Weight of the devices in the sum; of shape (d,) if it differs between coordinates.
    weight: float | NDArray[np.float64]
    survived: float  # the weight of all survivors; 1 if nobody dropped out
    # Converts a part of the sum to real numbers; None if the sum holds real numbers.
    decode: Callable[[NDArray[Any]], NDArray[np.float64]] | None = None

    def __repr__(self) -> str:
        return f"<Aggregate: d = {self.encoded.size}, weight of survivors {self.survived:.4g}>"

    def _total_at(self, part: slice) -> NDArray[np.float64]:
        encoded = self.encoded[part]
        return encoded if self.decode is None else self.decode(encoded)

    @property
    def total(self) -> NDArray[np.float64]:
        """The sum of the survivors' weighted vectors, divided by the divisor; shape (d,)."""
        return self._total_at(ALL)

    @cached_property
    def has_mean(self) -> bool:
        """Whether the survivors' weight is positive; otherwise their mean is NaN."""
        return bool(np.any(self.weight))

    def mean_at(self, part: slice) -> NDArray[np.float64]:
        """Return a part of the mean; the whole mean would need the memory of four vectors."""
        total = self._total_at(part)
        weight = self.weight[part] if isinstance(self.weight, np.ndarray) else self.weight
        nobody = np.full_like(total, 0.0 if self.has_mean else np.nan)
        return np.divide(total, weight, out=nobody, where=np.greater(weight, 0))

    @property
    def mean(self) -> NDArray[np.float64]:
        """The weighted mean of the survivors' vectors, or its estimate; 0 where no device sent."""
        return self.mean_at(ALL)

    @property
    def sum(self) -> NDArray[np.float64]:
        """The weighted sum of the survivors' vectors, or its estimate; weights add up to 1."""
        return self.mean * self.survived if self.has_mean else np.zeros(self.encoded.size)


class AggregationProtocol(ABC):
    """A protocol that forms the weighted sum of the devices' vectors."""

    name: ClassVar[str]  # on the command line and in every key derivation
    steps: tuple[Step, ...]  # its exchanges, in order
    early_upload = False  # whether devices answer a step with `early` together with the one before
    run = ""  # tells the keys of a run from those of others; see :mod:`hpcfl.exchange`
    # Options that the protocol accepts; others are refused.
    options: ClassVar[tuple[type[OptionGroup], ...]] = (CommonOptions,)

    # What commands can ask before they create a protocol.
    min_devices: ClassVar[int] = 1  # the protocol needs at least this number
    tolerates_dropouts: ClassVar[bool] = True  # whether a round can end without a device
    # Whether an upload holds only some coordinates of the vector (alpha), and whether all devices
    # send the same ones.
    sparse_upload: ClassVar[bool] = False
    same_coordinates: ClassVar[bool] = False
    # Whether a device's contribution is that of each part of its vector, end to end.
    by_coordinate: ClassVar[bool] = False
    # The groups that the protocol can sum in (``--bits``): "ring", modulo 2^B, or "field", modulo a
    # prime. Empty if there is no choice.
    family: ClassVar[str] = ""
    most_helpers: ClassVar[int] = 0  # see `hpcfl.comm.phases.Role`
    default_helpers: ClassVar[int] = 0
    has_committee: ClassVar[bool] = False  # whether a committee plays some steps
    noise_adds_up: ClassVar[bool] = True  # whether every sum holds the noise of enough devices
    devices_learn_sum: ClassVar[bool] = False  # if so, the server's noise hides nothing from them

    def __init_subclass__(cls) -> None:
        steps = getattr(cls, "steps", ())
        cls.has_committee = any(Role.COMMITTEE in (step.role, step.to) for step in steps)

    def __init__(self, parameters: Parameters) -> None:
        if parameters.devices < self.min_devices:
            raise UsageError(
                f"{self.name} needs at least {self.min_devices} devices, but there are "
                f"{parameters.devices}: start more ranks, or ask for more devices"
            )
        if parameters.dropout > 0 and not self.tolerates_dropouts:
            raise UsageError(
                f"{self.name} has no dropouts, but the dropout rate is {parameters.dropout}: it "
                "has no way to remove a missing device's masks; give --dropout 0, or use secagg"
            )
        self.parameters = parameters
        self.model_dim = parameters.dim  # of the model that the server sends
        self.helpers = self.helpers_of(parameters.helpers)
        # Which of the enrolled devices play the rounds; see `join`.
        self.enrolled: Mapping[int, Any] = {}
        self.members: Sequence[int] = ()
        self.population = 0

    # The parties

    @abstractmethod
    def device(self, id: int, round_index: int, secrets: SecretSource) -> Any:
        """Return the device's side of a round."""

    @abstractmethod
    def server(
        self, round_index: int, model: NDArray[np.float32], secrets: SecretSource = system_secrets
    ) -> Any:
        """Return the server's side of a round, which starts from `model`, shape (d,).

        Unpredictable values, such as nonces, come from `secrets`.
        """

    def helper(self, number: int, round_index: int, secrets: SecretSource) -> Any:
        """Return the side of helper `number`, 0 to K - 1, in a round."""
        raise UsageError(
            f"{self.name} has helpers, and its class has no method helper: see docs/own-protocol.md"
        )

    @classmethod
    def enrolment(cls, devices: int, helpers: int = 0) -> Enrolment | None:
        """Return the enrolment before the first round, or None if the protocol has none."""
        return None

    def context(self, round_index: int) -> str:
        """Return what all key contexts of a round begin with; they also name the use of the key."""
        return f"hpcfl/1 {self.name}{self.run} round {round_index}"

    def join(self, enrolled: Mapping[int, Any], members: Sequence[int], population: int) -> None:
        """Let enrolled devices play the rounds.

        `enrolled` maps ids to this rank's devices, which enrolled with ids 0 to n - 1, and its
        helpers, whose ids are n, n + 1, ..., and at the server `DIRECTORY` to its side of the
        enrolment. `members` are the enrolment ids of the rounds' devices 0 to N - 1, in increasing
        order. n is the `population`.
        """
        self.enrolled, self.members, self.population = enrolled, members, population

    # The sum

    @abstractmethod
    def decode(self, total: NDArray[Any]) -> NDArray[np.float64]:
        """Return the sum of weighted vectors that the server's `total` encodes."""

    def aggregate(self, server: Any) -> Aggregate:
        """Return the result of a round, at the server."""
        planned = self.parameters.scaling == "paper"
        weight = 1.0 if planned else self.weight_in_sum(server)
        survived = self._weight_of(server.survivors)
        return Aggregate(server.total, weight, survived, decode=self.decode)

    def weight_in_sum(self, server: Any) -> float | NDArray[np.float64]:
        """Return the weight of the devices in a sum; shape (d,) if it differs by coordinate."""
        return self._weight_of(server.survivors)

    def _weight_of(self, devices: list[int]) -> float:
        weights = self.parameters.weights
        if weights is None:
            return len(devices) / self.parameters.devices
        return float(weights[devices].sum())

    @property
    def summed_in(self) -> Group | None:
        """The group in which uploads are summed; None for real numbers."""
        return None

    @property
    def inclusion(self) -> float:
        """Probability that a device sends a coordinate."""
        return 1.0

    @property
    def divisor(self) -> float:
        """The number by which devices divide their weighted vectors.

        In the paper (eq. 16) it is p (1 - theta), the planned probability that a coordinate reaches
        the sum. By default it is p, and the server divides by the weight of the actual survivors.
        """
        planned = 1 - self.parameters.dropout if self.parameters.scaling == "paper" else 1.0
        return self.inclusion * planned

    def sent_in(self, round_index: int) -> Where:
        """Return the coordinates that devices send in a round, if all send the same ones."""
        return ALL

    # Validation without a device

    @property
    def repeatable(self) -> bool:
        """Whether a device's contribution follows from the run's seed and the device's vector."""
        return True

    def stand_in(self, server: Any, id: int, round_index: int) -> Any:
        """Return an object whose ``contribution`` gives what a device added to the sum.

        Validation uses it for a device whose rank died. It needs no secrets of that device, such as
        keys and shares.
        """
        return self.device(id, round_index, system_secrets)

    # Promises

    def promises(self) -> list[Promise]:
        """Return what the protocol hides with these parameters, and with which probability."""
        return []

    def outcome(self, server: Any) -> Outcome:
        """Return what has happened in a round, as the server's side knows it."""
        return Outcome(self.parameters.devices, len(server.survivors))

    @property
    def needed_in_sum(self) -> int:
        """Minimum number of devices in the sum for a round to succeed."""
        return 1 if self.tolerates_dropouts else self.parameters.devices

    @classmethod
    def masking(cls, devices: int, options: MaskingOptions) -> Masking:
        """Return the masking of coordinates, which determines what a curious server learns.

        There are N = `devices`. The options give the fraction of coordinates that each device sends
        and its number of neighbours.
        """
        raise UsageError(
            f"the exposure of {cls.name} cannot be computed: its class has no method masking"
        )

    # Choices and costs

    @classmethod
    def helpers_of(cls, asked: int | None) -> int:
        """Return the number K of helpers, `asked` or the default; UsageError if too many."""
        given = cls.default_helpers if asked is None else asked
        if given > cls.most_helpers:
            raise UsageError(f"--helpers is {given}, and {cls.name} has at most {cls.most_helpers}")
        return given

    def settings(self) -> dict[str, Any]:
        """Return the settings that the protocol has chosen by itself, for the record."""
        return {}

    @classmethod
    def phases(cls) -> list[str]:
        """Return the names of a round's phases, in order."""
        return phase_names(cls.steps)

    @classmethod
    def enrolment_phases(cls) -> list[str]:
        """Return the names of the phases once a run, before all rounds."""
        enrolment = cls.enrolment(2, cls.default_helpers)
        return [] if enrolment is None else phase_names(enrolment.steps)

    @classmethod
    def exchanges(cls) -> int:
        """Return how often the server asks clients in a round in which nobody cheats.

        See :mod:`hpcfl.exchange`: messages to clients travel with the next request.
        """
        answered = [step for step in cls.steps if step.pattern in (Pattern.GATHER, Pattern.ROUTE)]
        asked = sum(step.wants is None and not step.early for step in answered)
        return asked + ends_with_messages(cls.steps)

    @classmethod
    def upload_phase(cls) -> str:
        """Return the phase in which devices send their vectors."""
        return next(step.phase for step in cls.steps if step.upload)

    def sizes(self) -> dict[Method, float]:
        """Return the size of each message, or row of a route, by the method that makes it.

        Sizes are expected bytes without envelopes. Messages of unknown size are left out.
        """
        return {}

    @property
    def members_in_round(self) -> int:
        """Number of committee members in a round; 0 without a committee."""
        return 0

    @property
    def rows_of_device(self) -> int:
        """Maximum number of rows that a device sends in a route."""
        return int(self.settings().get("degree", self.parameters.devices - 1))

    @property
    def largest_message(self) -> int:
        """Upper bound of the size of a device's upload in bytes, without the envelope."""
        group, dim = self.summed_in, self.parameters.dim
        return 4 * dim if group is None else group.wire_bytes(dim)

    @property
    def largest_reply(self) -> int:
        """Upper bound, as above, for all other messages of a device to the server."""
        sizes, replies = self.sizes(), [step for step in self.steps if not step.upload]
        sent = [step.send for step in replies if step.pattern is Pattern.GATHER]
        if not all(method in sizes for method in sent):
            return self.largest_message
        return max((int(sizes[method]) for method in sent if method), default=0)


class ModelReceiver:
    """The part of a device's side that receives the current model."""

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self.model: NDArray[np.float32] | None = None

    def forget_model(self) -> None:
        """Free the model's memory."""
        self.model = None

    def receive_model(self, payload: Payload) -> None:
        """Keep the model, float32 of shape (d,)."""
        self.model = parse_vector(payload, "<f4", self._dim, "model")


class ModelSender:
    """The part of a server's side that sends the current model."""

    def __init__(self, model: NDArray[np.float32]) -> None:
        self.model = model.astype("<f4", copy=False)

    def send_model(self) -> Payload:
        """Return the model, float32 of shape (d,), little-endian."""
        return self.model.view(np.uint8)


MODEL = Step("model", Pattern.BROADCAST, ModelSender.send_model, ModelReceiver.receive_model)


class RoundServer(ModelSender):
    """The common part of hpcfl's servers: it records senders and ends rounds that cannot succeed.

    A server keeps what it needs between the steps of a round in its `state`, a dataclass.
    """

    state_class: ClassVar[type[Any]] = dict

    def __init__(
        self,
        protocol: AggregationProtocol,
        round_index: int,
        model: NDArray[np.float32],
        secrets: SecretSource = system_secrets,
    ) -> None:
        super().__init__(model)
        self._protocol = protocol
        self._secrets = secrets
        self._parameters = protocol.parameters
        self._devices = protocol.parameters.devices
        self._dim = protocol.parameters.dim
        self.round_index = round_index
        self.state = self.state_class()
        self.survivors: list[int] = []
        # The survivors as a set, for a fast look-up per message.
        self._admitted: set[int] = set()
        # The values of this round: the protocol may outlive it.
        self._members, self._population = protocol.members, protocol.population
        # Devices whose faults were found only after all devices had answered.
        self.refused: dict[int, HpcflError] = {}

    def _first(
        self, phase: str, sender: int, received: Container[int], party: str = "device"
    ) -> str:
        """Return a sender's name for errors; MessageError if it has sent this message before."""
        name = f"{party} {sender}"
        if sender in received:
            raise MessageError(phase, name, "it was received twice")
        return name

    def _take_keys(
        self, public: dict[int, bytes], sender: int, payload: Payload, size: int
    ) -> None:
        """Check and keep a device's public keys."""
        name = self._first("advertise_keys", sender, public)
        advertised = parse_vector(payload, "u1", size, "advertise_keys", name).tobytes()
        check_public_keys(advertised, name)
        public[sender] = advertised

    def _refuse(self, phase: str, id: int, reason: str) -> None:
        self.refused[id] = MessageError(phase, f"device {id}", reason)

    def _bits(self, ids: Iterable[int]) -> Payload:
        return bits(ids, self._devices)

    def _enough(self, count: int, what: str) -> None:
        """End the round if `count` devices, which did `what`, are too few for a sum."""
        self._require(count, what, self._protocol.needed_in_sum)

    def _require(
        self, count: int, what: str, needed: int, who: str = "devices", among: int | None = None
    ) -> None:
        """End the round if `count`, out of `among` (by default all devices), is below `needed`."""
        if count < needed:
            raise BelowThresholdError(
                f"round {self.round_index} cannot end: {count} of {among or self._devices} {who} "
                f"{what}, at least {needed} are needed"
            )

    def _settle_survivors(self, what: str) -> None:
        """Fix the set of survivors; end the round if their sum would break a promise."""
        # Requests, seeds and shares are in order of ids; uploads arrive in any order.
        self.survivors.sort()
        self._enough(len(self.survivors), what)
        broken = objection(self._protocol.promises(), self._protocol.outcome(self))
        if broken is not None:
            raise PromiseError(
                f"round {self.round_index} ends here, before anything is revealed: {broken}"
            )


def check_finite(device: int, vector: NDArray[np.floating]) -> None:
    """Refuse to upload a vector that holds infinities or NaN."""
    if not all_finite(vector):
        raise RefusedError(
            f"device {device} refuses to upload its vector: it holds a value that is not a finite "
            "number"
        )
