import pytest
from commandline import invoke


def test_the_list_says_what_was_run(tmp_path):
    assert invoke("reproduce", "queries/table-1", "--output", tmp_path).exit_code == 0

    listed = invoke("reproduce", "--list", "--output", tmp_path).stdout

    assert "): 24" in listed  # of a cell that is wrapped
    assert "of 24 match" in listed
    assert listed.count("not run yet") > 15


def test_a_table_is_printed_beside_the_paper(tmp_path):
    found = invoke("reproduce", "locks/multipliers", "--output", tmp_path)

    assert found.exit_code == 0
    assert "the paper" in found.stdout
    told = " ".join(found.stdout.split())
    assert "1 not distinguishable" in told
    # In a column of its own.
    assert "distinguishable: possible: the text" in told
    assert "9/9" in found.stderr


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_figure_is_drawn(tmp_path, suffix):
    pytest.importorskip("matplotlib")
    figure = tmp_path / f"figure{suffix}"

    found = invoke("reproduce", "sparse-secagg/figure-4", "--output", tmp_path, "--plot", figure)

    assert found.exit_code == 0
    assert figure.stat().st_size > 10_000


def test_a_figure_of_what_was_run_needs_no_other_run(tmp_path, monkeypatch):
    """It took the largest scale that fits into an hour, and trained for it."""
    pytest.importorskip("matplotlib")
    from dataclasses import replace

    from hpcfl import reproduce

    id = "sparse-secagg/figure-4"
    (artefact,) = reproduce.select([id])
    (scale,) = artefact.scales.values()
    more = replace(scale, settings=[*scale.settings, {"unheard": "of"}], minutes=1)
    both = replace(artefact, scales={"paper": more, "small": scale}, data=("mnist",))
    monkeypatch.setitem(reproduce.ARTEFACTS, id, both)
    run = ("reproduce", id, "--output", tmp_path)
    monkeypatch.delenv("HPCFL_DATA", raising=False)
    assert "needs the data set mnist" in str(invoke(*run, "--plot", tmp_path / "a.svg").exception)
    monkeypatch.setitem(reproduce.ARTEFACTS, id, replace(both, data=()))
    assert invoke(*run, "--scale", "small").exit_code == 0
    monkeypatch.setitem(reproduce.ARTEFACTS, id, both)

    drawn = invoke(*run, "--plot", tmp_path / "a.svg", "--size", "column")

    assert drawn.exit_code == 0, drawn.exception
    assert "scale" not in drawn.stderr  # nothing was run
    assert 'width="239.76pt"' in (tmp_path / "a.svg").read_text()
