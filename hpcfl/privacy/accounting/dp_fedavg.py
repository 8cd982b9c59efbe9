"""User-level federated averaging, Gaussian noise on sums (McMahan et al., 2018): `dp-fedavg`.

A round's users each send an update clipped to the norm C; the sum gets noise N(0, sigma**2 I).
Poisson samples (every user by chance) are accounted for adding or removing a user, whose update
changes the sum by at most C. Samples of a fixed size are accounted for replacing all of a user's
data, which changes it by at most 2 C.

With adaptive clipping (Andrew et al., 2021) each user also adds a bit, "within the clipping norm",
minus one half, to a count with noise of its own; adding a user changes it by 1/2, replacing by 1.

The paper's claim for Poisson samples is that of its moments accountant, by RDP. It is common to
claim the same for rounds of a fixed size; that is shown as the paper's value, and is not proven.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcfl.errors import UsageError
from hpcfl.privacy.accounting import sampling, zcdp
from hpcfl.privacy.accounting.guarantee import (
    ADD_USER,
    REPLACE_USER,
    Guarantee,
    check_count,
    check_delta,
    check_positive,
)

SAMPLINGS = ("poisson", "fixed")


@dataclass(frozen=True)
class Settings:
    """How `dp-fedavg` runs.

    Attributes
    ----------
    sigma : float
        Standard deviation of the noise on every coordinate of the sum of a round's updates.
    rounds : int
        Number of rounds.
    devices : int
        Number n of users.
    per_round : int
        Users in a round: exactly (fixed) or expected (poisson).
    clip : float
        Norm C to which an update is clipped.
    delta : float
    sampling : str
        ``"poisson"`` or ``"fixed"``.
    sigma_count : float, optional
        Standard deviation of the noise on adaptive clipping's count of bits minus one half.
    """

    sigma: float
    rounds: int
    devices: int
    per_round: int
    clip: float = 1.0
    delta: float = 1e-5
    sampling: str = "poisson"
    sigma_count: float | None = None

    def __post_init__(self) -> None:
        check_positive(sigma=self.sigma, clip=self.clip)
        check_count(rounds=self.rounds, least=0)
        check_count(devices=self.devices, per_round=self.per_round)
        check_delta(self.delta)
        if self.sigma_count is not None:
            check_positive(sigma_count=self.sigma_count)
        if self.per_round > self.devices:
            raise UsageError(
                f"{self.per_round} of {self.devices} devices a round; it can be at most all of them"
            )
        if self.sampling not in SAMPLINGS:
            raise UsageError(
                f"the sampling is {self.sampling!r}; choose one of {', '.join(SAMPLINGS)}"
            )

    @property
    def multiplier(self) -> float:
        """Noise multiplier of a round's releases together, for adding or removing a user."""
        multipliers = [self.sigma / self.clip]
        if self.sigma_count is not None:
            multipliers.append(2 * self.sigma_count)
        return zcdp.combined_multiplier(*multipliers)


def paper(settings: Settings) -> Guarantee:
    """Return the epsilon of Poisson samples by RDP, whatever the samples are."""
    return Guarantee(
        sampling.poisson_gaussian_rdp(
            settings.per_round / settings.devices,
            settings.multiplier,
            settings.rounds,
            settings.delta,
        ),
        settings.delta,
        ADD_USER,
        ("Poisson samples are assumed, whatever the sampling", *_common(settings)),
        "RDP, Poisson sampling",
    )


def bounds(settings: Settings) -> tuple[Guarantee, ...]:
    """Return the one bound that is proven for the sampling."""
    n, b = settings.devices, settings.per_round
    if settings.sampling == "poisson":
        epsilon, method = sampling.poisson_gaussian(
            b / n, settings.multiplier, settings.rounds, settings.delta
        )
        adjacency = ADD_USER
        how = f"every user is in a round with probability {b / n:g}, independently and in secret"
        scale = "the sum is divided by the expected number of users, or by nothing"
    else:
        epsilon, method = sampling.fixed_size_gaussian(
            n, b, settings.multiplier / 2, settings.rounds, settings.delta
        )
        adjacency = REPLACE_USER
        how = f"a round has {b} of the {n} users, all sets equally likely, chosen in secret"
        scale = "the sum is divided by the number of users of a round, or by nothing"
    assumptions = (how, scale, *_common(settings))
    return (Guarantee(epsilon, settings.delta, adjacency, assumptions, method),)


def _common(settings: Settings) -> tuple[str, ...]:
    common = (
        f"every user's update is clipped to {settings.clip:g}",
        "only the sum with all its noise is seen: the server is trusted, or learns only sums, "
        "with the noise of users who keep theirs to themselves",
    )
    if settings.sigma_count is None:
        return common
    return (*common, "the count of clipped updates adds a bit minus one half of every user")
