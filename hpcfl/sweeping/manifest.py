"""The manifest of a sweep, ``sweep.json``: its cells in their order, frozen at the first start.

The file never changes after the first start, so a cell number means the same to every job.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hpcfl import __version__
from hpcfl.errors import HpcflError, UsageError
from hpcfl.report.formats import counted
from hpcfl.sweeping.cells import Cell
from hpcfl.system import outputs
from hpcfl.system.outputs import without_home
from hpcfl.values import asdict, dataclass, replace

NAME = "sweep.json"
SCHEMA = "hpcfl-sweep/1"


@dataclass(frozen=True)
class Manifest:
    """The cells of a sweep in the order in which they run."""

    plan: str  # path as the user gave it
    seed: int | None  # of the order; None for the plan's order
    cells: tuple[Cell, ...]  # ``cells[i].index == i``
    created: str  # ISO 8601, UTC
    version: str = __version__

    def cell(self, index: int) -> Cell:
        """Return a cell by its number; raise UsageError if there is none."""
        if not 0 <= index < len(self.cells):
            cells = counted(len(self.cells), "cell")
            raise UsageError(f"the sweep has no cell {index}: it has {cells}, numbered from 0")
        return self.cells[index]


def arrange(plan: str | Path, cells: Sequence[Cell], seed: int | None) -> Manifest:
    """Return the manifest of a plan's cells, shuffled by `seed`, or in their order if it is None.

    Neighbouring runs share the state of the machine (frequency, temperature, other jobs). A random
    order keeps that from looking like an effect of the options.
    """
    order = list(cells)
    if seed is not None:
        random.Random(seed).shuffle(order)
    numbered = tuple(replace(cell, index=index) for index, cell in enumerate(order))
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Manifest(str(plan), seed, numbered, now)


def freeze(folder: Path, manifest: Manifest) -> Manifest:
    """Write the manifest atomically, unless the folder already has one; return the folder's.

    Raise UsageError if the folder has a sweep of other cells, or is not writable.
    """
    stored = load(folder)
    if stored is None:
        document = json.dumps({"schema": SCHEMA} | asdict(manifest), indent=1)
        with outputs.writing(folder / NAME, outputs.MANIFEST) as file:
            file.write(f"{without_home(document)}\n".encode())
            os.fchmod(file.fileno(), 0o444)  # read-only, because it is frozen
        # Another launch may have written a manifest at the same time; the file on disk counts.
        stored = load(folder)
    assert stored is not None
    check_same(folder, stored, manifest)
    return stored


def load(folder: Path) -> Manifest | None:
    """Return a folder's manifest, None if there is none; raise HpcflError if it is damaged."""
    path = folder / NAME
    try:
        document: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if document.pop("schema") != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        cells = (Cell(**one | {"arguments": tuple(one["arguments"])}) for one in document["cells"])
        return Manifest(**document | {"cells": tuple(cells)})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise HpcflError(f"{path} cannot be read as a manifest of hpcfl sweep: {error}") from None


def check_same(folder: Path, stored: Manifest, asked: Manifest) -> None:
    """Raise UsageError if the stored sweep has other cells than the plan."""
    before = {cell.id for cell in stored.cells}
    now = {cell.id for cell in asked.cells}
    if before != now:
        raise UsageError(
            f"{folder} holds another sweep: its {NAME} lacks {len(now - before)} cells of the "
            f"plan, and has {len(before - now)} others; choose another --output"
        )
