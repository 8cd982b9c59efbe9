"""Every operation of the transport, while ranks die; a program that test_ulfm starts.

Its argument is a list, as JSON, of ``[rank, operation, point]``: who dies in which operation, by
their order here, and where in it:

``before``  instead of beginning it
``inside``  between two collectives of it
``unsaid``  having finished it, before saying so to the others
"""

import json
import os
import signal
import sys

import numpy as np
import pytest
from mpi4py import MPI

from hpcfl.comm import envelope, faults
from hpcfl.comm.placement import Placement
from hpcfl.crypto.groups import GROUPS
from hpcfl.errors import AgreedError, BelowThresholdError

DEVICES = 9
comm = MPI.COMM_WORLD.Dup()
rank = comm.rank
deaths = {
    operation: point for victim, operation, point in json.loads(sys.argv[1]) if victim == rank
}
transport = faults.TolerantTransport(comm, Placement.even(DEVICES, comm.size))
done = 0


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def dying(point, call):
    """Return a call before which this rank dies if its time has come."""

    def first(*arguments):
        if deaths.get(done) == point:
            die()
        return call(*arguments)

    return first


def vector(id):
    return np.random.default_rng(id).integers(0, 2**31, 50, np.uint32)


def everybody_agrees_on_the_lost():
    """Return the devices that are left."""
    mask = np.zeros(DEVICES, np.int64)
    mask[sorted(transport.failed)] = 1
    ranks = transport.sum_to_server(np.ones(1, np.int64))
    together = transport.sum_to_server(mask)
    if together is not None and ranks is not None:
        assert set(np.unique(together)) <= {0, ranks[0]}, together
    return [id for id in range(DEVICES) if id not in transport.failed]


def broadcast():
    message = np.arange(100, dtype=np.uint8) if rank == 0 else None
    assert transport.broadcast(message).tolist() == list(range(100))


def tell():
    assert transport.tell(41 + (rank == 0)) == 42


def agree():
    with pytest.raises(AgreedError, match="too few"):
        transport.raise_everywhere(BelowThresholdError("too few") if rank == 0 else None)


def gather_long():
    """Messages that otherwise come in parts: of one whose sender dies nothing may be in use."""
    faults.WINDOW_BYTES = 5
    gather(transport.gather_parts)


def gather(call=None):
    call = call or transport.gather
    made = []

    def produce(id):
        made.append(id)
        return np.full(id + 1, id, np.uint8)

    local = list(transport.local_devices)
    got = [(id, part.tolist()) for id, part in call(local, produce, 10)]
    assert made == local, "a message was made twice"
    left = [id for id in range(DEVICES) if id not in transport.failed]
    assert got == ([(id, [id] * (id + 1)) for id in left] if rank == 0 else []), got


def scatter():
    made = []

    def produce(id):
        made.append(id)
        return np.full(id, id, np.uint8)

    local = list(transport.local_devices)
    got = {id: part.tolist() for id, part in transport.scatter(local, produce)}
    assert got == {id: [id] * id for id in local}, got
    assert made == (list(range(DEVICES)) if rank == 0 else [])


def route():
    local = list(transport.local_devices)
    rows = []
    for id in local:
        others = np.array([other for other in range(DEVICES) if other != id], np.int64)
        rows.append(envelope.seal_rows(0, 0, id, others, np.full((len(others), 5), id, np.uint8)))
    arriving, took_part = transport.route(local, rows, envelope.BYTES + 5)
    received = dict(arriving)
    # What the server believes is what every device has: masks would not cancel otherwise.
    told = took_part.view(np.uint8) if rank == 0 else None
    believed = set(np.flatnonzero(transport.broadcast(told)))
    assert believed == set(np.flatnonzero(took_part))
    for id in local:
        senders = received[id].senders.tolist()
        assert set(senders) == believed - {id}, (id, senders, believed)
        assert all(row[-1] == s for row, s in zip(received[id].rows, senders, strict=True))


def reduce():
    local = list(transport.local_devices)
    result = transport.reduce(
        local,
        lambda id: vector(id).view(np.uint8),
        GROUPS["ring32"].add_into,
        np.zeros(50, np.uint32),
    )
    if rank == 0:
        assert result is not None
        ids, total = result
        assert ids == [id for id in range(DEVICES) if id not in transport.failed]
        expected = np.sum([vector(id) for id in ids], axis=0, dtype=np.uint32)
        assert total.tolist() == expected.tolist()


def largest():
    found = transport.max_to_server(9.0 - rank)
    assert found == (9.0 if rank == 0 else None)


OPERATIONS = (
    *(
        transport.barrier,
        broadcast,
        tell,
        agree,
        gather,
        gather_long,
        scatter,
        route,
        reduce,
        largest,
    ),
    transport.wait_for_all,
)

survivors = transport._survivors
survivors._all = dying("unsaid", survivors._all)
for name in ("_move", "_present", "_exchanged"):
    setattr(transport, name, dying("inside", getattr(transport, name)))

for operation in OPERATIONS:
    if deaths.get(done) == "before":
        die()
    operation()
    everybody_agrees_on_the_lost()
    done += 1

failures = transport.take_failures()
assert frozenset().union(*(failure.devices for failure in failures)) == transport.failed
assert transport.take_failures() == []
if rank == 0:
    seconds = [(failure.detect_seconds, failure.recover_seconds) for failure in failures]
    print(json.dumps({"lost": sorted(transport.failed), "seconds": seconds}), flush=True)
faults.finalize()
