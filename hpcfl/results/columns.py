"""The columns that a table of runs can have: the name, the unit and the meaning of each, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcfl.errors import UsageError, no_such
from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import names, options_of
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.options.protocols import ProtocolOptions
from hpcfl.options.training import LocalOptions, TrainOptions
from hpcfl.report import formats
from hpcfl.report.table import Column, label, seconds, size
from hpcfl.results.summary import RATIOS, Summary, ratio


@dataclass(frozen=True)
class Row:
    """A row of a table of runs."""

    number: int  # from 1
    summary: Summary
    baseline: Summary | None  # what it is compared with

    def __getitem__(self, name: str) -> Any:
        """Return the value of a column: of the row, a figure of the summary, or an option."""
        if name == "row":
            return self.number
        if name in RATIOS:
            return ratio(self.baseline, self.summary, name)
        return self.summary.figures.get(name, self.summary.config.get(name))


def _count(name: str, title: str) -> Column:
    return Column(name, title, format=formats.count)


def _number(name: str, title: str) -> Column:
    return Column(name, title, format=formats.number)


def _times(name: str, title: str) -> Column:
    return Column(name, title, format=formats.ratio)


def _per_device(name: str, title: str) -> Column:
    return size(name, title, "/device")


# In the order of tables. Times are medians over rounds and accuracies medians over launches, where
# nothing else is said.
_ALL = (
    (label, "row", "#", "number that notes call the row by"),
    (label, "protocol", "protocol", "aggregation protocol, with its security if not the plain one"),
    (label, "algorithm", "algorithm", "federated algorithm, of training"),
    (_count, "devices", "N", "number of devices"),
    (_count, "dim", "d", "length of the vectors"),
    (_number, "alpha", "alpha", "density of what a device sends, of protocols that send a part"),
    (_number, "theta", "theta", "fraction of the devices that drop out of a round"),
    (_count, "bits", "bits", "bits of a value that is sent, of protocols that sum integers"),
    (label, "link", "link", "link of the modelled seconds"),
    (_per_device, "bytes_up_mean", "up", "what a device in the sum sends in a round, mean"),
    (_per_device, "bytes_down_mean", "down", "what a device in the sum receives in a round, mean"),
    (seconds, "device_cpu_seconds_median", "device CPU", "CPU time of the slowest device"),
    (seconds, "device_cpu_seconds_p95", "device CPU p95", "the same, 95th percentile"),
    (seconds, "server_cpu_seconds_median", "server CPU", "CPU time of the server in a round"),
    (seconds, "all_cpu_seconds_median", "all CPU", "CPU time of all parties together in a round"),
    (seconds, "round_seconds_median", "round measured", "elapsed time of a round"),
    (seconds, "round_seconds_low", "round from", "its 95 % interval by ranks, from 6 rounds on"),
    (seconds, "round_seconds_high", "round to", "its upper end"),
    (seconds, "round_seconds_p95", "round p95", "elapsed time of a round, 95th percentile"),
    (seconds, "modelled_round_seconds_median", "round modelled", "time of a round over the link"),
    (_number, "accuracy", "accuracy", "on held-out data after the last round"),
    (_number, "accuracy_best", "best accuracy", "highest accuracy after any round"),
    (_number, "accuracy_least", "accuracy from", "lowest accuracy of a launch"),
    (_number, "accuracy_most", "accuracy to", "highest accuracy of a launch"),
    (_number, "epsilon_proven", "epsilon", "privacy spent by the last round, as is proven"),
    (_number, "epsilon_paper", "epsilon, paper", "the same as the algorithm's paper counts"),
    (_number, "epsilon_delta", "delta", "delta of these epsilons"),
    (_number, "target", "target", "accuracy of the next columns: --target-accuracy, or the run's"),
    (_number, "rounds_to_target", "rounds to target", "rounds until the target was reached"),
    (size, "bytes_to_target", "up to target", "what all devices together had sent by then"),
    (seconds, "seconds_to_target", "modelled to target", "modelled time by then, with training"),
    (size, "server_peak_bytes", "server peak", "largest resident memory of a rank of the server"),
    (size, "device_peak_bytes", "device peak", "the same of a rank that holds devices"),
    (size, "helper_peak_bytes", "helper peak", "the same of a helper's rank"),
    (_times, "bytes_up_ratio", "up ratio", "bytes_up_mean of the baseline over that of the run"),
    (_times, "device_cpu_ratio", "device CPU ratio", "the same of device_cpu_seconds_median"),
    (_times, "modelled_round_ratio", "round modelled ratio", "and of modelled round seconds"),
    (_count, "launches", "launches", "launches that are pooled in the row"),
    (_count, "rounds_measured", "rounds", "measured rounds of all launches"),
    (_number, "survivors_mean", "survivors", "devices in the sum of a round, mean over rounds"),
    (label, "validated", "validated", "whether the aggregate of every round was found right"),
    (label, "status", "status", "how the run ended"),
    (label, "transport", "transport", "what moved the messages"),
    (label, "file", "file", "results file, of the first launch"),
    (label, "path", "path", "the same with its folder"),
)
# What is shown only where it is asked for,
_HIDDEN = {
    *("bits", "device_cpu_seconds_p95", "all_cpu_seconds_median", "round_seconds_low"),
    *("round_seconds_high", "round_seconds_p95", "accuracy_best", "accuracy_least"),
    *("accuracy_most", "epsilon_paper", "server_peak_bytes", "device_peak_bytes"),
    *("helper_peak_bytes", "launches", "rounds_measured", "survivors_mean", "validated", "status"),
    *("transport", "file", "path"),
}
# said once, above the table, where all rows have the same value,
COMMON = {"devices", "dim", "alpha", "theta", "link"}
# or all that have any,
COMMON_IF_KNOWN = {"epsilon_delta", "target"}
# and what a run has only beside others.
_BESIDE = {"row", *RATIOS}


@dataclass(frozen=True)
class Choice:
    """A column that a table of runs can have."""

    column: Column
    about: str
    shown: bool = True  # where no columns are asked for, and it has a value

    @property
    def name(self) -> str:
        """What --columns, CSV and JSON call it."""
        return self.column.name


COLUMNS = {
    name: Choice(kind(name, title), about, name not in _HIDDEN) for kind, name, title, about in _ALL
}
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
    kinds = [[one for one in summaries if bool(one["algorithm"]) == which] for which in (0, 1)]
    rest = [
        name
        for name in _OPTIONS
        if name in OPTIONS
        or any(len({repr(one.config.get(name)) for one in kind}) > 1 for kind in kinds)
    ]
    alone = [choice for name, choice in COLUMNS.items() if name not in _BESIDE]
    return [*alone, *(_named(name) for name in rest if name not in (*COLUMNS, *_PLACES))]


def telling_apart(rows: Sequence[Row]) -> list[Choice]:
    """Return columns for the options in which runs of one protocol differ, none that is shown."""
    found = [(name, _named(_AS.get(name, name))) for name in TOLD_APART]
    return [
        choice
        for name, choice in found
        if not (choice.name in COLUMNS and choice.shown) and _differ(rows, choice, name)
    ]


def _differ(rows: Sequence[Row], choice: Choice, name: str) -> bool:
    """Return whether runs of one protocol, of the same precision for levels, have two values."""
    values: dict[tuple[str, ...], set[str]] = {}
    for row in rows:
        # How many levels there are follows from the group, unless it was asked for.
        group = str(name == "levels" and row.summary.config.get("group"))
        kind = (row["protocol"], str(row["algorithm"]), group)
        values.setdefault(kind, set()).add(repr(row[choice.name]))
    return any(len(found) > 1 for found in values.values())


def _named(name: str) -> Choice:
    if name in COLUMNS:
        return COLUMNS[name]
    if name in _OPTIONS:
        return Choice(label(name), _OPTIONS[name].help)
    raise no_such("column", name, [*COLUMNS, *_OPTIONS], place="--columns: ")
