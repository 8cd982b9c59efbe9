"""Names of runs in figures, with the options that distinguish the runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hpcfl.results import pooling
from hpcfl.results.columns import TOLD_APART
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import Run

# The options that define the training task.
TASK = ("dataset", "partition", "model")
_SIZES = {"devices": "N", "dim": "d"}


def named(run: Run) -> str:
    """Return the federated algorithm of a run, or its protocol if that is plain averaging."""
    algorithm = value(run, "algorithm") or "fedavg"
    return run.protocol if algorithm == "fedavg" else algorithm


def value(run: Run, name: str) -> str | None:
    """Return an option's value as text, None if it has none or is off."""
    of_file = {"devices": run.devices, "transport": run.environment.get("transport")}
    found = of_file.get(name, run.config.get(name))
    if found is None or found is False:
        return None
    if name == "degree" and found == run.devices - 1:
        return None  # all devices are neighbours, which is the default
    if name in _SIZES:
        return f"{found:,}"
    return f"{found:g}" if isinstance(found, float) else str(found)


def several(runs: Sequence[Run], name: str) -> bool:
    """Return whether an option has different values in some runs."""
    return len({value(run, name) for run in runs}) > 1


def pooled(runs: Sequence[Run]) -> list[Run]:
    """Return the runs sorted by protocol and size; runs of one configuration become one.

    Training runs always stay separate.
    """
    found = [pool.run for pool in pooling.group(runs)]
    return sorted(found, key=lambda run: (named(run), run.devices, run.config.get("dim") or 0))


def labels(runs: Sequence[Run], without: Sequence[str] = (), more: Sequence[str] = ()) -> list[str]:
    """Return a name for each run: its protocol, and the options that distinguish it.

    These are the numbers of devices and parameters and the task if they differ between any runs,
    and the options that differ between runs of the same protocol. Options in `without` are left
    out; those in `more` are also considered.
    """
    sizes = [name for name in (*_SIZES, *TASK) if name not in without and several(runs, name)]
    options = [name for name in (*TOLD_APART, *more) if name not in without and name not in TASK]
    alike: dict[str, list[Run]] = {}
    for run in runs:
        alike.setdefault(named(run), []).append(run)
    differing = {
        name: [option for option in options if several(of_one, option)]
        for name, of_one in alike.items()
    }
    return [", ".join([named(run), *_words(run, [*sizes, *differing[named(run)]])]) for run in runs]


def unique(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """Return the names; the file's name is appended where several runs have the same name."""
    count = Counter(names)
    return [
        f"{name}, {run.path.stem}" if count[name] > 1 else name
        for run, name in zip(runs, names, strict=True)
    ]


def common(runs: Sequence[Run], names: Sequence[str] = (*TASK, *_SIZES)) -> str:
    """Return the task and the sizes that all runs share, as text."""
    return ", ".join(_words(runs[0], [name for name in names if not several(runs, name)]))


def _words(run: Run, names: Sequence[str]) -> list[str]:
    parts = []
    for name in names:
        text = value(run, name)
        if text is None:
            continue
        if name in _SIZES:
            text = f"{_SIZES[name]}\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{text}"
        elif name not in TASK:
            words = name.replace("_", " ")
            text = words if text == "True" else f"{words} {text}"
        parts.append(text)
    return parts


def rates(link: LinkModel) -> str:
    """Return the rates and the latency of a link, as text."""
    rate = f"{link.uplink_mbps:g}/{link.downlink_mbps:g}"
    if link.helper_mbps != LinkModel.helper_mbps:
        rate += f"/{link.helper_mbps:g}"
    return f"{rate}\N{NO-BREAK SPACE}Mbit/s, {link.latency_ms:g}\N{NO-BREAK SPACE}ms"
