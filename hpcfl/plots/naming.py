"""Names of runs in figures: what they are, and what tells them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hpcfl.options.definition import names
from hpcfl.options.shared import LinkOptions
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import Run

# What is trained: in the title if it is the same for all runs.
TASK = ("dataset", "partition", "model")
LINK = tuple(names(LinkOptions))


def differing(runs: Sequence[Run], options: Sequence[str]) -> list[str]:
    """Return those of the options in which the runs differ.

    An option that only one protocol has says no more than the protocols' names. One that the file
    of an older version does not record is not a difference either.
    """
    return [name for name in options if _tells_apart(runs, name)]


def _tells_apart(runs: Sequence[Run], name: str) -> bool:
    values: dict[tuple[str, bool], set[str]] = {}
    for run in runs:
        if name in run.config:
            # An option that is off has a value: others may have it on.
            off = run.config[name] is False
            value = "off" if off else option(run, name) or "none"
            values.setdefault((named(run), bool(run.training)), set()).add(value)
    known = set().union(*values.values()) - {"none"}
    return len(known) > 1 or any(len(of_one) > 1 for of_one in values.values())


def labels(
    runs: Sequence[Run],
    options: Sequence[str],
    remarks: Sequence[str] | None = None,
    called: Mapping[str, str] | None = None,
) -> list[str]:
    """Return a name for each run, no two the same.

    It holds protocol, or what that is `called` instead, devices, those of the options in which the
    runs differ, and the run's remark; the file's name where that is not enough.
    """
    told = unusual(runs, differing(runs, options))
    found = [
        ", ".join(
            [
                *(shown(run, called or {}), f"N = {run.devices}", *settings),
                *([more] if more else []),
            ]
        )
        for run, settings, more in zip(runs, told, remarks or [""] * len(runs), strict=True)
    ]
    for more in ([run.path.name for run in runs], [str(run.path) for run in runs]):
        count = Counter(found)
        found = [
            f"{name}, {file}" if count[name] > 1 else name
            for name, file in zip(found, more, strict=True)
        ]
    return found


def unusual(runs: Sequence[Run], names: Sequence[str]) -> list[list[str]]:
    """Return for each run its options in words, without values that most of the runs have."""
    common = {name: _most_common(runs, name) for name in names}
    return [
        settings(run, [name for name in names if option(run, name) != common[name]]) for run in runs
    ]


def usual(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """Return in words the numbers that `unusual` leaves out, as most runs have them."""
    common = {name: _most_common(runs, name) for name in differing(runs, names)}
    numbers = [name for name, value in common.items() if value is not None and value[0].isdigit()]
    one = next((run for run in runs if all(option(run, n) == common[n] for n in numbers)), runs[0])
    parts = settings(one, numbers)
    return [f"unless said otherwise: {', '.join(parts)}"] if parts else []


def _most_common(runs: Sequence[Run], name: str) -> str | None:
    """Return the value that more than half of the runs have, at least three; None if none."""
    ((value, count),) = Counter(option(run, name) for run in runs).most_common(1)
    return value if len(runs) > 3 and count > len(runs) / 2 else None


def in_order(runs: Sequence[Run]) -> list[Run]:
    """Return the runs by protocol, devices and parameters."""

    def place(run: Run) -> tuple[str, int, int]:
        dim = run.config.get("dim")
        return named(run), run.devices, dim if isinstance(dim, int) else 0

    return sorted(runs, key=place)


def shown(run: Run, called: Mapping[str, str]) -> str:
    """Return the protocol or algorithm of a run as it is printed."""
    return called.get(named(run), named(run))


def named(run: Run) -> str:
    """Return the federated algorithm of a run, or its protocol if that is plain averaging."""
    algorithm = option(run, "algorithm") or "fedavg"
    return run.protocol if algorithm == "fedavg" else algorithm


def settings(run: Run, names: Sequence[str]) -> list[str]:
    """Return the values of options in words, without those that have none."""
    parts = []
    for name in names:
        value = option(run, name)
        if value is None:
            continue
        if name == "dim":
            parts.append(f"d = {int(value):,}")
            continue
        text = name.replace("_", " ")
        parts.append(value if name in TASK else text if value == "True" else f"{text} {value}")
    return parts


def rates(link: LinkModel) -> str:
    """Return a link in few words."""
    rate = f"{link.uplink_mbps:g}/{link.downlink_mbps:g}"
    if link.helper_mbps != LinkModel.helper_mbps:
        rate += f"/{link.helper_mbps:g}"
    return f"{rate}\N{NO-BREAK SPACE}Mbit/s, {link.latency_ms:g}\N{NO-BREAK SPACE}ms"


def title(runs: Sequence[Run]) -> str:
    """Return what all runs train; "" if nothing."""
    values = [{option(run, name) for run in runs} for name in TASK]
    common = [next(iter(value)) for value in values if len(value) == 1]
    return ", ".join(value for value in common if value is not None)


def option(run: Run, name: str) -> str | None:
    """Return an option's value in words, None where it has none or is off."""
    value = run.config.get(name)
    if value is None or value is False:
        return None
    if name == "degree" and value == run.devices - 1:
        return None  # all are neighbours, as is the rule
    return f"{value:g}" if isinstance(value, float) else str(value)
