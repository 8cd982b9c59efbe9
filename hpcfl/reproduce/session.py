"""What `hpcfl reproduce` does: runs the settings of an artefact that were not run yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl import __version__
from hpcfl.comm.world import World
from hpcfl.reproduce.artefact import Artefact, Context, Setting
from hpcfl.reproduce.store import Store
from hpcfl.system import outputs


def run(
    world: World,
    artefact: Artefact,
    scale: str,
    folder: Path,
    data_dir: Path | None,
    *,
    again: bool = False,
    progress: Callable[[int, int, Setting], None] = lambda number, count, setting: None,
) -> None:
    """Run an artefact's settings, all or those that were not run before; every rank calls this.

    On rank 0, `progress` takes the number of the setting, how many there are, and the setting,
    before each. An HpcflError on every rank says what cannot work or fails; finished settings are
    kept.
    """
    settings = artefact.scales[scale].settings
    store = world.first_alone(lambda: _store(folder, artefact.group))
    parts, numbers = None, []
    if store is not None:
        numbers = list(range(len(settings))) if again else store.missing(settings)
        parts = [{"numbers": np.array(numbers, np.int64)}] * world.size
    for count, number in enumerate(world.distribute(parts)["numbers"].tolist()):
        setting = settings[number]
        if store is not None:
            progress(count, len(numbers), setting)
        start = time.perf_counter()
        found = artefact.run(setting, Context(world, data_dir))
        seconds = time.perf_counter() - start
        world.first_alone(partial(_keep, world, store, setting, found, seconds))


def _store(folder: Path, paper: str) -> Store:
    store = Store(folder, paper)
    outputs.check(store.path, outputs.FINDINGS)
    return store


def _keep(
    world: World, store: Store | None, setting: Setting, found: Mapping[str, Any], seconds: float
) -> None:
    assert store is not None
    store.add(setting, found, _about(world, seconds))


def _about(world: World, seconds: float) -> dict[str, Any]:
    from hpcfl.system import environment

    found = environment.capture_local()
    kept = ("cpu_model", "cores_usable", "git_commit")
    return {
        "seconds": round(seconds, 1),
        "finished": datetime.now(UTC).strftime("%Y-%m-%d"),
        "hpcfl_version": __version__,
        "ranks": world.size,
        **{name: found[name] for name in kept if name in found},
    }
