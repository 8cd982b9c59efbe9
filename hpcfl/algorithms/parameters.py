"""The parameters of an aggregation protocol, checked before a run starts."""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hpcfl.crypto.groups import GROUPS, Group
from hpcfl.errors import UsageError
from hpcfl.options.definition import again, described
from hpcfl.options.protocols import DEFAULT_LEVELS, ProtocolOptions
from hpcfl.options.shared import DEVICES, DIM, SeedOptions
from hpcfl.privacy.population import count_of
from hpcfl.values import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Parameters(ProtocolOptions, SeedOptions):
    """The parameters that all devices and the server of a run agree on.

    The seed determines the stochastic rounding, never a key.
    """

    devices: int = field(kw_only=False, metadata=described("Number N of devices.", **DEVICES))
    dim: int = field(kw_only=False, metadata=described("Number d of coordinates.", **DIM))
    levels: int = again(ProtocolOptions, "levels", DEFAULT_LEVELS)
    # The devices' weights beta, shape (N,), adding up to 1; equal by default.
    weights: NDArray[np.float64] | None = field(default=None, compare=False)
    population: int | None = None  # number of devices to draw a round's N from; N by default

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.security == "active":
            self._check_active()

    def _check_active(self) -> None:
        if self.transport_keys == "run":
            raise UsageError(
                "--transport-keys run cannot be combined with --security active: devices would not "
                "see that the server replays their keys; leave one of them out"
            )
        for name in ("dropout", "gamma"):
            value = getattr(self, name)
            if 3 * Fraction(repr(float(value))) >= 1:
                raise UsageError(
                    f"--{name} is {value}; with --security active it must be below 1/3, as more "
                    "than two thirds of the devices must stay to unmask the sum and agree on whose "
                    "it is"
                )
        if self.degree is not None:
            raise UsageError(
                f"--degree is {self.degree}; with --security active every device is linked with "
                "all others: on a ring the server could choose whom a device has as neighbours, "
                "and they are too few for their lists to show that it cheats"
            )

    @property
    def threshold(self) -> int:
        """Number t of survivors needed to unmask: floor(N / 2) + 1.

        If the server may cheat, it is floor(2 N / 3) + 1: t devices cannot endorse each of two
        lists of survivors if fewer than a third collude (Bonawitz et al. 2017, section 6).
        """
        return (2 * self.devices // 3 if self.security == "active" else self.devices // 2) + 1

    @property
    def arithmetic(self) -> Group:
        """The group in which vectors are masked and summed."""
        return GROUPS[self.group]

    @property
    def planned_dropouts(self) -> int:
        """Number of devices that are planned to drop out of a round."""
        return count_of(self.dropout, self.devices)

    @property
    def drop_by_chance(self) -> bool:
        """Whether each device drops out at random, independently of the others."""
        return self.dropout > 0 and self.dropout_model == "bernoulli"

    def weight(self, device: int) -> float:
        """Return the weight beta of a device."""
        return 1 / self.devices if self.weights is None else float(self.weights[device])
