"""Rounds with a server that cheats, played by hand, and what such a server can make of them.

Neither the driver nor a transport takes part: the server decides what every device hears.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from protocol_rounds import raw, updates
from slow_reference import KEY_SHARE, MASK_KEY_LIMBS, SEED_LIMBS, SEED_SHARE

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.active import ActiveServer
from hpcfl.algorithms.aggregation.secagg import SecAggServer, pair_sign
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.loopback import Loopback
from hpcfl.comm.phases import Pattern, Payload
from hpcfl.crypto import keys, shamir, signatures
from hpcfl.crypto.keys import insecure_secrets
from hpcfl.errors import HpcflError
from hpcfl.rounds.enrolment import enrol


def enrolled(name, devices, seed=5):
    """Return devices of the active variant that enrolled together, over a transport."""
    found = enrol(find(name, "active"), Loopback(devices), first_round=0, insecure_seed=seed)
    assert found is not None
    return found.devices


def enrolled_with_strangers(name, devices, strangers):
    """Return devices that enrolled together, some of which nobody has registered.

    A server could have made them: their identity keys are signed with keys of their own, and what
    they derive from the keys of the others is all that it could.
    """
    enrolment = find(name, "active").enrolment(devices)
    assert enrolment is not None
    found = {id: enrolment.device(id, insecure_secrets(5, 7, id)) for id in range(devices)}
    registry = np.stack([raw(device.registers()) for device in found.values()])
    for id in strangers:
        found[id] = enrolment.device(id, insecure_secrets(6, 7, id))
    for device in found.values():
        device.learn(registry)
    listed = b"".join(device.send_advertise_keys().tobytes() for device in found.values())
    for device in found.values():
        device.receive_advertise_keys(raw(listed))
    return found


def make(name, devices, dim=20, *, security="active", identities=None, members=None, **options):
    """Return a protocol whose devices have enrolled; passive ones need not."""
    defaults: dict[str, Any] = {"levels": 1000, "alpha": 0.5, "security": security}
    protocol = find(name, security)(Parameters(devices, dim, **{**defaults, **options}))
    if security == "active":
        identities = enrolled(name, devices) if identities is None else identities
        members = range(devices) if members is None else members
        protocol.join(identities, members, len(identities))
    return protocol


@dataclass
class Conversation:
    """A round, or the beginning of one; exchanges go by the names of their steps."""

    protocol: Any
    server: Any
    devices: dict[int, Any]
    vectors: NDArray[np.float64]
    refusals: dict[int, HpcflError] = field(default_factory=dict)
    sent: dict[str, dict[int, bytes]] = field(default_factory=dict)
    told: dict[str, dict[int, bytes]] = field(default_factory=dict)
    earlier: Conversation | None = None


def converse(protocol, server=None, *, index=0, seed=1, before=None, dropouts=None):
    """Play a round, or what comes before a step; a device that refuses takes no further part."""
    count = protocol.parameters.devices
    if server is None:
        server = server_of(protocol, index)
    devices = {
        id: protocol.device(id, index, insecure_secrets(seed, index, id)) for id in range(count)
    }
    found = Conversation(protocol, server, devices, updates(protocol))
    dropouts = {} if dropouts is None else dropouts
    for step in protocol.steps:
        if (step.name, step.pattern) == before:
            break
        if step.optional and not getattr(server, f"wants_{step.name}")():
            continue
        live = [
            id
            for id in devices
            if id not in found.refusals
            and (id not in dropouts or not _is_past(protocol, dropouts[id], step.phase))
        ]
        _play(found, step, live)
    return found


def server_of(protocol, index=0, kind=None):
    """Return the protocol's server, or one of another kind, which draws the same every time."""
    model = np.zeros(protocol.parameters.dim, np.float32)
    secrets = insecure_secrets(1, index, -1)
    if kind is not None:
        return kind(protocol, index, model, secrets)
    return protocol.server(index, model, secrets)


def _is_past(protocol, dropped, phase):
    order = protocol.phases()
    return order.index(phase) >= order.index(dropped)


def _play(found, step, live):
    server, name = found.server, step.name
    if step.pattern is Pattern.BROADCAST and name in ("model", "challenge"):
        told = getattr(server, f"send_{name}")()
        for id in live:
            _tell(found, name, id, told)
    elif step.pattern in (Pattern.BROADCAST, Pattern.SCATTER):
        for id in live:
            _tell(found, name, id, getattr(server, f"send_{name}")(id))
    elif step.pattern is Pattern.GATHER:
        for id in live:
            vector = [found.vectors[id]] if step.upload else []
            payload = _let(found, id, f"send_{name}", *vector)
            if id not in found.refusals:
                found.sent.setdefault(name, {})[id] = payload.tobytes()
                getattr(server, f"receive_{name}")(id, payload.view(np.uint8))
    elif step.pattern is Pattern.ROUTE:
        rows: dict[int, list[tuple[int, Payload]]] = {id: [] for id in live}
        for sender in live:
            for receiver, row in zip(*found.devices[sender].send_share_keys(), strict=True):
                rows.setdefault(int(receiver), []).append((sender, row))
        server.receive_share_keys(np.array(live, np.int64))
        for id in live:
            came = rows[id]
            senders = np.array([sender for sender, _ in came], np.int64)
            _let(found, id, "receive_share_keys", senders, np.stack([row for _, row in came]))
    if step.pattern in (Pattern.GATHER, Pattern.LOCAL) and hasattr(server, f"finish_{name}"):
        getattr(server, f"finish_{name}")()


def _tell(found, name, id, told):
    found.told.setdefault(name, {})[id] = told.tobytes()
    _let(found, id, f"receive_{name}", told)


def _let(found, id, action, *arguments):
    try:
        return getattr(found.devices[id], action)(*arguments)
    except HpcflError as error:
        found.refusals[id] = error
        return None


class TwoFaced(SecAggServer):
    """Tells some devices that the victim uploaded, and others that it vanished.

    The former give it shares of the seed of the victim's private mask, the latter of the key of its
    pairwise masks. The accomplices are devices that let it have all that they know.
    """

    victim: int
    deceived: frozenset[int]

    def scheme(self, victim, deceived, accomplices):
        self.victim, self.deceived = victim, frozenset(deceived)
        self._knows = accomplices
        self._seed_shares_of_victim: dict[int, NDArray[np.uint32]] = {}
        self._key_shares_of_victim: dict[int, NDArray[np.uint32]] = {}

    def receive_masked_input(self, sender, payload):
        super().receive_masked_input(sender, payload)
        if sender == self.victim:
            self.upload = payload.view("<u4").copy()

    def lists_for(self, receiver):
        survived, gone = self._survived.copy(), self._gone.copy()
        if receiver in self.deceived:
            survived[self.victim], gone[self.victim] = False, True
        return survived, gone

    def request_for(self, receiver):
        return self._links.request(receiver, *self.lists_for(receiver))

    def send_unmask(self, receiver=None):
        assert receiver is not None
        return self.request_for(receiver)

    def receive_unmask(self, sender, payload):
        survived, gone = self.lists_for(sender)
        shares = payload.view("<u4")
        cut = SEED_SHARE * int(survived.sum())
        if sender in self.deceived:
            place = int(gone[: self.victim].sum())
            self._key_shares_of_victim[sender] = shares[cut:].reshape(-1, KEY_SHARE)[place]
        else:
            place = int(survived[: self.victim].sum())
            self._seed_shares_of_victim[sender] = shares[:cut].reshape(-1, SEED_SHARE)[place]

    def finish_unmask(self):
        """Take no sum: it is after another thing."""

    def finish_result(self):
        pass

    def stolen(self):
        """Return the victim's integers, if there are shares enough."""
        protocol, victim = self._protocol, self.victim
        for id, device in self._knows.items():
            share = device._shares[device._links.holders.index(victim)]
            self._key_shares_of_victim[id], self._seed_shares_of_victim[id] = (
                share[:KEY_SHARE],
                share[KEY_SHARE:],
            )
        threshold = protocol.topology.threshold
        if min(len(self._key_shares_of_victim), len(self._seed_shares_of_victim)) < threshold:
            return None
        seed = shamir.from_limbs(combined(self._seed_shares_of_victim, threshold)[:SEED_LIMBS], 16)
        private = shamir.from_limbs(
            combined(self._key_shares_of_victim, threshold)[:MASK_KEY_LIMBS], 32
        )
        peers = [id for id in self._sharers if id != victim]
        secrets = keys.agree(private, [self._mask_public(id) for id in peers])
        masks = [
            protocol.private_mask_key(self._round, victim, seed),
            *protocol.pair_keys(self._round, victim, peers, secrets, "additive mask"),
        ]
        signs = [-1, *(-pair_sign(victim, peer) for peer in peers)]
        return self._group.decode(self._group.add_masks(self.upload, masks, signs))


def combined(shares, threshold):
    """Return the limbs of the secret that the first t shares give."""
    holders = tuple(sorted(shares)[:threshold])
    return shamir.combine(np.stack([shares[id] for id in holders]), holders)


class TwoFacedActive(TwoFaced, ActiveServer):
    """The same towards devices that compare their lists: accomplices endorse either list."""

    def send_consistency_check(self, receiver=None):
        assert receiver is not None
        return self.request_for(receiver)

    def receive_consistency_check(self, sender, payload):
        if sender in self.deceived:
            # It has no tag for the victim, which it was told is gone.
            place = [id for id in self.survivors if id != sender].index(self.victim)
            payload = np.insert(payload, 16 * place, np.zeros(16, np.uint8))
        super().receive_consistency_check(sender, payload)

    def send_unmask(self, receiver=None):
        assert receiver is not None
        told = digest(self._protocol, self._public, self.request_for(receiver).tobytes())
        for id, device in self._knows.items():
            if id != receiver:
                forged = endorsement(self._protocol, device._identity, id, receiver, told)
                self._tags[self.survivors.index(id), self.survivors.index(receiver)] = forged
        payload = ActiveServer.send_unmask(self, receiver)
        assert payload is not None
        return payload


def digest(protocol, public, request):
    """Return what an endorsement is of: who is who, all keys of the round, and the request."""
    advertised = hashlib.sha256(b"".join(public[id] for id in sorted(public))).digest()
    members = b"".join(int(id).to_bytes(8, "little") for id in protocol.members)
    return hashlib.sha256(members + advertised + request).digest()


def endorsement(protocol, identity, sender, receiver, told, index=0):
    """Return the tag with which one who has an identity endorses for a device."""
    context = f"hpcfl/1 {protocol.name} round {index} request from {sender} to {receiver}"
    secret = identity.tagging_secret(protocol.members[receiver])
    return np.frombuffer(signatures.tag(secret, context.encode(), told), np.uint8)
