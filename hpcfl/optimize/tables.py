"""The answer to a question about FedSGD-DPC's bound, as text."""

from __future__ import annotations

from typing import Any

from tabulate import tabulate

from hpcfl.optimize.constants import SYMBOLS


def render(found: dict[str, Any]) -> str:
    """Return an answer, as `hpcfl.optimize.answer.find` gives it, as lines of text."""
    parts = [
        _header(found),
        _optima(found),
        *_sentences(found),
        "",
        _by_b(found),
        "",
        _curve(found),
    ]
    return "\n".join(parts)


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
        "U bounds E||theta_T - theta*||^2; without a round it is Y0.\n"
    )


def _optima(found: dict[str, Any]) -> str:
    optima = {
        **found["solutions"],
        f"joint optimum ({found['joint']['solution']})": found["joint"],
        "best whole T and b": found["whole"],
        "the same, whole replies": found["whole_replies"],
    }
    return _table(["", "T", "b", "U"], [[name, *_cells(one)] for name, one in optima.items()])


def _by_b(found: dict[str, Any]) -> str:
    headers = ["b", "T*(b)", "best T", "U", "whole replies: T", "U", "replies"]
    rows = [
        [
            str(row["per_round"]),
            _number(row["rounds"]),
            *_cells(row["whole"])[::2],
            *_cells(row["whole_replies"])[::2],
            str(-(-row["whole_replies"]["rounds"] * row["per_round"] // found["devices"])),
        ]
        for row in found["by_per_round"]
    ]
    return _table(headers, rows)


def _curve(found: dict[str, Any]) -> str:
    curve = found["curve"]
    rows = [
        [str(T), *(f"{values[index]:.4g}" for values in curve["bound"])]
        for index, T in enumerate(curve["rounds"])
    ]
    return _table(["U at T", *(f"b = {b}" for b in curve["per_round"])], rows)


def _table(headers: list[str], rows: list[list[str]]) -> str:
    return tabulate(
        rows,
        headers=headers,
        tablefmt="plain",
        disable_numparse=True,
        colalign=("left" if not headers[0] else "right", *("right",) * (len(headers) - 1)),
    )


def _sentences(found: dict[str, Any]) -> list[str]:
    """Return what was asked for beside the joint optimum, and the noise."""
    lines = [""]
    if "for_per_round" in found:
        row = found["for_per_round"]
        T = _number(row["rounds"])
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
            f"{scale:.4g} (epsilon {epsilon})" for epsilon, scale in noise["scale"].items()
        )
        return [*lines, f"scale of the noise on a coordinate {at}: {scales}"]
    for epsilon, sigma in noise["sigma_proven"].items():
        lines.append(
            f"sigma of the noise on a coordinate {at} (epsilon {epsilon}): proven {sigma:.4g}, "
            f"paper {noise['sigma_paper'][epsilon]:.4g}"
        )
    return [*lines, f"U there with the proven noise: {noise['bound_proven']:.4g}"]


def _cells(one: dict[str, Any]) -> list[str]:
    return [_number(one["rounds"]), f"{one['per_round']:.4g}", f"{one['bound']:.4g}"]


def _number(value: float | None) -> str:
    if value is None:
        return "infinite"
    return str(value) if isinstance(value, int) else f"{value:.4g}"
