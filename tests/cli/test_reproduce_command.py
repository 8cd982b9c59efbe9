import pytest
from click.testing import CliRunner

from hpcfl.cli.reproduce import command
from hpcfl.errors import UsageError


def reproduce(*arguments):
    return CliRunner().invoke(command, [*map(str, arguments)])


def refusal(*arguments):
    result = reproduce(*arguments)
    assert isinstance(result.exception, UsageError), result.output
    return str(result.exception)


def test_the_list_says_what_was_run(tmp_path):
    assert reproduce("queries/table-1", "--output", tmp_path).exit_code == 0

    listed = reproduce("--list", "--output", tmp_path).stdout

    assert "): 24" in listed  # of a cell that is wrapped
    assert "of 24 match" in listed
    assert listed.count("not run yet") > 15


def test_a_table_is_printed_beside_the_paper(tmp_path):
    found = reproduce("locks/multipliers", "--output", tmp_path)

    assert found.exit_code == 0
    assert "the paper" in found.stdout
    assert "multiplier 1.32, 100 rounds: epsilon 10 10.07 matches within" in " ".join(
        found.stdout.split()
    )
    assert "4/4" in found.stderr


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_figure_is_drawn(tmp_path, suffix):
    pytest.importorskip("matplotlib")
    figure = tmp_path / f"figure{suffix}"

    found = reproduce("sparse-secagg/figure-4", "--output", tmp_path, "--plot", figure)

    assert found.exit_code == 0
    assert figure.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name a table or figure"),
        (["nothing/at-all"], "there is no table or figure 'nothing/at-all'"),
        (["queries/table-1", "--scale", "small"], "has no scale 'small': it has paper"),
        (["queries/table-1", "--plot", "a.png"], "--plot takes one artefact that has a figure"),
        (["zcdp", "--plot", "a.png"], "--plot takes one artefact"),
        (["zcdp/figure-3", "--plot", "a.txt"], "does not end in"),
        (["zcdp/figure-3", "--data-dir", "nowhere"], "nowhere/adult does not exist"),
    ],
)
def test_what_cannot_be_done_is_refused(arguments, sentence):
    assert sentence in refusal(*arguments)


def test_without_a_data_folder_the_command_that_gets_data_is_named(monkeypatch):
    monkeypatch.delenv("HPCFL_DATA", raising=False)

    assert "hpcfl data fetch mnist --data-dir DIR" in refusal("sparse-secagg/figure-5")
