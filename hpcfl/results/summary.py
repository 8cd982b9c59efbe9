"""The cost and the results of a run, in the few figures that are reported.

Only measured rounds count: never warm-up, never a round whose aggregate was wrong. The server,
helpers and the members of a committee are populations of their own: their figures are never
averaged with those of the devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.crypto.groups import GROUPS
from hpcfl.errors import no_such
from hpcfl.report import brief, formats
from hpcfl.report.jsontext import finite
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import Run, with_total
from hpcfl.results.record import SPENT, Flags, Floats
from hpcfl.results.schema import INCOMPLETE, PLACEMENT, Metric
from hpcfl.results.statistics import (
    DIFFERENT,
    launches_p_value,
    median,
    median_interval,
    percentiles,
)
from hpcfl.system import disturbances
from hpcfl.system.machine import count_listed

# The protocol that is the baseline of others if it was run.
BASELINE = "secagg"
# What a run is compared with its baseline in.
RATIOS = {
    "bytes_up_ratio": "bytes_up_mean",
    "device_cpu_ratio": "device_cpu_seconds_median",
    "modelled_round_ratio": "modelled_round_seconds_median",
}
# A first round of so many times the median is warned of where it was measured.
_SLOW_START = 2.0
# Options of training that make another task of it.
_TASK = ("dataset", "partition", "model")


@dataclass(frozen=True, repr=False)
class Summary:
    """What a run, or several launches of one configuration, cost: ``summary["bytes_up_mean"]``.

    The figures have the names of :data:`hpcfl.results.columns.COLUMNS`; None or NaN stands for what
    there is not. `phases` has the figures of every phase and, in the last row, of whole rounds.
    """

    figures: Mapping[str, Any]
    phases: Sequence[Mapping[str, Any]]
    protocol: str
    link: LinkModel  # that the modelled seconds stand for
    files: tuple[str, ...]
    warnings: tuple[str, ...]  # what speaks against the measured seconds, a sentence each
    config: Mapping[str, Any]  # options; a list of their values where launches differ

    def __getitem__(self, name: str) -> Any:
        return self.figures[name]

    def value(self, name: str) -> Any:
        """Return a figure, or an option; None where there is neither."""
        return self.figures.get(name, self.config.get(name))

    @property
    def like(self) -> tuple[Any, ...]:
        """What runs must have in common for their costs to be compared; in the order of reports."""
        training = self["algorithm"] is not None
        task = [str(self.config.get(name)) for name in _TASK] if training else []
        link = tuple(vars(self.link).values())
        theta = -1.0 if self["theta"] is None else self["theta"]
        return training, task, link, self["dim"], self["devices"], theta

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it; what is not a finite number is None."""
        more = {"phases": self.phases, "files": self.files, "warnings": self.warnings}
        return dict(finite({**self.figures, **more, "config": self.config}))

    def __repr__(self) -> str:
        size = (f"N={self['devices']}", f"d={self['dim']}")
        rounds = formats.counted(self["rounds_measured"], "measured round")
        return brief.line("Summary", self["protocol"], *size, rounds)


def summarise(
    run: Run, link: LinkModel, target: float | None = None, launches: Sequence[Run] = ()
) -> Summary:
    """Summarise the measured rounds of a run; without any, figures are None or NaN.

    `target` is an accuracy; by default it is that of ``--target-accuracy``, if the run had one.
    `launches` are those whose rounds the run has, one after the other. HpcflError if the run does
    not record its number of parameters.
    """
    launches = launches or (run,)
    kept, config = run.measured, run.config
    survivors = run.survived[kept].sum(axis=1)
    first = [float(one.round_seconds[0]) for one in launches if one.rounds]
    reasons = dict.fromkeys(str(one.environment.get("stop_reason") or "") for one in launches)
    plain = config.get("security") in (None, "passive")
    phases = list(_phases(run, link))
    interval = median_interval(run.round_seconds[kept])
    figures = {
        "path": str(run.path),
        "file": run.path.name,
        "status": run.status,
        "protocol": run.protocol if plain else f"{run.protocol}, {config['security']}",
        "algorithm": str(config.get("algorithm")) if run.training else None,
        "devices": run.devices,
        "dim": run.dim,
        "alpha": _number(config.get("alpha")),
        "theta": _number(config.get("dropout")),
        "bits": GROUPS[config["group"]].bits if config.get("group") in GROUPS else None,
        "link": str(link),
        "transport": run.environment.get("transport"),
        "mpi_library": run.environment.get("mpi_library"),
        "ranks": run.environment.get("ranks"),
        "launches": len(launches),
        "rounds_measured": len(survivors),
        "rounds_warmup": int(run.warmup.sum()),
        "rounds_total": run.rounds,
        "rounds_validated": int(run.validated.sum()),
        "validated": bool(run.validated.all()),
        "survivors_mean": float(survivors.mean()) if survivors.size else None,
        **{name: value for name, value in phases[-1].items() if name != "phase"},
        **percentiles("all_cpu_seconds", everybodys_cpu_seconds(run)),
        **percentiles("round_seconds", run.round_seconds[kept]),
        "round_seconds_low": interval.low,
        "round_seconds_high": interval.high,
        **percentiles("modelled_round_seconds", run.modelled_seconds(link).sum(axis=1)),
        "first_round_seconds": max(first) if first else None,
        "stop_reason": ", ".join(filter(None, reasons)) or None,
        "launches_p_value": launches_p_value([one.round_seconds[one.measured] for one in launches]),
        **_reached(launches, link, target),
    }
    for party, places in run.ranks_of.items():
        figures[f"{party}_peak_bytes"] = _largest(run.peak_bytes[kept][:, places])
    return Summary(
        figures,
        phases,
        run.protocol,
        link,
        tuple(str(one.path) for one in launches),
        (*warnings(launches), *_of_seconds(figures)),
        {name: _common([one.config.get(name) for one in launches]) for name in config},
    )


def _phases(run: Run, link: LinkModel) -> Iterator[dict[str, Any]]:
    """Yield what every phase cost and, behind them, all of them together.

    Bytes are those of one device in one round. A phase's means are over the devices and rounds in
    which the device sent (up) or received (down) anything, the total's over those in which the
    device's vector reached the aggregate. CPU seconds are of the slowest device of each round,
    `wall_seconds` of the slowest of the devices and the server.
    """
    kept = run.measured
    up, down, messages_up, messages_down, wall, cpu = (
        with_total(getattr(run, name)[kept]) for name in SPENT
    )
    modelled = with_total(run.modelled_seconds(link))
    # A device that dropped out sent nothing: as a zero it would make the phase look cheap.
    sent, received = messages_up > 0, messages_down > 0
    sent[:, -1] = received[:, -1] = run.survived[kept]
    # Bytes of each party, who of it there is, and who of these sent and received any.
    parties = {"device": (up, down, run.ordinary[kept], sent, received)}
    if run.in_committee.any():
        parties["member"] = up, down, run.in_committee[kept], sent, received
    if run.helpers:
        moved = [with_total(each)[kept] for each in (run.helper_bytes_up, run.helper_bytes_down)]
        helped = run.helped[kept]
        always = np.ones_like(moved[0], np.bool_)
        parties["helper"] = moved[0], moved[1], helped, always, always
    slowest = {party: run.slowest_cpu_seconds(party) for party in parties}
    for p, name in enumerate([*run.phases, "total"]):
        row: dict[str, Any] = {"phase": name}
        for party, (ups, downs, among, sends, receives) in parties.items():
            prefix = "" if party == "device" else f"{party}_"
            row[f"{prefix}bytes_up_mean"] = _mean(ups[:, p], among, sends[:, p])
            row[f"{prefix}bytes_down_mean"] = _mean(downs[:, p], among, receives[:, p])
            row |= percentiles(f"{party}_cpu_seconds", slowest[party][:, p])
        yield {
            **row,
            **percentiles("wall_seconds", wall[:, p].max(axis=1)),
            "server_cpu_seconds_median": median(cpu[:, p, -1]),
            "modelled_seconds": median(modelled[:, p]),
        }


def _mean(values: NDArray[np.uint64], among: Flags, there: Flags) -> float | None:
    """Return the mean over those that were there: 0 if none was, None if there could be none."""
    if not among.any():
        return None
    found = values[among & there]
    return float(found.mean()) if found.size else 0.0


def everybodys_cpu_seconds(run: Run) -> Floats:
    """Return the CPU seconds of all parties together in each measured round."""
    spent = run.cpu_seconds.sum(axis=(1, 2)) + run.helper_cpu_seconds.sum(axis=(1, 2))
    return np.asarray(spent[run.measured])


def _largest(values: Floats) -> float | None:
    """Return the largest known number."""
    largest = np.nan_to_num(values, nan=-1.0).max(initial=-1.0)
    return float(largest) if largest >= 0 else None


def _common(values: list[Any]) -> Any:
    """Return the value that launches have, or a list of their values where they differ."""
    return values[0] if all(value == values[0] for value in values) else values


def warnings(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return what disturbed runs, or what their data lacked, each sentence once."""
    found = [formats.words(run.config[INCOMPLETE]) for run in runs if INCOMPLETE in run.config]
    found += [
        sentence
        for run in runs
        for environment in run.launches.values()
        for sentence in (*disturbances.warnings(environment), *_bound_to_few(run, environment))
    ]
    return tuple(dict.fromkeys(found))


def _bound_to_few(run: Run, environment: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning if ranks may use fewer hardware threads than they have threads."""
    threads, ranks = run.config.get("threads"), environment.get(PLACEMENT)
    cores = [place["cores"] for place in ranks or [] if place["cores"]]
    fewest = min(map(count_listed, cores), default=0)
    if 0 < fewest < (threads or 1):
        yield (
            f"--threads {threads} where ranks are bound to as few as {fewest}: bind each to as "
            f"many, as mpirun --map-by slot:PE={threads} or srun --cpus-per-task={threads} does"
        )


def _of_seconds(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the measured seconds themselves show."""
    first, median = figures["first_round_seconds"], figures["round_seconds_median"]
    if first is not None and not figures["rounds_warmup"] and first > _SLOW_START * median:
        advice = "" if figures["algorithm"] else "; see --warmup"  # which training has not
        yield (
            f"the first round took {first / median:.1f} times the median and was measured: "
            f"connections and buffers are set up in it{advice}"
        )
    p_value = figures["launches_p_value"]
    if p_value is not None and p_value <= DIFFERENT:
        yield (
            f"the {figures['launches']} launches differ more than their rounds do (rank test, "
            f"p = {p_value:.2g}): the interval is of these launches, not of a further one"
        )


def _reached(runs: Sequence[Run], link: LinkModel, target: float | None) -> dict[str, Any]:
    """Return what training reached, medians over all launches of a configuration.

    Nothing for a benchmark. Figures to the target have no value if a launch did not reach it.
    """
    if not all(Metric.ACCURACY in run.training and run.rounds for run in runs):
        return dict.fromkeys(("accuracy", "epsilon_proven", "rounds_to_target", "target"))
    if target is None:
        target = _number(runs[0].config.get("target_accuracy"))
    reached = [_to_target(run, link, target) for run in runs]
    for run, figures in zip(runs, reached, strict=True):
        for metric in ("accuracy", "epsilon_paper", "epsilon_proven"):
            figures[metric] = float(run.training.get(metric, [np.nan])[-1])
        figures["accuracy_best"] = float(run.training[Metric.ACCURACY].max())
    found: dict[str, Any] = {
        "target": target,
        "epsilon_delta": _number(runs[0].config.get("epsilon_delta")),
        "launches_at_target": sum(one["rounds_to_target"] > 0 for one in reached),
    }
    for name in reached[0]:
        values = [figures[name] for figures in reached]
        found[name] = None if np.isnan(values).any() else median(values)
        if name == "accuracy" and len(values) > 1:
            found |= {"accuracy_least": min(values), "accuracy_most": max(values)}
    return found


def _to_target(run: Run, link: LinkModel, target: float | None) -> dict[str, float]:
    """Return rounds, bytes of all devices and modelled seconds until the target was reached."""
    names = ("rounds_to_target", "bytes_to_target", "seconds_to_target")
    at_target = run.training[Metric.ACCURACY] >= (np.inf if target is None else target)
    found = dict.fromkeys(names, math.nan)
    if at_target.any():
        first = int(at_target.argmax())
        found["rounds_to_target"] = first + 1.0
        sent, seconds = run.training.get(Metric.BYTES_UP_TOTAL), training_seconds(run, link)
        if sent is not None:
            found["bytes_to_target"] = float(sent[first])
        if seconds is not None:
            found["seconds_to_target"] = float(seconds[: first + 1].sum())
    return found


def training_seconds(run: Run, link: LinkModel) -> Floats | None:
    """Return the modelled seconds of every round of training, shape (R,), over another link too.

    None if the file does not tell. What devices trained is what the recorded seconds have beside
    the protocol's.
    """
    recorded = run.training.get(Metric.MODELLED_SECONDS)
    if recorded is None or link == run.link():
        return recorded
    before, now = (run.modelled_seconds(one).sum(axis=1) for one in (run.link(), link))
    changed = np.full(run.rounds, np.nan)
    changed[run.measured] = recorded[run.measured] - before + now
    return changed


def beside(summaries: Sequence[Summary], name: str | None = None) -> list[Summary]:
    """Return summaries with the figures that they have beside each other.

    These are ``row``, a number from 1, and where there is a ``baseline`` (a path), among those that
    are `like` it, how many times as much that costs, by `RATIOS`: above 1 a run is cheaper. `name`
    is that of the baseline's file, with or without the ending, or of its protocol. By default it is
    the first run of `BASELINE`, or else the first run, of those that are complete if any is. It is
    a UsageError if no run goes by that name.
    """
    groups: dict[str, list[Summary]] = {}
    for summary in summaries:
        groups.setdefault(repr(summary.like), []).append(summary)
    chosen = {key: _baseline(group, name) for key, group in groups.items()}
    if name is not None and not any(chosen.values()):
        names = dict.fromkeys([*(s.protocol for s in summaries), *(s["file"] for s in summaries)])
        raise no_such("--baseline", name, names)
    found = []
    for row, summary in enumerate(summaries, 1):
        key = repr(summary.like)
        base = chosen[key] if len(groups[key]) > 1 else None
        figures = {"row": row, "baseline": None if base is None else base["path"]}
        figures |= {of: _ratio(base, summary, figure) for of, figure in RATIOS.items()}
        found.append(replace(summary, figures={**summary.figures, **figures}))
    return found


def _baseline(group: Sequence[Summary], name: str | None) -> Summary | None:
    if name is None:
        # What failed says little of what a round costs.
        group = [s for s in group if s["status"] == "complete"] or [*group]
        return next((s for s in group if s.protocol == BASELINE), group[0])
    files = (
        s for s in group for path in map(Path, s.files) if name in (str(path), path.name, path.stem)
    )
    return next(files, next((s for s in group if s.protocol == name), None))


def _ratio(baseline: Summary | None, summary: Summary, figure: str) -> float | None:
    """Return the baseline's cost over the run's; None if it is unknown."""
    above, below = None if baseline is None else baseline[figure], summary[figure]
    found = above / below if above is not None and below else math.nan
    return found if math.isfinite(found) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
