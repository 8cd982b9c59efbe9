"""What is typed almost right is refused with the name that is meant."""

from pathlib import Path

import pytest
from commandline import hpcfl, refusal

import hpcfl as api
from hpcfl.errors import nearest, no_such


def test_a_name_that_is_almost_right_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    api.bench("fedavg", devices=3, dim=4, rounds=1, warmup=0, output="run.h5")
    Path("plan.toml").write_text('[grid]\nprotocol = ["fedavg"]\ndevcies = 3\n')
    for line, meant in (
        ("bench spasre", "sparse"),
        ("predict scegagg", "secagg"),
        ("privacy exposure secgag", "secagg"),
        ("bench dp-fedavg --aggregate secgag", "secagg"),
        ("bench secagg --group rnig32", "ring32"),
        ("train fedvag", "fedavg"),
        ("train fedavg --preset sparse-secagg-mnits", "sparse-secagg-mnist"),
        ("privacy epsilon dp-fedvag --sigma 1", "dp-fedavg"),
        ("report run.h5 --columns protcool", "protocol"),
        ("report run.h5 --where devcies=3", "devices"),
        ("plot run.h5 --kind pahses", "phases"),
        ("sweep plan.toml --dry-run", "devices"),
    ):
        assert f"did you mean {meant!r}?" in refusal(*line.split()), line


def test_a_command_and_an_option_that_are_almost_right_are_named():
    for line, meant in (
        ("bnech", "bench"),
        ("privacy exposrue", "exposure"),
        ("bench secagg --devcies 3", "--devices"),
    ):
        done = hpcfl(*line.split())
        assert (done.returncode, done.stdout) == (2, "")
        assert "Did you mean " in done.stderr
        assert meant in done.stderr, line


def test_names_of_the_python_interface_are_named_as_well():
    with pytest.raises(api.UsageError, match="did you mean 'adult'"):
        api.train("fedavg", devices=2, rounds=1, dataset="aduld")


def test_what_is_like_nothing_is_answered_with_all_names():
    assert str(no_such("thing", "quux", ["one", "two"], also="or a third")) == (
        "there is no thing 'quux'; choose one of one, two, or a third"
    )
    assert str(no_such("thing", "TWO", ["one", "two"])).endswith("did you mean 'two'?")
    assert nearest("18", ["8", "16"]) is None
    assert len(str(no_such("thing", "q" * 1000, []))) < 120
