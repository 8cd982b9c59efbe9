"""Clients and servers that exchange requests and replies, for the tests of this folder."""

import msgpack
import numpy as np

from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.exchange.client import Client
from hpcfl.exchange.journal import FileJournal
from hpcfl.exchange.policy import Policy
from hpcfl.exchange.server import Session

DEVICES, DIM = 12, 40
VECTORS = np.random.default_rng(3).uniform(-0.1, 0.1, (DEVICES, DIM)).astype(np.float32)
ANY = Policy(protocols=tuple(PROTOCOLS), threshold=1, gamma=0, failure=1, helpers=1)
KEY = bytes(range(32))


def drive(played, reply):
    """Let `reply(exchange, id, request)` answer all exchanges; return how many there were."""
    exchanges, count = played.exchanges(), 0
    try:
        exchange = next(exchanges)
        while True:
            count += 1
            replies = {id: reply(exchange, id, asked) for id, asked in exchange.requests.items()}
            exchange = exchanges.send({id: one for id, one in replies.items() if one is not None})
    except StopIteration:
        return count


class Clients(dict):
    """Clients of a session by number, made when they are first asked."""

    def __missing__(self, id):
        self[id] = Client(ANY)
        return self[id]

    def __call__(self, exchange, id, asked):
        return self[id].handle(asked, lambda parameters: VECTORS[id])


class Stored:
    """Clients that a framework keeps as bytes between two requests, and their secrets apart."""

    def __init__(self, folder):
        self.folder, self.states, self.sources, self.clients = folder, {}, {}, {}
        self.replies = []

    def client(self, id):
        source = self.sources.setdefault(id, np.random.default_rng([1, id]).bytes)
        journal = FileJournal(self.folder / str(id))
        if id not in self.states:
            return Client(ANY, journal, source)
        return Client.restore(self.states[id], KEY, ANY, journal, source)

    def __call__(self, exchange, id, asked):
        client = self.clients[id] = self.client(id)
        reply = client.handle(asked, lambda parameters: VECTORS[id])
        self.states[id] = client.save(KEY)
        self.replies.append((id, reply))
        return reply


def changed(asked, **values):
    """Return a request with other values in its offer."""
    fields = msgpack.unpackb(asked)
    names = ["run", "name", "parameters", "round", "members", "population", "about"]
    for name, value in values.items():
        fields[0][names.index(name)] = value
    return msgpack.packb(fields)


def session_of(name, dim=DIM, **options):
    used = {"dropout": 0.2} if find(name).tolerates_dropouts else {}
    used |= {"alpha": 0.5} if find(name).sparse_upload else {}
    return Session(name, dim, **used | options)


def begun(name, clients=None, **options):
    """Return a session and clients that have enrolled."""
    session, clients = session_of(name, **options), Clients() if clients is None else clients
    enrolment = session.enrol(DEVICES)
    if enrolment is not None:
        drive(enrolment, clients)
    return session, clients


def assert_right(played, clients):
    """Compare the sum with that of what the survivors contributed, by the plain integers."""
    total = np.zeros(DIM, played.server.total.dtype)
    for id in played.server.survivors:
        where, values = clients[id]._round.party.contribution(VECTORS[id])
        total[where] += values.astype(total.dtype)
    np.testing.assert_array_equal(played.server.total, total)
