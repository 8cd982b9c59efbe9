"""A name that is almost right is refused with the name that is meant."""

import pytest
from commandline import hpcfl

from hpcfl.errors import no_such


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("tarin fedavg", "train"),
        ("bench secagg --aplha 0.1", "--alpha"),
        ("privacy epsilon cdp --sgima 1", "--sigma"),
        ("bench secgag", "secagg"),
        ("train fedvag", "fedavg"),
        ("train fedavg --preset zcdp-adult-rl", "zcdp-adult-lr"),
        ("bench secagg --devices 3 --dim 4 --dropout-phase maskedinput", "masked_input"),
        ("sweep tabel-1", "table-1"),
        ("data fetch minst", "mnist"),
    ],
)
def test_a_name_that_is_almost_right_is_named(line, meant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = hpcfl(*line.split())

    assert done.returncode == 2
    assert "did you mean" in done.stderr.lower()
    assert f"{meant!r}" in done.stderr


def test_what_is_like_nothing_is_answered_with_all_names():
    assert str(no_such("thing", "quux", ["one", "two"], also="or a third")) == (
        "there is no thing 'quux'; choose one of one, two, or a third"
    )
    assert str(no_such("--bits", "18", ["8", "20"])) == "--bits is '18'; choose one of 8, 20"
