"""Costs of the protocols' terms on one machine, learned once and kept in a JSON file."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.aggregation.work import Terms
from hpcfl.errors import HpcflError, UsageError
from hpcfl.system import outputs
from hpcfl.values import dataclass, field

FORMAT = "hpcfl-calibration/8"
# The term that every party has once in a round.
ONCE = "once"
# Keys of `Calibration.about` that may differ between costs in one file.
WHEN = {"measured"}
Costs = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Calibration:
    """Seconds per term, by protocol and party.

    Parties are those of ``AggregationProtocol.terms`` and ``around``. The latter has the elapsed
    seconds of a round in one process that are not CPU time of a party of the protocol.
    """

    costs: Mapping[str, Costs]
    # By protocol: the median relative error of the costs on the calibration rounds.
    errors: Mapping[str, float] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)  # machine, time and versions

    def seconds(self, protocol: AggregationProtocol, party: str, terms: Terms) -> float:
        """Return the seconds of a party's work in a round.

        A protocol that was not calibrated uses the costs of its nearest calibrated base class.
        Raise UsageError if there is none, or if the cost of a term was not learned.
        """
        names = [getattr(kind, "name", "") for kind in type(protocol).__mro__]
        known = next((self.costs[name] for name in names if name in self.costs), None)
        if known is None:
            raise UsageError(f"{protocol.name} is not calibrated: run 'hpcfl calibrate' for it")
        learned = known.get(party, {})
        total = learned.get(ONCE, 0.0)
        for name, count in terms.items():
            if count and name not in learned:
                raise UsageError(
                    f"the cost of {name} in {protocol.name} is unknown: run 'hpcfl calibrate'"
                )
            total += learned.get(name, 0.0) * count
        return total

    def updated(self, newer: Calibration) -> Calibration:
        """Return both calibrations merged; newer costs of a protocol replace older ones.

        If the older calibration is from another machine or version, it is discarded, because
        `about` describes all costs.
        """
        if any(self.about.get(name) != newer.about[name] for name in newer.about.keys() - WHEN):
            return newer
        return Calibration(
            {**self.costs, **newer.costs}, {**self.errors, **newer.errors}, newer.about
        )

    def save(self, path: Path) -> None:
        """Write the calibration to a file, which is replaced atomically."""
        content = {
            "format": FORMAT,
            "about": dict(self.about),
            "seconds": self.costs,
            "errors": self.errors,
        }
        outputs.write(path, outputs.CALIBRATION, json.dumps(content, indent=1) + "\n")


def default_path() -> Path:
    """Return the path of this machine's calibration: a file in the user's cache, named by host."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "hpcfl" / f"calibration-{platform.node() or 'host'}.json"


def load(path: Path) -> Calibration:
    """Return a calibration from a file; raise HpcflError if it is missing or unusable."""
    try:
        content = json.loads(path.read_text("utf-8"))
        if content["format"] == FORMAT:
            return Calibration(content["seconds"], content["errors"], content["about"])
    except FileNotFoundError:
        raise UsageError(
            f"there is no calibration at {path}: 'hpcfl calibrate' makes one in 10 to 20 minutes, "
            "or give one with --calibration"
        ) from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise HpcflError(
            f"{path} cannot be read as a calibration ({error}): run 'hpcfl calibrate'"
        ) from None
    raise HpcflError(f"{path} was made by another version of hpcfl: run 'hpcfl calibrate'")
