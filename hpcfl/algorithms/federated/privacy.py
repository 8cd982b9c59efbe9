"""What is asked for of privacy, whichever private algorithm is to meet it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcfl.errors import UsageError


@dataclass(frozen=True)
class PrivacyOptions:
    """What `hpcfl train` was asked for of privacy; see ``hpcfl train --help``.

    Attributes
    ----------
    sigma : float, optional
        Standard deviation (Laplace: scale) of the noise on a coordinate; of what, the algorithm
        says.
    noise_multiplier : float, optional
        The same as a multiple of `clip_norm`.
    epsilon : float, optional
        No round begins that would cost more. Without `sigma` and `noise_multiplier` the noise is
        chosen so that this is what all rounds cost.
    epsilon_by : str
        ``"paper"`` or ``"proven"``: whose epsilon that is.
    delta : float
    clip_norm : float
        Norm to which a sample's gradient, or a user's update, is clipped.
    mechanism : str
        ``"gaussian"`` or ``"laplace"`` (fedsgd-dpc).
    noise : str
        ``"central"``, added by a trusted server, or ``"distributed"``, integers of every device
        (dp-fedavg).
    shuffle : str
        How a device goes through its data (cdp, dp-dsgd).
    convex : bool
        Whether no local step expands distances: declared, not checked (cdp).
    quantile : float, optional
        Adapt the clipping norm to this quantile of the updates' norms (dp-fedavg).
    first_stage : int, optional
        Users invited in a round, in expectation; 3/2 of those kept by default (locks).
    variant : str
        ``"trusted"`` or ``"local"`` (locks).
    sigma_norms : float, optional
        Noise on a norm (local) or the sum of norms (trusted); as `sigma` by default (locks).
    fast_noise : bool
        Draw from a generator that is not cryptographic, and repeats itself for the same seed.
    """

    sigma: float | None = None
    noise_multiplier: float | None = None
    epsilon: float | None = None
    epsilon_by: str = "proven"
    delta: float = 1e-5
    clip_norm: float = 1.0
    mechanism: str = "gaussian"
    noise: str = "central"
    shuffle: str = "continuing"
    convex: bool = False
    quantile: float | None = None
    first_stage: int | None = None
    variant: str = "trusted"
    sigma_norms: float | None = None
    fast_noise: bool = False

    def __post_init__(self) -> None:
        for name in ("sigma", "noise_multiplier", "epsilon", "clip_norm", "sigma_norms"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(
                    f"--{name.replace('_', '-')} is {value}; it must be above 0 and finite"
                )
        if self.sigma is not None and self.noise_multiplier is not None:
            raise UsageError("give either --sigma or --noise-multiplier, and not both")
        if not 0 < self.delta < 1:
            raise UsageError(f"--delta is {self.delta}; it must be above 0 and below 1")
        if self.quantile is not None and not 0 < self.quantile < 1:
            raise UsageError(f"--quantile is {self.quantile}; it must be above 0 and below 1")
