"""When a benchmark has measured enough rounds."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hpcfl.options.bench import BenchOptions


class StopRule:
    """Decides after every measured round whether it was the last.

    `max_seconds` stops after the round in which this time since the rule's creation has passed,
    whatever the number of rounds. At least one round is measured, if necessary the last one of the
    warm-up. Without it, at least `rounds` rounds are measured. `rel_ci` stops as soon as both ends
    of the 95 % interval of the median are within this share of the median. Because the rule checks
    the interval after every round, lucky stops are more likely: the interval of a run stopped by
    `rel_ci` covers the median slightly less often than 95 %.
    """

    def __init__(self, options: BenchOptions) -> None:
        self._options = options
        self._seconds: list[float] = []
        self._start = time.monotonic()

    @property
    def over(self) -> bool:
        """Whether `max_seconds` have passed."""
        limit = self._options.max_seconds
        return limit is not None and time.monotonic() - self._start >= limit

    def after(self, round_seconds: float) -> str:
        """Return why a measured round was the last, one of `session.REASONS`; "" if it was not."""
        self._seconds.append(round_seconds)
        count = len(self._seconds)
        options = self._options
        if self.over:
            return "max_seconds"
        if count < options.rounds:
            return ""
        if options.rel_ci is not None and self._precise(options.rel_ci):
            return "rel_ci"
        if count < options.most_rounds:
            return ""
        return "max_rounds" if options.most_rounds > options.rounds else "rounds"

    def resume(self, round_seconds: Sequence[float]) -> str:
        """Resume from the measured rounds of earlier launches; return as `after` does.

        The seconds of these rounds count as passed.
        """
        if not len(round_seconds):
            return ""
        self._start -= sum(round_seconds)
        self._seconds = [float(seconds) for seconds in round_seconds[:-1]]
        return self.after(float(round_seconds[-1]))

    def _precise(self, share: float) -> bool:
        from hpcfl.results.statistics import median_interval

        ordered = sorted(self._seconds)
        middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
        return median_interval(ordered).within(share, middle)
