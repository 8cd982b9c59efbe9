"""The answer to a asked about FedSGD-DPC's bound: the best T and b, and the noise there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcfl.algorithms.federated import find_private
from hpcfl.algorithms.federated.queries import (
    REQUIRED,
    Bound,
    Constants,
    GaussianBound,
    LaplaceBound,
    Optimum,
)
from hpcfl.errors import UsageError
from hpcfl.options.optimize import CONSTANTS, OptimizeOptions
from hpcfl.report.jsontext import finite

MOST_DEVICES = 10_000  # a minute at most
# Numbers b that have a row, and a line; numbers T that the lines are given at.
_MOST_ROWS, MOST_LINES, _POINTS = 12, 5, 12


def bound(asked: OptimizeOptions, known: Mapping[str, Any]) -> Bound:
    """Return the bound for constants by name, which may be missing, unknown or out of range."""
    missing = [name for name in (*REQUIRED, asked.clip_name) if known.get(name) is None]
    if missing:
        options = {by: name for name, by in CONSTANTS.items()} | {asked.clip_name: "clip_norm"}
        names = (options.get(name, name).replace("_", "-") for name in missing)
        raise UsageError(
            f"the bound needs {', '.join(f'--{name}' for name in names)}: give them, a file by "
            "--constants, or data to estimate from by --dataset"
        )
    constants = Constants.from_dict(known)
    if constants.devices > MOST_DEVICES:
        raise UsageError(
            f"--devices is {constants.devices}; it must be at most {MOST_DEVICES}, as every number "
            "of them in a round is tried"
        )
    if asked.per_round is not None and asked.per_round > constants.devices:
        raise UsageError(
            f"--per-round is {asked.per_round}, and there are {constants.devices} devices"
        )
    if asked.mechanism == "laplace":
        return LaplaceBound(constants, asked.epsilons)
    return GaussianBound(
        constants,
        asked.epsilons,
        delta=asked.delta,
        fraction=asked.fraction,
        c2=asked.c2,
        replace=asked.record_sampling == "fixed",
    )


def find(bound: Bound, asked: OptimizeOptions) -> dict[str, Any]:
    """Return everything there is to say, for JSON; None is an infinite number of rounds."""
    devices = bound.constants.devices
    best = bound.integer(asked.most, whole=True)
    found: dict[str, Any] = {
        "algorithm": "fedsgd-dpc",
        "mechanism": bound.mechanism,
        "devices": devices,
        "epsilons": bound.epsilons.tolist(),
        "constants": bound.constants.as_dict() | {"gamma": bound.constants.gamma},
        "max_rounds": asked.most,
        **_optima(bound),
        "whole": _as_dict(bound.integer(asked.most), devices),
        "whole_replies": _as_dict(best, devices),
        "noise": _noise(bound, best, asked),
        "by_per_round": [
            _row(bound, b, asked.most) for b in some_of(devices, _MOST_ROWS, asked.per_round)
        ],
    }
    if asked.rounds is not None:
        found["for_rounds"] = _for_rounds(bound, asked.rounds)
    if asked.per_round is not None:
        found["for_per_round"] = next(
            row for row in found["by_per_round"] if row["per_round"] == asked.per_round
        )
    return found | {"curve": _curve(bound, asked)}


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
    found: dict[str, Any] = {"rounds": T, "per_round": best, "bound": float(bound.value(T, best))}
    for name, whole in (("whole", False), ("whole_replies", True)):
        tried = bound.value(T, every, whole=whole)
        found[name] = {"per_round": int(tried.argmin()) + 1, "bound": float(tried.min())}
    return found


def _noise(bound: Bound, best: Optimum, asked: OptimizeOptions) -> dict[str, Any] | None:
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
    sigmas = {epsilon: _sigmas(constants, asked, epsilon, T, b) for epsilon in epsilons}
    mean = sum(sigmas[epsilon][1] ** 2 for epsilon in bound.epsilons.tolist()) / constants.devices
    return found | {
        "sigma_paper": {str(epsilon): paper for epsilon, (paper, _) in sigmas.items()},
        "sigma_proven": {str(epsilon): proven for epsilon, (_, proven) in sigmas.items()},
        "bound_proven": float(bound.with_noise(T, b, constants.dim / b * mean)),
    }


def _sigmas(
    constants: Constants, asked: OptimizeOptions, epsilon: float, rounds: int, per_round: int
) -> tuple[float, float]:
    """Return the Gaussian noise of a coordinate: by the paper, and as it is proven."""
    calibrations = find_private("fedsgd-dpc").accountant.noise(
        epsilon,
        mechanism="gaussian",
        rounds=rounds,
        devices=constants.devices,
        per_round=per_round,
        samples=int(constants.samples // constants.devices),
        clip_norm=constants.l2_clip,
        delta=asked.delta,
        fraction=asked.fraction,
        record_sampling=asked.record_sampling,
    )
    found = {one.by: one.sigma for one in calibrations}
    return found["paper"] * asked.c2, found["proven"]


def _curve(bound: Bound, asked: OptimizeOptions) -> dict[str, Any]:
    """Return U over T, evenly in logarithms, for some b."""
    last = last_rounds(bound, asked.most)
    # As Python's integers: with absurd constants T is beyond 64 bits.
    rounds = sorted({int(number) for number in np.geomspace(1, float(last), _POINTS).round()})
    lines = some_of(bound.constants.devices, MOST_LINES, asked.per_round)
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
