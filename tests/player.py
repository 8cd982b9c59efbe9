"""Assembles rounds from a protocol, a transport and parties, for tests of many packages."""

import numpy as np

from hpcfl.comm.loopback import Loopback
from hpcfl.crypto.keys import insecure_secrets
from hpcfl.rounds.driver import Round, RoundConfig
from hpcfl.rounds.ledger import Ledger
from hpcfl.rounds.observer import NOBODY, RoundObserver
from hpcfl.rounds.timed import deal_out

SERVER = -2  # the server's number in the derivation of secrets, where devices have their ids


class Said(RoundObserver):
    """Keeps the warnings."""

    def __init__(self):
        self.sentences = []

    def warned(self, sentence):
        self.sentences.append(sentence)


class Changing(Loopback):
    """A loopback that delivers the result of its method `passed` for each sealed message."""

    def passed(self, message):
        return message

    def broadcast(self, message, error=None):
        return self.passed(super().broadcast(message, error))

    def scatter(self, receivers, produce):
        for receiver, message in super().scatter(receivers, produce):
            yield receiver, self.passed(message) if message.size else message

    def gather(self, senders, produce, largest):
        for sender, message in super().gather(senders, produce, largest):
            yield sender, self.passed(message)

    def route(self, senders, rows, width):
        """Change rows before they are sent; rows of another size are not delivered."""
        blocks = []
        for block in rows:
            fitting = [row for row in map(self.passed, block) if row.size == width]
            blocks.append(np.array(fitting, np.uint8).reshape(-1, width))
        return super().route(senders, blocks, width)


def seeded(seed):
    """Return secrets that are derived from a seed, a round and a device."""
    return lambda index, id: insecure_secrets(seed, index, id)


def parties(protocol, transport, index=0, secrets=None):
    """Return the devices of this rank by id, and the server, None on other ranks."""
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
    helpers=None,
):
    """Return a round that is ready to be played; `inputs` are vectors by id, or a function.

    By default, `helpers` are the ones that the protocol makes, if it has any.
    """
    count = protocol.parameters.devices
    dealt, range_sum = deal_out(protocol, transport, server)
    if helpers is None:
        secrets, helping = seeded(1), transport.local_helpers
        helpers = {id: protocol.helper(id - count, index, secrets(index, id)) for id in helping}
    config = RoundConfig(
        index=index,
        dim=protocol.parameters.dim,
        largest_message=protocol.largest_message,
        largest_reply=protocol.largest_reply,
        dropouts={} if dropouts is None else dropouts,
        in_parts=True,
        dealt=dealt,
        reduce_group=protocol.summed_in if reduce else None,
    )
    return Round(
        protocol.steps if steps is None else steps,
        transport,
        Ledger.of(protocol.phases(), transport),
        config,
        devices=devices,
        helpers=helpers,
        server=server,
        inputs=inputs if callable(inputs) else inputs.__getitem__,
        range_sum=range_sum,
        observer=observer,
    )
