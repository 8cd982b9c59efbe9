"""The work of `hpcfl sweep`: run the cells one after the other; a failed cell does not stop it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfl.comm.world import World
from hpcfl.errors import AgreedError, HpcflError, UsageError
from hpcfl.rounds.observer import NOBODY, RoundObserver
from hpcfl.sweeping import manifest as manifests
from hpcfl.sweeping.cells import Cell
from hpcfl.sweeping.manifest import Manifest
from hpcfl.system.interruption import LEFT_STATUS, Left, current
from hpcfl.values import asdict, dataclass, replace

if TYPE_CHECKING:
    from hpcfl.sweeping.states import Progress

DONE = "done"
SKIPPED = "finished before"
BUSY = "at work in another process"
FAILED = "failed"
_ADVICE = "the same command continues with what is not finished"
_LEFT = f"stopped by a signal; {_ADVICE}"


@dataclass(frozen=True)
class CellOutcome:
    """The outcome of a cell in this launch."""

    cell: Cell
    state: str  # `DONE`, `SKIPPED`, `BUSY` or `FAILED`
    seconds: float = 0.0  # start-up of the cell and checks included
    sentence: str = ""  # error message of a failed cell
    before: int = 0  # rounds of earlier launches from which this one continued


def plan_cells(
    world: World, output: Path, prepare: Callable[[], Manifest], index: int | None
) -> list[Cell]:
    """Return, on every rank, the cells to go through, which rank 0 reads from the files.

    `prepare` returns the manifest of the current plan. If `index` selects a single cell, `prepare`
    is not called: the cell must be in an existing manifest.
    """

    def found() -> dict[str, Any]:
        from hpcfl.system import outputs

        if index is None:
            wanted = prepare()
            outputs.check(output, outputs.FOLDER)
            return {"cells": [asdict(cell) for cell in manifests.freeze(output, wanted).cells]}
        frozen = manifests.load(output)
        if frozen is None:
            raise HpcflError(
                f"there is no {manifests.NAME} in {output}: write it with hpcfl sweep PLAN "
                f"--freeze --output {output}"
            )
        return {"cells": [asdict(frozen.cell(index))]}

    told = world.agreed(found)["cells"]
    return [Cell(**entry | {"arguments": tuple(entry["arguments"])}) for entry in told]


def run(
    world: World,
    cells: Sequence[Cell],
    output: Path,
    begun: Callable[[Cell], None] = lambda cell: None,
    ended: Callable[[CellOutcome], None] = lambda outcome: None,
    observer: RoundObserver = NOBODY,
) -> list[CellOutcome]:
    """Run the unfinished cells in order, and return all cells' outcomes on rank 0.

    A cell continues after the rounds that an earlier launch finished. A cell that cannot work, or
    whose round fails at the server, counts as failed, and the next one begins. A failure of only
    one rank ends the launch. A signal ends it, too, by raising `Left` on every rank. `begun` and
    `ended` are called on rank 0.
    """
    outcomes: list[CellOutcome] = []
    with ExitStack() as stack:
        interruption = current()
        interruption.advice = _ADVICE
        stack.callback(setattr, interruption, "advice", "")
        for cell in cells:
            if world.tell(int(interruption.asked)):
                world.raise_everywhere(Left(_LEFT))
            with ExitStack() as claim:
                options = cell.command.parse(cell.arguments)
                outcome, found = None, None
                if world.rank == 0:
                    outcome, found = _look(output, cell, options, claim)
                if world.tell(int(outcome is None)):
                    if world.rank == 0:
                        begun(cell)
                    outcome = _run_one(world, cell, options, output, found, observer)
            if world.rank == 0 and outcome is not None:
                ended(outcome)
                outcomes.append(outcome)
    return outcomes


def _look(
    output: Path, cell: Cell, options: Any, claim: ExitStack
) -> tuple[CellOutcome | None, Progress | None]:
    """Return, on rank 0, the outcome of a cell that is not to run, else the cell's progress."""
    from hpcfl.sweeping import states

    if not claim.enter_context(states.claimed(output, cell)):
        return CellOutcome(cell, BUSY), None
    found = states.look(output, cell)
    if found.state == states.FINISHED:
        return CellOutcome(cell, SKIPPED), None
    try:
        cell.command.check(options)
        if not found.resumable:
            states.make_room(output, cell)
    except HpcflError as error:
        return CellOutcome(cell, FAILED, sentence=str(error)), None
    return None, found


def _run_one(
    world: World,
    cell: Cell,
    options: Any,
    output: Path,
    found: Progress | None,
    observer: RoundObserver,
) -> CellOutcome:
    """Run a cell; `found` is its progress on rank 0, the only rank that reads and writes files."""
    start = time.monotonic()
    place, before = output / cell.file, 0 if found is None else found.rounds
    # Only rank 0 has looked, but every rank must resume.
    resume = place if world.tell(int(found is not None and found.resumable)) else None
    command = ["hpcfl", cell.command.name, *cell.arguments]
    try:
        asked = replace(options, output=place, resume=resume)
        cell.command.run(world, asked, observer, command)
    except HpcflError as error:
        # Unless all ranks have the error, continuing would make some of them wait forever.
        if world.size > 1 and not isinstance(error, AgreedError):
            raise
        if error.exit_status == LEFT_STATUS:
            raise Left(_LEFT) from error
        sentence = str(error)
        if resume is not None and isinstance(error, UsageError):
            # For example a file of another version, with which the cell would fail every time.
            sentence += f"; to begin the cell anew, move {resume} away"
        return CellOutcome(cell, FAILED, time.monotonic() - start, sentence, before)
    return CellOutcome(cell, DONE, time.monotonic() - start, before=before)
