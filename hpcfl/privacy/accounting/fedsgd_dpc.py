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
from dataclasses import dataclass

from hpcfl.errors import UsageError
from hpcfl.privacy.accounting import sampling
from hpcfl.privacy.accounting.guarantee import (
    ADD_RECORD,
    REPLACE_RECORD,
    Guarantee,
    Schedule,
    check_delta,
    check_positive,
)
from hpcfl.report.formats import counted

MECHANISMS = ("laplace", "gaussian")
SAMPLINGS = ("poisson", "fixed")


@dataclass(frozen=True)
class Settings(Schedule):
    """How `fedsgd-dpc` runs: of N `devices`, b `per_round`, in T `rounds`, the paper's queries.

    `sigma` is that of the noise on every coordinate of a device's mean gradient: the scale of
    Laplace noise, the standard deviation of Gaussian noise.
    """

    samples: int  # number d_i of records on the device
    clip_norm: float = 1.0  # norm xi to which a sample's gradient is clipped, l1 (laplace) or l2
    delta: float | None = None  # by default 1e-5 for Gaussian noise; 0, pure, for Laplace
    mechanism: str = "laplace"
    # Part q of the samples in an answer; all with Laplace noise. Above 1 an answer has all of them,
    # and their sum is divided by more: a device has fewer samples than a batch.
    fraction: float = 1.0
    record_sampling: str = "poisson"  # every sample by chance, or "fixed"; with Gaussian noise
    replies: int | None = None  # answers of the device that answers most; else ceil(T b / N)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(
            ("clip_norm",),
            ("samples",),
            ("replies",),
            mechanism=MECHANISMS,
            record_sampling=SAMPLINGS,
        )
        if self.delta is not None and not (self.delta == 0 and self.mechanism == "laplace"):
            check_delta(self.delta)
        check_positive(fraction=self.fraction)
        if self.record_sampling == "fixed" and self.fraction > 1:
            raise UsageError(
                f"the fraction is {self.fraction}; a sample of a fixed size has at most all samples"
            )
        if self.mechanism == "laplace" and self.fraction != 1:
            raise UsageError(
                f"the fraction is {self.fraction}; with Laplace noise an answer uses all samples"
            )
        if self.batch < 1:
            raise UsageError(
                f"a fraction {self.fraction} of {self.samples} samples is less than one of them"
            )
        if self.replies is not None and self.replies > self.rounds:
            raise UsageError(
                f"a device answers in {self.replies} of {counted(self.rounds, 'round')}; it can "
                "answer in at most all of them"
            )

    @property
    def actual_delta(self) -> float:
        """The delta, where it is left to the noise."""
        if self.delta is not None:
            return self.delta
        return 0.0 if self.mechanism == "laplace" else 1e-5

    @property
    def worst_replies(self) -> int:
        """Answers of the device that answers most."""
        return self.turns if self.replies is None else self.replies

    @property
    def paper_replies(self) -> float:
        """The paper's T1 = T b / N."""
        return self.rounds * self.per_round / self.devices

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
    def sensitivity(self) -> float:
        """By how much a record changes a mean gradient at the most."""
        return (1 if self.adjacency == ADD_RECORD else 2) * self.clip_norm / self.batch

    @property
    def multiplier(self) -> float:
        """Noise over sensitivity."""
        return self.sigma / self.sensitivity


def paper(settings: Settings) -> Guarantee:
    """Return the epsilon of Theorem 1 (Laplace) or 2 (Gaussian, c2 = 1)."""
    replies = settings.paper_replies
    if settings.mechanism == "laplace":
        return Guarantee(
            replies / settings.multiplier,
            0.0,
            settings.adjacency,
            (f"a device answers T b / N = {replies:g} times, counted as a fraction",),
            "Theorem 1",
        )
    delta = settings.actual_delta
    epsilon = settings.rate * math.sqrt(replies * -math.log(delta)) / settings.multiplier
    regime = settings.rate**2 * replies
    return Guarantee(
        epsilon,
        delta,
        settings.adjacency,
        (
            f"a device answers T b / N = {replies:g} times, counted as a fraction",
            "the unknown constant c2 is taken to be 1",
            f"epsilon is below c1 q**2 T1 = {regime:g} c1 for an unknown c1",
        ),
        "Theorem 2 with c2 = 1",
    )


def bounds(settings: Settings) -> tuple[Guarantee, ...]:
    """Return what is proven; for Laplace noise and delta above 0, with and without using it."""
    delta, replies, z = settings.actual_delta, settings.worst_replies, settings.multiplier
    norm = "l1" if settings.mechanism == "laplace" else "l2"
    clipped = f"the gradient of every sample is clipped to {settings.clip_norm:g} in {norm}"
    counted = f"a device answers at most {replies} times, in turn with the others"
    common = (clipped, counted)
    if settings.mechanism == "laplace":
        basis = (*common, f"every answer is the mean over all {settings.samples} samples")
        epsilon, method = sampling.laplace(z, replies, 0.0)
        found = [Guarantee(epsilon, 0.0, REPLACE_RECORD, basis, method)]
        if delta > 0:
            epsilon, method = sampling.laplace(z, replies, delta)
            found.append(Guarantee(epsilon, delta, REPLACE_RECORD, basis, method))
        return tuple(found)
    if settings.record_sampling == "poisson":
        epsilon, method = sampling.poisson_gaussian(settings.rate, z, replies, delta)
        how: tuple[str, ...] = (
            f"an answer uses every sample with probability {settings.rate:g}, independently "
            "and in secret",
            f"the sum is divided by {settings.batch:g}, however many samples there are",
            f"the number {settings.samples}, from which these two follow, is public, and the same "
            "with or without the record",
        )
    else:
        size = int(settings.batch)
        epsilon, method = sampling.fixed_size_gaussian(settings.samples, size, z, replies, delta)
        how = (
            f"an answer uses {size} of {settings.samples} samples, all sets equally likely, "
            "in secret",
        )
    return (Guarantee(epsilon, delta, settings.adjacency, (*common, *how), method),)
