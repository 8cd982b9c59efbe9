"""The tables of docs/protocols.md: the exchanges of the protocols and their costs side by side.

hpcfl sweep protocols --output results/protocols
python benchmarks/protocols.py results/protocols        figures of the sweep, as Markdown
python benchmarks/protocols.py --exchanges              exchanges, as declared by the protocols
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.comm.phases import Pattern, Role, Step
from hpcfl.plots.tradeoff import exposed_alone, figures
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import Run, load
from hpcfl.results.reader import find as files

PARTIES = {Role.DEVICE: "D", Role.HELPER: "H", Role.COMMITTEE: "M"}


def arrow(step: Step) -> str:
    """Return the direction of a step: D, S, H or M for devices, server, helpers, members."""
    party = PARTIES[step.role]
    found = {
        Pattern.BROADCAST: f"S→{party}",
        Pattern.SCATTER: f"S→each {party}",
        Pattern.GATHER: f"{party}→S",
        Pattern.ROUTE: f"{party}→{PARTIES[step.to]}",
    }[step.pattern]
    return f"[{found}]" if step.wants is not None else found


def exchanges() -> list[list[str]]:
    """Return a row for each protocol: its exchanges before all rounds and in a round."""
    rows = []
    for name in PROTOCOLS:
        kind = find(name)
        enrolment = kind.enrolment(2, kind.default_helpers)
        once = () if enrolment is None else enrolment.steps
        moved = [step for step in kind.steps if step.pattern is not Pattern.LOCAL]
        sure = sum(step.wants is None for step in moved)
        text = "; ".join(
            f"{phase}: {', '.join(map(arrow, steps))}"
            for phase, steps in groupby(moved, lambda step: step.phase)
        )
        rows.append([f"`{name}`", ", ".join(map(arrow, once)) or "-", str(sure), text])
    return rows


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """Return a table whose first `words` columns hold words and whose others hold numbers."""
    rule = ["---" if number < words else "---:" for number in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def costs(run: Run) -> list[str]:
    """Return the costs of a round: means, except for medians of the server and the link model."""
    found, kept = figures(run), run.measured
    device = found.get("device") or found["member"]
    down = run.bytes_down[kept].sum(axis=1)[run.survived[kept] & run.ordinary[kept]].mean()
    other = next((party for party in ("member", "helper") if party in found), None)
    beside = "-"
    if other is not None:
        sent, spent = found[other]
        beside = f"{other}: {sent / 1e3:,.1f} kB, {milliseconds(spent)} ms"
    server = np.median(run.cpu_seconds[kept][..., -1].sum(axis=1))
    modelled = np.median(run.modelled_seconds(LinkModel()).sum(axis=1))
    return [
        f"`{run.protocol}`",
        f"{device[0] / 1e3:,.1f}",
        f"{down / 1e3:,.1f}",
        milliseconds(device[1]),
        beside,
        f"{server:,.3g}",
        f"{modelled:,.3g}",
        percent(exposed_alone(run) or 0.0),
    ]


def milliseconds(seconds: float) -> str:
    """Return milliseconds with one decimal, or with two if they are below 1."""
    return f"{1e3 * seconds:,.{1 if seconds >= 1e-3 else 2}f}"


def percent(share: float) -> str:
    """Return a share in per cent, with one decimal or two digits; "0" only for exactly 0."""
    if share == 0:
        return "0"
    if share < 1e-5:
        return "< 0.001 %"
    return f"{100 * share:.1f} %" if share >= 1e-2 else f"{100 * share:.2g} %"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--exchanges", action="store_true")
    asked = parser.parse_args()
    if asked.exchanges:
        head = ["protocol", "once", "exchanges of a round", "in order"]
        print(markdown(head, exchanges(), words=4))
    if asked.folder is None:
        return
    runs = [run for run in map(load, files([asked.folder])) if run.measured.any()]
    order = [*PROTOCOLS, *sorted({run.protocol for run in runs} - {*PROTOCOLS})]
    runs.sort(key=lambda run: (run.devices, order.index(run.protocol)))
    for devices, group in groupby(runs, lambda run: run.devices):
        some = list(group)
        head = [
            *(f"N = {devices}, d = {some[0].dim:,}", "device up, kB", "down, kB"),
            *("device CPU, ms", "others: up, CPU", "server CPU, s", "round modelled, s"),
            "learned alone",
        ]
        print(f"\n{markdown(head, map(costs, some))}")


if __name__ == "__main__":
    main()
