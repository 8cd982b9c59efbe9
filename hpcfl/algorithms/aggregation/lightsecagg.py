"""LightSecAgg (So et al., MLSys 2022, arXiv:2109.14236): the sum of the masks, recovered in one go.

Every device draws one mask for its vector, cuts it into U - T pieces, adds T random ones, and
encodes the U pieces into N, as the values of a polynomial of degree U - 1 at N points: one for each
device (Lagrange coding). Any T of them say nothing about the mask. Devices that are still there at
the end add up the pieces that they hold of the survivors' masks; any U of these sums give the sum
of the masks, which the server takes off that of the uploads. So what the server does does not grow
with the number of devices that dropped out, and no secret of a single device is ever
reconstructed. The price is paid beforehand: encoding, and N / (U - T) vectors sent by each device.

U and T follow from the plan of the round: T devices may collude, and U are sure to answer in the
end, where besides the planned dropouts one device vanishes and another one answers falsely. Fewer
than the threshold t, a majority, are never enough.

Messages, after the envelope (all numbers little-endian; "bits" are a bitmap of the N devices, the
first bit of a byte being its most significant):

==============  ===============  =================================================================
phase           direction        payload
==============  ===============  =================================================================
model           to devices       d float32
advertise_keys  to the server    public key (32 bytes)
advertise_keys  to devices       bits of U1, who advertised keys, then their keys
share_masks     device to peer   AES-GCM ciphertext of a coded piece: ceil(d / (U - T)) elements
share_masks     to the server    bits of those whose pieces the device holds, itself among them
share_masks     to devices       bits of U2, whose masks can be taken off: the others leave
masked_input    to the server    d group elements
unmask          to devices       bits of U3, whose vectors are in the sum
unmask          to the server    the sum of their pieces: ceil(d / (U - T)) elements
==============  ===============  =================================================================

The phases before ``masked_input`` need no vector: the paper lets devices play them while they
train. Keys are made anew for each round.

The server is curious, and devices do what they are to do, as in the paper. What holds beyond it: a
malformed message costs its sender alone; a device of whose pieces more than one other holds none is
left out, and told so, unless those are the ones that contradict most; of n sums, up to (n - U) / 2
wrong ones are found and left out, and more end the round. A device that deals pieces which do not
belong together makes the sums of its peers wrong, with the same effect. More than (n - U) / 2 sums
that are wrong together may look right, as with exactly U sums any do: the devices that sent them
change the sum as they could have by sending other vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation import terms as of
from hpcfl.algorithms.aggregation.base import MODEL, check_finite
from hpcfl.algorithms.aggregation.coded import CodedDevice, CodedProtocol, CodedServer
from hpcfl.algorithms.aggregation.costs import (
    Crowd,
    Phases,
    add,
    coded,
    converted,
    masked_upload,
    packed,
    sealed_rows,
    summed,
    unpacked,
)
from hpcfl.algorithms.aggregation.messages import parse_vector
from hpcfl.algorithms.aggregation.promises import FewCollude, Promise
from hpcfl.algorithms.aggregation.terms import Terms
from hpcfl.comm.phases import Ids, Pattern, Payload, Rows, Step
from hpcfl.crypto import keys
from hpcfl.crypto.coding import Code
from hpcfl.crypto.groups import Elements
from hpcfl.crypto.keystream import KEY_BYTES as SEED_BYTES
from hpcfl.errors import MessageError, RefusedError, UsageError
from hpcfl.options.shared import RoundOptions
from hpcfl.privacy.threat import LIARS


@dataclass(frozen=True)
class Coded(FewCollude):
    """A mask is hidden from those who hold few of its pieces."""

    code: Code

    @property
    def claim(self) -> str:
        private = self.code.private
        several = private > 1
        others = f"{private} devices" if several else "one device"
        pieces = f"{private} pieces say" if several else "one piece says"
        return (
            f"the server learns the sum of at least {self.threshold} devices' vectors, and with "
            f"{others} in collusion the sum of the others: {pieces} nothing about a mask{self.but}"
        )


class LightSecAggDevice(CodedDevice):
    """A device's side of one round; keys and masks come from `secrets`."""

    def __init__(
        self, protocol: LightSecAgg, id: int, round_index: int, secrets: keys.SecretSource
    ) -> None:
        super().__init__(protocol, id, round_index, secrets)
        # From which the mask follows, and the random pieces that hide it.
        self._mask_key = b""
        self._uploaded = False

    def receive_advertise_keys(self, payload: Payload) -> None:
        """Agree on a key with everybody else in U1."""
        phase, cut = "advertise_keys", -(-self._parameters.devices // 8)
        members = self._protocol.read_listed(payload[:cut], phase, "the server")
        size = keys.KEY_BYTES * len(members)
        listed = parse_vector(payload[cut:], "u1", size, phase, "the server").tobytes()
        self._agree(members, listed)
        self._require(len(members), "deal pieces of its mask to")

    # share_masks

    def send_share_masks(self) -> tuple[Ids, Rows]:
        """Return a sealed coded piece of the mask for every peer."""
        if self._mask_key:
            raise RefusedError(f"device {self.id} refuses to deal pieces twice in a round")
        code = self._protocol.code
        self._mask_key = self._secrets(SEED_BYTES)
        counts = [code.dim, code.private * code.width]
        drawn = code.field.elements([self._mask_key, self._secrets(SEED_BYTES)], counts)
        peers = [*self._transport_keys]
        coded = code.encode(drawn[: code.dim], drawn[code.dim :], [self.id, *peers])
        # A copy: a view would keep the pieces of all.
        self._pieces[self.id] = coded[0].copy()
        return self._sealed(peers, coded[1:])

    def receive_share_masks(self, senders: Ids, rows: Rows) -> None:
        """Keep the pieces of the others' masks."""
        self._keep("share_masks", senders, rows)
        self._require(len(self._pieces), "go on with")

    def receive_dealers(self, payload: Payload) -> None:
        """Go on if this device's mask can be taken off."""
        dealers = self._protocol.read_listed(payload, "share_masks", "the server")
        if self.id not in dealers:
            raise RefusedError(
                f"device {self.id} is told that too many others hold no piece of its mask"
            )
        self._require(len(dealers), "upload among")

    # masked_input

    def send_masked_input(self, vector: NDArray[np.floating]) -> Payload:
        """Return the quantised vector plus the mask."""
        check_finite(self.id, vector)
        # The difference of two vectors under the same mask would be in the clear.
        if self._uploaded:
            raise RefusedError(f"device {self.id} refuses to upload twice in a round")
        self._uploaded = True
        group = self._parameters.arithmetic
        elements = self._elements(vector, self.sent())
        group.mask(elements, [self._mask_key], [1], self._parameters.threads)
        return group.pack(elements)

    # unmask

    def receive_unmask(self, payload: Payload) -> None:
        """Check whose masks are to be added up: too few could reveal a vector."""
        survivors = self._asked(payload, "unmask", "unmask the sum")
        if self.id not in survivors:
            raise RefusedError(f"device {self.id} refuses to unmask: it is named as dropped")
        self._survivors = survivors

    def send_unmask(self) -> Payload:
        """Return the sum of the pieces of the survivors' masks."""
        return self._sum_of_pieces()


class LightSecAggServer(CodedServer):
    """The server's side of one round."""

    def __init__(
        self,
        protocol: LightSecAgg,
        round_index: int,
        model: NDArray[np.float32],
        secrets: keys.SecretSource,
    ) -> None:
        super().__init__(protocol, round_index, model, secrets)
        self._uploads = protocol.field.adder(protocol.parameters.dim)
        self._unmasked: Elements = np.empty(0, protocol.field.dtype)

    def send_advertise_keys(self) -> Payload:
        """Return who advertised keys, and the keys."""
        listed = b"".join(self._public[id] for id in sorted(self._public))
        return np.concatenate([self._bits(self._public), np.frombuffer(listed, np.uint8)])

    def receive_share_masks(self, ids: Ids) -> None:
        """Take note of who dealt pieces."""
        self._take_dealers("share_masks", ids)

    def receive_held(self, sender: int, payload: Payload) -> None:
        """Take note of whose pieces a device holds."""
        if sender not in self._dealers:
            raise MessageError("share_masks", f"device {sender}", "it dealt no pieces")
        self._take_held("share_masks", sender, payload)

    def finish_held(self) -> None:
        self._require(len(self._held), "told whose pieces they hold")
        self._leave_out_unheld("share_masks")

    def send_dealers(self) -> Payload:
        """Return whose masks can be taken off the sum."""
        return self._bits(self._dealers)

    def receive_masked_input(self, sender: int, payload: Payload) -> None:
        """Add a device's masked vector to the sum."""
        self._check_senders([sender])
        dim = self._protocol.parameters.dim
        self._uploads.add(self._protocol.read_values(payload, dim, sender))
        self.survivors.append(sender)

    def receive_sum_masked_input(self, senders: list[int], total: Elements) -> None:
        """Take the sum of the masked vectors, formed on the way."""
        self._protocol.check_sum(total, self._protocol.parameters.dim)
        self._check_senders(senders)
        self._uploads.add(total)
        self.survivors += senders

    def _check_senders(self, senders: list[int]) -> None:
        for sender in senders:
            name = f"device {sender}"
            if sender not in self._dealers:
                raise MessageError("masked_input", name, "it dealt no pieces of its mask")
            if sender in self.survivors:
                raise MessageError("masked_input", name, "it was received twice")

    def finish_masked_input(self) -> None:
        """Settle whose sum it is, and check what it is promised to hide."""
        self.survivors.sort()
        self._require(len(self.survivors), "sent their masked vectors")
        self._check_promises()

    def send_unmask(self) -> Payload:
        """Return whose masks are to be added up."""
        return self._bits(self.survivors)

    def receive_unmask(self, sender: int, payload: Payload) -> None:
        """Keep the sum of the pieces that a survivor holds."""
        if sender not in self.survivors:
            raise MessageError("unmask", f"device {sender}", "it is not a survivor")
        self._take_answer("unmask", sender, payload)

    def finish_unmask(self) -> None:
        """Recover the sum of the masks, and take it off that of the uploads."""
        masks = self._decoded("unmask", {id: id for id in self._answers})
        self._unmasked, field = self._uploads.take(), self._protocol.field
        field.add_into(self._unmasked, field.dtype.type(field.modulus) - masks)

    def finish_result(self) -> None:
        """Return to signed integers, and to the original coordinates."""
        self.total = self._protocol.field.signed(self._unmasked)
        self._unmasked = self._unmasked[:0].copy()
        self.turned_back = self._protocol.turned_back(self)


class LightSecAgg(CodedProtocol):
    """Secure aggregation with coded masks."""

    name = "lightsecagg"
    deals_to = "all devices"
    not_attacked = "no mask of a single device is ever reconstructed"
    not_active = "devices do not check what others deal, nor that all were asked for the same sum"
    steps: tuple[Step, ...] = (
        MODEL,
        Step(
            "advertise_keys",
            Pattern.GATHER,
            LightSecAggDevice.send_advertise_keys,
            LightSecAggServer.receive_advertise_keys,
            finish=LightSecAggServer.finish_advertise_keys,
        ),
        Step(
            "advertise_keys",
            Pattern.BROADCAST,
            LightSecAggServer.send_advertise_keys,
            LightSecAggDevice.receive_advertise_keys,
        ),
        Step(
            "share_masks",
            Pattern.ROUTE,
            LightSecAggDevice.send_share_masks,
            LightSecAggDevice.receive_share_masks,
            relay=LightSecAggServer.receive_share_masks,
        ),
        Step(
            "share_masks",
            Pattern.GATHER,
            LightSecAggDevice.send_held,
            LightSecAggServer.receive_held,
            finish=LightSecAggServer.finish_held,
        ),
        Step(
            "share_masks",
            Pattern.BROADCAST,
            LightSecAggServer.send_dealers,
            LightSecAggDevice.receive_dealers,
        ),
        Step(
            "masked_input",
            Pattern.GATHER,
            LightSecAggDevice.send_masked_input,
            LightSecAggServer.receive_masked_input,
            upload=True,
            receive_sum=LightSecAggServer.receive_sum_masked_input,
            finish=LightSecAggServer.finish_masked_input,
        ),
        Step(
            "unmask",
            Pattern.BROADCAST,
            LightSecAggServer.send_unmask,
            LightSecAggDevice.receive_unmask,
        ),
        Step(
            "unmask",
            Pattern.GATHER,
            LightSecAggDevice.send_unmask,
            LightSecAggServer.receive_unmask,
            finish=LightSecAggServer.finish_unmask,
        ),
        Step("result", Pattern.LOCAL, finish=LightSecAggServer.finish_result),
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

    @classmethod
    def uses(cls, options: RoundOptions) -> frozenset[str]:
        return super().uses(options) | {"threads"}

    @property
    def needed_in_sum(self) -> int:
        # Those in the sum are those who know the pieces of it.
        return self.code.needed

    def settings(self) -> dict[str, Any]:
        devices = self.parameters.devices
        return {"degree": devices - 1, "threshold": self.code.needed}

    def promises(self) -> list[Promise]:
        return [Coded(self.code.needed, self.more_colluding, self.code), *super().promises()]

    @property
    def sum_bytes(self) -> int:
        return self.summed_in.adder_bytes * self.parameters.dim

    @property
    def result_bytes(self) -> int:
        # The sums of pieces, those from which the masks are recovered, and what is recovered.
        pieces = self.code.devices + self.code.needed + self.code.pieces
        return self.sum_bytes + self.field.dtype.itemsize * self.code.width * pieces

    @property
    def rows_at_peak(self) -> float:
        # Devices keep the pieces that were in the rows until they know whose are to be added up,
        # and one of their own.
        return 2.5 + 1 / self.rows_of_device

    @property
    def largest_reply(self) -> int:
        return max(self.piece_bytes, keys.KEY_BYTES, -(-self.code.devices // 8))

    def terms(self) -> dict[str, Terms]:
        code, crowd = self.code, Crowd.of(self.parameters)
        devices, field = crowd.devices, self.field
        pieces = devices * code.width
        device = (
            {"peers": devices - 1, "mask values": code.dim + code.private * code.width}
            | of.far("values", code.dim)
            | of.far("values of pieces", pieces)
            | of.coded(field, devices, code.needed, code.width)
            | of.packed(field, 2 * pieces)
        )
        server = (
            {"devices": devices}
            | of.summed(self.summed_in, crowd.survivors, code.dim)
            | of.far("values", code.dim)
            | self.recovery_terms(crowd.survivors)
        )
        return {"device": device, "server": server}

    def count(self, phases: Phases) -> None:
        code, crowd = self.code, Crowd.of(self.parameters)
        devices, peers, survivors = crowd.devices, crowd.devices - 1, crowd.survivors
        bits = -(-devices // 8)

        advertise = phases["advertise_keys"]
        advertise.sends(keys.KEY_BYTES, devices)
        advertise.receives(bits + keys.KEY_BYTES * devices, devices)
        # One of them to make the key pair.
        add(advertise.device, {"message": 2, "agreement": 1 + peers, "derivation": peers})
        add(advertise.server, {"message": devices})

        share, row = phases["share_masks"], self.row_bytes
        share.routes(row * peers, devices, peers)
        share.sends(bits, devices)
        share.receives(bits, devices)
        words = code.dim + code.private * code.width
        add(
            share.device,
            {
                "message": 4,
                "keystream": 2,
                "mask_word": words,
            }
            | coded(self.field, code.devices, code.needed, code.width),
        )
        # Its own and theirs.
        add(share.device, sealed_rows(peers, row), 2)
        add(share.device, packed(self.field, peers * code.width))
        add(share.device, unpacked(self.field, peers * code.width))
        add(share.server, {"message": devices})

        masked_upload(phases["masked_input"], self.summed_in, code.dim, survivors, 1)

        unmask = phases["unmask"]
        unmask.receives(bits, survivors)
        unmask.sends(self.piece_bytes, survivors)
        add(unmask.device, {"message": 2} | summed(None, code.width, survivors))
        add(unmask.device, packed(self.field, code.width))
        add(unmask.server, {"message": survivors} | unpacked(self.field, survivors * code.width))
        add(unmask.server, self.recovery(survivors))
        add(unmask.server, converted(code.dim, 2))

    def device(self, id: int, round_index: int, secrets: keys.SecretSource) -> LightSecAggDevice:
        return LightSecAggDevice(self, id, round_index, secrets)

    def server(
        self,
        round_index: int,
        model: NDArray[np.float32],
        secrets: keys.SecretSource = keys.system_secrets,
    ) -> LightSecAggServer:
        return LightSecAggServer(self, round_index, model, secrets)
