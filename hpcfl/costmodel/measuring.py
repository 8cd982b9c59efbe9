"""Makes a calibration: measures operations, overheads and patterns, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np

from hpcfl import __version__
from hpcfl.comm.hosts import Hosts
from hpcfl.comm.world import World
from hpcfl.costmodel import kernels, overheads, patterns
from hpcfl.costmodel.calibration import Calibration
from hpcfl.system import disturbances, environment

# What the sentences on what else the machine did are called among what a calibration is about.
DISTURBED = "disturbed"


def calibrate(world: World, progress: Callable[[str], None] = lambda name: None) -> Calibration:
    """Measure operations on rank 0, and messages among all ranks; every rank calls this.

    `progress` takes the name of each operation that is done, on rank 0. What disturbed it is kept
    among what the calibration is about, in sentences.
    """
    hosts = Hosts(world)
    # All ranks that there are, with a device each but for the server's.
    placement = world.placement(max(1, world.size - 1))
    before = hosts.environment(world.facts(), placement) if world.rank == 0 else {}
    samples: dict[str, list[float]] = {}
    if world.rank == 0:
        samples = kernels.measure(progress)
        samples |= overheads.measure(samples)
    world.settle(None)
    links, devices_slowdown, server_slowdown = patterns.measure(world)
    transport = world.transport(placement.devices)
    assert transport is not None
    after = hosts.counters(transport)
    world.settle(None)
    local = environment.capture_local()
    kept = ("cpu_model", "cores_usable", "python_version", "numpy_version", "git_commit")
    about = {
        "measured": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "hpcfl_version": __version__,
        **{name: local[name] for name in kept if name in local},
        DISTURBED: disturbances.warnings(_as_in_a_file(before | after)),
    }
    return Calibration(samples, world.size, links, devices_slowdown, server_slowdown, about)


def _as_in_a_file(environment: dict[str, Any]) -> dict[str, Any]:
    """Return an environment with lists in place of arrays, as it is read from results."""
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in environment.items()
    }
