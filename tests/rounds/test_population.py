"""Populations by name and from tables, and when their devices are there."""

import math

import h5py
import numpy as np
import pytest

from hpcfl.errors import UsageError
from hpcfl.options.shared import LinkOptions
from hpcfl.populations.population import COLUMNS, NAMES, Population, draw, load, save

ROW = {"uplink_mbps": [8.0] * 3, "downlink_mbps": [9.5] * 3, "latency_ms": [0, 1, 2]}
ROW |= {"compute": [1, 2, 4.5]}
FIGURES = {  # quantiles of uplink, downlink, latency and factor
    "mobile": {0.5: (11, 36, 40, 4), 0.95: (44, 144, 120, 14), 0.05: (11 / 4, 9, 40 / 3, 4 / 3.5)},
    "iot": {0.0: (0.375, 0.3, 100, 5), 1.0: (1.0, 0.8, 6200, 40), 0.5: (0.612, 0.49, 787, 14.1)},
    "silo": {0.0: (1e3, 1e3, 1, 1), 1.0: (1e4, 1e4, 40, 1), 0.5: (3162, 3162, 6.32, 1)},
}


@pytest.mark.parametrize("name", NAMES)
def test_a_named_population_has_the_stated_quantiles_and_the_same_first_devices(name):
    few, many = draw(name, 5, 3), draw(name, 100_000, 3)
    for column in COLUMNS:
        assert getattr(few, column).tolist() == getattr(many, column)[:5].tolist()
    for q, expected in FIGURES.get(name, {}).items():
        found = [np.quantile(getattr(many, column), q) for column in COLUMNS]
        np.testing.assert_allclose(found, expected, rtol=0.05)


@pytest.mark.parametrize("suffix", [".csv", ".h5"])
def test_a_table_is_read_from_both_formats(tmp_path, suffix):
    path, table = tmp_path / f"some{suffix}", ROW | {"on_intervals": ["0-5;7-9", "", "1-2"]}
    table |= {"period_seconds": [10.0, 10.0, 4.0]}
    if suffix == ".csv":
        save(path, table)
        path.write_text(path.read_text() + "\n")
    else:
        with h5py.File(path, "w") as file:
            for column, values in table.items():
                file[column] = np.array(values, "S" if column == "on_intervals" else float)
    known = load(str(path), 3, seed=0)

    assert [len(load(str(path), n, seed=0)) for n in (3, None, 2)] == [3, 3, 2]
    assert all(getattr(known, column).tolist() == values for column, values in ROW.items())
    # A device is there from the beginning of an interval to before its end, in every period.
    until = [known.there_until(0, when) for when in (0, 4.9, 5, 7, 9, 10, 17.5)]
    assert until == [5, 5, -math.inf, 9, -math.inf, 15, 19]
    assert [known.there_until(2, when) for when in (1, 5.5, 7)] == [2, 6, -math.inf]
    # An interval may go on in the next period.
    on = Population("", *np.ones((4, 2)), switches=[[0, 2, 8, 9], [0, 9]], period_seconds=[9, 9])
    assert [on.there_until(id, 17.0) for id in (0, 1)] == [20, math.inf]


@pytest.mark.parametrize(
    ("change", "devices", "reason"),
    [
        ({"latency_ms": None}, 3, "has no column latency_ms"),
        ({}, 4, "has 3 devices, and the run has 4"),
        ({"compute": [1, 2, "fast"]}, 3, "row 3: compute must be a number from 1e-09 on"),
        ({"latency_ms": [1, "inf", 0]}, 3, "row 2: latency_ms must be a number from 0 on"),
        ({"on_intervals": ["0-1", "3-2", ""]}, 3, "like 0-3600;7200-9000, not '3-2'"),
        ({"on_intervals": ["", "", "0-9"], "period_seconds": [9, 9, 8]}, 3, "within 8 s"),
        ({"mean_on_seconds": [1, 1, 1]}, 3, "has no column mean_off_seconds"),
        ({"period_seconds": [9, 9, 9]}, 3, "has no column on_intervals"),
        ({"on_interval": ["0-1"] * 3}, 3, "has a column on_interval; a population has uplink_mbps"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path, change, devices, reason):
    save(tmp_path / "t.csv", {k: v for k, v in (ROW | change).items() if v is not None})
    with pytest.raises(UsageError, match=reason):
        load(str(tmp_path / "t.csv"), devices, seed=0)


def test_mean_times_are_those_of_exponential_durations(tmp_path):
    """With another seed, a right program fails with a probability below 1e-5."""
    n, on, off = 4000, 30.0, 10.0
    columns = {k: v[:1] * n for k, v in ROW.items()} | {"compute": [1] * n}
    save(tmp_path / "t.csv", columns | {"mean_on_seconds": [on] * n, "mean_off_seconds": [off] * n})
    known = load(str(tmp_path / "t.csv"), n, seed=1)
    for when in (0.0, 55.0):
        until = np.array([known.there_until(id, when) for id in range(n)])
        left = until[np.isfinite(until)] - when
        # Five standard deviations of a share, of a mean, and of the share below the median.
        assert abs(left.size / n - on / (on + off)) < 5 * math.sqrt(0.75 * 0.25 / n)
        assert abs(left.mean() - on) < 5 * on / math.sqrt(left.size)
        assert abs(np.mean(left < on * math.log(2)) - 0.5) < 2.5 / math.sqrt(left.size)
    assert load(str(tmp_path / "t.csv"), 9, seed=1).there_until(8, 55.0) == until[8]


def test_links_are_those_of_the_population_or_of_the_options():
    slow = LinkOptions(downlink_mbps=10)
    assert load("uniform", 2, 0, slow).downlink_mbps.tolist() == [10, 10]
    with pytest.raises(UsageError, match="have links of their own: leave --uplink-mbps, --d"):
        load("mobile", 2, 0, slow)
