"""Accounts, and the noise for a target, as plain text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from hpcfl.privacy.accounting.account import Account
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
    best = account.proven()
    named = [("paper", account.paper()), ("proven", best)]
    named += [("proven as well", one) for one in account.bounds() if one != best]
    rows = [[name, one.epsilon, one.delta, one.adjacency, one.method] for name, one in named]
    return Table(_GUARANTEES, rows)


def render_account(account: Account) -> str:
    """Return an account as text: every value, and what each needs to hold."""
    return "\n\n".join([_header(account), guarantees(account).text(), _assumptions(account)])


def render_noise(epsilon: float, found: Mapping[str, Account]) -> str:
    """Return accounts with an epsilon as text: their noise, and every value at that noise."""
    columns = [
        label("by", f"epsilon {epsilon:g} by"),
        Column("sigma", "sigma", format=lambda value: formats.number(value, 6)),
        Column("paper", "paper", format=formats.number),
        Column("proven", "proven", format=formats.number),
    ]
    rows = [[by, one.sigma, one.paper().epsilon, one.proven().epsilon] for by, one in found.items()]
    last = found["proven"]
    return "\n\n".join([_header(last, "sigma"), Table(columns, rows).text(), _assumptions(last)])


def _header(account: Account, *without: str) -> str:
    settings = ", ".join(
        f"{name.replace('_', ' ')} {formats.words(value)}"
        for name, value in asdict(account).items()
        if value is not None and name not in without
    )
    return Facts({"algorithm": account.algorithm, "settings": settings}).text()


def _assumptions(account: Account) -> str:
    proven = account.proven()
    return "\n".join(
        [
            "The paper's value takes it that",
            *(paragraph(clause, "  - ") for clause in account.paper().assumptions),
            f"The proven value ({proven.method}) holds if",
            *(paragraph(clause, "  - ") for clause in proven.assumptions),
        ]
    )
