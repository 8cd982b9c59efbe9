"""Fixtures for tests of results."""

from collections.abc import Callable
from pathlib import Path

import pytest
from run_files import write_run

MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path):
    """Return :func:`run_files.write_run` for file names in a temporary folder."""

    def make(name="run.h5", *arguments, **options):
        return write_run(tmp_path / name, *arguments, **options)

    return make
