"""Fixtures for tests of results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from run_files import write_run

MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Return :func:`run_files.write_run` for file names in a temporary folder."""

    def make(name: str = "run.h5", *arguments: object, **options: object) -> Path:
        return write_run(tmp_path / name, *arguments, **options)

    return make
