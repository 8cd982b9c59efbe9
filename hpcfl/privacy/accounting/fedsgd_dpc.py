"""FedSGD with noisy gradients of every device (FedSGD-DPC): `fedsgd-dpc`.

In each of T iterations, b of N devices answer with a gradient and noise of their own. A device with
d_i samples clips the gradient of each to xi, in l1 (Laplace, all samples) or l2 (Gaussian, a part q
of them), and adds noise to the mean. The server sees every answer: the account is that of one
device's records, b and N matter through the number of its answers only.

Sensitivities: replacing a record changes the mean over all samples by at most 2 xi / d_i, and that
over samples of the fixed size q d_i by 2 xi / (q d_i); adding or removing one changes the sum over
a Poisson sample, divided by q d_i, by xi / (q d_i).

The paper counts T b / N answers, a fraction; proven is the count of answers that a device really
gives, ceil(T b / N) at the most if devices take turns. For Gaussian noise the paper has, after
Abadi et al. (2016, Theorem 1), sigma = Delta c2 q sqrt(T1 ln(1/delta)) / epsilon, for an unknown c2
and for epsilon < c1 q**2 T1; it is shown with c2 = 1.
"""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar

from hpcfl.errors import UsageError
from hpcfl.options.definition import option
from hpcfl.privacy.accounting import sampling
from hpcfl.privacy.accounting.account import (
    ADD_RECORD,
    POSITIVE,
    REPLACE_RECORD,
    Account,
    Guarantee,
)
from hpcfl.values import MISSING, dataclass

MECHANISMS = ("laplace", "gaussian")
SAMPLINGS = ("poisson", "fixed")


@dataclass(frozen=True)
class FedSGDDPCAccount(Account):
    """The account of `fedsgd-dpc`: of N `devices`, b `per_round`, in T `rounds`, the queries.

    `sigma` is that of the noise on every coordinate of a device's mean gradient: the scale of
    Laplace noise, the standard deviation of Gaussian noise.
    """

    algorithm: ClassVar[str] = "fedsgd-dpc"

    samples: int = option(
        MISSING, "Records d_i on a device, on the smallest if they differ.", at_least=1
    )
    delta: float | None = option(
        None,
        "Delta of the guarantee.",
        default_text="1e-5 for Gaussian noise; 0 for Laplace noise",
        at_least=0,
        below=1,
    )
    mechanism: str = option("laplace", "Distribution of the noise.", choices=MECHANISMS)
    # Above 1 an answer has all samples, and their sum is divided by more: a device has fewer
    # samples than a batch.
    fraction: float = option(
        1.0, "Part q of its samples that an answer uses (gaussian).", **POSITIVE
    )
    record_sampling: str = option(
        "poisson", "How the samples of an answer are drawn (gaussian).", choices=SAMPLINGS
    )
    replies: int | None = option(
        None,
        "Answers of the device that answers most often.",
        default_text="ceil(T b / N)",
        at_least=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.actual_delta == 0 and self.mechanism == "gaussian":
            raise UsageError("--delta is 0; it must be above 0 with Gaussian noise")
        most = math.inf if self.record_sampling == "poisson" else 1.0
        if self.mechanism == "laplace" and self.fraction != 1:
            raise UsageError("--fraction is for Gaussian noise: with Laplace noise it is 1")
        if self.batch < 1 or self.fraction > most:
            raise UsageError(f"--fraction is {self.fraction}; a sample must have 1 to all records")

    @property
    def actual_delta(self) -> float:
        """The delta, where it is left to the noise."""
        if self.delta is not None:
            return self.delta
        return 0.0 if self.mechanism == "laplace" else 1e-5

    @property
    def rate(self) -> float:
        """Probability that a sample is in an answer."""
        return min(1.0, self.fraction)

    @property
    def batch(self) -> float:
        """What a sum of gradients is divided by, q d_i; a whole number for a fixed size."""
        size = self.fraction * self.samples
        return size if self.record_sampling == "poisson" else float(math.floor(size + 1e-9))

    @property
    def adjacency(self) -> str:
        """In what neighbouring datasets differ."""
        poisson = self.mechanism == "gaussian" and self.record_sampling == "poisson"
        return ADD_RECORD if poisson else REPLACE_RECORD

    @property
    def multiplier(self) -> float:
        """Noise over what a record changes a mean gradient by at the most."""
        moved = 1 if self.adjacency == ADD_RECORD else 2
        return self.sigma / (moved * self.clip_norm / self.batch)

    def paper(self) -> Guarantee:
        """Return the epsilon of Theorem 1 (Laplace) or 2 (Gaussian, c2 = 1)."""
        replies = self.rounds * self.per_round / self.devices
        answers = f"a device answers T b / N = {replies:g} times, counted as a fraction"
        if self.mechanism == "laplace":
            epsilon = replies / self.multiplier
            return Guarantee(epsilon, 0.0, REPLACE_RECORD, (answers,), "Theorem 1")
        epsilon = self.rate * math.sqrt(replies * -math.log(self.actual_delta)) / self.multiplier
        regime = f"epsilon is below c1 q**2 T1 = {self.rate**2 * replies:g} c1 for an unknown c1"
        assumptions = (answers, "the unknown constant c2 is taken to be 1", regime)
        method = "Theorem 2 with c2 = 1"
        return Guarantee(epsilon, self.actual_delta, self.adjacency, assumptions, method)

    def bounds(self) -> tuple[Guarantee, ...]:
        """Return what is proven; for Laplace noise and a delta, with and without using it."""
        delta, z = self.actual_delta, self.multiplier
        replies = self.turns if self.replies is None else self.replies
        norm = "l1" if self.mechanism == "laplace" else "l2"
        common = (
            f"the gradient of every sample is clipped to {self.clip_norm:g} in {norm}",
            f"a device answers at most {replies} times, in turn with the others",
        )
        if self.mechanism == "laplace":
            basis = (*common, f"every answer is the mean over all {self.samples} samples")
            found = partial(sampling.laplace, z, replies)
            return tuple(
                self.guarantee(found, allowed, REPLACE_RECORD, basis)
                for allowed in sorted({0.0, delta})
            )
        how: tuple[str, ...]
        if self.record_sampling == "poisson":
            found = partial(sampling.poisson_gaussian, self.rate, z, replies)
            how = (
                f"an answer uses every sample with probability {self.rate:g}, independently "
                "and in secret",
                f"the sum is divided by {self.batch:g}, however many samples there are",
                f"the number {self.samples}, from which these two follow, is public, and the same "
                "with or without the record",
            )
        else:
            found = partial(sampling.fixed_size_gaussian, self.batch / self.samples, z, replies)
            how = (
                f"an answer uses {self.batch:g} of {self.samples} samples, all sets equally "
                "likely, in secret",
            )
        return (self.guarantee(found, delta, self.adjacency, (*common, *how)),)
