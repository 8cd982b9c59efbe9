"""What came of an audit, as text."""

from __future__ import annotations

from textwrap import fill

from tabulate import tabulate

from hpcfl.attack.tables import WIDTH
from hpcfl.audit.bounds import EpsilonBound
from hpcfl.audit.measure import Audit


def render(found: Audit) -> str:
    """Return an audit as lines of text: the instance, all values of epsilon, what they mean.

    Returns
    -------
    str
        Without a newline at the end.
    """
    rows = [["paper", f"{found.paper:.4g}", "", "", "", ""], _row("measured", found.measured)]
    if found.gaussian is not None:
        rows.append(_row("measured by mu", found.gaussian))
    rows.append(["proven", f"{found.proven:.4g}", "", "", "", ""])
    table = tabulate(
        rows,
        headers=["", "epsilon", "mu", "true\npositives", "false\npositives", "runs on\neach"],
        tablefmt="simple",
        colalign=("left", *("right",) * 5),
        disable_numparse=True,
    )
    return "\n".join(
        [
            *(f"{name:<18}{value}" for name, value in _header(found).items()),
            "",
            table,
            "",
            *(fill(sentence, WIDTH) for sentence in _meaning(found)),
        ]
    )


def _row(name: str, bound: EpsilonBound) -> list[str]:
    return [
        name,
        f">= {bound.epsilon:.4g}",
        "" if bound.mu is None else f">= {bound.mu:.4g}",
        str(bound.true_positives),
        str(bound.false_positives),
        str(bound.runs),
    ]


def _header(found: Audit) -> dict[str, str]:
    instance = found.instance
    parts = [
        f"sigma {instance.sigma:g}",
        f"rounds {instance.rounds}",
        f"devices {instance.per_round} of {instance.devices} a round",
    ]
    if instance.by_record:
        parts.append(f"samples {instance.batch} of {instance.samples} a batch")
        parts.append(f"steps {instance.steps}")
    if instance.replayed:
        times = "" if instance.resumes == 1 else f" {instance.resumes} times"
        parts.append(f"the last {instance.replayed} played again{times}")
    if instance.dropout:
        parts.append(f"dropout {instance.dropout:g}, {instance.dropout_model}")
    if instance.absent:
        parts.append(f"{instance.absent} missing from every sum")
    if instance.ranks > 1:
        parts.append(f"{instance.ranks} ranks")
    seen = "the sum of all uploads" if instance.aggregate == "secagg" else "every upload"
    if instance.algorithm == "dp-fedavg" or (
        instance.algorithm == "locks" and instance.variant == "trusted"
    ):
        seen = "the model after every round"
    if instance.distributed:
        seen = "the sum of all uploads"
    if instance.ranks > 1:
        seen = "the difference of two uploads, from two ranks"
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
            f"The paper's {found.paper:.4g} does not hold: at least {found.best:.4g} is lost."
            if other == found.neighbours
            else f"At least {found.best:.4g} is lost if neighbours {found.neighbours}; the paper's "
            f"{found.paper:.4g} is said of neighbours that {other}."
        )
    else:
        sentences.append(f"That does not contradict the paper's {found.paper:.4g}.")
    sentences.append(
        f"It agrees with what is proven, {found.proven:.4g}."
        if found.agrees
        else f"It CONTRADICTS what is proven, {found.proven:.4g}: there is less noise than that."
    )
    return sentences
