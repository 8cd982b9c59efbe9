"""The columns that a table of runs can have: the name, the unit and the origin of each, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hpcfl.errors import UsageError, no_such
from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import names, options_of
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.options.shared import ProtocolOptions
from hpcfl.options.training import LocalOptions, TrainOptions
from hpcfl.report import formats
from hpcfl.report.table import Column, label, seconds, size

if TYPE_CHECKING:
    from hpcfl.results.summary import Summary


@dataclass(frozen=True)
class Row:
    """A row of a table of runs."""

    number: int  # from 1
    summary: Summary
    baseline: Summary | None  # what it is compared with


@dataclass(frozen=True)
class Choice:
    """A column that a table of runs can have."""

    column: Column
    about: str  # what it is and how it is computed
    value: Callable[[Row], Any]
    shown: bool = True  # where no columns are asked for, and it has a value
    # Said once, above the table, where all rows have the same value, or all that have any.
    common: Literal["", "all", "known"] = ""
    elapsed: bool = False  # whether whatever else a machine does makes it longer
    alone: bool = True  # whether a run has it without others beside it


def _over(name: str) -> Callable[[Row], float | None]:
    """Return what reads the ratio of the baseline to the run."""

    def value(row: Row) -> float | None:
        from hpcfl.results.summary import ratios

        return None if row.baseline is None else ratios(row.baseline, row.summary)[name]

    return value


def _reached(name: str, of: str = "median") -> Callable[[Row], Any]:
    return lambda row: getattr(getattr(row.summary.reached, name), of)


def _cost(name: str, of: str = "") -> Callable[[Row], Any]:
    """Return what reads a figure of whole rounds."""

    def value(row: Row) -> Any:
        found = getattr(row.summary.total, name)
        return getattr(found, of) if of and found is not None else found

    return value


def _summary(name: str, of: str = "") -> Callable[[Row], Any]:
    def value(row: Row) -> Any:
        found = getattr(row.summary, name)
        return getattr(found, of) if of else found

    return value


def _bits(group: Any) -> int | None:
    from hpcfl.crypto.groups import GROUPS

    return GROUPS[group].bits if group in GROUPS else None


_ALL = (
    Choice(
        label("row", "#"),
        "number that notes call the row by",
        lambda row: row.number,
        alone=False,
    ),
    Choice(
        label("protocol"),
        "aggregation protocol, with its security where that is not the plain one",
        _summary("variant"),
    ),
    Choice(label("algorithm"), "federated algorithm, of training", _summary("algorithm")),
    Choice(
        Column("devices", "N", format=formats.count),
        "number of devices",
        _summary("devices"),
        common="all",
    ),
    Choice(
        Column("dim", "d", format=formats.count),
        "length of the vectors",
        _summary("dim"),
        common="all",
    ),
    Choice(
        Column("alpha", "alpha", format=formats.number),
        "density of what a device sends, of protocols that send a part",
        _summary("alpha"),
        common="all",
    ),
    Choice(
        Column("theta", "theta", format=formats.number),
        "fraction of the devices that drop out of a round",
        _summary("theta"),
        common="all",
    ),
    Choice(
        Column("bits", "bits", format=formats.count),
        "bits of a value that is sent, of protocols that sum integers",
        lambda row: _bits(row.summary.config.get("group")),
        shown=False,
    ),
    Choice(
        label("link"),
        "link of the modelled seconds",
        lambda row: str(row.summary.link),
        common="all",
    ),
    Choice(
        size("bytes_up_mean", "up", "/device"),
        "mean of what a device in the sum sends in a round",
        _cost("bytes_up_mean"),
    ),
    Choice(
        size("bytes_down_mean", "down", "/device"),
        "mean of what a device in the sum receives in a round",
        _cost("bytes_down_mean"),
    ),
    Choice(
        seconds("device_cpu_seconds_median", "device CPU"),
        "CPU time of the slowest device of a round, median over rounds",
        _cost("device_cpu_seconds", "median"),
    ),
    Choice(
        seconds("device_cpu_seconds_p95", "device CPU p95"),
        "the same, 95th percentile",
        _cost("device_cpu_seconds", "p95"),
        shown=False,
    ),
    Choice(
        seconds("server_cpu_seconds_median", "server CPU"),
        "CPU time of the server in a round, median over rounds",
        _cost("server_cpu_seconds", "median"),
    ),
    Choice(
        seconds("all_cpu_seconds_median", "all CPU"),
        "CPU time of all devices and the server together in a round, median over rounds",
        _summary("all_cpu_seconds", "median"),
        shown=False,
    ),
    Choice(
        seconds("round_seconds_median", "round measured"),
        "elapsed time of a round, median over rounds",
        _summary("round_seconds", "median"),
        elapsed=True,
    ),
    Choice(
        seconds("round_seconds_low", "round from"),
        "lower end of the 95 % interval of that median, by order statistics, from 6 rounds on",
        _summary("round_seconds_interval", "low"),
        shown=False,
        elapsed=True,
    ),
    Choice(
        seconds("round_seconds_high", "round to"),
        "its upper end",
        _summary("round_seconds_interval", "high"),
        shown=False,
        elapsed=True,
    ),
    Choice(
        seconds("round_seconds_p95", "round p95"),
        "elapsed time of a round, 95th percentile",
        _summary("round_seconds", "p95"),
        shown=False,
        elapsed=True,
    ),
    Choice(
        seconds("modelled_round_seconds_median", "round modelled"),
        "time of a round over the modelled link, median over rounds",
        _summary("modelled_round_seconds", "median"),
    ),
    Choice(
        Column("accuracy", "accuracy", format=formats.number, part="training"),
        "on held-out data after the last round, median over launches",
        _reached("accuracy"),
    ),
    Choice(
        Column("accuracy_best", "best accuracy", format=formats.number, part="training"),
        "highest accuracy after any round, median over launches",
        _reached("accuracy_best"),
        shown=False,
    ),
    Choice(
        Column("accuracy_least", "accuracy from", format=formats.number, part="training"),
        "lowest accuracy of a launch",
        _reached("accuracy", "least"),
        shown=False,
    ),
    Choice(
        Column("accuracy_most", "accuracy to", format=formats.number, part="training"),
        "highest accuracy of a launch",
        _reached("accuracy", "most"),
        shown=False,
    ),
    Choice(
        Column("epsilon_proven", "epsilon", format=formats.number, part="training"),
        "privacy spent by the last round, as is proven, median over launches",
        _reached("epsilon_proven"),
    ),
    Choice(
        Column("epsilon_paper", "epsilon, paper", format=formats.number, part="training"),
        "the same as the algorithm's paper counts",
        _reached("epsilon_paper"),
        shown=False,
    ),
    Choice(
        Column("epsilon_delta", "delta", format=formats.number, part="training"),
        "delta of these epsilons",
        lambda row: row.summary.reached.epsilon_delta,
        common="known",
    ),
    Choice(
        Column("target", "target", format=formats.number, part="target"),
        "accuracy of the next columns: --target-accuracy, or the run's own",
        lambda row: row.summary.reached.target,
        common="known",
    ),
    Choice(
        Column("rounds_to_target", "rounds to target", format=formats.number, part="target"),
        "rounds of training until the target was reached, median over launches",
        _reached("rounds_to_target"),
    ),
    Choice(
        size("bytes_to_target", "up to target", part="target"),
        "what all devices together had sent by then",
        _reached("bytes_to_target"),
    ),
    Choice(
        seconds("seconds_to_target", "modelled to target", "target"),
        "modelled time by then, training included",
        _reached("seconds_to_target"),
    ),
    Choice(
        size("server_peak_bytes", "server peak"),
        "largest resident memory of a rank of the server in a round; of the process, where there "
        "is one",
        _summary("server_peak_bytes"),
        shown=False,
    ),
    Choice(
        size("device_peak_bytes", "device peak"),
        "the same of a rank that holds devices",
        _summary("device_peak_bytes"),
        shown=False,
    ),
    Choice(
        size("helper_peak_bytes", "helper peak"),
        "the same of a helper's rank",
        _summary("helper_peak_bytes"),
        shown=False,
    ),
    Choice(
        Column("bytes_up_ratio", "up ratio", format=formats.ratio, part="ratios"),
        "bytes_up_mean of the baseline divided by the run's",
        _over("bytes_up"),
        alone=False,
    ),
    Choice(
        Column("device_cpu_ratio", "device CPU ratio", format=formats.ratio, part="ratios"),
        "the same of device_cpu_seconds_median",
        _over("device_cpu"),
        alone=False,
    ),
    Choice(
        Column("modelled_round_ratio", "round modelled ratio", format=formats.ratio, part="ratios"),
        "the same of modelled_round_seconds_median",
        _over("modelled_round"),
        alone=False,
    ),
    Choice(
        Column("launches", "launches", format=formats.count),
        "launches that are pooled in the row",
        _summary("repeats"),
        shown=False,
    ),
    Choice(
        Column("rounds_measured", "rounds", format=formats.count),
        "measured rounds of all launches",
        _summary("rounds_measured"),
        shown=False,
    ),
    Choice(
        Column("survivors_mean", "survivors", format=formats.number),
        "devices in the sum of a round, mean over rounds",
        _summary("survivors_mean"),
        shown=False,
    ),
    Choice(
        label("validated"),
        "whether the aggregate of every round was found right",
        lambda row: row.summary.rounds_validated == row.summary.rounds_total,
        shown=False,
    ),
    Choice(label("status"), "how the run ended", _summary("status"), shown=False),
    Choice(label("transport"), "what moved the messages", _summary("transport"), shown=False),
    Choice(
        label("file"),
        "results file, of the first launch",
        _summary("name"),
        shown=False,
    ),
    Choice(label("path"), "the same with its folder", _summary("path"), shown=False),
)
# By the names that --columns takes, which are those of CSV and JSON.
COLUMNS = {choice.column.name: choice for choice in _ALL}
_OPTIONS = {**options_of(BenchOptions), **options_of(TrainOptions)}
# Options by which runs are told apart, beyond protocol, number of devices and task.
TOLD_APART = tuple(
    dict.fromkeys(
        name
        for group in (ProtocolOptions, PrivacyOptions, LocalOptions, TrainOptions)
        for name in names(group, "label")
    )
)
# Columns that have an option under another name.
_AS = {"dropout": "theta", "group": "bits"}
# Options that every table of runs for programs has.
OPTIONS = ("seed", "dropout", "dataset", "partition", "model", "rounds")
# Where files are, which is not what was measured.
_PLACES = ("output", "resume", "data_dir", "checkpoint_every")


def choose(text: str) -> list[Choice]:
    """Return the columns that names stand for, with commas between them, in that order.

    Beside `COLUMNS` there is one for every option of bench and train. A UsageError names what is
    neither, or is named twice.
    """
    names = [name.strip().replace("-", "_") for name in text.split(",")]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--columns has {name} twice")
    return [_named(name) for name in names]


def of_runs(summaries: Sequence[Summary]) -> list[Choice]:
    """Return the columns for a table that is to be filtered, with a row for each run.

    All of `COLUMNS` that a run has by itself, `OPTIONS`, and other options in which benchmarks, or
    trainings, differ.
    """
    benchmarks = [one for one in summaries if one.algorithm is None]
    trainings = [one for one in summaries if one.algorithm is not None]

    def differ(name: str) -> bool:
        return any(
            len({repr(one.config.get(name)) for one in kind}) > 1
            for kind in (benchmarks, trainings)
        )

    rest = [name for name in _OPTIONS if name not in COLUMNS and name not in _PLACES]
    return [
        *(choice for choice in COLUMNS.values() if choice.alone),
        *(_named(name) for name in rest if name in OPTIONS or differ(name)),
    ]


def telling_apart(rows: Sequence[Row]) -> list[Choice]:
    """Return columns for the options in which runs of one protocol differ, none that is shown."""
    return [
        choice
        for name in TOLD_APART
        if not ((choice := _named(_AS.get(name, name))).column.name in COLUMNS and choice.shown)
        and _differ(rows, choice, name)
    ]


def _differ(rows: Sequence[Row], choice: Choice, name: str) -> bool:
    """Return whether runs of one protocol, of the same precision for levels, have two values."""
    values: dict[tuple[str, ...], set[str]] = {}
    for row in rows:
        one = row.summary
        # How many levels there are follows from the group, unless it was asked for.
        kind = (one.variant, str(one.algorithm), str(name == "levels" and one.config.get("group")))
        values.setdefault(kind, set()).add(repr(choice.value(row)))
    return any(len(found) > 1 for found in values.values())


def _named(name: str) -> Choice:
    if name in COLUMNS:
        return COLUMNS[name]
    if name in _OPTIONS:
        return Choice(label(name), _OPTIONS[name].help, lambda row: row.summary.config.get(name))
    raise no_such("column", name, [*COLUMNS, *_OPTIONS], place="--columns: ")
