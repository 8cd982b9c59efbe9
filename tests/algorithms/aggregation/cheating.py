"""Servers that cheat, what they can make of what they are told, and devices that nobody knows."""

from __future__ import annotations

import hashlib

import numpy as np
from protocol_rounds import raw
from slow_reference import KEY_SHARE, MASK_KEY_LIMBS, SEED_LIMBS, SEED_SHARE

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.active import ActiveServer
from hpcfl.algorithms.aggregation.secagg import SecAggServer
from hpcfl.crypto import shamir, signatures
from hpcfl.crypto.keys import insecure_secrets


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


class TwoFaced(SecAggServer):
    """Tells some devices that the victim uploaded, and others that it vanished.

    The former give it shares of the seed of the victim's private mask, the latter of the key of its
    pairwise masks. The accomplices are devices that let it have all that they know.
    """

    def scheme(self, victim, deceived, accomplices):
        self.victim, self.deceived, self._knows = victim, deceived, accomplices
        self._seed_shares_of_victim, self._key_shares_of_victim = {}, {}
        return self

    def lists_for(self, receiver):
        survived, gone = self.state.survived.copy(), self.state.gone.copy()
        if receiver in self.deceived:
            survived[self.victim], gone[self.victim] = False, True
        return survived, gone

    def request_for(self, receiver):
        return self._links.bits(receiver, *self.lists_for(receiver), counted=True)

    def send_unmask(self, receiver=None):
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

    finish_masks = finish_result = finish_unmask

    def stolen(self):
        """Return the victim's mask key and seed, None if there are too few shares of either."""
        for id, device in self._knows.items():
            share = device.state.shares[device._links.holders.index(self.victim)]
            self._key_shares_of_victim[id] = share[:KEY_SHARE]
            self._seed_shares_of_victim[id] = share[KEY_SHARE:]
        found = []
        for shares, size, limbs in (
            (self._key_shares_of_victim, 32, MASK_KEY_LIMBS),
            (self._seed_shares_of_victim, 16, SEED_LIMBS),
        ):
            holders = tuple(sorted(shares)[: self._protocol.topology.threshold])
            if len(holders) < self._protocol.topology.threshold:
                return None
            combined = shamir.combine(np.stack([shares[id] for id in holders]), holders)
            found.append(shamir.from_limbs(combined[:limbs], size))
        return found


class TwoFacedActive(TwoFaced, ActiveServer):
    """The same towards devices that compare their lists: accomplices endorse either list."""

    def send_consistency_check(self, receiver=None):
        return self.request_for(receiver)

    def receive_consistency_check(self, sender, payload):
        if sender in self.deceived:
            # It has no tag for the victim, which it was told is gone.
            place = [id for id in self.survivors if id != sender].index(self.victim)
            payload = np.insert(payload, 16 * place, np.zeros(16, np.uint8))
        super().receive_consistency_check(sender, payload)

    def send_unmask(self, receiver=None):
        told = digest(self._protocol, self.state.public, self.request_for(receiver).tobytes())
        for id, device in self._knows.items():
            if id != receiver:
                forged = endorsement(self._protocol, device._member, id, receiver, told)
                self.state.tags[self.survivors.index(id), self.survivors.index(receiver)] = forged
        return ActiveServer.send_unmask(self, receiver)


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
