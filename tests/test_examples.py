import ast
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from commandline import told

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(autouse=True)
def _among_the_examples(monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(EXAMPLES)


def test_the_protocol_of_the_examples_is_measured_and_validated(tmp_path):
    size = ("--devices", 6, "--dim", 1001)
    out = told("bench", "own_protocol:SignSum", *size, "--output", tmp_path)

    assert "validated     12/12" in out
    # An envelope of 16 bytes and a bit for each coordinate.
    assert f" {16 + 126} " in out


def test_the_model_of_the_examples_trains(tmp_path):
    pytest.importorskip("torch")
    size = ("--devices", 5, "--rounds", 2, "--output", tmp_path)
    out = told("train", "fedavg", "--model", "own_model:network", *size)

    assert "own_model:network, 2730 parameters" in out


def cells_of(name, folder, monkeypatch):
    """Run a notebook cell by cell in one namespace; return the output that Jupyter would show.

    This avoids Jupyter's kernel, which takes seconds and packages. The last value of a cell is
    shown in both.
    """
    cells = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    monkeypatch.chdir(folder)
    notebook = ModuleType("notebook_of_examples")
    monkeypatch.setitem(sys.modules, notebook.__name__, notebook)
    return shown_by(sources, vars(notebook))


def shown_by(sources, variables):
    """Run sources one after the other; return the values of those that end with an expression."""
    shown = []
    for source in sources:
        body = ast.parse(source.replace("%matplotlib inline\n", "")).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), "<cell>", "exec"), variables)
        if last is not None:
            shown.append(eval(compile(ast.Expression(last.value), "<cell>", "eval"), variables))
    return shown


@pytest.mark.full
def test_the_code_of_the_page_on_results_runs_from_top_to_bottom(tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    page = (EXAMPLES.parent / "docs/python.md").read_text(encoding="utf-8")
    text = page.partition("\n## Tables\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    runs, sparse, by_protocol, modelled = shown_by(blocks, {})

    assert len(blocks) == 4
    assert repr(runs).startswith("<Runs: 4>\n  <Run: secagg, N=10, d=1000, 8 rounds, median ")
    assert sparse.devices.tolist() == [10, 20]
    assert by_protocol.notna().all(axis=None)
    assert len(modelled) == 4


@pytest.mark.full
def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    shown = cells_of("notebook.ipynb", tmp_path, monkeypatch)

    assert "<table>" in shown[0]._repr_html_()
    assert len(list(tmp_path.glob("results/sweep/*.h5"))) == 4


@pytest.mark.full
def test_the_study_runs_from_top_to_bottom_and_is_kept_without_output(tmp_path, monkeypatch):
    for package in ("torch", "sklearn", "matplotlib", "pandas"):
        pytest.importorskip(package)
    document = json.loads((EXAMPLES / "study.ipynb").read_text(encoding="utf-8"))
    runs, frame, reached, links, _, curves, figure, table = cells_of(
        "study.ipynb", tmp_path, monkeypatch
    )

    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in document["cells"])
    assert len(runs) == len(frame) == 9
    assert all(run.validated.all() for run in runs)
    assert reached["rounds_to_target"]["mean"].notna().all()
    assert links[1.0]["secagg"] > links[100.0]["secagg"]
    assert [*curves.columns] == ["cohort", "fedavg", "secagg"]
    assert figure.axes
    assert len(table.records()) == 3
