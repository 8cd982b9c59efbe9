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
  amplified. Replacing a user's data moves its norm from a to b and its update by a + b at the most,
  both from 0 to C. A round in which it gives both costs no more than half of
  (a - b)**2 / sigma_s**2 + (a + b)**2 / sigma_0**2, which is convex and so largest at a corner, at
  (C, C) or at (C, 0): with z = sigma / C, rho_2 = max(4 / z_0**2, 1 / z_s**2 + 1 / z_0**2) / 2. One
  in which it gives its norm alone costs rho_1 = 1 / (2 z_s**2), which is less. So a user in stage 1
  A times and in stage 2 B times costs (A - B) rho_1 + B rho_2. Which of the two a round costs is
  known from noisy norms only then; that the largest total counts is shown by Smith and Thakurta
  (2022, "Fully adaptive composition for Gaussian differential privacy").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcfl.errors import UsageError
from hpcfl.privacy.accounting import sampling, zcdp
from hpcfl.privacy.accounting.guarantee import (
    ADD_USER,
    NOTHING_LEFT,
    REPLACE_USER,
    Guarantee,
    Schedule,
    check_delta,
    failure_clauses,
    less_failures,
)

VARIANTS = ("trusted", "local")


@dataclass(frozen=True)
class Settings(Schedule):
    """How `locks` runs: of n `devices`, stage 2 keeps b `per_round` in expectation.

    `sigma` is the standard deviation sigma_0 of the noise on an update. In the variant
    ``"trusted"``, that of the noise on their sum where every summand has the norm C; it scales with
    their norm.
    """

    first_stage: int  # users m that stage 1 keeps in expectation
    clip_norm: float = 1.0  # norm C to which an update is clipped
    delta: float = 1e-5
    sigma_norms: float | None = None  # sigma_s, on a norm; else as sigma; infinite: norms not used
    variant: str = "trusted"
    # Rounds A in which a user is in stage 1, and B in stage 2, at the most: of a public schedule,
    # and a cap. All rounds, and A, by default.
    first_stages: int | None = None
    replies: int | None = None
    # Whether an exact number of a round's users drops out, any of them as likely as any other.
    exact_dropouts: bool = False
    failure: float = 0.0  # probability, in a round, that what is assumed of it does not hold

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(("clip_norm",), ("first_stage",), ("first_stages", "replies"), variant=VARIANTS)
        check_delta(self.delta)
        if self.sigma_norms is not None and not self.sigma_norms > 0:
            raise UsageError(f"sigma norms is {self.sigma_norms}; it must be above 0")
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


def paper_rho(settings: Settings) -> float:
    """Return T (m C**2 / (2 sigma_s**2) + b C**2 / (2 sigma_0**2)) (eq. 92, all rounds)."""
    norms, updates = (zcdp.gaussian_rho(z) for z in settings.multipliers)
    return settings.rounds * (settings.first_stage * norms + settings.per_round * updates)


def paper(settings: Settings) -> Guarantee:
    """Return the epsilon of eqs. 92 and 7."""
    rho = paper_rho(settings)
    return _paper(settings, zcdp.rdp_epsilon(rho, settings.delta), f"eq. 92, RDP, rho = {rho:.4g}")


def tight(settings: Settings) -> Guarantee:
    """Return the epsilon of eq. 92's rho, converted exactly."""
    rho = paper_rho(settings)
    method = f"eq. 92, exact Gaussian, rho = {rho:.4g}"
    return _paper(settings, zcdp.exact_epsilon(rho, settings.delta), method)


def local_rho(settings: Settings) -> float:
    """Return (A - B) rho_1 + B rho_2 of a user that takes part most (see above)."""
    first = settings.rounds
    if settings.first_stages is not None:
        first = min(first, settings.first_stages)
    second = first if settings.replies is None else min(first, settings.replies)
    norm, update = (zcdp.gaussian_rho(z) for z in settings.multipliers)
    return (first - second) * norm + second * max(4 * update, norm + update)


def bounds(settings: Settings) -> tuple[Guarantee, ...]:
    """Return the one bound that is proven for the variant."""
    clipped = f"every user's update, and so its norm, is clipped to {settings.clip_norm:g}"
    rounds = settings.rounds
    left = less_failures(settings.delta, rounds, settings.failure)
    failures = failure_clauses(rounds, settings.failure)
    epsilon, method = math.inf, NOTHING_LEFT
    if settings.variant == "trusted":
        rate = settings.first_stage / settings.devices
        if left:
            multiplier = zcdp.combined_multiplier(*settings.multipliers)
            moved = 2 if settings.exact_dropouts else 1
            epsilon, method = sampling.poisson_gaussian(rate, multiplier / moved, rounds, left)
        assumptions = (
            clipped,
            "only the two sums are seen, with their noise: norms, updates and who takes part stay "
            "with an aggregator that is trusted or learns only sums",
            f"every user is in stage 1 with probability {rate:g}, independently and in secret",
            "an update is divided by its inclusion probability, which its exact norm over the "
            "noisy sum of norms sets, and the noise scales with the common norm that this gives",
            "of the users of a round an exact number drops out, all as likely: one user more moves "
            "both sums by up to twice as much"
            if settings.exact_dropouts
            else "whether a user drops out does not depend on who else is in a round",
            *failures,
        )
        return (Guarantee(epsilon, settings.delta, ADD_USER, assumptions, method),)
    rho = local_rho(settings)
    caps = (
        f"a user is in stage 1 at most {settings.first_stages} times"
        if settings.first_stages is not None
        else "a user may be in stage 1 in every round",
        f"a user is in stage 2 at most {settings.replies} times"
        if settings.replies is not None
        else "a user in stage 1 may be in stage 2",
    )
    basis = (
        clipped,
        "every user adds all of its noise itself; the server sees who takes part",
        *caps,
        "who is in stage 2 is drawn from the noisy norms alone",
        *failures,
    )
    if left:
        epsilon, method = zcdp.exact_epsilon(rho, left), f"exact Gaussian, rho = {rho:.4g}"
    return (Guarantee(epsilon, settings.delta, REPLACE_USER, basis, method),)


def _paper(settings: Settings, epsilon: float, method: str) -> Guarantee:
    assumptions = ("costs of different users add up, and average over their sampling",)
    return Guarantee(epsilon, settings.delta, ADD_USER, assumptions, method)
