"""What is asked of FedSGD-DPC's bound besides the constants of the problem."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcfl.algorithms.federated.queries import (
    REQUIRED,
    Bound,
    Constants,
    GaussianBound,
    LaplaceBound,
)
from hpcfl.errors import UsageError
from hpcfl.privacy.accounting import systems

# With Gaussian noise the bound can fall for ever: no T is best without a limit.
_GAUSSIAN_ROUNDS = 500


@dataclass(frozen=True)
class Question:
    """The noise of the devices, and the rounds that are asked about.

    Attributes
    ----------
    epsilons : list of float
        Budget of a device for all its replies: one for all devices, or one each.
    mechanism : str
        ``"laplace"`` or ``"gaussian"``.
    rounds : int, optional
        T for which the best b is asked for as well.
    per_round : int, optional
        b for which the best T is asked for as well.
    max_rounds : int, optional
        Largest T; 500 by default with Gaussian noise.
    delta, fraction, c2 : float
        As of `GaussianBound`.
    sampling : str
        ``"poisson"`` or ``"fixed"``, with Gaussian noise.

    Raises
    ------
    UsageError
        If a budget is not above 0.
    """

    epsilons: list[float]
    mechanism: str = "laplace"
    rounds: int | None = None
    per_round: int | None = None
    max_rounds: int | None = None
    delta: float = 1e-5
    fraction: float = 1.0
    c2: float = 1.0
    sampling: str = "poisson"

    def __post_init__(self) -> None:
        if not all(math.isfinite(epsilon) and epsilon > 0 for epsilon in self.epsilons):
            shown = ",".join(f"{epsilon:g}" for epsilon in self.epsilons)
            raise UsageError(f"--epsilon is {shown}; every budget must be above 0")

    @property
    def clip_name(self) -> str:
        """Name of the constant that is the clipping norm xi."""
        return "l1_clip" if self.mechanism == "laplace" else "l2_clip"

    @property
    def most(self) -> int | None:
        """Largest T that is tried; None for no limit."""
        if self.max_rounds is None and self.mechanism == "gaussian":
            return max(_GAUSSIAN_ROUNDS, self.rounds or 0)
        return self.max_rounds

    def bound(self, given: Mapping[str, Any]) -> Bound:
        """Return the bound for constants by name.

        Raises
        ------
        UsageError
            If a constant is missing, unknown or out of range, or does not go with what is asked.
        """
        missing = [name for name in (*REQUIRED, self.clip_name) if given.get(name) is None]
        if missing:
            names = ("xi" if name == self.clip_name else name.replace("_", "-") for name in missing)
            raise UsageError(
                f"the bound needs {', '.join(f'--{name}' for name in names)}: give them, a file by "
                "--constants, or data to estimate from by --dataset"
            )
        constants = Constants.from_dict(given)
        if self.per_round is not None and self.per_round > constants.devices:
            raise UsageError(
                f"--per-round is {self.per_round}, and there are {constants.devices} devices"
            )
        if self.mechanism == "laplace":
            return LaplaceBound(constants, self.epsilons)
        return GaussianBound(
            constants,
            self.epsilons,
            delta=self.delta,
            fraction=self.fraction,
            c2=self.c2,
            replace=self.sampling == "fixed",
        )

    def sigmas(
        self, constants: Constants, epsilon: float, rounds: int, per_round: int
    ) -> tuple[float, float]:
        """Return the Gaussian noise of a coordinate: by the paper, and as it is proven."""
        calibrations = systems.noise(
            "fedsgd-dpc",
            epsilon,
            noise="gaussian",
            rounds=rounds,
            devices=constants.devices,
            per_round=per_round,
            samples=int(constants.samples // constants.devices),
            clip=constants.l2_clip,
            delta=self.delta,
            fraction=self.fraction,
            sampling=self.sampling,
        )
        found = {one.by: one.sigma for one in calibrations}
        return found["paper"] * self.c2, found["proven"]
