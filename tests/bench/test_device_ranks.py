"""What ranks with devices read of a command line, without the command line's packages."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from hpcfl.benchmark import device
from hpcfl.cli import bench
from hpcfl.cli.options import given


def by_click(arguments, monkeypatch):
    """Return what the command line reads, None if it refuses or only prints."""
    found: list[dict[str, Any]] = []

    def noted(as_json, **typed):
        found.append(given(typed))

    monkeypatch.setattr(bench.bench, "callback", noted)
    CliRunner().invoke(bench.bench, arguments)
    return found[0] if found else None


@pytest.mark.parametrize(
    "arguments",
    [
        "sparse",
        "secagg --dim 10 --rounds=3 --devices 3,4 --group ring32",
        "--alpha 0.3 sparse --json",
        "secagg --output a=b.h5 --dim 5 --dim 6",
        "dp-fedavg --aggregate secagg --noise-multiplier=1",
    ],
)
def test_options_are_read_as_the_command_line_reads_them(arguments, monkeypatch):
    found = device.read(arguments.split())

    assert found is not None
    assert by_click(arguments.split(), monkeypatch) == found


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "--help",
        "sparse --help",
        "sparse secagg",
        "sparse --dimm 3",
        "sparse --dim",
        "sparse --gamma -0.1",
        "sparse --json=1",
        "sparse --group ring33",
        "sparse -- --dim",
        "-h",
    ],
)
def test_what_is_not_plainly_an_option_is_left_to_the_command_line(arguments):
    assert device.read(arguments.split()) is None
