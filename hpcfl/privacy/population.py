"""The population of a round: all devices, colluding devices and dropouts."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from hpcfl.errors import UsageError
from hpcfl.privacy.distributions import Counts, Floats, binomial, hypergeometric
from hpcfl.values import dataclass

# A number of survivors less probable than this is left out of every sum.
_NEGLIGIBLE = 1e-60


@dataclass(frozen=True)
class Population:
    """Devices of a round, as seen by a curious server with colluding devices."""

    devices: int  # number N
    # Number A of devices that tell the server all they know; the other H = N - A are honest. Fewer
    # than the secret-sharing threshold floor(N/2) + 1, which could open every mask.
    colluding: int
    dropout: float = 0.0  # rate theta, in [0, 0.5)
    # "exact": floor(theta N) of the N devices drop out, drawn at random; "bernoulli": each device
    # with probability theta; "targeted": floor(theta N) devices drop out and all of them are
    # honest, the worst that someone who can cut links can do.
    model: str = "exact"

    def __post_init__(self) -> None:
        if self.devices < 2:
            raise UsageError(f"the number of devices is {self.devices}; it must be at least 2")
        if self.colluding > self.devices // 2:
            raise UsageError(
                f"{self.colluding} of {self.devices} devices collude; it must be at most half of "
                "them, as more could open every mask with their shares"
            )
        if self.model == "targeted" and self.dropped >= self.honest:
            raise UsageError(
                f"all {self.honest} honest devices drop out of the round; "
                "give a lower dropout rate or fewer colluding devices"
            )

    @property
    def honest(self) -> int:
        """Number H of devices that do not collude."""
        return self.devices - self.colluding

    @property
    def dropped(self) -> int:
        """Number floor(theta N) of devices that drop out, in the models that fix it."""
        return count_of(self.dropout, self.devices)

    def honest_survivors(self) -> tuple[Counts, Floats]:
        """Return the numbers h of honest devices that may survive, and their probabilities."""
        survivors = np.arange(self.honest + 1)
        if self.model == "exact":
            stay = self.devices - self.dropped
            probability = hypergeometric(self.devices, self.honest, stay, survivors)
        elif self.model == "bernoulli":
            probability = binomial(self.honest, 1 - self.dropout, survivors)
        else:
            probability = np.where(survivors == self.honest - self.dropped, 1.0, 0.0)
        likely = probability > _NEGLIGIBLE
        return survivors[likely], probability[likely]

    def seen_by_survivors(self) -> tuple[Counts, Floats]:
        """Return h > 0 and its probability as seen by an honest survivor, h Pr[h] / E[h]."""
        survivors, probability = self.honest_survivors()
        weight = (survivors * probability)[survivors > 0]
        return survivors[survivors > 0], weight / weight.sum()

    @property
    def mean_honest_survivors(self) -> float:
        """Expected number of honest survivors, E[h]."""
        survivors, probability = self.honest_survivors()
        return float(survivors @ probability)


def count_of(part: float | Fraction, devices: int) -> int:
    """Return floor(part * devices) of a part as it was written: 0.29 of 100 is 29."""
    fraction = part if isinstance(part, Fraction) else Fraction(repr(float(part)))
    if not 0 <= fraction <= 1:
        raise UsageError(f"the fraction {fraction} of the devices is not between 0 and 1")
    return math.floor(fraction * devices)
