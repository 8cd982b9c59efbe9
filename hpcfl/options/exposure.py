"""Options of `hpcfl privacy exposure`."""

import math
from fractions import Fraction

from hpcfl.options.definition import again, option
from hpcfl.options.protocols import CommonOptions, MaskingOptions
from hpcfl.options.shared import DEVICES
from hpcfl.values import dataclass, field

# The fraction of colluding devices in the papers.
COLLUDING = Fraction(1, 3)


@dataclass(frozen=True, kw_only=True)
class ExposureOptions(MaskingOptions):
    """Options of `hpcfl privacy exposure`; see ``hpcfl privacy exposure --help``."""

    heading = "Options"
    protocol: str = field(kw_only=False)
    devices: int = option(100, "Number N of devices.", **DEVICES | {"at_most": 10_000})
    dropout: float = again(
        CommonOptions,
        "dropout",
        0.3,
        help="Fraction theta of the devices that drop out after key sharing, before their upload.",
    )
    dropout_model: str = again(
        CommonOptions,
        "dropout_model",
        "exact",
        help="How devices drop out: exactly that fraction, rounded down; each independently; or "
        "exactly that fraction, all of them honest (targeted).",
        choices=("exact", "bernoulli", "targeted"),
    )
    gamma: Fraction = option(
        COLLUDING,
        "Fraction of the devices that collude with the server, rounded down.",
        at_least=0,
        at_most=1,
    )
    seed: int = 0  # of the simulation

    @property
    def colluders(self) -> int:
        """Number of devices that collude with the server."""
        return math.floor(self.gamma * self.devices)
