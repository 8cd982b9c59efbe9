"""What every aggregation protocol has: parameters, steps, and its two parties."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.costs import PhaseCosts, Phases, add, at
from hpcfl.algorithms.aggregation.messages import parse_vector
from hpcfl.algorithms.aggregation.promises import Outcome, Promise
from hpcfl.algorithms.aggregation.ranges import RangeSum
from hpcfl.algorithms.aggregation.terms import Terms
from hpcfl.algorithms.noise import IntegerNoise
from hpcfl.algorithms.parameters import Parameters
from hpcfl.algorithms.quantisation import Quantiser, all_finite, check_levels, largest_levels
from hpcfl.algorithms.rotation import Rotation, butterflies, held_bytes
from hpcfl.comm.phases import Pattern, Payload, Step, phase_names, room
from hpcfl.crypto.groups import Elements, Group
from hpcfl.crypto.keys import SecretSource, system_secrets
from hpcfl.errors import MessageError, RefusedError, UsageError
from hpcfl.privacy.masking import Masking
from hpcfl.privacy.threat import Threat
from hpcfl.report.formats import counted

if TYPE_CHECKING:
    from hpcfl.algorithms.aggregation.modelupdates import ModelUpdates
    from hpcfl.algorithms.aggregation.ranges import Dealt
    from hpcfl.options.shared import RoundOptions

# Options that every protocol has a use for, or that are checked for every one.
FOR_ALL = frozenset(
    {
        *("dropout", "dropout_model", "dropout_phase", "scaling", "upload", "security"),
        *("rotate", "model_update", "shared", "committee", "helpers"),
        *("uplink_mbps", "downlink_mbps", "latency_ms"),
    }
)
# Some coordinates of a vector, or all of them.
Where = NDArray[np.int64] | slice


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

    steps: tuple[Step, ...]
    largest_message: int
    registered_bytes: ClassVar[int] = 0

    @abstractmethod
    def device(self, id: int, secrets: SecretSource) -> Any:
        """Return the side of a device, which keeps what it learns for all rounds."""

    def helper(self, number: int, secrets: SecretSource) -> Any:
        """Return the side of a helper, which does the same, where steps are for helpers.

        Raises
        ------
        UsageError
            If the enrolment does not say how.
        """
        raise UsageError(
            "steps of an enrolment that are for helpers need a method helper, which the class "
            f"{type(self).__name__} lacks"
        )

    @abstractmethod
    def server(self) -> Any:
        """Return the server's side."""


@dataclass(frozen=True, repr=False)
class Aggregate:
    """What a round has given."""

    encoded: NDArray[Any]  # the sum as the server has it, shape (d,)
    # The weight of the devices that are in it; where coordinates differ, shape (d,).
    weight: float | NDArray[np.float64]
    survived: float  # the weight of all survivors; 1 if nobody dropped out
    rotation: Rotation | None = None  # of what was sent
    turned_back: NDArray[np.float64] | None = None  # the mean, where there is a rotation
    # From some of the sum to real numbers; None if it is of real numbers.
    decode: Callable[[NDArray[Any]], NDArray[np.float64]] | None = None

    def __repr__(self) -> str:
        return f"<Aggregate: d = {self.encoded.size}, weight of survivors {self.survived:.4g}>"

    @property
    def sent(self) -> NDArray[np.float64]:
        """The sum of the survivors' weighted vectors, over the divisor, as sent; shape (d,)."""
        return self._sent_at(slice(None))

    def _sent_at(self, part: slice) -> NDArray[np.float64]:
        encoded = self.encoded[part]
        return encoded if self.decode is None else self.decode(encoded)

    @property
    def total(self) -> NDArray[np.float64]:
        """The sum of the survivors' weighted vectors, over the divisor; shape (d,)."""
        return self.sent if self.rotation is None else self.rotation.undo(self.sent)

    @property
    def mean_as_sent(self) -> NDArray[np.float64]:
        """The weighted mean of what the survivors sent, or its estimate; 0 where nobody did."""
        return self._mean_sent_at(slice(None))

    @cached_property
    def has_mean(self) -> bool:
        """Whether the survivors weigh anything; if not, their mean is NaN."""
        return bool(np.any(self.weight))

    def _mean_sent_at(self, part: slice) -> NDArray[np.float64]:
        sent = self._sent_at(part)
        weight = self.weight[part] if isinstance(self.weight, np.ndarray) else self.weight
        nobody = np.full_like(sent, 0.0 if self.has_mean else np.nan)
        return np.divide(sent, weight, out=nobody, where=np.greater(weight, 0))

    def mean_at(self, part: slice) -> NDArray[np.float64]:
        """Return some of the mean: of a long one all would take as much as four vectors."""
        return self._mean_sent_at(part) if self.turned_back is None else self.turned_back[part]

    @property
    def mean(self) -> NDArray[np.float64]:
        """The weighted mean of the survivors' vectors, or its estimate; 0 where nobody sent."""
        return self.mean_as_sent if self.turned_back is None else self.turned_back

    @property
    def sum(self) -> NDArray[np.float64]:
        """The weighted sum of the survivors' vectors, or its estimate; weights add up to 1."""
        return self.mean * self.survived if self.has_mean else np.zeros(self.encoded.size)


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
    noise_adds_up : bool
        Whether enough devices of a round are in every sum for the noise of each to be a part of
        what hides them all.
    not_attacked : str
        Why the attack on a recorded round cannot be made on this protocol's; "" where it can.
    rotates : bool
        Whether devices rotate their vectors, and the server the sum back, where that is asked for.
    same_coordinates : bool
        Whether all devices send the same coordinates, so that a device which has the model of an
        earlier round need not be sent all of it (`follow`).
    not_active : str
        Why there is no variant against a server that cheats, where there is none.
    uploads_in_parts : bool
        Whether the server takes a long upload X part by part, in its
        ``receive_part_X(id, part, start, size)``: bytes of the payload from `start` on, of `size`
        in all. A MessageError must come with the first part, if at all: before anything counts.
        Then its values may also be dealt out to several ranks of a server: `dealt_out` does,
        ``server.take_range(values)`` leaves all others to other ranks, which form `sum_of` theirs.
    most_helpers : int
        How many helpers it can have (see `hpcfl.comm.phases.Role`); 0 if it has none.
    default_helpers : int
        How many it has if nobody says otherwise.
    can_share : bool
        Whether devices can send the same fraction of the coordinates instead of all (``--shared``).
    has_committee : bool
        Whether it chooses devices for a committee in each round.
    devices_learn_sum : bool
        Whether devices learn the sum itself, so that noise which the server adds hides nothing
        from them.
    family : str
        Of which groups those are that vectors can be summed in with B bits a value (``--bits``):
        "ring", modulo 2^B, or "field", modulo a prime. Empty where there is no choice.
    summed_in : Group or None
        The group in which uploads are summed; None for real numbers.
    """

    name: ClassVar[str]
    steps: tuple[Step, ...]
    min_devices: ClassVar[int] = 1
    sparse_upload: bool = False
    tolerates_dropouts: ClassVar[bool] = True
    noise_adds_up: ClassVar[bool] = True
    devices_learn_sum: ClassVar[bool] = False
    family: ClassVar[str] = ""
    rotates: ClassVar[bool] = False
    uploads_in_parts: ClassVar[bool] = False
    same_coordinates: ClassVar[bool] = False
    most_helpers: ClassVar[int] = 0
    default_helpers: ClassVar[int] = 0
    has_committee: ClassVar[bool] = False
    can_share: ClassVar[bool] = False
    not_attacked: ClassVar[str] = "the attack knows of no masks that it could take off"
    not_active: ClassVar[str] = "there is no such variant of it"

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
        if parameters.rotate and not self.rotates:
            raise UsageError(f"{self.name} does not rotate vectors: leave out --rotate")
        if parameters.model_update == "changed" and parameters.shared and self.can_share:
            raise UsageError(
                f"--model-update changed is built for common, and not for {self.name} with "
                "--shared: leave it out, or use common"
            )
        if parameters.model_update == "changed" and not self.same_coordinates:
            raise UsageError(
                f"{self.name} changes the model anywhere: --model-update changed is for protocols "
                "whose devices all send the same coordinates (common)"
            )
        if parameters.committee is not None and not self.has_committee:
            raise UsageError(
                f"--committee is {parameters.committee}, and {self.name} has none: leave it out"
            )
        if parameters.shared and not self.can_share:
            raise UsageError(
                f"{self.name} does not know --shared: leave it out (secagg with it is common)"
            )
        self.parameters = parameters
        self.helpers = self.helpers_of(parameters.helpers)
        # Who plays the rounds, of those that enrolled; see `join`.
        self.enrolled: Mapping[int, Any] = {}
        self.members: Sequence[int] = ()
        self.population = 0

    @classmethod
    def uses(cls, options: RoundOptions) -> frozenset[str]:
        """Return the options of `RoundOptions` and `LinkOptions` that a run has a use for.

        Those are among them whose other values are refused. A given option that is not there is
        refused: a class that reads more of its `parameters` adds what it reads.
        """
        used = {*FOR_ALL}
        if cls.sparse_upload:
            used.add("alpha")
        if cls.most_helpers:
            used.add("helper_mbps")
        if not options.dropout:
            used -= {"dropout_model", "dropout_phase"}
        return frozenset(used)

    @classmethod
    def helpers_of(cls, asked: int | None) -> int:
        """Return the number K of helpers where so many are asked for; UsageError if not so many."""
        given = cls.default_helpers if asked is None else asked
        if given > cls.most_helpers:
            takes = (
                f"at most {cls.most_helpers} of them" if cls.most_helpers else "none: leave it out"
            )
            raise UsageError(f"--helpers is {given}, and {cls.name} has {takes}")
        return given

    @property
    def helpers_in_round(self) -> int:
        """How many of the helpers play a round; the others have dropped out of it."""
        return self.helpers

    @classmethod
    def active_variant(cls) -> type[AggregationProtocol] | None:
        """Return the variant of just this protocol against a server that cheats, None for none."""
        return None

    def dealt_out(self, ranks: int) -> Dealt:
        """Deal out an upload's values to the ranks of a server; UsageError if that cannot be."""
        raise self._not_dealt_out()

    def sum_of(self, values: range) -> RangeSum:
        """Return the sum over a range of the values, for a rank of the server; UsageError as above.

        Nothing has been added to it.
        """
        raise self._not_dealt_out()

    def _not_dealt_out(self) -> UsageError:
        return UsageError(
            f"{self.name} cannot use --server-ranks: nothing says how its server's work is dealt "
            "out to several ranks; leave it out, or use secagg, secagg-graph or common"
        )

    @property
    def summed_in(self) -> Group | None:
        return None

    @property
    def inclusion(self) -> float:
        """Probability that a device sends a coordinate."""
        return 1.0

    @property
    def divisor(self) -> float:
        """What devices divide their weighted vectors by.

        By the paper (eq. 16) it is the probability p (1 - theta) that a coordinate is planned to
        reach the sum. Who really survived is known to the server alone, which divides by their
        weight instead.
        """
        planned = 1 - self.parameters.dropout if self.parameters.scaling == "paper" else 1.0
        return self.inclusion * planned

    @property
    def rounding(self) -> float:
        """Largest error of a coordinate of a device that rounding makes, in units of the clip.

        All devices weigh the same. By default a vector is multiplied by its weight, and sent, as
        float32: the weight and the product are rounded.
        """
        return 2.0**-23

    @property
    def largest_message(self) -> int:
        """An upper bound of what a device sends to the server at once, in bytes, less envelope."""
        group = self.summed_in
        return 4 * self.parameters.dim if group is None else group.wire_bytes(self.parameters.dim)

    @property
    def largest_reply(self) -> int:
        """The same of what it sends at once besides its upload.

        The closer it is, the more of these messages move at once.
        """
        return self.largest_message

    @property
    def sum_bytes(self) -> int:
        """Size of the server's sum while vectors are added to it."""
        return 8 * self.parameters.dim

    @property
    def total_bytes(self) -> int:
        """Size of the server's sum once it is decoded, and of what else the server keeps of it."""
        return self.sum_bytes

    @property
    def result_bytes(self) -> int:
        """The same while that is made."""
        return self.total_bytes

    @property
    def model_bytes(self) -> int:
        """Size of what a rank keeps of models from round to round, besides the model itself."""
        return 0

    @property
    def working_bytes(self) -> int:
        """Size of what a device makes of a vector besides its upload."""
        return 0

    @property
    def stuck(self) -> float:
        """At most how likely it is that a round cannot end though enough devices stay.

        By whom chance links, or puts on a committee; 0 where nobody depends on a few others.
        """
        return 0.0

    @property
    def needed_in_sum(self) -> int:
        """Fewest devices in a sum with which a round ends."""
        return 1 if self.tolerates_dropouts else self.parameters.devices

    @property
    def rows_of_device(self) -> int:
        """Most rows that a device sends in an exchange of them."""
        return int(self.settings().get("degree", self.parameters.devices - 1))

    @property
    def rows_at_peak(self) -> float:
        """What a process holds at the peak of an exchange of rows, as a multiple of these.

        That of `secagg`.
        """
        return 1.5

    @property
    def checking_bytes(self) -> int:
        """Size of what a rank makes of its devices' vectors to validate a sum."""
        return 28 * self.parameters.dim

    def settings(self) -> dict[str, Any]:
        """Return what the protocol has chosen by itself, for the record."""
        return {}

    def promises(self) -> list[Promise]:
        """Return what the protocol hides with these parameters, and how surely."""
        return []

    def promise_failure(self, outcome: Outcome) -> float:
        """Return at most how likely it is that a promise fails, all of them together.

        NaN where nothing is promised.
        """
        promises = self.promises()
        if not promises:
            return math.nan
        return min(1.0, sum(promise.failure(outcome) for promise in promises))

    def outcome(self, server: Any) -> Outcome:
        """Return what a round has come to, from the server's side of it."""
        return Outcome(self.parameters.devices, len(server.survivors))

    @classmethod
    def enrolment(cls, devices: int, helpers: int = 0) -> Enrolment | None:
        """Return what devices and helpers do once, before the first round; None for nothing."""
        return None

    def join(self, enrolled: Mapping[int, Any], members: Sequence[int], population: int) -> None:
        """Let enrolled devices play the rounds.

        Parameters
        ----------
        enrolled : mapping of int to device
            The devices of this rank as their enrolment left them, by the ids they enrolled with,
            and its helpers, which follow them: n, n + 1, ...
        members : sequence of int
            Those ids of the devices 0 to N - 1 of the rounds, in increasing order.
        population : int
            Number n of devices that enrolled.
        """
        if len(members) != self.parameters.devices:
            raise ValueError(f"{len(members)} members for {self.parameters.devices} devices")
        self.enrolled, self.members, self.population = enrolled, members, population

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

    def helper(self, number: int, round_index: int, secrets: SecretSource) -> Any:
        """Return the side of a helper, 0 to K - 1, of a round.

        Raises
        ------
        UsageError
            If the protocol does not say how.
        """
        raise UsageError(f"helpers need a method helper, which the class of {self.name!r} lacks")

    def sent_in(self, round_index: int) -> Where:
        """Return the coordinates that all devices send in a round, where these are the same."""
        return slice(None)

    def follow(self, models: ModelUpdates, index: int, ids: Sequence[int]) -> None:
        """Let the devices of a round be sent only what has changed of the model.

        These are their ids in `models`, in order. Every rank calls this before the round.

        Raises
        ------
        UsageError
            If the protocol does not say how.
        """
        raise UsageError(
            f"--model-update changed needs a method follow, which the class of {self.name!r} lacks"
        )

    @property
    def model_dim(self) -> int:
        """Number of coordinates of the model that a device is sent in a round."""
        return self.parameters.dim

    @abstractmethod
    def server(
        self, round_index: int, model: NDArray[np.float32], secrets: SecretSource = system_secrets
    ) -> Any:
        """Return the server's side of a round, which starts from `model`, shape (d,).

        What nobody may foresee comes from `secrets`.
        """

    @abstractmethod
    def decode(self, total: NDArray[Any]) -> NDArray[np.float64]:
        """Return the sum of weighted vectors that the server's `total` stands for."""

    @classmethod
    def masking(cls, devices: int, alpha: float, degree: int | None) -> Masking:
        """Return who masks a coordinate with whom, which says what a curious server learns.

        Parameters
        ----------
        devices : int
            Number N of devices.
        alpha : float
            Fraction of the coordinates that a device sends, where it does not send all.
        degree : int or None
            Neighbours of a device in the masking graph; None if all are.

        Raises
        ------
        UsageError
            If the protocol does not declare it, or not for these parameters.
        """
        raise UsageError(
            f"nothing is known of what {cls.name} exposes: its class has no method masking"
        )

    def costs(self) -> list[PhaseCosts]:
        """Return what every phase of a round takes, in order.

        UsageError if the protocol does not declare it, or not for these parameters.
        """
        phases = {name: PhaseCosts(name) for name in self.phases()}
        if "model" in phases:
            model = phases["model"]
            model.receives(4 * self.model_dim, self.parameters.devices)
            add(model.device, {"message": 1})
            # The copy behind the envelope is made once for all, outside the server's time.
            add(model.server, {"message": 1})
            add(model.around, at("summed", self.model_dim / 2, self.model_dim))
        self.count(phases)
        if "result" in phases and self.summed_in is not None:
            add(phases["result"].server, {"decoded": self.parameters.dim})
        if self.parameters.rotate:
            for work in (phases[self.upload_phase()].device, phases["result"].server):
                add(work, {"butterfly": butterflies(self.parameters.dim)})
        return list(phases.values())

    def terms(self) -> dict[str, Terms]:
        """Return what the work of each party in a round grows with, less what comes once.

        Parties are ``device``, ``server``, and, where there are some, ``helper`` and ``member`` of
        a committee, whose work as a device is in it; see :mod:`.terms`. UsageError if the protocol
        does not declare it.
        """
        raise UsageError(
            f"there is no cost model of {self.name!r}: its class has no method terms; measure it "
            "with hpcfl bench"
        )

    def count(self, phases: Phases) -> None:
        """Enter what each phase takes besides the model and its decoding.

        Raises
        ------
        UsageError
            If there is no cost model of the protocol, or not for these parameters.
        """
        raise UsageError(
            f"there is no cost model of {self.name!r}: its class has no method count; measure it "
            "with hpcfl bench"
        )

    def cost_notes(self) -> list[str]:
        """Return in clauses what the costs leave out."""
        return []

    @property
    def not_played(self) -> str:
        """Why a round that can be predicted cannot be played, in a clause; "" where it can."""
        return ""

    @property
    def repeatable(self) -> bool:
        """Whether what a device added to a sum follows from the run's seed and its vector."""
        return True

    def stand_in(self, server: Any, id: int, round_index: int) -> Any:
        """Return what says, for validation, what a device that is in the sum has contributed.

        It is asked for a device whose rank died, and has the method ``contribution`` of the device
        itself. What only that device knew, keys and shares, plays no part.
        """
        return self.device(id, round_index, system_secrets)

    def weight_in_sum(self, server: Any) -> float | NDArray[np.float64]:
        """Return the weight of the devices in a sum; where coordinates differ, shape (d,)."""
        return self.weight_of(server.survivors)

    def weight_of(self, devices: list[int]) -> float:
        """Return the weight of some devices together."""
        weights = self.parameters.weights
        if weights is None:
            return len(devices) / self.parameters.devices
        return float(weights[devices].sum())

    def aggregate(self, server: Any) -> Aggregate:
        """Return what a round has given, at the server."""
        planned = self.parameters.scaling == "paper"
        weight = 1.0 if planned else self.weight_in_sum(server)
        survived = self.weight_of(server.survivors)
        return Aggregate(server.total, weight, survived, decode=self.decode)


class QuantisedProtocol(AggregationProtocol):
    """A protocol that sums quantised vectors in a group."""

    family = "ring"

    @classmethod
    def uses(cls, options: RoundOptions) -> frozenset[str]:
        return super().uses(options) | {"group", "bits", "levels", "clip"}

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters)
        if parameters.group != "fq" and not parameters.group.startswith(self.family):
            raise UsageError(
                f"{self.name} sums vectors in fq, or in {self.family}B of B bits, not in "
                f"{parameters.group}: leave --group out, or give --bits"
            )
        self.quantiser = Quantiser(parameters.clip, parameters.levels)
        self.noise: IntegerNoise | None = None
        # Of the devices of this rank whose vectors were quantised: how many values were clipped,
        # and of how many that were sent.
        self.clipped: dict[int, tuple[int, int]] = {}
        self._check_levels(0)

    def largest_levels(
        self, group: Group | None = None, reserve: int = 0, devices: int | None = None
    ) -> int:
        """Return the most levels with which no coordinate's sum can wrap around.

        Parameters
        ----------
        group : Group, optional
            Where vectors are summed, if not in the protocol's own.
        reserve : int
            What the noise in a sum stays within.
        devices : int, optional
            Most devices of a round, where that may be more than the parameters say.
        """
        most, weight = self.most_in_sum(devices or self.parameters.devices)
        group = group or self.summed_in
        clip = self.parameters.clip
        return largest_levels(group, most, clip, self.divisor, weight, reserve)

    def most_in_sum(self, devices: int) -> tuple[int, float]:
        """Return how many of a round's devices may be in a coordinate's sum, and their weight."""
        return devices, 1.0

    def _check_levels(self, reserve: int) -> None:
        parameters, largest = self.parameters, self.largest_levels(reserve=reserve)
        noisy = reserve > 0
        check_levels(parameters.levels, largest, self.summed_in, parameters.clip, noisy)

    def check_noise(self) -> None:
        """Refuse, by UsageError, noise of any size where no account knows of it."""

    def add_noise(self, noise: IntegerNoise) -> None:
        """Let every device add noise to its integers.

        UsageError if a sum with its noise could wrap around, except with the probability that
        `correctness_bits` says: privacy would be kept, but not the sum.
        """
        self.check_noise()
        parameters = self.parameters
        most, _ = self.most_in_sum(parameters.devices)
        self._check_levels(noise.bound(most, parameters.dim, 2.0**-parameters.correctness_bits))
        self.noise = noise

    def costs(self) -> list[PhaseCosts]:
        found = super().costs()
        if self.noise is not None:
            (upload,) = (phase for phase in found if phase.name == self.upload_phase())
            add(upload.device, {"noise": self.noisy_integers})
        return found

    @property
    def noisy_integers(self) -> float:
        """Number of integers that a device adds noise to, if there is any: those it sends."""
        return self.inclusion * self.parameters.dim

    @property
    def rounding(self) -> float:
        # A vector times its weight, 1 / N over the divisor, is rounded to one of so many levels to
        # a unit: in the vector itself that is an error of the inverse times as much.
        parameters = self.parameters
        return parameters.devices * self.divisor / parameters.clip / parameters.levels

    @cached_property
    def threat(self) -> Threat:
        """Who is reckoned with."""
        return Threat.of(self.parameters)

    @property
    def colluding_in_sum(self) -> int:
        """Most devices of a sum that collude, but for 2 to the minus security bits."""
        failure = 2.0**-self.parameters.security_bits
        return self.threat.most_colluding(self.parameters.devices, failure)

    @property
    def more_colluding(self) -> float:
        """Probability that a sum's devices hold more colluders than that."""
        return self.threat.more_colluding(self.parameters.devices, self.colluding_in_sum)

    @property
    def survivors_in_sum(self) -> int:
        """Fewest devices that are to be in a sum."""
        return self.parameters.devices - self.threat.dropped

    def honest_in_sum(self) -> int:
        """Return the fewest honest survivors whose vectors, and noise, are in one coordinate.

        Whose sum it is is one of them. A round with fewer ends.
        """
        return max(1, self.survivors_in_sum - self.colluding_in_sum)

    def promises(self) -> list[Promise]:
        if self.noise is None:
            return []
        honest, colluding = self.honest_in_sum(), self.colluding_in_sum
        return [NoiseInSum(honest, colluding, self.more_colluding)]

    def honest_among(self, survivors: int) -> int:
        """Return the fewest honest devices among so many survivors that are in one coordinate."""
        return max(1, survivors - self.colluding_in_sum)

    def hidden_failure(self) -> float:
        """Return how likely an accepted round's sum hides less than an account counts on, at most.

        Masks may fail as their promises say, and more devices may collude than is reckoned with.
        UsageError if masks may fail with certainty, so that nothing can be counted on.
        """
        masks = [one for one in self.promises() if not isinstance(one, NoiseInSum)]
        # An account counts on who was there, which may be more than was planned for: so it is not
        # the plan that says whether anybody's noise but one's own is relied on.
        alone = self.honest_among(self.parameters.devices) == 1
        fewer = 0.0 if alone else self.more_colluding
        failure = fewer + sum(one.worst for one in masks)
        if failure >= 1:
            raise UsageError(
                "with so few neighbours each and so many devices that collude or drop out, no "
                "account can rely on masks: raise --degree, or leave it out, or lower --gamma or "
                "--dropout"
            )
        return failure

    @property
    def summed_in(self) -> Group:
        return self.parameters.arithmetic

    @property
    def sum_bytes(self) -> int:
        return self.summed_in.sums.itemsize * self.parameters.dim

    @property
    def total_bytes(self) -> int:
        # The integers, of all coordinates; where they are rotated, also the mean turned back.
        dim = self.parameters.dim
        return (self.summed_in.dtype.itemsize + 8 * self.parameters.rotate) * dim

    @property
    def result_bytes(self) -> int:
        # The mean as it was sent is there while it is turned back.
        dim = self.parameters.dim
        return self.total_bytes + self.parameters.rotate * (8 * dim + held_bytes(dim, 8))

    @property
    def working_bytes(self) -> int:
        group, dim = self.summed_in, self.parameters.dim
        words = 0 if group.whole_words else group.dtype.itemsize * dim
        return words + self._turned_bytes + 8 * dim * (self.noise is not None)

    @property
    def _turned_bytes(self) -> int:
        """Size of a rotated vector, of float32, and of what it takes to rotate it."""
        dim = self.parameters.dim
        return self.parameters.rotate * (4 * dim + held_bytes(dim, 4))

    @property
    def checking_bytes(self) -> int:
        return self.summed_in.dtype.itemsize * self.parameters.dim + self._turned_bytes

    @property
    def repeatable(self) -> bool:
        # Noise is drawn from a secret of the device's rank.
        return self.noise is None

    def stand_in(self, server: Any, id: int, round_index: int) -> StandIn:
        return StandIn(self, id, round_index, self.where_sent(server, id))

    def where_sent(self, server: Any, id: int) -> Where:
        """Return the coordinates that the server has received from a device in the sum."""
        return self.sent_in(server.round_index)

    @property
    def upload_dim(self) -> int:
        """Number of coordinates of an upload, where that is the same for all devices."""
        return self.parameters.dim

    def scattered(
        self, values: NDArray[np.signedinteger[Any]], round_index: int
    ) -> NDArray[np.signedinteger[Any]]:
        """Return a sum of uploads as one of vectors, shape (d,), 0 where nobody sent."""
        where = self.sent_in(round_index)
        if isinstance(where, slice):
            return values
        whole = np.zeros(self.parameters.dim, values.dtype)
        whole[where] = values
        return whole

    def quantise(
        self, values: NDArray[np.floating], device: int, round_index: int
    ) -> NDArray[np.int64]:
        """Return a device's `values`, weighted, scaled and rounded to integers.

        The same arguments give the same rounding, and the same noise if there is any: that is how
        a round is validated. RefusedError if a value is not a finite number.
        """
        integers = np.empty(values.size, np.int64)
        for part, block in self._blocks(values, device, round_index):
            integers[part] = block
        return integers

    def _blocks(
        self, values: NDArray[np.floating], device: int, round_index: int
    ) -> Iterator[tuple[slice, NDArray[np.int64]]]:
        """Yield part by part what `quantise` returns, with where it belongs."""
        noise, norm = None, None
        if self.noise is not None:
            values, norm = self.noise.clip(values), self.noise.rounded_norm
            noise = self.noise.draw(values.size, device, round_index)
        spawn_key = (ROUNDING, round_index, device)
        seeds = np.random.SeedSequence(self.parameters.seed, spawn_key=spawn_key)
        generator = np.random.Generator(np.random.SFC64(seeds))
        blocks = self.quantiser.blocks(values, self.scale(device), generator, norm)
        clipped = 0
        try:
            for part, block, beyond in blocks:
                clipped += beyond
                yield part, block if noise is None else block + noise[part]
        except ValueError as error:
            raise RefusedError(f"device {device} refuses to upload its vector: {error}") from None
        self.clipped[device] = clipped, values.size

    def rotation(self, round_index: int) -> Rotation | None:
        """Return how vectors are rotated in a round, which all know, if they are."""
        if not self.parameters.rotate:
            return None
        seeds = np.random.SeedSequence(self.parameters.seed, spawn_key=(ROTATION, round_index))
        return Rotation(self.parameters.dim, np.random.Generator(np.random.SFC64(seeds)))

    def rotated(self, vector: NDArray[np.floating], round_index: int) -> NDArray[np.floating]:
        """Return a device's vector as coordinates are taken from it, shape (d,)."""
        rotation = self.rotation(round_index)
        return vector if rotation is None else rotation.turn(vector)

    def integers(
        self, vector: NDArray[np.floating], where: Where, device: int, round_index: int
    ) -> NDArray[np.int64]:
        """Return the integers that a device adds to the sum at some coordinates; see `quantise`."""
        return self.quantise(self.rotated(vector, round_index)[where], device, round_index)

    def added(
        self, vector: NDArray[np.floating], where: Where, device: int, round_index: int
    ) -> Iterator[tuple[Where, NDArray[np.int64]]]:
        """Yield these integers block by block, each with its coordinates."""
        values = self.rotated(vector, round_index)[where]
        for part, block in self._blocks(values, device, round_index):
            yield part if isinstance(where, slice) else where[part], block

    def elements(
        self, vector: NDArray[np.floating], where: Where, device: int, round_index: int
    ) -> Elements:
        """Return these integers as group elements, which takes no memory for the integers."""
        group, values = self.summed_in, self.rotated(vector, round_index)[where]
        elements = room(values.size * group.dtype.itemsize).view(group.dtype)
        for part, block in self._blocks(values, device, round_index):
            elements[part] = group.reduce(block)
        return elements

    def turned_back(self, server: Any) -> NDArray[np.float64] | None:
        """Return the mean of a server's round in the original coordinates, if they were rotated."""
        rotation = self.rotation(server.round_index)
        return None if rotation is None else rotation.undo(super().aggregate(server).mean_as_sent)

    def aggregate(self, server: Any) -> Aggregate:
        found = super().aggregate(server)
        if not self.parameters.rotate:
            return found
        rotation = self.rotation(server.round_index)
        return replace(found, rotation=rotation, turned_back=server.turned_back)

    def scale(self, device: int) -> float:
        """Return what a device multiplies its vector by, its weight over the divisor."""
        return self.parameters.weight(device) / self.divisor

    def read_values(self, payload: Payload, length: int, id: int) -> Elements:
        """Return the group elements of a device's upload; MessageError if it is not so many."""
        return self.read_elements(payload, length, "masked_input", f"device {id}")

    def read_elements(self, payload: Payload, length: int, phase: str, sender: str) -> Elements:
        """Return so many group elements; MessageError if a message is not just that."""
        group = self.summed_in
        packed = parse_vector(payload, "u1", group.wire_bytes(length), phase, sender)
        try:
            values = group.unpack(packed, length)
        except ValueError as error:
            raise MessageError(phase, sender, str(error)) from None
        if not group.holds(values):
            raise MessageError(phase, sender, "a value is not a group element")
        return values

    def read_part(
        self, part: Payload, start: int, size: int, length: int, id: int
    ) -> tuple[int, Elements]:
        """Return the place of some of an upload's values and their words, of so many in all.

        `part` is the payload from the byte `start` on, of `size` in all. Nothing but that size can
        be wrong with it: a word that is not an element counts as the one that it is congruent to,
        and bits behind the last value do not count.
        """
        group = self.summed_in
        if size != group.wire_bytes(length):
            reason = f"received {size} bytes, expected {group.wire_bytes(length)}"
            raise MessageError("masked_input", f"device {id}", reason)
        first = 8 * start // group.bits
        if start + part.size == size and group.bits * length % 8:
            part = part.copy()
            part[-1] &= 0x0F
        return first, group.unpack(part, min(length - first, 8 * part.size // group.bits))

    def check_elements(self, elements: Elements, sender: str) -> None:
        """Refuse numbers that are not of the group."""
        if not self.summed_in.holds(elements):
            raise MessageError("masked_input", sender, "a value is not a group element")

    def check_sum(self, total: Elements, length: int) -> Elements:
        """Return the sum of uploads that was formed on the way, of so many group elements."""
        if total.shape != (length,):
            reason = f"received a sum of shape {total.shape}"
            raise MessageError("masked_input", "the devices", reason)
        self.check_elements(total, "the devices")
        return total

    def decode(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.quantiser.dequantise(total)


@dataclass(frozen=True)
class StandIn:
    """Says what a failed device contributed, for validation only.

    Its vector and its rounding follow from the run's seed, and which coordinates it sent the server
    knows as well as it did.
    """

    protocol: QuantisedProtocol
    id: int
    round_index: int
    where: Where  # the coordinates that its upload held

    def contribution(self, vector: NDArray[np.floating]) -> tuple[Where, NDArray[np.int64]]:
        """Return where and what the device added to the sum."""
        values = self.protocol.integers(vector, self.where, self.id, self.round_index)
        return self.where, values

    def contributions(
        self, vector: NDArray[np.floating]
    ) -> Iterator[tuple[Where, NDArray[np.int64]]]:
        """Yield the same block by block."""
        return self.protocol.added(vector, self.where, self.id, self.round_index)


@dataclass(frozen=True)
class NoiseInSum(Promise):
    """The noise of enough honest devices is in every sum."""

    honest: int  # how many, at the least
    colluding: int  # most of a sum's devices that collude
    exceeded: float  # probability that more do

    @property
    def claim(self) -> str:
        return (
            f"every sum holds the noise of at least {counted(self.honest, 'honest device')}, and "
            f"{counted(self.colluding, 'other device')} in it may collude: devices help with no "
            "sum of fewer"
        )

    @property
    def worst(self) -> float:
        # Also where one's own noise is all that was planned for: if more are there, an account
        # takes all of them for honest but so many.
        return self.exceeded

    def broken(self, outcome: Outcome) -> str | None:
        summed = int(outcome.cohorts.min(initial=outcome.survivors))
        # One whose noise is its own has nothing to fear from how few the others are.
        if self.honest == 1 or summed - self.colluding >= self.honest:
            return None
        return (
            f"a sum holds the noise of {summed} devices, of which {self.colluding} may collude, "
            f"and that of {self.honest} honest ones was promised"
        )


# First element of the spawn keys of the run's seed: what the random numbers are for.
ROUNDING, UPDATES, DROPOUTS, TRAINING, SAMPLING, SPARSIFICATION, COLLUSION, NOISE = range(8)
ROTATION, HELPER_DROPOUTS = 8, 9


class ModelReceiver:
    """The part of a device that receives the current model."""

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self.model: NDArray[np.float32] | None = None

    def forget_model(self) -> None:
        """Let go of the model, which is as long as the vector that is made of it."""
        self.model = None

    def receive_model(self, payload: Payload) -> None:
        """Keep the model, float32 of shape (d,)."""
        self.model = parse_vector(payload, "<f4", self._dim, "model", "the server")


class QuantisedDevice(ModelReceiver):
    """A device of a protocol that sums quantised vectors."""

    _protocol: QuantisedProtocol

    def __init__(self, protocol: QuantisedProtocol, id: int, round_index: int) -> None:
        super().__init__(protocol.parameters.dim)
        self.id = id
        self._protocol = protocol
        self._parameters = protocol.parameters
        self._round = round_index

    def sent(self) -> Where:
        """Return the coordinates that the upload holds, in the order of its values."""
        return slice(None)

    def contribution(self, vector: NDArray[np.floating]) -> tuple[Where, NDArray[np.int64]]:
        where = self.sent()
        return where, self._integers(vector, where)

    def contributions(
        self, vector: NDArray[np.floating]
    ) -> Iterator[tuple[Where, NDArray[np.int64]]]:
        """Yield the same block by block."""
        return self._protocol.added(vector, self.sent(), self.id, self._round)

    def unquantised(self, vector: NDArray[np.floating]) -> tuple[Where, NDArray[np.float64], int]:
        """Return the contribution before clipping and rounding, and how much was clipped."""
        where = self.sent()
        values = self._protocol.rotated(vector, self._round)[where]
        clipped = int(np.count_nonzero(np.abs(values) > self._parameters.clip))
        return where, values.astype(np.float64) * self._protocol.scale(self.id), clipped

    def _elements(self, vector: NDArray[np.floating], where: Where) -> Elements:
        return self._protocol.elements(vector, where, self.id, self._round)

    def _integers(self, vector: NDArray[np.floating], where: Where) -> NDArray[np.int64]:
        return self._protocol.integers(vector, where, self.id, self._round)


class ModelSender:
    """The part of a server that sends the current model."""

    def __init__(self, model: NDArray[np.float32]) -> None:
        self.model = model.astype("<f4", copy=False)

    def send_model(self) -> Payload:
        """Return the model, float32 of shape (d,), little-endian."""
        return self.model.view(np.uint8)


class SumServer(ModelSender):
    """A server that adds up whole masked vectors of enrolled devices."""

    def __init__(
        self, protocol: QuantisedProtocol, round_index: int, model: NDArray[np.float32]
    ) -> None:
        super().__init__(model)
        self._protocol = protocol
        self._group = protocol.summed_in
        # Those of this round: the protocol may outlive it.
        self._members = protocol.members
        self._population = protocol.population
        self.round_index = round_index
        length = protocol.upload_dim
        self._uploads = RangeSum(protocol, range(length), length)
        self.survivors: list[int] = []
        # Signed integers of as many bytes as an element has.
        self.total: NDArray[np.signedinteger[Any]] = np.empty(0, np.int64)

    def receive_masked_input(self, sender: int, payload: Payload) -> None:
        """Add a device's masked vector to the sum."""
        length = self._protocol.upload_dim
        self._add([sender], self._protocol.read_values(payload, length, sender))

    def receive_part_masked_input(self, sender: int, part: Payload, start: int, size: int) -> None:
        """Add some of a device's masked vector to the sum."""
        if not start:
            self._check_senders([sender])
        if self._uploads.add_part(sender, part, start, size):
            self.survivors.append(sender)

    def receive_sum_masked_input(self, senders: list[int], total: Elements) -> None:
        """Take the sum of the masked vectors, formed on the way."""
        self._add(senders, self._protocol.check_sum(total, self._protocol.upload_dim))

    def _add(self, senders: list[int], elements: Elements) -> None:
        self._check_senders(senders)
        self.survivors += senders
        self._uploads.add(elements)

    def _check_senders(self, senders: list[int]) -> None:
        for sender in senders:
            if sender in self.survivors:
                raise MessageError("masked_input", f"device {sender}", "it was received twice")

    def finish_result(self) -> None:
        """Return to signed integers: no mask is left; and to the original coordinates."""
        decoded = self._group.signed(self._uploads.take())
        self.total = self._protocol.scattered(decoded, self.round_index)
        self.turned_back = self._protocol.turned_back(self)


MODEL = Step("model", Pattern.BROADCAST, ModelSender.send_model, ModelReceiver.receive_model)


def check_finite(device: int, vector: NDArray[np.floating]) -> None:
    """Refuse to upload a vector with infinities, or with what is not a number."""
    if not all_finite(vector):
        raise RefusedError(
            f"device {device} refuses to upload its vector: it holds a value that is not a finite "
            "number"
        )
