"""Sampling by noisy norms in two stages (LOCKS): `locks`.

Stage 1 keeps m of n users in expectation; these give the norms of their updates, clipped to C, with
noise of standard deviation sigma_s. Stage 2 keeps b of the m, by these norms; they give their
updates, with noise of standard deviation sigma_0 a coordinate.

The paper (eq. 92, and eq. 7 to convert) charges a round m rho_s + b rho_0, with
rho_s = C**2 / (2 sigma_s**2) and rho_0 = C**2 / (2 sigma_0**2). It adds costs of different users,
whose data are disjoint and compose in parallel, and expects over the samples; neither is a proof
for a user. What is proven depends on who adds the noise:

- **trusted**: an aggregator that is trusted (or learns only sums) adds noise once to the sum of the
  norms, and once to the sum of the updates, each divided by its inclusion probability and so of one
  known norm. A Poisson sample with probability m / n of a pair of Gaussian releases. Where an exact
  number of users drops out, one user more can make another one leave: both sums move by twice that.
- **local**: every user adds its own noise, and the server sees who takes part, so nothing is
  amplified. A round in which a replaced user gives both costs at most
  rho_2 = max(4 / z_0**2, 1 / z_s**2 + 1 / z_0**2) / 2 with z = sigma / C, one in which it gives its
  norm alone rho_1 = 1 / (2 z_s**2) (docs/privacy.md): in stage 1 A times and in stage 2 B times, it
  costs (A - B) rho_1 + B rho_2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from hpcfl.errors import UsageError
from hpcfl.options.definition import Section, described, option
from hpcfl.privacy.accounting import sampling, zcdp
from hpcfl.privacy.accounting.account import (
    ADD_USER,
    REPLACE_USER,
    Account,
    Guarantee,
    after_failures,
    failure_clauses,
)

VARIANTS = ("trusted", "local")


@dataclass(frozen=True)
class LocksAccount(Account):
    """The account of `locks`: of n `devices`, stage 2 keeps b `per_round` in expectation.

    `sigma` is the standard deviation sigma_0 of the noise on an update. In the variant
    ``"trusted"``, that of the noise on their sum where every summand has the norm C; it scales with
    their norm.
    """

    algorithm: ClassVar[str] = "locks"

    first_stage: int = field(
        metadata=described("Users m that stage 1 keeps in expectation.", section=Section.SIZE)
    )
    clip_norm: float = option(1.0, "Norm C to which an update is clipped.")
    delta: float = option(1e-5, "Delta of the guarantee.")
    sigma_norms: float | None = option(
        None, "Noise on the norms; inf if they are not used.", default_text="that on updates"
    )
    variant: str = option(
        "trusted", "Who adds the noise: an aggregator, or every user.", choices=VARIANTS
    )
    first_stages: int | None = None  # rounds A of a user in stage 1 at the most; else all
    replies: int | None = option(
        None,
        "Rounds B in which a user is in stage 2 at most (local).",
        default_text="as many as in stage 1",
        section=Section.SIZE,
    )
    # Whether an exact number of a round's users drops out, any of them as likely as any other.
    exact_dropouts: bool = False
    failure: float = 0.0  # probability, in a round, that what is assumed of it does not hold

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(("clip_norm",), ("first_stage",), ("first_stages", "replies"), variant=VARIANTS)
        self.check_delta(self.delta)
        if self.sigma_norms != math.inf:
            self.check(("sigma_norms",))
        if not self.per_round <= self.first_stage <= self.devices:
            raise UsageError(
                f"stage 2 keeps {self.per_round} of the {self.first_stage} users of stage 1, of "
                f"{self.devices}; the numbers must not increase"
            )
        if self.variant == "trusted" and (self.first_stages, self.replies) != (None, None):
            raise UsageError(
                "first stages and replies are bounded for the variant local only; trusted "
                "accounts for the chance to take part"
            )

    @property
    def multipliers(self) -> tuple[float, float]:
        """The noise multipliers z_s of the norms and z_0 of the updates."""
        norms = self.sigma if self.sigma_norms is None else self.sigma_norms
        return norms / self.clip_norm, self.sigma / self.clip_norm

    def paper(self) -> Guarantee:
        """Return the epsilon of eqs. 92 and 7, with the rho T (m rho_s + b rho_0)."""
        norms, updates = (zcdp.gaussian_rho(z) for z in self.multipliers)
        rho = self.rounds * (self.first_stage * norms + self.per_round * updates)
        return Guarantee(
            zcdp.rdp_epsilon(rho, self.delta),
            self.delta,
            ADD_USER,
            ("costs of different users add up, and average over their sampling",),
            f"eq. 92, RDP, rho = {rho:.4g}",
        )

    def bounds(self) -> tuple[Guarantee, ...]:
        """Return the one bound that is proven for the variant."""
        trusted = self.variant == "trusted"
        epsilon, method = after_failures(
            self.delta, self.rounds, self.failure, self._trusted if trusted else self._local
        )
        assumptions = (
            f"every user's update, and so its norm, is clipped to {self.clip_norm:g}",
            *(self._trusted_clauses() if trusted else self._local_clauses()),
            *failure_clauses(self.rounds, self.failure),
        )
        adjacency = ADD_USER if trusted else REPLACE_USER
        return (Guarantee(epsilon, self.delta, adjacency, assumptions, method),)

    def _trusted(self, delta: float) -> tuple[float, str]:
        moved = 2 if self.exact_dropouts else 1
        multiplier = zcdp.combined_multiplier(*self.multipliers) / moved
        rate = self.first_stage / self.devices
        return sampling.poisson_gaussian(rate, multiplier, self.rounds, delta)

    def _trusted_clauses(self) -> tuple[str, ...]:
        return (
            "only the two sums are seen, with their noise: norms, updates and who takes part stay "
            "with an aggregator that is trusted or learns only sums",
            f"every user is in stage 1 with probability {self.first_stage / self.devices:g}, "
            "independently and in secret",
            "an update is divided by its inclusion probability, which its exact norm over the "
            "noisy sum of norms sets, and the noise scales with the common norm that this gives",
            "of the users of a round an exact number drops out, all as likely: one user more moves "
            "both sums by up to twice as much"
            if self.exact_dropouts
            else "whether a user drops out does not depend on who else is in a round",
        )

    @property
    def _stages(self) -> tuple[int, int]:
        """How often a user is in stage 1, A, and in stage 2, B, at the most."""
        first = self.rounds if self.first_stages is None else min(self.rounds, self.first_stages)
        return first, first if self.replies is None else min(first, self.replies)

    def _local(self, delta: float) -> tuple[float, str]:
        first, second = self._stages
        norm, update = (zcdp.gaussian_rho(z) for z in self.multipliers)
        rho = (first - second) * norm + second * max(4 * update, norm + update)
        return zcdp.exact_epsilon(rho, delta), f"exact Gaussian, rho = {rho:.4g}"

    def _local_clauses(self) -> tuple[str, ...]:
        first, second = self._stages
        return (
            "every user adds all of its noise itself; the server sees who takes part",
            f"a user is in stage 1 at most {first} times, and in stage 2 at most {second} times",
            "who is in stage 2 is drawn from the noisy norms alone",
        )
