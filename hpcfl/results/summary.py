"""What a run cost and what it reached, in the few figures that are reported.

Only measured rounds count: never warm-up, never a round whose aggregate was wrong. The server,
helpers and the members of a committee are populations of their own: their figures are never
averaged with those of the devices.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hpcfl.errors import UsageError, no_such
from hpcfl.report import brief, formats
from hpcfl.report.jsontext import finite
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import Run, with_total
from hpcfl.results.record import Flags, Floats
from hpcfl.results.schema import INCOMPLETE, PLACEMENT, SPENT, Metric
from hpcfl.results.statistics import (
    UNKNOWN,
    Interval,
    Percentiles,
    kruskal_wallis,
    median_interval,
)
from hpcfl.system import disturbances
from hpcfl.system.machine import count_listed

# The protocol that others are compared with, where it was run.
BASELINE = "secagg"
# Options of training that make another task of it.
_TASK = ("dataset", "partition", "model")


@dataclass(frozen=True)
class PhaseSummary:
    """What one phase cost, or all phases of a round together (``total``).

    Bytes and messages are those of one device in one round. A phase's means are over the devices
    and rounds in which the device sent (up) or received (down) anything, the total's over those in
    which the device's vector reached the aggregate; 0 if there are none, None if no round was
    measured. All percentiles are over rounds.
    """

    name: str
    bytes_up_mean: float | None
    bytes_up_max: int | None
    bytes_down_mean: float | None
    bytes_down_max: int | None
    messages_up_mean: float | None
    device_cpu_seconds: Percentiles  # of the slowest device of each round
    wall_seconds: Percentiles  # of the slowest of the devices and the server, in each round
    server_cpu_seconds: Percentiles
    server_wall_seconds: Percentiles
    modelled_seconds: float  # median; NaN if no round was measured
    # Of one member of a committee, and of one helper, in one round; None without any. CPU time of
    # the slowest.
    member_bytes_up_mean: float | None = None
    member_bytes_down_mean: float | None = None
    member_cpu_seconds: Percentiles | None = None
    helper_bytes_up_mean: float | None = None
    helper_bytes_down_mean: float | None = None
    helper_cpu_seconds: Percentiles | None = None


@dataclass(frozen=True)
class OverLaunches:
    """A figure of every launch, such as of several seeds: its median, and how far it varies."""

    median: float | None = None
    least: float | None = None
    most: float | None = None
    interval: Interval = UNKNOWN  # 95 %, of the median, by ranks; from 6 launches on

    @classmethod
    def of(cls, values: ArrayLike) -> OverLaunches:
        """Return it of one value a launch; without a median if one launch has no value."""
        known = np.asarray(values, np.float64)
        if known.size == 0 or np.isnan(known).any():
            return cls()
        return cls(
            float(np.median(known)), float(known.min()), float(known.max()), median_interval(known)
        )


@dataclass(frozen=True)
class Reached:
    """What a training run, or several that differ in nothing but their seeds, reached.

    No figure has a value for a benchmark; those to the target have none if a launch did not reach
    it.
    """

    accuracy: OverLaunches = OverLaunches()  # after the last round
    accuracy_best: OverLaunches = OverLaunches()  # after any round
    epsilon_paper: OverLaunches = OverLaunches()
    epsilon_proven: OverLaunches = OverLaunches()
    epsilon_delta: float | None = None
    target: float | None = None  # accuracy
    launches_at_target: int | None = None
    rounds_to_target: OverLaunches = OverLaunches()
    bytes_to_target: OverLaunches = OverLaunches()  # sent by all devices
    seconds_to_target: OverLaunches = OverLaunches()  # modelled


@dataclass(frozen=True, repr=False)
class Summary:
    """What a run, or several launches of one configuration, cost."""

    path: str
    status: str
    protocol: str
    security: str | None
    devices: int
    dim: int
    alpha: float | None  # density
    theta: float | None  # share of devices that drop out
    transport: str | None
    mpi_library: str | None
    link: LinkModel  # that the modelled seconds stand for
    rounds_measured: int
    rounds_warmup: int
    rounds_total: int  # warm-up included, as in the next
    rounds_validated: int
    survivors_min: int | None  # devices in the aggregate of a measured round
    survivors_mean: float | None
    survivors_max: int | None
    phases: tuple[PhaseSummary, ...]
    total: PhaseSummary  # the same figures after summing the phases of each round
    all_cpu_seconds: Percentiles  # of all devices, helpers and the server together, in a round
    round_seconds: Percentiles
    modelled_round_seconds: Percentiles
    round_seconds_interval: Interval = UNKNOWN  # 95 %, of the median, by ranks
    server_ranks: int = 1
    ranks: int | None = None  # None where it is not known
    idle_ranks: int = 0  # that were neither server nor helper, and held no device
    # Resident memory: before the first round, and the largest peak of a measured one; of the
    # largest of the server's ranks, of helpers', and of all others. None where it is not known.
    server_ready_bytes: float | None = None
    server_peak_bytes: float | None = None
    helper_ready_bytes: float | None = None
    helper_peak_bytes: float | None = None
    device_ready_bytes: float | None = None
    device_peak_bytes: float | None = None
    first_round_seconds: float | None = None  # warm-up or not; the slowest launch's
    stop_reason: str | None = None  # rounds, rel_ci, max_seconds or max_rounds
    warnings: tuple[str, ...] = ()  # what disturbed the run, a sentence each
    files: tuple[str, ...] = ()
    repeats: int = 1  # launches
    repeats_p_value: float | None = None  # whether launches differ; None for one launch
    algorithm: str | None = None  # of training; None for a benchmark
    reached: Reached = Reached()
    # Options; a list of their values where launches differ.
    config: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def like(self) -> tuple[Any, ...]:
        """What runs must have in common for their costs to be compared; in the order of reports."""
        task = [str(self.config.get(name)) for name in _TASK] if self.algorithm else []
        link = tuple(vars(self.link).values())
        theta = -1.0 if self.theta is None else self.theta
        return bool(self.algorithm), task, link, self.dim, self.devices, theta

    @property
    def all_validated(self) -> bool:
        """Whether the aggregate of every round was found right."""
        return self.rounds_validated == self.rounds_total

    @property
    def name(self) -> str:
        """Name of the file, without its folder."""
        return Path(self.path).name

    @property
    def variant(self) -> str:
        """The protocol, and its security where that is not the plain one: ``sparse, active``."""
        plain = self.security in (None, "passive")
        return self.protocol if plain else f"{self.protocol}, {self.security}"

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it; what is not a finite number is None."""
        return dict(finite(dataclasses.asdict(self)))

    def __repr__(self) -> str:
        return brief.line(
            "Summary",
            self.variant,
            f"N={self.devices}",
            f"d={self.dim}",
            formats.counted(self.rounds_measured, "measured round"),
            f"median {formats.time(self.round_seconds.median)}",
            f"{formats.count(self.total.bytes_up_mean)} B up a device",
        )


def summarise(
    run: Run, link: LinkModel, target: float | None = None, launches: Sequence[Run] = ()
) -> Summary:
    """Summarise the measured rounds of a run; without any, figures are None or NaN.

    `target` is an accuracy; by default it is that of ``--target-accuracy``, if the run had one.
    `launches` are those whose rounds the run has, one after the other. HpcflError if the run does
    not record its number of parameters.
    """
    launches = launches or (run,)
    kept = run.measured
    survivors = run.survived[kept].sum(axis=1)
    ranks = run.environment.get("ranks")
    first = [float(one.round_seconds[0]) for one in launches if one.rounds]
    reasons = dict.fromkeys(str(one.environment.get("stop_reason") or "") for one in launches)
    *phases, total = _phases(run, link)
    memory = {}
    for party, places in run.ranks_of.items():
        memory[f"{party}_ready_bytes"] = _largest(run.resident_bytes, slice(1), places)
        memory[f"{party}_peak_bytes"] = _largest(run.peak_bytes, kept, places)
    return Summary(
        path=str(run.path),
        status=run.status,
        protocol=run.protocol,
        security=_text(run.config.get("security")),
        devices=run.devices,
        dim=run.dim,
        alpha=_fraction(run.config.get("alpha")),
        theta=_fraction(run.config.get("dropout")),
        transport=_text(run.environment.get("transport")),
        mpi_library=_text(run.environment.get("mpi_library")),
        link=link,
        rounds_measured=len(survivors),
        rounds_warmup=int(run.warmup.sum()),
        rounds_total=run.rounds,
        rounds_validated=int(run.validated.sum()),
        survivors_min=int(survivors.min()) if survivors.size else None,
        survivors_mean=float(survivors.mean()) if survivors.size else None,
        survivors_max=int(survivors.max()) if survivors.size else None,
        phases=tuple(phases),
        total=total,
        all_cpu_seconds=Percentiles.of(everybodys_cpu_seconds(run)),
        round_seconds=Percentiles.of(run.round_seconds[kept]),
        modelled_round_seconds=Percentiles.of(run.modelled_seconds(link).sum(axis=1)),
        round_seconds_interval=median_interval(run.round_seconds[kept]),
        server_ranks=run.server_ranks,
        ranks=ranks,
        idle_ranks=max(0, (ranks or 0) - run.devices - run.server_ranks - run.helpers),
        **memory,
        first_round_seconds=max(first) if first else None,
        stop_reason=", ".join(filter(None, reasons)) or None,
        warnings=warnings(launches),
        files=tuple(str(one.path) for one in launches),
        repeats=len(launches),
        repeats_p_value=launches_p_value([one.round_seconds[one.measured] for one in launches]),
        algorithm=_text(run.config.get("algorithm")) if run.training else None,
        reached=_reached(launches, link, target),
        config={name: _common([one.config.get(name) for one in launches]) for name in run.config},
    )


def _phases(run: Run, link: LinkModel) -> Iterator[PhaseSummary]:
    """Yield what every phase cost and, behind them, all of them together."""
    kept = run.measured
    up, down, messages_up, messages_down, wall, cpu = (
        with_total(getattr(run, name)[kept]) for name in SPENT
    )
    modelled = with_total(run.modelled_seconds(link))
    # A device that dropped out sent nothing: as a zero it would make the phase look cheap.
    sent, received = messages_up > 0, messages_down > 0
    sent[:, -1] = received[:, -1] = run.survived[kept]
    ordinary, members = run.ordinary[kept], run.members[kept]
    slowest = {role: run.slowest_cpu_seconds(role) for role in ("device", "member", "helper")}
    for p, name in enumerate([*run.phases, "total"]):
        others: dict[str, Any] = {}
        if run.in_committee is not None:
            others = {
                "member_bytes_up_mean": _mean(up[:, p], members, sent[:, p]),
                "member_bytes_down_mean": _mean(down[:, p], members, received[:, p]),
                "member_cpu_seconds": Percentiles.of(slowest["member"][:, p]),
            }
        if run.helper_bytes_up is not None and run.helper_bytes_down is not None:
            of_helpers = with_total(run.helper_bytes_up), with_total(run.helper_bytes_down)
            helped = run.helped[kept]
            others["helper_bytes_up_mean"], others["helper_bytes_down_mean"] = (
                _mean(values[kept][:, p], helped, helped) for values in of_helpers
            )
            others["helper_cpu_seconds"] = Percentiles.of(slowest["helper"][:, p])
        yield PhaseSummary(
            name=name,
            bytes_up_mean=_mean(up[:, p], ordinary, sent[:, p]),
            bytes_up_max=_most(up[:, p][ordinary]),
            bytes_down_mean=_mean(down[:, p], ordinary, received[:, p]),
            bytes_down_max=_most(down[:, p][ordinary]),
            messages_up_mean=_mean(messages_up[:, p], ordinary, sent[:, p]),
            device_cpu_seconds=Percentiles.of(slowest["device"][:, p]),
            wall_seconds=Percentiles.of(wall[:, p].max(axis=1)),
            server_cpu_seconds=Percentiles.of(cpu[:, p, -1]),
            server_wall_seconds=Percentiles.of(wall[:, p, -1]),
            modelled_seconds=Percentiles.of(modelled[:, p]).median,
            **others,
        )


def _mean(values: NDArray[np.uint64], among: Flags, there: Flags) -> float | None:
    """Return the mean over those that were there: 0 if none was, None if there could be none."""
    if not among.any():
        return None
    found = values[among & there]
    return float(found.mean()) if found.size else 0.0


def _most(values: NDArray[np.uint64]) -> int | None:
    return int(values.max()) if values.size else None


def everybodys_cpu_seconds(run: Run) -> Floats:
    """Return the CPU seconds of all parties together in each measured round."""
    spent = run.cpu_seconds.sum(axis=(1, 2))
    if run.helper_cpu_seconds is not None:
        spent = spent + run.helper_cpu_seconds.sum(axis=(1, 2))
    return np.asarray(spent[run.measured])


def _largest(values: Floats | None, rounds: Any, ranks: slice) -> float | None:
    """Return the largest number that is known of some rounds and ranks."""
    if values is None:
        return None
    of_them = values[rounds][:, ranks]
    known = of_them[np.isfinite(of_them)]
    return float(known.max()) if known.size else None


def launches_p_value(launches: Sequence[Floats]) -> float | None:
    """Return the probability of launches whose samples differ so much, were they alike.

    By the rank test of Kruskal and Wallis; None with fewer than two launches that have samples.
    """
    samples = [values for values in launches if values.size]
    return kruskal_wallis(samples) if len(samples) > 1 else None


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


def _reached(runs: Sequence[Run], link: LinkModel, target: float | None) -> Reached:
    """Return what training reached in all launches of a configuration, with their link modelled."""
    if not all(Metric.ACCURACY in run.training and run.rounds for run in runs):
        return Reached()
    if target is None:
        target = _fraction(runs[0].config.get("target_accuracy"))
    rounds, sent, seconds = zip(*(_to_target(run, link, target) for run in runs), strict=True)
    return Reached(
        accuracy=_last(runs, Metric.ACCURACY),
        accuracy_best=OverLaunches.of([run.training[Metric.ACCURACY].max() for run in runs]),
        epsilon_paper=_last(runs, Metric.EPSILON_PAPER),
        epsilon_proven=_last(runs, Metric.EPSILON_PROVEN),
        epsilon_delta=_fraction(runs[0].config.get("epsilon_delta")),
        target=target,
        launches_at_target=None if target is None else int(np.isfinite(rounds).sum()),
        rounds_to_target=OverLaunches.of(rounds),
        bytes_to_target=OverLaunches.of(sent),
        seconds_to_target=OverLaunches.of(seconds),
    )


def _last(runs: Sequence[Run], metric: str) -> OverLaunches:
    found = [run.training.get(metric) for run in runs]
    return OverLaunches.of([np.nan if values is None else values[-1] for values in found])


def _to_target(run: Run, link: LinkModel, target: float | None) -> tuple[float, float, float]:
    """Return rounds, bytes of all devices and modelled seconds until the target was reached."""
    at_target = run.training[Metric.ACCURACY] >= (np.inf if target is None else target)
    if not at_target.any():
        return np.nan, np.nan, np.nan
    first = int(at_target.argmax())
    sent = run.training.get(Metric.BYTES_UP_TOTAL)
    seconds = training_seconds(run, link)
    return (
        first + 1.0,
        np.nan if sent is None else float(sent[first]),
        np.nan if seconds is None else float(seconds[: first + 1].sum()),
    )


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


def baselines(summaries: Sequence[Summary], name: str | None = None) -> list[Summary | None]:
    """Return for each run the one that it is compared with, among those that are `like` it.

    `name` is that of a file, with or without the ending, or of a protocol. By default it is the
    first run of `BASELINE`, or else the first run, of those that are complete if any is. None where
    there is no such run, or no other one. It is a UsageError if no run at all goes by that name, or
    if several that are alike do.
    """
    groups: dict[str, list[Summary]] = {}
    for summary in summaries:
        groups.setdefault(repr(summary.like), []).append(summary)
    chosen = {key: _baseline(group, name) for key, group in groups.items()}
    if name is not None and not any(chosen.values()):
        names = dict.fromkeys([*(s.protocol for s in summaries), *(s.name for s in summaries)])
        raise no_such("--baseline", name, names)
    return [
        chosen[key] if len(groups[key]) > 1 else None
        for key in (repr(summary.like) for summary in summaries)
    ]


def _baseline(group: Sequence[Summary], name: str | None) -> Summary | None:
    if name is None:
        # What failed says little of what a round costs.
        group = [s for s in group if s.status == "complete"] or [*group]
        return next((s for s in group if s.protocol == BASELINE), group[0])
    matching = [
        s
        for s in group
        if any(name in (str(path), path.name, path.stem) for path in map(Path, s.files))
    ]
    matching = matching or [s for s in group if s.protocol == name]
    if len(matching) > 1:
        names = ", ".join(s.path for s in matching)
        raise UsageError(f"--baseline {name} can mean any of {names}: give the name of one file")
    return matching[0] if matching else None


def ratios(baseline: Summary, summary: Summary) -> dict[str, float | None]:
    """Return how many times as much the baseline costs as a run: above 1 the run is cheaper.

    By the mean bytes a device sends in a round, the median CPU seconds of the slowest device, and
    the median modelled seconds of a round; None where a figure is missing or the run's is 0.
    """
    one, other = baseline.total, summary.total
    above, below = baseline.modelled_round_seconds, summary.modelled_round_seconds
    return {
        "bytes_up": _ratio(one.bytes_up_mean, other.bytes_up_mean),
        "device_cpu": _ratio(one.device_cpu_seconds.median, other.device_cpu_seconds.median),
        "modelled_round": _ratio(above.median, below.median),
    }


def _ratio(above: float | None, below: float | None) -> float | None:
    if above is None or not below:
        return None
    ratio = above / below
    return ratio if math.isfinite(ratio) else None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _fraction(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
