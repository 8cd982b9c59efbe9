"""A committee that adds up shares: no masks (packed sharing, Franklin and Yung, STOC 1992).

C of the N devices are the committee of a round, and work for all, as in DisAgg (arXiv:2605.13708).
Every device cuts its vector into l pieces, adds T random ones, and
encodes the l + T pieces into C shares, as the values of a polynomial of degree l + T - 1 at C
points: one for each member. Any T of them say nothing about the vector. A member adds up the shares
of those in the sum; any l + T of these sums give the sum of the vectors. There is nothing to take
off it, so that a device which vanishes costs nothing. The price is C / l vectors sent by each
device, and N / l received by a member.

The committee is drawn from all N devices, by a nonce of the server's which it draws when it has the
last key: nobody can choose keys until the committee suits it. A device that advertised no key has
its place in the draw, as one that is missing, so that C, l and T, which follow from N, are right
for whoever is there. More than T members collude with a probability of 2 to the minus security bits
at most. After the planned dropouts l + T + 2 members or more are left, but for 2 to the minus
correctness bits: one of them may vanish, or answer falsely, and not both.

Messages, after the envelope (all numbers little-endian; "bits" are a bitmap of the N devices, the
first bit of a byte being its most significant; "members" are those that advertised keys):

==============  ===============  =================================================================
phase           direction        payload
==============  ===============  =================================================================
model           to devices       d float32
advertise_keys  to the server    public key (32 bytes)
advertise_keys  to devices       nonce (16 bytes), bits of U1, who advertised keys, then those of
                                 the members by id
advertise_keys  to members       the keys of U1, by id
share_input     device to        AES-GCM ciphertext of a share: ceil(d / l) elements
                member
share_input     member to        bits of those whose shares it holds, itself among them
                server
sum_shares      to members       bits of U3, whose vectors are to be added up
sum_shares      member to        the sum of their shares: ceil(d / l) elements
                server
==============  ===============  =================================================================

The server is curious, and devices do what they are to do. What holds beyond it is what holds of
`lightsecagg`: a malformed message to the server costs its sender alone. A row that is no share
costs the member that it was for its answer; a device of whose shares more than one member holds
none is left out, unless those are the ones that contradict most. Of n sums, up to (n - l - T) / 2
wrong ones are found, and more end the round.
"""

from __future__ import annotations

import hashlib
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
    at,
    coded,
    converted,
    packed,
    sealed_rows,
    summed,
    unpacked,
)
from hpcfl.algorithms.aggregation.messages import from_server, parse_vector
from hpcfl.algorithms.aggregation.promises import FewCollude, Promise
from hpcfl.algorithms.aggregation.terms import Terms
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import ENVELOPE_BYTES, Ids, Pattern, Payload, Role, Rows, Step
from hpcfl.crypto import keys
from hpcfl.crypto.coding import Code
from hpcfl.crypto.groups import Elements, Field
from hpcfl.crypto.keystream import KEY_BYTES as SEED_BYTES
from hpcfl.crypto.sampling import subset
from hpcfl.errors import MessageError, RefusedError, UsageError
from hpcfl.options.shared import RoundOptions
from hpcfl.privacy.threat import LIARS, Threat

NONCE_BYTES = 16
# Without --committee, the smallest committee with which a device sends at most so many times what
# it would if all devices were members.
MOST_EXPANDED = 2


@dataclass(frozen=True)
class FewMembersCollude(FewCollude):
    """A vector is hidden from those who hold few of its shares."""

    code: Code

    @property
    def claim(self) -> str:
        private = self.code.private
        shares = f"{private} shares say" if private > 1 else "one share says"
        return (
            f"the server learns the sum of at least {self.threshold} devices' vectors, and with "
            "devices in collusion the sum of the others, as long as no more than "
            f"{private} of {self.code.devices} members collude: {shares} nothing about a vector"
            f"{self.but}"
        )


def choose_code(plan: Parameters, threat: Threat, members: int, field: Field) -> Code | None:
    """Return how vectors are shared with so many members; None if too few of them are sure.

    No more than T collude and, where one more vanishes and one answers falsely, l + T are left.
    """
    private = max(1, threat.most_colluding(members, 2.0**-plan.security_bits))
    absent = threat.most_dropped(members, 2.0**-plan.correctness_bits)
    needed = members - absent - LIARS
    if members == plan.devices:
        # Then no round ends with fewer.
        needed = max(needed, plan.threshold)
    if needed <= private:
        return None
    return Code(members, needed, private, plan.dim, field)


def drawn(devices: int, size: int, nonce: bytes, round_index: int) -> list[int]:
    """Return which of the devices are the committee, in the order of the shares' numbers."""
    context = f"hpcfl/1 committee round {round_index} members".encode()
    return subset(hashlib.sha256(context + nonce).digest(), devices, size)


class CommitteeDevice(CodedDevice):
    """A device's side of one round; keys and shares come from `secrets`."""

    _protocol: Committee

    def __init__(
        self, protocol: Committee, id: int, round_index: int, secrets: keys.SecretSource
    ) -> None:
        super().__init__(protocol, id, round_index, secrets)
        self._members: list[int] = []  # all of the committee, in the order of its shares
        self._present: list[int] = []  # those of them that advertised keys
        self._advertised: list[int] = []  # U1
        self._shared = False
        self.in_committee = False

    # advertise_keys

    def receive_advertise_keys(self, payload: Payload) -> None:
        """Check who the committee is, and agree on keys with its members."""
        phase, devices = "advertise_keys", self._parameters.devices
        cut = NONCE_BYTES + -(-devices // 8)
        if payload.size < cut:
            raise from_server(phase, f"{payload.size} bytes name no committee")
        self._advertised = self._protocol.read_listed(payload[NONCE_BYTES:cut], phase, "the server")
        if self.id not in self._advertised:
            raise RefusedError(f"device {self.id} is told that its public key was not received")
        self._members = self._protocol.drawn(payload[:NONCE_BYTES].tobytes(), self._round)
        self.in_committee = self.id in self._members
        there = {*self._advertised}
        self._present = [id for id in self._members if id in there]
        size = keys.KEY_BYTES * len(self._present)
        listed = parse_vector(payload[cut:], "u1", size, phase, "the server").tobytes()
        self._require(len(self._advertised), "share its vector among")
        needed = self._protocol.code.needed
        if len(self._present) < needed:
            raise RefusedError(
                f"device {self.id} refuses to share its vector with {len(self._present)} members: "
                f"{needed} are needed to add it up"
            )
        # A member agrees with all.
        if not self.in_committee:
            self._agree(self._present, listed)

    def receive_dealers_keys(self, payload: Payload) -> None:
        """Agree on keys with all that may send a member their shares."""
        phase, size = "advertise_keys", keys.KEY_BYTES * len(self._advertised)
        listed = parse_vector(payload, "u1", size, phase, "the server").tobytes()
        self._agree(self._advertised, listed)

    # share_input

    def send_share_input(self, vector: NDArray[np.floating]) -> tuple[Ids, Rows]:
        """Return a sealed share of the quantised vector for every member."""
        check_finite(self.id, vector)
        # Shares of two vectors, or of one with other random pieces, add up to nothing.
        if self._shared:
            raise RefusedError(f"device {self.id} refuses to share a vector twice in a round")
        self._shared = True
        code = self._protocol.code
        elements = self._elements(vector, self.sent())
        random = code.field.elements([self._secrets(SEED_BYTES)], [code.private * code.width])
        others = [id for id in self._present if id != self.id]
        mine = [self.id] if self.in_committee else []
        numbers = [self._members.index(id) for id in (*mine, *others)]
        shares = code.encode(elements, random, numbers)
        if self.in_committee:
            # A copy: a view would keep the shares of all.
            self._pieces[self.id] = shares[0].copy()
        return self._sealed(others, shares[len(mine) :])

    def receive_share_input(self, senders: Ids, rows: Rows) -> None:
        """Keep the shares of the others' vectors."""
        self._keep("share_input", senders, rows)

    # sum_shares

    def receive_sum_shares(self, payload: Payload) -> None:
        """Check whose shares are to be added up: too few could reveal a vector."""
        self._survivors = self._asked(payload, "sum_shares", "add up the shares")

    def send_sum_shares(self) -> Payload:
        """Return the sum of the shares of the devices in the sum."""
        return self._sum_of_pieces()


class CommitteeServer(CodedServer):
    """The server's side of one round."""

    _protocol: Committee

    def __init__(
        self,
        protocol: Committee,
        round_index: int,
        model: NDArray[np.float32],
        secrets: keys.SecretSource,
    ) -> None:
        super().__init__(protocol, round_index, model, secrets)
        self.committee: list[int] = []
        self._summed: Elements = np.empty(0, protocol.field.dtype)

    def send_advertise_keys(self) -> Payload:
        """Return who the committee is, and the public keys of its members."""
        # Drawn now that no key can be chosen any more: the committee follows from it.
        nonce = self._secrets(NONCE_BYTES)
        self.committee = self._protocol.drawn(nonce, self.round_index)
        present = [id for id in self.committee if id in self._public]
        needed = self._protocol.code.needed
        self._require(len(present), "advertised keys", needed, len(self.committee))
        listed = nonce + self._bits(self._public).tobytes() + self._keys_of(present)
        return np.frombuffer(listed, np.uint8)

    def send_dealers_keys(self) -> Payload:
        """Return all public keys."""
        return np.frombuffer(self._keys_of(sorted(self._public)), np.uint8)

    def _keys_of(self, ids: list[int]) -> bytes:
        return b"".join(self._public[id] for id in ids)

    def receive_share_input(self, ids: Ids) -> None:
        """Take note of who shared its vector."""
        self._take_dealers("share_input", ids)

    def receive_held(self, sender: int, payload: Payload) -> None:
        """Take note of whose shares a member holds."""
        self._check_member("share_input", sender)
        self._take_held("share_input", sender, payload)

    def finish_held(self) -> None:
        """Settle whose sum it is, and check what it is promised to hide."""
        code = self._protocol.code
        self._require(len(self._held), "hold shares", code.needed, code.devices)
        self._leave_out_unheld("share_input")
        self.survivors = sorted(self._dealers)
        self._check_promises()

    def send_sum_shares(self) -> Payload:
        """Return whose shares are to be added up."""
        return self._bits(self.survivors)

    def receive_sum_shares(self, sender: int, payload: Payload) -> None:
        """Keep the sum of the shares that a member holds."""
        self._check_member("sum_shares", sender)
        self._take_answer("sum_shares", sender, payload)

    def _check_member(self, phase: str, sender: int) -> None:
        if sender not in self.committee:
            raise MessageError(phase, f"device {sender}", "it is not in the committee")

    def finish_sum_shares(self) -> None:
        """Decode the sum of the vectors."""
        number_of = {id: number for number, id in enumerate(self.committee)}
        self._summed = self._decoded("sum_shares", number_of)

    def finish_result(self) -> None:
        """Return to signed integers, and to the original coordinates."""
        self.total = self._protocol.field.signed(self._summed.copy())
        self._summed = self._summed[:0].copy()
        self.turned_back = self._protocol.turned_back(self)


class Committee(CodedProtocol):
    """Secure aggregation of whole vectors, shared with a committee."""

    name = "committee"
    deals_to = "a committee"
    piece = "share"
    has_committee = True
    not_attacked = "it has no masks"
    not_active = "members do not check what others deal, nor that all were asked for the same sum"
    steps: tuple[Step, ...] = (
        MODEL,
        Step(
            "advertise_keys",
            Pattern.GATHER,
            CommitteeDevice.send_advertise_keys,
            CommitteeServer.receive_advertise_keys,
            finish=CommitteeServer.finish_advertise_keys,
        ),
        Step(
            "advertise_keys",
            Pattern.BROADCAST,
            CommitteeServer.send_advertise_keys,
            CommitteeDevice.receive_advertise_keys,
        ),
        Step(
            "advertise_keys",
            Pattern.BROADCAST,
            CommitteeServer.send_dealers_keys,
            CommitteeDevice.receive_dealers_keys,
            role=Role.COMMITTEE,
        ),
        Step(
            "share_input",
            Pattern.ROUTE,
            CommitteeDevice.send_share_input,
            CommitteeDevice.receive_share_input,
            to=Role.COMMITTEE,
            upload=True,
            relay=CommitteeServer.receive_share_input,
        ),
        Step(
            "share_input",
            Pattern.GATHER,
            CommitteeDevice.send_held,
            CommitteeServer.receive_held,
            role=Role.COMMITTEE,
            finish=CommitteeServer.finish_held,
        ),
        Step(
            "sum_shares",
            Pattern.BROADCAST,
            CommitteeServer.send_sum_shares,
            CommitteeDevice.receive_sum_shares,
            role=Role.COMMITTEE,
        ),
        Step(
            "sum_shares",
            Pattern.GATHER,
            CommitteeDevice.send_sum_shares,
            CommitteeServer.receive_sum_shares,
            role=Role.COMMITTEE,
            finish=CommitteeServer.finish_sum_shares,
        ),
        Step("result", Pattern.LOCAL, finish=CommitteeServer.finish_result),
    )

    @property
    def stuck(self) -> float:
        # Members are so many that enough of them stay with all but this probability.
        return 2.0**-self.parameters.correctness_bits if self.parameters.dropout else 0.0

    @classmethod
    def uses(cls, options: RoundOptions) -> frozenset[str]:
        return super().uses(options) | {"correctness_bits"}

    def choose_code(self) -> Code:
        plan, threat = self.parameters, self.threat
        asked = plan.committee
        if asked is not None and asked > plan.devices:
            raise UsageError(f"--committee is {asked}, and there are {plan.devices} devices")
        whole = choose_code(plan, threat, asked or plan.devices, self.field)
        if whole is None:
            raise UsageError(
                f"with --gamma {plan.gamma} and --dropout {plan.dropout}, of {asked or 'all'} "
                "members more may collude than are sure to stay: "
                + ("raise --committee, or " if asked else "")
                + "lower one of them"
            )
        if asked is not None:
            return whole
        for members in range(2, plan.devices):
            code = choose_code(plan, threat, members, self.field)
            if code and members * whole.pieces <= MOST_EXPANDED * plan.devices * code.pieces:
                return code
        return whole

    def drawn(self, nonce: bytes, round_index: int) -> list[int]:
        """Return the committee of a round, in the order of the shares' numbers."""
        return drawn(self.parameters.devices, self.code.devices, nonce, round_index)

    def settings(self) -> dict[str, Any]:
        code = self.code
        return {
            "committee": code.devices,
            "packing": code.pieces,
            "members_needed": code.needed,
            "threshold": self.parameters.threshold,
        }

    @property
    def more_members_collude(self) -> float:
        """Probability that more than T members collude."""
        among = self.threat.colluding_among(self.code.devices)
        return float(among[self.code.private + 1 :].sum())

    def promises(self) -> list[Promise]:
        plan = self.parameters
        promise = FewMembersCollude(plan.threshold, self.more_members_collude, self.code)
        return [promise, *super().promises()]

    @property
    def sum_bytes(self) -> int:
        # Its members' sums, and what is decoded of them.
        size = self.field.dtype.itemsize
        return 2 * size * self.code.devices * self.code.width + size * self.code.dim

    @property
    def rows_of_device(self) -> int:
        return self.code.devices

    @property
    def rows_at_peak(self) -> float:
        # Members keep the shares that were in the rows until they know whose are to be added up.
        return 2.5

    @property
    def largest_reply(self) -> int:
        return max(self.piece_bytes, keys.KEY_BYTES, -(-self.parameters.devices // 8))

    def terms(self) -> dict[str, Terms]:
        code, crowd, field = self.code, Crowd.of(self.parameters), self.field
        members, there = code.devices, code.devices * crowd.survivors / crowd.devices
        device = (
            {"peers": members, "mask values": code.private * code.width}
            | of.far("values", code.dim)
            | of.far("values of pieces", members * code.width)
            | of.coded(field, members, code.needed, code.width)
            | of.packed(field, members * code.width)
        )
        received = crowd.survivors * code.width
        member = device | {"peers": crowd.devices} | of.far("received values", received)
        server = {"devices": crowd.devices} | of.far("values", code.dim)
        return {
            "device": device,
            "member": member | of.packed(field, members * code.width + received),
            "server": server | self.recovery_terms(there),
        }

    def count(self, phases: Phases) -> None:
        code, crowd = self.code, Crowd.of(self.parameters)
        devices, survivors, members = crowd.devices, crowd.survivors, code.devices
        # Those that are there after the upload, of the members.
        there = members * survivors / devices
        bits = -(-devices // 8)

        advertise = phases["advertise_keys"]
        advertise.members = members
        advertise.sends(keys.KEY_BYTES, devices)
        advertise.receives(NONCE_BYTES + bits + keys.KEY_BYTES * members, devices)
        # One of them to make the key pair.
        pairs = {"agreement": 1 + members, "derivation": members}
        add(advertise.device, {"message": 2} | pairs)
        advertise.member_down = ENVELOPE_BYTES + keys.KEY_BYTES * devices
        # A member agrees once, with all others, and not with the members before.
        more = devices - 1 - members
        add(advertise.member, {"message": 1, "agreement": more, "derivation": more})
        add(advertise.server, {"message": devices})

        share, row = phases["share_input"], self.row_bytes
        share.members = members
        share.sends(row * members, survivors, members)
        share.routed = share.up
        share.member_down = (row + ENVELOPE_BYTES) * (survivors - 1)
        # A member keeps its own share.
        share.member_up = ENVELOPE_BYTES + bits - (row + ENVELOPE_BYTES)
        add(
            share.device,
            {
                "message": 1,
                "keystream": 1,
                "mask_word": code.private * code.width,
            }
            | coded(self.field, code.devices, code.needed, code.width)
            | packed(self.field, members * code.width)
            | sealed_rows(members, row)
            | converted(code.dim, 2),
        )
        add(share.member, {"message": 2} | sealed_rows(survivors, row))
        add(share.member, unpacked(self.field, survivors * code.width))
        add(share.server, {"message": there})

        summing = phases["sum_shares"]
        summing.members = members
        summing.member_down = ENVELOPE_BYTES + bits
        summing.member_up = ENVELOPE_BYTES + self.piece_bytes
        add(summing.member, {"message": 2} | summed(None, code.width, survivors))
        add(summing.member, packed(self.field, code.width))
        add(summing.server, {"message": there} | self.recovery(there))
        add(summing.server, unpacked(self.field, there * code.width))
        # It is decoded in a copy, which takes half of what adding it up does.
        add(phases["result"].server, at("summed", code.dim / 2, code.dim))

    def device(self, id: int, round_index: int, secrets: keys.SecretSource) -> CommitteeDevice:
        return CommitteeDevice(self, id, round_index, secrets)

    def server(
        self,
        round_index: int,
        model: NDArray[np.float32],
        secrets: keys.SecretSource = keys.system_secrets,
    ) -> CommitteeServer:
        return CommitteeServer(self, round_index, model, secrets)
