"""The attack on a recorded round: what the server learns beyond the intended sums.

At one coordinate, the masks between honest survivors cancel within each connected component of the
graph of pairs that masked it. A component with one device is a value without a mask. The adversary
recognises it by its size: the magnitude of a value has a public bound, whereas a masked value is
uniform in the group.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.attack.stripping import Adversary, alone
from hpcfl.attack.transcript import Transcript
from hpcfl.errors import HpcflError, UsageError
from hpcfl.report.table import Facts, paragraph
from hpcfl.values import asdict, dataclass

# Allowed deviation of a count from its mean, in standard errors: exceeded once in 1.7 million runs.
STANDARD_ERRORS = 5
RARE = 1 / 1.7e6


@dataclass(frozen=True)
class ExpectedCount:
    """The number of exposed values of a round, given the colluders, the survivors and the links.

    A value is exposed if its sender, an honest survivor, shares no mask of that coordinate with
    another honest survivor.
    """

    count: float  # mean
    standard_error: float  # standard deviation; 0 if nothing is random
    # Expected number of masked values that equal the true one, which happens with few bits.
    by_chance: float = 0.0

    @property
    def low(self) -> float:
        """The smallest count that agrees with the prediction."""
        return self.count - STANDARD_ERRORS * self.standard_error

    @property
    def high(self) -> float:
        """The largest count that agrees with the prediction."""
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
    sent: int  # values that the honest survivors sent
    # Coordinates that they sent. The server may learn their sum at each; all sums are correct.
    allowed: int
    recognised: int  # values so small that they look unmasked
    by_chance: float  # expected number of recognised values that are still masked
    unmasked: int  # values without a mask, found by comparison with the true values
    # Recognised unmasked values that the server must not learn; 0 if chance explains as many.
    learned: int
    prediction: ExpectedCount
    # The recognised values, shape (n, 3): device, coordinate, quantised value.
    values: NDArray[np.int64]

    @property
    def agrees(self) -> bool:
        """Whether the number of unmasked values agrees with the prediction, within the error."""
        return self.prediction.low <= self.unmasked <= self.prediction.high

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the recognised values, for JSON."""
        found = asdict(self)
        del found["values"]
        found["prediction"] |= {"low": self.prediction.low, "high": self.prediction.high}
        return found | {"unmasked_of_sent": self.unmasked / self.sent, "agrees": self.agrees}

    def render(self) -> str:
        """Return the findings as text: the parties, the recovered values and the prediction."""
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
    """Recover as many of the honest survivors' values as the server can.

    Raise HpcflError if the sums in the transcript are not those of the true values.
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
    # A coordinate with a single value does not count: the value is the intended sum.
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
    """Return the expected number of honest survivors' exposed values in a round."""
    count, error = alone(adversary.protocol, adversary.seen)
    sent = sum(values.size for values in transcript.truth.values())
    by_chance = max(0.0, sent - count) / adversary.protocol.summed_in.modulus
    return ExpectedCount(count, error, by_chance)


def most_by_chance(expected: float) -> int:
    """Return the bound that a Poisson count of this mean exceeds at most once in 1.7 million."""
    from scipy.stats import poisson

    return int(poisson.isf(RARE, expected)) if expected else 0
