"""Runs as pandas frames."""

import pytest

import hpcfl

pytest.importorskip("pandas")

GRID = {"protocol": ["secagg", "sparse"], "devices": [4, 5], "dim": 50, "rounds": 2, "warmup": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder of benchmarks."""
    folder = tmp_path_factory.mktemp("results") / "sweep"
    hpcfl.sweep(GRID | {"seed": [1, 2], "bits": "16"}, output=folder)
    return folder


def test_a_frame_has_a_row_for_each_run_and_numbers_where_numbers_are(folder):
    frame = hpcfl.load_many(folder).to_frame()
    slow = hpcfl.load_many(folder).to_frame(uplink_mbps=1.0).modelled_round_seconds_median

    assert len(frame) == 8
    assert {*frame.seed} == {1, 2}
    assert {*frame.bits} == {16}
    for name in frame.columns:
        if "seconds" in name or "bytes" in name or "accuracy" in name:
            assert frame[name].dtype.kind in "fiu", name
    assert slow.sum() > frame.modelled_round_seconds_median.sum()
    assert len(hpcfl.Runs().to_frame()) == 0
    with pytest.raises(hpcfl.UsageError, match="no column 'acuracy'; did you mean"):
        hpcfl.load_many(folder).to_frame(["acuracy"])


def test_a_frame_of_rounds_has_all_phases(folder):
    runs = hpcfl.load_many(folder)
    frame, one = runs.rounds_frame(), runs[0]
    rows = frame[frame.path == str(one.path)]

    assert len(frame) == 8 * 3
    assert rows.warmup.tolist() == [True, False, False]
    assert rows.survivors.tolist() == one.survived.sum(axis=1).tolist()
    for number, phase in enumerate(one.phases):
        assert rows[f"{phase}_bytes_up"].tolist() == one.bytes_up[:, number].sum(axis=1).tolist()
    assert rows.modelled_seconds.isna().tolist() == [True, False, False]
    slow = runs.rounds_frame(uplink_mbps=1.0).modelled_seconds
    assert slow.sum() > frame.modelled_seconds.sum()
