"""CPU time of devices and of the server in rounds of other protocols, beside `secagg` in one run.

    python benchmarks/beside_secagg.py [protocol ...] [--rounds R]

A tenth of the devices is absent, except in the rounds of `sparse` and `cohort`, which are those of
their paper. A device's time covers all phases and is the median over the surviving devices and
rounds; members of committees are left out. Takes three minutes on one core.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np

from harness import figure, run

DIM = 165_000


class Figures(NamedTuple):
    """What a protocol costs, in CPU seconds and bytes."""

    device: float
    server: float
    upload: float


class Case(NamedTuple):
    """A protocol beside `secagg`, and the limits of the ratios."""

    protocol: str
    devices: int
    options: dict[str, Any]
    device: float
    server: float | None = None


def case(
    protocol: str, devices: int, device: float, server: float | None = None, **options: Any
) -> Case:
    return Case(protocol, devices, {"dim": DIM, "dropout": 0.1} | options, device, server)


CASES = (
    case("sparse", 100, 0.25, dim=1_663_370, dropout=0.3),
    case("cohort", 100, 1 / 3, dim=1_663_370, dropout=0.3),
    case("sparse", 100, 1.0, dropout=0.3),
    case("cohort", 100, 1.0, dropout=0.3),
    case("opa", 100, 0.45, 0.5, bits="20"),
    case("opa", 100, 0.45, 0.5, bits="32"),
)


def spent(protocol: str, devices: int, rounds: int, **options: Any) -> Figures:
    """Return the medians of a device that is no member of a committee, and of the server."""
    _, records = run(protocol, devices, rounds=rounds, warmup=1, **options)
    ordinary = [one.survived & ~one.in_committee for one in records]
    kept = list(zip(records, ordinary, strict=True))
    return Figures(
        float(
            np.median(np.concatenate([one.cpu_seconds[:, :-1].sum(axis=0)[k] for one, k in kept]))
        ),
        float(np.median([one.cpu_seconds[:, -1].sum() for one in records])),
        float(np.mean([one.bytes_up.sum(axis=0)[which].mean() for one, which in kept])),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("protocols", nargs="*", help="only these, by default all")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    known: dict[str, Figures] = {}
    for one in CASES:
        if given.protocols and one.protocol not in given.protocols:
            continue
        rounds = given.rounds
        about = f"N={one.devices}, {', '.join(f'{k} {v}' for k, v in one.options.items())}"
        if about not in known:
            known[about] = spent("secagg", one.devices, rounds, **one.options)
            print(f"{about}: secagg {known[about]}")
        base, found = known[about], spent(one.protocol, one.devices, rounds, **one.options)
        print(f"    {one.protocol} {found}")
        figure(f"    {one.protocol}: device / secagg's", found.device / base.device, one.device)
        if one.server is not None:
            figure(f"    {one.protocol}: server / secagg's", found.server / base.server, one.server)


if __name__ == "__main__":
    main()
