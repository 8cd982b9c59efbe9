"""Puts a round together from a protocol, a transport and parties, for tests of many rooms."""

from __future__ import annotations

import numpy as np

from hpcfl.crypto.keys import insecure_secrets
from hpcfl.rounds.driver import Round
from hpcfl.rounds.ledger import Ledger
from hpcfl.rounds.observer import NOBODY

SERVER = -2  # stands for a device's number in what the server's secrets follow from


def seeded(seed):
    """Return secrets that follow from a seed, a round and a device."""
    return lambda index, id: insecure_secrets(seed, index, id)


def parties(protocol, transport, index=0, secrets=None):
    """Return the devices of this rank by id, and the server, None where it is not."""
    secrets = secrets or seeded(1)
    devices = {id: protocol.device(id, index, secrets(index, id)) for id in transport.local_devices}
    model = np.zeros(protocol.parameters.dim, np.float32)
    server = protocol.server(index, model, secrets(index, SERVER)) if transport.has_server else None
    return devices, server


def round_of(
    protocol,
    transport,
    devices,
    server,
    inputs,
    *,
    index=0,
    dropouts=None,
    steps=None,
    reduce=False,
    observer=NOBODY,
):
    """Return a round that is ready to be played; `inputs` are vectors by id, or a function."""
    count = protocol.parameters.devices
    return Round(
        protocol.steps if steps is None else steps,
        transport,
        Ledger(protocol.phases(), count, transport.local_devices, transport.has_server),
        index=index,
        devices=devices,
        server=server,
        inputs=inputs if callable(inputs) else inputs.__getitem__,
        dropouts={} if dropouts is None else dropouts,
        dim=protocol.parameters.dim,
        largest_message=protocol.largest_message,
        reduce_group=protocol.summed_in if reduce else None,
        observer=observer,
    )
