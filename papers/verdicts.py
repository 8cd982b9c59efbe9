"""Verdicts on statements of a paper, such as "higher with more noise", compared with our results.

Measured quantities are compared seed by seed. Runs with the same seed share the partition, the
first model and the batches, so their difference varies less than each of them. A claim matches if
all its differences are significant and have the direction that the paper states. It differs if one
significant difference has the other direction. Otherwise it is not distinguishable, whatever the
means. The probability of any wrong direction among all claims of an artefact is at most
`SIGNIFICANCE` (:mod:`papers.statistics`). All seeds use the same data.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from papers import statistics
from papers.statistics import Difference

MATCHES, DIFFERS, SHOWN = "matches", "differs", "shown"
# Verdicts for differences that are not significant, and for those with an unknown reason.
UNDECIDED, OPEN = "not distinguishable", "open"
SIGNIFICANCE = 0.05


@dataclass(frozen=True)
class Line:
    """One statement of a paper, beside our result."""

    what: str  # with its unit
    paper: str  # in words; "" if there is nothing to compare with
    ours: str
    verdict: str  # MATCHES, DIFFERS, UNDECIDED, OPEN, or SHOWN: there is nothing to compare with
    why: str = ""  # the reason for a difference, or how closely the two match
    evidence: str = ""  # the measured difference behind the verdict

    @property
    def told(self) -> str:
        """The verdict with its evidence and reason."""
        reason = "; ".join(filter(None, (self.evidence, self.why)))
        return ": ".join(filter(None, ("" if self.verdict == SHOWN else self.verdict, reason)))


@dataclass(frozen=True)
class Contrast:
    """Two quantities, one of which is higher according to the paper; one value per seed each."""

    higher: Sequence[float | None]  # None for a value that is not finite, which counts as infinite
    lower: Sequence[float | None]
    name: str = ""  # identifies the contrast among those of its claim
    # Whether seeds differ by factors, as losses of different first models do. If so, logarithms are
    # compared, and the difference is given as a ratio.
    ratio: bool = False

    def difference(self) -> Difference:
        """Return the measured difference, higher minus lower, or that of the logarithms."""
        sides = [self.higher, self.lower]
        if self.ratio:
            sides = [[None if x is None else math.log(x) for x in side] for side in sides]
        return statistics.paired(*sides)

    def told(self, difference: Difference) -> str:
        """Return a difference, its interval and its p-value in words."""
        words = difference.words("{:+.3g}".format)
        if self.ratio:
            words = f"a ratio of {difference.words(lambda x: f'{math.exp(x):.3g}')}"
        p_value = difference.p_value
        told = "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"
        return ": ".join(filter(None, (self.name, f"{words}, {told}")))


@dataclass(frozen=True)
class Claim:
    """A statement of the paper on measured quantities; it holds if all its contrasts do."""

    what: str  # with its unit
    paper: str  # in words; "" if the paper says nothing and the result is only shown
    ours: str
    contrasts: Sequence[Contrast]
    why: str = ""  # the reason for a difference, if it is known
    tried: str = ""  # what was tried to find an unknown reason


def within(what: str, paper: float, ours: float, tolerance: float, unit: str, why: str) -> Line:
    """Compare two numbers, which match up to a relative tolerance; else `why` is the reason."""
    off = ours / paper - 1
    values = (f"{paper:g} {unit}".strip(), f"{ours:.4g} {unit}".strip())
    if abs(off) <= tolerance:
        return Line(what, *values, MATCHES, f"within {abs(off):.1%}")
    return Line(what, *values, DIFFERS, why)


def says(what: str, paper: str, ours: str, holds: bool, why: str = "") -> Line:
    """Compare a statement of the paper with a formula; `why` is used if the two differ."""
    return Line(what, paper, ours, MATCHES if holds else DIFFERS, "" if holds else why)


def about(
    what: str, paper: float, values: Sequence[float], tolerance: float, unit: str, why: str
) -> Line:
    """Compare a printed number with the mean over the seeds, up to a relative tolerance.

    They match if the whole interval of the mean is within the tolerance. They differ, for the
    reason `why`, if the whole interval is outside. One seed has no interval and decides nothing.
    """
    mean, reach = fmean(values), tolerance * abs(paper)
    printed, ours = f"{paper:g} {unit}".strip(), mean_of(values, unit)
    if len(values) < 2:
        off = f"one seed has no interval; {mean / paper - 1:+.1%} off"
        return Line(what, printed, ours, UNDECIDED, off)
    half = statistics.half_width(values)
    if abs(mean - paper) + half <= reach:
        return Line(what, printed, ours, MATCHES, f"within {tolerance:.0%}")
    if abs(mean - paper) - half > reach:
        return Line(what, printed, ours, DIFFERS, f"by more than {tolerance:.0%}; {why}")
    return Line(what, printed, ours, UNDECIDED, f"whether it is within {tolerance:.0%}")


def mean_of(values: Sequence[float], unit: str) -> str:
    """Return the mean over the seeds in words, with its interval for several seeds."""
    mean = fmean(values)
    words = f"{mean:.4g} {unit}".strip()
    if len(values) < 2:
        return words
    half = statistics.half_width(values)
    return f"{words} ({mean - half:.4g} to {mean + half:.4g}, {len(values)} seeds)"


def means(*samples: Sequence[float | None], digits: int = 4) -> str:
    """Return the means of some samples in words."""
    words = []
    for values in samples:
        mean = fmean(math.inf if x is None else x for x in values)
        words.append(f"{mean:.{digits}f}" if math.isfinite(mean) else "infinite")
    return ", ".join([*words[:-2], " and ".join(words[-2:])])


def judge(found: Sequence[Line | Claim]) -> list[Line]:
    """Return a line with a verdict for each of the lines and claims.

    p-values are corrected jointly for the paper's claims, and separately for those only shown.
    """
    claims = [one for one in found if isinstance(one, Claim)]
    judged: dict[int, Line] = {}
    for family in ([one for one in claims if one.paper], [one for one in claims if not one.paper]):
        differences = [[contrast.difference() for contrast in one.contrasts] for one in family]
        adjusted = iter(statistics.holm([one.p_value for some in differences for one in some]))
        for claim, some in zip(family, differences, strict=True):
            told = [replace(one, p_value=next(adjusted)) for one in some]
            judged[id(claim)] = _judged(claim, told)
    return [judged[id(one)] if isinstance(one, Claim) else one for one in found]


def _judged(claim: Claim, differences: Sequence[Difference]) -> Line:
    """Return the line of a claim, from differences with corrected p-values."""
    told = list(zip(differences, claim.contrasts, strict=True))
    against = [one for one in told if one[0].mean < 0 and one[0].p_value <= SIGNIFICANCE]
    unclear = any(one.p_value > SIGNIFICANCE for one in differences)
    if against:
        verdict, shown = DIFFERS, min(against, key=lambda one: one[0].p_value)
    else:
        verdict = UNDECIDED if unclear else MATCHES
        shown = max(told, key=lambda one: one[0].p_value)
    evidence = shown[1].told(shown[0])
    if not claim.paper:
        told_apart = UNDECIDED if verdict == UNDECIDED else "told apart"
        return Line(claim.what, "", claim.ours, SHOWN, evidence=f"{told_apart}: {evidence}")
    why = claim.why if verdict == DIFFERS else ""
    if verdict == DIFFERS and claim.tried:
        verdict, why = OPEN, claim.tried
    return Line(claim.what, claim.paper, claim.ours, verdict, why, evidence)


def tally(lines: Sequence[Line]) -> str:
    """Return how many lines match, differ and are neither."""
    counts = Counter(line.verdict for line in lines if line.verdict != SHOWN)
    if not counts:
        return "no verdict"
    words = {DIFFERS: "differ", UNDECIDED: UNDECIDED, OPEN: OPEN}
    told = [f"{counts[one]} {word}" for one, word in words.items() if counts[one]]
    return ", ".join([f"{counts[MATCHES]} of {counts.total()} match", *told])
