"""The columns that a table of runs can have: the name, the unit and the origin of each, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    # Said once, above the table, where all rows have the same value ("all"), or all that have any
    # ("known").
    common: str = ""
    elapsed: bool = False  # whether whatever else a machine does makes it longer
    alone: bool = True  # whether a run has it without others beside it


Value = Callable[[Row], Any]


def _over(name: str) -> Value:
    """Return what reads the ratio of the baseline to the run."""

    def value(row: Row) -> float | None:
        from hpcfl.results.summary import ratios

        return None if row.baseline is None else ratios(row.baseline, row.summary)[name]

    return value


def _of(path: str) -> Value:
    """Return what reads an attribute of the summary, or an attribute of that: ``total.name``."""

    def value(row: Row) -> Any:
        found: Any = row.summary
        for name in path.split("."):
            found = None if found is None else getattr(found, name)
        return found

    return value


def _bits(group: Any) -> int | None:
    from hpcfl.crypto.groups import GROUPS

    return GROUPS[group].bits if group in GROUPS else None


def _count(name: str, title: str) -> Column:
    return Column(name, title, format=formats.count)


def _number(name: str, title: str) -> Column:
    return Column(name, title, format=formats.number)


def _ratio(name: str, title: str) -> Column:
    return Column(name, title, format=formats.ratio)


def _all() -> Iterator[Choice]:
    """Yield the columns in the order of tables."""
    yield Choice(
        label("row", "#"), "number that notes call the row by", lambda row: row.number, alone=False
    )
    yield Choice(
        label("protocol"),
        "aggregation protocol, with its security where that is not the plain one",
        _of("variant"),
    )
    for column, about in (
        (label("algorithm"), "federated algorithm, of training"),
        (_count("devices", "N"), "number of devices"),
        (_count("dim", "d"), "length of the vectors"),
        (
            _number("alpha", "alpha"),
            "density of what a device sends, of protocols that send a part",
        ),
        (_number("theta", "theta"), "fraction of the devices that drop out of a round"),
    ):
        common = "" if column.name == "algorithm" else "all"
        yield Choice(column, about, _of(column.name), common=common)
    yield Choice(
        _count("bits", "bits"),
        "bits of a value that is sent, of protocols that sum integers",
        lambda row: _bits(row.summary.config.get("group")),
        shown=False,
    )
    yield Choice(
        label("link"),
        "link of the modelled seconds",
        lambda row: str(row.summary.link),
        common="all",
    )
    for way, verb in (("up", "sends"), ("down", "receives")):
        yield Choice(
            size(f"bytes_{way}_mean", way, "/device"),
            f"mean of what a device in the sum {verb} in a round",
            _of(f"total.bytes_{way}_mean"),
        )
    for name, title, about, path in (
        (
            "device_cpu_seconds_median",
            "device CPU",
            "CPU time of the slowest device of a round, median over rounds",
            "total.device_cpu_seconds.median",
        ),
        (
            "device_cpu_seconds_p95",
            "device CPU p95",
            "the same, 95th percentile",
            "total.device_cpu_seconds.p95",
        ),
        (
            "server_cpu_seconds_median",
            "server CPU",
            "CPU time of the server in a round, median over rounds",
            "total.server_cpu_seconds.median",
        ),
        (
            "all_cpu_seconds_median",
            "all CPU",
            "CPU time of all devices and the server together in a round, median over rounds",
            "all_cpu_seconds.median",
        ),
        (
            "round_seconds_median",
            "round measured",
            "elapsed time of a round, median over rounds",
            "round_seconds.median",
        ),
        (
            "round_seconds_low",
            "round from",
            "lower end of the 95 % interval of that median, by order statistics, from 6 rounds on",
            "round_seconds_interval.low",
        ),
        ("round_seconds_high", "round to", "its upper end", "round_seconds_interval.high"),
        (
            "round_seconds_p95",
            "round p95",
            "elapsed time of a round, 95th percentile",
            "round_seconds.p95",
        ),
        (
            "modelled_round_seconds_median",
            "round modelled",
            "time of a round over the modelled link, median over rounds",
            "modelled_round_seconds.median",
        ),
    ):
        shown = name.endswith("_median") and name != "all_cpu_seconds_median"
        elapsed = name.startswith("round_seconds")
        yield Choice(seconds(name, title), about, _of(path), shown=shown, elapsed=elapsed)
    for name, title, about, path in (
        (
            "accuracy",
            "accuracy",
            "on held-out data after the last round, median over launches",
            "accuracy.median",
        ),
        (
            "accuracy_best",
            "best accuracy",
            "highest accuracy after any round, median over launches",
            "accuracy_best.median",
        ),
        ("accuracy_least", "accuracy from", "lowest accuracy of a launch", "accuracy.least"),
        ("accuracy_most", "accuracy to", "highest accuracy of a launch", "accuracy.most"),
        (
            "epsilon_proven",
            "epsilon",
            "privacy spent by the last round, as is proven, median over launches",
            "epsilon_proven.median",
        ),
        (
            "epsilon_paper",
            "epsilon, paper",
            "the same as the algorithm's paper counts",
            "epsilon_paper.median",
        ),
        ("epsilon_delta", "delta", "delta of these epsilons", "epsilon_delta"),
        (
            "target",
            "target",
            "accuracy of the next columns: --target-accuracy, or the run's own",
            "target",
        ),
        (
            "rounds_to_target",
            "rounds to target",
            "rounds of training until the target was reached, median over launches",
            "rounds_to_target.median",
        ),
    ):
        shown = name in (
            *("accuracy", "epsilon_proven", "epsilon_delta", "target", "rounds_to_target"),
        )
        common = "known" if name in ("epsilon_delta", "target") else ""
        yield Choice(
            _number(name, title), about, _of(f"reached.{path}"), shown=shown, common=common
        )
    yield Choice(
        size("bytes_to_target", "up to target"),
        "what all devices together had sent by then",
        _of("reached.bytes_to_target.median"),
    )
    yield Choice(
        seconds("seconds_to_target", "modelled to target"),
        "modelled time by then, training included",
        _of("reached.seconds_to_target.median"),
    )
    for party, about in (
        (
            "server",
            "largest resident memory of a rank of the server in a round; of the process, where "
            "there is one",
        ),
        ("device", "the same of a rank that holds devices"),
        ("helper", "the same of a helper's rank"),
    ):
        name = f"{party}_peak_bytes"
        yield Choice(size(name, f"{party} peak"), about, _of(name), shown=False)
    for name, title, about, path in (
        (
            "bytes_up_ratio",
            "up ratio",
            "bytes_up_mean of the baseline divided by the run's",
            "bytes_up",
        ),
        (
            "device_cpu_ratio",
            "device CPU ratio",
            "the same of device_cpu_seconds_median",
            "device_cpu",
        ),
        (
            "modelled_round_ratio",
            "round modelled ratio",
            "the same of modelled_round_seconds_median",
            "modelled_round",
        ),
    ):
        yield Choice(_ratio(name, title), about, _over(path), alone=False)
    for column, about, path in (
        (_count("launches", "launches"), "launches that are pooled in the row", "repeats"),
        (_count("rounds_measured", "rounds"), "measured rounds of all launches", "rounds_measured"),
        (
            _number("survivors_mean", "survivors"),
            "devices in the sum of a round, mean over rounds",
            "survivors_mean",
        ),
        (
            label("validated"),
            "whether the aggregate of every round was found right",
            "all_validated",
        ),
        (label("status"), "how the run ended", "status"),
        (label("transport"), "what moved the messages", "transport"),
        (label("file"), "results file, of the first launch", "name"),
        (label("path"), "the same with its folder", "path"),
    ):
        yield Choice(column, about, _of(path), shown=False)


# By the names that --columns takes, which are those of CSV and JSON.
COLUMNS = {choice.column.name: choice for choice in _all()}
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
