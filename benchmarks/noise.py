"""Time of noise for differential privacy: hpcfl against NumPy and OpenDP.

d = 165,000 coordinates. The two works of a pair run back to back, and the figures are medians of
the ratios of their CPU seconds. Takes about 15 s on one core.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import opendp.prelude as dp

from harness import cpu_seconds, figure
from hpcfl.crypto.discrete_gaussian import discrete_gaussian
from hpcfl.crypto.noise import FastNoise, SecureNoise

DIM = 165_000


def opendp_discrete_gaussian(size: int, sigma: float) -> object:
    """Return samples of the same distribution from OpenDP, which uses the system's randomness."""
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T=float)
    return np.array(dp.m.make_gaussian(*space, scale=float(sigma))([0] * size), np.int64)


def compare(
    name: str, ours: Callable[[], object], theirs: Callable[[], object], limit: float, repeats: int
) -> None:
    """Print the ratio of two times beside its limit, and both in nanoseconds per coordinate."""
    ours()
    theirs()
    times = np.array([(cpu_seconds(ours), cpu_seconds(theirs)) for _ in range(repeats)])
    our_ns, their_ns = np.median(times, axis=0) / DIM * 1e9
    figure(
        f"{name} ({our_ns:.1f} ns / {their_ns:.1f} ns)",
        float(np.median(times[:, 0] / times[:, 1])),
        limit,
    )


def main() -> None:
    secure, fast = SecureNoise(os.urandom), FastNoise(np.random.SeedSequence(1))
    generator = np.random.default_rng(1)

    def numpy_gaussian() -> object:
        return generator.standard_normal(DIM)

    def numpy_laplace() -> object:
        return generator.laplace(size=DIM)

    compare("secure Gaussian / numpy", lambda: secure.gaussian(DIM, 1.0), numpy_gaussian, 3.0, 51)
    compare("fast Gaussian / numpy", lambda: fast.gaussian(DIM, 1.0), numpy_gaussian, 1.5, 51)
    compare("secure Laplace / numpy", lambda: secure.laplace(DIM, 1.0), numpy_laplace, 3.0, 51)
    for sigma in (10, 1000):
        compare(
            f"exact discrete Gaussian / OpenDP, sigma={sigma}",
            lambda sigma=sigma: discrete_gaussian(os.urandom(16), DIM, sigma),  # type: ignore[misc]
            lambda sigma=sigma: opendp_discrete_gaussian(DIM, sigma),  # type: ignore[misc]
            0.2,
            3,
        )


if __name__ == "__main__":
    main()
