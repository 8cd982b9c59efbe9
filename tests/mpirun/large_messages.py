"""One message of more than 2^31 bytes each way between two ranks; test_large_messages starts it."""

import zlib

import numpy as np
from mpi4py import MPI

from hpcfl.comm.mpi import MpiTransport
from hpcfl.comm.placement import Placement

SIZE = 2**31 + 17
comm = MPI.COMM_WORLD.Dup()
transport = MpiTransport(comm, Placement.even(1, comm.size))
device = transport.local_devices


def message(seed):
    """Return bytes in which no 1 GiB, by which calls are cut, is like another."""
    block = np.random.default_rng(seed).integers(0, 256, 10**6 + 3, np.uint8)
    whole = np.empty(SIZE, np.uint8)
    for start in range(0, SIZE, block.size):
        part = whole[start : start + block.size]
        part[:] = block[: part.size]
    return whole


def told(name, found):
    print(f"{name} {found.size} {zlib.crc32(found)}", flush=True)


sent = message(1) if transport.has_server else None
if sent is not None:
    told("broadcast sent", sent)
received = transport.broadcast(sent)
if device:
    told("broadcast received", received)
del received
for _, one in transport.scatter(device, lambda id: sent):
    told("scatter received", one)
    del one
sent = None

upload = message(2) if device else None
if upload is not None:
    told("gather sent", upload)
for _, one in transport.gather(device, lambda id: upload, SIZE):
    told("gather received", one)
