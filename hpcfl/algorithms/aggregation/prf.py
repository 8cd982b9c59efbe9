"""Masks from one enrolment for all rounds (Hu, Guo and Gong, OJCS 2021, Fig. 2 and eq. 7-9).

Every pair of the n enrolled devices agrees once on a seed. In round t a pair masks with
``PRF(seed, t)``, so a round is only the model down and a masked vector up. In equation 7 a pair has
two masks, and each device adds one and subtracts the other. A single mask, added by one device and
subtracted by the other, hides as much for half the work. Without private masks and shares, the
server cannot remove the masks of a missing device, and refuses the round.

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

The enrolment identifies devices by their ids. A round numbers its r selected devices from 0, and
only keys and bits use the ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import (
    MODEL,
    AggregationProtocol,
    Enrolment,
    ModelSender,
)
from hpcfl.algorithms.aggregation.enrolment import PHASE, STEPS, Directory, Enrolled
from hpcfl.algorithms.aggregation.messages import bits, check_public_keys, from_server, read_bits
from hpcfl.algorithms.aggregation.promises import Certain, Promise
from hpcfl.algorithms.aggregation.quantised import QuantisedDevice, QuantisedProtocol, SumServer
from hpcfl.algorithms.aggregation.secagg import pair_sign
from hpcfl.comm.phases import GATHER, LOCAL, Method, Payload, Step
from hpcfl.crypto import keys
from hpcfl.errors import BelowThresholdError, MessageError, RefusedError
from hpcfl.options.protocols import MaskingOptions, ThreadOptions, ThreatOptions
from hpcfl.privacy.masking import InCohorts
from hpcfl.report.formats import named

SEED_BYTES = 32
MIN_SELECTED = 2


class Member(Enrolled):
    """An enrolled device: its seeds, and the last round that it masked a vector for."""

    entered = "masked a vector for"

    def receive_advertise_keys(self, payload: Payload) -> None:
        """Agree on a seed with every other device; refuse repeated keys or a changed own key."""
        listed = self._listed(payload, keys.KEY_BYTES, self.devices)
        if listed[self.id] != self._pair.public:
            raise from_server(PHASE, "this device's own key is not as it sent it")
        if len({*listed}) != self.devices:
            raise from_server(PHASE, "a public key is listed twice")
        check_public_keys(b"".join(listed), range(self.devices))
        peers = {id: public for id, public in enumerate(listed) if id != self.id}
        seeds = keys.agreed(self._pair.private, peers, partial(pair_context, self.id), SEED_BYTES)
        self._keep([seeds.get(id, bytes(SEED_BYTES)) for id in range(self.devices)])

    def mask_keys(
        self, protocol: AggregationProtocol, round_index: int, selected: Sequence[int]
    ) -> dict[int, bytes]:
        """Return the keys of one round's masks with every other selected device, by id.

        The round must be later than all before; `selected` is in increasing order. RefusedError if
        the masks would not hide this device's vector.
        """
        refuses = f"{self.name} refuses round {round_index}: it"
        if self._secrets and self.id not in selected:
            raise RefusedError(f"{refuses} is not among the selected")
        if self._secrets and len(selected) < MIN_SELECTED:
            raise RefusedError(f"{refuses} is selected alone, so the sum would be its vector")
        # Two vectors under the same masks would reveal their difference.
        self.enter(round_index)
        context = round_context(protocol.context(round_index), selected, self.devices)
        return {
            peer: keys.derive(self._secret(peer), context) for peer in selected if peer != self.id
        }


def pair_context(i: int, j: int) -> bytes:
    """Return the context that derives the seed of two devices from their secret."""
    return f"hpcfl/1 prf pair {min(i, j)} {max(i, j)} seed".encode()


def round_context(head: str, selected: Sequence[int], devices: int) -> bytes:
    """Return the context that derives a round's mask key from a seed; it begins with `head`.

    It includes the selection, so masks do not cancel if the server tells devices different ones.
    """
    digest = hashlib.sha256(bits(selected, devices).tobytes()).hexdigest()
    return f"{head} selected {digest} of {devices} additive mask".encode()


class KeyDirectory(Directory):
    """The server's side of the enrolment, which refuses repeated keys."""

    def _check(self, sent: bytes, name: str) -> None:
        super()._check(sent, name)
        # All devices would refuse a list that has a key twice.
        if sent in self._sent.values():
            raise MessageError(PHASE, name, "its public key is taken already")

    def finish_advertise_keys(self) -> None:
        missing = [id for id in range(self._devices) if id not in self._sent]
        if missing:
            raise BelowThresholdError(
                f"the enrolment cannot end: {named('device', missing, most=5)} advertised no key, "
                "and prf needs a seed for every pair; use secagg, which enrols anew in every round"
            )


class PrfDevice(QuantisedDevice):
    """A device's side of one round; `_member` is its state for all rounds."""

    _member: Member
    state: list[int]  # ids of the selected devices
    state_class = list

    def receive_model(self, payload: Payload) -> None:
        """Keep the model and the selection."""
        cut = 4 * self._protocol.model_dim
        self.state = read_bits(payload[cut:], self._member.devices, "model")
        super().receive_model(payload[:cut])
        # In exchanges, the policy of a device was asked about the members of the offer.
        if self._protocol.run and self.state != [*self._protocol.members]:
            raise self.refusal("a round of others than it was offered")

    def send_masked_input(self, vector: NDArray[np.floating]) -> Payload:
        """Return the quantised vector plus the masks of all pairs (eq. 7 and 8)."""
        mask_keys = self._member.mask_keys(self._protocol, self._round, self.state)
        signs = [pair_sign(self._member.id, peer) for peer in mask_keys]
        return self._masked(vector, [*mask_keys.values()], signs)


class PrfServer(SumServer):
    """The server's side of one round."""

    def send_model(self) -> Payload:
        """Return the model and the selection."""
        return np.concatenate([super().send_model(), bits(self._members, self._population)])

    def finish_masked_input(self) -> None:
        """Refuse the round if a selected device sent nothing: its masks are still in the sum."""
        self.survivors.sort()
        received = {*self.survivors}
        missing = [id for slot, id in enumerate(self._members) if slot not in received]
        if missing:
            raise BelowThresholdError(
                f"round {self.round_index} cannot end: prf has no way to remove the masks of "
                f"{named('device', missing, most=5)}, which sent no vector; use secagg"
            )


class Prf(QuantisedProtocol):
    """Secure aggregation of whole vectors, without dropouts."""

    name = "prf"
    options = (*QuantisedProtocol.options, ThreatOptions, ThreadOptions)
    min_devices = MIN_SELECTED
    tolerates_dropouts = False
    device_class = PrfDevice
    server_class = PrfServer
    steps = (
        MODEL,
        Step(
            "masked_input",
            GATHER,
            PrfDevice.send_masked_input,
            PrfServer.receive_masked_input,
            upload=True,
            receive_part=PrfServer.receive_part_masked_input,
            receive_sum=PrfServer.receive_sum_masked_input,
            finish=PrfServer.finish_masked_input,
        ),
        Step("result", LOCAL, finish=PrfServer.finish_result),
    )

    @classmethod
    def enrolment(cls, devices: int, helpers: int = 0) -> Enrolment:
        return Enrolment(
            STEPS,
            keys.KEY_BYTES,
            server=lambda: KeyDirectory(devices),
            device=lambda id, secrets: Member(id, devices, secrets),
        )

    @property
    def survivors_in_sum(self) -> int:
        # A round with a missing device is refused.
        return self.parameters.devices

    def settings(self) -> dict[str, Any]:
        devices = self.parameters.devices
        return {"degree": devices - 1, "threshold": devices}

    def promises(self) -> list[Promise]:
        devices, colluding = self.parameters.devices, self.colluding_in_sum
        learned = f"the server learns the sum of all {devices}"
        if colluding:
            learned += (
                f", or, with {colluding} colluding devices, that of the other {devices - colluding}"
            )
        return [
            Certain(
                f"every device masks its vector with the {devices - 1} others; {learned}. "
                "A round in which a device is missing fails"
            ),
            Certain(
                "seeds are agreed on once, and their cost counts in the first round. Whoever "
                "learns a device's seeds, even later, learns its masks in all rounds"
            ),
            *super().promises(),
        ]

    @classmethod
    def masking(cls, devices: int, options: MaskingOptions) -> InCohorts:
        return InCohorts(devices)

    def sizes(self) -> dict[Method, float]:
        plan = self.parameters
        selected = -(-(self.population or plan.devices) // 8)
        return {
            ModelSender.send_model: 4 * plan.dim + selected,
            PrfDevice.send_masked_input: self.summed_in.wire_bytes(plan.dim),
        }
