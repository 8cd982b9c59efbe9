"""What operations and messages cost on one machine, measured once and kept in a JSON file."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from hpcfl.algorithms.aggregation.costs import OPERATIONS
from hpcfl.costmodel.overheads import PLAINEST, overheads
from hpcfl.errors import HpcflError, UsageError
from hpcfl.system import outputs

# Another one also where protocols count differently: overheads are what counts leave.
FORMAT = "hpcfl-calibration/7"
# What a rank sends or receives at once beyond this does not fit the cache.
CACHED_BYTES = 1 << 22


@dataclass(frozen=True)
class PatternCost:
    """Messages of one pattern among some ranks: alpha + beta bytes, with another beta for many."""

    alpha_seconds: float  # of a call without anything to move
    # For each byte that the busiest rank sends or receives: of the first `CACHED_BYTES`, the rest.
    beta_seconds_per_byte: float
    far_seconds_per_byte: float

    def seconds(self, size: float) -> float:
        """Return the seconds that so many bytes take."""
        near = min(size, CACHED_BYTES)
        far = size - near
        return (
            self.alpha_seconds + self.beta_seconds_per_byte * near + self.far_seconds_per_byte * far
        )


@dataclass(frozen=True)
class Calibration:
    """What was measured."""

    samples: Mapping[str, list[float]]  # CPU seconds of each operation, every measurement
    ranks: int = 1  # among which messages were measured
    links: Mapping[str, PatternCost] = field(default_factory=dict)  # by pattern
    # Elapsed over CPU seconds while all device ranks work and the server waits, and the other way
    # round: more than 1 where ranks share cores.
    devices_slowdown: float = 1.0
    server_slowdown: float = 1.0
    about: Mapping[str, Any] = field(default_factory=dict)  # machine, time and versions

    def seconds(self, operations: Mapping[str, float]) -> float:
        """Return the CPU seconds of so many operations, of which overheads may be below 0."""
        return max(0.0, sum(self.cost(name) * count for name, count in operations.items()))

    def cost(self, operation: str) -> float:
        """Return the CPU seconds of one operation, the median of the measurements."""
        if operation not in self.samples:
            raise UsageError(
                f"the protocol counts the operation {operation!r}, which is not measured; there "
                f"are {', '.join(OPERATIONS)}"
            )
        return median(self.samples[operation])

    def save(self, path: Path) -> None:
        """Write the calibration; an older one is replaced at once."""
        content = {
            "format": FORMAT,
            "about": dict(self.about),
            "ranks": self.ranks,
            "links": {name: list(astuple(link)) for name, link in self.links.items()},
            "devices_slowdown": self.devices_slowdown,
            "server_slowdown": self.server_slowdown,
            "cpu_seconds": {name: list(values) for name, values in self.samples.items()},
        }
        outputs.write(path, outputs.CALIBRATION, json.dumps(content, indent=1) + "\n")


def default_path() -> Path:
    """Return where this machine's calibration is kept: a file of the user's, named by host."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "hpcfl" / f"calibration-{platform.node() or 'host'}.json"


def load(path: Path) -> Calibration:
    """Return a calibration from a file; an HpcflError says that there is none, or none of use."""
    try:
        content = json.loads(path.read_text("utf-8"))
        if content["format"] != FORMAT:
            raise HpcflError(
                f"{path} has the format {content['format']!r}, not {FORMAT}: run 'hpcfl calibrate'"
            )
        found = Calibration(
            {name: values for name, values in content["cpu_seconds"].items() if values},
            content["ranks"],
            {name: PatternCost(*costs) for name, costs in content["links"].items()},
            content["devices_slowdown"],
            content["server_slowdown"],
            content["about"],
        )
    except FileNotFoundError:
        raise UsageError(
            f"there is no calibration at {path}: 'hpcfl calibrate' makes one in half a minute, "
            "or give one with --calibration"
        ) from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise HpcflError(
            f"{path} cannot be read as a calibration ({error}): run 'hpcfl calibrate'"
        ) from None
    missing = sorted({*OPERATIONS, *overheads(PLAINEST)} - {*found.samples})
    if missing:
        raise HpcflError(
            f"{path} was made by another version of hpcfl and lacks {', '.join(missing)}: run "
            "'hpcfl calibrate'"
        )
    return found
