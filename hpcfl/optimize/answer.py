"""The answer to a question about FedSGD-DPC's bound: the best T and b, and the noise there."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hpcfl.algorithms.federated.queries import Bound, LaplaceBound, Optimum
from hpcfl.optimize.question import Question
from hpcfl.report.jsontext import finite

# Numbers b that have a row, and a line; numbers T that the lines are given at.
_MOST_ROWS, MOST_LINES, _POINTS = 12, 5, 12


def find(bound: Bound, question: Question) -> dict[str, Any]:
    """Return everything there is to say, for JSON; None is an infinite number of rounds."""
    devices = bound.constants.devices
    best = bound.integer(question.most, whole=True)
    found: dict[str, Any] = {
        "algorithm": "fedsgd-dpc",
        "mechanism": bound.mechanism,
        "devices": devices,
        "epsilons": bound.epsilons.tolist(),
        "constants": bound.constants.as_dict() | {"gamma": bound.constants.gamma},
        "max_rounds": question.most,
        **_optima(bound),
        "whole": _as_dict(bound.integer(question.most), devices),
        "whole_replies": _as_dict(best, devices),
        "noise": _noise(bound, best, question),
        "by_per_round": [
            _row(bound, b, question.most) for b in some_of(devices, _MOST_ROWS, question.per_round)
        ],
    }
    if question.rounds is not None:
        found["for_rounds"] = _for_rounds(bound, question.rounds)
    if question.per_round is not None:
        found["for_per_round"] = next(
            row for row in found["by_per_round"] if row["per_round"] == question.per_round
        )
    return found | {"curve": _curve(bound, question)}


def some_of(devices: int, most: int, also: int | None = None) -> list[int]:
    """Return at most so many numbers from 1 to N, both among them, and one more."""
    if devices <= most:
        return list(range(1, devices + 1))
    some = set(np.unique(np.geomspace(1, devices, most).round().astype(int)).tolist())
    return sorted(some | ({also} if also is not None else set()))


def last_rounds(bound: Bound, most: int | None) -> int:
    """Return a number T of rounds well beyond the best ones."""
    return most if most is not None else max(20, math.ceil(5 * bound.best_rounds(1)))


def _optima(bound: Bound) -> dict[str, Any]:
    """Return the paper's solutions, and which of them is best."""
    devices = bound.constants.devices
    solutions, joint = bound.solutions(), bound.joint()
    name = next(name for name, one in solutions.items() if one == joint)
    return {
        "solutions": {name: _as_dict(one, devices) for name, one in solutions.items()},
        "joint": _as_dict(joint, devices) | {"solution": name},
    }


def _row(bound: Bound, b: int, most: int | None) -> dict[str, Any]:
    """Return the best T for a b."""
    devices = bound.constants.devices
    return {
        "per_round": b,
        "rounds": finite(bound.best_rounds(b)),
        "whole": _as_dict(bound.best_whole_rounds(b, most), devices),
        "whole_replies": _as_dict(bound.best_whole_rounds(b, most, whole=True), devices),
    }


def _for_rounds(bound: Bound, T: int) -> dict[str, Any]:
    """Return the best b for a T."""
    every = range(1, bound.constants.devices + 1)
    best = bound.best_per_round(T)
    found: dict[str, Any] = {
        "rounds": T,
        "per_round": best,
        "bound": float(bound.value(T, best)),
    }
    for name, whole in (("whole", False), ("whole_replies", True)):
        tried = bound.value(T, every, whole=whole)
        found[name] = {"per_round": int(tried.argmin()) + 1, "bound": float(tried.min())}
    return found


def _noise(bound: Bound, best: Optimum, question: Question) -> dict[str, Any] | None:
    """Return the noise of a device at the best whole numbers, and what an accountant asks for."""
    if best.rounds == 0:
        return None
    constants = bound.constants
    T, b = int(best.rounds), int(best.per_round)
    replies = -(-T * b // constants.devices)
    found: dict[str, Any] = {"rounds": T, "per_round": b, "replies": replies}
    epsilons = sorted(set(bound.epsilons.tolist()))
    if isinstance(bound, LaplaceBound):
        # The whole count makes Theorem 1 the proven noise.
        scales = {str(epsilon): bound.sensitivity * replies / epsilon for epsilon in epsilons}
        return found | {"scale": scales}
    sigmas = {epsilon: question.sigmas(constants, epsilon, T, b) for epsilon in epsilons}
    mean = sum(sigmas[epsilon][1] ** 2 for epsilon in bound.epsilons.tolist()) / constants.devices
    return found | {
        "sigma_paper": {str(epsilon): paper for epsilon, (paper, _) in sigmas.items()},
        "sigma_proven": {str(epsilon): proven for epsilon, (_, proven) in sigmas.items()},
        "bound_proven": float(bound.with_noise(T, b, constants.dim / b * mean)),
    }


def _curve(bound: Bound, question: Question) -> dict[str, Any]:
    """Return U over T, evenly in logarithms, for some b."""
    last = last_rounds(bound, question.most)
    rounds = np.unique(np.geomspace(1, last, _POINTS).round().astype(int)).tolist()
    lines = some_of(bound.constants.devices, MOST_LINES, question.per_round)
    return {
        "rounds": rounds,
        "per_round": lines,
        "bound": [bound.value(rounds, b).tolist() for b in lines],
        "bound_whole_replies": [bound.value(rounds, b, whole=True).tolist() for b in lines],
    }


def _as_dict(one: Optimum, devices: int) -> dict[str, Any]:
    return {
        "rounds": finite(one.rounds),
        "per_round": one.per_round,
        "replies": finite(one.rounds * one.per_round / devices),
        "bound": one.bound,
    }
