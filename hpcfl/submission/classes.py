"""The classes in which results are compared: what is measured, and how often.

A class fixes every option of `hpcfl bench` but those in `FREE`: an option that is new is fixed to
its default until it is named there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcfl.options.bench import DP_FEDAVG, BenchOptions
from hpcfl.options.definition import names, options_of

# How a protocol does its work.
OF_PROTOCOLS = (
    *("group", "levels", "degree", "locations", "sampler", "committee", "helpers", "rotate"),
    "security",
)
# Where and how the work is done.
OF_LAUNCHES = ("upload", "threads", "server_ranks")
# What is free in every class; options in which runs differ as repeats are, too.
FREE = (*OF_PROTOCOLS, *OF_LAUNCHES, *names(BenchOptions, repeats="yes"))
# Files have none of these where the protocol has no use for them.
OF_SOME_PROTOCOLS = ("alpha", "clip", "noise_multiplier", "clip_norm", "delta")
# The phase before which devices drop out is fixed too, and is another one in every protocol.
_BY_PROTOCOL = "dropout_phase"


@dataclass(frozen=True)
class SubmissionClass:
    """A class: the size of a round, what every protocol is given, and the fewest repetitions."""

    name: str
    devices: int
    dim: int
    rounds: int  # fewest measured rounds of a launch
    launches: int = 6  # fewest: a 95 % interval of a median takes as many
    dropout: float = 0.3
    alpha: float = 0.1
    gamma: float = 0.1
    security_bits: int = 40
    correctness_bits: int = 20
    warmup: int = 2

    @property
    def fixed(self) -> dict[str, Any]:
        """What a results file of the class records, by the names of options; None for no value."""
        known = {
            name: about.default
            for name, about in options_of(BenchOptions).items()
            if about.recorded != "no" and name not in (*FREE, _BY_PROTOCOL)
        }
        noise = BenchOptions(DP_FEDAVG).privacy
        known |= {name: getattr(noise, name) for name in ("noise_multiplier", "clip_norm", "delta")}
        own = {name: value for name, value in vars(self).items() if name in known}
        return {
            name: None if value == () else value
            for name, value in (known | own | {"devices": self.devices}).items()
        }

    @property
    def fingerprint(self) -> str:
        """Digest of what the class fixes and asks for."""
        asked = {"rounds": self.rounds, "launches": self.launches, "fixed": self.fixed}
        return fingerprint(asked)

    @property
    def command(self) -> str:
        """A command line that makes one launch of it; the number of ranks is free."""
        return (
            f"mpirun -n 101 hpcfl bench PROTOCOL --devices {self.devices} --dim {self.dim} "
            f"--rounds {self.rounds}"
        )

    def differences(self, config: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Return options that are not the class's: what they are, and what they should be."""
        found = {}
        for name, wanted in self.fixed.items():
            value = config.get(name)
            if name in OF_SOME_PROTOCOLS and value is None:
                continue
            if name not in config and _recorded(name) == "if given":
                continue
            # In Python 1 and True are equal.
            if value != wanted or isinstance(value, bool) != isinstance(wanted, bool):
                found[name] = value, wanted
        return found


CLASSES = {
    one.name: one
    for one in (
        SubmissionClass("small", devices=100, dim=165_000, rounds=10),
        SubmissionClass("large", devices=1_000, dim=1_000_000, rounds=5),
        SubmissionClass("many", devices=10_000, dim=10_000, rounds=5),
    )
}


def fingerprint(document: Any) -> str:
    """Return the SHA-256 of a document of JSON, 64 hex digits, whatever the order of its names."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _recorded(name: str) -> str:
    about = options_of(BenchOptions).get(name)
    return "always" if about is None else about.recorded
