"""How many values a round exposes alone: for the very round that is attacked, and before it.

A value is alone if the honest survivor that sent it masked that coordinate with no other one. How
many are, protocols say themselves: it follows from who is linked with whom and who survived, or is
a random number of known mean and variance.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcfl.attack.stripping import Adversary
from hpcfl.attack.transcript import Transcript
from hpcfl.privacy.population import Population
from hpcfl.privacy.threat import Threat

# What a count may be off from its mean, in standard errors: by chance once in 1.7 million times.
STANDARD_ERRORS = 5


@dataclass(frozen=True)
class ExpectedCount:
    """A number of values exposed alone."""

    count: float  # its mean, given who colludes, who survived and who is linked with whom
    standard_error: float  # its standard deviation; 0 where nothing is random
    # The part of the sent values, before colluders, dropouts and links are drawn. None where
    # devices dropped out before they shared keys, or where no closed form is known.
    before: float | None

    @property
    def low(self) -> float:
        """The least count that agrees with the prediction."""
        return self.count - STANDARD_ERRORS * self.standard_error

    @property
    def high(self) -> float:
        """The largest."""
        return self.count + STANDARD_ERRORS * self.standard_error


def predict(adversary: Adversary, transcript: Transcript) -> ExpectedCount:
    """Return how many values of honest survivors are alone in a round."""
    protocol, config = adversary.protocol, transcript.config
    count, error = protocol.alone(adversary.seen)
    phase, before = config["dropout_phase"], None
    if phase in ("masked_input", "unmask"):
        parameters = transcript.parameters
        dropout = parameters.dropout if phase == "masked_input" else 0.0
        colluding = Threat.of(parameters).colluding
        model = config["dropout_model"]
        before = protocol.alone_before(Population(parameters.devices, colluding, dropout, model))
    return ExpectedCount(count, error, before)
