"""What a run cost, in the few figures that are reported.

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
from numpy.typing import NDArray

from hpcfl.errors import UsageError, no_such
from hpcfl.report import brief, formats
from hpcfl.report.jsontext import finite
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reached import Reached, reached
from hpcfl.results.reader import Run
from hpcfl.results.schema import INCOMPLETE, PLACEMENT, SPENT
from hpcfl.results.statistics import UNKNOWN, Interval, Percentiles, median_interval
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


@dataclass(frozen=True, repr=False)
class Summary:
    """What a run cost."""

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
    reached: Reached = field(default_factory=Reached)
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


def summarise(run: Run, link: LinkModel, target: float | None = None) -> Summary:
    """Summarise the measured rounds of a run; without any, figures are None or NaN.

    `target` is an accuracy, as for `reached`. HpcflError if the run does not record its number of
    parameters.
    """
    kept = run.measured
    survived = run.survived[kept]
    survivors = survived.sum(axis=1)
    servers = run.server_ranks
    ranks = run.environment.get("ranks")
    # Every phase and, behind them, all of them together.
    up, down, messages_up, messages_down, wall, cpu, modelled = map(
        _with_total, (*(getattr(run, name)[kept] for name in SPENT), run.modelled_seconds(link))
    )
    # A device that dropped out sent nothing: as a zero it would make the phase look cheap.
    sent, received = messages_up > 0, messages_down > 0
    sent[:, -1] = received[:, -1] = survived
    ordinary = run.ordinary[kept][:, None]
    members = (
        np.zeros_like(ordinary) if run.in_committee is None else run.in_committee[kept][:, None]
    )
    by_members = _of_members(run, up, sent & members, down, received & members)
    sent, received, some = sent & ordinary, received & ordinary, bool(ordinary.any())
    slowest = run.slowest_cpu_seconds("device")
    *phases, total = (
        PhaseSummary(
            name=name,
            bytes_up_mean=_mean(up[:, p][sent[:, p]]) if some else None,
            bytes_up_max=int(up[:, p][ordinary[:, 0]].max()) if some else None,
            bytes_down_mean=_mean(down[:, p][received[:, p]]) if some else None,
            bytes_down_max=int(down[:, p][ordinary[:, 0]].max()) if some else None,
            messages_up_mean=_mean(messages_up[:, p][sent[:, p]]) if some else None,
            device_cpu_seconds=Percentiles.of(slowest[:, p]),
            wall_seconds=Percentiles.of(wall[:, p].max(axis=1)),
            server_cpu_seconds=Percentiles.of(cpu[:, p, -1]),
            server_wall_seconds=Percentiles.of(wall[:, p, -1]),
            modelled_seconds=Percentiles.of(modelled[:, p]).median,
            **by_members[p],
            **_of_helpers(run, p),
        )
        for p, name in enumerate([*run.phases, "total"])
    )
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
        modelled_round_seconds=Percentiles.of(modelled[:, -1]),
        round_seconds_interval=median_interval(run.round_seconds[kept]),
        first_round_seconds=float(run.round_seconds[0]) if run.rounds else None,
        stop_reason=_text(run.environment.get("stop_reason")),
        warnings=warnings([run]),
        files=(str(run.path),),
        server_ranks=servers,
        ranks=ranks,
        idle_ranks=max(0, (ranks or 0) - run.devices - servers - run.helpers),
        server_ready_bytes=_largest(run.resident_bytes, slice(1), slice(servers)),
        server_peak_bytes=_largest(run.peak_bytes, kept, slice(servers)),
        helper_ready_bytes=_largest(run.resident_bytes, slice(1), run.helper_ranks),
        helper_peak_bytes=_largest(run.peak_bytes, kept, run.helper_ranks),
        device_ready_bytes=_largest(run.resident_bytes, slice(1), run.device_ranks),
        device_peak_bytes=_largest(run.peak_bytes, kept, run.device_ranks),
        algorithm=_text(run.config.get("algorithm")) if run.training else None,
        reached=reached([run], link, target),
        config=dict(run.config),
    )


def _of_helpers(run: Run, phase: int) -> dict[str, Any]:
    """Return what a phase, or behind the last one a round, cost the helpers, if there are any."""
    if not run.helpers:
        return {}
    kept = run.measured
    up, down = (
        _with_total(getattr(run, f"helper_{name}")[kept])[:, phase][run.helped[kept]]
        for name in ("bytes_up", "bytes_down")
    )
    return {
        "helper_bytes_up_mean": float(up.mean()) if up.size else None,
        "helper_bytes_down_mean": float(down.mean()) if down.size else None,
        "helper_cpu_seconds": Percentiles.of(run.slowest_cpu_seconds("helper")[:, phase]),
    }


def _of_members(
    run: Run,
    up: NDArray[np.uint64],
    sent: NDArray[np.bool_],
    down: NDArray[np.uint64],
    received: NDArray[np.bool_],
) -> list[dict[str, Any]]:
    """Return the same of members of a committee, for every phase and all of them together.

    From bytes, and which members sent and received any, each of shape (measured, P + 1, N).
    """
    phases = range(len(run.phases) + 1)
    if run.in_committee is None:
        return [{} for _ in phases]
    slowest = run.slowest_cpu_seconds("member")
    return [
        {
            "member_bytes_up_mean": _mean(up[:, p][sent[:, p]]) if len(up) else None,
            "member_bytes_down_mean": _mean(down[:, p][received[:, p]]) if len(up) else None,
            "member_cpu_seconds": Percentiles.of(slowest[:, p]),
        }
        for p in phases
    ]


def everybodys_cpu_seconds(run: Run) -> NDArray[np.float64]:
    """Return the CPU seconds of all parties together in each measured round."""
    spent = run.cpu_seconds.sum(axis=(1, 2))
    if run.helper_cpu_seconds is not None:
        spent = spent + run.helper_cpu_seconds.sum(axis=(1, 2))
    return np.asarray(spent[run.measured])


def _largest(values: NDArray[np.float64] | None, rounds: Any, ranks: slice) -> float | None:
    """Return the largest number that is known of some rounds and ranks."""
    if values is None:
        return None
    of_them = values[rounds][:, ranks]
    known = of_them[np.isfinite(of_them)]
    return float(known.max()) if known.size else None


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


def _with_total(values: NDArray[Any]) -> NDArray[Any]:
    """Return values of phases, the second axis, with their sum behind them."""
    return np.concatenate([values, values.sum(axis=1, keepdims=True)], axis=1)


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
    matching = [s for s in group if name in _file_names(s)]
    matching = matching or [s for s in group if s.protocol == name]
    if len(matching) > 1:
        names = ", ".join(s.path for s in matching)
        raise UsageError(f"--baseline {name} can mean any of {names}: give the name of one file")
    return matching[0] if matching else None


def _file_names(summary: Summary) -> set[str]:
    paths = [Path(path) for path in (summary.path, *summary.files)]
    return {name for path in paths for name in (str(path), path.name, path.stem)}


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


def _mean(values: NDArray[np.uint64]) -> float:
    return float(values.mean()) if values.size else 0.0


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _fraction(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
