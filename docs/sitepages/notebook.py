"""A Jupyter notebook as Markdown, its output included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sitepages.markdown import block


def markdown(notebook: Mapping[str, Any]) -> str:
    """Return the cells of a notebook, nbformat 4."""
    return "\n".join(part for cell in notebook["cells"] for part in _cell(cell))


def _cell(cell: Mapping[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] != "code":
        yield f"{source}\n"
        return
    yield block(source, "python")
    for output in cell["outputs"]:
        yield _output(output)


def _output(output: Mapping[str, Any]) -> str:
    """Return an output: the richest form of it that a page can have."""
    if output["output_type"] == "stream":
        return block("".join(output["text"]))
    if output["output_type"] == "error":
        return block(f"{output['ename']}: {output['evalue']}")
    forms = {kind: "".join(form) for kind, form in output["data"].items()}
    if "image/png" in forms:
        data = "".join(forms["image/png"].split())
        return f'<img alt="figure" src="data:image/png;base64,{data}">\n'
    if "text/html" in forms:
        # A blank line would end the HTML for Markdown.
        lines = [line for line in forms["text/html"].splitlines() if line.strip()]
        return "\n".join(["<div>", *lines, "</div>", ""])
    return block(forms.get("text/plain", ""))
