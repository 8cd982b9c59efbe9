"""What enrolments share: public keys go through the server, which every device checks."""

from __future__ import annotations

import numpy as np

from hpcfl.algorithms.aggregation.base import Enrolment
from hpcfl.algorithms.aggregation.messages import parse_vector
from hpcfl.comm.phases import Pattern, Payload, Step
from hpcfl.crypto import keys
from hpcfl.errors import MessageError, RefusedError

PHASE = "advertise_keys"


class EnrolledDevice:
    """A device that enrols with its id among n, and remembers the last round that it entered."""

    entered = "taken part in"  # what a round is refused for the second time

    def __init__(self, id: int, devices: int, secrets: keys.SecretSource) -> None:
        self.id = id
        self.devices = devices
        self._pair = keys.KeyPair.generate(secrets)
        # Secrets with devices 0 to n - 1, end to end; of no use in its own place.
        self._secrets = b""
        self._last_round = -1

    def send_advertise_keys(self) -> Payload:
        """Return the public key."""
        return np.frombuffer(self._pair.public, np.uint8)

    def receive_advertise_keys(self, payload: Payload) -> None:
        """Take what all devices sent."""
        raise NotImplementedError

    def _listed(self, payload: Payload, size: int, count: int | None = None) -> list[bytes]:
        """Return what so many, by default all, devices sent, `size` bytes each, of a first list."""
        if self._secrets:
            raise RefusedError(f"device {self.id} refuses to enrol twice")
        count = self.devices if count is None else count
        raw = parse_vector(payload, "u1", size * count, PHASE, "the server").tobytes()
        return [raw[start : start + size] for start in range(0, len(raw), size)]

    def _keep(self, secrets: list[bytes]) -> None:
        """Keep what was agreed on, and forget the private key from which all of it follows."""
        self._secrets = b"".join(secrets)
        self._pair = keys.KeyPair(b"", self._pair.public)

    def enter(self, round_index: int) -> None:
        """Refuse a round that has been: what was said in it could be shown again."""
        if round_index <= self._last_round:
            raise RefusedError(
                f"device {self.id} refuses round {round_index}: it has {self.entered} round "
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
        self._check(sent, sender)
        self._sent[sender] = sent

    def _check(self, sent: bytes, sender: int) -> None:
        """Refuse what is of no use to anybody."""

    def send_advertise_keys(self) -> Payload:
        """Return what all sent, zeros for a device that sent nothing."""
        nothing = bytes(self._size)
        listed = b"".join(self._sent.get(id, nothing) for id in range(self._devices))
        return np.frombuffer(listed, np.uint8)

    def finish_advertise_keys(self) -> None:
        """Settle who has enrolled."""


class KeyEnrolment(Enrolment):
    """An enrolment in which every device sends public keys, and receives those of all."""

    steps: tuple[Step, ...] = (
        Step(
            PHASE,
            Pattern.GATHER,
            EnrolledDevice.send_advertise_keys,
            Directory.receive_advertise_keys,
            finish=Directory.finish_advertise_keys,
        ),
        Step(
            PHASE,
            Pattern.BROADCAST,
            Directory.send_advertise_keys,
            EnrolledDevice.receive_advertise_keys,
        ),
    )
