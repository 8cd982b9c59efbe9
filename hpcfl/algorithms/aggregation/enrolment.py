"""What enrolments share: the server relays public keys, and every device checks them."""

from __future__ import annotations

import numpy as np

from hpcfl.algorithms.aggregation.messages import check_public_keys, parse_vector
from hpcfl.comm.phases import BROADCAST, GATHER, Payload, Step
from hpcfl.crypto import keys
from hpcfl.errors import MessageError, RefusedError

PHASE = "advertise_keys"


class Enrolled:
    """A party that enrols with its number, and remembers the last round that it entered."""

    party = "device"
    entered = "taken part in"  # what a round is refused for the second time

    def __init__(self, number: int, devices: int, secrets: keys.SecretSource) -> None:
        self.id = number
        self.devices = devices
        self._pair = keys.KeyPair.generate(secrets)
        # With each other party, end to end.
        self._secrets = b""
        self._size = 0
        self._last_round = -1

    @property
    def name(self) -> str:
        """What errors call the party."""
        return f"{self.party} {self.id}"

    def send_advertise_keys(self) -> Payload:
        """Return the public key."""
        return np.frombuffer(self._pair.public, np.uint8)

    def receive_advertise_keys(self, payload: Payload) -> None:
        """Take what all devices sent."""
        raise NotImplementedError

    def _listed(self, payload: Payload, size: int, count: int) -> list[bytes]:
        """Return what so many parties sent, `size` bytes each, of a first list."""
        if self._secrets:
            raise RefusedError(f"{self.name} refuses to enrol twice")
        raw = parse_vector(payload, "u1", size * count, PHASE).tobytes()
        return [raw[start : start + size] for start in range(0, len(raw), size)]

    def _keep(self, secrets: list[bytes]) -> None:
        """Keep what was agreed on, and forget the private key from which all of it follows."""
        self._secrets, self._size = b"".join(secrets), len(secrets[0])
        self._pair = keys.KeyPair(b"", self._pair.public)

    def _secret(self, number: int) -> bytes:
        """Return what was agreed on with another party."""
        return self._secrets[self._size * number : self._size * (number + 1)]

    def enter(self, round_index: int) -> None:
        """Refuse a round that has been: what was said in it could be shown again."""
        if not self._secrets:
            raise RefusedError(f"{self.name} refuses round {round_index}: it has not enrolled")
        if round_index <= self._last_round:
            raise RefusedError(
                f"{self.name} refuses round {round_index}: it has {self.entered} round "
                f"{self._last_round} already"
            )
        self._last_round = round_index


class Directory:
    """The server's side of an enrolment: what every device sent, passed on to all."""

    def __init__(self, devices: int, size: int = keys.KEY_BYTES) -> None:
        self._devices = devices
        self._size = size
        self._sent: dict[int, bytes] = {}

    def receive_advertise_keys(self, sender: int, payload: Payload) -> None:
        """Keep what a device sends."""
        name = f"device {sender}"
        sent = parse_vector(payload, "u1", self._size, PHASE, name).tobytes()
        if sender in self._sent:
            raise MessageError(PHASE, name, "it was received twice")
        self._check(sent, name)
        self._sent[sender] = sent

    def _check(self, sent: bytes, name: str) -> None:
        """Refuse what is of no use to anybody."""
        check_public_keys(sent, name)

    def send_advertise_keys(self) -> Payload:
        """Return what all sent, zeros for a device that sent nothing."""
        nothing = bytes(self._size)
        listed = b"".join(self._sent.get(id, nothing) for id in range(self._devices))
        return np.frombuffer(listed, np.uint8)

    def finish_advertise_keys(self) -> None:
        """Settle who has enrolled."""


# Every device sends public keys, and receives those of all.
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
