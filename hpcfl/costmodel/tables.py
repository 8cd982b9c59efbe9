"""Predictions as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcfl.costmodel.calibration import Calibration
from hpcfl.costmodel.model import Prediction
from hpcfl.options.advise import AdviseOptions
from hpcfl.options.definition import part
from hpcfl.options.predict import PredictOptions
from hpcfl.report.table import Column, Table, label, seconds, size
from hpcfl.results.linkmodel import LinkModel

_PARTIES = ("device", "member", "helper", "server")
_BYTES = (size("bytes_up", "up", "/device"), size("bytes_down", "down", "/device"))
_ROUND = (seconds("modelled_seconds", "modelled"), seconds("measured_seconds", "here"))


def devices_of(asked: PredictOptions | AdviseOptions) -> str:
    """Return in words the devices and links that modelled seconds are for."""
    link = part(asked, LinkModel)
    if asked.population is None:
        return f"devices of their own, {link}"
    said = f"the population {asked.population}" + f", {link}" * (asked.population == "uniform")
    until = "no deadline" if asked.deadline is None else f"a deadline of {asked.deadline:g} s"
    return f"devices of {said}, a quorum of {100 * asked.quorum:g} %, {until}"


def side_by_side(found: Sequence[Prediction], asked: PredictOptions, known: Calibration) -> Table:
    """Return a table of predictions, one per row."""
    cpu = [seconds(f"{party}_cpu_seconds", f"{party} CPU") for party in _PARTIES]
    parties = [column for column in cpu if any(getattr(one, column.name) for one in found)]
    columns = [*_BYTES, *parties, *_ROUND]
    rows = [
        [one.protocol, one.devices, one.dim, *(getattr(one, each.name) for each in columns)]
        for one in found
    ]
    notes = dict.fromkeys(line for one in found for line in _about(one, asked, known))
    named = [label("protocol"), Column("devices", "N"), Column("dim", "d")]
    return Table([*named, *columns], rows, "predicted, not run", list(notes))


def _about(found: Prediction, asked: PredictOptions, calibration: Calibration) -> Iterator[str]:
    yield f"modelled: {devices_of(asked)}"
    yield (
        f"here: one process on the calibrated machine ({calibration.about.get('cpu_model', '?')}, "
        f"{calibration.about.get('measured', '?')})"
    )
    yield from found.notes
