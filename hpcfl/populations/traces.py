"""Reads traces in FedScale's and FLASH's formats as tables of a population.

FedScale's file of capacities holds, by client, ``computation`` (milliseconds of a sample) and
``communication`` (kbit/s). The files of availability of FedScale and FLASH hold, by client,
``active`` and ``inactive``, the seconds at which it comes and goes in turn, and ``finish_time``,
after which they repeat. FedScale pickles its files, FLASH writes JSON; both are read.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.errors import HpcflError, UsageError
from hpcfl.populations.population import Floats
from hpcfl.system import files


class _Plain(pickle.Unpickler):
    """Reads containers, numbers and texts only: other pickles can run any code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it holds a {module}.{name}")


def table(capacities: Path, availability: Path | None = None) -> dict[str, list[Any]]:
    """Return the columns of a population from FedScale's capacities, and who is there when.

    The fastest processor counts as this one, and links have equal rates in both directions and no
    latency, of which the files say nothing. Client k of the availability is the k-th device;
    clients that are never there are left out, and the others taken in turn.
    """
    devices = [_of(one, capacities, "computation", "communication") for one in _read(capacities)]
    if not devices or min(map(min, devices)) <= 0:
        raise UsageError(f"{capacities}: each client needs a computation and communication above 0")
    fastest = min(one[0] for one in devices)
    rates = [one[1] / 1e3 for one in devices]
    columns: dict[str, list[Any]] = {
        "uplink_mbps": rates,
        "downlink_mbps": rates,
        "latency_ms": [0.0] * len(rates),
        "compute": [one[0] / fastest for one in devices],
    }
    if availability is None:
        return columns
    clients = [
        _of(one, availability, "active", "inactive", "finish_time") for one in _read(availability)
    ]
    clients = [one for one in clients if one[0].size]
    if not clients:
        raise UsageError(f"{availability}: no client is ever there")
    texts = [";".join("-".join(map(_digits, pair)) for pair in _merged(*one)) for one in clients]
    count = len(clients)
    columns["on_intervals"] = [texts[k % count] for k in range(len(rates))]
    columns["period_seconds"] = [float(clients[k % count][2]) for k in range(len(rates))]
    return columns


def _digits(seconds: float) -> str:
    return np.format_float_positional(seconds, trim="-")


def _merged(active: Floats, inactive: Floats, finish: float) -> list[list[float]]:
    """Return the intervals of a client in order, where those that touch or overlap are one.

    They are within a period: the last one may have no end, or a later one.
    """
    merged: list[list[float]] = []
    ends = np.minimum([*inactive, finish], finish)
    for on, off in sorted(zip(active.tolist(), ends.tolist(), strict=False)):
        if merged and on <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], off)
        elif off > on:
            merged.append([on, off])
    return merged


def _read(path: Path) -> list[Mapping[str, Any]]:
    """Return what a file says of each client, in the order of the file."""
    files.require(path)
    raw = path.read_bytes()
    try:
        with path.open("rb") as file:
            found = json.loads(raw) if raw.lstrip()[:1] == b"{" else _Plain(file).load()
        return [dict(one) for one in found.values()]
    except (ValueError, AttributeError, TypeError, EOFError, pickle.UnpicklingError) as error:
        raise HpcflError(
            f"{path} is neither JSON nor a plain pickle of clients ({files.brief(error)})"
        ) from error


def _of(client: Mapping[str, Any], path: Path, *names: str) -> list[Any]:
    missing = [name for name in names if name not in client]
    if missing:
        raise UsageError(f"{path}: a client has no {missing[0]}; each needs {', '.join(names)}")
    try:
        found = [np.array(client[name], float) for name in names]
    except (ValueError, TypeError):
        found = [np.array(np.inf)]
    if not all(np.isfinite(one).all() for one in found):
        raise UsageError(f"{path}: a client's {', '.join(names)} must be finite numbers")
    return found
