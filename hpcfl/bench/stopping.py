"""When a benchmark has measured enough rounds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from hpcfl.errors import UsageError

# How many rounds a rule may take, in terms of the least number, if nobody sets a limit.
DEFAULT_FACTOR = 10


@dataclass
class StopRule:
    """Decides after every measured round whether it was the last.

    The least number of rounds is always measured. Looking at the interval after every round makes
    a lucky stop more likely, so that the interval of a run stopped by `rel_ci` covers the median a
    little less often than it says.

    Parameters
    ----------
    rounds : int
        Least number of measured rounds.
    max_rounds : int, optional
        Largest number. By default it is `rounds` without another rule, or else ten times as many.
    rel_ci : float, optional
        Stop once both ends of the 95 % interval of the median are within this share of the
        median.
    max_seconds : float, optional
        Stop once this much time has passed since the rule was made.

    Raises
    ------
    UsageError
        If a value is out of range.
    """

    rounds: int
    max_rounds: int | None = None
    rel_ci: float | None = None
    max_seconds: float | None = None
    _seconds: list[float] = field(default_factory=list, init=False, repr=False)
    _start: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.max_rounds is not None and self.max_rounds < self.rounds:
            raise UsageError(
                f"--max-rounds is {self.max_rounds}, fewer than the {self.rounds} of --rounds"
            )
        if self.rel_ci is not None and not 0 < self.rel_ci < 1:
            raise UsageError(f"--rel-ci must be between 0 and 1, not {self.rel_ci}")
        if self.max_seconds is not None and not 0 < self.max_seconds < float("inf"):
            raise UsageError(f"--max-seconds must be a number above 0, not {self.max_seconds}")
        self._start = time.monotonic()

    @property
    def may_vary(self) -> bool:
        """Whether the number of rounds depends on how they go."""
        return self.rel_ci is not None or self.max_seconds is not None

    @property
    def most(self) -> int:
        """Largest number of measured rounds."""
        if self.max_rounds is not None:
            return self.max_rounds
        return DEFAULT_FACTOR * self.rounds if self.may_vary else self.rounds

    def after(self, round_seconds: float) -> str:
        """Return why a measured round was the last, "" if it was not.

        Parameters
        ----------
        round_seconds : float
            The round's.

        Returns
        -------
        str
            One of :data:`~hpcfl.rounds.loop.REASONS`.
        """
        self._seconds.append(round_seconds)
        count = len(self._seconds)
        if count < self.rounds:
            return ""
        if self.rel_ci is not None and self._precise(self.rel_ci):
            return "rel_ci"
        if self.max_seconds is not None and time.monotonic() - self._start >= self.max_seconds:
            return "max_seconds"
        if count < self.most:
            return ""
        return "max_rounds" if self.most > self.rounds else "rounds"

    def resume(self, round_seconds: Sequence[float]) -> str:
        """Take up the measured rounds of an earlier launch; return why they are enough, "" if not.

        Their seconds count as passed.

        Parameters
        ----------
        round_seconds : sequence of float
            The rounds', in order.

        Returns
        -------
        str
            One of :data:`~hpcfl.rounds.loop.REASONS`.
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
