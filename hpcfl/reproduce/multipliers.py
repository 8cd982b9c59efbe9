"""Which readings of the LOCKS paper give its noise multipliers: 0.5 and 1.32 for epsilon 50 and 10.

The paper says that they were found by RDP with Google's library for 20 of 100 clients a round, and
neither delta nor rounds, nor how the clients are taken. Tried are samples by chance (Poisson),
samples of a fixed size and no amplification at all, of 20 clients and of the 30 that LOCKS invites,
with deltas from 1e-3 to 1e-8 and both conversions that the library has had. A multiplier is the
noise over the sensitivity that the library asks for, whatever that is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.privacy.accounting import sampling
from hpcfl.reproduce.artefact import (
    DIFFERS,
    SHOWN,
    Context,
    Line,
    Result,
    Setting,
)
from hpcfl.reproduce.verdicts import UNDECIDED

CLIENTS = 100
DELTAS = tuple(10.0**-k for k in range(3, 9))
# Of Mironov (2017, Prop. 3), in the library until 2021, and of Canonne, Kamath and Steinke (2020).
CONVERSIONS = ("2017", "2020")
# Multipliers that are printed as 1.32, and as 0.5 with two digits and with one.
_ONE_THIRTY_TWO, _HALF, _ABOUT_HALF = (1.315, 1.325), (0.495, 0.505), (0.45, 0.55)
_MOST_ROUNDS = 1000
_HOW = {"poisson": "Poisson", "fixed": "fixed size", "none": "no amplification"}

SETTINGS: list[Setting] = [
    {"sampling": "poisson", "per_round": 20},
    {"sampling": "poisson", "per_round": 30},
    {"sampling": "fixed", "per_round": 20},
    {"sampling": "fixed", "per_round": 30},
    {"sampling": "none", "per_round": 100},
]

Floats = NDArray[np.float64]


def run(setting: Setting, context: Context) -> Mapping[str, Any]:
    """Return, for every conversion and delta, the numbers of rounds that give 1.32.

    With each of them the epsilon of 0.5, and whether 0.5 is what rounds to the multiplier of
    epsilon 50, to two digits (2), to one (1) or not at all (0).
    """
    ends = {
        multiplier: _curve(setting["sampling"], setting["per_round"], multiplier)
        for multiplier in (*_ONE_THIRTY_TWO, *_HALF, *_ABOUT_HALF, 0.5)
    }
    rows = []
    for conversion in CONVERSIONS:
        for delta in DELTAS:
            epsilon = {z: _epsilons(curve, conversion, delta) for z, curve in ends.items()}
            two, one = (_fits(epsilon, between, 50) for between in (_HALF, _ABOUT_HALF))
            digits = np.where(two, 2, np.where(one, 1, 0))
            rounds = np.flatnonzero(_fits(epsilon, _ONE_THIRTY_TWO, 10))
            rows.append(
                {
                    "conversion": conversion,
                    "delta": delta,
                    "rounds": (rounds + 1).tolist(),
                    "epsilon_of_half": np.round(epsilon[0.5][rounds], 2).tolist(),
                    "digits": digits[rounds].tolist(),
                }
            )
    return {"rows": rows}


def compare(results: Sequence[Result]) -> list[Line]:
    """Return a line for every way to take clients, and one of whether any reading gives both."""
    lines, whole, nearly = [], [], []
    tried = 0
    for one in results:
        name = f"{_HOW[one.setting['sampling']]}, {one.setting['per_round']} of {CLIENTS} clients"
        tried += len(one.found["rows"])
        epsilons: list[float] = []
        fitting: dict[int, list[str]] = {0: [], 1: [], 2: []}
        for row in one.found["rows"]:
            for rounds, epsilon, digits in zip(
                row["rounds"], row["epsilon_of_half"], row["digits"], strict=True
            ):
                epsilons.append(epsilon)
                where = f"{rounds} rounds at delta {row['delta']:g} ({row['conversion']})"
                fitting[digits].append(where)
        found, which = "none", ""
        if epsilons:
            found = f"{len(epsilons)}: {min(epsilons):.3g} to {max(epsilons):.3g}"
            some = fitting[2] + fitting[1]
            which = f"0.5 for 50 to one digit: {', '.join(some) or 'none'}"
        what = f"{name}: readings with 1.32 for 10, and their epsilon of 0.5"
        lines.append(Line(what, "", found, SHOWN, which))
        nearly += [f"{name}, {where}" for where in fitting[1]]
        whole += [f"{name}, {where}" for where in fitting[2]]
    why = (
        "possible: the text names neither rounds nor delta; with two digits for "
        f"{'; '.join(whole) or 'none'}"
        if whole or nearly
        else "impossible for every way to sample, delta and conversion that was tried"
    )
    # That some of so many readings give two numbers is no evidence for any of them.
    verdict = UNDECIDED if whole or nearly else DIFFERS
    lines.append(
        Line(
            f"readings that give both, of {tried} and any number of rounds to {_MOST_ROUNDS}",
            "1.32, about 0.5",
            f"{len(whole + nearly)}",
            verdict,
            why,
        )
    )
    return lines


def _fits(
    epsilon: Mapping[float, Floats], between: tuple[float, float], target: float
) -> NDArray[np.bool_]:
    """Return, for every number of rounds, whether a multiplier in between has the epsilon."""
    less_noise, more_noise = (epsilon[end] for end in between)
    return (more_noise < target) & (target <= less_noise)


def _curve(how: str, per_round: int, multiplier: float) -> Floats:
    """Return the Renyi divergences of one round, at the orders of `sampling.ORDERS`.

    The library gives no curve, but an epsilon of every order by itself.
    """
    dp = sampling.dp_accounting()
    from dp_accounting.rdp import RdpAccountant

    event: Any = dp.GaussianDpEvent(float(multiplier))
    neighbours = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    if how == "poisson":
        event = dp.PoissonSampledDpEvent(per_round / CLIENTS, event)
    elif how == "fixed":
        event = dp.SampledWithoutReplacementDpEvent(CLIENTS, per_round, event)
        neighbours = dp.NeighboringRelation.REPLACE_ONE
    delta = 1e-12  # so small that no epsilon is cut off at 0
    curve = []
    with sampling.quiet():
        for order in sampling.ORDERS:
            epsilon = RdpAccountant([order], neighbours).compose(event).get_epsilon(delta)
            curve.append(epsilon - _surcharge("2020", np.array(order), delta))
    return np.array(curve)


def _surcharge(conversion: str, orders: Floats, delta: float) -> Floats:
    """Return what a conversion adds to the divergence of an order."""
    if conversion == "2017":
        return math.log(1 / delta) / (orders - 1)
    return np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)


def _epsilons(curve: Floats, conversion: str, delta: float) -> Floats:
    """Return the epsilon after every number of rounds, from 1."""
    orders = np.array(sampling.ORDERS)
    rounds = np.arange(1, _MOST_ROUNDS + 1)[:, None]
    return (rounds * curve + _surcharge(conversion, orders, delta)).min(axis=1)
