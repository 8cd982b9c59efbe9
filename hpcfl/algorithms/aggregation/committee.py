"""A committee adds up shares, without masks (packed sharing, Franklin and Yung, STOC 1992).

C of the N devices form the committee of a round, as in DisAgg (arXiv:2605.13708). Every device cuts
its vector into l pieces, adds T random ones, and encodes the l + T pieces into C shares, one for
each member: the values of a polynomial of degree l + T - 1 at C points. Any T shares reveal nothing
about the vector. A member adds up the shares of the survivors; any l + T of these sums give the sum
of the vectors. There are no masks to remove, so a device that vanishes costs nothing. The price is
C / l vectors sent by each device, and N / l received by a member.

A nonce draws the committee from all N devices. The server draws it after the last key has arrived,
so nobody can try keys until the committee suits them. More than T members collude with probability
2 to the minus security bits at most. After the planned dropouts at least l + T + 2 members remain,
except with probability 2 to the minus correctness bits: one may vanish, and one answer falsely.

Messages, after the envelope (all numbers little-endian; "bits" are a bitmap of the N devices, the
first bit of a byte being its most significant; "members" are those with advertised keys):

==============  ===============  =================================================================
phase           direction        payload
==============  ===============  =================================================================
model           to devices       d float32
advertise_keys  to the server    public key (32 bytes)
advertise_keys  to devices       nonce (16 bytes), bits of U1, which advertised keys, then the keys
                                 of the members by id
advertise_keys  to members       the keys of U1, by id
share_input     device to        AES-GCM ciphertext of a share: ceil(d / l) elements
                member
share_input     member to        bits of the devices whose shares it holds, itself included
                server
sum_shares      to members       bits of U3, the devices whose shares are to be added up
sum_shares      member to        the sum of their shares: ceil(d / l) elements
                server
==============  ===============  =================================================================

Misbehaving devices have the same effects as in `lightsecagg`. A member that receives an unusable
share cannot answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import MODEL
from hpcfl.algorithms.aggregation.coded import CodedDevice, CodedProtocol, CodedServer, CodedState
from hpcfl.algorithms.aggregation.messages import parse_vector, split_bits
from hpcfl.algorithms.aggregation.promises import Certain, Promise, unless_more_collude
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import (
    BROADCAST,
    GATHER,
    LOCAL,
    ROUTE,
    Ids,
    Method,
    Payload,
    Role,
    Rows,
    Step,
)
from hpcfl.crypto import keys
from hpcfl.crypto.coding import Code
from hpcfl.crypto.groups import Elements, Field
from hpcfl.crypto.keystream import KEY_BYTES as SEED_BYTES
from hpcfl.crypto.sampling import subset
from hpcfl.errors import MessageError, RefusedError, UsageError
from hpcfl.options.protocols import CommitteeOptions
from hpcfl.privacy.threat import LIARS, Threat
from hpcfl.values import dataclass, field

NONCE_BYTES = 16
# Without --committee, the committee is the smallest one with which a device sends at most this many
# times the bytes that it would send if all devices were members.
MOST_EXPANDED = 2


def choose_code(
    plan: Parameters, threat: Threat, members: int, dim: int, field: Field
) -> Code | None:
    """Return the code of `dim` elements for `members` members; None if too few are reliable.

    At most T members collude, and l + T remain if one more vanishes and one answers falsely.
    """
    private = max(1, threat.most_colluding(members, 2.0**-plan.security_bits))
    absent = threat.most_dropped(members, 2.0**-plan.correctness_bits)
    needed = members - absent - LIARS
    if members == plan.devices:
        # In this case no round succeeds with fewer devices.
        needed = max(needed, plan.threshold)
    if needed <= private:
        return None
    return Code(members, needed, private, dim, field)


@dataclass
class DeviceState(CodedState):
    """What a device keeps between the steps of a round."""

    members: list[int] = field(default_factory=list)  # whole committee, in order of share numbers
    present: list[int] = field(default_factory=list)  # members that advertised keys
    advertised: list[int] = field(default_factory=list)  # U1


class CommitteeDevice(CodedDevice):
    """A device's side of one round; keys and shares come from `secrets`."""

    _protocol: Committee
    state: DeviceState
    state_class = DeviceState

    @property
    def in_committee(self) -> bool:
        """Whether this device is a member of the committee."""
        return self.id in self.state.members

    # advertise_keys

    def receive_advertise_keys(self, payload: Payload) -> None:
        """Determine the committee from the nonce, and agree on keys with its members."""
        phase, state = "advertise_keys", self.state
        nonce, rest = payload[:NONCE_BYTES].tobytes(), payload[NONCE_BYTES:]
        state.advertised, rest = split_bits(rest, self._parameters.devices, phase)
        if self.id not in state.advertised:
            raise RefusedError(f"device {self.id} is told that its public key was not received")
        state.members = self._protocol.drawn(nonce, self._round)
        there = {*state.advertised}
        state.present = [id for id in state.members if id in there]
        size = keys.KEY_BYTES * len(state.present)
        listed = parse_vector(rest, "u1", size, phase).tobytes()
        self._require(len(state.advertised), "share its vector among")
        needed = self._protocol.code.needed
        if len(state.present) < needed:
            raise self.refusal(
                f"to share its vector with {len(state.present)} members: "
                f"{needed} are needed to add it up"
            )
        # A member agrees on keys with all dealers.
        if not self.in_committee:
            self._agree(state.present, listed)

    def receive_dealers_keys(self, payload: Payload) -> None:
        """Agree, as a member, on keys with all devices that may send shares."""
        size = keys.KEY_BYTES * len(self.state.advertised)
        listed = parse_vector(payload, "u1", size, "advertise_keys").tobytes()
        self._agree(self.state.advertised, listed)

    # share_input

    def send_share_input(self, vector: NDArray[np.floating]) -> tuple[Ids, Rows]:
        """Return a sealed share of the quantised vector for every member."""
        # Shares of two vectors, or with different random pieces, do not fit together.
        self._once("share a vector")
        return self._dealt(self._elements(vector, self.sent()))

    def _dealt(self, elements: Elements) -> tuple[Ids, Rows]:
        """Return a sealed share of `elements` for every other member; keep this device's own."""
        state, code = self.state, self._protocol.code
        random = code.field.elements([self._secrets(SEED_BYTES)], [code.private * code.width])
        others = [id for id in state.present if id != self.id]
        mine = [self.id] if self.in_committee else []
        numbers = [state.members.index(id) for id in (*mine, *others)]
        shares = code.encode(elements, random, numbers)
        if mine:
            # A copy, because a view would keep all shares in memory.
            state.pieces[self.id] = shares[0].copy()
        sealed = self._sealed(others, shares[len(mine) :])
        if not mine:
            state.transport_keys = {}
        return sealed

    def receive_share_input(self, senders: Ids, rows: Rows) -> None:
        """Keep the shares of the others' vectors."""
        self._keep("share_input", senders, rows)

    # sum_shares

    def receive_sum_shares(self, payload: Payload) -> None:
        """Check the list of devices to add up: too few could reveal a vector."""
        self.state.survivors = self._asked(payload, "sum_shares", "add up the shares")

    def send_sum_shares(self) -> Payload:
        """Return the sum of the shares of the devices in the sum."""
        return self._sum_of_pieces()


class CommitteeServer(CodedServer):
    """The server's side of one round."""

    _protocol: Committee
    committee: Sequence[int] = ()
    dealing = "share_input"  # the phase in which devices deal shares

    def send_advertise_keys(self) -> Payload:
        """Return the nonce that draws the committee, and the public keys of its members."""
        # Drawn after the last key, so no device can choose keys that suit a committee.
        nonce, public = self._secrets(NONCE_BYTES), self.state.public
        self.committee = self._protocol.drawn(nonce, self.round_index)
        present = [id for id in self.committee if id in public]
        self._enough_holders(len(present), "advertised keys")
        listed = nonce + self._bits(public).tobytes() + self._keys_of(present)
        return np.frombuffer(listed, np.uint8)

    def send_dealers_keys(self) -> Payload:
        """Return all public keys."""
        return np.frombuffer(self._keys_of(sorted(self.state.public)), np.uint8)

    def receive_share_input(self, ids: Ids) -> None:
        """Record the devices that shared their vectors."""
        self._take_dealers(self.dealing, ids)

    def _check_member(self, phase: str, sender: int) -> None:
        if sender not in self.committee:
            raise MessageError(phase, f"device {sender}", "it is not in the committee")

    def receive_held(self, sender: int, payload: Payload) -> None:
        """Record whose shares a member holds."""
        self._check_member(self.dealing, sender)
        self._take_held(self.dealing, sender, payload)

    def finish_held(self) -> None:
        """Fix the devices in the sum, and check the promises about it."""
        self._enough_holders(len(self.state.held), "hold shares")
        self._leave_out_unheld(self.dealing)
        self.survivors = [*self.state.dealers]
        self._settle_survivors("shared their vectors")

    def send_sum_shares(self) -> Payload:
        """Return the devices whose shares are to be added up."""
        return self._bits(self.survivors)

    def receive_sum_shares(self, sender: int, payload: Payload) -> None:
        """Keep a member's sum of shares."""
        self._check_member("sum_shares", sender)
        self._take_answer("sum_shares", sender, payload)

    def finish_sum_shares(self) -> None:
        """Decode the sum of the vectors."""
        number_of = {id: number for number, id in enumerate(self.committee)}
        self.unmasked = self._decoded("sum_shares", number_of).copy()


Device, Server = CommitteeDevice, CommitteeServer


class Committee(CodedProtocol):
    """Secure aggregation of whole vectors that are shared with a committee."""

    name = "committee"
    options = (*CodedProtocol.options, CommitteeOptions)
    device_class = CommitteeDevice
    server_class = CommitteeServer
    piece = "share"
    dealt = "vector"  # what is shared with the committee
    steps: tuple[Step, ...] = (
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
            "advertise_keys",
            BROADCAST,
            Server.send_dealers_keys,
            Device.receive_dealers_keys,
            role=Role.COMMITTEE,
        ),
        Step(
            "share_input",
            ROUTE,
            Device.send_share_input,
            Device.receive_share_input,
            to=Role.COMMITTEE,
            upload=True,
            relay=Server.receive_share_input,
        ),
        Step(
            "share_input",
            GATHER,
            Device.send_held,
            Server.receive_held,
            role=Role.COMMITTEE,
            finish=Server.finish_held,
        ),
        Step(
            "sum_shares",
            BROADCAST,
            Server.send_sum_shares,
            Device.receive_sum_shares,
            role=Role.COMMITTEE,
        ),
        Step(
            "sum_shares",
            GATHER,
            Device.send_sum_shares,
            Server.receive_sum_shares,
            role=Role.COMMITTEE,
            finish=Server.finish_sum_shares,
        ),
        Step("result", LOCAL, finish=Server.finish_result),
    )

    @property
    def dealt_dim(self) -> int:
        """Number of elements that a device shares with the committee."""
        return self.parameters.dim

    def choose_code(self) -> Code:
        plan, threat = self.parameters, self.threat
        asked = plan.committee
        if asked is not None and asked > plan.devices:
            raise UsageError(f"--committee is {asked}, and there are {plan.devices} devices")
        chosen = partial(choose_code, plan, threat, dim=self.dealt_dim, field=self.field)
        whole = chosen(asked or plan.devices)
        if whole is None:
            raise UsageError(
                f"with --gamma {plan.gamma} and --dropout {plan.dropout}, more of {asked or 'all'} "
                "members may collude than are sure to stay: "
                + ("raise --committee, or " if asked else "")
                + "lower one of them"
            )
        if asked is not None:
            return whole
        for members in range(2, plan.devices):
            code = chosen(members)
            if code and members * whole.pieces <= MOST_EXPANDED * plan.devices * code.pieces:
                return code
        return whole

    def drawn(self, nonce: bytes, round_index: int) -> list[int]:
        """Return the devices of the committee, in the order of their share numbers."""
        context = f"{self.context(round_index)} members".encode()
        digest = hashlib.sha256(context + nonce).digest()
        return subset(digest, self.parameters.devices, self.code.devices)

    def settings(self) -> dict[str, Any]:
        code = self.code
        return {
            "committee": code.devices,
            "packing": code.pieces,
            "members_needed": code.needed,
            "threshold": self.parameters.threshold,
        }

    def promises(self) -> list[Promise]:
        plan = self.parameters
        code = self.code
        private, exceeded = code.private, self.threat.more_colluding(code.devices, code.private)
        shares = f"{private} shares say" if private > 1 else "One share says"
        hidden = (
            f"the server learns the sum of at least {plan.threshold} devices' vectors, or, with "
            "colluding devices, the sum of the others, as long as at most "
            f"{private} of {code.devices} members collude. {shares} nothing about a {self.dealt}"
        )
        hidden += unless_more_collude(exceeded)
        return [Certain(hidden, plan.threshold, exceeded), *super().promises()]

    @property
    def members_in_round(self) -> int:
        return self.code.devices

    @property
    def rows_of_device(self) -> int:
        return self.code.devices

    def sizes(self) -> dict[Method, float]:
        devices, key = self.parameters.devices, keys.KEY_BYTES
        named = -(-devices // 8)
        return {
            Device.send_advertise_keys: key,
            Server.send_advertise_keys: NONCE_BYTES + named + key * self.code.devices,
            Server.send_dealers_keys: key * devices,
            Device.send_share_input: self.row_bytes,
            Device.send_held: named,
            Server.send_sum_shares: named,
            Device.send_sum_shares: self.piece_bytes,
        }
