"""The protocol without dropouts on the command line: its default rate is 0."""

from __future__ import annotations

from typing import Any

import click
import pytest

from hpcfl.cli import bench, train


def dropout(command: click.Command, *arguments: str) -> Any:
    return command.make_context("command", list(arguments)).params["dropout"]


@pytest.mark.parametrize("arguments", [["prf"], ["hpcfl.algorithms.aggregation.prf:Prf"]])
def test_a_protocol_without_dropouts_has_the_default_rate_0(arguments: list[str]) -> None:
    assert 0.0 == dropout(bench.command, *arguments)
    assert 0.0 == dropout(train.command, "fedavg", "--aggregate", *arguments)
    assert 0.0 == dropout(train.command, "--aggregate", *arguments, "fedavg")


def test_a_rate_that_is_typed_is_kept_to_be_refused() -> None:
    assert 0.1 == dropout(bench.command, "prf", "--dropout", "0.1")
    assert 0.1 == dropout(bench.command, "--dropout", "0.1", "prf")
    for rate in ("--dropout", "0.1"), ("--dropout=0.1",):
        assert 0.1 == dropout(train.command, "fedavg", "--aggregate", "prf", *rate)
        assert 0.1 == dropout(train.command, *rate, "fedavg", "--aggregate", "prf")
    # The default's value, but typed.
    assert 0.3 == dropout(bench.command, "prf", "--dropout", "0.3")


def test_other_protocols_keep_their_default() -> None:
    for name in ("fedavg", "secagg", "no-such-protocol", "no.such:Module"):
        assert 0.3 == dropout(bench.command, name)
        assert 0.3 == dropout(train.command, "fedavg", "--aggregate", name)
    assert 0.3 == dropout(train.command, "fedavg")


def test_a_presets_rate_is_a_default() -> None:
    preset = ("fedavg", "--preset", "sparse-secagg-mnist")

    assert 0.3 == dropout(train.command, *preset)
    assert 0.0 == dropout(train.command, *preset, "--aggregate", "prf")
