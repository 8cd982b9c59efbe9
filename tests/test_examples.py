import ast
import json
import sys
from pathlib import Path
from types import ModuleType

import commandline
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(autouse=True)
def _among_the_examples(monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(EXAMPLES)


def hpcfl(folder, *arguments):
    """Run the command line; return what it prints."""
    done = commandline.hpcfl(*arguments, "--output", folder)

    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_protocol_of_the_examples_is_measured_and_validated(tmp_path):
    out = hpcfl(tmp_path, "bench", "own_protocol:SignSum", "--devices", 6, "--dim", 1001)

    assert "validated     12/12" in out
    # An envelope of 16 bytes and a bit for each coordinate.
    assert f" {16 + 126} " in out


def test_the_protocol_of_the_examples_trains(tmp_path):
    pytest.importorskip("torch")
    out = hpcfl(
        tmp_path,
        *("train", "fedavg", "--devices", 10, "--rounds", 5, "--dropout", 0),
        *("--aggregate", "own_protocol:SignSum", "--server-learning-rate", 0.02),
    )

    assert "after 5 rounds, all aggregates validated" in out


def test_the_model_of_the_examples_trains(tmp_path):
    pytest.importorskip("torch")
    out = hpcfl(
        tmp_path, "train", "fedavg", "--devices", 5, "--rounds", 2, "--model", "own_model:network"
    )

    assert "own_model:network, 2730 parameters" in out


def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    """Cell by cell in one namespace; what Jupyter shows of a cell must have a representation."""
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    monkeypatch.chdir(tmp_path)
    notebook = ModuleType("notebook_of_examples")
    monkeypatch.setitem(sys.modules, notebook.__name__, notebook)
    shown = []
    for source in sources:
        body = ast.parse(source.replace("%matplotlib inline\n", "")).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), "<cell>", "exec"), vars(notebook))
        if isinstance(last, ast.Expr):
            shown.append(
                eval(compile(ast.Expression(last.value), "<cell>", "eval"), vars(notebook))
            )

    assert "<table>" in shown[0]._repr_html_()
    assert len(list(tmp_path.glob("results/sweep/*.h5"))) == 4
