"""Accounts and calibrations as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

from tabulate import tabulate

from hpcfl.privacy.accounting.guarantee import Account, Guarantee, words
from hpcfl.privacy.accounting.systems import Calibration


def render_account(account: Account) -> str:
    """Return an account as lines of text: every value, and what each needs to hold.

    Parameters
    ----------
    account : Account

    Returns
    -------
    str
        Without a newline at the end.
    """
    proven = account.proven
    rows = [_row("paper", account.paper)]
    if account.tight is not None:
        rows.append(_row("same-rho tight", account.tight))
    rows.append(_row("proven", proven))
    rows += [_row("proven as well", bound) for bound in account.bounds if bound is not proven]
    table = _table(rows, ["", "epsilon", "delta", "neighbours", "method"], numbers=2)
    return "\n".join([*_header(account), "", table, "", *_assumptions(account)])


def render_noise(epsilon: float, found: Sequence[Calibration]) -> str:
    """Return calibrations as lines of text: the noise, and every value at that noise.

    Parameters
    ----------
    epsilon : float
        The target.
    found : sequence of Calibration
        Not empty.

    Returns
    -------
    str
        Without a newline at the end.
    """
    rows = [
        [
            calibration.by,
            f"{calibration.sigma:.6g}",
            _number(calibration.account.paper),
            _number(calibration.account.tight),
            _number(calibration.account.proven),
        ]
        for calibration in found
    ]
    headers = [f"epsilon {epsilon:g} by", "sigma", "paper", "same-rho tight", "proven"]
    account = found[-1].account
    table = _table(rows, headers, numbers=4)
    return "\n".join([*_header(account, "sigma"), "", table, "", *_assumptions(account)])


def _header(account: Account, *without: str) -> list[str]:
    settings = ", ".join(
        f"{words(name)} {_setting(value)}"
        for name, value in account.settings.items()
        if value is not None and name not in without
    )
    return [f"algorithm  {account.algorithm}", _wrapped("settings   ", settings)]


def _assumptions(account: Account) -> list[str]:
    return [
        "The paper's value takes it that",
        *(_wrapped("  - ", clause) for clause in account.paper.assumptions),
        f"The proven value ({account.proven.method}) holds if",
        *(_wrapped("  - ", clause) for clause in account.proven.assumptions),
    ]


def _row(name: str, guarantee: Guarantee) -> list[str]:
    return [
        name,
        _number(guarantee),
        f"{guarantee.delta:g}",
        guarantee.adjacency,
        guarantee.method,
    ]


def _table(rows: list[list[str]], headers: list[str], numbers: int) -> str:
    texts = len(headers) - 1 - numbers
    return tabulate(
        rows,
        headers=headers,
        tablefmt="simple",
        colalign=("left", *["right"] * numbers, *["left"] * texts),
        disable_numparse=True,
    )


def _number(guarantee: Guarantee | None) -> str:
    return "-" if guarantee is None else f"{guarantee.epsilon:.4g}"


def _setting(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):  # a number for each round
        return f"{min(value)} to {max(value)}" if value else "of no round"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _wrapped(start: str, text: str) -> str:
    return fill(text, 100, initial_indent=start, subsequent_indent=" " * len(start))
