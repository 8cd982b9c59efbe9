"""The figure of speed-up shows what the study holds, measured apart from modelled."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scaled_runs import scaled

from hpcfl.plots import PlotOptions, speedup
from hpcfl.results.scaling import study


def curves(axes, style):
    """Return the points of the lines of a panel that have one style: no samples of the legend."""
    found = [line for line in axes.lines if line.get_linestyle() == style and len(line.get_xdata())]
    return [
        (list(line.get_xdata()), list(line.get_ydata()))
        for line in found
        if line.get_color() != "0.85"
    ]


@pytest.fixture
def runs(tmp_path):
    return [
        scaled(tmp_path, n, seconds / (n - 1) ** 0.5, cores=6, protocol=protocol)
        for n, (protocol, seconds) in itertools.product(
            (2, 3, 5, 9), (("secagg", 20.0), ("fedavg", 10.0))
        )
    ]


def test_panels_show_the_points_of_the_study(runs):
    found = study(runs, "ranks")
    figure = speedup.draw(found, PlotOptions())
    panels = ("seconds", "cpu_seconds", "speed_up", "efficiency")

    for axes, name in zip(figure.axes, panels, strict=True):
        for line, (x, y) in zip(found.lines, curves(axes, "-"), strict=True):
            assert x == [1, 2, 4, 8]
            np.testing.assert_allclose(y, [getattr(point, name) for point in line.points])
    # The crosses of 8, whose ranks share cores, are where there is something to cross out.
    crosses = [
        [one.get_xdata() for one in axes.lines if one.get_marker() == "x"] for axes in figure.axes
    ]
    crossed = [sorted(x[0] for x in of_panel if len(x)) for of_panel in crosses]
    assert crossed == [[8, 8], [8, 8], [], []]


def test_grey_is_ideal(runs):
    strong = study(runs, "ranks")
    weak = replace(strong, lines=tuple(replace(one, mode="weak") for one in strong.lines))
    for found, powers in ((strong, (-1, 0, 1, 0)), (weak, (0, 1, 1, 0))):
        figure = speedup.draw(found, PlotOptions())
        for axes, power in zip(figure.axes, powers, strict=True):
            (guide,) = [line for line in axes.lines if line.get_color() == "0.85"]
            low, high = guide.get_ydata()
            assert math.log(high / low, 8) == pytest.approx(power)
