"""The enrolment of devices, once, before the first round of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcfl.algorithms.aggregation.base import DIRECTORY, AggregationProtocol, Enrolment
from hpcfl.algorithms.aggregation.enrolment import transport_keys
from hpcfl.comm.phases import phase_names
from hpcfl.comm.transport import Transport
from hpcfl.crypto.keys import helper_secrets, secrets_of
from hpcfl.results.record import RoundRecord
from hpcfl.rounds.clock import timed
from hpcfl.rounds.driver import Round, RoundConfig
from hpcfl.rounds.ledger import Ledger
from hpcfl.system.plugins import blamed
from hpcfl.values import dataclass, field

# The round number in the envelopes of an enrolment.
NO_ROUND = 2**32 - 1


@dataclass(frozen=True)
class Enrolled:
    """The result of an enrolment."""

    # This rank's devices and helpers, with their secrets; helpers have the ids from n on. The
    # server's side, on its rank, has the id `DIRECTORY`.
    devices: Mapping[int, Any] = field(repr=False)
    population: int  # number n of devices of all ranks
    # Its cost, in no round: at the server that of all ranks, elsewhere that of this rank.
    record: RoundRecord


def enrol(
    protocol: AggregationProtocol | type[AggregationProtocol],
    transport: Transport,
    *,
    insecure_seed: int | None = None,
    keep_transport_keys: bool = False,
) -> Enrolled | None:
    """Let all devices enrol before the first round of a run; every rank calls this.

    With `keep_transport_keys`, devices keep their transport keys for all rounds. Return None for a
    protocol without enrolment. Raise on every rank if the server fails, on one rank if one of its
    devices fails.
    """
    count, all_helpers = transport.placement.devices, transport.placement.helpers
    once = transport_keys(count) if keep_transport_keys else None
    enrolment = once or protocol.enrolment(count, all_helpers)
    if enrolment is None:
        return None
    local = transport.local_devices
    ledger = Ledger.of(phase_names(enrolment.steps), transport)
    devices = {id: enrolment.device(id, secrets_of(insecure_seed, NO_ROUND, id)) for id in local}
    helpers = {}
    if enrolment.helper is not None:
        helpers = {
            id: enrolment.helper(id - count, helper_secrets(insecure_seed, NO_ROUND, id - count))
            for id in transport.local_helpers
        }
    _register(enrolment, transport, devices)
    server = enrolment.server() if transport.has_server else None
    config = RoundConfig(index=NO_ROUND, dim=0, largest_message=enrolment.largest_message)
    played = Round(
        *(enrolment.steps, transport, ledger, config),
        devices=devices,
        helpers=helpers,
        server=server,
        inputs=lambda id: np.empty(0),
    )
    with blamed(f"the enrolment of the protocol {protocol.name!r}"):
        record = timed(transport, played)
    if server is not None:
        record.validated = True
        record.survived = np.asarray((record.messages_up > 0).any(axis=0))
    directory = {} if server is None else {DIRECTORY: server}
    return Enrolled(devices | helpers | directory, count, record)


def _register(enrolment: Enrolment, transport: Transport, devices: Mapping[int, Any]) -> None:
    """Tell all devices the registered public keys of all others, if there are any.

    This simulates a public-key infrastructure. It counts for no time and no bytes of a round. The
    keys pass through the server's process, but the server does not change them.
    """
    size = enrolment.registered_bytes
    if not size:
        return
    registry = np.zeros((transport.placement.devices, size), np.uint8)
    for id, device in devices.items():
        registry[id] = np.frombuffer(device.registers(), np.uint8)
    together = transport.sum_to_server(registry)
    message = None if together is None else together.reshape(-1)
    registry = transport.broadcast(message).reshape(-1, size)
    for device in devices.values():
        device.learn(registry)
