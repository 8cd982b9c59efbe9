"""Rounds one after the other, until the server or a signal says that it is enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hpcfl.comm.transport import Transport
from hpcfl.errors import HpcflError, ValidationError
from hpcfl.rounds.observer import F, RoundObserver
from hpcfl.system.plugins import blamed

# Why rounds end. Ranks are told one of these by its number; the first stands for going on.
REASONS = (
    *("", "rounds", "rel_ci", "max_seconds", "max_rounds", "interrupted"),
    *("target_accuracy", "epsilon"),
)


def repeat(
    transport: Transport,
    indices: Iterable[int],
    play: Callable[[int], F | None],
    decide: Callable[[int, F], str],
    observer: RoundObserver,
) -> str:
    """Play rounds until one was the last; every rank calls this.

    `play` returns the round's result at the server, where `decide`, once it is stored, says why it
    was the last, one of `REASONS`, or "". The observer takes the result, and says whether a rank is
    to leave: the ranks agree on going on outside all timed regions.

    Returns why it stopped, the same on every rank; "" if there was no round to play. Raises an
    HpcflError on every rank if a round cannot end or be stored, or its aggregate is wrong. The
    rounds before it, and a wrong one, have been stored.
    """
    for index in indices:
        with blamed(f"round {index}"):
            result = play(index)
        error: HpcflError | None = None
        reason = ""
        if result is not None:
            try:
                _store(observer, index, result)
                reason = decide(index, result)
            except HpcflError as problem:
                error = problem
        observer.ended(index)
        # Only the server knows whether any rank was told to leave.
        leaving = transport.max_to_server(float(observer.told_to_leave()))
        if not reason and leaving:
            reason = "interrupted"
        reason = REASONS[transport.tell(REASONS.index(reason), error)]
        if reason:
            return reason
    return ""


def _store(observer: RoundObserver, index: int, result: F) -> None:
    """Let the observer store a round; raise what speaks against going on."""
    observer.finished(index, result)
    if result.right:
        return
    raise ValidationError(
        f"the aggregate of round {index} is wrong: it is not the sum of the survivors' vectors; "
        "the results file keeps the round as evidence"
    )
