"""Observers of rounds in play, such as results files, progress, recorders and faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hpcfl.comm.phases import Payload
from hpcfl.comm.transport import Transport
from hpcfl.errors import HpcflError
from hpcfl.results.record import RoundRecord
from hpcfl.values import dataclass

if TYPE_CHECKING:
    from hpcfl.rounds.timed import Played


F = TypeVar("F", bound="Played")


@dataclass(frozen=True)
class Scene:
    """The parties of a finished round, as seen from one rank."""

    index: int  # of the round
    transport: Transport  # reaches the other ranks, outside the ledger
    devices: Mapping[int, Any]  # of this rank
    survivors: Sequence[Any]  # the devices of this rank whose vectors are in the sum
    server: Any | None
    inputs: Any  # function that returns a device's vector


class RoundObserver:
    """Watches rounds. Every method does nothing unless a subclass overrides it.

    `at`, `collect` and `ended` are called on every rank, the other methods only at the server. An
    observer of all received messages sets `hears` on every rank: long uploads are then not split.
    """

    hears = False

    def enrolling(self, devices: int) -> None:
        """Learn that the devices are about to enrol, before the first round."""

    def enrolled(self, record: RoundRecord) -> None:
        """Take the cost of the enrolment; an HpcflError ends the run on all ranks."""

    def at(self, index: int, moment: str, phase: str) -> None:
        """Observe a moment of a phase, one of :data:`~hpcfl.rounds.driver.MOMENTS`.

        This is called once before and once after each phase, and at least once during each of its
        steps. It may end this process.
        """

    def collect(self, scene: Scene) -> None:
        """Inspect a finished round, untimed; may communicate if the observers of all ranks do."""

    def ended(self, index: int) -> None:
        """Observe the end of a round, whether or not it was stored."""

    def heard(self, index: int, step: str, sender: int, message: Payload) -> None:
        """Take a sealed message that the server uses, as it arrives. The observer may keep it.

        This is called for long uploads only if the observer `hears`. It is not called for uploads
        that are split among several server ranks; observers that `hear` cannot watch such runs.
        """

    def refused(self, index: int, error: HpcflError) -> None:
        """Take the error for which a device left a round or was refused."""

    def warned(self, sentence: str) -> None:
        """Take a warning about all rounds, or about the last one."""

    def finished(self, index: int, result: Any) -> None:
        """Take a round's `~hpcfl.rounds.timed.Played`; an HpcflError ends the run on all ranks."""


NOBODY = RoundObserver()


def _of_each(name: str) -> Any:
    """Return a method that calls the method `name` of every observer, in order."""

    def method(self: Together, *told: Any) -> None:
        for observer in self.observers:
            getattr(observer, name)(*told)

    return method


class Together(RoundObserver):
    """Several observers as one."""

    def __init__(self, *observers: RoundObserver) -> None:
        self.observers = observers
        self.hears = any(observer.hears for observer in observers)

    enrolling = _of_each("enrolling")
    enrolled = _of_each("enrolled")
    at = _of_each("at")
    collect = _of_each("collect")
    ended = _of_each("ended")
    heard = _of_each("heard")
    refused = _of_each("refused")
    warned = _of_each("warned")
    finished = _of_each("finished")


class Results(RoundObserver, Generic[F]):
    """Keeps the results of all rounds, in order; the list is empty except at the server."""

    def __init__(self) -> None:
        self.results: list[F] = []

    @property
    def records(self) -> list[RoundRecord]:
        """The records of the rounds' costs."""
        return [result.record for result in self.results]

    def finished(self, index: int, result: F) -> None:
        self.results.append(result)
