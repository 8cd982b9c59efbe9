"""What the transport's patterns cost among the ranks that were started, apart from their work."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from hpcfl.comm.loopback import Loopback
from hpcfl.comm.transport import Transport
from hpcfl.comm.world import World
from hpcfl.costmodel.calibration import CACHED_BYTES, PatternCost

# Devices on a rank, and bytes that these send or receive together: few, all that fit the cache, and
# many more than that.
DEVICES = 4
SIZES = (64, CACHED_BYTES, 16 * CACHED_BYTES)
REPEATS = 9
# Long enough for the scheduler to have settled who runs where.
WORK_SECONDS = 0.15


def measure(world: World) -> tuple[dict[str, PatternCost], float, float]:
    """Return the links by pattern, and how ranks slow each other down (see `Calibration`).

    Every rank calls this. Links are of rank 0 alone; one process has none but from device to
    device.
    """
    if world.size == 1:
        return {"route": _link(Loopback(DEVICES), _route)}, 1.0, 1.0
    transport = world.transport(DEVICES * (world.size - 1))
    assert transport is not None
    links = {
        name: _link(transport, pattern)
        for name, pattern in (("broadcast", _broadcast), ("gather", _gather), ("route", _route))
    }
    devices = _slowdown(transport, not transport.has_server)
    server = _slowdown(transport, transport.has_server)
    world.settle(None)
    return links, devices, server


Pattern = Callable[[Transport, int], None]


def _broadcast(transport: Transport, size: int) -> None:
    transport.broadcast(np.zeros(size, np.uint8) if transport.has_server else None)


def _gather(transport: Transport, size: int) -> None:
    message = np.zeros(size // DEVICES, np.uint8)
    for _ in transport.gather(list(transport.local_devices), lambda id: message, message.size):
        pass


def _route(transport: Transport, size: int) -> None:
    """Send `size` bytes from every rank, from its devices to all others alike."""
    from hpcfl.comm import envelope

    count = transport.placement.devices
    local = list(transport.local_devices)
    each = max(1, size // DEVICES // (count - 1))
    rows = [
        envelope.seal_rows(
            0,
            0,
            id,
            np.array([other for other in range(count) if other != id], np.int64),
            np.zeros((count - 1, each), np.uint8),
        )
        for id in local
    ]
    transport.route(local, rows, envelope.BYTES + each)


def _link(transport: Transport, pattern: Pattern) -> PatternCost:
    small, cached, large = SIZES
    few, some, many = (_elapsed(transport, pattern, size) for size in SIZES)
    beta = max(0.0, (some - few) / (cached - small))
    return PatternCost(few, beta, max(0.0, (many - some) / (large - cached)))


def _elapsed(transport: Transport, pattern: Pattern, size: int) -> float:
    """Return the median seconds of the slowest rank; a barrier is before each."""
    samples = []
    for repeat in range(REPEATS + 2):
        transport.barrier()
        start = time.perf_counter()
        pattern(transport, size)
        transport.barrier()
        longest = transport.max_to_server(time.perf_counter() - start)
        if repeat >= 2:
            samples.append(longest or 0.0)
    return median(samples)


def _slowdown(transport: Transport, works: bool) -> float:
    """Return elapsed over CPU seconds where some ranks work and the others wait."""
    from hpcfl.crypto.groups import FQ

    elements = np.zeros(1 << 15, np.uint32)
    seeds = [k.to_bytes(16, "little") for k in range(20)]
    ratios = []
    for _ in range(REPEATS):
        transport.barrier()
        start, cpu = time.perf_counter(), time.thread_time()
        spent = 0.0
        while works and spent < WORK_SECONDS:
            FQ.add_masks(elements, seeds, [1] * len(seeds))
            spent = time.thread_time() - cpu
        transport.barrier()
        elapsed = transport.max_to_server(time.perf_counter() - start)
        most = transport.max_to_server(spent)
        if elapsed is not None and most:
            ratios.append(elapsed / most)
    return max(1.0, median(ratios)) if ratios else 1.0
