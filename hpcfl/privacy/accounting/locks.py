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

from functools import partial
from typing import ClassVar

from hpcfl.errors import UsageError
from hpcfl.options.definition import option
from hpcfl.privacy.accounting import sampling, zcdp
from hpcfl.privacy.accounting.account import (
    ADD_USER,
    POSITIVE,
    REPLACE_USER,
    Account,
    Found,
    Guarantee,
    of_dropouts,
)
from hpcfl.values import MISSING, dataclass

VARIANTS = ("trusted", "local")


@dataclass(frozen=True)
class LocksAccount(Account):
    """The account of `locks`: of n `devices`, stage 2 keeps b `per_round` in expectation.

    `sigma` is the standard deviation sigma_0 of the noise on an update. In the variant
    ``"trusted"``, that of the noise on their sum where every summand has the norm C; it scales with
    their norm.
    """

    algorithm: ClassVar[str] = "locks"

    first_stage: int = option(MISSING, "Users m that stage 1 keeps in expectation.", at_least=1)
    delta: float = option(1e-5, "Delta of the guarantee.", above=0, below=1)
    sigma_norms: float | None = option(
        None, "Noise on the norms.", default_text="that on updates", **POSITIVE
    )
    variant: str = option(
        "trusted", "Who adds the noise: an aggregator, or every user.", choices=VARIANTS
    )
    first_stages: int | None = None  # rounds A of a user in stage 1 at the most; else all
    replies: int | None = option(
        None,
        "Rounds B in which a user is in stage 2 at most (local).",
        default_text="as many as in stage 1",
        at_least=0,
    )
    # Whether an exact number of a round's users drops out, any of them as likely as any other.
    exact_dropouts: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.per_round <= self.first_stage <= self.devices:
            raise UsageError(
                f"--per-round is {self.per_round}, --first-stage {self.first_stage} and --devices "
                f"{self.devices}; each must be at most the next"
            )
        if self.variant == "trusted" and self.replies is not None:
            raise UsageError("--replies is for --variant local: leave it out")

    @property
    def multipliers(self) -> tuple[float, float]:
        """The noise multipliers z_s of the norms and z_0 of the updates."""
        norms = self.sigma if self.sigma_norms is None else self.sigma_norms
        return norms / self.clip_norm, self.sigma / self.clip_norm

    def paper(self) -> Guarantee:
        """Return the epsilon of eqs. 92 and 7, with the rho T (m rho_s + b rho_0)."""
        norms, updates = (zcdp.gaussian_rho(z) for z in self.multipliers)
        rho = self.rounds * (self.first_stage * norms + self.per_round * updates)
        epsilon = zcdp.rdp_epsilon(rho, self.delta)
        assumptions = ("costs of different users add up, and average over their sampling",)
        return Guarantee(
            epsilon, self.delta, ADD_USER, assumptions, f"eq. 92, RDP, rho = {rho:.4g}"
        )

    def bounds(self) -> tuple[Guarantee, ...]:
        """Return the one bound that is proven for the variant."""
        return (self._of_sums() if self.variant == "trusted" else self._of_users(),)

    def _of_sums(self) -> Guarantee:
        rate, z = self.first_stage / self.devices, zcdp.combined_multiplier(*self.multipliers)
        z /= 1 + self.exact_dropouts
        clauses = (
            self._clipped,
            "only the two sums are seen, with their noise: norms, updates and who takes part stay "
            "with an aggregator that is trusted or learns only sums",
            f"every user is in stage 1 with probability {rate:g}, independently and in secret",
            "an update is divided by its inclusion probability, which its exact norm over the "
            "noisy sum of norms sets, and the noise scales with the common norm that this gives",
            of_dropouts(self.exact_dropouts),
        )
        found = partial(sampling.poisson_gaussian, rate, z, self.rounds)
        return self.guarantee(found, self.delta, ADD_USER, clauses, self.failure)

    def _of_users(self) -> Guarantee:
        # How often a user is in stage 1, A, and in stage 2, B, at the most.
        first = self.rounds if self.first_stages is None else min(self.rounds, self.first_stages)
        second = first if self.replies is None else min(first, self.replies)
        norm, update = (zcdp.gaussian_rho(z) for z in self.multipliers)
        rho = (first - second) * norm + second * max(4 * update, norm + update)
        clauses = (
            self._clipped,
            "every user adds all of its noise itself; the server sees who takes part",
            f"a user is in stage 1 at most {first} times, and in stage 2 at most {second} times",
            "who is in stage 2 is drawn from the noisy norms alone",
        )

        def found(delta: float) -> Found:
            return zcdp.exact_epsilon(rho, delta), f"exact Gaussian, rho = {rho:.4g}"

        return self.guarantee(found, self.delta, REPLACE_USER, clauses, self.failure)

    @property
    def _clipped(self) -> str:
        return f"every user's update, and so its norm, is clipped to {self.clip_norm:g}"
