"""Accounts and calibrations as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcfl.privacy.accounting.accountant import TargetNoise
from hpcfl.privacy.accounting.guarantee import Account, Guarantee, spaced
from hpcfl.report import formats
from hpcfl.report.table import Column, Facts, Table, label, paragraph

_GUARANTEES = (
    label("value", ""),
    Column("epsilon", "epsilon", format=formats.number),
    Column("delta", "delta", format=formats.number),
    label("adjacency", "neighbours"),
    label("method"),
)


def guarantees(account: Account) -> Table:
    """Return every value of an account."""
    named = {"paper": account.paper, "same-rho tight": account.tight, "proven": account.proven}
    rows = [_row(name, guarantee) for name, guarantee in named.items() if guarantee is not None]
    rows += [_row("proven as well", one) for one in account.bounds if one is not account.proven]
    return Table(_GUARANTEES, rows)


def noise(epsilon: float, found: Sequence[TargetNoise]) -> Table:
    """Return the noise for a target epsilon by each way to count, and every value at that noise."""
    accounts = [calibration.account for calibration in found]
    rows = [
        [
            *(calibration.by, calibration.sigma, one.paper.epsilon),
            *(one.tight and one.tight.epsilon, one.proven.epsilon),
        ]
        for calibration, one in zip(found, accounts, strict=True)
    ]
    columns = [
        label("by", f"epsilon {epsilon:g} by"),
        Column("sigma", "sigma", format=lambda value: formats.number(value, 6)),
        *(
            Column(name, name, format=formats.number)
            for name in ("paper", "same-rho tight", "proven")
        ),
    ]
    return Table(columns, rows)


def render_account(account: Account) -> str:
    """Return an account as text: every value, and what each needs to hold."""
    return "\n\n".join([_header(account), guarantees(account).text(), _assumptions(account)])


def render_noise(epsilon: float, found: Sequence[TargetNoise]) -> str:
    """Return calibrations as text: the noise, and every value at that noise."""
    account = found[-1].account
    return "\n\n".join(
        [_header(account, "sigma"), noise(epsilon, found).text(), _assumptions(account)]
    )


def _header(account: Account, *without: str) -> str:
    settings = ", ".join(
        f"{spaced(name)} {_setting(value)}"
        for name, value in account.settings.items()
        if value is not None and name not in without
    )
    return Facts({"algorithm": account.algorithm, "settings": settings}).text()


def _assumptions(account: Account) -> str:
    return "\n".join(
        [
            "The paper's value takes it that",
            *(paragraph(clause, "  - ") for clause in account.paper.assumptions),
            f"The proven value ({account.proven.method}) holds if",
            *(paragraph(clause, "  - ") for clause in account.proven.assumptions),
        ]
    )


def _row(name: str, guarantee: Guarantee) -> list[Any]:
    return [name, guarantee.epsilon, guarantee.delta, guarantee.adjacency, guarantee.method]


def _setting(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):  # a number for each round
        return f"{min(value)} to {max(value)}" if value else "of no round"
    return f"{value:g}" if isinstance(value, float) else str(value)
