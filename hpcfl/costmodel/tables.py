"""Tables of predictions."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import SEPARATING_LINE, tabulate

from hpcfl.costmodel.calibration import Calibration
from hpcfl.costmodel.model import PhasePrediction, Prediction
from hpcfl.results.linkmodel import LinkModel


def render_one(found: Prediction, link: LinkModel, calibration: Calibration) -> str:
    """Return what a round takes, phase by phase.

    Returns
    -------
    str
        Lines of text, without a newline at the end.
    """
    rows: list[object] = [_row(phase) for phase in found.phases]
    rows.append(SEPARATING_LINE)
    rows.append(
        [
            "total",
            f"{found.total('bytes_up'):.0f}",
            f"{found.total('bytes_down'):.0f}",
            _milliseconds(found.total("device_cpu_seconds")),
            _milliseconds(found.total("server_cpu_seconds")),
            _milliseconds(found.total("modelled_seconds")),
            _milliseconds(found.measured_seconds),
        ]
    )
    table = tabulate(
        rows,  # type: ignore[arg-type]
        [
            "phase",
            "up\nB/device",
            "down\nB/device",
            "device\nCPU ms",
            "server\nCPU ms",
            "modelled\nms",
            "here\nms",
        ],
        tablefmt="simple",
        colalign=("left", *["right"] * 6),
        disable_numparse=True,
    )
    shares = ", ".join(
        f"{name} {share:.0%}"
        for name, share in sorted(found.shares.items(), key=lambda item: -item[1])
        if share >= 0.005
    )
    lines = [
        f"{found.protocol}, N = {found.devices}, d = {found.dim}: predicted, not run",
        "",
        table,
        "",
        f"of the modelled round: {shares}",
        *_about(found, link, calibration),
    ]
    return "\n".join(lines)


def render_all(found: Sequence[Prediction], link: LinkModel, calibration: Calibration) -> str:
    """Return predictions side by side, one to a row."""
    table = tabulate(
        [
            [
                one.protocol,
                f"{one.devices}",
                f"{one.dim}",
                f"{one.total('bytes_up'):.0f}",
                f"{one.total('bytes_down'):.0f}",
                _milliseconds(one.total("device_cpu_seconds")),
                _milliseconds(one.total("server_cpu_seconds")),
                _seconds(one.total("modelled_seconds")),
                _seconds(one.measured_seconds),
                max(one.shares, key=lambda name: one.shares[name]),
            ]
            for one in found
        ],
        [
            "protocol",
            "N",
            "d",
            "up\nB/device",
            "down\nB/device",
            "device\nCPU ms",
            "server\nCPU ms",
            "modelled\ns",
            "here\ns",
            "most of it",
        ],
        tablefmt="simple",
        colalign=("left", *["right"] * 8, "left"),
        disable_numparse=True,
    )
    notes = {line: None for one in found for line in _about(one, link, calibration)}
    return "\n".join(["predicted, not run", "", table, "", *notes])


def _about(found: Prediction, link: LinkModel, calibration: Calibration) -> list[str]:
    where = "one process" if found.ranks == 1 else f"{found.ranks} ranks"
    return [
        f"modelled: devices of their own, {link.uplink_mbps:g} Mbit/s up, "
        f"{link.downlink_mbps:g} Mbit/s down, {link.latency_ms:g} ms latency",
        f"here: {where} on the calibrated machine ({calibration.about.get('cpu_model', '?')}, "
        f"{calibration.about.get('measured', '?')})",
        *found.notes,
    ]


def _row(phase: PhasePrediction) -> list[str]:
    return [
        phase.name,
        f"{phase.bytes_up:.0f}",
        f"{phase.bytes_down:.0f}",
        _milliseconds(phase.device_cpu_seconds),
        _milliseconds(phase.server_cpu_seconds),
        _milliseconds(phase.modelled_seconds),
        _milliseconds(phase.measured_seconds),
    ]


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:,.3f}"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:,.4g}"
