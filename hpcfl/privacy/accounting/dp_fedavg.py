"""User-level federated averaging, Gaussian noise on sums (McMahan et al., 2018): `dp-fedavg`.

A round's users each send an update clipped to the norm C; the sum gets noise N(0, sigma**2 I).
Poisson samples (every user by chance) are accounted for adding or removing a user, whose update
changes the sum by at most C. Samples of a fixed size are accounted for replacing all of a user's
data, which changes it by at most 2 C.

Where an exact number of a round's users drops out, one user more can make another one leave, or
leave in its place: the sum moves by up to 2 C. Couple the two rounds so that
those who drop out of the larger, but for one, are those who drop out of the smaller; given the
sample, either one user comes, or one comes for another.

Noise is central, added once, or distributed: every user adds discrete Gaussian noise to integers,
of which only sums are seen (Kairouz, Liu and Steinke, 2021). It is accounted for replacing a user's
update by zeros, whoever takes part: that may be public, so sampling amplifies nothing. One that is
dropped or colludes adds no noise that counts; rounds that have taken place are charged by those
whose noise was there.

The paper's claim for Poisson samples is that of its moments accountant, by Rényi divergences. It is
common to claim the same for rounds of a fixed size; that is shown as the paper's value, and is not
proven.
"""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar

from hpcfl.errors import UsageError
from hpcfl.options.definition import option
from hpcfl.privacy.accounting import distributed, sampling
from hpcfl.privacy.accounting.account import (
    ADD_USER,
    POSITIVE,
    REPLACE_USER,
    ZERO_USER,
    Account,
    Found,
    Guarantee,
    of_dropouts,
)
from hpcfl.report.formats import counted
from hpcfl.values import dataclass, replace

SAMPLINGS = ("poisson", "exact")
NOISES = ("central", "distributed")
_ONLY_SUMS = (
    "only the sum with all its noise is seen: the server is trusted, or learns only sums, with the "
    "noise of users who keep theirs to themselves"
)
_OF_INTEGERS = ("honest", "unit", "dim")  # settings that distributed noise has, and it alone


@dataclass(frozen=True)
class Integers:
    """What distributed noise is on the integers that are summed."""

    sigma: int  # parameter of each device's discrete Gaussian noise
    norm: float  # l2 norm that a device's integers are held to, before the noise
    dim: int  # their number, the coordinates of an update


@dataclass(frozen=True)
class DPFedAvgAccount(Account):
    """The account of `dp-fedavg`, with `per_round` users exactly, or in expectation (poisson).

    `sigma` is the standard deviation of the noise on every coordinate of the sum of a round's
    updates; of distributed noise, before it is enlarged for the rounding to integers.
    """

    algorithm: ClassVar[str] = "dp-fedavg"

    delta: float = option(1e-5, "Delta of the guarantee.", above=0, below=1)
    sampling: str = option(
        "poisson", "Who takes part: each user independently, or an exact number.", choices=SAMPLINGS
    )
    noise: str = option("central", "Who adds the noise.", choices=NOISES)
    # Those that neither drop out nor collude, at the least.
    honest: int | None = option(
        None,
        "Users whose noise is in every sum and known to nobody else (distributed).",
        at_least=1,
    )
    unit: float | None = option(
        None,
        "Factor by which values are scaled before they are rounded to integers (distributed).",
        **POSITIVE,
    )
    dim: int | None = option(None, "Coordinates of an update (distributed).", at_least=1)
    participations: int | None = None  # rounds of a user at the most, of a public schedule; or all
    # What `honest` was in each of the rounds, where they have taken place: devices add the noise
    # that `honest` asks for, and a round is charged by the noise that it has.
    honest_by_round: tuple[int, ...] | None = None
    # Whether an exact number of a round's users drops out, any of them as likely as any other.
    exact_dropouts: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [getattr(self, name) is not None for name in _OF_INTEGERS]
        if not all(given) if self.noise == "distributed" else any(given):
            raise UsageError(
                f"{', '.join(_OF_INTEGERS)} go with distributed noise: give all of them, or none"
            )
        most = self.per_round if self.sampling == "exact" else self.devices
        if self._honest > most:
            raise UsageError(
                f"--honest is {self.honest}; it must be at most {most}, the devices of a round"
            )

    @property
    def _honest(self) -> int:
        return self.honest or 1

    @property
    def multiplier(self) -> float:
        """Noise multiplier of a round's release, for adding or removing a user."""
        return self.sigma / self.clip_norm

    @property
    def worst_rounds(self) -> tuple[int, ...]:
        """Users whose noise counts, in each round of a user in those with the fewest of them."""
        rounds = self.rounds if self.participations is None else self.participations
        if self.honest_by_round is not None:
            return tuple(sorted(self.honest_by_round)[:rounds])
        return (self._honest,) * rounds

    def integers(self) -> Integers:
        """Return the integers and their noise, for distributed noise.

        A device's vector has at most the norm C; scaled and rounded, it has at most the norm D.
        Devices round their parameter up so that the noise of h of them has at least the multiplier
        z over D: sigma_l = ceil(z D / sqrt(h)).
        """
        assert self.unit is not None
        assert self.dim is not None
        norm = distributed.rounded_norm(self.unit * self.clip_norm, self.dim)
        sigma = math.ceil(self.multiplier * norm / math.sqrt(self._honest))
        return Integers(sigma, norm, self.dim)

    def paper(self) -> Guarantee:
        """Return the epsilon of Poisson samples by Rényi divergences, whatever the samples are."""
        rate = self.per_round / self.devices
        return Guarantee(
            sampling.poisson_gaussian_rdp(rate, self.multiplier, self.rounds, self.delta),
            self.delta,
            ADD_USER,
            ("Poisson samples are assumed, whatever the sampling", self._clipped(), _ONLY_SUMS),
            "RDP, Poisson sampling",
        )

    def bounds(self) -> tuple[Guarantee, ...]:
        """Return what is proven for the noise and the sampling.

        Of distributed noise, that of all honest users in a sum may count, or a user's own alone,
        which is in whatever the user sends: with few users in a round, masks may fail too often for
        the sum.
        """
        if self.noise == "distributed":
            own = replace(self, honest_by_round=(1,) * self.rounds, failure=0.0)
            return self._of_integers(), own._of_integers(own=True)
        return (self._of_samples(),)

    def _of_samples(self) -> Guarantee:
        rate, z = self.per_round / self.devices, self.multiplier
        if self.sampling == "exact":
            z, found, adjacency = z / 2, sampling.fixed_size_gaussian, REPLACE_USER
            who = (
                f"a round has {self.per_round} of the {self.devices} users, all sets equally "
                "likely, chosen in secret"
            )
            divisor = "the number of users of a round"
            dropouts = "who drops out does not depend on the users' data"
        else:
            z, found, adjacency = z / (1 + self.exact_dropouts), sampling.poisson_gaussian, ADD_USER
            who = f"every user is in a round with probability {rate:g}, independently and in secret"
            divisor = "the expected number of users"
            dropouts = of_dropouts(self.exact_dropouts)
        clauses = (
            who,
            f"the sum is divided by {divisor}, or by nothing",
            self._clipped(),
            _ONLY_SUMS,
            dropouts,
        )
        partly = partial(found, rate, z, self.rounds)
        return self.guarantee(partly, self.delta, adjacency, clauses, self.failure)

    def _of_integers(self, own: bool = False) -> Guarantee:
        integers, worst = self.integers(), self.worst_rounds

        def found(delta: float) -> Found:
            epsilon, method = distributed.epsilon(
                worst, integers.sigma, integers.dim, integers.norm, delta
            )
            return epsilon, f"own noise, {method}" if own else method

        noise = f"discrete Gaussian noise of parameter {integers.sigma} to every coordinate"
        least = counted(min(worst, default=self._honest), "honest user")
        who = f"at least {least} add {noise} of every sum, and keep it to themselves"
        seen = "the server learns only sums of integers"
        if own:
            who = f"a user adds {noise} that it sends, and keeps it to itself"
            seen = "users send integers"
        clauses = (
            "who takes part may be known to all: no amplification by sampling is claimed",
            f"a user takes part in at most {len(worst)} of the {counted(self.rounds, 'round')}",
            who,
            f"{seen}, {self.unit:g} to a unit, and those of a user have an l2 norm of at most "
            f"{integers.norm:.10g}, however they are rounded",
            self._clipped(),
        )
        return self.guarantee(found, self.delta, ZERO_USER, clauses, self.failure)

    def _clipped(self) -> str:
        return f"every user's update is clipped to {self.clip_norm:g}"
