"""Runs as tables for programs: a row for each run, or for each round of each.

Plain records need nothing; a frame needs pandas, which is loaded where one is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import MissingPackageError
from hpcfl.report import formats
from hpcfl.report.table import Column, Table, label
from hpcfl.results.columns import Row, choose, of_runs
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import Run
from hpcfl.results.schema import Metric
from hpcfl.results.summary import summarise, training_seconds

if TYPE_CHECKING:
    import pandas as pd


def of_each_run(
    runs: Sequence[Run],
    columns: Sequence[str] | None = None,
    target: float | None = None,
    **link: float | None,
) -> Table:
    """Return a table with a row for each run, in their order; resumed training is one run.

    Parameters
    ----------
    runs : sequence of Run
        Any runs.
    columns : sequence of str, optional
        Names of :data:`~hpcfl.results.columns.COLUMNS` or of options of bench and train; by default
        what :func:`~hpcfl.results.columns.of_runs` returns.
    target : float, optional
        Accuracy that training is to reach; by default the run's own.
    **link
        The link of the modelled seconds, as for :meth:`~hpcfl.results.reader.Run.link`.

    Raises
    ------
    UsageError
        If there is no such column, or a link cannot be.
    """
    summaries = [summarise(run, run.link(**link), target) for run in runs]
    chosen = of_runs(summaries) if columns is None else choose(",".join(columns))
    rows = [Row(number, summary, None) for number, summary in enumerate(summaries, 1)]
    return Table(
        [choice.column for choice in chosen],
        [[choice.value(row) for choice in chosen] for row in rows],
        "Runs",
    )


def of_each_round(runs: Sequence[Run], **link: float | None) -> Table:
    """Return a table with a row for each run and round, warm-up included.

    Bytes are those of all devices together. ``PHASE_wall_seconds`` are of the slowest of devices
    and server, ``device_cpu_seconds`` of the slowest device. Modelled seconds are of rounds that
    are measured, those of training with what devices trained. What a run does not have, such as
    another protocol's phases, has no value. `link` is as for `of_each_run`.
    """
    tables = [_rounds(run, run.link(**link)) for run in runs]
    names = dict.fromkeys(name for table in tables for name in table)
    rows = [
        [table[name][index] if name in table else None for name in names]
        for table in tables
        for index in range(len(table["round"]))
    ]
    words = {"path", "run_id", "protocol", "algorithm", "warmup", "validated"}
    return Table(
        [label(name, name) if name in words else Column(name, name) for name in names],
        rows,
        "Rounds",
    )


def frame(table: Table) -> pd.DataFrame:
    """Return a table as a pandas DataFrame; MissingPackageError without pandas."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingPackageError("a data frame", "pandas", "table") from error
    names = [column.name for column in table.columns]
    made = pd.DataFrame.from_records([tuple(row) for row in table.values], columns=names)
    for column in table.columns:
        # A number that no run has would be an object.
        if column.align == "right" and made[column.name].isna().all():
            made[column.name] = made[column.name].astype("float64")
    return made


def _rounds(run: Run, link: LinkModel) -> dict[str, list[Any]]:
    """Return the columns of one run, with a value for each of its rounds."""
    measured = run.measured
    modelled = _spread(run.modelled_seconds(link), measured)
    slowest = _spread(run.slowest_cpu_seconds("device"), measured)
    whole = training_seconds(run, link) if run.training else modelled.sum(axis=1)
    same = {
        "path": str(run.path),
        "run_id": run.run_id,
        "protocol": run.protocol,
        "algorithm": run.config.get("algorithm") if run.training else None,
        "devices": run.devices,
        "dim": run.dim,
        "seed": run.config.get("seed"),
    }
    each: dict[str, NDArray[Any] | None] = {
        "round": np.arange(run.rounds),
        "warmup": run.warmup,
        "validated": run.validated,
        "survivors": run.survived.sum(axis=1),
        "bytes_up": run.bytes_up.sum(axis=(1, 2)),
        "bytes_down": run.bytes_down.sum(axis=(1, 2)),
        "round_seconds": run.round_seconds,
        "modelled_seconds": whole,
        "device_cpu_seconds": slowest[:, -1],
        "server_cpu_seconds": run.cpu_seconds[..., -1].sum(axis=1),
    }
    for number, phase in enumerate(map(formats.words, run.phases)):
        each |= {
            f"{phase}_bytes_up": run.bytes_up[:, number].sum(axis=1),
            f"{phase}_bytes_down": run.bytes_down[:, number].sum(axis=1),
            f"{phase}_wall_seconds": run.wall_seconds[:, number].max(axis=1),
            f"{phase}_modelled_seconds": modelled[:, number],
            f"{phase}_device_cpu_seconds": slowest[:, number],
            f"{phase}_server_cpu_seconds": run.cpu_seconds[:, number, -1],
        }
    # Those that have a column already are the recorded link's.
    each |= {
        name: values
        for name, values in run.training.items()
        if values.ndim == 1 and name != Metric.MODELLED_SECONDS
    }
    columns = {name: [value] * run.rounds for name, value in same.items()}
    return columns | {
        name: [None] * run.rounds if values is None else values.tolist()
        for name, values in each.items()
    }


def _spread(values: NDArray[np.float64], measured: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return values of the measured rounds as those of all rounds, NaN where there is none."""
    spread = np.full((len(measured), *values.shape[1:]), np.nan)
    spread[measured] = values
    return spread
