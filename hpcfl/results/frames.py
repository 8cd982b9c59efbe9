"""Runs as pandas data frames with one row per run or one row per round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfl.errors import MissingPackageError
from hpcfl.report import formats
from hpcfl.results.columns import choose, of_runs
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import Run
from hpcfl.results.record import Flags, Floats
from hpcfl.results.schema import Metric
from hpcfl.results.summary import summarise, training_seconds

if TYPE_CHECKING:
    import pandas as pd


def _pandas() -> Any:
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingPackageError("a data frame", "pandas", "table") from error
    return pd


def of_each_run(
    runs: Sequence[Run],
    columns: Sequence[str] | None = None,
    target: float | None = None,
    **link: float | None,
) -> pd.DataFrame:
    """Return a frame with a row for each run; see :meth:`hpcfl.api.Runs.to_frame`."""
    pd = _pandas()
    summaries = [summarise(run, run.link(**link), target) for run in runs]
    chosen = of_runs(summaries) if columns is None else choose(",".join(columns))
    found = pd.DataFrame(
        [[summary.value(column.name) for column in chosen] for summary in summaries],
        columns=[column.name for column in chosen],
    )
    # Otherwise a numeric column without any value would have the type object.
    numbers = [column.name for column in chosen if column.align == "right"]
    unknown = [name for name in numbers if found[name].isna().all()]
    return found.astype(dict.fromkeys(unknown, "float64"))


def of_each_round(runs: Sequence[Run], **link: float | None) -> pd.DataFrame:
    """Return a frame with a row for each round of each run, warm-up included.

    ``PHASE_wall_seconds`` is the longest time of a device or the server, ``device_cpu_seconds`` the
    CPU time of the slowest device. Modelled seconds are known for measured rounds only, and include
    local training. Values that a run lacks, such as another protocol's phases, are missing.
    """
    pd = _pandas()
    found = [pd.DataFrame(_rounds(run, run.link(**link))) for run in runs]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def _rounds(run: Run, link: LinkModel) -> dict[str, Any]:
    """Return the columns of one run: an array with a value per round, or one value for all."""
    modelled = _spread(run.modelled_seconds(link), run.measured)
    slowest = _spread(run.slowest_cpu_seconds("device"), run.measured)
    columns: dict[str, Any] = {
        "path": str(run.path),
        "run_id": run.run_id,
        "protocol": run.protocol,
        "algorithm": run.config.get("algorithm") if run.training else None,
        "devices": run.devices,
        "dim": run.dim,
        "seed": run.config.get("seed"),
        "round": np.arange(run.rounds),
        "warmup": run.warmup,
        "validated": run.validated,
        "survivors": run.survived.sum(axis=1),
        "bytes_up": run.bytes_up.sum(axis=(1, 2)),
        "bytes_down": run.bytes_down.sum(axis=(1, 2)),
        "round_seconds": run.round_seconds,
        "modelled_seconds": (training_seconds(run, link) if run.training else modelled.sum(axis=1)),
        "device_cpu_seconds": slowest[:, -1],
        "server_cpu_seconds": run.cpu_seconds[..., -1].sum(axis=1),
    }
    for number, phase in enumerate(map(formats.words, run.phases)):
        columns |= {
            f"{phase}_bytes_up": run.bytes_up[:, number].sum(axis=1),
            f"{phase}_bytes_down": run.bytes_down[:, number].sum(axis=1),
            f"{phase}_wall_seconds": run.wall_seconds[:, number].max(axis=1),
            f"{phase}_modelled_seconds": modelled[:, number],
            f"{phase}_device_cpu_seconds": slowest[:, number],
            f"{phase}_server_cpu_seconds": run.cpu_seconds[:, number, -1],
        }
    # The recorded modelled seconds stay out: they are for the recorded link, not for `link`.
    return columns | {
        name: values for name, values in run.training.items() if name != Metric.MODELLED_SECONDS
    }


def _spread(values: Floats, measured: Flags) -> Floats:
    """Return values of the measured rounds as an array over all rounds, NaN for the others."""
    spread = np.full((len(measured), *values.shape[1:]), np.nan)
    spread[measured] = values
    return spread
