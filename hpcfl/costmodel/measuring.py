"""Makes a calibration: measures operations, overheads and patterns, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from hpcfl import __version__
from hpcfl.comm.world import World
from hpcfl.costmodel import kernels, overheads, patterns
from hpcfl.costmodel.calibration import Calibration
from hpcfl.system import environment


def calibrate(world: World, progress: Callable[[str], None] = lambda name: None) -> Calibration:
    """Measure operations on rank 0, and messages among all ranks; every rank calls this.

    `progress` takes the name of each operation that is done, on rank 0.
    """
    samples: dict[str, list[float]] = {}
    if world.rank == 0:
        samples = kernels.measure(progress)
        samples |= overheads.measure(samples)
    world.settle(None)
    links, devices_slowdown, server_slowdown = patterns.measure(world)
    local = environment.capture_local()
    kept = ("cpu_model", "cores_usable", "python_version", "numpy_version", "git_commit")
    about = {
        "measured": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "hpcfl_version": __version__,
        **{name: local[name] for name in kept if name in local},
    }
    return Calibration(samples, world.size, links, devices_slowdown, server_slowdown, about)
