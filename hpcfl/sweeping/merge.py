"""Puts the results of several jobs into one folder with an index; the sources are only read."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcfl.errors import HpcflError, UsageError
from hpcfl.report.formats import counted
from hpcfl.results.reader import Run, find, load
from hpcfl.results.resuming import distinct_names, joined
from hpcfl.sweeping import manifest as manifests
from hpcfl.sweeping import states
from hpcfl.sweeping.cells import Cell
from hpcfl.system import hdf5, outputs
from hpcfl.system.outputs import without_home

INDEX = "index.json"
SCHEMA = "hpcfl-index/1"
_OF_A_RUN = ("run_id", "protocol", "devices", "dim", "rounds", "status", "started")


@dataclass(frozen=True)
class Merged:
    """What was merged, and what is missing."""

    entries: list[dict[str, Any]]  # one for each copied run, as the index has them
    warnings: list[str]  # on incomplete runs, unreadable files and cells without results


def merge(paths: Sequence[Path], output: Path) -> Merged:
    """Copy results files into a new folder, which appears whole or not at all, with an index.

    The folder of a sweep among the paths names its cells. It is a UsageError if the new folder is
    not empty or cannot be written to, a path does not exist, there are no results, or two files
    hold the same run; an HpcflError if none of the files can be read.
    """
    outputs.check(output, outputs.FOLDER)
    if output.exists() and any(output.iterdir()):
        raise UsageError(
            f"{output} exists already and results are never overwritten: "
            "name a new folder with --output"
        )
    files = list({file.resolve(): file for file in find(paths)}.values())
    runs, warnings = _read(files)
    _refuse_duplicates(runs)
    cells = _cells({file.parent for file in files})
    wanted = _cells({path for path in paths if path.is_dir()})
    named = zip(runs, distinct_names(runs), strict=True)
    entries = [_entry(run, name, cells.get(run.path)) for run, name in named]
    # What was interrupted and went on in another file is complete if that is.
    whole = joined(runs)
    warnings += [f"{run.path} {run.unfinished}" for run in whole if run.unfinished is not None]
    present = {entry["cell_id"] for entry in entries}
    warnings += [
        f"cell {cell.index} of the sweep in {path.parent} has no results ({cell.title})"
        for path, cell in wanted.items()
        if cell.id not in present
    ]
    _publish(runs, entries, output)
    return Merged(entries, warnings)


def _read(files: Sequence[Path]) -> tuple[list[Run], list[str]]:
    runs, warnings = [], []
    for file in files:
        try:
            # The copy of a file that is being written might vouch for rounds that it does not hold.
            if hdf5.locked(file):
                warnings.append(f"{file} is being written right now; left out")
            else:
                runs.append(load(file))
        except HpcflError as error:
            warnings.append(f"{error}; left out")
    if not runs:
        raise HpcflError(f"nothing of {counted(len(files), 'file')} can be merged: {warnings[0]}")
    return runs, warnings


def _refuse_duplicates(runs: Sequence[Run]) -> None:
    seen: dict[str, Path] = {}
    for run in runs:
        other = seen.setdefault(run.run_id, run.path)
        if other != run.path:
            raise UsageError(
                f"{other} and {run.path} hold the same run {run.run_id}: leave one of them out"
            )


def _cells(folders: set[Path]) -> dict[Path, Cell]:
    """Return the cells of the sweeps in some folders, by the paths of their files."""
    found: dict[Path, Cell] = {}
    for folder in sorted(folders):
        manifest = manifests.load(folder)
        if manifest is not None:
            for cell in manifest.cells:
                found |= dict.fromkeys((folder / cell.file, *states.parts(folder, cell)), cell)
    return found


def _entry(run: Run, name: str, cell: Cell | None) -> dict[str, Any]:
    return {
        "file": name,  # in the new folder
        "source": without_home(str(run.path)),
        **{name: getattr(run, name) for name in _OF_A_RUN},
        "cell": None if cell is None else cell.index,  # in the sweep that it belongs to
        "cell_id": None if cell is None else cell.id,
    }


def _publish(runs: Sequence[Run], entries: Sequence[dict[str, Any]], output: Path) -> None:
    """Fill a hidden folder beside the output, then give it its name."""
    draft = None
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        draft = output.with_name(f".{output.name}.{secrets.token_hex(4)}")
        draft.mkdir()
        for run, entry in zip(runs, entries, strict=True):
            shutil.copyfile(run.path, draft / entry["file"])
        document = {"schema": SCHEMA, "runs": entries}
        (draft / INDEX).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        os.rename(draft, output)
    except OSError as error:
        raise UsageError(
            f"cannot merge into {output} ({error.strerror or error}): choose another --output"
        ) from None
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
