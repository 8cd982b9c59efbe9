"""Privacy loss distributions (PLD): what many releases cost together, numerically.

A pair of distributions (P, Q) that dominates a mechanism has the privacy loss L = ln dP/dQ, and
delta(epsilon) = E_P[(1 - exp(epsilon - L))+]. Losses of adaptive releases add up if every one is
dominated (Zhu, Dong and Wang, 2022, "Optimal accounting of differential privacy via characteristic
function", Theorem 10), so the loss of n alike is an n-fold convolution.

Three things make what is found here a bound that is close at any delta:

- The loss is put on a grid by splitting the mass between two neighbouring points so that P's and
  Q's are kept (Doroshenko, Ghazi, Kamath, Kumar and Manurangsi, 2022, "Connect the dots"). The
  grid's pair dominates the true pair, and exceeds it by the square of the grid's step.
- The convolution is that of exponentially tilted masses, whose mean lies where delta is asked for.
  So the rounding of the transform is small beside delta, however small that is. It is bounded and
  added to delta, and so is what lies beyond the transform's window (Chernoff).
- The grid is refined until the result hardly changes.

Where a transform would be too large, Chernoff's bound for the losses on the grid is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from hpcfl.privacy.distributions import Floats
from hpcfl.values import dataclass

# Points of the first grid and of the finest, and of the largest transform.
_FIRST_POINTS, _LAST_POINTS, _MOST_POINTS = 256, 2**20, 2**22
# A refinement by a factor of 4 that changes less, relatively, is the last: the error left is a
# fifteenth of it. An epsilon below the second number is as good as 0.
_STILL, _LITTLE = 4e-3, 1e-9
# Part of delta that goes to losses beyond the grid, and the logarithm of the tilted mass beyond the
# window of the transform.
_CUT, _BEYOND = 1e-7, -30.0
# The steepest tilt between two points of a grid.
_STEEPEST = 4.0
# Logarithms of masses beyond which their exponentials are not numbers.
_FAR = 600.0
_ULP = 2.0**-52


@dataclass(frozen=True)
class Pair:
    """Two distributions P and Q by their privacy loss ln dP/dQ."""

    # From k + 1 ascending losses, the ends perhaps infinite, to the masses by P and by Q of the k
    # intervals between them, each with its upper end.
    masses: Callable[[Floats], tuple[Floats, Floats]]
    # From a probability to the losses below and above which P has no more mass than it.
    span: Callable[[float], tuple[float, float]]


def removal(rate: float, multiplier: float) -> Pair:
    """Return (1 - q) N(0, z**2) + q N(1, z**2) and N(0, z**2): a member's removal."""

    def masses(edges: Floats) -> tuple[Floats, Floats]:
        x = _position(edges, rate, multiplier)
        without = _between(x / multiplier)
        return (1 - rate) * without + rate * _between((x - 1) / multiplier), without

    def span(tail: float) -> tuple[float, float]:
        end = multiplier * _quantile(tail)
        low, high = _loss(np.array([end, 1 - end]), rate, multiplier)
        return float(low), float(high)

    return Pair(masses, span)


def addition(rate: float, multiplier: float) -> Pair:
    """Return N(0, z**2) and (1 - q) N(0, z**2) + q N(1, z**2): the pair of a removal, swapped."""
    swapped = removal(rate, multiplier)

    def masses(edges: Floats) -> tuple[Floats, Floats]:
        q, p = swapped.masses(-edges[::-1])
        return p[::-1], q[::-1]

    def span(tail: float) -> tuple[float, float]:
        end = multiplier * _quantile(tail)
        high, low = -_loss(np.array([end, -end]), rate, multiplier)
        return float(low), float(high)

    return Pair(masses, span)


def replacement(rate: float, multiplier: float) -> Pair:
    """Return the pair of a Gaussian release of a sample of fixed size, when a member is replaced.

    Where the loss is above 0 it is that of a removal, where it is below 0 that of an addition, and
    all else is at 0 (docs/privacy.md derives it; Zhu, Dong and Wang, 2022, Theorem 11).
    """
    above, below = removal(rate, multiplier), addition(rate, multiplier)
    half = 0.5 / multiplier
    still = (1 - rate) * float(_between(np.array([-half, half]))[0])

    def masses(edges: Floats) -> tuple[Floats, Floats]:
        parts = above.masses(np.maximum(edges, 0)), below.masses(np.minimum(edges, 0))
        at_zero = np.where((edges[:-1] < 0) & (edges[1:] >= 0), still, 0.0)
        p, q = (first + second + at_zero for first, second in zip(*parts, strict=True))
        return p, q

    def span(tail: float) -> tuple[float, float]:
        return min(0.0, below.span(tail)[0]), max(0.0, above.span(tail)[1])

    return Pair(masses, span)


def laplace(multiplier: float) -> Pair:
    """Return two Laplace distributions of scale z, whose means differ by 1."""
    most = 1 / multiplier

    def masses(edges: Floats) -> tuple[Floats, Floats]:
        inner = np.clip(edges, -most, most)
        low, high = inner[:-1], inner[1:]
        width = -np.expm1(-(high - low) / 2)
        p = 0.5 * np.exp((high - most) / 2) * width
        q = 0.5 * np.exp(-(low + most) / 2) * width
        for end in (-most, most):
            here = (edges[:-1] < end) & (edges[1:] >= end)
            p += np.where(here, 0.5 * math.exp((end - most) / 2), 0.0)
            q += np.where(here, 0.5 * math.exp(-(end + most) / 2), 0.0)
        return p, q

    return Pair(masses, lambda tail: (-most, most))


def epsilon(pair: Pair, count: int, delta: float, enough: float = 0.0) -> float:
    """Return an epsilon of `count` releases, each of which a pair dominates, rounded up.

    An epsilon of `enough` need not be undercut.
    """
    low, high = pair.span(_CUT * delta / count)
    # Where all losses are alike, there is nothing to refine but rounding.
    span = max(high - low, 1e-9 * max(abs(low), abs(high)))
    best = math.inf
    points = _FIRST_POINTS
    while points <= _LAST_POINTS:
        grid = Grid.of(pair, low, high, span / points)
        before, best = best, min(best, grid.epsilon(count, delta, grid.best_tilt(count, delta)))
        still = points > _FIRST_POINTS and before - best <= _STILL * best < math.inf
        if still or best <= max(enough, _LITTLE):
            break
        points *= 4
    return best


@dataclass(frozen=True)
class Grid:
    """A loss on the multiples of a width."""

    width: float
    points: Floats  # numbers of the multiples, ascending, shape (points,)
    chances: Floats  # P's masses there
    beyond: float  # mass of P above the grid; its loss is taken to be infinite

    @staticmethod
    def of(pair: Pair, low: float, high: float, width: float) -> Grid:
        """Put a pair's loss on a grid from `low` to `high`."""
        # A point more on either side: what has a largest loss may have all its mass there.
        points = np.arange(math.floor(low / width) - 1, math.ceil(high / width) + 2.0)
        p, q = pair.masses(np.concatenate([[-np.inf], points * width, [np.inf]]))
        # Of an interval's mass a part goes up, so that the rest has Q's mass as well as P's. The
        # difference may have lost digits: a little more goes up.
        inner_p, inner_q = p[1:-1], q[1:-1]
        with np.errstate(over="ignore", invalid="ignore"):
            down = (inner_q * np.exp(points[:-1] * width) - inner_p * math.exp(-width)) / (
                -math.expm1(-width)
            )
        down = np.where(np.isfinite(down), np.clip(down, 0, inner_p), 0)
        down *= 1 - min(1.0, 8 * _ULP / width)
        chances = np.zeros(points.size)
        chances[0] = p[0]
        chances[:-1] += down
        chances[1:] += inner_p - down
        return Grid(width, points, chances, float(p[-1]))

    def tilted(self, tilt: float) -> tuple[Floats, float]:
        """Return the masses times exp(tilt loss), scaled to sum up to 1, and the cumulant there.

        It is the logarithm of that scale: the tilt times the Rényi divergence of order 1 + tilt.
        """
        exponents = tilt * self.width * self.points
        top = float(exponents[self.chances > 0].max())
        raised = self.chances * np.exp(np.minimum(exponents - top, 0))
        total = float(raised.sum())
        rounding = 8 * _ULP * math.log2(self.chances.size)
        return raised / total, top + math.log(total) + rounding

    def best_tilt(self, count: int, delta: float) -> float:
        """Return the tilt of the best bound by cumulants alone; any is right up to rounding."""
        from scipy.optimize import minimize_scalar

        def bound(log_tilt: float) -> float:
            return self.by_cumulant(count, delta, math.exp(log_tilt))

        largest = math.log(_STEEPEST / self.width)
        reach = math.log(float(np.abs(self.points).max()) * self.width)
        tries = np.linspace(-reach - 0.5 * math.log(count) - 5, largest, 80)
        best = float(tries[int(np.argmin([bound(one) for one in tries]))])
        ends = best - 1, min(largest, best + 1)
        found = minimize_scalar(bound, bounds=ends, method="bounded", options={"xatol": 0.02})
        return math.exp(float(found.x))

    def by_cumulant(self, count: int, delta: float, tilt: float) -> float:
        """Return the epsilon that the Rényi divergence of the order 1 + tilt proves."""
        spent = count * self.tilted(tilt)[1] - math.log(delta) - math.log1p(tilt)
        return spent / tilt - math.log1p(1 / tilt)

    def epsilon(self, count: int, delta: float, tilt: float) -> float:
        """Return the epsilon of `count` releases; infinite if too much lies beyond the grid."""
        from scipy import fft

        within = delta + math.expm1(count * math.log1p(-self.beyond))
        if within <= 0:
            return math.inf
        most = max(0.0, self.by_cumulant(count, within, tilt))
        chances, cumulant = self.tilted(tilt)
        mean = float(chances @ self.points)
        deviation = math.sqrt(float(chances @ (self.points - mean) ** 2) * count) + 1
        center = count * mean * self.width
        low, high = self._window(count, tilt, center, deviation * self.width)
        size = fft.next_fast_len(high - low + 1, real=True)
        if size > _MOST_POINTS:
            return most
        # What lies above the window, at the most, and beyond the grids of the releases.
        scale = count * cumulant - tilt * center
        above = scale + tilt * (center - (low + size - 1) * self.width) + _BEYOND
        left = within - math.exp(min(0.0, above))
        # Where the tilted mean is far off, or rounding is all there is, nothing better is found.
        if left <= 0 or not abs(scale - math.log(left)) < _FAR:
            return most
        # Around its mean, so that the transform's phases are small where it is large.
        middle = round(mean)
        places = (self.points.astype(np.int64) - middle) % size
        transformed = fft.rfft(np.bincount(places, chances, minlength=size)) ** count
        sums = np.roll(fft.irfft(transformed, size), -((low - count * middle) % size))
        sums = np.maximum(sums, 0)
        largest = float(np.abs(transformed).sum()) * 2 / size
        error = 8 * _ULP * math.log2(size) * (count * largest + math.sqrt(float((sums**2).sum())))
        # The tilt is taken back, relative to the mean: of P's masses and, as far as a point's loss
        # is above another's, of Q's.
        losses = low * self.width + np.arange(size) * self.width
        masses = (sums + error) * np.exp(tilt * (center - losses))
        found = _solve(masses, losses, self.width, math.exp(math.log(left) - scale))
        return min(most, max(0.0, found))

    def _window(self, count: int, tilt: float, mean: float, deviation: float) -> tuple[int, int]:
        """Return between which points the tilted sum lies but for exp(_BEYOND) on either side."""
        here = self.tilted(tilt)[1]
        low, high = -math.inf, math.inf
        for slope in math.sqrt(-2 * _BEYOND) / deviation * np.geomspace(0.01, 1, 9):
            up, down = (count * (self.tilted(tilt + s)[1] - here) for s in (slope, -slope))
            high, low = min(high, (up - _BEYOND) / slope), max(low, (_BEYOND - down) / slope)
        least = 8 * self.width
        low, high = min(low, mean - least), max(high, mean + least)
        return math.floor(low / self.width), math.ceil(high / self.width)


def _solve(masses: Floats, losses: Floats, width: float, delta: float) -> float:
    """Return the least epsilon with sum_(l > epsilon) P(l) (1 - exp(epsilon - l)) <= delta."""
    from scipy.signal import lfilter

    factor = math.exp(-width)
    p = np.append(np.cumsum(masses[:0:-1])[::-1], 0.0)
    q = lfilter([0.0, factor], [1.0, -factor], masses[::-1])[::-1]
    low_enough = np.flatnonzero(p - q <= delta)
    first = int(low_enough[0]) if low_enough.size else losses.size - 1
    # Of points that are far apart, the upper one's chance by Q is none beside the lower one's.
    if first == 0 or q[first - 1] == 0:
        return float(losses[first])
    # Between two points the sum is linear in exp(epsilon).
    between = math.log(p[first - 1] - delta) - math.log(q[first - 1])
    return min(float(losses[first]), float(losses[first - 1]) + between)


def _loss(x: Floats, rate: float, multiplier: float) -> Floats:
    """Return ln(1 - q + q exp((2 x - 1) / (2 z**2))), the loss of a removal at x."""
    exponent = (x - 0.5) / multiplier**2
    if rate == 1:
        return exponent
    return np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)


def _position(loss: Floats, rate: float, multiplier: float) -> Floats:
    """Return where a removal has a loss; minus infinity where it is always larger."""
    if rate == 1:
        return 0.5 + multiplier**2 * loss
    # ln((exp(loss) - 1 + q) / q), in a way that keeps digits near 0 and one that cannot overflow.
    near, far = np.minimum(loss, 30.0), np.maximum(loss, 30.0)
    with np.errstate(divide="ignore"):
        found = np.where(
            loss < 30,
            np.log1p(np.maximum(np.expm1(near) / rate, -1.0)),
            far - math.log(rate) + np.log1p(-(1 - rate) * np.exp(-far)),
        )
    return 0.5 + multiplier**2 * found


def _between(x: Floats) -> Floats:
    """Return the normal distribution's masses between ascending points, exact in both tails."""
    from scipy.special import ndtr

    low, high = x[:-1], x[1:]
    return np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))


def _quantile(chance: float) -> float:
    """Return below which point a normal variable is with a probability."""
    from scipy.special import ndtri

    return float(ndtri(max(chance, 1e-300)))
