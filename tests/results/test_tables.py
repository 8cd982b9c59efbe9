import pytest
from run_files import simple_record

from hpcfl.report.table import RULE
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.pooling import apart, summarised
from hpcfl.results.reader import load
from hpcfl.results.summary import summarise
from hpcfl.results.tables import (
    comparison,
    render_run,
)

LINK = LinkModel(uplink_mbps=8, downlink_mbps=16, latency_ms=1)


@pytest.fixture
def summaries(make_run):
    paths = [
        make_run("sparse.h5", [simple_record(k) for k in (1, 2, 3)]),
        make_run("secagg.h5", [simple_record(4)], protocol="secagg", alpha=None),
    ]
    return [summarise(load(path), LINK) for path in paths]


def test_a_run_says_how_surely_it_is_known_why_it_stopped_and_what_disturbed_it(make_run):
    rounds = [simple_record(k) for k in (50, 1, 2, 3, 4, 5, 6)]
    run = load(make_run("run.h5", rounds, environment={"ranks": 3, "cores_usable": 2}))
    run.environment["stop_reason"] = "rel_ci"
    summary = summarise(run, LINK)
    text = render_run(summary)

    for words in (
        "stopped because the median's interval was narrow enough (rel_ci)",
        # Seven samples: the second smallest to the second largest would cover 87.5 %.
        "95 % interval of the median [0.100, 5.000] s",
        "first round   5.000 s (measured, 12.50 times the median)",
        "warning: the first round took 12.5 times",
    ):
        assert words in text
    notes = comparison([summary, summary]).notes
    assert any(note.startswith("warning: rows 1, 2: the first round took") for note in notes)
    assert "row 1: run.h5; 7 measured rounds, 95 % interval of the median [0.100, 5.000] s" in notes


def test_rows_are_in_the_order_of_their_sizes(make_run):
    sizes = [100, 25, 50, 75]
    runs = [load(make_run(f"{dim}.h5", [simple_record()], dim=dim)) for dim in sizes]
    found = summarised(apart(runs))

    assert [summary["dim"] for _, summary in found] == sorted(sizes)
    # Between those that cannot be compared there is a line.
    assert [row == RULE for row in comparison([s for _, s in found]).rows] == [
        *(False, True, False, True, False, True, False)
    ]


def test_what_all_rows_have_in_common_is_said_once(make_run):
    def table(*alphas):
        runs = [
            load(make_run(f"{alphas}{number}.h5", [simple_record()], alpha=alpha))
            for number, alpha in enumerate(alphas)
        ]
        return comparison([summarise(run, LINK) for run in runs])

    def names(table):
        return {column.name for column in table.columns}

    alike = table(0.1, 0.1)
    assert "alpha = 0.1" in alike.title
    assert "alpha" not in names(alike)
    assert "alpha" not in table(None, None).title
    for alphas in ((0.1, None), (0.1, 0.2)):
        assert "alpha" in names(table(*alphas))


def test_a_comparison_gives_ratios_and_the_absolute_values_of_its_base(summaries):
    table = comparison(summaries)

    assert table.title == "What a round costs, N = 4, d = 10, theta = 0.25"
    assert table.notes[0].startswith("baseline: row 2 (secagg); a ratio is baseline / this run")
    assert table.notes[1].endswith("modelled: for 8 Mbit/s up, 16 Mbit/s down, 1 ms latency")
    # Medians of scale 2 against scale 4: bytes 420 against 840, CPU 14 against 28 ms, modelled
    # 2 * 70.1525 + 4 ms against 4 * 70.1525 + 4 ms.
    assert [" ".join(row) for row in table.cells] == [
        "1 sparse 0.1 420 50 14.00 120.0 200.0 144.3 2.00x 2.00x 1.97x",
        "2 secagg - 840 100 28.00 240.0 400.0 284.6 1.00x 1.00x 1.00x",
    ]
    assert table.records()[0]["device_cpu_seconds_median"] == pytest.approx(0.014)
