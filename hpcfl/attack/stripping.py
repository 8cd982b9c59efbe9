"""Takes off every mask that a curious server and the devices that collude with it know.

From the replies to its unmasking request the server reconstructs, as the protocol has it, the seed
of every survivor's private mask and the mask key of every device that dropped out. It holds each
upload by itself. Colluding devices tell it their mask keys. What is left on an honest survivor's
values is the masks that it has in common with other honest survivors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.messages import parse_vector
from hpcfl.algorithms.aggregation.sharing import KEY_SHARE, SEED_SHARE
from hpcfl.attack.exposed import Seen, strip
from hpcfl.attack.transcript import Flags, Transcript
from hpcfl.comm import envelope
from hpcfl.comm.phases import Pattern, Payload
from hpcfl.crypto import keys, shamir
from hpcfl.crypto.groups import Elements
from hpcfl.crypto.keystream import KEY_BYTES as SEED_BYTES

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Remainder:
    """What is left of one honest survivor's upload."""

    device: int
    coordinates: Positions  # what it sent, in the order of its upload
    elements: Elements  # its values plus the masks that it shares with honest survivors


class Adversary:
    """The server after a round, and the devices that collude with it.

    They hold a transcript; the true values in it are not looked at.
    """

    def __init__(self, transcript: Transcript) -> None:
        self.protocol = transcript.kind(transcript.parameters)
        self._transcript = transcript
        self._public = {
            id: parse_vector(
                payload, "u1", 2 * keys.KEY_BYTES, "advertise_keys", f"device {id}"
            ).tobytes()
            for id, payload in self._payloads("advertise_keys").items()
        }
        context = self.protocol.round_context(transcript.round_index)
        self.seen = Seen(
            transcript.round_index,
            self.protocol.topology.link(self._public, transcript.nonce, context),
            transcript.survived | transcript.dropped,
            transcript.survived & ~transcript.colluding,
        )
        self._uploads = self._payloads("masked_input")
        self._seeds, self._mask_keys = self._reconstruct()
        self._secrets = self._agree()

    def _payloads(self, phase: str) -> dict[int, Payload]:
        """Return what every device sent in a phase, without envelopes."""
        steps, index = self.protocol.steps, self._transcript.round_index
        sought = (phase, Pattern.GATHER)
        (number,) = (k for k, step in enumerate(steps) if (step.name, step.pattern) == sought)
        return {
            id: envelope.unseal(message, phase, number, index, id, envelope.SERVER)
            for id, message in self._transcript.messages[phase].items()
        }

    def _reconstruct(self) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """Return all survivors' private-mask seeds, and all mask keys that are known, by device."""
        survived, dropped = self._transcript.survived, self._transcript.dropped
        seed_shares, key_shares = {}, {}
        for id, payload in self._payloads("unmask").items():
            cut = SEED_SHARE * self.seen.links.asked_of(id, survived).size
            limbs = cut + KEY_SHARE * self.seen.links.asked_of(id, dropped).size
            shares = parse_vector(payload, "<u4", limbs, "unmask", f"device {id}")
            seed_shares[id] = shares[:cut].reshape(-1, SEED_SHARE)
            key_shares[id] = shares[cut:].reshape(-1, KEY_SHARE)
        seeds = self._combine(seed_shares, survived, SEED_SHARE, SEED_BYTES)
        mask_keys = self._combine(key_shares, dropped, KEY_SHARE, keys.KEY_BYTES)
        return seeds, mask_keys | dict(self._transcript.mask_keys)

    def _combine(
        self, shares: dict[int, Elements], owners: Flags, width: int, size: int
    ) -> dict[int, bytes]:
        received = self.seen.links.collect(shares, owners, width).without_checks()
        limbs = received.combine(self.seen.links.threshold)
        secrets = [shamir.from_limbs(one, size) for one in limbs]
        return dict(zip(np.flatnonzero(owners).tolist(), secrets, strict=True))

    def _agree(self) -> dict[int, list[tuple[int, bytes]]]:
        """Return, for every honest survivor, with whom its masks are known, and their secret."""
        found: dict[int, list[tuple[int, bytes]]] = {id: [] for id in self.seen.ids}
        for id, private in self._mask_keys.items():
            if not self.seen.shared[id]:
                continue  # vanished before anybody masked with it
            victims = self.seen.honest_neighbours(id)
            public = [self._public[victim][keys.KEY_BYTES :] for victim in victims]
            secrets = keys.agree(private, public)
            secrets = self.protocol.mask_secrets(self._transcript.round_index, id, victims, secrets)
            for victim, secret in zip(victims, secrets, strict=True):
                found[victim].append((id, secret))
        return found

    def strip(self, id: int) -> Remainder:
        """Return what is left of an honest survivor's upload."""
        key = self.protocol.private_mask_key(self.seen.round_index, id, self._seeds[id])
        found = strip(self.protocol, self.seen, id, self._uploads[id], key, self._secrets[id])
        return Remainder(id, *found)

    def bound(self, id: int) -> int:
        """Return the largest magnitude that a device's value can have, from what is public."""
        parameters = self.protocol.parameters
        return math.floor(parameters.levels * parameters.clip * self.protocol.scale(id)) + 1
