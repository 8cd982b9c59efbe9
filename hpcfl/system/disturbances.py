"""What else the machine did while something was measured: counters before and after, and warnings.

The counters of every host are recorded, in the order of `hosts`. One that the system does not keep
is NaN; nothing here fails, because a measurement is worth more than the description of its
disturbances.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfl.report.formats import counted
from hpcfl.system import cgroups
from hpcfl.system.kernel import load_1min, read

# What is counted, and what the number says.
COUNTERS = {
    "clock_seconds": "clock that the other counters are read by",
    "load_1min": "mean number of runnable processes over the last minute",
    "swapped_in_bytes": "memory read back from swap space",
    "swapped_out_bytes": "memory moved to swap space",
    "quota_throttled_seconds": "time for which the container's CPU quota held threads back",
    "thermal_throttlings": "how often cores slowed down because of heat",
    "stolen_seconds": "CPU time that the hypervisor gave to other machines, all cores together",
}
# Under these names they are recorded before and after a run.
BEFORE = tuple(f"before_{name}" for name in COUNTERS)
AFTER = tuple(f"after_{name}" for name in COUNTERS)

# Less than this is not worth a warning: other programs swap a page, hypervisors take a moment.
SWAP_BYTES = 1 << 20
LOST_SHARE = 0.01
LOST_SECONDS = 0.1

# A sentence names at most so many hosts.
_HOSTS_NAMED = 4

_PROC = Path("/proc")
_CPUS = Path("/sys/devices/system/cpu")


def counters() -> dict[str, float]:
    """Return the machine's counters by the names of `COUNTERS`, NaN for what is not known."""
    swapped_in, swapped_out = _swapped()
    load = load_1min()
    values = (
        time.monotonic(),
        math.nan if load is None else load,
        swapped_in,
        swapped_out,
        _quota_throttled(),
        _thermal_throttlings(),
        _stolen(),
    )
    return dict(zip(COUNTERS, values, strict=True))


def before(hosts: Sequence[Mapping[str, float] | None]) -> dict[str, NDArray[np.float64]]:
    """Return counters before a run by their names in a file; `hosts` has None for unknown ones."""
    return _arrays(BEFORE, hosts)


def after(hosts: Sequence[Mapping[str, float] | None]) -> dict[str, NDArray[np.float64]]:
    """Return the same of counters after a run."""
    return _arrays(AFTER, hosts)


def _arrays(
    names: Sequence[str], hosts: Sequence[Mapping[str, float] | None]
) -> dict[str, NDArray[np.float64]]:
    return {
        name: np.array([math.nan if values is None else values[counter] for values in hosts])
        for name, counter in zip(names, COUNTERS, strict=True)
    }


class Disturbance(NamedTuple):
    """Something that disturbed a run."""

    kind: str  # oversubscribed, load, swap, quota, heat or stolen
    sentence: str


def warnings(environment: Mapping[str, Any]) -> list[str]:
    """Return what disturbed a run, a sentence each; see `found`."""
    return [disturbance.sentence for disturbance in found(environment)]


def found(environment: Mapping[str, Any]) -> list[Disturbance]:
    """Return what disturbed a run, as far as its recorded environment tells.

    Where several hosts are known, a sentence says which of them it is about.
    """
    names, hosts = _by_host(environment)
    places: dict[Disturbance, list[str]] = {}
    for name, facts in zip(names, hosts, strict=True):
        for one in _of_host(facts):
            places.setdefault(one, []).append(name)
    # All hosts of a lab are one machine.
    if len(hosts) == 1 or environment.get("transport") == "netlab":
        return list(places)
    return [
        Disturbance(one.kind, f"{one.sentence} ({_words(where)})") for one, where in places.items()
    ]


def _by_host(environment: Mapping[str, Any]) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the hosts' names, and what is known of each: a fact's own value where it has one."""
    ranks = environment.get("host_ranks") or [None]
    named = environment.get("hosts") or []
    if len(named) != len(ranks):
        named = [f"host {number}" for number in range(1, len(ranks) + 1)]
    differing = environment.get("host_facts") or {}
    hosts: list[dict[str, Any]] = [{"ranks": number} for number in ranks]
    for name in ("cores_usable", "cores_logical"):
        own = differing.get(name) or [environment.get(name)] * len(ranks)
        for facts, value in zip(hosts, own, strict=True):
            facts[name] = value
    for name in (*BEFORE, *AFTER):
        values = environment.get(name)
        values = values if isinstance(values, list | tuple) else [values]
        for facts, value in zip(hosts, values, strict=False):
            facts[name] = value
    return [*named], hosts


def _of_host(facts: Mapping[str, Any]) -> Iterator[Disturbance]:
    oversubscribed, busy = _oversubscribed(facts), _busy(facts)
    if oversubscribed:
        yield Disturbance("oversubscribed", oversubscribed)
    if busy:
        yield Disturbance("load", busy)
    swapped = _change(facts, "swapped_in_bytes"), _change(facts, "swapped_out_bytes")
    if max(swapped) > SWAP_BYTES:
        yield Disturbance(
            "swap",
            f"{swapped[0] / 2**20:.0f} MiB were swapped in and {swapped[1] / 2**20:.0f} MiB out "
            "during the run: seconds show the disk too",
        )
    seconds = _change(facts, "clock_seconds")
    throttled = _change(facts, "quota_throttled_seconds")
    if throttled > max(LOST_SECONDS, LOST_SHARE * seconds):
        yield Disturbance(
            "quota",
            f"the CPU quota held threads back for {throttled:.1f} s of a run of {seconds:.1f} s: "
            "measured seconds show the quota",
        )
    hot = _change(facts, "thermal_throttlings")
    if hot > 0:
        yield Disturbance(
            "heat", f"cores slowed down {hot:.0f} times because of heat during the run"
        )
    stolen = _change(facts, "stolen_seconds")
    cores = _number(facts.get("cores_logical")) or 1
    if stolen > max(LOST_SECONDS, LOST_SHARE * seconds * cores):
        yield Disturbance(
            "stolen",
            f"the hypervisor kept {stolen:.1f} CPU seconds from this machine's "
            f"{counted(round(cores), 'core')} during the run of {seconds:.1f} s",
        )


def _oversubscribed(facts: Mapping[str, Any]) -> str | None:
    cores, ranks = _number(facts.get("cores_usable")), _number(facts.get("ranks"))
    if not cores or not ranks or ranks <= cores:
        return None
    return (
        f"{ranks:.0f} ranks on {counted(round(cores), 'core')}: measured seconds show the "
        "scheduler, CPU seconds do not"
    )


def _busy(facts: Mapping[str, Any]) -> str | None:
    """Return a warning if there was more to do before the run than this run's start explains."""
    load, cores = _number(facts.get("before_load_1min")), _number(facts.get("cores_usable"))
    if load is None or not cores or load <= max(cores, _number(facts.get("ranks")) or 0):
        return None
    where = counted(round(cores), "core")
    return f"a load of {load:.1f} on {where} before the run: other programs were at work"


def _change(facts: Mapping[str, Any], name: str) -> float:
    """Return by how much a counter grew, 0 if that is not known."""
    start = _number(facts.get(f"before_{name}"))
    end = _number(facts.get(f"after_{name}"))
    return 0.0 if start is None or end is None else max(0.0, end - start)


def _words(names: Sequence[str]) -> str:
    """Return the names of hosts in words, the first of them where there are many."""
    if len(names) <= _HOSTS_NAMED:
        return f"on {', '.join(names)}"
    others = counted(len(names) - _HOSTS_NAMED, "other host")
    return f"on {', '.join(names[:_HOSTS_NAMED])} and {others}"


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _swapped() -> tuple[float, float]:
    text = read(_PROC / "vmstat")
    try:
        page = os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return math.nan, math.nan
    return page * _named(text, "pswpin"), page * _named(text, "pswpout")


def _quota_throttled() -> float:
    """Return the seconds from the control group of this process, of either version."""
    for folder in cgroups.folders("cpu"):
        text = read(folder / "cpu.stat")
        microseconds, nanoseconds = _named(text, "throttled_usec"), _named(text, "throttled_time")
        for seconds in (1e-6 * microseconds, 1e-9 * nanoseconds):
            if not math.isnan(seconds):
                return seconds
    return math.nan


def _thermal_throttlings() -> float:
    counts = map(read, _CPUS.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"))
    known = [int(count) for count in counts if count.isdigit()]
    return float(sum(known)) if known else math.nan


def _stolen() -> float:
    # user nice system idle iowait irq softirq steal
    found = re.search(r"^cpu +((?:\d+ ?)+)$", read(_PROC / "stat"), re.MULTILINE)
    ticks = found[1].split() if found else []
    try:
        return int(ticks[7]) / os.sysconf("SC_CLK_TCK")
    except (AttributeError, IndexError, OSError, ValueError):
        return math.nan


def _named(text: str, name: str) -> float:
    found = re.search(rf"^{name} (\d+)$", text, re.MULTILINE)
    return float(found[1]) if found else math.nan
