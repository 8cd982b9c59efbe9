"""Keeps of a round what a curious server and the devices that collude with it hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcfl.algorithms.aggregation.base import COLLUSION, AggregationProtocol
from hpcfl.algorithms.aggregation.messages import to_flags
from hpcfl.algorithms.parameters import Parameters
from hpcfl.attack.transcript import Flags, Transcript, attackable
from hpcfl.comm.phases import Payload
from hpcfl.crypto.keys import KEY_BYTES
from hpcfl.errors import UsageError
from hpcfl.privacy.threat import Threat
from hpcfl.rounds.observer import RoundObserver, Scene


def check(protocol: AggregationProtocol, *, insecure: bool, reduce: bool) -> None:
    """Refuse to keep a transcript of what cannot be attacked, or without being asked twice.

    A run's keys must be `insecure` already; uploads must not be summed on the way (`reduce`).
    """
    attackable(type(protocol))
    if not insecure:
        raise UsageError(
            "--keep-transcript writes secret keys and the devices' values to a file: it is for "
            "demonstrations, and must be given together with --insecure-seed"
        )
    if reduce:
        raise UsageError(
            "--keep-transcript needs every device's upload, which --upload reduce sums on the way: "
            "leave one of them out"
        )


def colluding(parameters: Parameters) -> Flags:
    """Return which floor(gamma N) devices collude with the server, drawn from the run's seed."""
    seeds = np.random.SeedSequence(parameters.seed, spawn_key=(COLLUSION,))
    order = np.random.default_rng(seeds).permutation(parameters.devices)
    count = Threat.of(parameters).colluding
    return to_flags(order[:count].tolist(), parameters.devices)


class Recorder(RoundObserver):
    """Takes down one round of a protocol that :func:`check` has not refused; every rank has one.

    Its `transcript` is None before :meth:`collect`, and except at the server.
    """

    hears = True

    def __init__(
        self, protocol: AggregationProtocol, round_index: int, config: Mapping[str, Any]
    ) -> None:
        self._protocol = protocol
        self._round = round_index
        self._config = config
        self._heard: dict[str, dict[int, Payload]] = {}
        self.transcript: Transcript | None = None

    def heard(self, index: int, step: str, sender: int, message: Payload) -> None:
        """Keep a message that the server receives; not a copy, which would take measured time."""
        if index == self._round:
            self._heard.setdefault(step, {})[sender] = message

    def collect(self, scene: Scene) -> None:
        """Collect from all ranks what the server has not received; every rank calls this."""
        if scene.index != self._round:
            return
        transport, devices, server = scene.transport, scene.devices, scene.server
        parameters = self._protocol.parameters
        colludes = colluding(parameters)
        honest = {device.id: device for device in scene.survivors if not colludes[device.id]}
        # A device that vanished at once has no keys.
        telling = [id for id in devices if colludes[id] and devices[id].state.masking.private]

        def mask_key(id: int) -> Payload:
            return np.frombuffer(devices[id].state.masking.private, np.uint8)

        def contribution(id: int) -> Payload:
            _, integers = honest[id].contribution(scene.inputs(id))
            return integers.astype("<i4").view(np.uint8)

        keys = dict(transport.gather(sorted(telling), mask_key, KEY_BYTES))
        values = dict(transport.gather(sorted(honest), contribution, 4 * parameters.dim))
        if server is None:
            return
        survived = to_flags(server.survivors, parameters.devices)
        uploads = self._heard["masked_input"]
        # What is not in the sum stays behind its private mask, whose seed is asked of nobody.
        used = {id: uploads[id] for id in server.survivors}
        nothing = np.empty(0, np.uint8)  # a transport may leave out an empty message
        self.transcript = Transcript(
            kind=attackable(type(self._protocol)),
            parameters=parameters,
            config=self._config,
            round_index=self._round,
            nonce=server.state.nonce,
            survived=survived,
            dropped=to_flags(server.dropped, parameters.devices),
            colluding=colludes,
            messages=self._heard | {"masked_input": used},
            mask_keys={id: key.tobytes() for id, key in keys.items()},
            truth={
                id: values.get(id, nothing).view("<i4")
                for id in np.flatnonzero(survived & ~colludes).tolist()
            },
        )
