"""A sweep as text: its cells before it runs, its outcome afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
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
CANNOT_RUN = "cannot run"


@dataclass(frozen=True)
class Listed:
    """A cell as it is before a launch."""

    cell: Cell
    state: str  # one of those of `states`, or `CANNOT_RUN`
    rounds: int  # that are finished
    why: str  # what speaks against it, where it cannot run
    seconds: float | None  # that it will take; None where nobody knows, or nothing is left
    modelled: bool  # whether the cost model says so

    @property
    def left(self) -> bool:
        """Whether it is to run."""
        return self.state not in (states.FINISHED, CANNOT_RUN)

    def as_dict(self) -> dict[str, Any]:
        """Return what there is to say of it, for programs."""
        return asdict(self.cell) | {
            "state": self.state,
            "rounds_finished": self.rounds,
            "seconds": self.seconds,
            "why": self.why or None,
        }


def list_cells(folder: Path, manifest: Manifest) -> list[Listed]:
    """Return the cells of a sweep in their order, and how far they are; it need not have begun."""
    found = [(cell, states.look(folder, cell)) for cell in manifest.cells]
    finished = [(cell, one.run) for cell, one in found if one.run and one.state == states.FINISHED]
    return [_listed(cell, progress, finished) for cell, progress in found]


def _listed(cell: Cell, progress: states.Progress, finished: Sequence[tuple[Cell, Run]]) -> Listed:
    state, done = progress.state, progress.rounds
    if state == states.FINISHED:
        return Listed(cell, state, done, "", None, False)
    why = _objection(cell)
    if why:
        return Listed(cell, CANNOT_RUN, done, why, None, False)
    guess = estimate_seconds(cell, finished, done)
    if guess is not None:
        return Listed(cell, state, done, "", guess, False)
    guess = predicted_seconds(cell, done)
    return Listed(cell, state, done, "", guess, guess is not None)


def render_cells(listed: Sequence[Listed], seed: int | None) -> str:
    """Return a table of cells, what cannot run and why, and the sum of the seconds.

    `seed` is that of their order, None for the plan's own.
    """
    refused = [f"cell {one.cell.index} ({one.cell.title}): {one.why}" for one in listed if one.why]
    counts = Counter(one.state for one in listed)
    told = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
    order = "the plan's own" if seed is None else f"shuffled with seed {seed}"
    parts = [
        _table_of(listed).text(),
        "\n".join(refused),
        f"cells:     {len(listed)} ({told})\norder:     {order}\nestimated: {_estimated(listed)}",
    ]
    return "\n\n".join(part for part in parts if part)


def _table_of(listed: Sequence[Listed]) -> Table:
    varied = _varied([one.cell for one in listed])
    columns = [
        *(Column("cell", "cell"), label("protocol"), Column("devices", "N"), Column("dim", "d")),
        *(Column("repeat", "repeat"), label("options"), label("state")),
        *(Column("rounds", "rounds"), Column("time", "time")),
    ]
    rows = []
    for one in listed:
        cell = one.cell
        options = " ".join(text for text in cell.arguments[1:] if text in varied)
        time = "unknown" if one.seconds is None else duration(one.seconds)
        rows.append(
            [
                *(cell.index, cell.protocol, cell.devices, cell.dim, cell.repeat, options),
                *(one.state, f"{one.rounds} of {cell.rounds}", time if one.left else None),
            ]
        )
    if any(one.cell.algorithm for one in listed):
        columns.insert(1, label("algorithm"))
        for one, row in zip(listed, rows, strict=True):
            row.insert(1, one.cell.algorithm)
    return Table(columns, rows)


def _estimated(listed: Sequence[Listed]) -> str:
    """Return how long all cells that are left will take."""
    left = [one for one in listed if one.left]
    if not left:
        return "nothing is left to run"
    known = [one.seconds for one in left if one.seconds is not None]
    if not known:
        return _unknown(left)
    unknown, modelled = len(left) - len(known), sum(one.modelled for one in left)
    total = duration(sum(known))
    if unknown:
        total += f", and {counted(unknown, 'cell')} of unknown time"
    if modelled:
        total += f" ({counted(modelled, 'cell')} by the cost model, in one process)"
    return total


def _unknown(left: Sequence[Listed]) -> str:
    """Return why nothing is known of any of the cells that are left, and what would help."""
    training = [one.cell.algorithm is not None for one in left]
    reasons = []
    if any(training):
        reasons.append(
            "of training that is said once a cell of the same algorithm, protocol and data is "
            "finished, by that one"
        )
    if not all(training):
        reasons.append(
            "the cost model has nothing to say of these rounds, or needs hpcfl calibrate"
        )
    return f"unknown, {'; '.join(reasons)}"


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
