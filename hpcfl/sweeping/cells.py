"""The cells of a sweep: one run each, known by a hash of its complete configuration."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hpcfl.benchmark.experiment import Experiment
from hpcfl.errors import HpcflError
from hpcfl.options.bench import DEFAULT_DIM, BenchOptions
from hpcfl.sweeping.plan import Setting, parse

_ID_DIGITS = 16
# Follow from the options, or are words that another version of hpcfl may choose differently.
_NOT_IDENTITY = ("promises", "threshold", "scaled_by")


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    index: int  # in the order of running, from 0
    id: str  # hash of its complete configuration and `repeat`, 16 hex digits
    file: str  # name of its results within the sweep's folder
    arguments: tuple[str, ...]  # what is typed after ``hpcfl bench`` for this configuration
    protocol: str  # as its results call it
    devices: int
    dim: int
    rounds: int  # planned, warm-up included; the most there can be
    repeat: int  # which run of the same configuration it is, from 0

    @property
    def title(self) -> str:
        """A few words for it: protocol, N, d and which repeat."""
        repeat = f", repeat {self.repeat}" if self.repeat else ""
        return f"{self.protocol}, N = {self.devices}, d = {self.dim}{repeat}"


def resolve(settings: Iterable[Setting]) -> list[Cell]:
    """Return the cells of a plan, in its order, each configuration once.

    A configuration that cannot work is a cell as well: what speaks against it is found when it is
    to run. Options without effect make no other cell, such as ``alpha`` of `secagg`. Options that
    cannot be understood are a UsageError.
    """
    cells: dict[str, Cell] = {}
    for setting in settings:
        options = parse(setting.arguments)
        (devices,) = options.devices
        protocol, dim, rounds, config = _configuration(options, devices)
        # A protocol of one's own is called MODULE:CLASS, which may be a path.
        name = re.sub(r"[^\w.-]", "_", protocol)
        for repeat in range(setting.repeats):
            id = identify(config, repeat)
            cell = Cell(
                index=len(cells),
                id=id,
                file=f"{name}-{devices}x{dim}-{id}.h5",
                arguments=setting.arguments,
                protocol=protocol,
                devices=devices,
                dim=dim,
                rounds=rounds,
                repeat=repeat,
            )
            cells.setdefault(id, cell)
    return list(cells.values())


def identify(config: dict[str, Any], repeat: int) -> str:
    """Return the hash of a configuration and the number of a repeat.

    Options without a value do not count: a version of hpcfl with one more option leaves the
    hashes as they are.
    """
    kept = {
        name: value
        for name, value in config.items()
        if value is not None and name not in _NOT_IDENTITY
    }
    text = json.dumps({"config": kept, "repeat": repeat}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS]


def _configuration(options: BenchOptions, devices: int) -> tuple[str, int, int, dict[str, Any]]:
    """Return what is measured, d, the planned rounds, and the complete configuration."""
    try:
        experiment = Experiment.prepare(options, devices)
    except HpcflError:
        config = options.identity() | {"devices": devices, "refused": True}
        return options.summed_by, options.dim or DEFAULT_DIM, options.rounds, config
    # The name tells dp-fedavg from the protocol within which it adds its noise.
    config = experiment.config() | {"name": experiment.name}
    return experiment.name, experiment.updates.dim, options.planned_rounds, config
