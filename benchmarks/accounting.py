"""How close the privacy accounts are to the truth: the table of docs/privacy.md.

For settings of all private systems, this compares the proven epsilon with the true epsilon on the
worst known datasets (a lower bound) and with the tightest known bound for the mechanism. Then it
compares noise calibrated to epsilon 0.01 at delta 1e-10. The reference values are computed here
from densities: the privacy loss of one release is rounded to a fine grid, once down and once up,
and convolved by a plain Fourier transform. The exit status is 1 if a value is not between the true
one and its limit. Takes 50 s on one core.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from tabulate import tabulate

from hpcfl.algorithms.federated import find_private
from hpcfl.privacy.accounting.account import least_noise

Floats = NDArray[np.float64]

# Width of a grid, relative to the expected epsilon divided by the number of releases.
SLACK = 1e-3


@dataclass(frozen=True)
class Loss:
    """A privacy loss ln dP/dQ of one release: for each cell its mass under P and loss bounds."""

    masses: Floats
    low: Floats
    high: Floats

    def epsilon(self, count: int, delta: float, near: float, up: bool) -> float:
        """Return the epsilon of `count` releases with losses rounded up or down.

        The grid is suited to an epsilon of about `near`.
        """
        width = SLACK * near / count
        index = np.ceil(self.high / width) if up else np.floor(self.low / width)
        seen = self.masses > 1e-25
        index, masses = index[seen].astype(np.int64), self.masses[seen]
        mean = float(masses @ index)
        deviation = math.sqrt(float(masses @ (index - mean) ** 2) * count)
        reach = 14 * deviation + 2 * float(np.abs(index[masses > 1e-16] - mean).max())
        size = 1 << math.ceil(math.log2(2 * reach + 64))
        assert size <= 2**25, (size, width)
        middle = round(mean)
        folded = np.bincount((index - middle) % size, masses, minlength=size)
        sums = np.fft.irfft(np.fft.rfft(folded) ** count, size)
        sums = np.clip(np.roll(sums, size // 2), 0, None)
        losses = (np.arange(size) - size // 2 + count * middle) * width
        assert sums[:8].sum() + sums[-8:].sum() < 1e-13

        def delta_of(epsilon: float) -> float:
            above = losses > epsilon
            return float((sums[above] * -np.expm1(epsilon - losses[above])).sum())

        low, high = 0.0, float(losses[-1])
        for _ in range(40):
            middle_epsilon = (low + high) / 2
            if delta_of(middle_epsilon) > delta:
                low = middle_epsilon
            else:
                high = middle_epsilon
        return high


# --- Losses of one release, from densities ---


def mixtures(
    z: float, first: dict[float, float], second: dict[float, float], cells: int = 400_000
) -> Loss:
    """Return the loss of two mixtures of N(m, z**2), given as {m: weight}; it must be monotone."""
    means = [*first, *second]
    x = np.linspace(min(means) - 14 * z, max(means) + 14 * z, cells + 1)

    def log_density(mixture: dict[float, float]) -> Floats:
        terms = [math.log(w) - 0.5 * ((x - m) / z) ** 2 for m, w in mixture.items() if w > 0]
        return np.logaddexp.reduce(np.array(terms), axis=0)

    def masses(mean: float) -> Floats:
        t = (x - mean) / z
        lower, upper = ndtr(t[1:]) - ndtr(t[:-1]), ndtr(-t[:-1]) - ndtr(-t[1:])
        return np.where(t[:-1] > 0, upper, lower)

    total = sum(weight * masses(mean) for mean, weight in first.items())
    loss = log_density(first) - log_density(second)
    order = np.sort(np.array([loss[:-1], loss[1:]]), axis=0)
    return Loss(np.asarray(total), order[0], order[1])


def gaussian(z: float) -> list[Loss]:
    return [mixtures(z, {1: 1}, {0: 1})]


def poisson(q: float, z: float) -> list[Loss]:
    """Return the losses for the removal and the addition of a member."""
    with_, without = {1.0: q, 0.0: 1 - q}, {0.0: 1.0}
    return [mixtures(z, with_, without), mixtures(z, without, with_)]


def replaced(q: float, z: float) -> list[Loss]:
    """Return the loss of sampling without replacement (Zhu, Dong and Wang 2022)."""
    removed, added = poisson(q, z)
    up, down = removed.low >= 0, added.high <= 0
    parts = [
        np.concatenate([getattr(removed, name)[up], getattr(added, name)[down], [0.0]])
        for name in ("masses", "low", "high")
    ]
    parts[0][-1] = 1 - parts[0].sum()  # includes cells that contain 0, with losses near 0
    return [Loss(*parts)]


def replaced_in_datasets(q: float, z: float) -> list[Loss]:
    """Return the losses of a record +C or -C among zeros, and among -C: sums move by 2 C = 1."""
    zeros = mixtures(z, {0.5: q, 0.0: 1 - q}, {-0.5: q, 0.0: 1 - q})
    return [zeros, *poisson(q, z)]


def laplace(z: float, cells: int = 200_000) -> list[Loss]:
    x = np.linspace(0, 1, cells + 1)
    inner = 0.5 * (np.exp(-x[:-1] / z) - np.exp(-x[1:] / z))
    masses = np.concatenate([[0.5], inner, [0.5 * math.exp(-1 / z)]])
    loss = (1 - 2 * x) / z
    low = np.concatenate([[1 / z], loss[1:], [-1 / z]])
    return [Loss(masses, low, np.concatenate([[1 / z], loss[:-1], [-1 / z]]))]


def integers(sigma: float, summands: int, shift: int) -> list[Loss]:
    """Return the loss of a sum of discrete Gaussians and the same sum shifted."""
    reach = math.ceil(13 * sigma * math.sqrt(summands)) + shift
    size = 1 << math.ceil(math.log2(2 * reach + 1))
    x = np.arange(size) - size // 2
    one = np.exp(-0.5 * (x / sigma) ** 2)
    one /= one.sum()
    if summands == 1:
        log_p = -0.5 * (x / sigma) ** 2
        masses = one
    else:
        spectrum = np.fft.rfft(np.fft.ifftshift(one))
        masses = np.clip(np.fft.fftshift(np.fft.irfft(spectrum**summands, size)), 0, None)
        # Where the transform has no correct digits, use a discrete Gaussian, which is very close.
        log_p = np.log(np.maximum(masses, 1e-300))
        far = masses < 1e-13 * masses.max()
        log_p[far] = (-0.5 * (x / sigma) ** 2 / summands + log_p[size // 2])[far]
    loss = log_p[shift:] - log_p[: size - shift]  # P is the sum, Q the sum moved by the shift
    return [Loss(masses[shift:], loss, loss)]


# --- The settings ---


@dataclass(frozen=True)
class Case:
    """A setting: its account, the true losses, and the losses that the tightest bound composes."""

    name: str
    algorithm: str
    settings: dict[str, Any]
    truth: Callable[[Any], tuple[list[Loss], int]]
    tightest: Callable[[Any], tuple[list[Loss], int]] | None = None
    limit: float = 1.10
    sigma: float = 1.0
    delta: float = 1e-5
    calibrated: dict[str, Any] = field(default_factory=dict)

    def at(self, sigma: float, **changes: Any) -> Any:
        """Return the settings of the account."""
        given = {**self.settings, "delta": self.delta, **changes}
        return find_private(self.algorithm).account(sigma=sigma, **given)

    def proven(self, sigma: float, **changes: Any) -> float:
        return float(self.at(sigma, **changes).proven().epsilon)

    def true(self, sigma: float, near: float, **changes: Any) -> float:
        """Return the epsilon of the worst datasets, rounded down."""
        return self._epsilon(self.truth, self.at(sigma, **changes), near, up=False)

    def best(self, sigma: float, near: float, up: bool, **changes: Any) -> float:
        """Return the epsilon of the tightest known bound."""
        return self._epsilon(self.tightest or self.truth, self.at(sigma, **changes), near, up=up)

    @staticmethod
    def _epsilon(find: Any, settings: Any, near: float, up: bool) -> float:
        losses, count = find(settings)
        return max(loss.epsilon(count, settings.delta, near, up) for loss in losses)


def sgd(settings: Any) -> tuple[list[Loss], int]:
    """Return the loss of all accesses to a record together, which form one Gaussian."""
    accesses = settings.worst_participations
    if settings.shuffle != "fresh":
        accesses = -(-accesses * settings.steps * settings.batch_size // settings.samples)
    summed = settings.per_round - settings.colluding if settings.secagg else 1
    z = settings.sigma * settings.batch_size / (2 * settings.clip_norm)
    return gaussian(z * math.sqrt(summed / accesses)), 1


def sgd_integers(settings: Any) -> tuple[list[Loss], int]:
    """Return the loss of a round's integers with the last step's noise, at the largest shift."""
    sigma = settings.integer_sigma
    shift = sigma * 2 * settings.clip_norm / settings.batch_size / settings.sigma
    return integers(sigma, settings.per_round, math.floor(shift + 1e-9)), (
        settings.worst_participations
    )


def users(pairs: Callable[[float, float], list[Loss]], moved: float) -> Callable[[Any], Any]:
    def find(settings: Any) -> tuple[list[Loss], int]:
        z = settings.sigma / settings.clip_norm / moved
        return pairs(settings.per_round / settings.devices, z), settings.rounds

    return find


def distributed(settings: Any) -> tuple[list[Loss], int]:
    norm = settings.unit * settings.clip_norm + math.sqrt(settings.dim)
    sigma = math.ceil(settings.sigma / settings.clip_norm * norm / math.sqrt(settings.honest))
    return integers(sigma, settings.honest, math.floor(norm)), settings.rounds


def distributed_by_round(settings: Any) -> tuple[list[Loss], int]:
    """Return the loss of rounds with different noise, which is Gaussian up to 1e-6."""
    planned = settings.sigma / settings.clip_norm
    each = [planned * math.sqrt(h / settings.honest) for h in settings.honest_by_round]
    return gaussian(sum(z**-2 for z in each) ** -0.5), 1


def distributed_plain(settings: Any) -> tuple[list[Loss], int]:
    """Return the loss of Gaussian noise with the same multiplier on real numbers."""
    return gaussian(settings.sigma / settings.clip_norm / math.sqrt(settings.rounds)), 1


def trusted(settings: Any) -> tuple[list[Loss], int]:
    z = (
        sum((one / settings.clip_norm) ** -2 for one in (settings.sigma, settings.sigma_norms))
        ** -0.5
    )
    return poisson(settings.first_stage / settings.devices, z), settings.rounds


def local(settings: Any) -> tuple[list[Loss], int]:
    """Return the loss of the worst pair of norms in rounds of stage 2 and in other rounds."""
    a, b = np.meshgrid(np.linspace(0, 1, 201), np.linspace(0, 1, 201))
    zs, z0 = settings.sigma_norms / settings.clip_norm, settings.sigma / settings.clip_norm
    both = ((a - b) ** 2 / zs**2 + (a + b) ** 2 / z0**2).max()
    first = min(settings.rounds, settings.first_stages or settings.rounds)
    second = min(first, settings.replies if settings.replies is not None else first)
    return gaussian(1 / math.sqrt(second * both + (first - second) / zs**2)), 1


def answers(pairs: Callable[..., list[Loss]], sampled: bool = True) -> Callable[[Any], Any]:
    def find(settings: Any) -> tuple[list[Loss], int]:
        added = settings.mechanism == "gaussian" and settings.record_sampling == "poisson"
        size = settings.samples * settings.fraction
        z = settings.sigma * size / settings.clip_norm / (1 if added else 2)
        given = (settings.fraction, z) if sampled else (z,)
        count = -(-settings.rounds * settings.per_round // settings.devices)
        return pairs(*given), count

    return find


ADULT = {"devices": 16, "per_round": 10, "batch_size": 32, "samples": 2432}
TWENTY = {"rounds": 20}
USERS = {"rounds": 100, "devices": 100, "per_round": 20}
ANSWERS = {"rounds": 100, "devices": 10, "per_round": 10, "samples": 6000}

CASES = [
    Case("cdp, no sums", "cdp", ADULT | {"rounds": 20, "secagg": False}, sgd, sigma=0.2),
    Case("cdp, sums, P2", "cdp", ADULT | {"rounds": 20}, sgd, sigma=0.02),
    Case(
        "cdp, 10 steps, continuing", "cdp",
        ADULT | {"rounds": 60, "steps": 10, "convex": True, "shuffle": "continuing"}, sgd,
        sigma=0.01, calibrated=TWENTY,
    ),
    Case(
        "cdp, colluding devices", "cdp", ADULT | {"rounds": 20, "colluding": 4}, sgd, sigma=0.02,
    ),
    Case(
        "cdp, integers", "cdp",
        ADULT | {"rounds": 8, "discrete": True, "integer_sigma": 960.0, "devices": 10},
        sgd_integers, sgd, 1.25, sigma=0.06,
    ),
    Case("dp-dsgd, sums", "dp-dsgd", ADULT | {"rounds": 50}, sgd, sigma=0.03),
    Case(
        "dp-dsgd, integers", "dp-dsgd",
        ADULT | {"rounds": 10, "discrete": True, "integer_sigma": 240.0, "devices": 10},
        sgd_integers, sgd, 1.25, sigma=0.03,
    ),
    Case(
        "dp-fedavg, Poisson", "dp-fedavg", USERS, users(poisson, 1), sigma=1.32, calibrated=TWENTY,
    ),
    Case(
        "dp-fedavg, Poisson, exact dropouts", "dp-fedavg", USERS | {"exact_dropouts": True},
        users(poisson, 1), users(poisson, 2), sigma=2.6, calibrated=TWENTY,
    ),
    Case(
        "dp-fedavg, fixed", "dp-fedavg", USERS | {"sampling": "exact"},
        users(replaced_in_datasets, 2), users(replaced, 2), sigma=1.32, calibrated=TWENTY,
    ),
    Case(
        "dp-fedavg, distributed", "dp-fedavg",
        {**USERS, "rounds": 4, "noise": "distributed", "honest": 9, "unit": 100.0, "dim": 1},
        distributed, distributed_plain, 1.25, sigma=3.0, calibrated={"unit": 40.0},
    ),
    Case(
        "dp-fedavg, distributed, absentees", "dp-fedavg",
        {
            **USERS, "rounds": 4, "noise": "distributed", "honest": 9, "unit": 1e6, "dim": 1000,
            "honest_by_round": (9, 5, 9, 7),
        },
        distributed_by_round, None, 1.25, sigma=3.0,
    ),
    Case(
        "locks, trusted", "locks", {**USERS, "first_stage": 30, "sigma_norms": 5.0}, trusted,
        sigma=1.5, calibrated={"rounds": 20, "sigma_norms": 1e5},
    ),
    Case(
        "locks, local", "locks",
        {**USERS, "first_stage": 30, "variant": "local", "sigma_norms": 8.0, "replies": 40}, local,
        sigma=8.0, calibrated={"sigma_norms": 1e5},
    ),
    Case(
        "locks, local, noisier updates", "locks",
        {**USERS, "first_stage": 30, "variant": "local", "sigma_norms": 5.0}, local, sigma=20.0,
        calibrated={"sigma_norms": 1e5},
    ),
    Case("fedsgd-dpc, Laplace, delta", "fedsgd-dpc", ANSWERS, answers(laplace, False), sigma=0.01),
    Case(
        "fedsgd-dpc, Gaussian, Poisson", "fedsgd-dpc",
        ANSWERS | {"mechanism": "gaussian", "fraction": 0.05}, answers(poisson), sigma=0.005,
        calibrated=TWENTY,
    ),
    Case(
        "fedsgd-dpc, Gaussian, fixed", "fedsgd-dpc",
        ANSWERS | {"mechanism": "gaussian", "fraction": 0.05, "record_sampling": "fixed"},
        answers(replaced_in_datasets), answers(replaced), sigma=0.005, calibrated=TWENTY,
    ),
]  # fmt: skip

TARGET, SMALL_DELTA = 0.01, 1e-10


@dataclass(frozen=True)
class Row:
    """The result of a case."""

    case: Case
    proven: float
    true: float
    best: float

    @property
    def holds(self) -> bool:
        """Whether the value is a valid bound and within its limit."""
        return self.true <= self.proven <= self.case.limit * self.best


def spent(case: Case) -> Row:
    """Compare the epsilon of an account."""
    proven = case.proven(case.sigma)
    true = case.true(case.sigma, proven)
    return Row(case, proven, true, case.best(case.sigma, proven, up=True))


def calibrated(case: Case) -> Row:
    """Compare the noise calibrated to TARGET and SMALL_DELTA with the noise that is necessary.

    The row's values are noises. `proven` is the calibrated one. `best` is a lower bound on the
    noise for the tightest bound, down to the limit. `true` equals `proven`, or is infinite if that
    is too little noise on the known datasets.
    """
    changes = {**case.calibrated, "delta": SMALL_DELTA}

    def proven(sigma: float) -> float:
        return case.proven(sigma, **changes)

    sigma = least_noise(proven, TARGET, 1.0)
    true = sigma if case.true(sigma, TARGET, **changes) <= TARGET else math.inf
    for limit in (1.01, 1.02, 1.03, 1.05, case.limit):
        if case.best(sigma / limit, TARGET, up=False, **changes) > TARGET:
            return Row(case, sigma, true, sigma / limit)
    return Row(case, sigma, true, 0.0)


def main() -> None:
    rows = [spent(case) for case in CASES]
    noises = [calibrated(case) for case in CASES]
    headers = ["setting", "delta", "proven", "true, at least", "tightest bound", "ratio"]
    headers += ["noise for 0.01", "ratio, below"]
    table = [
        [
            row.case.name, f"{row.case.delta:g}", f"{row.proven:.3f}", f"{row.true:.3f}",
            f"{row.best:.3f}", f"{row.proven / row.best:.3f}", f"{noise.proven:.5g}",
            f"{noise.proven / noise.best:.2f}" if noise.best else "fails",
        ]
        for row, noise in zip(rows, noises, strict=True)
    ]  # fmt: skip
    align = ("left", *["right"] * 7)
    print(tabulate(table, headers, tablefmt="github", colalign=align, disable_numparse=True))
    failed = [row.case.name for row in (*rows, *noises) if not row.holds]
    if failed:
        sys.exit(f"not between the truth and the limit: {', '.join(failed)}")


if __name__ == "__main__":
    main()
