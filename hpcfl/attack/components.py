"""The attack on a recorded round: what the server learns beyond the sums that it is meant to.

At one coordinate, the masks between honest survivors cancel within each connected component of the
graph of pairs that masked it. A component of one is a value without any mask left, which the
adversary recognises as it is small: a value is at most a public bound in magnitude, and what is
still masked is uniform in the group.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.attack.stripping import Adversary, alone
from hpcfl.attack.transcript import Transcript
from hpcfl.errors import HpcflError, UsageError
from hpcfl.report.table import Facts, paragraph

# What a count may be off from its mean, in standard errors: by chance once in 1.7 million times.
STANDARD_ERRORS = 5
RARE = 1 / 1.7e6


@dataclass(frozen=True)
class ExpectedCount:
    """How many values a round exposes alone, given who colludes, survived and is linked with whom.

    A value is alone if the honest survivor that sent it masked that coordinate with no other one.
    """

    count: float  # its mean
    standard_error: float  # its standard deviation; 0 where nothing is random
    # Expected values that are still masked and yet equal the true one: few bits are soon guessed.
    by_chance: float = 0.0

    @property
    def low(self) -> float:
        """The least count that agrees with the prediction."""
        return self.count - STANDARD_ERRORS * self.standard_error

    @property
    def high(self) -> float:
        """The largest."""
        return self.count + STANDARD_ERRORS * self.standard_error + most_by_chance(self.by_chance)


@dataclass(frozen=True)
class Findings:
    """The result of an attack."""

    protocol: str
    devices: int
    dim: int
    round_index: int
    colluding: int  # devices that collude with the server
    honest: int  # honest survivors
    sent: int  # values that these sent
    # Coordinates that they sent, at each of which the server is allowed to learn their sum. All of
    # these sums equal the true ones.
    allowed: int
    recognised: int  # values that look like ones of which no mask is left, as they are small
    by_chance: float  # expected ones of these that are still masked
    unmasked: int  # values of which no mask is left, as a comparison with the true ones tells
    # Those that were recognised and that nobody is meant to learn; 0 if chance explains as many.
    learned: int
    prediction: ExpectedCount
    # Every value that was recognised, shape (n, 3): device, coordinate, quantised value.
    values: NDArray[np.int64]

    @property
    def agrees(self) -> bool:
        """Whether as many values have no mask left as predicted, within the error."""
        return self.prediction.low <= self.unmasked <= self.prediction.high

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the values themselves, for JSON."""
        found = asdict(self)
        del found["values"]
        found["prediction"] |= {"low": self.prediction.low, "high": self.prediction.high}
        return found | {"unmasked_of_sent": self.unmasked / self.sent, "agrees": self.agrees}

    def render(self) -> str:
        """Return the findings as text: who was there, what was recovered and what was predicted."""
        expected = self.prediction
        facts = {
            "protocol": f"{self.protocol}, round {self.round_index}",
            "devices N": f"{self.devices}: {self.colluding} collude with the server, "
            f"{self.honest} honest ones survived",
            "parameters d": str(self.dim),
            "values sent": f"{self.sent} by honest survivors",
            "no mask left": f"{self.unmasked}, {self.unmasked / self.sent:.4%} of sent",
            "predicted": f"{expected.count:.6g}, between {expected.low:.6g} and "
            f"{expected.high:.6g}",
            "agrees": "yes" if self.agrees else "NO",
            "recognised": f"{self.recognised}, of which {self.by_chance:.3g} are expected by "
            "chance",
        }
        meaning = (
            f"At each of {self.allowed} coordinates the server learned the sum that it is meant to "
            f"learn, which is true, and beyond that {self.learned or 'no'} values by themselves."
        )
        return f"{Facts(facts).text()}\n\n{paragraph(meaning)}"


def attack(transcript: Transcript) -> Findings:
    """Recover what the server can of the values that honest survivors sent.

    It refuses a transcript in which the sums that are left are not those of the true values.
    """
    adversary = Adversary(transcript)
    left = {id: adversary.strip(id) for id in sorted(transcript.truth)}
    sent = sum(where.size for where, _ in left.values())
    if not sent:
        raise UsageError("no honest survivor sent anything: there is nothing to recover")
    group, dim = adversary.protocol.summed_in, transcript.parameters.dim
    contributors, difference = np.zeros(dim, np.int64), np.zeros(dim, np.int64)
    unmasked, by_chance, right, values = 0, 0.0, [], []
    for id, (where, elements) in left.items():
        truth = transcript.truth[id].astype(np.int64)
        np.add.at(contributors, where, 1)
        np.add.at(difference, where, elements.astype(np.int64) - truth)
        decoded, bound = group.decode(elements), adversary.bound(id)
        bare, small = decoded == truth, np.abs(decoded) <= bound
        unmasked += int(np.count_nonzero(bare))
        by_chance += np.count_nonzero(~bare) * min(1.0, (2 * bound + 1) / group.modulus)
        found = np.stack([np.full(decoded.size, id), where, decoded], axis=1)
        values.append(found[small])
        right.append(found[small & bare, 1])
    wrong = np.flatnonzero(group.reduce(difference))
    if wrong.size:
        raise HpcflError(
            f"the sum at coordinate {wrong[0]} is not that of the true values: the transcript is "
            "damaged"
        )
    prediction = predict(adversary, transcript)
    # The only value at a coordinate is the sum that the server is meant to learn.
    learned = int(np.count_nonzero(contributors[np.concatenate(right)] > 1))
    return Findings(
        protocol=transcript.kind.name,
        devices=transcript.parameters.devices,
        dim=dim,
        round_index=transcript.round_index,
        colluding=int(transcript.colluding.sum()),
        honest=len(left),
        sent=sent,
        allowed=int(np.count_nonzero(contributors)),
        recognised=sum(map(len, values)),
        by_chance=by_chance,
        unmasked=unmasked,
        learned=learned if learned > most_by_chance(prediction.by_chance) else 0,
        prediction=prediction,
        values=np.concatenate(values),
    )


def predict(adversary: Adversary, transcript: Transcript) -> ExpectedCount:
    """Return how many values of honest survivors are alone in a round."""
    count, error = alone(adversary.protocol, adversary.seen)
    sent = sum(values.size for values in transcript.truth.values())
    by_chance = max(0.0, sent - count) / adversary.protocol.summed_in.modulus
    return ExpectedCount(count, error, by_chance)


def most_by_chance(expected: float) -> int:
    """Return what a Poisson count with this mean exceeds once in 1.7 million times at most."""
    from scipy.stats import poisson

    return int(poisson.isf(RARE, expected)) if expected else 0
