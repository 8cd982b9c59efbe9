"""The code of docs/python.md that reads results, from top to bottom."""

import ast
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
TEXT = PAGE.read_text(encoding="utf-8").partition("\n## Tables\n")[2].partition("\n## ")[0]


@pytest.mark.full
def test_every_block_runs_and_shows_a_table(tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    shown, variables = [], {}
    for block in re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL):
        body = ast.parse(block).body
        last = body.pop()
        exec(compile(ast.Module(body, []), str(PAGE), "exec"), variables)
        assert isinstance(last, ast.Expr)
        shown.append(eval(compile(ast.Expression(last.value), str(PAGE), "eval"), variables))
    runs, sparse, by_protocol, modelled = shown
    assert repr(runs).startswith("<Runs: 4>\n  <Run: secagg, N=10, d=1000, 8 rounds, median ")
    assert sparse.devices.tolist() == [10, 20]
    assert by_protocol.notna().all(axis=None)
    assert len(modelled) == 4
