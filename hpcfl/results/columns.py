"""Columns of tables of runs, with their names, units and meanings."""

from __future__ import annotations

from collections.abc import Sequence

from hpcfl.errors import UsageError, no_such
from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import names, options_of
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.options.protocols import ProtocolOptions
from hpcfl.options.training import LocalOptions, TrainOptions
from hpcfl.report import formats
from hpcfl.report.table import Column, count, label, number, seconds, size
from hpcfl.results.summary import RATIOS, Summary


def _times(name: str, title: str, about: str) -> Column:
    return Column(name, title, format=formats.ratio, about=about)


# Columns shown by default, in table order, if a run has a value for them. Unless stated otherwise,
# times are medians over rounds and accuracies are medians over launches.
_SHOWN = (
    label("row", "#", "number that notes call the row by"),
    label("protocol", "protocol", "aggregation protocol and its variant, if not the plain one"),
    label("algorithm", "algorithm", "federated algorithm, of training"),
    count("devices", "N", "number of devices"),
    count("dim", "d", "length of the vectors"),
    number("alpha", "alpha", "density of what a device sends, of protocols that send a part"),
    number("theta", "theta", "fraction of the devices that drop out of a round"),
    label("link", "link", "link of the modelled seconds"),
    label("compiled", "compiled code", "which compiled code rounds could use"),
    size("bytes_up_mean", "up", "/device", about="what a device in the sum sends in a round, mean"),
    size(
        "bytes_down_mean", "down", "/device", about="what such a device receives in a round, mean"
    ),
    seconds("device_cpu_seconds_median", "device CPU", "CPU time of the slowest device"),
    size("member_bytes_up_mean", "member up", "", "what a member of a committee sends, mean"),
    seconds("member_cpu_seconds_median", "member CPU", "CPU time of the slowest member"),
    seconds("server_cpu_seconds_median", "server CPU", "CPU time of the server in a round"),
    seconds("round_seconds_median", "round measured", "elapsed time of a round"),
    seconds("modelled_round_seconds_median", "round modelled", "time of a round over the link"),
    size(
        *("upload_bytes_per_second", "uploads", "/s"),
        about="bytes of all uploads over the elapsed time of their phase; this and the next three "
        "columns are of long vectors",
    ),
    size("mpi_bytes_per_second", "plain MPI", "/s", "the same for messages without a protocol"),
    size(
        *("keystream_bytes_per_second", "keystream", "/s"),
        about="keystream of AES that a rank with devices makes in a CPU second",
    ),
    number(
        *("keystream_share", "device / keystream"),
        "rate at which a device masks its vector, quantises it and makes the message, over that of "
        "the bare keystream; median over devices and rounds",
    ),
    number("accuracy", "accuracy", "on held-out data after the last round"),
    number("accuracy_least", "accuracy from", "lowest accuracy of several launches"),
    number("accuracy_most", "accuracy to", "highest accuracy of several launches"),
    number(
        "epsilon_proven",
        "epsilon",
        "privacy spent by the last round, with a proof for the mechanism as run",
    ),
    number("epsilon_delta", "delta", "delta of these epsilons"),
    number("target", "target", "accuracy of the next columns: --target-accuracy, or the run's"),
    number("rounds_to_target", "rounds to target", "rounds until the target was reached"),
    size("bytes_to_target", "up to target", about="what all devices together had sent by then"),
    seconds("seconds_to_target", "modelled to target", "modelled time by then, with training"),
    _times("bytes_up_ratio", "up ratio", "bytes_up_mean of the baseline over that of the run"),
    _times("device_cpu_ratio", "device CPU ratio", "the same ratio for device_cpu_seconds_median"),
    _times(
        "modelled_round_ratio",
        "round modelled ratio",
        "the same ratio for modelled_round_seconds_median",
    ),
)
# Columns shown only on request.
_HIDDEN = (
    count("bits", "bits", "bits of a value that is sent, of protocols that sum integers"),
    seconds("device_cpu_seconds_p95", "device CPU p95", "the same, 95th percentile"),
    seconds("all_cpu_seconds_median", "all CPU", "CPU time of all parties together in a round"),
    seconds("round_seconds_low", "round from", "its 95 % interval by ranks, from 6 rounds on"),
    seconds("round_seconds_high", "round to", "its upper end"),
    seconds("round_seconds_p95", "round p95", "elapsed time of a round, 95th percentile"),
    number("accuracy_best", "best accuracy", "highest accuracy after any round"),
    number("epsilon_paper", "epsilon, paper", "the same as the algorithm's paper counts"),
    size(
        "server_peak_bytes", "server peak", about="largest resident memory of a rank of the server"
    ),
    size("device_peak_bytes", "device peak", about="the same for a rank that holds devices"),
    size("helper_peak_bytes", "helper peak", about="the same for a helper's rank"),
    count("launches", "launches", "launches that are pooled in the row"),
    count("rounds_measured", "rounds", "measured rounds of all launches"),
    number("survivors_mean", "survivors", "devices in the sum of a round, mean over rounds"),
    number("late_mean", "late", "devices of a population that were late in a round, mean"),
    size("late_bytes_mean", "late up", "", "what they sent in vain for it, mean"),
    number("never_in_sum", "never in a sum", "fraction of the devices that no sum has"),
    label("validated", "validated", "whether the aggregate of every round was found right"),
    label("status", "status", "how the run ended"),
    label("transport", "transport", "what moved the messages"),
    label("file", "file", "results file, of the first launch"),
    label("path", "path", "results file with its folder"),
)
COLUMNS = {column.name: column for column in (*_SHOWN, *_HIDDEN)}
SHOWN = {column.name for column in _SHOWN}
# Columns that move into the title of the table if all rows have the same value.
COMMON = {"devices", "dim", "alpha", "theta", "link", "compiled", "epsilon_delta", "target"}

_OPTIONS = {**options_of(BenchOptions), **options_of(TrainOptions)}
# Options that get a column of their own if runs of one protocol and algorithm differ in them.
TOLD_APART = tuple(
    dict.fromkeys(
        name
        for group in (ProtocolOptions, PrivacyOptions, LocalOptions, TrainOptions)
        for name in names(group, "label")
    )
)
# Options that a column shows under another name.
_AS = {"dropout": "theta", "group": "bits"}
# Options about files, which do not affect what is measured.
_PLACES = {"output", "resume", "data_dir", "checkpoint_every"}


def choose(text: str) -> list[Column]:
    """Return the columns with the given comma-separated names, in the given order.

    A name is one of `COLUMNS` or an option of bench or train. Raises UsageError for an unknown or
    repeated name.
    """
    names = [name.strip().replace("-", "_") for name in text.split(",")]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--columns has {name} twice")
    return [_named(name) for name in names]


def of_runs(summaries: Sequence[Summary]) -> list[Column]:
    """Return all columns that describe a single run, for a table with one row per run.

    These are `COLUMNS` except those that compare runs, and the options that any run has a value of.
    """
    given = [
        name
        for name in _OPTIONS.keys() - COLUMNS.keys() - _PLACES
        if any(formats.has_value(one.config.get(name)) for one in summaries)
    ]
    alone = [column for name, column in COLUMNS.items() if name not in ("row", *RATIOS)]
    return [*alone, *map(_named, sorted(given))]


def telling_apart(rows: Sequence[Summary]) -> list[Column]:
    """Return columns for the options in which runs of one protocol differ, except `SHOWN`."""
    found = []
    for column in (_named(_AS.get(name, name)) for name in TOLD_APART):
        values: dict[tuple[str, str], set[str]] = {}
        for row in rows:
            kind = (row["protocol"], str(row["algorithm"]))
            values.setdefault(kind, set()).add(repr(row.value(column.name)))
        if column.name not in SHOWN and any(len(several) > 1 for several in values.values()):
            found.append(column)
    return found


def _named(name: str) -> Column:
    if name in COLUMNS:
        return COLUMNS[name]
    if name in _OPTIONS:
        return label(name, about=_OPTIONS[name].help)
    raise no_such("column", name, [*COLUMNS, *_OPTIONS], place="--columns: ")
