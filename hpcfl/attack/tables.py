"""What came of an attack, as text."""

from __future__ import annotations

from textwrap import fill

from tabulate import tabulate

from hpcfl.attack.components import Findings
from hpcfl.attack.prediction import STANDARD_ERRORS

WIDTH = 100


def render(found: Findings) -> str:
    """Return the findings: who was there, what was recovered, what was predicted, what it means.

    Returns
    -------
    str
        Lines of text, without a newline at the end.
    """
    table = tabulate(
        [
            [
                "values" if one.size == 1 else f"sums of {one.size}",
                one.tested,
                one.small,
                f"{one.by_chance:.3g}",
                one.found,
                one.correct,
                f"{one.size * one.correct / found.sent:.2%}",
                one.beyond,
                one.skipped,
            ]
            for one in found.sums
        ],
        headers=[
            "",
            "tried",
            "small",
            "by chance,\nexpected",
            "recognised",
            "correct",
            "of what\nwas sent",
            "beyond the\nallowed",
            "coordinates\nnot tried",
        ],
        tablefmt="simple",
        colalign=("left", *("right",) * 8),
        disable_numparse=True,
    )
    return "\n".join(
        [
            *(f"{name:<18}{value}" for name, value in _header(found).items()),
            "",
            table,
            "",
            *(f"{name:<18}{value}" for name, value in _prediction(found).items()),
            "",
            *(fill(sentence, WIDTH) for sentence in _meaning(found)),
        ]
    )


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


def _meaning(found: Findings) -> list[str]:
    least, mean, most = found.contributors
    several = f"between {least} and {most}, {mean:.3g} on average" if least < most else str(most)
    allowed = (
        f"Allowed: at each of {found.allowed} coordinates, the sum over the honest survivors that "
        f"sent it ({several}). Every one of these sums was found, and equals that of the true "
        "values."
    )
    alone, sole = found.alone, found.alone.correct - found.alone.beyond
    if sole:
        allowed += f" {sole} of them are a single device's value, as nobody honest else sent it."
    if not found.beyond:
        chance = sum(one.found - one.correct for one in found.sums)
        expected = sum(one.by_chance for one in found.sums)
        return [
            allowed,
            "Beyond that it learned nothing."
            + (
                f" {chance} that looked like values or sums are chance ({expected:.3g} expected): "
                "none of them is true."
                if chance
                else ""
            ),
        ]
    sums = sum(one.beyond for one in found.sums[1:])
    return [
        allowed,
        f"Beyond that it learned {alone.beyond} values by themselves, and {sums} sums of 2 to "
        f"{found.sums[-1].size} values. {found.unresolved} values are hidden in larger sums.",
    ]
