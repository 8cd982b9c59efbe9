"""Classes and verdicts as they are printed."""

from __future__ import annotations

from typing import Any

from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import options_of
from hpcfl.report import formats
from hpcfl.report.formats import counted
from hpcfl.report.table import Column, Table, label, paragraph
from hpcfl.submission.classes import CLASSES, FREE
from hpcfl.submission.scores import table
from hpcfl.submission.verify import Verdict


def as_dict() -> dict[str, Any]:
    """Return the classes, and which options are free, as JSON takes them."""
    classes = {
        name: {
            "launches": one.launches,
            "rounds": one.rounds,
            "fixed": one.fixed,
            "class_hash": one.fingerprint,
            "command": one.command,
        }
        for name, one in CLASSES.items()
    }
    return {"classes": classes, "free": [*FREE]}


def sizes() -> Table:
    """Return the classes as a table."""
    columns = [
        label("class"),
        Column("devices", "devices N", format=formats.count),
        Column("dim", "parameters d", format=formats.count),
        Column("rounds", "rounds, at least", format=formats.count),
        Column("launches", "launches, at least", format=formats.count),
        label("command", "one launch"),
    ]
    return Table(
        columns,
        [
            (one.name, one.devices, one.dim, one.rounds, one.launches, one.command)
            for one in CLASSES.values()
        ],
    )


def fixed() -> str:
    """Return the options that have the same value in all classes, as a command line has them."""
    values = [one.fixed for one in CLASSES.values()]
    common = [name for name in values[0] if all(one[name] == values[0][name] for one in values)]
    return ", ".join(f"{_dashed(name)} {_shown(values[0][name])}" for name in common)


def free() -> str:
    """Return the options that are free in all classes."""
    return ", ".join(map(_dashed, FREE))


def description() -> str:
    """Return all there is to know about the classes, as text."""
    return "\n\n".join(
        (
            sizes().text(),
            paragraph(
                f"{fixed()}; devices drop out before their upload", "fixed in all of them:  "
            ),
            paragraph(f"{free()}; protocol, MPI, ranks and their placement", "free:  "),
        )
    )


def verdict(found: Verdict) -> str:
    """Return a verdict as text: a line for every check and label, then scores."""
    lines = [*(one.line for one in found.checks), *(one.line for one in found.labels)]
    if found.digest is not None:
        lines.append(f"digest   {found.digest}")
    refused = sum(not one.passed for one in found.checks)
    if refused:
        return "\n".join([*lines, f"REFUSED: {counted(refused, 'check')} failed"])
    what = (
        f"{found.class_name}, {formats.words(found.protocol)}, {counted(found.launches, 'launch')}"
    )
    return "\n".join([*lines, f"ACCEPTED: {what}", "", table(found.scores).text()])


def _dashed(name: str) -> str:
    known = options_of(BenchOptions)
    return f"--{known[name].dashed if name in known else name.replace('_', '-')}"


def _shown(value: Any) -> str:
    return "none" if value is None else "no" if value is False else str(value)
