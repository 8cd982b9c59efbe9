"""The common part of protocols that sum quantised vectors in a group, and of their parties."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import (
    ROUNDING,
    AggregationProtocol,
    ModelReceiver,
    RoundServer,
)
from hpcfl.algorithms.aggregation.messages import parse_vector
from hpcfl.algorithms.aggregation.promises import Certain, NoiseInSum, Promise
from hpcfl.algorithms.aggregation.ranges import RangeSum
from hpcfl.algorithms.noise import IntegerNoise
from hpcfl.algorithms.parameters import Parameters
from hpcfl.algorithms.quantisation import Quantiser, check_levels, largest_levels
from hpcfl.comm.phases import Payload, Where, room
from hpcfl.crypto import keys, native
from hpcfl.crypto.groups import Elements, Group
from hpcfl.crypto.keys import SecretSource, system_secrets
from hpcfl.errors import MessageError, RefusedError, UsageError
from hpcfl.options.protocols import QuantisedOptions
from hpcfl.privacy.threat import Threat
from hpcfl.values import dataclass, field

_KEPT = (
    "devices agree once a run on the keys that encrypt shares. Whoever learns such a key, even "
    "later, learns all vectors that its owner uploads in the run"
)


class QuantisedProtocol(AggregationProtocol):
    """A protocol that sums quantised vectors in a group."""

    options = (*AggregationProtocol.options, QuantisedOptions)
    family = "ring"
    # Classes of the parties of a round, unless `device` and `server` are overridden.
    device_class: ClassVar[Callable[..., Any]]
    server_class: ClassVar[Callable[..., Any]]

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters)
        if parameters.group != "fq" and not parameters.group.startswith(self.family):
            raise UsageError(
                f"{self.name} sums vectors in fq, or in {self.family}B of B bits, not in "
                f"{parameters.group}: leave --group out, or give --bits"
            )
        self.quantiser = Quantiser(parameters.clip, parameters.levels)
        self.noise: IntegerNoise | None = None
        # By device of this rank: the number of clipped values, and of all values sent.
        self.clipped: dict[int, tuple[int, int]] = {}
        self.check_levels()

    def device(self, id: int, round_index: int, secrets: SecretSource) -> Any:
        return self.device_class(self, id, round_index, secrets)

    def server(
        self, round_index: int, model: NDArray[np.float32], secrets: SecretSource = system_secrets
    ) -> Any:
        return self.server_class(self, round_index, model, secrets)

    @property
    def summed_in(self) -> Group:
        return self.parameters.arithmetic

    @property
    def keeps_transport_keys(self) -> bool:
        """Whether devices keep the keys that encrypt shares for all rounds of a run."""
        return self.parameters.transport_keys == "run"

    @property
    def upload_dim(self) -> int:
        """Number of coordinates of an upload, if it is the same for all devices."""
        return self.parameters.dim

    @property
    def largest_message(self) -> int:
        return self.summed_in.wire_bytes(self.upload_dim)

    # Levels and noise

    def most_in_sum(self, devices: int) -> tuple[int, float]:
        """Return the maximum number of devices in a coordinate's sum, and of their weight."""
        return devices, 1.0

    def largest_levels(
        self, group: Group | None = None, reserve: int = 0, devices: int | None = None
    ) -> int:
        """Return the most levels with which no coordinate's sum can wrap around.

        By default, `group` is the protocol's own and `devices` the number in a round; `reserve` is
        the room for the noise in a sum.
        """
        most, weight = self.most_in_sum(devices or self.parameters.devices)
        group, clip = group or self.summed_in, self.parameters.clip
        return largest_levels(group, most, clip, self.divisor, weight, reserve)

    def check_levels(self, reserve: int = 0, devices: int | None = None) -> None:
        """Refuse, by UsageError, levels with which a sum could wrap around."""
        plan, largest = self.parameters, self.largest_levels(reserve=reserve, devices=devices)
        check_levels(plan.levels, largest, self.summed_in, plan.clip, noisy=reserve > 0)

    def add_noise(self, noise: IntegerNoise) -> None:
        """Let every device add noise to its integers.

        Raise UsageError if a sum with its noise could wrap around with a probability above that of
        `correctness_bits`. Wrapping around would keep privacy but make the sum wrong.
        """
        plan = self.parameters
        most, _ = self.most_in_sum(plan.devices)
        self.check_levels(noise.bound(most, plan.dim, 2.0**-plan.correctness_bits))
        self.noise = noise

    # The assumed threat, and what a sum hides from it

    @cached_property
    def threat(self) -> Threat:
        """The colluding and dropped devices that the protocol assumes."""
        return Threat.of(self.parameters)

    @property
    def colluding_in_sum(self) -> int:
        """Maximum number of colluders in a sum, except with 2 to the minus security bits."""
        failure = 2.0**-self.parameters.security_bits
        return self.threat.most_colluding(self.parameters.devices, failure)

    @property
    def more_colluding(self) -> float:
        """Probability that a sum has more colluders than `colluding_in_sum`."""
        return self.threat.more_colluding(self.parameters.devices, self.colluding_in_sum)

    @property
    def survivors_in_sum(self) -> int:
        """Minimum number of devices that are planned to be in a sum."""
        return self.parameters.devices - self.threat.dropped

    def honest_among(self, survivors: int) -> int:
        """Return the minimum number of honest devices in a coordinate, given all survivors."""
        return max(1, survivors - self.colluding_in_sum)

    def honest_in_sum(self) -> int:
        """Return the minimum number of honest survivors, with their noise, in one coordinate.

        The device whose privacy is at stake is one of them. A round with fewer ends.
        """
        return max(1, self.survivors_in_sum - self.colluding_in_sum)

    def promises(self) -> list[Promise]:
        found: list[Promise] = [Certain(_KEPT)] if self.keeps_transport_keys else []
        if self.noise is not None:
            honest = self.honest_in_sum()
            found.append(NoiseInSum(honest, self.colluding_in_sum, self.more_colluding))
        return found

    def hidden_failure(self) -> float:
        """Return an upper bound of the probability that a sum hides less than accounts assume.

        Masks may fail with the probability of their promises, and more devices may collude than
        assumed. Raise UsageError if the bound reaches 1, so that no account can rely on the sum.
        """
        masks = [one for one in self.promises() if not isinstance(one, NoiseInSum)]
        # An account counts on the actual survivors, who may be more than planned. So the plan does
        # not decide whether an account relies on the noise of other devices.
        alone = self.honest_among(self.parameters.devices) == 1
        failure = (0.0 if alone else self.more_colluding) + sum(one.worst for one in masks)
        if failure >= 1:
            raise UsageError(
                "devices have too few neighbours for so many that collude or drop out: masks hide "
                "too little for any account; raise --degree, or leave it out, or lower --gamma or "
                "--dropout"
            )
        return failure

    # From a vector to group elements

    def scale(self, device: int) -> float:
        """Return the factor of a device's vector: its weight over the divisor."""
        return self.parameters.weight(device) / self.divisor

    def bounded(self, values: NDArray[np.floating]) -> tuple[NDArray[np.floating], float | None]:
        """Return a device's vector, clipped as a whole, and the limit of its integers' norm.

        By default there is no limit. A vector that is short enough is returned itself.
        """
        return values, None

    @property
    def clips(self) -> str:
        """What limits the values that devices send, as an option and its value."""
        return f"--clip {self.parameters.clip:g}"

    def blocks(
        self,
        values: NDArray[np.floating],
        device: int,
        round_index: int,
        dtype: type[np.signedinteger[Any]] = np.int64,
    ) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield a device's `values`, weighted, scaled and rounded to integers, part by part.

        Each part comes with its slice. The same arguments give the same rounding and the same
        noise, if any, which validation relies on. Raise RefusedError if a value is not a finite
        number.
        """
        noise, whole = None, values
        values, norm = self.bounded(whole)
        shortened = values is not whole
        if self.noise is not None:
            values, norm = self.noise.clip(values), self.noise.rounded_norm
            noise = self.noise.draw(values.size, device, round_index)
        generator, clipped = np.random.Generator(self._draws(device, round_index)), 0
        try:
            for part, block, beyond in self.quantiser.blocks(
                values, self.scale(device), generator, norm, dtype
            ):
                clipped += beyond
                yield part, block if noise is None else block + noise[part]
        except ValueError as error:
            raise RefusedError(f"device {device} refuses to upload its vector: {error}") from None
        self.clipped[device] = values.size if shortened else clipped, values.size

    def _draws(self, device: int, round_index: int) -> np.random.SFC64:
        """Return what decides which way a device's values are rounded."""
        spawn_key = (ROUNDING, round_index, device)
        return np.random.SFC64(np.random.SeedSequence(self.parameters.seed, spawn_key=spawn_key))

    def quantise(
        self,
        values: NDArray[np.floating],
        device: int,
        round_index: int,
    ) -> NDArray[np.int64]:
        """Return the integers of `blocks` in one array."""
        integers = np.empty(values.size, np.int64)
        for part, block in self.blocks(values, device, round_index):
            integers[part] = block
        return integers

    def elements(
        self, vector: NDArray[np.floating], where: Where, device: int, round_index: int
    ) -> Elements:
        """Return the same integers as group elements, without memory for the integers."""
        group, values = self.summed_in, vector[where]
        elements = room(values.size * group.dtype.itemsize).view(group.dtype)
        # Noise has tails: with it, a single device's integers may be of any size.
        bounded = self.noise is None
        short, norm = self.bounded(values)
        code = native.rounder() if bounded and norm is None else None
        if code is not None:
            draws, scale = self._draws(device, round_index), self.scale(device)
            ours = self.quantiser.clip, scale * self.quantiser.levels
            clipped = code.quantise(short, *ours, draws, group, elements)
            if clipped is not None:
                self.clipped[device] = clipped, values.size
                return elements
        converted, dtype = (group.of_integers, np.int32) if bounded else (group.reduce, np.int64)
        for part, block in self.blocks(values, device, round_index, dtype):
            elements[part] = converted(block)
        return elements

    # From the sum back

    def decode(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        # Equation 23 of SparseSecAgg.
        return total / self.quantiser.levels

    @property
    def repeatable(self) -> bool:
        # Noise is drawn from a secret of the device's rank.
        return self.noise is None

    def stand_in(self, server: Any, id: int, round_index: int) -> Contributor:
        return Contributor(self, id, round_index)

    # Messages

    def read_values(self, payload: Payload, length: int, id: int) -> Elements:
        """Return the `length` group elements of a device's upload; MessageError otherwise."""
        return self.read_elements(payload, length, "masked_input", f"device {id}")

    def read_elements(
        self, payload: Payload, length: int, phase: str, sender: str, group: Group | None = None
    ) -> Elements:
        """Return `length` group elements; MessageError if the payload is anything else.

        By default, `group` is the one that vectors are summed in.
        """
        group = group or self.summed_in
        packed = parse_vector(payload, "u1", group.wire_bytes(length), phase, sender)
        try:
            values = group.unpack(packed, length)
        except ValueError as error:
            raise MessageError(phase, sender, str(error)) from None
        if not group.holds(values):
            raise MessageError(phase, sender, "a value is not a group element")
        return values

    def check_sum(self, total: Elements) -> Elements:
        """Check and return a sum of uploads that the transport has formed."""
        if total.shape != (self.upload_dim,):
            reason = f"received a sum of shape {total.shape}"
            raise MessageError("masked_input", "the devices", reason)
        if not self.summed_in.holds(total):
            raise MessageError("masked_input", "the devices", "a value is not a group element")
        return total


class Contributor:
    """Gives a device's contribution to the sum, for validation only.

    The vector and the rounding follow from the run's seed, and the server knows which coordinates
    the device sent. So an object of this class can stand in for a device whose rank died.
    """

    def __init__(
        self, protocol: QuantisedProtocol, id: int, round_index: int, where: Where | None = None
    ) -> None:
        self.id = id
        self._protocol = protocol
        self._round = round_index
        self._where = where

    def sent(self) -> Where:
        """Return the coordinates of the upload, in the order of its values."""
        return self._protocol.sent_in(self._round) if self._where is None else self._where

    def contribution(self, vector: NDArray[np.floating]) -> tuple[Where, NDArray[np.int64]]:
        """Return the coordinates and values that the device added to the sum."""
        where = self.sent()
        return where, self._protocol.quantise(vector[where], self.id, self._round)

    def contributions(
        self, vector: NDArray[np.floating]
    ) -> Iterator[tuple[Where, NDArray[np.int64]]]:
        """Yield the contribution block by block."""
        where = self.sent()
        for part, block in self._protocol.blocks(vector[where], self.id, self._round):
            yield part if isinstance(where, slice) else where[part], block

    def unquantised(self, vector: NDArray[np.floating]) -> tuple[Where, NDArray[np.float64], int]:
        """Return the contribution before clipping and rounding, and the count of clipped values."""
        where = self.sent()
        values = vector[where]
        limit = self._protocol.quantiser.clip
        if self._protocol.bounded(values)[0] is not values:
            limit = -1.0  # all values are clipped
        clipped = int(np.count_nonzero(np.abs(values) > limit))
        return where, values.astype(np.float64) * self._protocol.scale(self.id), clipped


def until(step: str, default: Callable[[], Any]) -> Any:
    """Return a field of a device's state, with a secret that no step after the named one needs."""
    return field(default_factory=default, repr=False, metadata={"until": step})


@dataclass
class DeviceState:
    """What a device keeps between the steps of a round."""

    done: set[str] = field(default_factory=set)  # completed actions that are allowed once a round


class QuantisedDevice(ModelReceiver, Contributor):
    """A device of a protocol that sums quantised vectors.

    It keeps what it needs between the steps of a round in its `state`, a dataclass.
    """

    state_class: ClassVar[type[Any]] = DeviceState
    kept = ("state",)

    def __init__(
        self,
        protocol: QuantisedProtocol,
        id: int,
        round_index: int,
        secrets: SecretSource = system_secrets,
    ) -> None:
        ModelReceiver.__init__(self, protocol.model_dim)
        Contributor.__init__(self, protocol, id, round_index)
        self._secrets = secrets
        self._parameters = protocol.parameters
        self.state = self.state_class()
        # The device's state from its enrolment, if the protocol has one.
        self._member: Any = protocol.enrolled[protocol.members[id]] if protocol.enrolled else None
        # Errors of malformed rows that this device can do without.
        self.ignored: list[MessageError] = []

    def refusal(self, what: str) -> RefusedError:
        """Return the error with which the device leaves the round; `what` it refuses, and why."""
        return RefusedError(f"device {self.id} refuses {what}")

    def _transport_pair(self) -> keys.KeyPair:
        """Return the key pair for encrypting shares: of this round, or kept for all rounds."""
        if self._protocol.keeps_transport_keys:
            self._member.enter(self._round)
            pair: keys.KeyPair = self._member.pair
            return pair
        return keys.KeyPair.generate(self._secrets)

    def _agree_on_transport(
        self, private: bytes, ids: list[int], public: list[bytes]
    ) -> list[bytes]:
        """Return the secret shared with each device `ids`, which gives the keys for shares."""
        if self._protocol.keeps_transport_keys:
            members = [self._protocol.members[id] for id in ids]
            kept: list[bytes] = self._member.agree(members, public)
            return kept
        return keys.agree(private, public)

    def _once(self, what: str) -> None:
        """Refuse to do `what` a second time in a round."""
        if what in self.state.done:
            raise self.refusal(f"to {what} twice in a round")
        self.state.done.add(what)

    def _elements(self, vector: NDArray[np.floating], where: Where) -> Elements:
        return self._protocol.elements(vector, where, self.id, self._round)

    def _masked(
        self, vector: NDArray[np.floating], mask_keys: list[bytes], signs: list[int]
    ) -> Payload:
        """Return the quantised vector plus the signed masks, packed."""
        group = self._protocol.summed_in
        elements = self._elements(vector, self.sent())
        group.mask(elements, mask_keys, signs, self._parameters.threads)
        return group.pack(elements)


class QuantisedServer(RoundServer):
    """A server that ends with an unmasked sum of group elements."""

    _protocol: QuantisedProtocol
    unmasked: Elements | None = None  # set after the masks are removed, until the sum is decoded
    # Signed integers of the same width as an element.
    total: NDArray[np.signedinteger[Any]] = np.empty(0, np.int64)

    def finish_result(self) -> None:
        """Convert the sum to signed integers at the original coordinates."""
        unmasked, self.unmasked = self.unmasked, None
        assert unmasked is not None
        values = self._protocol.summed_in.signed(unmasked)
        self.total, where = values, self._protocol.sent_in(self.round_index)
        if not isinstance(where, slice):
            self.total = np.zeros(self._dim, values.dtype)
            self.total[where] = values


class SumServer(QuantisedServer):
    """A server that adds up whole masked vectors."""

    @cached_property
    def _uploads(self) -> RangeSum:
        """The sum of the uploads, or of a range of their values if the server has several ranks."""
        return RangeSum.of(self._protocol, range(self._protocol.upload_dim))

    def receive_masked_input(self, sender: int, payload: Payload) -> None:
        """Add a device's masked vector to the sum (eq. 20)."""
        self._check_sender(sender)
        self._add_upload(sender, payload)
        self._admit(sender)

    def receive_part_masked_input(self, sender: int, part: Payload, start: int, size: int) -> None:
        """Add a part of a device's masked vector to the sum."""
        if not start:
            self._check_sender(sender)
        if self._uploads.add_part(sender, part, start, size):
            self._admit(sender)

    def receive_sum_masked_input(self, senders: list[int], total: Elements) -> None:
        """Add a sum of masked vectors that the transport has formed."""
        self._protocol.check_sum(total)
        for sender in senders:
            self._check_sender(sender)
        for sender in senders:
            self._admit(sender)
        self._uploads.add(total)

    def _add_upload(self, sender: int, payload: Payload) -> None:
        """Add an upload to the sum, unless it is malformed."""
        values = self._protocol.read_values(payload, self._protocol.upload_dim, sender)
        self._uploads.add(values)

    def _check_sender(self, sender: int) -> None:
        """Refuse an upload from a device that may not send one, or has sent one before."""
        self._first("masked_input", sender, self._admitted)

    def _admit(self, sender: int) -> None:
        self._admitted.add(sender)
        self.survivors.append(sender)

    def finish_masked_input(self) -> None:
        """Fix the devices in the sum, and check the promises about it."""
        self._settle_survivors("sent their masked vectors")

    def finish_result(self) -> None:
        if self.unmasked is None:
            self.unmasked = self._uploads.take()
        super().finish_result()
