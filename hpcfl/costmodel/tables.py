"""Tables of predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcfl.costmodel.calibration import Calibration
from hpcfl.costmodel.model import Prediction
from hpcfl.report import formats
from hpcfl.report.table import RULE, Column, Table, label, seconds, size
from hpcfl.results.linkmodel import LinkModel

_PARTIES = ("device", "member", "helper", "server")
_BYTES = (size("bytes_up", "up", "/device"), size("bytes_down", "down", "/device"))
_ROUND = (seconds("modelled_seconds", "modelled"), seconds("measured_seconds", "here"))


def one(
    found: Prediction, link: LinkModel, calibration: Calibration, model: str | None = None
) -> Table:
    """Return a prediction as a table; `model` names the model that has d parameters."""
    of = "" if model is None else f" ({formats.words(model)})"
    rows = [
        [phase.name, phase.bytes_up, phase.bytes_down, phase.link_seconds] for phase in found.phases
    ]
    return Table(
        [label("phase"), *_BYTES, seconds("link_seconds", "links")],
        [*rows, RULE, ["total", found.bytes_up, found.bytes_down, found.link_seconds]],
        f"{found.protocol}, N = {found.devices}, d = {found.dim}{of}: predicted, not run",
        [
            "CPU in a round: "
            + ", ".join(f"{who} {formats.duration(spent)}" for who, spent in _spent(found)),
            f"a round takes {formats.duration(found.modelled_seconds)} modelled, "
            f"{formats.duration(found.measured_seconds)} here",
            *_about(found, link, calibration),
        ],
    )


def side_by_side(found: Sequence[Prediction], link: LinkModel, calibration: Calibration) -> Table:
    """Return a table of several predictions, one per row."""
    parties = [party for party in _PARTIES if any(getattr(one, _of(party)) for one in found)]
    columns = [*_BYTES, *(seconds(_of(party), f"{party} CPU") for party in parties), *_ROUND]
    rows = [
        [one.protocol, one.devices, one.dim, *(getattr(one, each.name) for each in columns)]
        for one in found
    ]
    notes = dict.fromkeys(line for one in found for line in _about(one, link, calibration))
    named = [label("protocol"), Column("devices", "N"), Column("dim", "d")]
    return Table([*named, *columns], rows, "predicted, not run", list(notes))


def _of(party: str) -> str:
    return f"{party}_cpu_seconds"


def _spent(found: Prediction) -> Iterator[tuple[str, float]]:
    for party in _PARTIES:
        if getattr(found, _of(party)):
            yield party, getattr(found, _of(party))


def _about(found: Prediction, link: LinkModel, calibration: Calibration) -> Iterator[str]:
    machine = (
        f"the calibrated machine ({calibration.about.get('cpu_model', '?')}, "
        f"{calibration.about.get('measured', '?')})"
    )
    yield f"modelled: devices of their own, {link}"
    yield f"here: one process on {machine}"
    yield from found.notes
