"""Masks known to helpers, one message per device and round (e-SeaFL, Behnia et al., ACSAC 2024).

Device i agrees once with each of K helpers on a secret k_ih. In round r it only uploads its vector
plus the masks PRF(k_ih, r). The server tells the helpers which devices survived. Each helper
answers with one vector, minus the sum of its masks with the survivors, which removes these masks
from the sum. A missing device costs nothing, whenever it vanishes; a missing helper makes the round
fail.

This is e-SeaFL (arXiv:2304.03841) against curious parties, without its commitments. A vector is
hidden as long as one helper does not collude with the server. With K = 1 it is additive
sharing between two servers, as in Prio and DAP, without proofs that vectors are valid.

Messages, after the envelope (all numbers little-endian; "bits" are a bitmap of all n devices that
enrolled, the first bit of a byte being its most significant):

==============  =============  ====================================================================
phase           direction      payload
==============  =============  ====================================================================
advertise_keys  helper to      public key (32 bytes); once, before the first round
                server
advertise_keys  to the server  public key (32 bytes); once
advertise_keys  to devices     the K helpers' keys, bits of the devices with received keys; once
advertise_keys  to helpers     the n devices' keys, zeros for a missing key; once
model           to devices     d float32
masked_input    to the server  d group elements
unmask          to helpers     bits of the devices whose vectors are in the sum
unmask          helper to      d group elements: minus the sum of these devices' masks
                server
==============  =============  ====================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import MODEL, AggregationProtocol, Enrolment
from hpcfl.algorithms.aggregation.enrolment import PHASE, Directory, Enrolled
from hpcfl.algorithms.aggregation.messages import (
    bits,
    check_public_keys,
    from_server,
    parse_vector,
    read_bits,
)
from hpcfl.algorithms.aggregation.promises import Certain, Outcome, Promise, objection
from hpcfl.algorithms.aggregation.quantised import QuantisedDevice, QuantisedProtocol, SumServer
from hpcfl.comm.phases import BROADCAST, GATHER, LOCAL, Method, Payload, Role, Step
from hpcfl.crypto import keys
from hpcfl.errors import BelowThresholdError, MessageError, RefusedError
from hpcfl.options.protocols import HelperOptions, MaskingOptions, ThreadOptions
from hpcfl.privacy.masking import OnlySummed

SECRET_BYTES = 32


class Assisting(Enrolled):
    """A device or helper that agrees on a secret with every party of the other kind."""

    scheme, use = "assisted", "additive mask"  # what its keys are for

    def _pair_context(self, device: int, helper: int) -> bytes:
        """Return the context that derives the secret of a device and a helper."""
        return f"hpcfl/1 {self.scheme} device {device} helper {helper} secret".encode()

    def _round_keys(
        self, protocol: AggregationProtocol, round_index: int, others: Iterable[int]
    ) -> list[bytes]:
        """Return the keys of a round with some of the others; refuse an earlier round."""
        self.enter(round_index)
        context = f"{protocol.context(round_index)} {self.use}".encode()
        return [keys.derive(self._secret(number), context) for number in others]


class AssistedMember(Assisting):
    """An enrolled device: its secrets with the helpers, and the last round that it masked in."""

    entered = "masked a vector for"

    def __init__(self, id: int, devices: int, helpers: int, secrets: keys.SecretSource) -> None:
        super().__init__(id, devices, secrets)
        self._helpers = helpers

    def receive_offer(self, payload: Payload) -> None:
        """Agree on a secret with every helper; refuse if this device's key was not received."""
        cut = keys.KEY_BYTES * self._helpers
        public = self._listed(payload[:cut], keys.KEY_BYTES, self._helpers)
        if self.id not in read_bits(payload[cut:], self.devices, PHASE):
            raise RefusedError(f"device {self.id} is told that its public key was not received")
        # A helper behind two names would know both masks alone.
        if len({*public}) != self._helpers:
            raise from_server(PHASE, "two helpers have the same public key")
        check_public_keys(b"".join(public), "the server")
        context = partial(self._pair_context, self.id)
        offered = dict(enumerate(public))
        self._keep([*keys.agreed(self._pair.private, offered, context, SECRET_BYTES).values()])

    def mask_keys(self, protocol: AggregationProtocol, round_index: int) -> list[bytes]:
        """Return the keys of a round's masks with all helpers; refuse an earlier round."""
        # Two vectors under the same masks would reveal their difference.
        return self._round_keys(protocol, round_index, range(self._helpers))


class HelpingMember(Assisting):
    """An enrolled helper: its secrets with the devices, and the last round that it answered."""

    party = "helper"
    entered = "had a list of survivors for"
    kept = (*Enrolled.kept, "_there")

    def __init__(self, number: int, devices: int, secrets: keys.SecretSource) -> None:
        super().__init__(number, devices, secrets)
        self._there: set[int] = set()  # the devices that have enrolled

    def send_offer(self) -> Payload:
        """Return the public key."""
        return self.send_advertise_keys()

    def receive_advertise_keys(self, payload: Payload) -> None:
        """Agree on a secret with every device that sent a key."""
        sent = enumerate(self._listed(payload, keys.KEY_BYTES, self.devices))
        listed = {id: key for id, key in sent if any(key)}
        check_public_keys(b"".join(listed.values()), [*listed])
        context = partial(self._pair_context, helper=self.id)
        agreed = keys.agreed(self._pair.private, listed, context, SECRET_BYTES)
        self._there = {*listed}
        self._keep([agreed.get(id, bytes(SECRET_BYTES)) for id in range(self.devices)])

    def mask_keys(
        self, protocol: AggregationProtocol, round_index: int, ids: Sequence[int]
    ) -> list[bytes]:
        """Return the keys of a round's masks of some devices; refuse an earlier round.

        A device that has not enrolled has no mask; its upload, if any, is its own choice.
        """
        # The difference of two sums would be a sum over fewer devices.
        return self._round_keys(protocol, round_index, self.known(ids))

    def known(self, ids: Sequence[int]) -> list[int]:
        """Return the enrolled ones among some devices."""
        return [id for id in ids if id in self._there]


class Offers(Directory):
    """The server's side of the enrolment, which relays keys."""

    def __init__(self, devices: int, helpers: int) -> None:
        super().__init__(devices)
        self._helpers = helpers
        self._offers: dict[int, bytes] = {}

    def receive_offer(self, number: int, payload: Payload) -> None:
        """Check and keep a helper's public key: with a bad one, no device would enrol."""
        name = f"helper {number}"
        offer = parse_vector(payload, "u1", keys.KEY_BYTES, PHASE, name).tobytes()
        if number in self._offers:
            raise MessageError(PHASE, name, "it was received twice")
        if offer in self._offers.values():
            raise MessageError(PHASE, name, "it is another helper's public key")
        check_public_keys(offer, name)
        self._offers[number] = offer

    def send_offer(self) -> Payload:
        """Return the helpers' public keys, and the devices whose keys were received."""
        missing = [number for number in range(self._helpers) if number not in self._offers]
        if missing:
            raise BelowThresholdError(
                f"the enrolment cannot end: helper {missing[0]} sent no public key"
            )
        offered = b"".join(self._offers[number] for number in range(self._helpers))
        received = bits(self._sent, self._devices)
        return np.concatenate([np.frombuffer(offered, np.uint8), received])


ENROLMENT = (
    Step(PHASE, GATHER, HelpingMember.send_offer, Offers.receive_offer, role=Role.HELPER),
    Step(PHASE, GATHER, AssistedMember.send_advertise_keys, Offers.receive_advertise_keys),
    Step(PHASE, BROADCAST, Offers.send_offer, AssistedMember.receive_offer),
    Step(
        PHASE,
        BROADCAST,
        Offers.send_advertise_keys,
        HelpingMember.receive_advertise_keys,
        role=Role.HELPER,
    ),
)


def enrolment(
    devices: int,
    helpers: int,
    of_device: type[AssistedMember] = AssistedMember,
    of_helper: type[HelpingMember] = HelpingMember,
) -> Enrolment:
    """Return the enrolment, in which every device agrees on a secret with every helper."""
    return Enrolment(
        ENROLMENT,
        keys.KEY_BYTES,
        server=lambda: Offers(devices, helpers),
        device=lambda id, secrets: of_device(id, devices, helpers, secrets),
        helper=lambda number, secrets: of_helper(number, devices, secrets),
    )


class AssistedDevice(QuantisedDevice):
    """A device's side of one round; `_member` is its state for all rounds."""

    _member: AssistedMember

    def send_masked_input(self, vector: NDArray[np.floating]) -> Payload:
        """Return the quantised vector plus its masks with all helpers."""
        mask_keys = self._member.mask_keys(self._protocol, self._round)
        return self._masked(vector, mask_keys, [1] * len(mask_keys))


class Helper:
    """A helper's side of one round; `member` is its state for all rounds."""

    def __init__(self, protocol: Assisted, round_index: int, member: HelpingMember) -> None:
        self._protocol = protocol
        self._round = round_index
        self._member = member
        self._keys: list[bytes] | None = None

    def receive_unmask(self, payload: Payload) -> None:
        """Take the survivors' mask keys; refuse fewer survivors than the threshold."""
        member, devices = self._member, self._protocol.parameters.devices
        survivors = read_bits(payload, member.devices, "unmask")
        outcome = Outcome(devices, len(member.known(survivors)))
        broken = objection(self._protocol.promises(), outcome)
        if broken is not None:
            raise RefusedError(f"{member.name} refuses to unmask: {broken}")
        self._keys = member.mask_keys(self._protocol, self._round, survivors)

    def send_unmask(self) -> Payload:
        """Return minus the sum of the survivors' masks."""
        if self._keys is None:
            raise RefusedError(f"{self._member.name} was not asked to unmask")
        group, threads = self._protocol.summed_in, self._protocol.parameters.threads
        elements = np.zeros(self._protocol.upload_dim, group.dtype)
        group.mask(elements, self._keys, [-1] * len(self._keys), threads)
        return group.pack(elements)


class AssistedServer(SumServer):
    """The server's side of one round."""

    _protocol: Assisted
    state: set[int]  # helpers that have answered
    state_class = set

    def send_unmask(self) -> Payload:
        """Return the devices in the sum."""
        return bits([self._members[slot] for slot in self.survivors], self._population)

    def receive_unmask(self, number: int, payload: Payload) -> None:
        """Add a helper's vector, which removes its masks from the sum."""
        name = self._first("unmask", number, self.state, "helper")
        dim = self._protocol.upload_dim
        self._uploads.add(self._protocol.read_elements(payload, dim, "unmask", name))
        self.state.add(number)

    def finish_unmask(self) -> None:
        """End the round if a helper has not answered, as its masks are still in the sum."""
        missing = [k for k in range(self._protocol.helpers) if k not in self.state]
        if missing:
            raise BelowThresholdError(
                f"round {self.round_index} cannot end: helper {missing[0]} did not send the sum of "
                "its masks"
            )


Device, Server = AssistedDevice, AssistedServer


class Assisted(QuantisedProtocol):
    """Secure aggregation of whole vectors with masks shared with helpers."""

    name = "assisted"
    options = (*QuantisedProtocol.options, HelperOptions, ThreadOptions)
    min_devices = 2
    device_class = AssistedDevice
    server_class = AssistedServer
    most_helpers = 64
    default_helpers = 2
    steps: tuple[Step, ...] = (
        MODEL,
        Step(
            "masked_input",
            GATHER,
            Device.send_masked_input,
            Server.receive_masked_input,
            upload=True,
            receive_part=Server.receive_part_masked_input,
            receive_sum=Server.receive_sum_masked_input,
            finish=Server.finish_masked_input,
        ),
        Step("unmask", BROADCAST, Server.send_unmask, Helper.receive_unmask, role=Role.HELPER),
        Step(
            "unmask",
            GATHER,
            Helper.send_unmask,
            Server.receive_unmask,
            role=Role.HELPER,
            finish=Server.finish_unmask,
        ),
        Step("result", LOCAL, finish=Server.finish_result),
    )

    @classmethod
    def enrolment(cls, devices: int, helpers: int = 0) -> Enrolment:
        return enrolment(devices, helpers)

    @classmethod
    def masking(cls, devices: int, options: MaskingOptions) -> OnlySummed:
        return OnlySummed(devices)

    def settings(self) -> dict[str, Any]:
        return {"helpers": self.helpers}

    @property
    def needed_in_sum(self) -> int:
        return self.parameters.threshold

    def promises(self) -> list[Promise]:
        threshold = self.parameters.threshold
        who = f"at least one of {self.helpers} helpers" if self.helpers > 1 else "the helper"
        apart = (
            f"as long as {who} does not collude with the server, the server learns the sum of at "
            f"least {threshold} devices' vectors, or, with colluding devices, the sum of the "
            "others. A helper answers once a round, and for no fewer devices"
        )
        return [Certain(apart, threshold), *super().promises()]

    def sizes(self) -> dict[Method, float]:
        vector = self.summed_in.wire_bytes(self.upload_dim)
        return {
            Device.send_masked_input: vector,
            Server.send_unmask: -(-(self.population or self.parameters.devices) // 8),
            Helper.send_unmask: vector,
        }

    def helper(self, number: int, round_index: int, secrets: keys.SecretSource) -> Helper:
        return Helper(self, round_index, self.enrolled[self.population + number])
