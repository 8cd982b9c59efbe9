"""A sweep as text: its cells before it runs, its outcome afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hpcfl.errors import HpcflError
from hpcfl.report.formats import counted, duration
from hpcfl.report.table import Column, Table, label
from hpcfl.results.pooling import apart, summarised
from hpcfl.results.tables import comparison, render_run
from hpcfl.sweeping import session, states
from hpcfl.sweeping.cells import Cell
from hpcfl.sweeping.manifest import Manifest
from hpcfl.values import dataclass

_IN_TITLE = ("--devices=", "--dim=", "--aggregate=")
CANNOT_RUN = "cannot run"


@dataclass(frozen=True)
class Listed:
    """A cell before a launch."""

    cell: Cell
    state: str  # a state of the module `states`, or `CANNOT_RUN`
    rounds: int  # number of finished rounds
    why: str = ""  # the reason why it cannot run


def list_cells(folder: Path, manifest: Manifest) -> list[Listed]:
    """Return the cells of a sweep, begun or not, in their order with their progress."""
    listed = []
    for cell in manifest.cells:
        found = states.look(folder, cell)
        one = Listed(cell, found.state, found.rounds)
        if found.state != states.FINISHED:
            try:
                cell.command.check(cell.command.parse(cell.arguments))
            except HpcflError as error:
                one = Listed(cell, CANNOT_RUN, found.rounds, str(error))
        listed.append(one)
    return listed


def render_cells(listed: Sequence[Listed], seed: int | None) -> str:
    """Return a table of cells, and the reasons why some cannot run.

    `seed` is the seed of their order, None for the plan's order.
    """
    refused: dict[str, list[str]] = {}
    for one in listed:
        if one.why:
            refused.setdefault(one.why, []).append(str(one.cell.index))
    parts = [_table_of(listed).text()]
    parts += [f"cells that cannot run: {', '.join(all)}: {why}" for why, all in refused.items()]
    order = "the plan's own" if seed is None else f"shuffled with seed {seed}"
    told = _counts([one.state for one in listed])
    parts.append(f"cells: {len(listed)} ({told})\norder: {order}")
    return "\n\n".join(parts)


def _counts(states: Sequence[str]) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted(Counter(states).items()))


def _table_of(listed: Sequence[Listed]) -> Table:
    typed = Counter(text for one in listed for text in one.cell.arguments[1:])
    # Options that all cells have are not shown.
    common = {text for text, number in typed.items() if number == len(listed)}
    rows = []
    for one in listed:
        varied = [text for text in one.cell.arguments[1:] if text not in common]
        options = " ".join(text for text in varied if not text.startswith(_IN_TITLE))
        rounds = f"{one.rounds} of {one.cell.rounds}"
        rows.append([one.cell.index, one.cell.title, options, one.state, rounds])
    columns = [Column("cell", "cell"), label("what"), label("options"), label("state")]
    return Table([*columns, Column("rounds", "rounds")], rows)


def render_outcome(outcome: session.CellOutcome, cells: int | None) -> str:
    """Return one line on a cell's outcome; `cells` is the number of cells, None for just one."""
    cell, what = outcome.cell, outcome.state
    if what == session.DONE:
        before = counted(outcome.before, "round")
        behind = f", behind {before} of earlier launches" if outcome.before else ""
        what = f"done in {duration(outcome.seconds)}{behind}: {cell.file}"
    elif what == session.FAILED:
        what = f"failed: {outcome.sentence}"
    of = "" if cells is None else f" of {cells}"
    return f"cell {cell.index}{of}: {cell.title}: {what}"


def render_results(folder: Path, outcomes: Sequence[session.CellOutcome]) -> str:
    """Return the results of finished cells side by side, and the errors of failed ones."""
    found = [states.look(folder, outcome.cell) for outcome in outcomes]
    runs = [one.run for one in found if one.run is not None and one.state == states.FINISHED]
    runs.sort(key=lambda run: (run.protocol, run.devices, run.dim))
    summaries = [summary for _, summary in summarised(apart(runs))]
    parts = [comparison(summaries).text()] if len(summaries) > 1 else []
    parts += [render_run(summary) for summary in summaries[:1] if len(summaries) == 1]
    for one in outcomes:
        if one.state in (session.FAILED, session.BUSY):
            why = f": {one.sentence}" if one.sentence else ""
            parts.append(f"cell {one.cell.index} ({one.cell.title}) {one.state}{why}")
    seconds = sum(outcome.seconds for outcome in outcomes)
    told = _counts([outcome.state for outcome in outcomes])
    parts.append(f"Cells: {told}; {duration(seconds)} at work\nResults: {folder}")
    return "\n\n".join(parts)
