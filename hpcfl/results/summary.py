"""What a run cost, in the few figures that are reported.

Only measured rounds count: never warm-up, never a round whose aggregate was wrong. The server is a
population of its own: its figures are never averaged with those of the devices.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError
from hpcfl.report.jsontext import finite
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import Run
from hpcfl.results.statistics import UNKNOWN, Interval, Percentiles, median_interval
from hpcfl.system import disturbances


@dataclass(frozen=True)
class PhaseSummary:
    """What one phase cost, or all phases of a round together.

    Bytes and messages are those of one device in one round. A phase's means are over the devices
    and rounds in which the device sent (up) or received (down) anything, the total's over those in
    which the device's vector reached the aggregate; 0 if there are none, None if no round was
    measured. All percentiles are over rounds.

    Attributes
    ----------
    name : str
        The phase, or ``total``.
    bytes_up_mean, bytes_down_mean, messages_up_mean : float or None
        Means over those devices and rounds.
    bytes_up_max, bytes_down_max : int or None
        Largest values.
    device_cpu_seconds : Percentiles
        CPU seconds of the slowest device of each round.
    wall_seconds : Percentiles
        Elapsed seconds of the slowest of the devices and the server, in each round.
    server_cpu_seconds, server_wall_seconds : Percentiles
        Seconds of the server.
    modelled_seconds : float
        Median of the seconds that the link model gives; NaN if no round was measured.
    """

    name: str
    bytes_up_mean: float | None
    bytes_up_max: int | None
    bytes_down_mean: float | None
    bytes_down_max: int | None
    messages_up_mean: float | None
    device_cpu_seconds: Percentiles
    wall_seconds: Percentiles
    server_cpu_seconds: Percentiles
    server_wall_seconds: Percentiles
    modelled_seconds: float


@dataclass(frozen=True)
class Summary:
    """What a run cost.

    Attributes
    ----------
    path : str
        The results file.
    status, protocol : str
        As in :class:`~hpcfl.results.reader.Run`.
    security : str or None
        The option ``security``, where it has a value: ``passive`` or ``active``.
    devices, dim : int
        Number of devices N and of parameters d.
    alpha, theta : float or None
        The options ``alpha`` (density) and ``dropout`` (share of devices), where they have a
        value.
    transport, mpi_library : str or None
        From the environment, where it tells.
    link : LinkModel
        The link that the modelled seconds stand for.
    rounds_measured, rounds_warmup, rounds_total, rounds_validated : int
        Numbers of finished rounds; the last two count warm-up too.
    survivors_min, survivors_max : int or None
        Fewest and most devices in the aggregate of a measured round.
    survivors_mean : float or None
        Mean number over measured rounds.
    phases : tuple of PhaseSummary
        One for each phase, in order.
    total : PhaseSummary
        The same figures after summing the phases of each round.
    all_cpu_seconds : Percentiles
        CPU seconds of all devices and the server together, in a round.
    round_seconds : Percentiles
        Measured seconds of a round.
    modelled_round_seconds : Percentiles
        Modelled seconds of a round.
    round_seconds_interval : Interval
        Rank-based 95 % interval of the median of the measured seconds; NaN below 6 rounds.
    first_round_seconds : float or None
        Measured seconds of the first round, warm-up or not; the slowest launch's.
    stop_reason : str or None
        Why no more rounds were measured: ``rounds``, ``rel_ci``, ``max_seconds`` or
        ``max_rounds``.
    warnings : tuple of str
        What disturbed the run, a sentence each.
    files : tuple of str
        The results files: one, or those of launches that were pooled.
    repeats : int
        Number of launches.
    repeats_p_value : float or None
        Of a rank test whether launches differ in their round seconds; None for one launch.
    """

    path: str
    status: str
    protocol: str
    security: str | None
    devices: int
    dim: int
    alpha: float | None
    theta: float | None
    transport: str | None
    mpi_library: str | None
    link: LinkModel
    rounds_measured: int
    rounds_warmup: int
    rounds_total: int
    rounds_validated: int
    survivors_min: int | None
    survivors_mean: float | None
    survivors_max: int | None
    phases: tuple[PhaseSummary, ...]
    total: PhaseSummary
    all_cpu_seconds: Percentiles
    round_seconds: Percentiles
    modelled_round_seconds: Percentiles
    round_seconds_interval: Interval = UNKNOWN
    first_round_seconds: float | None = None
    stop_reason: str | None = None
    warnings: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    repeats: int = 1
    repeats_p_value: float | None = None

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
        """Return everything as dict, list, str, int, float and None, ready for JSON.

        What is not a finite number becomes None, because JSON has nothing else.
        """
        return dict(finite(dataclasses.asdict(self)))


def summarise(run: Run, link: LinkModel) -> Summary:
    """Summarise the measured rounds of a run.

    Parameters
    ----------
    run : Run
        The run.
    link : LinkModel
        The link of the devices, for the modelled seconds.

    Returns
    -------
    Summary
        The figures; where no round was measured they are None or NaN.

    Raises
    ------
    HpcflError
        If the run does not record its number of parameters.
    """
    kept = run.measured
    up, down = run.bytes_up[kept], run.bytes_down[kept]
    messages_up, messages_down = run.messages_up[kept], run.messages_down[kept]
    wall, cpu = run.wall_seconds[kept], run.cpu_seconds[kept]
    modelled = run.modelled_seconds(link)
    survived = run.survived[kept]
    survivors = survived.sum(axis=1)
    some = len(survivors) > 0

    phases = tuple(
        _phase(
            name,
            up[:, p],
            down[:, p],
            messages_up[:, p],
            # A device that dropped out sent nothing: as a zero it would make the phase look cheap.
            messages_up[:, p] > 0,
            messages_down[:, p] > 0,
            wall[:, p],
            cpu[:, p],
            modelled[:, p],
        )
        for p, name in enumerate(run.phases)
    )
    total = _phase(
        "total",
        up.sum(axis=1),
        down.sum(axis=1),
        messages_up.sum(axis=1),
        survived,
        survived,
        wall.sum(axis=1),
        cpu.sum(axis=1),
        modelled.sum(axis=1),
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
        survivors_min=int(survivors.min()) if some else None,
        survivors_mean=float(survivors.mean()) if some else None,
        survivors_max=int(survivors.max()) if some else None,
        phases=phases,
        total=total,
        all_cpu_seconds=Percentiles.of(cpu.sum(axis=(1, 2))),
        round_seconds=Percentiles.of(run.round_seconds[kept]),
        modelled_round_seconds=Percentiles.of(modelled.sum(axis=1)),
        round_seconds_interval=median_interval(run.round_seconds[kept]),
        first_round_seconds=float(run.round_seconds[0]) if run.rounds else None,
        stop_reason=_text(run.environment.get("stop_reason")),
        warnings=tuple(disturbances_of(run)),
        files=(str(run.path),),
    )


def disturbances_of(run: Run) -> list[str]:
    """Return what disturbed a run, a sentence each."""
    return disturbances.warnings(run.environment)


def _phase(
    name: str,
    up: NDArray[np.uint64],
    down: NDArray[np.uint64],
    messages_up: NDArray[np.uint64],
    sent: NDArray[np.bool_],
    received: NDArray[np.bool_],
    wall: NDArray[np.float64],
    cpu: NDArray[np.float64],
    modelled: NDArray[np.float64],
) -> PhaseSummary:
    """Summarise traffic (rounds, N), times (rounds, N + 1) and modelled seconds (rounds,).

    `sent` and `received`, shape (rounds, N), say which devices the means up and down are over.
    """
    some = len(modelled) > 0
    return PhaseSummary(
        name=name,
        bytes_up_mean=_mean(up[sent]) if some else None,
        bytes_up_max=int(up.max()) if some else None,
        bytes_down_mean=_mean(down[received]) if some else None,
        bytes_down_max=int(down.max()) if some else None,
        messages_up_mean=_mean(messages_up[sent]) if some else None,
        device_cpu_seconds=Percentiles.of(cpu[:, :-1].max(axis=1)),
        wall_seconds=Percentiles.of(wall.max(axis=1)),
        server_cpu_seconds=Percentiles.of(cpu[:, -1]),
        server_wall_seconds=Percentiles.of(wall[:, -1]),
        modelled_seconds=Percentiles.of(modelled).median,
    )


def choose_baseline(summaries: Sequence[Summary], name: str | None = None) -> Summary:
    """Return the run that others are compared with.

    Parameters
    ----------
    summaries : sequence of Summary
        The runs, at least one.
    name : str, optional
        Name of its file, with or without the ending, or of its protocol. By default it is the
        first ``secagg`` run, or else the first run.

    Returns
    -------
    Summary
        One of `summaries`.

    Raises
    ------
    UsageError
        If no run or more than one goes by that name.
    """
    if name is None:
        return next((s for s in summaries if s.protocol == "secagg"), summaries[0])
    matching = [s for s in summaries if name in _file_names(s)]
    matching = matching or [s for s in summaries if s.protocol == name]
    if len(matching) == 1:
        return matching[0]
    if matching:
        names = ", ".join(s.path for s in matching)
        raise UsageError(f"--baseline {name} can mean any of {names}: give the name of one file")
    names = ", ".join(
        dict.fromkeys([*(s.protocol for s in summaries), *(s.name for s in summaries)])
    )
    raise UsageError(f"--baseline {name} is none of {names}")


def _file_names(summary: Summary) -> set[str]:
    paths = [Path(path) for path in (summary.path, *summary.files)]
    return {name for path in paths for name in (str(path), path.name, path.stem)}


@dataclass(frozen=True)
class Ratios:
    """How many times as much the baseline costs: baseline divided by run, of the summaries.

    Attributes
    ----------
    bytes_up, device_cpu, modelled_round : float or None
        Ratio of the mean bytes a device sends in a round, of the median CPU seconds of the
        slowest device, and of the median modelled seconds of a round; None where a figure is
        missing or the run's is 0.
    """

    bytes_up: float | None
    device_cpu: float | None
    modelled_round: float | None


def ratios(baseline: Summary, summary: Summary) -> Ratios:
    """Return how many times as much the baseline costs as a run.

    Parameters
    ----------
    baseline, summary : Summary
        The two runs.

    Returns
    -------
    Ratios
        Above 1 where the run is cheaper than the baseline.
    """
    return Ratios(
        bytes_up=_ratio(baseline.total.bytes_up_mean, summary.total.bytes_up_mean),
        device_cpu=_ratio(
            baseline.total.device_cpu_seconds.median, summary.total.device_cpu_seconds.median
        ),
        modelled_round=_ratio(
            baseline.modelled_round_seconds.median, summary.modelled_round_seconds.median
        ),
    )


def _ratio(above: float | None, below: float | None) -> float | None:
    if above is None or not below:
        return None
    ratio = above / below
    return ratio if math.isfinite(ratio) else None


def _mean(values: NDArray[np.uint64]) -> float:
    return float(values.mean()) if values.size else 0.0


def _fraction(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
