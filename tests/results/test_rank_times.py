"""What ranks did with their time."""

import numpy as np
import pytest
from run_files import new_writer, ranked_record, simple_record, write_run

from hpcfl.results import load, ranktimes
from hpcfl.results.ranktimes import by_rank, shares
from hpcfl.results.writer import ResultsWriter

RANKS = 3


def record(index):
    return ranked_record(1 + index, warmup=index == 0)


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run.h5"
    with new_writer(path, rounds=4, ranks=RANKS) as writer:
        for index in range(4):
            writer.append(record(index))
    return load(path)


def test_shares_are_medians_of_the_server_and_of_the_mean_of_devices_ranks(run, tmp_path):
    table = shares(run)
    row = dict(zip((column.name for column in table.columns), table.rows[0], strict=True))

    assert row["computing_server"] == pytest.approx(0.5 * 3)
    assert row["waiting_server"] == 0
    assert row["waiting_devices"] == pytest.approx(0.05 * 3)
    assert "within 6 ms" in table.text()
    assert shares(load(write_run(tmp_path / "before.h5", [simple_record()]))) is None


def test_every_rank_has_a_row_of_its_memory_and_seconds(run, monkeypatch):
    table = by_rank(run)

    assert [row[0] for row in table.rows] == ["server", "devices on 1", "devices on 2"]
    spent = run.computing_seconds[run.measured].sum(axis=1)
    assert [row[3] for row in table.rows] == pytest.approx(np.median(spent, axis=0))
    assert np.isnan(table.rows[1][2])  # a record without the memory
    monkeypatch.setattr(ranktimes, "MOST_RANKS", RANKS - 1)
    assert by_rank(run) is None


def test_a_resumed_run_may_have_more_ranks_and_keeps_what_is_known(tmp_path):
    path = tmp_path / "run.h5"
    writer = new_writer(path, rounds=4, ranks=RANKS)
    writer.append(record(0))
    writer.close("interrupted")
    with ResultsWriter.resume(path, command="again", environment={}, rounds=4, ranks=5) as writer:
        writer.append(record(1))
    run = load(path)

    assert run.begin_seconds.shape[2] == 5
    assert np.isnan(run.begin_seconds[:, :, RANKS:]).all()
    np.testing.assert_array_equal(run.computing_seconds[1, :, :RANKS], record(1).computing_seconds)
