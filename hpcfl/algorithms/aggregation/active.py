"""Secure aggregation against a server that cheats (Bonawitz et al., CCS 2017, section 6, Fig. 4).

The server may change keys, add devices, and tell different devices different lists. In the paper
devices sign their advertised keys and the list of survivors U3, with t >= floor(2 N / 3) + 1. Here
both are authenticated in a tenth of the time:

* Before the run, a public-key infrastructure registers every device's signature key without the
  server. In the enrolment, once a run, each device signs an identity key (X25519), and every pair
  of devices derives two secrets from their signed keys.
* The keys that encrypt shares are also derived from the pair's secret and from the four keys that
  the two devices advertised in the round. A share decrypts only if each device received the other's
  keys unchanged, so a server in the middle cannot read it.
* In `consistency_check` every survivor tags the request to unmask for every other survivor, under
  their common secret. A survivor unmasks only if the tags prove that at least t devices, itself
  included, received the same request.

A tag can replace a signature because only its receiver ever checks it. An honest device endorses
one request a round. Two requests with t endorsements each, n_c of them by colluders, would need
2 (t - n_c) <= N - n_c, which t > 2 N / 3 and n_c < N / 3 exclude.

Messages in addition to those of :mod:`hpcfl.algorithms.aggregation.secagg` (little-endian numbers):

=================  =============  =================================================================
phase              direction      payload
=================  =============  =================================================================
advertise_keys     to the server  identity key (32 bytes), its signature (64); once, before round 0
advertise_keys     to devices     the same of all n devices, in order; once
consistency_check  to devices     U3, and U2 without U3: the request to unmask
consistency_check  to the server  a tag (16 bytes) for each other member of U3, in order
unmask             to devices     bits of U4, which endorsed the request (N), then the tags of its
                                  other members for this device
unmask             to the server  shares
=================  =============  =================================================================
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import Enrolment
from hpcfl.algorithms.aggregation.enrolment import STEPS, Directory, Enrolled
from hpcfl.algorithms.aggregation.messages import Flags, parse_vector, split_bits
from hpcfl.algorithms.aggregation.promises import Certain, Promise
from hpcfl.algorithms.aggregation.reconstruction import ABSENT
from hpcfl.algorithms.aggregation.secagg import (
    SecAgg,
    SecAggDevice,
    SecAggServer,
    SecAggState,
    ServerState,
)
from hpcfl.algorithms.aggregation.sharing import Challenge, Dealings
from hpcfl.algorithms.aggregation.sparse import (
    SparseDevice,
    SparseDeviceState,
    SparseSecAgg,
    SparseServer,
    SparseServerState,
)
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import BROADCAST, GATHER, SCATTER, Ids, Method, Payload, Rows, Step
from hpcfl.crypto import keys, signatures
from hpcfl.crypto.signatures import SIGNATURE_BYTES, TAG_BYTES
from hpcfl.errors import MessageError, RefusedError, UsageError
from hpcfl.report.formats import counted
from hpcfl.values import dataclass, field, replace

CHECK = "consistency_check"
SIGNED_BYTES = keys.KEY_BYTES + SIGNATURE_BYTES
SECRET_BYTES = 32


class Identity(Enrolled):
    """An enrolled device, and the two secrets that it shares with every other device."""

    def __init__(self, protocol: str, id: int, devices: int, secrets: keys.SecretSource) -> None:
        self._protocol = protocol
        self._random = secrets
        self._signing = signatures.SigningKey.generate(secrets)
        self._registry: NDArray[np.uint8] | None = None
        super().__init__(id, devices, secrets)

    def registers(self) -> bytes:
        """Return the public signature key, with which the device is registered."""
        return self._signing.public

    def learn(self, registry: NDArray[np.uint8]) -> None:
        """Keep the registered keys of all devices, uint8 (n, 32); not received from the server."""
        self._registry = registry

    def send_advertise_keys(self) -> Payload:
        """Return the identity key and its signature."""
        public = self._pair.public
        return np.frombuffer(public + self._signing.sign(self._context(self.id), public), np.uint8)

    def receive_advertise_keys(self, payload: Payload) -> None:
        """Agree on secrets with every other device whose identity key is validly signed.

        For a device without a valid signature, a random secret replaces the common one: no share or
        tag from that device is then valid, and it takes part in no round.
        """
        signed = self._listed(payload, SIGNED_BYTES, self.devices)
        if self._registry is None:
            raise RefusedError(f"device {self.id} refuses to enrol: it knows no registered keys")
        listed = [one[: keys.KEY_BYTES] for one in signed]
        if listed[self.id] != self._pair.public:
            raise RefusedError(
                f"device {self.id} refuses to enrol: its own identity key is not as it sent it"
            )
        agreed = enumerate(self._agree(signed, self._registry))
        size = 2 * SECRET_BYTES
        self._keep([keys.derive(one, self._pair_context(id, listed), size) for id, one in agreed])

    def _agree(self, signed: list[bytes], registry: NDArray[np.uint8]) -> list[bytes]:
        """Return the secret agreed on with every device, or random bytes without a valid key."""
        agreed = []
        for id, (one, registered) in enumerate(zip(signed, registry, strict=True)):
            public, signature = one[: keys.KEY_BYTES], one[keys.KEY_BYTES :]
            secret = self._random(SECRET_BYTES)
            if id != self.id and signatures.is_signed(
                registered.tobytes(), signature, self._context(id), public
            ):
                with suppress(ValueError):  # a key of low order
                    (secret,) = keys.agree(self._pair.private, [public])
            agreed.append(secret)
        return agreed

    def _context(self, id: int) -> bytes:
        return f"hpcfl/1 {self._protocol} device {id} of {self.devices} identity key".encode()

    def _pair_context(self, id: int, listed: list[bytes]) -> bytes:
        low, high = min(self.id, id), max(self.id, id)
        named = f"hpcfl/1 {self._protocol} pair {low} {high} of {self.devices} identities "
        return named.encode() + listed[low] + listed[high]

    def sealing_secret(self, id: int) -> bytes:
        """Return the secret that gives the keys for shares to and from another device."""
        return self._secret(id)[:SECRET_BYTES]

    def tagging_secret(self, id: int) -> bytes:
        """Return the secret for the tags of requests to and from another device."""
        return self._secret(id)[SECRET_BYTES:]


class Identities(Directory):
    """The server's side of the enrolment; it does not check signatures."""

    def _check(self, sent: bytes, name: str) -> None:
        """Accept any message."""


@dataclass
class ActiveDeviceState(SecAggState):
    """What a device keeps in addition: the state of the request to unmask."""

    challenge: Challenge | None = field(default_factory=Challenge.known)
    advertised: bytes = b""  # digest of the keys that the server passed on
    digest: bytes = b""  # of the request that this device has endorsed
    endorsed: bool = False  # whether enough devices have endorsed it


@dataclass
class ActiveServerState(ServerState):
    """What the server keeps in addition; arrays are indexed by place among the survivors."""

    dealings: Dealings | None = field(default_factory=lambda: Dealings(Challenge.known()))
    endorsing: Flags = field(default_factory=lambda: np.zeros(0, np.bool_))
    tags: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, 0, TAG_BYTES), np.uint8))


class ActiveDevice(SecAggDevice):
    """The additional steps of a device; a mixin to put before a protocol's device class."""

    _protocol: ActiveSecAgg
    state: ActiveDeviceState
    state_class: ClassVar[type[Any]] = ActiveDeviceState
    _member: Identity

    def send_advertise_keys(self) -> Payload:
        self._member.enter(self._round)
        return super().send_advertise_keys()

    def _seal_keys(self, peers: list[int], secrets: list[bytes]) -> list[bytes]:
        """Derive the keys also from the pair's secret and from the keys that both advertised."""
        links = self._links
        self.state.advertised = hashlib.sha256(links.advertised.tobytes()).digest()
        own = links.holders.index(self.id)
        agreed = []
        ids = [links.holders[k] for k in peers]
        contexts = self._protocol.pair_contexts(self._round, self.id, ids, "share transport ")
        for number, (k, id, secret) in enumerate(zip(peers, ids, secrets, strict=True)):
            first, second = (own, k) if self.id < id else (k, own)
            advertised = links.advertised_by(first) + links.advertised_by(second)
            contexts[number] += advertised
            agreed.append(secret + self._member.sealing_secret(self._protocol.members[id]))
        return keys.derive_each(agreed, contexts)

    def receive_share_keys(self, senders: Ids, rows: Rows) -> None:
        """Go on if the shares of t devices decrypt, which proves that their keys are authentic."""
        super().receive_share_keys(senders, rows)
        self._require_opened(self._members(), "go on")

    def receive_expelled(self, payload: Payload) -> None:
        super().receive_expelled(payload)
        self._require_opened(self._members(), "go on")

    def _require_opened(self, ids: Iterable[int], what: str) -> None:
        """Refuse if the shares of fewer than t of the devices `ids` have decrypted."""
        sealed = (self.state.shares != ABSENT).any(axis=1)
        opened = {id for id, one in zip(self._links.holders, sealed, strict=True) if one}
        count = len(opened & {*ids})
        self._require(
            count,
            f"{what}: the shares of {count} devices, itself included, are sealed by them for the "
            "keys that the server passed on",
        )

    # consistency_check

    def receive_consistency_check(self, payload: Payload) -> None:
        """Check the server's request as far as a single device can."""
        try:
            super().receive_unmask(payload)
        except MessageError as error:
            raise MessageError(CHECK, error.sender, error.reason) from None
        assert self.state.request is not None
        self._require_opened(self.state.request.survivors, "endorse these survivors")
        members = np.array(self._protocol.members, "<i8").tobytes()
        request = members + self.state.advertised + payload.tobytes()
        self.state.digest = hashlib.sha256(request).digest()

    def send_consistency_check(self) -> Payload:
        """Return a tag for each other survivor of the only request endorsed in this round."""
        others, request = self._others(), self.state.digest
        tags = [
            signatures.tag(self._tagging_secret(id), self._tag_context(self.id, id), request)
            for id in others
        ]
        return np.frombuffer(b"".join(tags), np.uint8)

    def _others(self) -> list[int]:
        """Return the survivors named by the request, without this device."""
        # Without a digest, this device has refused the request.
        if self.state.request is None or not self.state.digest:
            raise RefusedError(f"device {self.id} was not asked to unmask")
        return [id for id in self.state.request.survivors if id != self.id]

    def _tagging_secret(self, id: int) -> bytes:
        return self._member.tagging_secret(self._protocol.members[id])

    def _tag_context(self, sender: int, receiver: int) -> bytes:
        head = self._protocol.context(self._round)
        return f"{head} request from {sender} to {receiver}".encode()

    # unmask

    def receive_unmask(self, payload: Payload) -> None:
        """Check that t devices, including this one, endorsed the same request."""
        others = {*self._others()}
        if self.state.endorsed:
            raise self.refusal("to be shown endorsements twice")
        named, rest = split_bits(payload, self._parameters.devices, "unmask")
        senders = [id for id in named if id != self.id]
        tags = parse_vector(rest, "u1", TAG_BYTES * len(senders), "unmask").reshape(-1, TAG_BYTES)
        # A wrong tag may be due to its sender or the server, so only valid tags count.
        agreed = 1 + sum(
            sender in others
            and signatures.is_tagged(
                self._tagging_secret(sender),
                found.tobytes(),
                self._tag_context(sender, self.id),
                self.state.digest,
            )
            for sender, found in zip(senders, tags, strict=True)
        )
        self._require(
            agreed,
            f"unmask: {agreed} devices, itself included, endorsed the list of survivors that it "
            "was shown",
        )
        self.state.endorsed = True

    def send_unmask(self) -> Payload:
        if not self.state.endorsed:
            raise self.refusal("to unmask a list of survivors that nobody endorsed")
        return super().send_unmask()

    def receive_pairs(self, payload: Payload) -> None:
        if not self.state.endorsed:
            raise self.refusal(
                "to reveal secrets of pairs with devices that nobody endorsed as dropped"
            )
        super().receive_pairs(payload)


class ActiveServer(SecAggServer):
    """The additional steps of the server; a mixin to put before a protocol's server class."""

    state: ActiveServerState
    state_class: ClassVar[type[Any]] = ActiveServerState

    def finish_masked_input(self) -> None:
        super().finish_masked_input()
        count = len(self.survivors)
        self.state.endorsing = np.zeros(count, np.bool_)
        self.state.tags = np.zeros((count, count, TAG_BYTES), np.uint8)

    def send_consistency_check(self, receiver: int | None = None) -> Payload | None:
        """Return the request, which names the survivors and the dropped devices."""
        return super().send_unmask(receiver)

    def receive_consistency_check(self, sender: int, payload: Payload) -> None:
        """Keep a survivor's tags for the others."""
        name, count = self._check_survivor(CHECK, sender, self._endorsers()), len(self.survivors)
        tags = parse_vector(payload, "u1", TAG_BYTES * (count - 1), CHECK, name)
        own = self.survivors.index(sender)
        self.state.endorsing[own] = True
        self.state.tags[own, np.arange(count) != own] = tags.reshape(-1, TAG_BYTES)

    def _endorsers(self) -> list[int]:
        endorsing: list[int] = np.array(self.survivors)[self.state.endorsing].tolist()
        return endorsing

    def finish_consistency_check(self) -> None:
        self._enough(int(self.state.endorsing.sum()), "endorsed the list of survivors")

    def send_unmask(self, receiver: int | None = None) -> Payload | None:
        """Return the devices that endorsed the request, and their tags for the receiver."""
        if receiver is None or receiver not in self._admitted:
            return None
        own = self.survivors.index(receiver)
        senders = self.state.endorsing.copy()
        senders[own] = False
        tags = self.state.tags[senders, own].reshape(-1)
        return np.concatenate([self._bits(self._endorsers()), tags])


class ActiveSecAgg(SecAgg):
    """`secagg` against a server that cheats; a mixin for other protocols on its graph."""

    device_class = ActiveDevice
    server_class = ActiveServer

    steps: tuple[Step, ...] = (
        *(
            step
            for step in SecAgg.steps
            # A server that gave every holder a different challenge would learn the secret.
            if step.phase not in ("unmask", "result") and step.name != "challenge"
        ),
        Step(
            CHECK,
            BROADCAST,
            ActiveServer.send_consistency_check,
            ActiveDevice.receive_consistency_check,
        ),
        Step(
            CHECK,
            GATHER,
            ActiveDevice.send_consistency_check,
            ActiveServer.receive_consistency_check,
            finish=ActiveServer.finish_consistency_check,
        ),
        Step("unmask", SCATTER, ActiveServer.send_unmask, ActiveDevice.receive_unmask),
        *(
            step
            for step in SecAgg.steps
            if step.phase in ("unmask", "result")
            and (step.name, step.pattern) != ("unmask", BROADCAST)
        ),
    )

    def __init__(self, parameters: Parameters) -> None:
        # This class implies active security, which determines the threshold.
        super().__init__(replace(parameters, security="active"))
        if self.colluding_in_sum > self.tolerated:
            raise UsageError(
                f"with --security active at most {self.tolerated} of {parameters.devices} devices "
                f"may collude; if {self.threat} do, a round has up to {self.colluding_in_sum} of "
                f"them, except with probability 2^-{parameters.security_bits}: lower --gamma, or "
                "let more devices take part in a round"
            )

    @classmethod
    def enrolment(cls, devices: int, helpers: int = 0) -> Enrolment:
        return Enrolment(
            STEPS,
            SIGNED_BYTES,
            server=lambda: Identities(devices, SIGNED_BYTES),
            device=lambda id, secrets: Identity(cls.name, id, devices, secrets),
            registered_bytes=signatures.PUBLIC_BYTES,
        )

    def sizes(self) -> dict[Method, float]:
        sizes, plan = super().sizes(), self.parameters
        tags = TAG_BYTES * (plan.devices - plan.planned_dropouts - 1)
        return sizes | {
            ActiveServer.send_consistency_check: sizes[SecAggServer.send_unmask],
            ActiveDevice.send_consistency_check: tags,
            ActiveServer.send_unmask: -(-plan.devices // 8) + tags,
        }

    @property
    def largest_reply(self) -> int:
        return max(super().largest_reply, TAG_BYTES * self.topology.degree)

    @property
    def tolerated(self) -> int:
        """Maximum number of devices that may collude with a server that cheats."""
        return 2 * self.parameters.threshold - self.parameters.devices - 1

    @property
    def survivors_in_sum(self) -> int:
        # A server that cheats can make devices drop out, down to the threshold.
        return self.parameters.threshold

    def promises(self) -> list[Promise]:
        threshold = self.parameters.threshold
        return [
            *super().promises(),
            Certain(
                "a server that cheats, together with up to "
                f"{counted(self.tolerated, 'device')}, learns the sum over at most one set of "
                f"survivors. The set has at least {threshold} devices, at least "
                f"{threshold - self.tolerated} of them honest; the server chooses it"
            ),
        ]


@dataclass
class ActiveSparseDeviceState(ActiveDeviceState, SparseDeviceState):
    """What a device keeps for both protocols."""


@dataclass
class ActiveSparseServerState(ActiveServerState, SparseServerState):
    """What the server keeps for both protocols."""


class ActiveSparseDevice(ActiveDevice, SparseDevice):
    """A device of `sparse` against a server that cheats."""

    _protocol: ActiveSparse
    state: ActiveSparseDeviceState
    state_class = ActiveSparseDeviceState


class ActiveSparseServer(ActiveServer, SparseServer):
    """The server of `sparse`, which devices need not trust."""

    _protocol: ActiveSparse
    state: ActiveSparseServerState
    state_class = ActiveSparseServerState


class ActiveSparse(ActiveSecAgg, SparseSecAgg):
    """`sparse` against a server that cheats."""

    name: ClassVar[str] = SparseSecAgg.name
    device_class = ActiveSparseDevice
    server_class = ActiveSparseServer

    def promises(self) -> list[Promise]:
        return [
            *super().promises(),
            Certain(
                "for sparse vectors there is one such sum for every coordinate, over the survivors "
                "that sent it. A server that chooses the survivors can leave a coordinate with one"
            ),
        ]
