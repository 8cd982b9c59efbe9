"""The common part of enrolments: the server relays public keys, and devices check them."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import numpy as np

from hpcfl.algorithms.aggregation.base import Enrolment
from hpcfl.algorithms.aggregation.messages import check_public_keys, parse_vector
from hpcfl.comm.phases import BROADCAST, GATHER, Payload, Step
from hpcfl.crypto import keys
from hpcfl.errors import MessageError, RefusedError

PHASE = "advertise_keys"


class Entering:
    """A party that remembers the last round that it entered, and enters none twice."""

    party = "device"
    entered = "taken part in"  # why a round is refused a second time, for errors
    id: int
    _last_round = -1

    @property
    def name(self) -> str:
        """Name of the party in errors."""
        return f"{self.party} {self.id}"

    def enter(self, round_index: int) -> None:
        """Enter a round; refuse one that is not later than all before, against replays."""
        if round_index <= self._last_round:
            raise RefusedError(
                f"{self.name} refuses round {round_index}: it has {self.entered} round "
                f"{self._last_round} already"
            )
        self._last_round = round_index


class Enrolled(Entering):
    """A party that enrols under a number."""

    # What it needs in another process; see `hpcfl.exchange.saved`.
    kept: ClassVar[tuple[str, ...]] = ("_pair", "_secrets", "_size", "_last_round")

    def __init__(self, number: int, devices: int, secrets: keys.SecretSource) -> None:
        self.id = number
        self.devices = devices
        self._random = secrets
        # Concatenated secrets shared with each other party.
        self._secrets = b""
        self._size = 0

    @cached_property
    def _pair(self) -> keys.KeyPair:
        return keys.KeyPair.generate(self._random)

    def send_advertise_keys(self) -> Payload:
        """Return the public key."""
        return np.frombuffer(self._pair.public, np.uint8)

    def receive_advertise_keys(self, payload: Payload) -> None:
        """Process the list of all messages; parties that enrol by `STEPS` override this."""
        raise NotImplementedError

    def _listed(self, payload: Payload, size: int, count: int) -> list[bytes]:
        """Return the items of `count` parties, `size` bytes each; refuse a second list."""
        if self._secrets:
            raise RefusedError(f"{self.name} refuses to enrol twice")
        raw = parse_vector(payload, "u1", size * count, PHASE).tobytes()
        return keys.cut(raw, size)

    def _keep(self, secrets: list[bytes]) -> None:
        """Keep the agreed secrets, and forget the private key that they follow from."""
        self._secrets, self._size = b"".join(secrets), len(secrets[0])
        self._pair = keys.KeyPair(b"", self._pair.public)

    def _secret(self, number: int) -> bytes:
        """Return the secret agreed on with another party; refuse one that there is not."""
        found = self._secrets[self._size * number : self._size * (number + 1)]
        if not found:  # anybody could compute what is derived from it
            raise RefusedError(f"{self.name} agreed on no secret with party {number}")
        return found

    def enter(self, round_index: int) -> None:
        if not self._secrets:
            raise RefusedError(f"{self.name} refuses round {round_index}: it has not enrolled")
        super().enter(round_index)


class TransportKeys(Entering):
    """The key pair of a device for encrypting shares in all rounds of a run (--transport-keys run).

    The device advertises its public key in every round, as it does with a key for one round only,
    so it may join in any round. The secret that it shares with another device is kept for as long
    as that device advertises the same key. The keys of a round's rows follow from the secret and
    the number of the round: in a round played twice, they would encrypt two rows with one nonce.
    """

    kept: ClassVar[tuple[str, ...]] = ("pair", "_public", "_secrets", "_last_round")

    def __init__(self, id: int, devices: int, secrets: keys.SecretSource) -> None:
        self.id = id
        self._random = secrets
        # By enrolment id; a device in a process with a thousand others keeps no objects for each.
        # Zeros are of no device: protocols refuse them before they agree.
        self._public = np.zeros((devices, keys.KEY_BYTES), np.uint8)
        self._secrets = np.zeros((devices, keys.KEY_BYTES), np.uint8)

    @cached_property
    def pair(self) -> keys.KeyPair:
        """The key pair, made in the first round that the device takes part in."""
        return keys.KeyPair.generate(self._random)

    def agree(self, ids: list[int], public: list[bytes]) -> list[bytes]:
        """Return the secret shared with each device, by enrolment id; `keys.agree` for new keys."""
        listed = np.frombuffer(b"".join(public), np.uint8).reshape(-1, keys.KEY_BYTES)
        new = np.flatnonzero((self._public[ids] != listed).any(axis=1)).tolist()
        agreed = keys.agree(self.pair.private, [public[k] for k in new])
        for k, secret in zip(new, agreed, strict=True):
            self._public[ids[k]] = listed[k]
            self._secrets[ids[k]] = np.frombuffer(secret, np.uint8)
        return keys.cut(self._secrets[ids].tobytes())


def transport_keys(devices: int) -> Enrolment:
    """Return an enrolment without exchanges, for keys that devices keep for all rounds."""
    return Enrolment((), 0, lambda: None, lambda id, secrets: TransportKeys(id, devices, secrets))


class Directory:
    """The server's side of an enrolment, which passes every device's message on to all."""

    def __init__(self, devices: int, size: int = keys.KEY_BYTES) -> None:
        self._devices = devices
        self._size = size
        self._sent: dict[int, bytes] = {}

    def receive_advertise_keys(self, sender: int, payload: Payload) -> None:
        """Check and keep a device's message."""
        name = f"device {sender}"
        sent = parse_vector(payload, "u1", self._size, PHASE, name).tobytes()
        if sender in self._sent:
            raise MessageError(PHASE, name, "it was received twice")
        self._check(sent, name)
        self._sent[sender] = sent

    def _check(self, sent: bytes, name: str) -> None:
        """Refuse unusable public keys."""
        check_public_keys(sent, name)

    def send_advertise_keys(self) -> Payload:
        """Return the messages of all devices, with zeros for a missing one."""
        nothing = bytes(self._size)
        listed = b"".join(self._sent.get(id, nothing) for id in range(self._devices))
        return np.frombuffer(listed, np.uint8)

    def finish_advertise_keys(self) -> None:
        """Close the enrolment; by default, any set of devices is accepted."""


# Every device sends public keys and receives the keys of all devices.
STEPS = (
    Step(
        PHASE,
        GATHER,
        Enrolled.send_advertise_keys,
        Directory.receive_advertise_keys,
        finish=Directory.finish_advertise_keys,
    ),
    Step(PHASE, BROADCAST, Directory.send_advertise_keys, Enrolled.receive_advertise_keys),
)
