"""What may watch rounds while they are played: results files, progress, recorders, faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hpcfl.comm.phases import Payload
from hpcfl.comm.transport import Transport
from hpcfl.errors import HpcflError
from hpcfl.results.record import RoundRecord

if TYPE_CHECKING:
    from hpcfl.rounds.timed import Played


F = TypeVar("F", bound="Played")


@dataclass(frozen=True)
class Scene:
    """Both sides of a round after its end, as seen from one rank."""

    index: int  # of the round
    transport: Transport  # reaches the other ranks, outside the ledger
    devices: Mapping[int, Any]  # of this rank
    survivors: Sequence[Any]  # those of them whose vectors are in the sum
    server: Any | None
    inputs: Any  # returns a device's vector


class RoundObserver:
    """Watches rounds. Every method does nothing unless a subclass overrides it.

    The first group is called on every rank, the second where the server is. What `hears` all that
    the server receives says so, on every rank: long uploads are then not taken apart.
    """

    hears = False

    def at(self, index: int, moment: str, phase: str) -> None:
        """Take note of a moment of a phase, one of :data:`~hpcfl.rounds.driver.MOMENTS`.

        Called once before and once after each phase, and once or more during each of its steps.
        May end this process.
        """

    def collect(self, scene: Scene) -> None:
        """Look at a round after its end, untimed; may communicate, if all ranks' observers do."""

    def ended(self, index: int) -> None:
        """Take note of the end of a round, stored or not."""

    def heard(self, index: int, step: str, sender: int, message: Payload) -> None:
        """Take a sealed message that the server uses, as it arrives. It may be kept.

        Not called for long uploads, unless the observer `hears`, nor for those that are dealt out
        to several ranks of the server, which an observer that `hears` cannot watch.
        """

    def refused(self, index: int, error: HpcflError) -> None:
        """Learn of a device that took no further part in a round, and why."""

    def warned(self, sentence: str) -> None:
        """Learn what is to be known of all rounds, or of the one that was just played."""

    def finished(self, index: int, result: Any) -> None:
        """Take a round's `~hpcfl.rounds.timed.Played`; an HpcflError ends the run everywhere."""


NOBODY = RoundObserver()


def _of_each(name: str) -> Any:
    """Return a method that calls that of every observer, in order."""

    def method(self: Together, *told: Any) -> None:
        for observer in self.observers:
            getattr(observer, name)(*told)

    return method


class Together(RoundObserver):
    """Several observers as one."""

    def __init__(self, *observers: RoundObserver) -> None:
        self.observers = observers
        self.hears = any(observer.hears for observer in observers)

    at = _of_each("at")
    collect = _of_each("collect")
    ended = _of_each("ended")
    heard = _of_each("heard")
    refused = _of_each("refused")
    warned = _of_each("warned")
    finished = _of_each("finished")


class Results(RoundObserver, Generic[F]):
    """Keeps every round's result in a list: in order, and empty except at the server."""

    def __init__(self) -> None:
        self.results: list[F] = []

    @property
    def records(self) -> list[RoundRecord]:
        """What the rounds cost."""
        return [result.record for result in self.results]

    def finished(self, index: int, result: F) -> None:
        self.results.append(result)
