"""Masks from one enrolment for all rounds (Hu, Guo and Gong, OJCS 2021, Fig. 2 and eq. 7-9).

Every pair of the n enrolled devices agrees once on a seed. In round t a pair masks with
``PRF(seed, t)``, so that a round takes nothing but the model down and a masked vector up. Equation
7 gives a pair two masks, of which each adds one and subtracts the other; one mask, added by one of
the two and subtracted by the other, hides as much for half the work. There are no private masks and
no shares: the server cannot take off the masks of a device that is missing, and refuses the round.

Messages, after the envelope (all numbers little-endian; "bits" are a bitmap, the first bit of a
byte being its most significant):

==============  =============  ====================================================================
phase           direction      payload
==============  =============  ====================================================================
advertise_keys  to the server  public key (32 bytes); once, before the first round
advertise_keys  to devices     the public keys of all n devices, in order; once
model           to devices     d float32, then bits of the devices that are selected (n)
masked_input    to the server  d group elements
==============  =============  ====================================================================

In the enrolment devices go by their ids; in a round the r selected ones are numbered from 0, and
only keys and the bits use the ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import (
    Enrolment,
    ModelReceiver,
    ModelSender,
    QuantisedProtocol,
    parse_vector,
)
from hpcfl.algorithms.aggregation.costs import Phases, add, converted, masked_upload
from hpcfl.algorithms.aggregation.promises import Certain, Promise
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import Pattern, Payload, Step, phase_names
from hpcfl.crypto import keys
from hpcfl.crypto.groups import Elements
from hpcfl.errors import BelowThresholdError, MessageError, RefusedError, UsageError
from hpcfl.privacy.masking import InCohorts

SEED_BYTES = 32
MIN_SELECTED = 2


class PairwiseSeeds(Enrolment):
    """The enrolment: every pair of devices agrees on a seed, its keys relayed by the server."""

    steps = (
        Step("advertise_keys", Pattern.GATHER),
        Step("advertise_keys", Pattern.BROADCAST),
    )
    largest_message = keys.KEY_BYTES

    def __init__(self, devices: int) -> None:
        self.devices = devices

    def device(self, id: int, secrets: keys.SecretSource) -> Member:
        return Member(id, self.devices, secrets)

    def server(self) -> KeyDirectory:
        return KeyDirectory(self.devices)


class Member:
    """An enrolled device: its seeds, and the last round that it masked a vector for.

    Parameters
    ----------
    id : int
        The id that it enrols with.
    devices : int
        Number n of devices that enrol.
    secrets : callable
        Where its key comes from.
    """

    def __init__(self, id: int, devices: int, secrets: keys.SecretSource) -> None:
        self.id = id
        self.devices = devices
        self._pair = keys.KeyPair.generate(secrets)
        # The seeds with devices 0 to n - 1, end to end, zeros in its own place.
        self._seeds = b""
        self._last_round = -1

    def send_advertise_keys(self) -> Payload:
        """Return the public key."""
        return np.frombuffer(self._pair.public, np.uint8)

    def receive_advertise_keys(self, payload: Payload) -> None:
        """Agree on a seed with every other device: no key twice, its own as it sent it."""
        if self._seeds:
            raise RefusedError(f"device {self.id} refuses to enrol twice")
        phase, size = "advertise_keys", keys.KEY_BYTES
        raw = parse_vector(payload, "u1", size * self.devices, phase, "the server").tobytes()
        listed = [raw[start : start + size] for start in range(0, len(raw), size)]
        if listed[self.id] != self._pair.public:
            raise MessageError(phase, "the server", "this device's own key is not as it sent it")
        if len({*listed}) != self.devices:
            raise MessageError(phase, "the server", "a public key is listed twice")
        for id, public in enumerate(listed):
            check_key(public, id)
        peers = [id for id in range(self.devices) if id != self.id]
        try:
            shared = keys.agree(self._pair.private, [listed[id] for id in peers])
        except ValueError:
            raise MessageError(phase, "the server", "a public key has low order") from None
        seeds = [
            keys.derive(secret, pair_context(self.id, peer), SEED_BYTES)
            for peer, secret in zip(peers, shared, strict=True)
        ]
        seeds.insert(self.id, bytes(SEED_BYTES))
        self._seeds = b"".join(seeds)
        # Of no use any more, and from it all seeds follow.
        self._pair = keys.KeyPair(b"", self._pair.public)

    def mask_keys(self, round_index: int, selected: Sequence[int]) -> dict[int, bytes]:
        """Return the key of the mask with every other selected device, by id, for one round.

        Parameters
        ----------
        round_index : int
            The round, later than all before.
        selected : sequence of int
            Ids of the devices that take part, in increasing order.

        Raises
        ------
        RefusedError
            If the masks would not hide this device's vector.
        """
        if not self._seeds:
            raise RefusedError(f"device {self.id} refuses round {round_index}: it has not enrolled")
        if self.id not in selected:
            raise RefusedError(
                f"device {self.id} refuses round {round_index}: it is not among the selected"
            )
        if len(selected) < MIN_SELECTED:
            raise RefusedError(
                f"device {self.id} refuses round {round_index}: it is selected alone, so the sum "
                "would be its vector"
            )
        # The difference of two vectors under the same masks would be in the clear.
        if round_index <= self._last_round:
            raise RefusedError(
                f"device {self.id} refuses round {round_index}: it has masked a vector for round "
                f"{self._last_round} already"
            )
        self._last_round = round_index
        context = round_context(round_index, selected, self.devices)
        return {
            peer: keys.derive(self._seeds[SEED_BYTES * peer : SEED_BYTES * (peer + 1)], context)
            for peer in selected
            if peer != self.id
        }


def check_key(public: bytes, id: int) -> None:
    """Refuse the public key of a device with which nothing can be agreed.

    Raises
    ------
    MessageError
    """
    try:
        keys.check_public(public)
    except ValueError as error:
        raise MessageError("advertise_keys", f"device {id}", str(error)) from None


def pair_context(i: int, j: int) -> bytes:
    """Return the context in which the secret of a pair of devices gives its seed."""
    return f"hpcfl/1 prf pair {min(i, j)} {max(i, j)} seed".encode()


def round_context(round_index: int, selected: Sequence[int], devices: int) -> bytes:
    """Return the context in which a seed gives the key of a round's mask: round and selection.

    A server that selects differently towards different devices gets masks that do not cancel.
    """
    digest = hashlib.sha256(to_bits(selected, devices).tobytes()).hexdigest()
    return f"hpcfl/1 prf round {round_index} selected {digest} of {devices} additive mask".encode()


def to_bits(ids: Sequence[int], devices: int) -> Payload:
    """Return a bitmap of ids below `devices`."""
    flags = np.zeros(devices, np.bool_)
    flags[list(ids)] = True
    return np.packbits(flags)


class KeyDirectory:
    """The server's side of the enrolment."""

    def __init__(self, devices: int) -> None:
        self._devices = devices
        self._public: dict[int, bytes] = {}

    def receive_advertise_keys(self, sender: int, payload: Payload) -> None:
        """Keep a device's public key."""
        name = f"device {sender}"
        key = parse_vector(payload, "u1", keys.KEY_BYTES, "advertise_keys", name)
        if sender in self._public:
            raise MessageError("advertise_keys", name, "it was received twice")
        public = key.tobytes()
        check_key(public, sender)
        # Devices would refuse a list with a key twice, all of them.
        if public in self._public.values():
            raise MessageError("advertise_keys", name, "its public key is taken already")
        self._public[sender] = public

    def finish_advertise_keys(self) -> None:
        missing = [id for id in range(self._devices) if id not in self._public]
        if missing:
            raise BelowThresholdError(
                f"the enrolment cannot end: {name_devices(missing)} advertised no key, and prf "
                "needs a seed of every pair; use secagg, which enrols anew in every round"
            )

    def send_advertise_keys(self) -> Payload:
        """Return all public keys."""
        listed = b"".join(self._public[id] for id in range(self._devices))
        return np.frombuffer(listed, np.uint8)


class Prf(QuantisedProtocol):
    """Secure aggregation of whole vectors by devices that all stay."""

    name = "prf"
    not_attacked = "its masks follow from seeds of the whole run, which no round reveals"
    not_active = "it has no survivors to agree on, and no shares"
    min_devices = MIN_SELECTED
    tolerates_dropouts = False
    steps = (
        Step("model", Pattern.BROADCAST),
        Step("masked_input", Pattern.GATHER, upload=True),
        Step("result", Pattern.LOCAL),
    )

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters)
        if parameters.degree is not None:
            raise UsageError(
                f"prf masks between all pairs, so --degree {parameters.degree} has no effect: "
                "leave it out, or use secagg-graph"
            )
        self._enrolled: Mapping[int, Member] = {}
        self.members: Sequence[int] = ()
        self.population = 0

    @classmethod
    def enrolment(cls, devices: int) -> PairwiseSeeds:
        return PairwiseSeeds(devices)

    @classmethod
    def phases(cls) -> list[str]:
        return phase_names(PairwiseSeeds.steps + cls.steps)

    def join(self, enrolled: Mapping[int, Member], members: Sequence[int], population: int) -> None:
        if len(members) != self.parameters.devices:
            raise ValueError(f"{len(members)} members for {self.parameters.devices} devices")
        self._enrolled = enrolled
        self.members = members
        self.population = population

    @property
    def survivors_in_sum(self) -> int:
        # A round in which anybody is missing is refused.
        return self.parameters.devices

    def settings(self) -> dict[str, Any]:
        devices = self.parameters.devices
        return {"degree": devices - 1, "threshold": devices}

    def promises(self) -> list[Promise]:
        devices, colluding = self.parameters.devices, self.colluding_in_sum
        learned = f"the server learns the sum of all {devices}"
        if colluding:
            learned += (
                f", with {colluding} colluding devices the sum of the other {devices - colluding}"
            )
        return [
            Certain(
                f"every device masks its vector with the {devices - 1} others; {learned}. "
                "A round in which a device is missing is refused"
            ),
            Certain(
                "seeds are agreed on once and charged to the first round, warm-up or not. Who "
                "learns a device's seeds, later as well, learns its masks of all rounds"
            ),
            *super().promises(),
        ]

    @classmethod
    def masking(cls, devices: int, alpha: float, degree: int | None) -> InCohorts:
        if degree not in (None, devices - 1):
            raise UsageError(f"{cls.name} masks between all pairs: leave the degree out")
        return InCohorts(devices)

    def count(self, phases: Phases) -> None:
        upload, dim, devices = phases["masked_input"], self.parameters.dim, self.parameters.devices
        # Who is selected, of all devices that enrolled.
        phases["model"].down += -(-(self.population or devices) // 8)
        masked_upload(upload, dim, devices, devices - 1)
        add(upload.device, {"derivation": devices - 1})
        add(upload.server, converted(dim))

    def cost_notes(self) -> list[str]:
        return ["without the enrolment before the first round, one agreement a pair"]

    def device(self, id: int, round_index: int, secrets: keys.SecretSource) -> PrfDevice:
        return PrfDevice(self, id, round_index, self._enrolled[self.members[id]])

    def server(
        self,
        round_index: int,
        model: NDArray[np.float32],
        secrets: keys.SecretSource = keys.system_secrets,
    ) -> PrfServer:
        return PrfServer(self, round_index, model)


class PrfDevice(ModelReceiver):
    """A device's side of one round.

    Parameters
    ----------
    protocol : Prf
        The parameters.
    id : int
        The device's number in the round.
    round_index : int
        The round.
    member : Member
        What the device keeps from its enrolment and from round to round.
    """

    def __init__(self, protocol: Prf, id: int, round_index: int, member: Member) -> None:
        super().__init__(protocol.parameters.dim)
        self.id = id
        self._protocol = protocol
        self._parameters = protocol.parameters
        self._round = round_index
        self._member = member
        self._selected: list[int] = []

    def receive_model(self, payload: Payload) -> None:
        """Keep the model, and who is selected."""
        devices = self._member.devices
        cut = 4 * self._parameters.dim
        bits = parse_vector(payload[cut:], "u1", -(-devices // 8), "model", "the server")
        super().receive_model(payload[:cut])
        self._selected = np.flatnonzero(np.unpackbits(bits)).tolist()
        if self._selected and self._selected[-1] >= devices:
            raise MessageError(
                "model", "the server", f"it selects a device beyond the last, {devices - 1}"
            )

    def send_masked_input(self, vector: NDArray[np.floating]) -> Payload:
        """Return the quantised vector plus the masks of all pairs (eq. 7 and 8)."""
        mask_keys = self._member.mask_keys(self._round, self._selected)
        signs = [1 if self._member.id < peer else -1 for peer in mask_keys]
        group = self._parameters.arithmetic
        elements = group.reduce(self._quantise(vector))
        masked = group.add_masks(elements, mask_keys.values(), signs)
        return masked.astype("<u4", copy=False).view(np.uint8)

    def contribution(self, vector: NDArray[np.floating]) -> tuple[slice, NDArray[np.int64]]:
        return slice(None), self._quantise(vector)

    def unquantised(self, vector: NDArray[np.floating]) -> tuple[slice, NDArray[np.float64], int]:
        """Return the contribution before clipping and rounding, and how much was clipped."""
        scaled = vector.astype(np.float64) * self._protocol.scale(self.id)
        return slice(None), scaled, int(np.count_nonzero(np.abs(vector) > self._parameters.clip))

    def _quantise(self, vector: NDArray[np.floating]) -> NDArray[np.int64]:
        return self._protocol.quantise(vector, self.id, self._round)


class PrfServer(ModelSender):
    """The server's side of one round."""

    def __init__(self, protocol: Prf, round_index: int, model: NDArray[np.float32]) -> None:
        super().__init__(model)
        self._parameters = protocol.parameters
        self._group = protocol.parameters.arithmetic
        self._members = protocol.members
        self._population = protocol.population
        self._round = round_index
        self._sum = np.zeros(self._parameters.dim, np.int64)
        self.survivors: list[int] = []
        self.total = np.empty(0, np.int64)

    def send_model(self) -> Payload:
        """Return the model, and who is selected."""
        return np.concatenate([super().send_model(), to_bits(self._members, self._population)])

    def receive_masked_input(self, sender: int, payload: Payload) -> None:
        """Add a device's masked vector to the sum (eq. 9)."""
        name, dim = f"device {sender}", self._parameters.dim
        self._add([sender], parse_vector(payload, "<u4", dim, "masked_input", name), name)

    def receive_sum_masked_input(self, senders: list[int], total: Elements) -> None:
        """Take the sum of the masked vectors, formed on the way."""
        if total.shape != self._sum.shape:
            raise MessageError(
                "masked_input", "the devices", f"received a sum of shape {total.shape}"
            )
        self._add(senders, total, "the devices")

    def _add(self, senders: list[int], elements: Elements, name: str) -> None:
        if int(elements.max()) >= self._group.modulus:
            raise MessageError("masked_input", name, "a value is not a group element")
        for sender in senders:
            if sender in self.survivors:
                raise MessageError("masked_input", f"device {sender}", "it was received twice")
        self.survivors += senders
        self._sum += elements

    def finish_masked_input(self) -> None:
        """Refuse the round if a selected device sent nothing: its masks are still in the sum."""
        self.survivors.sort()
        received = {*self.survivors}
        missing = [id for slot, id in enumerate(self._members) if slot not in received]
        if missing:
            raise BelowThresholdError(
                f"round {self._round} cannot end: prf has no way to remove the masks of "
                f"{name_devices(missing)}, which sent no vector; use secagg"
            )

    def finish_result(self) -> None:
        """Return to signed integers: the masks have cancelled."""
        self.total = self._group.decode(self._group.reduce(self._sum))


def name_devices(ids: list[int]) -> str:
    """Return some devices in words, the first few by id."""
    named = ", ".join(map(str, ids[:5]))
    if len(ids) > 5:
        return f"devices {named} and {len(ids) - 5} more"
    return f"device{'s' * (len(ids) > 1)} {named}"
