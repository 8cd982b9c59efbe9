"""User-level federated averaging, Gaussian noise on sums (McMahan et al., 2018): `dp-fedavg`.

A round's users each send an update clipped to the norm C; the sum gets noise N(0, sigma**2 I).
Poisson samples (every user by chance) are accounted for adding or removing a user, whose update
changes the sum by at most C. Samples of a fixed size are accounted for replacing all of a user's
data, which changes it by at most 2 C.

With adaptive clipping (Andrew et al., 2021) each user also adds a bit, "within the clipping norm",
minus one half, to a count with noise of its own; adding a user changes it by 1/2, replacing by 1.

Where an exact number of a round's users drops out, one user more can make another one leave, or
leave in its place: the sum moves by up to 2 C, and the count by 1. Couple the two rounds so that
those who drop out of the larger, but for one, are those who drop out of the smaller; given the
sample, either one user comes, or one comes for another.

Noise is central, added once, or distributed: every user adds discrete Gaussian noise to integers,
of which only sums are seen (Kairouz, Liu and Steinke, 2021). It is accounted for replacing a user's
update by zeros, whoever takes part: that may be public, so sampling amplifies nothing. One that is
dropped or colludes adds no noise that counts; rounds that have taken place are charged by those
whose noise was there.

The paper's claim for Poisson samples is that of its moments accountant, by RDP. It is common to
claim the same for rounds of a fixed size; that is shown as the paper's value, and is not proven.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hpcfl.errors import UsageError
from hpcfl.privacy.accounting import distributed, sampling, zcdp
from hpcfl.privacy.accounting.guarantee import (
    ADD_USER,
    NOTHING_LEFT,
    REPLACE_USER,
    ZERO_USER,
    Guarantee,
    Schedule,
    check_count,
    check_delta,
    failure_clauses,
    less_failures,
    spaced,
)
from hpcfl.report.formats import counted

SAMPLINGS = ("poisson", "exact")
NOISES = ("central", "distributed")


@dataclass(frozen=True)
class Settings(Schedule):
    """How `dp-fedavg` runs, with `per_round` users exactly (exact) or in expectation (poisson).

    `sigma` is the standard deviation of the noise on every coordinate of the sum of a round's
    updates; of distributed noise, before it is enlarged for the rounding to integers.
    """

    clip_norm: float = 1.0  # norm C to which an update is clipped
    delta: float = 1e-5
    sampling: str = "poisson"
    # Standard deviation of the noise on adaptive clipping's count of bits minus one half. With
    # distributed noise, bits are one more coordinate, scaled so as to have the noise of all.
    sigma_count: float | None = None
    noise: str = "central"
    # This and the following are for distributed noise, which needs the first three. Users whose
    # noise is in every coordinate of every sum, and known to nobody else: those that neither drop
    # out nor collude, at the least.
    honest: int | None = None
    unit: float | None = None  # integers that 1 is scaled to, in the coordinate of an update
    dim: int | None = None  # coordinates of an update, without the bit
    participations: int | None = None  # rounds of a user at the most, of a public schedule; or all
    # What `honest` was in each of the rounds, where they have taken place: devices add the noise
    # that `honest` asks for, and a round is charged by the noise that it has.
    honest_by_round: tuple[int, ...] | None = None
    # Whether an exact number of a round's users drops out, any of them as likely as any other.
    exact_dropouts: bool = False
    failure: float = 0.0  # probability, in a round, that what is assumed of it does not hold

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(("clip_norm", "sigma_count"), sampling=SAMPLINGS, noise=NOISES)
        check_delta(self.delta)
        if self.noise == "central":
            for name in ("honest", "unit", "dim", "participations", "honest_by_round"):
                if getattr(self, name) is not None:
                    raise UsageError(
                        f"{spaced(name)} is for distributed noise, and this noise is central: "
                        "leave it out"
                    )
        else:
            self._check_integers()

    def _check_integers(self) -> None:
        needed = {"honest": self.honest, "unit": self.unit, "dim": self.dim}
        missing = [name for name, value in needed.items() if value is None]
        if missing:
            raise UsageError(f"distributed noise also needs {', '.join(missing)}")
        assert self.honest is not None
        self.check(("unit",), ("honest", "dim"), ("participations",))
        most = self.per_round if self.sampling == "exact" else self.devices
        if self.honest > most:
            raise UsageError(
                f"{self.honest} of {most} devices are honest; it can be at most all of them"
            )
        self.check_participations(self.participations)
        if self.honest_by_round is not None:
            if len(self.honest_by_round) != self.rounds:
                raise UsageError(
                    f"honest by round has {len(self.honest_by_round)} numbers for {self.rounds} "
                    "rounds; it must have one for each"
                )
            for honest in self.honest_by_round:
                check_count(honest_by_round=honest, least=0)

    @property
    def multiplier(self) -> float:
        """Noise multiplier of a round's releases together, for adding or removing a user."""
        multipliers = [self.sigma / self.clip_norm]
        if self.sigma_count is not None:
            multipliers.append(2 * self.sigma_count)
        return zcdp.combined_multiplier(*multipliers)

    @property
    def worst_participations(self) -> int:
        """Rounds of the user that takes part most, as far as is known."""
        return self.rounds if self.participations is None else self.participations

    @property
    def worst_rounds(self) -> tuple[int, ...]:
        """Users whose noise counts, in each round of a user in those with the fewest of them."""
        if self.honest_by_round is not None:
            return tuple(sorted(self.honest_by_round)[: self.worst_participations])
        assert self.honest is not None
        return (self.honest,) * self.worst_participations


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


@dataclass(frozen=True)
class Integers:
    """What distributed noise is on the integers that are summed."""

    sigma: int  # parameter of each device's discrete Gaussian noise
    norm: float  # l2 norm that a device's integers are held to, before the noise
    dim: int  # their number: the coordinates of an update, and the bit if there is one


def integers(settings: Settings) -> Integers:
    """Return the integers and their noise, for distributed noise.

    A device's vector, its bit included, has at most the norm sigma / z, where z is the noise
    multiplier; scaled and rounded, it has at most the norm D. Devices round their parameter up so
    that the noise of h of them has at least the multiplier z over D: sigma_l = ceil(z D / sqrt(h)).
    """
    assert settings.honest is not None
    assert settings.unit is not None
    assert settings.dim is not None
    multiplier = settings.multiplier
    dim = settings.dim + (0 if settings.sigma_count is None else 1)
    norm = distributed.rounded_norm(settings.unit * (settings.sigma / multiplier), dim)
    exact = multiplier * norm / math.sqrt(settings.honest)
    if not exact < 1e100:
        raise UsageError(f"a unit of {settings.unit:g} integers is too large for this noise")
    return Integers(math.ceil(exact), norm, dim)


def bounds(settings: Settings) -> tuple[Guarantee, ...]:
    """Return what is proven for the noise and the sampling.

    Of distributed noise, that of all honest users in a sum may count, or a user's own alone, which
    is in whatever the user sends: with few users in a round, masks may fail too often for the sum.
    """
    if settings.noise == "distributed":
        return _distributed(settings), _distributed(settings, own=True)
    n, b, rounds, z = settings.devices, settings.per_round, settings.rounds, settings.multiplier
    epsilon, method, left = math.inf, NOTHING_LEFT, _left(settings)
    if settings.sampling == "poisson":
        if left:
            moved = 2 if settings.exact_dropouts else 1
            epsilon, method = sampling.poisson_gaussian(b / n, z / moved, rounds, left)
        adjacency = ADD_USER
        how = f"every user is in a round with probability {b / n:g}, independently and in secret"
        scale = "the sum is divided by the expected number of users, or by nothing"
        dropouts = (
            "of the users of a round an exact number drops out, all as likely: one user more moves "
            "the sum by up to twice the norm"
            if settings.exact_dropouts
            else "whether a user drops out does not depend on who else is in a round",
        )
    else:
        if left:
            epsilon, method = sampling.fixed_size_gaussian(n, b, z / 2, rounds, left)
        adjacency = REPLACE_USER
        how = f"a round has {b} of the {n} users, all sets equally likely, chosen in secret"
        scale = "the sum is divided by the number of users of a round, or by nothing"
        dropouts = ("who drops out does not depend on the users' data",)
    failures = failure_clauses(rounds, settings.failure)
    assumptions = (how, scale, *_common(settings), *dropouts, *failures)
    return (Guarantee(epsilon, settings.delta, adjacency, assumptions, method),)


def _distributed(settings: Settings, own: bool = False) -> Guarantee:
    if own:
        settings = replace(settings, honest_by_round=(1,) * settings.rounds, failure=0.0)
    found, rounds = integers(settings), settings.worst_participations
    worst, left = settings.worst_rounds, _left(settings)
    epsilon, method = math.inf, NOTHING_LEFT
    if left:
        epsilon, method = distributed.epsilon(worst, found.sigma, found.dim, found.norm, left)
    least = min(worst, default=settings.honest)
    honest = f"at least {least}" if settings.honest_by_round is not None else f"{least}"
    noisy = "user adds" if least == 1 else "users add"
    noise = f"discrete Gaussian noise of parameter {found.sigma} to every coordinate"
    who = f"{honest} honest {noisy} {noise} of every sum, and keep it to themselves"
    seen = "the server learns only sums of integers"
    if own:
        who, seen = (
            f"a user adds {noise} that it sends, and keeps it to itself",
            "users send integers",
        )
        method = f"own noise, {method}"
    assumptions = (
        "who takes part may be known to all: no amplification by sampling is claimed",
        f"a user takes part in at most {rounds} of the {counted(settings.rounds, 'round')}",
        who,
        f"{seen}, {settings.unit:g} to a unit, and those of a "
        f"user have an l2 norm of at most {found.norm:.10g}, however they are rounded",
        *_clipped(settings),
        *failure_clauses(settings.rounds, settings.failure),
    )
    return Guarantee(epsilon, settings.delta, ZERO_USER, assumptions, method)


def _left(settings: Settings) -> float:
    """Return the delta that failures leave."""
    return less_failures(settings.delta, settings.rounds, settings.failure)


def _common(settings: Settings) -> tuple[str, ...]:
    """Return what is assumed of central noise."""
    return (
        *_clipped(settings),
        "only the sum with all its noise is seen: the server is trusted, or learns only sums, "
        "with the noise of users who keep theirs to themselves",
    )


def _clipped(settings: Settings) -> tuple[str, ...]:
    clipped = f"every user's update is clipped to {settings.clip_norm:g}"
    if settings.sigma_count is None:
        return (clipped,)
    return (clipped, "the count of clipped updates adds a bit minus one half of every user")
