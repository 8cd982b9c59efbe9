"""The advice as a table."""

from __future__ import annotations

import decimal
from collections.abc import Iterator

from hpcfl.advice.advisor import ERROR, Advice, Choice
from hpcfl.costmodel.calibration import Calibration
from hpcfl.costmodel.model import EXTRAPOLATED, beyond_checked
from hpcfl.options.advise import AdviseOptions
from hpcfl.options.definition import part
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.report import formats
from hpcfl.report.table import Column, Table, label, seconds, size
from hpcfl.results.linkmodel import LinkModel

_COLUMNS = (
    label("protocol"),
    size("bytes_up", "up", "/device"),
    size("bytes_down", "down", "/device"),
    seconds("device_cpu_seconds", "device CPU"),
    seconds("server_cpu_seconds", "server CPU"),
    seconds("modelled_seconds", "round"),
    size("device_peak_bytes", "device memory"),
    size("server_peak_bytes", "server memory"),
    Column("exposed_alone", "exposed alone", format=formats.share),
)


def table(advice: Advice, calibration: Calibration) -> Table:
    """Return the protocols that qualify, best first, and in notes why the others do not."""
    asked = advice.asked
    rows = [_row(choice) for choice in advice.choices]
    return Table(_COLUMNS, rows, _title(asked), [*_notes(advice, calibration)])


def _row(choice: Choice) -> list[object]:
    found = choice.prediction
    return [
        choice.protocol,
        *(found.total(one.name) for one in _COLUMNS[1:6]),
        found.device_peak_bytes,
        found.server_peak_bytes,
        choice.exposed_alone,
    ]


def _title(asked: AdviseOptions) -> str:
    dropped = f"{100 * asked.dropout:g} % drop out"
    against = f"{asked.security} server, {100 * asked.gamma:g} % collude"
    return f"N = {asked.devices}, d = {asked.dim}, {dropped}, {against}: predicted, not run"


def _notes(advice: Advice, calibration: Calibration) -> Iterator[str]:
    asked = advice.asked
    if advice.choices:
        best = advice.choices[0]
        yield f"least {asked.criterion}: {best.protocol}; to measure it: {command(best, asked)}"
        for choice in advice.choices:
            yield from (f"{choice.protocol} promises: {claim}" for claim in choice.promises)
    else:
        yield "no protocol qualifies"
    if advice.as_good:
        yield f"not told from it by the predictions' error: {', '.join(advice.as_good)}"
    yield (
        f"round: on devices of their own, {part(asked, LinkModel)}; nine of ten are within "
        f"{100 * ERROR:g} % of it; CPU seconds are those of the calibrated machine "
        f"({calibration.about.get('cpu_model', '?')})"
    )
    for choice in advice.choices:
        if choice.noise_multiplier is not None:
            yield f"{choice.protocol}: noise multiplier {choice.noise_multiplier:.4g}"
    for choice in advice.choices:
        yield from (f"{choice.protocol}: {clause}" for clause in choice.left_out)
    if beyond_checked(asked.devices, asked.dim):
        yield EXTRAPOLATED
    if asked.security == "active":
        yield "costs are those against a curious server: signatures and agreement come to them"
    for refusal in advice.refusals:
        yield f"not {refusal.protocol}: {refusal.reason}"


def command(choice: Choice, asked: AdviseOptions) -> str:
    """Return what is typed to measure a choice."""
    protocol, rounds = choice.protocol, ""
    if choice.noise_multiplier is not None:
        noise = f"{_rounded_up(choice.noise_multiplier)!r}"
        protocol = f"dp-fedavg --aggregate {protocol} --noise-multiplier {noise}"
        # Warm-up rounds would cost privacy, too.
        rounds = f"--rounds {asked.rounds} --warmup 0"
        if asked.delta != PrivacyOptions().delta:
            rounds = f"--delta {asked.delta!r} {rounds}"
    size = f"--devices {asked.devices} --dim {asked.dim}"
    return " ".join(filter(None, ("hpcfl bench", protocol, size, rounds, *choice.options)))


def _rounded_up(noise: float) -> float:
    """Return a number of five digits that is no less: with less noise the epsilon is not met."""
    with decimal.localcontext(prec=5, rounding=decimal.ROUND_CEILING):
        return float(+decimal.Decimal(noise))
