"""Which device has how many samples of which class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcfl.errors import UsageError
from hpcfl.plots.style import new_figure
from hpcfl.results.reader import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# With more cells than this in a row, numbers would overlap.
WRITTEN_COLUMNS = 30


def draw(run: Run) -> Figure:
    """Return a map of a training run's samples: devices across, classes up, numbers as colours.

    Raises
    ------
    UsageError
        If the run did not train.
    """
    if run.partition is None:
        raise UsageError(f"{run.path} holds no partition: it is not of hpcfl train")
    table = run.partition.T
    classes, devices = table.shape
    width = min(14.0, max(4.5, 2.2 + 0.3 * devices))
    figure, (axes,) = new_figure(width, min(12.0, max(3.0, 1.4 + 0.26 * classes)))
    image = axes.imshow(table, origin="lower", aspect="auto", cmap="Blues", vmin=0)
    axes.set_xlabel("device")
    axes.set_ylabel("class")
    axes.set_yticks(range(0, classes, max(1, classes // 20)))
    axes.set_xticks(range(0, devices, max(1, devices // 20)))
    settings = f"{run.config['dataset']}, {run.config['partition']}"
    axes.set_title(f"{settings}: {table.sum():,} samples on {devices} devices", fontsize=10)
    figure.colorbar(image, ax=axes, label="samples", pad=0.01)
    if devices <= WRITTEN_COLUMNS:
        dark = table.max() / 2
        for row, column in np.argwhere(table).tolist():
            count = int(table[row, column])
            colour = "white" if count > dark else "black"
            axes.text(column, row, f"{count}", ha="center", va="center", size=6, color=colour)
    return figure
