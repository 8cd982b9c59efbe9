from dataclasses import replace

import pytest
from run_files import simple_record

from hpcfl.report.table import RULE
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.pooling import apart, summarised
from hpcfl.results.reader import load
from hpcfl.results.summary import summarise
from hpcfl.results.tables import (
    comparison,
    details,
    phases,
    promises,
    render_run,
)

LINK = LinkModel(uplink_mbps=8, downlink_mbps=16, latency_ms=1)


@pytest.fixture
def summaries(make_run):
    paths = [
        make_run("sparse.h5", [simple_record(k) for k in (1, 2, 3)]),
        make_run("secagg.h5", [simple_record(4)], protocol="secagg", alpha=None),
        # As wide as it gets: many bytes and long times.
        make_run("big.h5", [simple_record(10**6)], protocol="secagg-graph", dim=10**8),
    ]
    return [summarise(load(path), LINK) for path in paths]


def compared(summaries, baseline=None):
    return comparison(summaries, baseline)


def cells(table, first):
    (row,) = [row for row in table.cells if row[0] == first]
    return row


def test_a_run_is_shown_phase_by_phase(summaries):
    table = phases(summaries[0])

    # Rounds of scale 1, 2, 3: medians are those of scale 2, p95 those of scale 2.9.
    assert " ".join(cells(table, "masked_input")[1:]) == (
        "400 0 10.00 14.50 15.00 18.00 26.10 27.00 40.00 51.20"
    )
    assert " ".join(cells(table, "total")[1:]) == (
        "420 50 14.00 20.30 21.00 32.00 46.40 48.00 120.0 144.3"
    )


def test_a_run_says_what_was_measured_and_what_was_modelled(summaries):
    lines = render_run(summaries[0]).splitlines()

    assert "protocol      sparse" in lines
    assert "devices N     4" in lines
    assert "rounds        3 measured + 0 of warm-up" in lines
    assert "validated     3/3" in lines
    assert "survivors     3 of 4 on average" in lines
    assert "transport     loopback" in lines
    assert "MPI library   none (one process)" in lines
    assert "link model    8 Mbit/s up, 16 Mbit/s down, 1 ms latency" in lines
    assert "modelled      median 0.144 s, p95 0.207 s, max 0.214 s" in lines
    assert "first round   0.100 s (measured, 0.50 times the median)" in lines
    assert (
        "measured      median 0.200 s, p95 0.290 s, max 0.300 s; no 95 % interval of the median: "
        "that takes 6 measured rounds" in lines
    )


def test_a_run_says_how_surely_it_is_known_why_it_stopped_and_what_disturbed_it(make_run):
    rounds = [simple_record(k) for k in (50, 1, 2, 3, 4, 5, 6)]
    run = load(make_run("run.h5", rounds, environment={"ranks": 3, "cores_usable": 2}))
    run.environment["stop_reason"] = "rel_ci"
    summary = summarise(run, LINK)
    lines = render_run(summary).splitlines()

    (rounds_line,) = (line for line in lines if line.startswith("rounds "))
    assert rounds_line.endswith(
        "7 measured + 0 of warm-up; "
        "stopped because the median's interval was narrow enough (rel_ci)"
    )
    # Seven samples: the second smallest to the second largest would cover 87.5 %.
    assert any("95 % interval of the median [0.100, 5.000] s" in line for line in lines)
    assert "first round   5.000 s (measured, 12.50 times the median)" in lines
    warned = [line for line in lines if line.startswith("warning: ")]
    assert warned[-1].startswith("warning: the first round took 12.5 times")
    assert max(map(len, lines)) < 120
    notes = compared([summary, summary]).notes
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
        return compared([summarise(run, LINK) for run in runs])

    def names(table):
        return {column.name for column in table.columns}

    alike = table(0.1, 0.1)
    assert "alpha = 0.1" in alike.title
    assert "alpha" not in names(alike)
    assert "alpha" not in table(None, None).title
    for alphas in ((0.1, None), (0.1, 0.2)):
        assert "alpha" in names(table(*alphas))


def test_a_run_without_measured_rounds_has_dashes(make_run):
    path = make_run("run.h5", [simple_record(warmup=True)], rounds=3, status="failed")
    summary = summarise(load(path), LINK)
    text = render_run(summary)

    assert cells(phases(summary), "total") == ["total", *["-"] * 10]
    assert "nan" not in text
    assert "rounds        0 measured + 1 of warm-up" in text
    assert "status        failed" in text


def test_a_comparison_gives_ratios_and_the_absolute_values_of_its_base(summaries):
    table = compared(summaries[:2])

    assert table.title == "What a round costs, N = 4, d = 10, theta = 0.25"
    assert table.notes[0].startswith("baseline: row 2 (secagg); a ratio is baseline / this run")
    assert table.notes[1].endswith("modelled: at 8 Mbit/s up, 16 Mbit/s down, 1 ms latency")
    # Medians of scale 2 against scale 4: bytes 420 against 840, CPU 14 against 28 ms, modelled
    # 2 * 70.1525 + 4 ms against 4 * 70.1525 + 4 ms.
    assert [" ".join(row) for row in table.cells] == [
        "1 sparse 0.1 420 50 14.00 120.0 200.0 144.3 2.00x 2.00x 1.97x",
        "2 secagg - 840 100 28.00 240.0 400.0 284.6 1.00x 1.00x 1.00x",
    ]
    assert table.records()[0]["device_cpu_seconds_median"] == pytest.approx(0.014)


def test_a_comparison_names_files_and_marks_those_that_are_not_whole(make_run):
    paths = [
        make_run("a.h5", [simple_record()]),
        make_run("b.h5", [simple_record(validated=False)], rounds=3, status="failed"),
    ]
    table = compared([summarise(load(path), LINK) for path in paths])

    assert [note.partition(";")[0] for note in table.notes[2:]] == [
        "row 1: a.h5",
        "row 2: b.h5 (failed) (validated 0/1)",
    ]


def test_details_show_what_has_a_value(make_run):
    hosts = [f"node{i}" for i in range(100)]
    config = {"threshold": 0, "quiet": False, "label": "", "hosts": hosts}
    path = make_run("run.h5", [simple_record()], environment={"ranks": 3}, **config)
    text = "\n".join(facts.text() for facts in details(load(path)))
    lines = text.splitlines()

    assert "  alpha          0.1" in lines
    assert "  threshold      0" in lines
    assert "  quiet          False" in lines
    assert ["transport", "loopback"] in [line.split() for line in lines]
    assert "command   mpirun -n 3 hpcfl bench sparse" in lines
    # Neither the option nor the MPI library has a value.
    assert not [line for line in lines if line.split()[:1] in (["preset"], ["label"], ["promises"])]
    assert "mpi_library" not in text
    assert "node0" in text
    assert "node99" in text
    assert max(map(len, lines)) < 120


def test_promises_say_in_how_many_rounds_they_were_checked(make_run):
    records = [replace(simple_record(), promise_failure=2.0**-40), simple_record()]

    assert promises(load(make_run("a.h5", records))) == [
        "checked in 1 of 2 rounds against the devices that were present: it held, except "
        "with probability 2^-40.0"
    ]
