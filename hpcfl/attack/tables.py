"""The result of an attack, as text."""

from __future__ import annotations

from hpcfl.attack.components import STANDARD_ERRORS, Findings
from hpcfl.attack.search import MOST_BY_CHANCE, MOST_SUBSETS
from hpcfl.report import formats
from hpcfl.report.formats import counted
from hpcfl.report.table import Column, Facts, Table, label, paragraph

_SUMS = (
    label("sums", ""),
    Column("tried", "tried"),
    Column("small", "small"),
    Column("by_chance", "by chance, expected", format=formats.number),
    Column("recognised", "recognised"),
    Column("correct", "correct"),
    Column("share_of_sent", "of what was sent", format=formats.share),
    Column("beyond_allowed", "beyond the allowed"),
    Column("coordinates_not_tried", "coordinates not tried"),
)


def table(found: Findings) -> Table:
    """Return what was recovered: values, and sums of more and more of them."""
    rows = [
        [
            *("values" if one.size == 1 else f"sums of {one.size}", one.tested, one.small),
            *(one.by_chance, one.found, one.correct, one.size * one.correct / found.sent),
            *(one.beyond, one.skipped),
        ]
        for one in found.sums
    ]
    return Table(_SUMS, rows)


def render(found: Findings) -> str:
    """Return the findings as text: who was there, what was recovered and predicted, its meaning."""
    parts = [Facts(_header(found)).text(), table(found).text(), Facts(_prediction(found)).text()]
    return "\n\n".join([*parts, "\n".join(map(paragraph, _meaning(found)))])


def _header(found: Findings) -> dict[str, str]:
    return {
        "protocol": f"{found.protocol}, round {found.round_index}",
        "devices N": f"{found.devices}, of which {found.colluding} collude with the server; of the "
        f"others {found.honest} survived, {found.devices - found.colluding - found.honest} did not",
        "parameters d": str(found.dim),
        "values sent": f"{found.sent} by honest survivors, {found.sent / found.honest:.6g} by each "
        "on average",
    }


def _prediction(found: Findings) -> dict[str, str]:
    expected, alone = found.prediction, found.alone.correct
    least, median, most = found.by_device
    exact = "exactly, from who is linked with whom"
    return {
        "recovered alone": f"{alone}, {alone / found.sent:.4%} of what was sent, "
        f"{alone / (found.honest * found.dim):.4%} of d",
        "by device": f"{least:.4%} to {most:.4%} of what it sent, median {median:.4%}",
        **_unrecognised(found),
        "predicted": f"{expected.count:.6g}, {expected.count / found.sent:.4%} of what was sent; "
        + (f"standard error {expected.standard_error:.3g}" if expected.standard_error else exact),
        "agrees": ("yes" if found.agrees else "NO")
        + (
            f", within {STANDARD_ERRORS} standard errors: {expected.low:.6g} to {expected.high:.6g}"
            if expected.standard_error
            else ""
        ),
        "before the round": "no closed form"
        if expected.before is None
        else f"{expected.before:.4%} of what is sent is expected to be alone",
    }


def _unrecognised(found: Findings) -> dict[str, str]:
    """Return the line of values that are alone where not all of them were recognised."""
    if found.unmasked == found.alone.correct:
        return {}
    return {
        "no mask left": f"{found.unmasked}, {found.unmasked / found.sent:.4%} of what was sent, "
        "recognised or not"
    }


def _meaning(found: Findings) -> list[str]:
    least, mean, most = found.contributors
    several = f"between {least} and {most}, {mean:.3g} on average" if least < most else str(most)
    allowed = (
        f"Allowed: at each of {counted(found.allowed, 'coordinate')}, the sum over the honest "
        "survivors that "
        f"sent it ({several}). Every one of these sums was found, and equals that of the true "
        "values."
    )
    sole = found.alone.correct - found.alone.beyond
    if sole:
        allowed += f" {sole} of them are a single device's value, as nobody honest else sent it."
    return [allowed, _beyond(found), *_untried(found)]


def _beyond(found: Findings) -> str:
    if found.learned:
        sums, larger = sum(one.beyond for one in found.sums[1:]), found.unresolved - found.untried
        lucky = found.alone.right_by_chance
        guessed = f" (about {lucky:.3g} of them right by chance)" if lucky >= 1 else ""
        return (
            f"Beyond that it learned {counted(found.alone.beyond, 'value')} by themselves{guessed}"
            f", and {counted(sums, 'sum')} of 2 to {found.sums[-1].size} values. Hidden in larger "
            f"sums: {counted(larger, 'value')}."
        )
    nothing = f"Beyond that it {'recognised' if found.untried else 'learned'} nothing."
    chance = sum(one.found - one.correct + one.beyond for one in found.sums)
    if not chance:
        return nothing
    expected = sum(one.by_chance for one in found.sums)
    true = "none of them is true"
    if found.beyond:
        true = (
            f"{found.beyond} of them are true, as a guess among so few numbers is at times, and "
            "with it what it leaves of a sum"
        )
    return (
        f"{nothing} {chance} that looked like values or sums are chance ({expected:.3g} expected): "
        f"{true}."
    )


def _untried(found: Findings) -> list[str]:
    """Say of how many values nothing is known, and why."""
    if not found.untried:
        return []
    return [
        f"Not recognised, nor shown to be hidden: {counted(found.untried, 'value')}, at "
        "coordinates of which not all combinations were tried. Values and sums are recognised as "
        "they are small in the group. What is still masked is as small as a value with a "
        f"probability of {found.small_by_chance:.2g}, higher where few bits have room for little "
        f"more than the sum. Where more than {MOST_BY_CHANCE} such accidents are expected at a "
        f"coordinate, or there are more than {MOST_SUBSETS} combinations, a true one cannot be "
        "told, and none was tried. Who is alone does not depend on that: a server that knows more "
        "of the values than their bound may recognise them."
    ]
