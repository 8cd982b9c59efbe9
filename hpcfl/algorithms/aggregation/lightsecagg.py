"""LightSecAgg (So et al., MLSys 2022, arXiv:2109.14236) recovers the sum of the masks in one go.

Every device draws one mask for its vector, cuts it into U - T pieces, adds T random ones, and
encodes the U pieces into N, one for each device: the values of a polynomial of degree U - 1 at N
points (Lagrange coding). Any T pieces reveal nothing about the mask. The devices that remain at the
end add up the pieces that they hold of the survivors' masks; any U of these sums give the sum of
the masks, which the server subtracts from the sum of the uploads. The server's work therefore
does not grow with the number of dropouts, and no secret of a single device is ever reconstructed.
The price is paid beforehand: encoding, and N / (U - T) vectors sent by each device.

U and T follow from the plan of the round: T devices may collude, and U answer correctly at the end,
even if one more device than planned vanishes and another answers falsely. U is at least
the threshold t, a majority.

Messages, after the envelope (all numbers little-endian; "bits" are a bitmap of the N devices, the
first bit of a byte being its most significant):

==============  ===============  =================================================================
phase           direction        payload
==============  ===============  =================================================================
model           to devices       d float32
advertise_keys  to the server    public key (32 bytes)
advertise_keys  to devices       bits of U1, which advertised keys, then their keys
share_masks     device to peer   AES-GCM ciphertext of a coded piece: ceil(d / (U - T)) elements
share_masks     to the server    bits of the devices whose pieces it holds, itself included
share_masks     to devices       bits of U2, whose masks can be removed; other devices leave
masked_input    to the server    d group elements
unmask          to devices       bits of U3, whose vectors are in the sum
unmask          to the server    the sum of their pieces: ceil(d / (U - T)) elements
==============  ===============  =================================================================

The phases before ``masked_input`` need no vector: devices may play them during training. As in the
paper, the server is honest but curious, and devices follow the protocol. In addition, a malformed
message excludes only its sender. A device is left out, and is told so, if too many others hold no
piece of its mask. Up to (n - U) / 2 wrong sums among n sums of pieces are found; more of them end
the round, or change the sum, as wrong vectors also could.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import MODEL
from hpcfl.algorithms.aggregation.coded import CodedDevice, CodedProtocol, CodedServer, CodedState
from hpcfl.algorithms.aggregation.messages import parse_vector, read_bits, split_bits
from hpcfl.algorithms.aggregation.promises import Certain, Promise, unless_more_collude
from hpcfl.algorithms.aggregation.quantised import SumServer, until
from hpcfl.comm.phases import BROADCAST, GATHER, LOCAL, ROUTE, Ids, Method, Payload, Rows, Step
from hpcfl.crypto import keys
from hpcfl.crypto.coding import Code
from hpcfl.crypto.keystream import KEY_BYTES as SEED_BYTES
from hpcfl.errors import MessageError, RefusedError, UsageError
from hpcfl.options.protocols import ThreadOptions
from hpcfl.privacy.threat import LIARS
from hpcfl.values import dataclass


@dataclass
class DeviceState(CodedState):
    """What a device keeps between the steps of a round."""

    mask_key: bytes = until("masked_input", bytes)


class LightSecAggDevice(CodedDevice):
    """A device's side of one round; keys and masks come from `secrets`."""

    state: DeviceState
    state_class = DeviceState

    def receive_advertise_keys(self, payload: Payload) -> None:
        """Agree on a key with every other device in U1."""
        phase = "advertise_keys"
        members, rest = split_bits(payload, self._parameters.devices, phase)
        listed = parse_vector(rest, "u1", keys.KEY_BYTES * len(members), phase).tobytes()
        self._agree(members, listed)
        self._require(len(members), "deal pieces of its mask to")

    def send_share_masks(self) -> tuple[Ids, Rows]:
        """Return a sealed coded piece of the mask for every peer."""
        self._once("deal pieces")
        state, code = self.state, self._protocol.code
        state.mask_key = self._secrets(SEED_BYTES)
        counts = [code.dim, code.private * code.width]
        drawn = code.field.elements([state.mask_key, self._secrets(SEED_BYTES)], counts)
        peers = [*state.transport_keys]
        coded = code.encode(drawn[: code.dim], drawn[code.dim :], [self.id, *peers])
        # A copy, because a view would keep all pieces in memory.
        state.pieces[self.id] = coded[0].copy()
        return self._sealed(peers, coded[1:])

    def receive_share_masks(self, senders: Ids, rows: Rows) -> None:
        """Keep the pieces of the others' masks."""
        self._keep("share_masks", senders, rows)
        self._require(len(self.state.pieces), "go on with")

    def receive_dealers(self, payload: Payload) -> None:
        """Go on if the server can remove this device's mask."""
        dealers = read_bits(payload, self._parameters.devices, "share_masks")
        if self.id not in dealers:
            raise RefusedError(
                f"device {self.id} is told that too many others hold no piece of its mask"
            )
        self._require(len(dealers), "upload among")

    def send_masked_input(self, vector: NDArray[np.floating]) -> Payload:
        """Return the quantised vector plus the mask."""
        # Two vectors under the same mask would reveal their difference.
        self._once("upload")
        return self._masked(vector, [self.state.mask_key], [1])

    def receive_unmask(self, payload: Payload) -> None:
        """Check the list of masks to add up: too few could reveal a vector."""
        survivors = self._asked(payload, "unmask", "unmask the sum")
        if self.id not in survivors:
            raise self.refusal("to unmask: it is named as dropped")
        self.state.survivors = survivors

    def send_unmask(self) -> Payload:
        """Return the sum of the pieces of the survivors' masks."""
        return self._sum_of_pieces()


class LightSecAggServer(CodedServer, SumServer):
    """The server's side of one round."""

    _protocol: LightSecAgg

    def send_advertise_keys(self) -> Payload:
        """Return the devices that advertised keys, and the keys."""
        listed = np.frombuffer(self._keys_of(sorted(self.state.public)), np.uint8)
        return np.concatenate([self._bits(self.state.public), listed])

    def receive_share_masks(self, ids: Ids) -> None:
        """Record the devices that dealt pieces."""
        self._take_dealers("share_masks", ids)

    def receive_held(self, sender: int, payload: Payload) -> None:
        """Record whose pieces a device holds."""
        if sender not in self.state.dealers:
            raise MessageError("share_masks", f"device {sender}", "it dealt no pieces")
        self._take_held("share_masks", sender, payload)

    def finish_held(self) -> None:
        self._enough(len(self.state.held), "told whose pieces they hold")
        self._leave_out_unheld("share_masks")

    def send_dealers(self) -> Payload:
        """Return the devices whose masks can be removed from the sum."""
        return self._bits(self.state.dealers)

    def _check_sender(self, sender: int) -> None:
        if sender not in self.state.dealers:
            name = f"device {sender}"
            raise MessageError("masked_input", name, "it dealt no pieces of its mask")
        super()._check_sender(sender)

    def send_unmask(self) -> Payload:
        """Return the devices whose masks are to be added up."""
        return self._bits(self.survivors)

    def receive_unmask(self, sender: int, payload: Payload) -> None:
        """Keep a survivor's sum of pieces."""
        if sender not in self.survivors:
            raise MessageError("unmask", f"device {sender}", "it is not a survivor")
        self._take_answer("unmask", sender, payload)

    def finish_unmask(self) -> None:
        """Recover the sum of the masks, and subtract it from the sum of the uploads."""
        masks = self._decoded("unmask", {id: id for id in self.state.answers})
        unmasked, field = self._uploads.take(), self._protocol.field
        field.add_into(unmasked, field.dtype.type(field.modulus) - masks)
        self.unmasked = unmasked


Device, Server = LightSecAggDevice, LightSecAggServer


class LightSecAgg(CodedProtocol):
    """Secure aggregation with coded masks."""

    name = "lightsecagg"
    options = (*CodedProtocol.options, ThreadOptions)
    device_class = LightSecAggDevice
    server_class = LightSecAggServer
    steps = (
        MODEL,
        Step(
            "advertise_keys",
            GATHER,
            Device.send_advertise_keys,
            Server.receive_advertise_keys,
            finish=Server.finish_advertise_keys,
        ),
        Step(
            "advertise_keys", BROADCAST, Server.send_advertise_keys, Device.receive_advertise_keys
        ),
        Step(
            "share_masks",
            ROUTE,
            Device.send_share_masks,
            Device.receive_share_masks,
            relay=Server.receive_share_masks,
        ),
        Step(
            "share_masks", GATHER, Device.send_held, Server.receive_held, finish=Server.finish_held
        ),
        Step("share_masks", BROADCAST, Server.send_dealers, Device.receive_dealers),
        Step(
            "masked_input",
            GATHER,
            Device.send_masked_input,
            Server.receive_masked_input,
            upload=True,
            receive_sum=Server.receive_sum_masked_input,
            finish=Server.finish_masked_input,
        ),
        Step("unmask", BROADCAST, Server.send_unmask, Device.receive_unmask),
        Step(
            "unmask", GATHER, Device.send_unmask, Server.receive_unmask, finish=Server.finish_unmask
        ),
        Step("result", LOCAL, finish=Server.finish_result),
    )

    def choose_code(self) -> Code:
        parameters = self.parameters
        answering = parameters.devices - self.threat.dropped - LIARS
        needed = max(parameters.threshold, answering)
        private = max(1, self.colluding_in_sum)
        if private >= needed:
            raise UsageError(
                f"with --gamma {parameters.gamma} {private} of {parameters.devices} devices may "
                f"collude, and {needed} stay to the end: lightsecagg needs more of these than of "
                "those; lower --gamma or --dropout"
            )
        return Code(parameters.devices, needed, private, parameters.dim, self.field)

    @property
    def needed_in_sum(self) -> int:
        # The devices in the sum are also the ones that hold its pieces.
        return self.code.needed

    def settings(self) -> dict[str, Any]:
        return {"degree": self.parameters.devices - 1, "threshold": self.code.needed}

    def promises(self) -> list[Promise]:
        needed, private, exceeded = self.code.needed, self.code.private, self.more_colluding
        others = f"{private} devices" if private > 1 else "one device"
        pieces = f"{private} pieces say" if private > 1 else "One piece says"
        hidden = (
            f"the server learns the sum of at least {needed} devices' vectors, or, with {others} "
            f"colluding, the sum of the others. {pieces} nothing about a mask"
        )
        hidden += unless_more_collude(exceeded)
        return [Certain(hidden, needed, exceeded), *super().promises()]

    def sizes(self) -> dict[Method, float]:
        devices, key = self.parameters.devices, keys.KEY_BYTES
        named = -(-devices // 8)
        return {
            Device.send_advertise_keys: key,
            Server.send_advertise_keys: named + key * devices,
            Device.send_share_masks: self.row_bytes,
            Device.send_held: named,
            Server.send_dealers: named,
            Device.send_masked_input: self.field.wire_bytes(self.parameters.dim),
            Server.send_unmask: named,
            Device.send_unmask: self.piece_bytes,
        }
