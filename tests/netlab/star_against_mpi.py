"""Run under mpirun by test_star: every collective of Star or Patient gives what MPI's own gives.

python star_against_mpi.py FOLDER star|patient
"""

import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np
from mpi4py import MPI

from hpcfl.comm import mpi, star
from hpcfl.comm.patient import Patient
from hpcfl.comm.placement import Placement

comm = MPI.COMM_WORLD.Dup()
middle = {"star": star.Star, "patient": Patient}[sys.argv[2]](MPI.COMM_WORLD.Dup())
rank, size = comm.rank, comm.size
rng = np.random.default_rng(rank)
shared = np.random.default_rng(99)


def same(first, second):
    """Fail unless MPI's result and the other's are equal."""
    np.testing.assert_array_equal(first, second)


assert (middle.rank, middle.size) == (rank, size)

for length in (0, 1, 300_000):
    message = rng.integers(0, 256, length, np.uint8)
    results = [message.copy(), message.copy()]
    for each, result in zip((comm, middle), results, strict=True):
        each.Bcast([result, MPI.BYTE], root=0)
    same(*results)

for counts in (shared.integers(0, 90_000, size), np.zeros(size, np.int64), np.arange(size)[::-1]):
    counts = np.ascontiguousarray(counts, np.int64)
    mine = rng.integers(0, 256, int(counts[rank]), np.uint8)
    gathered = [
        list(
            mpi.MpiTransport(each, Placement.even(size - 1, size)).gather(
                [rank - 1] if rank else [], lambda _, mine=mine: mine, 90_000
            )
        )
        for each in (comm, middle)
    ]
    assert [id for id, _ in gathered[0]] == [id for id, _ in gathered[1]]
    assert len(gathered[0]) == (0 if rank else np.count_nonzero(counts[1:]))
    same(*(np.concatenate([mine, *(part for _, part in got)]) for got in gathered))

for buffer_bytes in (1 << 28, 1000):  # in one piece and in many
    with mock.patch.object(star, "BUFFER_BYTES", buffer_bytes):
        for dtype in (np.uint8, np.int64, np.uint32):
            mine = rng.integers(0, 9, 5001).astype(dtype)
            results = [np.zeros(5001, dtype) for _ in range(2)]
            for each, result in zip((comm, middle), results, strict=True):
                each.Reduce(mine, None if rank else result, MPI.SUM, root=0)
            same(*results)
            results = [mine.copy(), mine.copy()]
            for each, result in zip((comm, middle), results, strict=True):
                each.Allreduce(MPI.IN_PLACE, result, MPI.SUM)
            same(*results)

number = np.array(rank * 3, np.int64)  # without a dimension, as `route` has it
middle.Allreduce(MPI.IN_PLACE, number, MPI.MAX)
assert int(number) == 3 * (size - 1)

out = rng.integers(0, 50, size).astype(np.int64)
results = [np.zeros(size, np.int64) for _ in range(2)]
for each, result in zip((comm, middle), results, strict=True):
    each.Alltoall(out, result)
same(*results)
rows = rng.integers(0, 256, (int(out.sum()), 13), np.uint8)
kind = MPI.BYTE.Create_contiguous(13).Commit()
incoming = results[0]
results = [np.zeros((int(incoming.sum()), 13), np.uint8) for _ in range(2)]
for each, result in zip((comm, middle), results, strict=True):
    each.Alltoallv([rows, out, kind], [result, incoming, kind])
same(*results)

if not isinstance(middle, star.Star):
    results = [np.zeros((size, 3), np.uint8) for _ in range(2)]
    for each, result in zip((comm, middle), results, strict=True):
        each.Gather(np.full(3, rank, np.uint8), None if rank else result)
    same(*results)
if rank:
    middle.Send(np.array([rank]), 0)
else:
    heard = np.zeros(1, np.int64)
    for other in range(1, size):
        middle.Recv(heard, other)
        assert heard[0] == other

# Nobody leaves the barrier before the last has come to it.
folder = Path(sys.argv[1])
if rank == size - 1:
    time.sleep(0.2)
    (folder / "arrived").touch()
middle.Barrier()
assert (folder / "arrived").exists()
middle.Ibarrier().Wait()
if rank == 0:
    print("all equal")
