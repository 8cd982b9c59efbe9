"""The code of docs/notebook.md, from top to bottom, and what the page says of it."""

import ast
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "notebook.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Return the variables that the page's code leaves, and what each block shows."""
    for package in ("torch", "sklearn", "pandas"):
        pytest.importorskip(package)
    values, variables = [], {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("notebook"))
        for block in re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL):
            body = ast.parse(block).body
            last = body.pop() if isinstance(body[-1], ast.Expr) else None
            exec(compile(ast.Module(body, []), str(PAGE), "exec"), variables)
            if isinstance(last, ast.Expr):
                values.append(
                    eval(compile(ast.Expression(last.value), str(PAGE), "eval"), variables)
                )
        yield variables, values


def test_every_block_shows_something(shown):
    _, values = shown

    assert len(values) == 8
    for value in values:
        assert repr(value)
        assert len(value)


def test_what_the_page_shows_is_so(shown):
    variables, (_, runs, sparse, by_protocol, targets, *_) = shown

    assert repr(runs).startswith("<Runs: 8>\n  <Run: secagg, N=10, d=1000, 8 rounds, median ")
    assert sparse.devices.is_monotonic_increasing
    assert [*by_protocol.index] == ["secagg", "sparse"]
    assert by_protocol["rounds_to_target"]["mean"].notna().all()
    assert targets.rounds_to_target.notna().sum() == 4
    assert variables["curves"].shape[1] == 4
