"""A sweep as text: its cells before it runs, its outcome afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hpcfl.benchmark.experiment import Experiment
from hpcfl.errors import HpcflError
from hpcfl.report.formats import duration
from hpcfl.report.table import Column, Table, label
from hpcfl.results.pooling import apart, summarised
from hpcfl.results.tables import comparison, render_run
from hpcfl.sweeping import session, states
from hpcfl.sweeping.cells import Cell
from hpcfl.sweeping.estimate import estimate_seconds, predicted_seconds
from hpcfl.sweeping.manifest import Manifest
from hpcfl.sweeping.plan import parse

# What every row shows in columns of its own.
_SHOWN = ("--devices=", "--dim=")


def render_cells(folder: Path, manifest: Manifest) -> str:
    """Return the cells of a sweep in their order: what, how far, and how long it will take.

    A table, what cannot run, and the sum of the seconds. The folder need not exist.
    """
    found = [(cell, *states.state(folder, cell)) for cell in manifest.cells]
    finished = [(cell, run) for cell, _, run in found if run is not None]
    varied = _varied(manifest.cells)
    rows, refused, seconds, unknown, predicted = [], [], 0.0, 0, 0
    counts: Counter[str] = Counter()
    for cell, state, run in found:
        sentence = "" if run is not None else _objection(cell)
        time = None
        if sentence:
            state = "cannot run"
            refused.append(f"cell {cell.index} ({cell.title}): {sentence}")
        elif run is None:
            guess = estimate_seconds(cell, finished)
            if guess is None:
                guess = predicted_seconds(cell)
                predicted += guess is not None
            time = "unknown" if guess is None else duration(guess)
            seconds += guess or 0.0
            unknown += guess is None
        counts[state] += 1
        options = " ".join(text for text in cell.arguments[1:] if text in varied)
        rows.append(
            [cell.index, cell.protocol, cell.devices, cell.dim, cell.repeat, options, state, time]
        )
    columns = [
        *(Column("cell", "cell"), label("protocol"), Column("devices", "N"), Column("dim", "d")),
        *(Column("repeat", "repeat"), label("options"), label("state"), Column("time", "time")),
    ]
    known = bool(finished) or predicted > 0
    total = duration(seconds) if known else "unknown, without a calibration: run hpcfl calibrate"
    if unknown and known:
        total = f"{total}, and {unknown} cells of unknown time"
    if predicted:
        total = f"{total} ({predicted} cells by the cost model, in one process)"
    left = sum(counts.values()) - counts[states.FINISHED] - counts["cannot run"]
    order = "the plan's own" if manifest.seed is None else f"shuffled with seed {manifest.seed}"
    parts = [
        Table(columns, rows).text(),
        "\n".join(refused),
        f"cells:     {len(manifest.cells)} "
        f"({', '.join(f'{number} {state}' for state, number in sorted(counts.items()))})\n"
        f"order:     {order}\n"
        f"estimated: {total if left else 'nothing is left to run'}",
    ]
    return "\n\n".join(part for part in parts if part)


def render_outcome(outcome: session.CellOutcome, cells: int | None) -> str:
    """Return one line on what became of a cell, one of so many, or the only one that runs."""
    cell = outcome.cell
    what = {
        session.DONE: f"done in {duration(outcome.seconds)}: {cell.file}",
        session.FAILED: f"failed: {outcome.sentence}",
    }.get(outcome.state, outcome.state)
    of = "" if cells is None else f" of {cells}"
    return f"cell {cell.index}{of}: {cell.title}: {what}"


def render_results(folder: Path, outcomes: Sequence[session.CellOutcome]) -> str:
    """Return the finished cells side by side, and those that failed with what went wrong."""
    runs = []
    for outcome in sorted(outcomes, key=lambda outcome: _by_size(outcome.cell)):
        _, run = states.state(folder, outcome.cell)
        runs += [] if run is None else [run]
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
        Experiment.prepare(parse(cell.arguments), cell.devices)
    except HpcflError as error:
        return str(error)
    return ""


def _by_size(cell: Cell) -> tuple[str, int, int, tuple[str, ...], int]:
    return cell.protocol, cell.devices, cell.dim, cell.arguments, cell.repeat
