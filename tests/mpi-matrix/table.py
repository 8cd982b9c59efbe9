"""The table of libraries and features in docs/clusters.md, between two marks."""

import json
from dataclasses import asdict
from pathlib import Path

from features import Outcome

PAGE = Path(__file__).parents[2] / "docs" / "clusters.md"
BEGIN, END = "<!-- mpi-matrix -->", "<!-- /mpi-matrix -->"


def keep(path, title, outcomes):
    """Write a row of the table to a file, until all rows are there."""
    told = outcomes
    if not isinstance(outcomes, str):
        told = {feature: asdict(outcome) for feature, outcome in outcomes.items()}
    path.write_text(json.dumps([title, told], indent=1))


def kept(path):
    """Return the row of a file."""
    title, told = json.loads(path.read_text())
    if isinstance(told, str):
        return title, told
    return title, {feature: Outcome(**outcome) for feature, outcome in told.items()}


def table(rows, features):
    """Return the table as Markdown, and below it why something failed or was skipped.

    `rows` are pairs of a library's title and either the outcome of every feature by name, or the
    sentence that says why the library could not be installed.
    """
    lines = [f"| | {' | '.join(features)} |", f"| --- |{' --- |' * len(features)}"]
    notes = []
    for title, outcomes in rows:
        if isinstance(outcomes, str):
            lines.append(f"| {title} | {' | '.join(['-'] * len(features))} |")
            notes.append(f"- {title} is not installed: {_plain(outcomes)}")
            continue
        cells = [_cell(outcomes.get(feature)) for feature in features]
        lines.append(f"| {title} | {' | '.join(cells)} |")
        notes += [
            f"- {title}, {feature}: {_plain(outcome.reason)}"
            for feature, outcome in outcomes.items()
            if outcome.reason
        ]
    return "\n".join([*lines, *(["", *notes] if notes else [])])


def _cell(outcome):
    if outcome is None:
        return "-"
    word = "ok" if outcome.passed and not outcome.reason else "skipped"
    return f"{word if outcome.passed else '**fails**'}, {outcome.seconds:.0f} s"


def _plain(text, most=200):
    """Return a text as a line that Markdown shows as it is."""
    line = " ".join(text.split())
    line = line if len(line) <= most else line[: most - 3] + "..."
    return "`" + line.replace("`", "'") + "`"


def insert(text, new):
    """Return a page with what is between the marks replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} followed by {END}")
    return f"{before}{BEGIN}\n\n{new}\n\n{END}{after}"
