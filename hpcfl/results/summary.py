"""Summaries of the cost and the results of runs, in the figures that are reported.

Only measured rounds count, never warm-up and never a round whose aggregate was wrong. Figures of
the server, of helpers and of committee members are never averaged with those of the devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.crypto.groups import GROUPS
from hpcfl.errors import no_such
from hpcfl.report import brief, formats
from hpcfl.report.jsontext import finite
from hpcfl.results import rates
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import Run, with_total
from hpcfl.results.record import LATE_REASONS, SPENT, Flags, Floats
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
from hpcfl.values import dataclass, replace

# The protocol that is the default baseline of all others.
BASELINE = "secagg"
# Ratios of a baseline to a run, each with the figure that it compares.
RATIOS = {
    "bytes_up_ratio": "bytes_up_mean",
    "device_cpu_ratio": "device_cpu_seconds_median",
    "modelled_round_ratio": "modelled_round_seconds_median",
}
# A measured first round that took more than this many times the median causes a warning.
_SLOW_START = 2.0
# Options that define the task of training.
_TASK = ("dataset", "partition", "model")


@dataclass(frozen=True, repr=False)
class Summary:
    """The cost of a run, or of several launches of one configuration.

    ``summary["bytes_up_mean"]`` is a figure, under its name in
    :data:`hpcfl.results.columns.COLUMNS`; None or NaN stands for a missing value. `phases` has the
    figures of every phase and, in the last row, of whole rounds.
    """

    figures: Mapping[str, Any]
    phases: Sequence[Mapping[str, Any]]
    enrolment: Sequence[Mapping[str, Any]]  # the same of the enrolment, which is in no round
    protocol: str
    link: LinkModel  # of the modelled seconds
    files: tuple[str, ...]
    warnings: tuple[str, ...]  # sentences about disturbances of the run and about missing data
    config: Mapping[str, Any]  # options; a list of the values if launches differ

    def __getitem__(self, name: str) -> Any:
        return self.figures[name]

    def value(self, name: str) -> Any:
        """Return the figure or else the option of this name; None if there is neither."""
        return self.figures.get(name, self.config.get(name))

    @property
    def like(self) -> tuple[Any, ...]:
        """A key that runs must share for their costs to be compared; reports sort by it."""
        training = self["algorithm"] is not None
        task = [str(self.config.get(name)) for name in _TASK] if training else []
        link = tuple(vars(self.link).values())
        theta = -1.0 if self["theta"] is None else self["theta"]
        link = (*link, self.config.get("population"), self.config.get("population_table"))
        return training, task, link, self["dim"], self["devices"], theta

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as JSON-ready values, with None for numbers that are not finite."""
        once = {"enrolment": self.enrolment} if self.enrolment else {}
        more = {"phases": self.phases, **once, "files": self.files, "warnings": self.warnings}
        return dict(finite({**self.figures, **more, "config": self.config}))

    def __repr__(self) -> str:
        size = (f"N={self['devices']}", f"d={self['dim']}")
        rounds = formats.counted(self["rounds_measured"], "measured round")
        return brief.line("Summary", self["protocol"], *size, rounds)


def summarise(
    run: Run, link: LinkModel, target: float | None = None, launches: Sequence[Run] = ()
) -> Summary:
    """Summarise the measured rounds of a run; without any, figures are None or NaN.

    `target` is an accuracy, by default the run's ``--target-accuracy``, if it has one. `launches`
    are the runs whose rounds `run` joins, by default `run` alone. Raises HpcflError if the run
    does not record its number of parameters.
    """
    launches = launches or (run,)
    kept, config = run.measured, run.config
    survivors = run.survived[kept].sum(axis=1)
    first = [float(one.round_seconds[0]) for one in launches if one.rounds]
    reasons = dict.fromkeys(str(one.environment.get("stop_reason") or "") for one in launches)
    variant = [config["security"]] if config.get("security") not in (None, "passive") else []
    variant += ["transport keys of a run"] if config.get("transport_keys") == "run" else []
    code = {"kernel": "masks_added_by", "lib25519": "keys_agreed_by"}
    plain = (None, "NumPy", "cryptography")
    compiled = [of for of, fact in code.items() if run.environment.get(fact) not in plain]
    phases = list(_phases(run, link))
    interval = median_interval(run.round_seconds[kept])
    figures = {
        "path": str(run.path),
        "file": run.path.name,
        "status": run.status,
        "protocol": ", ".join([run.protocol, *variant]),
        "algorithm": str(config.get("algorithm")) if run.training else None,
        "devices": run.devices,
        "dim": run.dim,
        "alpha": _number(config.get("alpha")),
        "theta": _number(config.get("dropout")),
        "bits": GROUPS[config["group"]].bits if config.get("group") in GROUPS else None,
        "link": str(link) if config.get("population") is None else _population(config),
        **_late(run),
        "compiled": ", ".join(compiled) or None,
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
        **rates.figures(run),
    }
    for party, places in run.ranks_of.items():
        figures[f"{party}_peak_bytes"] = _largest(run.peak_bytes[kept][:, places])
    return Summary(
        figures,
        phases,
        [] if run.enrolment is None else list(_phases(run.enrolment, link)),
        run.protocol,
        link,
        tuple(str(one.path) for one in launches),
        (*warnings(launches), *_of_seconds(figures)),
        {name: _common([one.config.get(name) for one in launches]) for name in config},
    )


def _population(config: Mapping[str, Any]) -> str:
    """Return in words whom the server waits for, in place of a link."""
    deadline = config.get("deadline")
    waits = f", quorum {config.get('quorum') or 1:g}" + (
        f", deadline {deadline:g} s" if deadline else ""
    )
    return f"population {formats.words(config['population'])}{waits}"


def _late(run: Run) -> dict[str, Any]:
    """Return who was late, by the event clock of a population; None without one.

    Counts of devices are means over the measured rounds, and the bytes are those that all late
    devices of a round sent for the exchange for which they were late.
    """
    kept = run.measured
    late, reasons = run.late_phase[kept], run.late_reason[kept]
    names = [f"late_by_{reason}_mean" for reason in LATE_REASONS]
    if not kept.any() or not np.isfinite(run.event_seconds).all():
        return dict.fromkeys(("late_mean", *names, "late_bytes_mean", "never_in_sum"))
    sent = np.take_along_axis(run.bytes_up[kept], np.maximum(late, 0)[:, None], axis=1)[:, 0]
    counts = {name: float((reasons == k).sum(axis=1).mean()) for k, name in enumerate(names)}
    return {
        "late_mean": float((late >= 0).sum(axis=1).mean()),
        **counts,
        "late_bytes_mean": float((sent * (late >= 0)).sum(axis=1).mean()),
        "never_in_sum": float((~run.survived[kept].any(axis=0)).mean()),
    }


def _phases(run: Run, link: LinkModel) -> Iterator[dict[str, Any]]:
    """Yield the cost of each phase, then that of all phases together.

    Bytes are those of one device in one round. The means of a phase are over the devices and rounds
    in which the device sent (up) or received (down) anything; the means of the total are over those
    in which the device's vector reached the aggregate. CPU seconds are those of the slowest device
    of each round, `wall_seconds` the longest time of a device or the server.
    """
    kept = run.measured
    up, down, messages_up, messages_down, wall, cpu = (
        with_total(getattr(run, name)[kept]) for name in SPENT
    )
    modelled = with_total(run.modelled_seconds(link))
    # Means leave out devices that dropped out: their zeros would make the phase look cheap.
    sent, received = messages_up > 0, messages_down > 0
    sent[:, -1] = received[:, -1] = run.survived[kept]
    # For each party: bytes up, bytes down, who belongs to it, who sent and who received anything.
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
    """Return the mean over `among` and `there`: 0 without any, None if `among` is empty."""
    if not among.any():
        return None
    found = values[among & there]
    return float(found.mean()) if found.size else 0.0


def everybodys_cpu_seconds(run: Run) -> Floats:
    """Return the CPU seconds of all parties together in each measured round."""
    spent = run.cpu_seconds.sum(axis=(1, 2)) + run.helper_cpu_seconds.sum(axis=(1, 2))
    return np.asarray(spent[run.measured])


def _largest(values: Floats) -> float | None:
    """Return the largest known number, None if there is none."""
    largest = np.nan_to_num(values, nan=-1.0).max(initial=-1.0)
    return float(largest) if largest >= 0 else None


def _common(values: list[Any]) -> Any:
    """Return the value that all launches share, or the list of their values if they differ."""
    return values[0] if all(value == values[0] for value in values) else values


def warnings(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return sentences about disturbances of runs and about missing data, each once."""
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
    """Yield warnings that follow from the measured seconds themselves."""
    first, median = figures["first_round_seconds"], figures["round_seconds_median"]
    if first is not None and not figures["rounds_warmup"] and first > _SLOW_START * median:
        advice = "" if figures["algorithm"] else "; see --warmup"  # training has no warm-up
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
    """Return figures of what training reached, as medians over launches of one configuration.

    For a benchmark they are None. Figures to the target have no value if a launch missed it.
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
    """Return rounds, bytes of all devices and modelled seconds to the target; NaN if missed."""
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
    """Return the modelled seconds of every training round over `link`, shape (R,).

    Returns None if the file does not record them. For another link than the recorded one, the
    protocol's seconds over the new link replace those in the recorded seconds; training stays.
    """
    recorded = run.training.get(Metric.MODELLED_SECONDS)
    if recorded is None or link == run.link():
        return recorded
    before, now = (run.modelled_seconds(one).sum(axis=1) for one in (run.link(), link))
    changed = np.full(run.rounds, np.nan)
    changed[run.measured] = recorded[run.measured] - before + now
    return changed


def beside(summaries: Sequence[Summary], name: str | None = None) -> list[Summary]:
    """Return summaries with additional figures that compare them with each other.

    These are ``row``, counted from 1, ``baseline``, the path of the baseline among the runs with
    the same `like`, and `RATIOS` of the baseline's cost to the run's: above 1 the run is cheaper.
    `name` is the baseline's file, with or without the suffix, or its protocol. The default baseline
    is the first run of `BASELINE`, or else the first run, among complete runs if there are any.
    Raises UsageError if no run has that name.
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
        # A failed run says little about the cost of a round.
        group = [s for s in group if s["status"] == "complete"] or [*group]
        # Before its variants.
        variants = sorted(group, key=lambda one: len(one["protocol"]))
        return next((s for s in variants if s.protocol == BASELINE), group[0])
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
