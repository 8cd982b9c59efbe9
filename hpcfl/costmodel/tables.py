"""Tables of predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcfl.costmodel.calibration import Calibration
from hpcfl.costmodel.model import SUMMED, Prediction
from hpcfl.report import formats
from hpcfl.report.table import RULE, Column, Table, label, seconds, size
from hpcfl.results.linkmodel import LinkModel

_COSTS = (
    size("bytes_up", "up", "/device"),
    size("bytes_down", "down", "/device"),
    seconds("device_cpu_seconds", "device CPU"),
    seconds("server_cpu_seconds", "server CPU"),
    seconds("modelled_seconds", "modelled"),
    seconds("measured_seconds", "here"),
)
# Of parties that only some protocols have.
_OTHERS = tuple(seconds(f"{party}_cpu_seconds", f"{party} CPU") for party in ("member", "helper"))
_SIDE_BY_SIDE = (
    label("protocol"),
    Column("devices", "N"),
    Column("dim", "d"),
    *_COSTS,
    label("most_of_it"),
)


def one(
    found: Prediction, link: LinkModel, calibration: Calibration, model: str | None = None
) -> Table:
    """Return what a round takes, phase by phase; `model` is what is as long as the vectors."""
    of = "" if model is None else f" ({formats.words(model)})"
    shares = ", ".join(
        f"{name} {share:.0%}"
        for name, share in sorted(found.shares.items(), key=lambda item: -item[1])
        if share >= 0.005
    )
    others = [one for one in _OTHERS if found.total(one.name)]
    columns = (*_COSTS[:4], *others, *_COSTS[4:])
    rows = [[phase.name, *(getattr(phase, one.name) for one in columns)] for phase in found.phases]
    return Table(
        [label("phase"), *columns],
        [*rows, RULE, ["total", *_total(found, columns)]],
        f"{found.protocol}, N = {found.devices}, d = {found.dim}{of}: predicted, not run",
        [f"of the modelled round: {shares}", *_about(found, link, calibration)],
    )


def side_by_side(found: Sequence[Prediction], link: LinkModel, calibration: Calibration) -> Table:
    """Return predictions side by side, one to a row."""
    rows = [
        [
            *(one.protocol, one.devices, one.dim, *_total(one, _COSTS)),
            max(one.shares, key=lambda name: one.shares[name]),
        ]
        for one in found
    ]
    notes = dict.fromkeys(line for one in found for line in _about(one, link, calibration))
    return Table(_SIDE_BY_SIDE, rows, "predicted, not run", list(notes))


def _about(found: Prediction, link: LinkModel, calibration: Calibration) -> list[str]:
    where = "one process" if found.ranks == 1 else f"{found.ranks} ranks"
    if found.servers > 1:
        where += f", {found.servers} of them the server's"
    machine = (
        f"the calibrated machine ({calibration.about.get('cpu_model', '?')}, "
        f"{calibration.about.get('measured', '?')})"
    )
    place = f"here: {where} on {machine}"
    if found.network is not None:
        place = (
            f"here: not this machine but a modelled cluster, {where}, each rank on a core like "
            f"those of {machine}, {found.network}"
        )
    return [
        f"modelled: devices of their own, {link}",
        place,
        f"memory at the peak of a round: {_memory(found)}",
        *found.notes,
    ]


def _memory(found: Prediction) -> str:
    server = formats.size(found.server_peak_bytes)
    if found.device_peak_bytes is None:
        return server
    devices = formats.size(found.device_peak_bytes)
    return f"{server} of the server's rank, {devices} of a rank with devices"


def _total(found: Prediction, columns: Sequence[Column]) -> list[Any]:
    return [
        found.total(one.name) if one.name in SUMMED else getattr(found, one.name) for one in columns
    ]
