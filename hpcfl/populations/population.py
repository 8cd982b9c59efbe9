"""A population: a row of figures for every device, from a name or from a file.

The named populations are stated distributions, drawn with the seed of the run:

- `mobile`: phones. The medians of the links are the worldwide means of Speedtest's Global Index for
  mobile networks of September 2020 (36 and 11 Mbit/s, 40 ms). Peak performance of phones varies by
  more than an order of magnitude (Wu et al., HPCA 2019), as 5 to 95 % of the factors do here. The
  spread of links and the median factor of 4 are assumptions.
- `iot`: LTE-M devices of category M1. The rates are between the peaks of half and of full duplex
  (375 to 1,000 kbit/s up, 300 to 800 down), the latency between that of normal and of extremely
  deep coverage (0.1 and 6.2 s; white paper "Evaluation of LTE-M towards 5G IoT requirements",
  2018). The factors, those of single-board computers, are assumptions.
- `silo`: institutions on research networks: 1 to 10 Gbit/s in both directions, 1 to 40 ms, and
  processors like this one. All of it is an assumption.
- `uniform`: the links of the options, and processors like this one.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import HpcflError, UsageError, no_such
from hpcfl.options.shared import LinkOptions
from hpcfl.system import files, hdf5, outputs
from hpcfl.values import dataclass, field, replace

if TYPE_CHECKING:
    from hpcfl.report.table import Table

Floats = NDArray[np.float64]
# Columns that every table has, with their smallest values, and those of availability. Intervals are
# seconds, as in 0-3600;7200-9000, and repeat after `period_seconds`.
COLUMNS = {"uplink_mbps": 1e-9, "downlink_mbps": 1e-9, "latency_ms": 0.0, "compute": 1e-9}
RANDOM = ("mean_on_seconds", "mean_off_seconds")
TRACED = ("on_intervals", "period_seconds")
# The number of a generator that belongs to populations, among those of the seed of a run.
DRAWN = 0x706F70


@dataclass(frozen=True, eq=False)
class Population:
    """Figures of devices, each of shape (n,); see `COLUMNS`."""

    name: str
    uplink_mbps: Floats
    downlink_mbps: Floats
    latency_ms: Floats
    compute: Floats  # factor on CPU seconds measured here
    seed: int = 0
    # Mean durations for which a device is there and away, shape (n, 2); None if all always are.
    mean_seconds: Floats | None = None
    # By device, when it comes and goes in turn, in increasing order, and after how long it repeats.
    switches: Sequence[Sequence[float]] = ()
    period_seconds: Sequence[float] | Floats = ()  # by default never
    # By device, the switches that were drawn so far.
    _drawn: dict[int, tuple[Any, list[float]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.compute)

    @cached_property
    def digest(self) -> str:
        """A short digest of all figures: runs of equal digests had the same devices."""
        known: list[Any] = [getattr(self, name).tolist() for name in COLUMNS]
        known += [[list(one) for one in self.switches], [*map(float, self.period_seconds)]]
        if self.mean_seconds is not None:
            known += [self.mean_seconds.tolist(), self.seed]
        return sha256(repr(known).encode()).hexdigest()[:16]

    @property
    def always_there(self) -> bool:
        """Whether no device is ever away."""
        return self.mean_seconds is None and not self.switches

    def there_until(self, device: int, seconds: float) -> float:
        """Return until when a device is there from a time on; -inf if it is away then."""
        if self.always_there:
            return math.inf
        start, period = 0.0, math.inf
        if self.switches:
            times = self.switches[device]
            period = float(self.period_seconds[device]) if len(self.period_seconds) else math.inf
            start = seconds - seconds % period if period < math.inf else 0.0
        else:
            times = self._drawn_until(device, seconds)
        passed = bisect_right(times, seconds - start)
        if passed % 2 == 0:
            return -math.inf
        until = times[passed] if passed < len(times) else math.inf
        if until == period and times[0] == 0:  # the next period goes on with this interval
            until = math.inf if len(times) == 2 else period + times[1]
        return start + until

    def _drawn_until(self, device: int, seconds: float) -> list[float]:
        """Return a device's switches up to one after some time.

        Durations are exponential, so it is there at the start with the probability of their ratio.
        """
        assert self.mean_seconds is not None
        on, off = self.mean_seconds[device]
        if device not in self._drawn:
            generator = np.random.default_rng([self.seed, DRAWN, device])
            # A device that is there at the start came then.
            there = generator.random() < on / (on + off)
            self._drawn[device] = generator, [0.0 if there else generator.exponential(off)]
        generator, times = self._drawn[device]
        while times[-1] <= seconds:
            times.append(times[-1] + generator.exponential(on if len(times) % 2 else off))
        return times


def _log_normal(median: float, ratio: float) -> Callable[[Floats], Floats]:
    """Return the quantiles of a distribution whose 95 % quantile is `ratio` times its median."""
    from scipy.special import ndtri

    return lambda q: median * np.exp(np.log(ratio) * ndtri(q) / ndtri(0.95))


def _log_uniform(least: float, most: float) -> Callable[[Floats], Floats]:
    return lambda q: least * (most / least) ** q


def _named(name: str) -> tuple[Callable[[Floats], Floats], ...]:
    """Return the quantile functions of the columns of a named population."""
    if name == "mobile":
        links = (_log_normal(11.0, 4.0), _log_normal(36.0, 4.0), _log_normal(40.0, 3.0))
        return *links, _log_normal(4.0, 3.5)
    if name == "iot":
        links = (_log_uniform(0.375, 1.0), _log_uniform(0.3, 0.8), _log_uniform(100.0, 6200.0))
        return *links, _log_uniform(5.0, 40.0)
    rate = _log_uniform(1e3, 1e4)
    return rate, rate, _log_uniform(1.0, 40.0), lambda q: np.ones_like(q)


NAMES = ("uniform", "mobile", "iot", "silo")


def draw(name: str, devices: int, seed: int, link: LinkOptions | None = None) -> Population:
    """Return a named population of some devices.

    A device's uplink and downlink have the same quantile, its latency the opposite one; the
    processor is independent of the links. The first devices are the same for any number.
    """
    if name == "uniform":
        link = link or LinkOptions()
        up, down = np.full(devices, link.uplink_mbps), np.full(devices, link.downlink_mbps)
        latency = np.full(devices, link.latency_ms)
        return Population(name, up, down, latency, np.ones(devices), seed=seed)
    linked, computes = np.random.default_rng([seed, DRAWN]).random((devices, 2)).T
    quantiles = (linked, linked, 1 - linked, computes)
    up, down, latency, compute = (of(q) for of, q in zip(_named(name), quantiles, strict=True))
    return Population(name, up, down, latency, compute, seed=seed)


def load(name: str, devices: int | None, seed: int, link: LinkOptions | None = None) -> Population:
    """Return the population of a name or of a table (CSV or HDF5), for a number of devices.

    Without a number these are all rows of a table, or 10,000 devices. Raise UsageError for a table
    with fewer rows, without a column of `COLUMNS`, or with a value out of range.
    """
    usual = LinkOptions() if link is None else replace(LinkOptions(), helper_mbps=link.helper_mbps)
    if name != "uniform" and link not in (None, usual):
        raise UsageError(
            f"the devices of --population {name} have links of their own: leave --uplink-mbps, "
            "--downlink-mbps and --latency-ms out"
        )
    if name in NAMES:
        return draw(name, devices or 10_000, seed, link)
    path = Path(name)
    if not path.suffix:
        raise no_such("--population", name, [*NAMES, "a .csv or .h5 file"])
    table = read(path)
    there_when = next((each for each in (RANDOM, TRACED) if {*each} & {*table}), ())
    wanted = [*COLUMNS, *there_when]
    missing = [column for column in wanted if column not in (*table, TRACED[1])]
    wrong = [f"no column {column}" for column in missing]
    wrong += [f"a column {column}" for column in table if column not in wanted]
    if wrong:
        raise UsageError(f"{path} has {wrong[0]}; a population has {', '.join(wanted)}")
    rows = len(table["compute"])
    if devices is not None and rows < devices:
        raise UsageError(f"{path} has {rows} devices, and the run has {devices}")
    table = {column: values[:devices] for column, values in table.items()}
    up, down, latency, compute = (
        _numbers(path, table, column, least) for column, least in COLUMNS.items()
    )
    there: dict[str, Any] = {}
    if RANDOM[0] in table:
        there["mean_seconds"] = np.stack([_numbers(path, table, each, 1e-9) for each in RANDOM], 1)
    elif TRACED[0] in table:
        periods = np.full(len(compute), np.inf)
        if TRACED[1] in table:
            periods = _numbers(path, table, TRACED[1], 1e-9)
        pairs = zip(table[TRACED[0]], periods.tolist(), strict=True)
        there = {"switches": [_switches(path, *each) for each in pairs], "period_seconds": periods}
    return Population(path.stem, up, down, latency, compute, seed=seed, **there)


def save(path: Path, table: Mapping[str, Sequence[Any]]) -> None:
    """Write a table as CSV, a column for each entry."""
    lines = [[*table], *zip(*table.values(), strict=True)]
    text = "".join(",".join(map(str, line)) + "\n" for line in lines)
    outputs.write(path, outputs.POPULATION, text)


def quantiles(table: Mapping[str, Sequence[Any]]) -> Table:
    """Return a table of the quantiles of the columns of a population."""
    from hpcfl.report.table import Table, label, number

    at = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
    rows = [[name, *np.quantile(np.asarray(table[name], float), at).tolist()] for name in COLUMNS]
    columns = [label("figure"), *(number(f"q{100 * q:g}", f"{100 * q:g} %") for q in at)]
    away = RANDOM[0] in table or TRACED[0] in table
    title = f"Quantiles over {len(table['compute']):,} devices"
    return Table(columns, rows, title + ", which are away at times" * away)


def read(path: Path) -> dict[str, Sequence[Any]]:
    """Return the columns of a table, CSV or HDF5, as they are in the file."""
    files.require(path)
    try:
        if path.suffix.lower() in outputs.HDF5:
            with hdf5.opened(path, "r") as file:
                table = {
                    name: list(column.asstr()[()] if column.dtype.kind in "OS" else column[()])
                    for name, column in file.items()
                }
                lines = [[*row] for row in zip(*table.values(), strict=True)]
                header = [*table]
        else:
            with path.open(newline="", encoding="utf-8-sig") as text:
                header, *lines = filter(None, csv.reader(text, skipinitialspace=True))
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise HpcflError(f"{path} cannot be read as a table ({files.brief(error)})") from error
    for row, line in enumerate(lines, 1):
        if len(line) != len(header):
            raise UsageError(f"{path}, row {row}: {len(line)} values of {len(header)} columns")
    if not lines:
        raise UsageError(f"{path} has no devices")
    return dict(zip(header, zip(*lines, strict=True), strict=True))


def _numbers(path: Path, table: Mapping[str, Sequence[Any]], column: str, least: float) -> Floats:
    values = np.array([_number(value) for value in table.get(column, [math.nan])])
    wrong = ~(np.isfinite(values) & (values >= least))
    if wrong.any():
        row = int(wrong.argmax())
        raise UsageError(f"{path}, row {row + 1}: {column} must be a number from {least:g} on")
    return values


def _number(value: Any) -> float:
    try:
        return float(value)
    except (ValueError, TypeError):
        return math.nan


def _switches(path: Path, text: str, period: float) -> list[float]:
    """Return when a device comes and goes, from its intervals as text, within its period."""
    try:
        times = [float(time) for each in text.split(";") if each for time in each.split("-")]
    except ValueError:
        times = [math.nan]
    ordered = all(a < b for a, b in zip([-1.0, *times], times, strict=False))
    if len(times) % 2 or not ordered or max(times, default=0.0) > period:
        within = f" within {period:g} s" if period < math.inf else ""
        raise UsageError(f"{path}: {TRACED[0]} must be like 0-3600;7200-9000{within}, not {text!r}")
    return times
