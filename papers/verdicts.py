"""Verdicts on what a paper says, such as "higher with more noise", beside what was found.

Measured quantities are compared seed by seed: runs of one seed have the partition, the first model
and the batches in common, so their difference varies less than either. A claim matches if all its
differences are told from chance and go the way the paper says, and differs if one of them goes the
other way; else it is not distinguishable, however the means lie. The chance of any wrong direction
among all the claims of an artefact is at most `SIGNIFICANCE` (:mod:`papers.statistics`). The data
are the same for all seeds.
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
# What the seeds do not tell from chance, and what differs for a reason that is not known.
UNDECIDED, OPEN = "not distinguishable", "open"
SIGNIFICANCE = 0.05


@dataclass(frozen=True)
class Line:
    """One thing that a paper says, beside what was found here."""

    what: str  # with its unit
    paper: str  # in words; "" where there is nothing to compare with
    ours: str
    verdict: str  # MATCHES, DIFFERS, UNDECIDED, OPEN, or SHOWN: there is nothing to compare with
    why: str = ""  # why it differs, or how closely it matches
    evidence: str = ""  # the measured difference that the verdict rests on

    @property
    def told(self) -> str:
        """The verdict with its evidence and reason."""
        reason = "; ".join(filter(None, (self.evidence, self.why)))
        return ": ".join(filter(None, ("" if self.verdict == SHOWN else self.verdict, reason)))


@dataclass(frozen=True)
class Contrast:
    """Two quantities of which the paper says that the one is higher; a value a seed, in order."""

    higher: Sequence[float | None]  # None for a value that is not finite: as if it were infinite
    lower: Sequence[float | None]
    name: str = ""  # tells it from the other contrasts of its claim
    # Whether seeds differ by factors, as losses from different first models do: the logarithms are
    # compared, and told as a ratio.
    ratio: bool = False

    def difference(self) -> Difference:
        """Return what was found of the higher less the lower, or of their logarithms."""
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
    """A sentence of the paper about measured quantities, which holds if all its contrasts do."""

    what: str  # with its unit
    paper: str  # in words; "" where it says nothing, and what was found is only shown
    ours: str
    contrasts: Sequence[Contrast]
    why: str = ""  # why it differs, if it does
    tried: str = ""  # where it is not known why it differs: what was tried


def within(what: str, paper: float, ours: float, tolerance: float, unit: str, why: str) -> Line:
    """Compare two numbers, which match up to a relative tolerance; else `why` says why not."""
    off = ours / paper - 1
    values = (f"{paper:g} {unit}".strip(), f"{ours:.4g} {unit}".strip())
    if abs(off) <= tolerance:
        return Line(what, *values, MATCHES, f"within {abs(off):.1%}")
    return Line(what, *values, DIFFERS, why)


def says(what: str, paper: str, ours: str, holds: bool, why: str = "") -> Line:
    """Compare a sentence of the paper with what follows by formula; `why` is used if it fails."""
    return Line(what, paper, ours, MATCHES if holds else DIFFERS, "" if holds else why)


def about(
    what: str, paper: float, values: Sequence[float], tolerance: float, unit: str, why: str
) -> Line:
    """Compare a printed number with the mean of the seeds, which match up to a relative tolerance.

    They match if the whole interval of the mean is that close to the number, and differ, for the
    reason `why`, if none of it is. One seed has no interval, and decides nothing.
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
    """Return the mean of the seeds in words, with its interval where there are several."""
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
    """Return lines with a verdict each.

    All claims of the paper in an artefact are allowed for together, and so is what is only shown.
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
    """Return the line of a claim; the p-values allow for all others."""
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
