"""Runs are selected by what they record."""

import re

import pytest
from run_files import simple_record, write_run

from hpcfl.errors import UsageError
from hpcfl.results import load
from hpcfl.results.selection import select


@pytest.fixture
def runs(tmp_path):
    settings = [
        {"protocol": "secagg", "alpha": 0.1, "preset": None, "shared": False},
        {"protocol": "sparse", "alpha": 0.1, "preset": "paper"},
        {"protocol": "sparse", "alpha": 0.25, "preset": "Other", "shared": True},
    ]
    return [
        load(write_run(tmp_path / f"{number}.h5", [simple_record()], **one))
        for number, one in enumerate(settings)
    ]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        *(("protocol=sparse", [1, 2]), ("protocol=sparse|secagg", [0, 1, 2])),
        *(("protocol=sparse,alpha=0.1", [1]), (" protocol = sparse , alpha = .10 ", [1])),
        *(("alpha=1e-1|0.250", [0, 1, 2]), ("devices=4", [0, 1, 2]), ("dim=10.0", [0, 1, 2])),
        *(("preset=none", [0]), ("preset=PAPER", [1]), ("preset=none|other", [0, 2])),
        *(("uplink-mbps=8", [0, 1, 2]), ("shared=true", [2]), ("shared=none|False", [0, 1])),
    ],
)
def test_runs_that_are_as_described_are_kept_in_their_order(runs, text, kept):
    assert select(runs, text) == [runs[number] for number in kept]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("protocol", "--where has 'protocol': give KEY=VALUE"),
        ("protocol=sparse,", "give KEY=VALUE"),
        ("alhpa=0.1", "there is no key that a run records called 'alhpa'; did you mean 'alpha'?"),
        ("protocol=secagg,alpha=0.25", "no run has alpha=0.25: there are 0.1"),
        ("devices=four", "no run has devices=four: there are 4"),
    ],
)
def test_what_describes_no_run_is_refused_with_what_there_is(runs, text, sentence):
    with pytest.raises(UsageError, match=re.escape(sentence)):
        select(runs, text)
