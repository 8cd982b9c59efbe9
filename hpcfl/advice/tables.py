"""The advice as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcfl.advice.advisor import TOLD_APART, Advice, Choice
from hpcfl.costmodel.calibration import Calibration
from hpcfl.costmodel.model import COMPUTING_WITHIN, DEVICE_WITHIN, EXTRAPOLATED, beyond_checked
from hpcfl.costmodel.tables import devices_of
from hpcfl.options.advise import AdviseOptions
from hpcfl.report import formats
from hpcfl.report.table import Column, Table, count, label, seconds, size

_UP_AND_DOWN = (size("bytes_up", "up", "/device"), size("bytes_down", "down", "/device"))
_DEVICE, _SERVER = (
    seconds("mean_cpu_seconds", "device CPU"),
    seconds("server_cpu_seconds", "server CPU"),
)
# Parties that only some protocols have.
_OTHERS = tuple(seconds(f"{party}_cpu_seconds", f"{party} CPU") for party in ("member", "helper"))
_ROUND = seconds("modelled_seconds", "round")


def table(advice: Advice, calibration: Calibration) -> Table:
    """Return a table of the protocols that qualify, best first; notes say why others do not."""
    choices = advice.choices
    others = [one for one in _OTHERS if any(getattr(made.prediction, one.name) for made in choices)]
    totals = (*_UP_AND_DOWN, _DEVICE, *others, _SERVER, _ROUND)
    columns = [
        label("protocol"),
        count("exchanges", "exchanges"),
        *totals,
        seconds("least_modelled_seconds", "from"),
        seconds("most_modelled_seconds", "to"),
        Column("exposed_alone", "exposed alone", format=formats.share),
    ]
    rows = [[*_row(choice, totals)] for choice in choices]
    asked = advice.asked
    title = (
        f"N = {asked.devices}, d = {asked.dim}, {100 * asked.dropout:g} % drop out, "
        f"{asked.security} server, {100 * asked.gamma:g} % collude: predicted, not run"
    )
    return Table(columns, rows, title, [*_notes(advice, calibration)])


def _row(choice: Choice, totals: Sequence[Column]) -> Iterator[object]:
    found = choice.prediction
    yield choice.protocol
    yield choice.exchanges
    for one in totals:
        # A party without CPU time does not exist in this protocol.
        yield getattr(found, one.name) or (None if one in _OTHERS else 0.0)
    yield from found.modelled_within
    yield choice.exposed_alone


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
        yield f"as good, within the error of predictions: {', '.join(advice.as_good)}"
    within = "nine of ten rounds that were measured, none of them against a server that cheats, lay"
    if asked.population is not None:
        within = "rounds with {:g} to {:g} times these CPU seconds lie".format(*COMPUTING_WITHIN)
    yield f"round: on {devices_of(asked)}; {within} between from and to"
    yield "exchanges: how often the server waits for clients, inside a framework (hpcfl.exchange)"
    least, most = DEVICE_WITHIN
    yield (
        "device CPU: the mean over all devices, on a machine like the calibrated one "
        f"({calibration.about.get('cpu_model', '?')}); nine of ten that were measured lay between "
        f"{least:g} and {most:g} times what was predicted"
    )
    yield from _about_members(advice)
    for choice in advice.choices:
        yield from (f"{choice.protocol}: {clause}" for clause in choice.left_out)
    if beyond_checked(asked.devices, asked.dim):
        yield EXTRAPOLATED
    if asked.security == "active":
        yield "costs are those against a curious server: signatures and agreement come to them"
    for refusal in advice.refusals:
        yield f"not {refusal.protocol}: {refusal.reason}"


def _about_members(advice: Advice) -> Iterator[str]:
    """Yield a note for each protocol whose committee members compute more than the mean device."""
    for choice in advice.choices:
        mean, member = choice.prediction.mean_cpu_seconds, choice.prediction.member_cpu_seconds
        if member > TOLD_APART * mean:
            yield f"{choice.protocol}: a member computes {member / mean:.2g} times the mean device"


def command(choice: Choice, asked: AdviseOptions) -> str:
    """Return the command that measures a choice."""
    size = f"--devices {asked.devices} --dim {asked.dim}"
    return " ".join(("hpcfl bench", choice.protocol, size, *choice.options))
