"""The result of an audit, as text."""

from __future__ import annotations

from typing import Any

from hpcfl.audit.bounds import EpsilonBound
from hpcfl.audit.measure import Audit
from hpcfl.report import formats
from hpcfl.report.table import Column, Facts, Table, label, paragraph

_EPSILONS = (
    label("value", ""),
    Column("epsilon", "epsilon", format=formats.number),
    Column("mu", "mu", format=formats.number),
    Column("true_positives", "true positives"),
    Column("false_positives", "false positives"),
    Column("runs", "runs on each"),
)


def table(found: Audit) -> Table:
    """Return all values of epsilon: printed, measured and proven."""
    rows = [["paper", found.paper, *[None] * 4], _row("measured, at least", found.measured)]
    if found.gaussian is not None:
        rows.append(_row("measured by mu, at least", found.gaussian))
    rows.append(["proven", found.proven, *[None] * 4])
    return Table(_EPSILONS, rows)


def render(found: Audit) -> str:
    """Return an audit as text: the instance, all values of epsilon, what they mean."""
    parts = [Facts(_header(found)).text(), table(found).text()]
    return "\n\n".join([*parts, "\n".join(map(paragraph, _meaning(found)))])


def _row(name: str, bound: EpsilonBound) -> list[Any]:
    return [
        *(name, bound.epsilon, bound.mu),
        *(bound.true_positives, bound.false_positives, bound.runs),
    ]


def _header(found: Audit) -> dict[str, str]:
    instance = found.instance
    parts = [
        f"sigma {instance.sigma:g}",
        f"rounds {instance.rounds}",
        f"devices {instance.per_round} of {instance.devices} a round",
    ]
    if instance.by_record:
        parts.append(f"samples {instance.batch_size} of {instance.samples} a batch")
        parts.append(f"steps {instance.steps}")
    noisy = instance.by_record or (
        "variant" in instance.kind.settings and instance.variant == "local"
    )
    seen = "every upload" if noisy else "the model after every round"
    if instance.summed:
        seen = "the sum of all uploads"
    header = {
        "algorithm": f"{instance.algorithm}, {', '.join(parts)}",
        "observer sees": seen,
        "neighbours": found.neighbours,
        "delta": f"{found.delta:g}",
    }
    if found.accesses:
        header["canary is used"] = (
            f"{', '.join(map(str, found.accesses))} times in the rounds of its device, in an order "
            "that the observer knows"
        )
    return header


def _meaning(found: Audit) -> list[str]:
    sentences = [
        f"With a confidence of {found.confidence:g} each, no epsilon below the measured ones holds."
    ]
    if found.gaussian is not None:
        part = found.gaussian.part
        of_them = f", and counts the {part:.2%} of runs in which the canary is sent"
        sentences[0] += (
            " The one by mu needs what is released to be Gaussian, which it is here"
            + (of_them if part < 1 else "")
            + "."
        )
    if found.exceeds_paper:
        other = found.paper_neighbours
        sentences.append(
            f"The paper's {found.paper:.4g} does not hold: epsilon is at least {found.best:.4g}."
            if other == found.neighbours
            else f"Epsilon is at least {found.best:.4g} if neighbours {found.neighbours}; the "
            f"paper's {found.paper:.4g} is said of neighbours that {other}."
        )
    else:
        sentences.append(f"That does not contradict the paper's {found.paper:.4g}.")
    sentences.append(
        f"It agrees with what is proven, {found.proven:.4g}."
        if found.agrees
        else f"It CONTRADICTS what is proven, {found.proven:.4g}: there is less noise than that."
    )
    return sentences
