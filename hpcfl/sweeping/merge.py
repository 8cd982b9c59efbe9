"""Puts the results of several jobs into one folder; the sources are only read."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcfl.errors import HpcflError, UsageError
from hpcfl.report.formats import counted
from hpcfl.results.reader import Run, find, load
from hpcfl.sweeping import manifest as manifests
from hpcfl.system import hdf5, outputs


@dataclass(frozen=True)
class Merged:
    """What was merged, and what is missing."""

    runs: list[Run]
    warnings: list[str]  # on incomplete runs, unreadable files and cells without results


def merge(paths: Sequence[Path], output: Path) -> Merged:
    """Copy results files into a new folder.

    It is a UsageError if that is not empty or cannot be written to, a path does not exist, or two
    files hold the same run; an HpcflError if none of the files can be read.
    """
    outputs.check(output, outputs.FOLDER)
    if output.exists() and any(output.iterdir()):
        raise UsageError(
            f"{output} exists already and results are never overwritten: "
            "name a new folder with --output"
        )
    runs, warnings = _read(list({file.resolve(): file for file in find(paths)}.values()))
    for folder in filter(Path.is_dir, paths):
        manifest = manifests.load(folder)
        warnings += [
            f"cell {cell.index} of the sweep in {folder} has no results ({cell.title})"
            for cell in (() if manifest is None else manifest.cells)
            if not (folder / cell.file).exists()
        ]
    warnings += [f"{run.path} {run.unfinished}" for run in runs if run.unfinished is not None]
    called = Counter(run.path.name for run in runs)
    try:
        output.mkdir(parents=True, exist_ok=True)
        for run in runs:
            tag = f"-{run.run_id[:8]}" if called[run.path.name] > 1 else ""
            shutil.copyfile(run.path, output / f"{run.path.stem}{tag}{run.path.suffix}")
    except OSError as error:
        raise UsageError(
            f"cannot merge into {output} ({error.strerror}): choose another --output"
        ) from None
    return Merged(runs, warnings)


def _read(files: Sequence[Path]) -> tuple[list[Run], list[str]]:
    runs: dict[str, Run] = {}
    warnings = []
    for file in files:
        try:
            # The copy of a file that is being written might vouch for rounds that it does not hold.
            if hdf5.locked(file):
                raise HpcflError(f"{file} is being written right now")
            run = load(file)
        except HpcflError as error:
            warnings.append(f"{error}; left out")
            continue
        other = runs.setdefault(run.run_id, run)
        if other is not run:
            raise UsageError(
                f"{other.path} and {file} hold the same run {run.run_id}: leave one of them out"
            )
    if not runs:
        raise HpcflError(f"nothing of {counted(len(files), 'file')} can be merged: {warnings[0]}")
    return [*runs.values()], warnings
