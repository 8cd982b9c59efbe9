"""Disturbances of a measurement: the machine's counters before and after it, and warnings.

The counters of every host are recorded, in the order of `hosts`. A missing counter is NaN.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.report.formats import counted
from hpcfl.system import machine
from hpcfl.system.machine import read

# The counters and their meanings.
COUNTERS = {
    "clock_seconds": "clock that the other counters are read by",
    "load_1min": "mean number of runnable processes over the last minute",
    "swapped_in_bytes": "memory read back from swap space",
    "swapped_out_bytes": "memory moved to swap space",
    "quota_throttled_seconds": "time for which the container's CPU quota held threads back",
    "thermal_throttlings": "how often cores slowed down because of heat",
    "stolen_seconds": "CPU time that the hypervisor gave to other machines, all cores together",
}
# Names of the counters recorded before and after a run.
BEFORE = tuple(f"before_{name}" for name in COUNTERS)
AFTER = tuple(f"after_{name}" for name in COUNTERS)

# Smaller values cause no warning: some swapped pages and some stolen time are normal.
SWAP_BYTES = 1 << 20
LOST_SHARE = 0.01
LOST_SECONDS = 0.1
# A warning names at most this many hosts.
_HOSTS_NAMED = 4


def counters() -> dict[str, float]:
    """Return this machine's `COUNTERS` by name; an unknown counter is NaN."""
    import psutil

    swap = psutil.swap_memory()
    values = (
        time.monotonic(),
        psutil.getloadavg()[0],
        float(swap.sin),
        float(swap.sout),
        _quota_throttled(),
        _thermal_throttlings(),
        float(getattr(psutil.cpu_times(), "steal", math.nan)),
    )
    return dict(zip(COUNTERS, values, strict=True))


def recorded(
    names: Sequence[str], hosts: Sequence[Mapping[str, float] | None]
) -> dict[str, NDArray[np.float64]]:
    """Return the counters of all hosts under the given names, which are `BEFORE` or `AFTER`.

    `hosts` has None for a host whose counters are unknown.
    """
    return {
        name: np.array([math.nan if values is None else values[counter] for values in hosts])
        for name, counter in zip(names, COUNTERS, strict=True)
    }


def _quota_throttled() -> float:
    """Return the throttled seconds of this process's control group, of version 1 or 2."""
    for folder in machine.cgroups("cpu"):
        found = re.search(r"^throttled_(usec|time) (\d+)$", read(folder / "cpu.stat"), re.MULTILINE)
        if found:
            return int(found[2]) * (1e-6 if found[1] == "usec" else 1e-9)
    return math.nan


def _thermal_throttlings() -> float:
    counts = map(read, machine.CPUS.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"))
    known = [int(count) for count in counts if count.isdigit()]
    return float(sum(known)) if known else math.nan


def warnings(environment: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each disturbance that a run's recorded environment shows.

    In a run on several hosts, each sentence names the hosts that it applies to.
    """
    names, hosts = _by_host(environment)
    places: dict[str, list[str]] = {}
    sooner = environment.get("sooner") or ""
    for name, facts in zip(names, hosts, strict=True):
        for sentence in _of_host(facts, sooner):
            places.setdefault(sentence, []).append(name)
    # All hosts of a netlab are one machine.
    if len(hosts) == 1 or environment.get("transport") == "netlab":
        return list(places)
    return [
        f"{sentence} (on {', '.join(where[:_HOSTS_NAMED])}"
        + (f" and {len(where) - _HOSTS_NAMED} more)" if len(where) > _HOSTS_NAMED else ")")
        for sentence, where in places.items()
    ]


def _by_host(environment: Mapping[str, Any]) -> tuple[list[str], list[dict[str, float]]]:
    """Return the hosts' names, and the known numbers of each host."""
    ranks = environment.get("host_ranks") or [None]
    names = environment.get("hosts") or []
    if len(names) != len(ranks):
        names = [f"host {number}" for number in range(1, len(ranks) + 1)]
    differing = environment.get("host_facts") or {}
    known: dict[str, Sequence[Any]] = {"ranks": ranks}
    for name in ("cores_usable", "cores_logical"):
        known[name] = differing.get(name) or [environment.get(name)] * len(ranks)
    for name in (*BEFORE, *AFTER):
        values = environment.get(name)
        known[name] = values if isinstance(values, list | tuple) else [values]
    hosts: list[dict[str, float]] = [{} for _ in ranks]
    for name, values in known.items():
        for facts, value in zip(hosts, values, strict=False):
            if isinstance(value, int | float) and math.isfinite(value):
                facts[name] = float(value)
    return [*names], hosts


def _of_host(facts: Mapping[str, float], sooner: str) -> Iterator[str]:
    """Yield one sentence for each disturbance of the ranks on a host."""

    def grown(name: str) -> float:
        start, end = facts.get(f"before_{name}"), facts.get(f"after_{name}")
        return 0.0 if start is None or end is None else max(0.0, end - start)

    cores, ranks = facts.get("cores_usable", 0.0), facts.get("ranks", 0.0)
    on_cores = counted(round(cores), "core")
    if cores and ranks > cores:
        advice = sooner and (
            f"; the same CPU seconds and bytes come sooner from {sooner}, with your other options"
        )
        yield (
            f"{ranks:.0f} ranks on {on_cores}: measured seconds show the scheduler, CPU seconds do "
            f"not{advice}"
        )
    # The start of this run itself causes a load of up to one per rank.
    load = facts.get("before_load_1min", 0.0)
    if cores and load > max(cores, ranks):
        yield f"a load of {load:.1f} on {on_cores} before the run: other programs were at work"
    swapped = grown("swapped_in_bytes"), grown("swapped_out_bytes")
    if max(swapped) > SWAP_BYTES:
        yield (
            f"{swapped[0] / 2**20:.0f} MiB were swapped in and {swapped[1] / 2**20:.0f} MiB out "
            "during the run: wall times include disk access"
        )
    seconds, throttled = grown("clock_seconds"), grown("quota_throttled_seconds")
    if throttled > max(LOST_SECONDS, LOST_SHARE * seconds):
        yield (
            f"the CPU quota held threads back for {throttled:.1f} s of a run of {seconds:.1f} s: "
            "wall times include this delay"
        )
    hot = grown("thermal_throttlings")
    if hot > 0:
        yield f"cores slowed down {hot:.0f} times because of heat during the run"
    stolen, every = grown("stolen_seconds"), facts.get("cores_logical", 1.0)
    if stolen > max(LOST_SECONDS, LOST_SHARE * seconds * every):
        yield (
            f"the hypervisor kept {stolen:.1f} CPU seconds from this machine's "
            f"{counted(round(every), 'core')} during the run of {seconds:.1f} s"
        )
