"""Devices that are not alike: the fastest protocol, and what a deadline does to training.

Rounds are predicted for a population's links and processors, by the event clock (docs/method.md).
Training sums by SecAgg; every protocol of whole vectors has the same sums, and loses the same
devices unless it waits for them in more exchanges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import hpcfl
from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.populations.population import NAMES
from papers.artefact import Result, Setting
from papers.statistics import half_width
from papers.study import costs
from papers.training import train
from papers.verdicts import SHOWN, Line

QUORUMS = (1.0, 0.9, 0.7)
ROUNDS = [
    {"population": population, "devices": devices, "dim": dim, "quorum": quorum}
    for population, devices, dim, quorum in product(NAMES, (100, 1_000), (10**5, 10**6), QUORUMS)
]
PREDICTED = (
    "by the cost model, extrapolated for N = 1,000. The first two have neither helpers nor partial "
    "uploads; `any` protocol may have them. Equal devices answer together, whatever the quorum"
)
# As the study's training with 300 shards, with a tenth of the data and a fixed number of rounds.
TRAINING: dict[str, Any] = {
    "dataset": "mnist",
    "model": "2nn",
    "partition": "shards",
    "data_fraction": 0.1,
    "devices": 25,
    "rounds": 30,
    "aggregate": "secagg",
    "population": "mobile",
}
WAITS: list[Setting] = [
    {"quorum": 1.0, "deadline": None},
    {"quorum": 0.9, "deadline": None},
    {"quorum": 0.7, "deadline": None},
    {"quorum": 1.0, "deadline": 2.0},
]
SEEDS = range(3)
TRAININGS = [{**wait, "seed": seed} for wait, seed in product(WAITS, SEEDS)]


def predicted(setting: Setting, data_dir: Path | None) -> Mapping[str, Any]:
    """Return the modelled seconds of a round of every protocol; None for one that cannot do it."""
    found: dict[str, float | None] = {}
    for name in PROTOCOLS:
        kind = find(name)
        more = {"alpha": costs.ALPHA} if kind.sparse_upload else {}
        try:
            (one,) = hpcfl.predict(name, **setting, **more)
        except hpcfl.UsageError:
            found[name] = None
        else:
            found[name] = float(f"{one.modelled_seconds:.4g}")
    return found


def told(results: Sequence[Result]) -> list[Line]:
    """Return the fastest protocols of every setting, and what is left of sparse's saving."""
    lines = []
    for one in results:
        took = {name: seconds for name, seconds in one.found.items() if seconds is not None}
        # Those that hide all values, from every server and without helpers.
        hiding = [name for name in took if _hides_all(name)]
        first, second = sorted(hiding, key=lambda name: took[name])[:2]
        helped = min((name for name in took if name != "fedavg"), key=lambda name: took[name])
        lines.append(
            Line(
                "{population}, N = {devices:,}, d = {dim:,}, quorum {quorum:g}".format_map(
                    one.setting
                ),
                "",
                f"`{first}` {took[first]:.3g} s, then `{second}` {took[second]:.3g} s; any: "
                f"`{helped}` {took[helped]:.3g} s; `secagg` {took['secagg']:.3g} s, "
                f"{took['secagg'] / took['sparse']:.2f} times that of `sparse`",
                SHOWN,
            )
        )
    return lines


def _hides_all(name: str) -> bool:
    kind = find(name)
    return name != "fedavg" and not kind.sparse_upload and not kind.default_helpers


def trained(setting: Setting, data_dir: Path | None) -> Mapping[str, Any]:
    """Train once; every rank calls this, and rank 0 receives what was reached and who was heard."""
    waits = {name: value for name, value in setting.items() if value is not None}
    run = train("fedavg", data_dir, **TRAINING, **waits)
    if run is None:
        return {}
    return {
        "accuracy": float(run.training["accuracy"][-1]),
        "modelled_seconds": round(float(run.training["modelled_seconds"].sum()), 1),
        "in_sum": round(float(run.survived.sum(axis=1).mean()), 2),
        "never_in_sum": round(float((~run.survived.any(axis=0)).mean()), 3),
    }


def reached(results: Sequence[Result]) -> list[Line]:
    """Return what training reached for every way to wait, as means over the seeds."""
    lines = []
    for wait in WAITS:
        found = [one.found for one in results if {**one.setting, **wait} == one.setting]

        def mean(name: str, found: Sequence[Mapping[str, Any]] = found) -> float:
            return float(np.mean([one[name] for one in found]))

        accuracies = [100 * one["accuracy"] for one in found]
        deadline = f", {wait['deadline']:g} s an exchange" if wait["deadline"] else ""
        lines.append(
            Line(
                f"quorum {wait['quorum']:g}{deadline}",
                "",
                f"accuracy {np.mean(accuracies):.1f} ± {half_width(accuracies):.1f} % after "
                f"{mean('modelled_seconds'):.0f} s; {mean('in_sum'):.1f} of {TRAINING['devices']} "
                f"devices in a sum, {100 * mean('never_in_sum'):.0f} % in none",
                SHOWN,
            )
        )
    return lines
