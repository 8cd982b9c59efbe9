"""The answer to a question about FedSGD-DPC's bound, as text."""

from __future__ import annotations

from typing import Any

from hpcfl.optimize.constants import SYMBOLS
from hpcfl.report import formats
from hpcfl.report.table import Column, Table, label


def _rounds(value: float | None) -> str:
    return "infinite" if value is None else formats.number(value)


_OPTIMA = (
    label("optimum", ""),
    Column("rounds", "T", format=_rounds),
    Column("per_round", "b", format=formats.number),
    Column("bound", "U", format=formats.number),
)
_BY_B = (
    Column("per_round", "b"),
    Column("rounds", "T*(b)", format=_rounds),
    Column("best_rounds", "best T"),
    Column("bound", "U", format=formats.number),
    Column("best_rounds_whole_replies", "whole replies: T"),
    Column("bound_whole_replies", "U", format=formats.number),
    Column("replies", "replies"),
)


def render(found: dict[str, Any]) -> str:
    """Return an answer, as `hpcfl.optimize.answer.find` gives it, as lines of text."""
    parts = [
        _header(found),
        optima(found).text(),
        "\n".join(_sentences(found)),
        by_b(found).text(),
        curve(found).text(),
    ]
    return "\n\n".join(parts)


def _header(found: dict[str, Any]) -> str:
    other = {"laplace": ("variance", "l2_clip"), "gaussian": ("l1_clip",)}[found["mechanism"]]
    constants = found["constants"]
    values = (
        f"{symbol} = {constants[name]:.6g}" for name, symbol in SYMBOLS.items() if name not in other
    )
    epsilons = ", ".join(f"{epsilon:g}" for epsilon in sorted(set(found["epsilons"])))
    return (
        f"FedSGD-DPC, {found['mechanism']} noise, N = {found['devices']} devices, epsilon "
        f"{epsilons}\n{', '.join(values)}\n"
        "U bounds E||theta_T - theta*||^2; without a round it is Y0."
    )


def optima(found: dict[str, Any]) -> Table:
    """Return the best numbers of rounds T and of devices b, as reals and as whole numbers."""
    named = {
        **found["solutions"],
        f"joint optimum ({found['joint']['solution']})": found["joint"],
        "best whole T and b": found["whole"],
        "the same, whole replies": found["whole_replies"],
    }
    rows = [[name, one["rounds"], one["per_round"], one["bound"]] for name, one in named.items()]
    return Table(_OPTIMA, rows)


def by_b(found: dict[str, Any]) -> Table:
    """Return the best number of rounds for numbers of devices a round."""
    rows = []
    for row in found["by_per_round"]:
        whole, replies = row["whole"], row["whole_replies"]
        times = -(-replies["rounds"] * row["per_round"] // found["devices"])
        rows.append(
            [
                *(row["per_round"], row["rounds"], whole["rounds"], whole["bound"]),
                *(replies["rounds"], replies["bound"], times),
            ]
        )
    return Table(_BY_B, rows)


def curve(found: dict[str, Any]) -> Table:
    """Return the bound over the number of rounds, a column for each number of devices a round."""
    drawn = found["curve"]
    columns = [
        Column("rounds", "U at T"),
        *(Column(f"b_{b}", f"b = {b}", format=formats.number) for b in drawn["per_round"]),
    ]
    rows = [
        [T, *(values[index] for values in drawn["bound"])]
        for index, T in enumerate(drawn["rounds"])
    ]
    return Table(columns, rows)


def _sentences(found: dict[str, Any]) -> list[str]:
    """Return what was asked for beside the joint optimum, and the noise."""
    lines = []
    if "for_per_round" in found:
        row = found["for_per_round"]
        T = _rounds(row["rounds"])
        lines.append(
            f"for b = {row['per_round']}: T* = {T}; of whole numbers {row['whole']['rounds']}, "
            f"with whole replies {row['whole_replies']['rounds']}"
        )
    if "for_rounds" in found:
        row = found["for_rounds"]
        lines.append(
            f"for T = {row['rounds']}: b* = {row['per_round']:.4g}; of whole numbers "
            f"{row['whole']['per_round']}, with whole replies {row['whole_replies']['per_round']}"
        )
    noise = found["noise"]
    if noise is None:
        lines.append("no training has a smaller bound than the start, at these budgets")
        return lines
    at = f"at T = {noise['rounds']}, b = {noise['per_round']}, {noise['replies']} replies"
    if "scale" in noise:
        scales = ", ".join(
            f"{formats.rounded_up(scale, 4):g} (epsilon {epsilon})"
            for epsilon, scale in noise["scale"].items()
        )
        return [*lines, f"scale of the noise on a coordinate {at}: {scales}"]
    for epsilon, sigma in noise["sigma_proven"].items():
        lines.append(
            f"sigma of the noise on a coordinate {at} (epsilon {epsilon}): "
            f"proven {formats.rounded_up(sigma, 4):g}, paper {noise['sigma_paper'][epsilon]:.4g}"
        )
    return [*lines, f"U there with the proven noise: {noise['bound_proven']:.4g}"]
