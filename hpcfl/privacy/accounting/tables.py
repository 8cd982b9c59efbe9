"""Accounts, and the noise for a target, as plain text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from hpcfl.privacy.accounting.account import Account
from hpcfl.report import formats
from hpcfl.report.table import Column, Facts, Table, label, paragraph


def guarantees(account: Account) -> Table:
    """Return every value of an account."""
    best = account.proven()
    named = [("paper", account.paper()), ("proven", best)]
    named += [("proven as well", one) for one in account.bounds() if one != best]
    numbers = (Column(name, name, format=formats.number) for name in ("epsilon", "delta"))
    columns = (label("value", ""), *numbers, label("adjacency", "neighbours"), label("method"))
    rows = [[name, one.epsilon, one.delta, one.adjacency, one.method] for name, one in named]
    return Table(columns, rows)


def render_account(account: Account) -> str:
    """Return an account as text: every value, and what each needs to hold."""
    return _rendered(account, guarantees(account))


def render_noise(epsilon: float, found: Mapping[str, Account]) -> str:
    """Return accounts with an epsilon as text: their noise, and every value at that noise."""
    columns = [
        label("by", f"epsilon {epsilon:g} by"),
        Column("sigma", "sigma", format=lambda value: formats.number(value, 6)),
        *(Column(name, name, format=formats.number) for name in ("paper", "proven")),
    ]
    rows = [[by, one.sigma, one.paper().epsilon, one.proven().epsilon] for by, one in found.items()]
    return _rendered(found["proven"], Table(columns, rows), "sigma")


def _rendered(account: Account, table: Table, *without: str) -> str:
    """Return a table with the settings, but some, above it and all assumptions below it."""
    settings = ", ".join(
        f"{name.replace('_', ' ')} {formats.words(value)}"
        for name, value in asdict(account).items()
        if value is not None and name not in without
    )
    proven = account.proven()
    lines = [
        Facts({"algorithm": account.algorithm, "settings": settings}).text(),
        f"\n{table.text()}\n",
        "The paper's value takes it that",
        *(paragraph(clause, "  - ") for clause in account.paper().assumptions),
        f"The proven value ({proven.method}) holds if",
        *(paragraph(clause, "  - ") for clause in proven.assumptions),
    ]
    return "\n".join(lines)
