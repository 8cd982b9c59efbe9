"""A sweep as text: its cells before it runs, its outcome afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcfl.errors import HpcflError
from hpcfl.report.formats import counted, duration
from hpcfl.report.table import Column, Table, label
from hpcfl.results.pooling import apart, summarised
from hpcfl.results.reader import Run
from hpcfl.results.tables import comparison, render_run
from hpcfl.sweeping import session, states
from hpcfl.sweeping.cells import Cell
from hpcfl.sweeping.estimate import estimate_seconds, predicted_seconds
from hpcfl.sweeping.manifest import Manifest

# What every row shows in columns of its own.
_SHOWN = ("--devices=", "--dim=", "--aggregate=")
_CANNOT_RUN = "cannot run"


@dataclass(frozen=True)
class Listing:
    """The cells of a sweep in their order: what, how far, and how long it will take."""

    table: Table
    refused: Mapping[int, str]  # what speaks against the cells that cannot run, by their numbers
    text: str  # all of it, with the sum of the seconds


def list_cells(folder: Path, manifest: Manifest) -> Listing:
    """Return what there is to say of a sweep before it runs. The folder need not exist."""
    found = [(cell, states.look(folder, cell)) for cell in manifest.cells]
    finished = [(cell, one.run) for cell, one in found if one.run and one.state == states.FINISHED]
    varied = _varied(manifest.cells)
    rows: list[list[Any]] = []
    refused: dict[int, str] = {}
    seconds, unknown, predicted = 0.0, 0, 0
    counts: Counter[str] = Counter()
    for cell, progress in found:
        state, done, time = progress.state, progress.rounds, None
        sentence = "" if state == states.FINISHED else _objection(cell)
        if sentence:
            state = _CANNOT_RUN
            refused[cell.index] = sentence
        elif state != states.FINISHED:
            guess = estimate_seconds(cell, finished, done)
            if guess is None:
                guess = predicted_seconds(cell, done)
                predicted += guess is not None
            time = "unknown" if guess is None else duration(guess)
            seconds += guess or 0.0
            unknown += guess is None
        counts[state] += 1
        options = " ".join(text for text in cell.arguments[1:] if text in varied)
        rows.append(
            [
                *(cell.index, cell.algorithm, cell.protocol, cell.devices, cell.dim, cell.repeat),
                *(options, state, f"{done} of {cell.rounds}", time),
            ]
        )
    columns = [
        *(Column("cell", "cell"), label("algorithm"), label("protocol"), Column("devices", "N")),
        *(Column("dim", "d"), Column("repeat", "repeat"), label("options"), label("state")),
        *(Column("rounds", "rounds"), Column("time", "time")),
    ]
    # What no cell has, such as the algorithm of a benchmark, has no column.
    shown = [n for n, column in enumerate(columns) if n != 1 or any(row[n] for row in rows)]
    table = Table([columns[n] for n in shown], [[row[n] for n in shown] for row in rows])
    known = bool(finished) or predicted > 0
    total = duration(seconds) if known else "unknown, without a calibration: run hpcfl calibrate"
    if unknown and known:
        total = f"{total}, and {unknown} cells of unknown time"
    if predicted:
        total = f"{total} ({predicted} cells by the cost model, in one process)"
    left = sum(counts.values()) - counts[states.FINISHED] - counts[_CANNOT_RUN]
    order = "the plan's own" if manifest.seed is None else f"shuffled with seed {manifest.seed}"
    titles = {cell.index: cell.title for cell in manifest.cells}
    told = [
        table.text(),
        "\n".join(f"cell {n} ({titles[n]}): {sentence}" for n, sentence in refused.items()),
        f"cells:     {len(manifest.cells)} "
        f"({', '.join(f'{number} {state}' for state, number in sorted(counts.items()))})\n"
        f"order:     {order}\n"
        f"estimated: {total if left else 'nothing is left to run'}",
    ]
    return Listing(table, refused, "\n\n".join(part for part in told if part))


def render_outcome(outcome: session.CellOutcome, cells: int | None) -> str:
    """Return one line on what became of a cell, one of so many, or the only one that runs."""
    cell = outcome.cell
    what = {
        session.DONE: f"done in {duration(outcome.seconds)}{_behind(outcome)}: {cell.file}",
        session.FAILED: f"failed: {outcome.sentence}",
    }.get(outcome.state, outcome.state)
    of = "" if cells is None else f" of {cells}"
    return f"cell {cell.index}{of}: {cell.title}: {what}"


def _behind(outcome: session.CellOutcome) -> str:
    if not outcome.before:
        return ""
    return f", behind {counted(outcome.before, 'round')} of earlier launches"


def render_results(folder: Path, outcomes: Sequence[session.CellOutcome]) -> str:
    """Return the finished cells side by side, and those that failed with what went wrong."""
    runs: list[Run] = []
    for outcome in sorted(outcomes, key=lambda outcome: _by_size(outcome.cell)):
        found = states.look(folder, outcome.cell)
        if found.run is not None and found.state == states.FINISHED:
            runs.append(found.run)
    summaries = [summary for _, summary in summarised(apart(runs))]
    parts = [comparison(summaries).text()] if len(summaries) > 1 else []
    parts += [render_run(summary) for summary in summaries[:1] if len(summaries) == 1]
    failed = [outcome for outcome in outcomes if outcome.state == session.FAILED]
    busy = [outcome for outcome in outcomes if outcome.state == session.BUSY]
    parts += [f"cell {o.cell.index} ({o.cell.title}) failed: {o.sentence}" for o in failed]
    parts += [f"cell {o.cell.index} ({o.cell.title}) is {o.state}" for o in busy]
    counts = Counter(outcome.state for outcome in outcomes)
    told = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
    seconds = sum(outcome.seconds for outcome in outcomes)
    parts.append(f"Cells: {told}; {duration(seconds)} at work\nResults: {folder}")
    return "\n\n".join(parts)


def _varied(cells: Sequence[Cell]) -> set[str]:
    """Return the arguments that some cells have and others have not."""
    counts = Counter(text for cell in cells for text in cell.arguments[1:])
    return {
        text
        for text, number in counts.items()
        if number < len(cells) and not text.startswith(_SHOWN)
    }


def _objection(cell: Cell) -> str:
    """Return what makes a cell impossible; "" if nothing is known to."""
    try:
        cell.command.check(cell.command.parse(cell.arguments))
    except HpcflError as error:
        return str(error)
    return ""


def _by_size(cell: Cell) -> tuple[Any, ...]:
    what = (cell.algorithm or "", cell.protocol)
    return *what, cell.devices, cell.dim or 0, cell.arguments, cell.repeat
