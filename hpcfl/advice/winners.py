"""Who is first where: the advice over a grid of settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from hpcfl.advice.advisor import advise
from hpcfl.costmodel.calibration import Calibration
from hpcfl.options.advise import AdviseOptions

# Vectors' lengths d, and what the upright axis has.
SIZES = tuple(round(size) for size in np.geomspace(1e3, 1e7, 17).tolist())
VALUES: Mapping[str, tuple[float, ...]] = {
    "devices": tuple(round(number) for number in np.geomspace(10, 1e4, 13).tolist()),
    "uplink-mbps": tuple(np.geomspace(1, 1000, 13).tolist()),
}


def grid(
    asked: AdviseOptions, calibration: Calibration, progress: Callable[[int], object]
) -> list[list[str | None]]:
    """Return the first protocol for every value of the upright axis and every d; None for none.

    There is a row for each of the `VALUES` of ``asked.over``, with one entry for each of `SIZES`.
    `progress` is told of every d.
    """
    columns = []
    for size in SIZES:
        column = []
        for value in VALUES[asked.over]:
            if asked.over == "devices":
                setting = replace(asked, dim=size, devices=int(value))
            else:
                setting = replace(asked, dim=size, uplink_mbps=value)
            choices = advise(setting, calibration).choices
            column.append(choices[0].protocol if choices else None)
        columns.append(column)
        progress(1)
    return [list(row) for row in zip(*columns, strict=True)]
