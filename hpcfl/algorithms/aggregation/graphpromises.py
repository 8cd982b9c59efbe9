"""The promises of protocols whose devices share keys and masks on a graph."""

from __future__ import annotations

from functools import lru_cache

from hpcfl.algorithms.aggregation.promises import Outcome, Promise
from hpcfl.privacy.ring import RingParameters, failures, log2
from hpcfl.privacy.threat import REDUNDANT, SPARE, Threat
from hpcfl.values import dataclass


@dataclass(frozen=True)
class Unopened(Promise):
    """Fewer than t devices cannot reconstruct a secret on a complete graph."""

    threat: Threat
    degree: int
    threshold: int

    @property
    def claim(self) -> str:
        exceeded = f", except with probability {log2(self.worst)}" if self.worst else ""
        colluding = f", even if {self.threat} collude{exceeded}" if self.threat.colluding else ""
        return (
            f"every device shares keys and masks with {_others(self.degree)}. It takes "
            f"{self.threshold} devices to reconstruct a secret; fewer learn nothing about it"
            f"{colluding}. Devices that share or answer falsely harm only themselves: k of them, "
            f"while at least {self.threshold} + 2 k devices answer"
        )

    @property
    def worst(self) -> float:
        return failures(self.threat, self.degree, self.threshold).revealed


def _others(count: int) -> str:
    return "the other" if count == 1 else f"the {count} others"


@dataclass(frozen=True)
class Linked(Promise):
    """On a ring, secrets cannot be reconstructed and honest survivors stay connected."""

    threat: Threat  # the colluders and the planned dropouts
    degree: int
    threshold: int
    accepted: float  # accepted probability of a failure

    @property
    def claim(self) -> str:
        planned = self._failures(self.threat.dropped)
        return (
            f"every device shares keys and masks with {self.degree} neighbours; it takes "
            f"{self.threshold} of them to reconstruct a secret. If {self.threat} collude, up to "
            f"{self.threat.dropped} others drop out, at random places on the ring, and one more "
            "is expelled, then a secret is revealed with probability at most "
            f"{log2(planned.revealed)}, the honest survivors are not all linked with probability "
            f"at most {log2(planned.split)}, and with probability at most {log2(planned.stuck)} "
            f"some device has fewer than {self.threshold + REDUNDANT} neighbours left: one false "
            "answer can then end the round"
        )

    def failure(self, outcome: Outcome) -> float:
        gone = outcome.devices - outcome.survivors - outcome.expelled
        found = self._failures(max(0, gone), outcome.expelled)
        return min(1.0, found.revealed + found.split)

    @property
    def worst(self) -> float:
        planned = self._failures(self.threat.dropped)
        return min(1.0, max(self.accepted, planned.revealed + planned.split))

    def broken(self, outcome: Outcome) -> str | None:
        chance, limit = self.failure(outcome), self.worst
        if chance <= limit:
            return None
        expelled = f", {outcome.expelled} of them expelled" if outcome.expelled else ""
        return (
            f"{outcome.devices - outcome.survivors} of {outcome.devices} devices have dropped out"
            f"{expelled}: with {self.degree} neighbours each, the honest ones among the others are "
            f"not all linked with a probability of up to {log2(chance)}, and {log2(limit)} was "
            "promised"
        )

    def _failures(self, dropped: int, expelled: int = SPARE) -> RingParameters:
        return _failures(self.threat, self.degree, self.threshold, dropped, expelled)


@lru_cache(maxsize=256)
def _failures(
    threat: Threat, degree: int, threshold: int, dropped: int, expelled: int
) -> RingParameters:
    return failures(threat.with_dropped(dropped), degree, threshold, expelled)
