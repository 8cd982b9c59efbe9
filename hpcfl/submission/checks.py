"""What is asked of the results of a submission, from their files alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.report import formats
from hpcfl.report.formats import counted
from hpcfl.results import pooling
from hpcfl.results.reader import Run
from hpcfl.results.schema import PLACEMENT
from hpcfl.results.summary import warnings
from hpcfl.rounds.dropouts import DropoutSchedule
from hpcfl.submission.classes import SubmissionClass
from hpcfl.system import disturbances

# A line names at most so many problems of one kind.
_NAMED = 3

Problems = Iterator[str]


@dataclass(frozen=True)
class Check:
    """One of the things that are checked, and what is wrong with it."""

    name: str
    asked: str  # what has to be so, as a phrase
    problems: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    @property
    def line(self) -> str:
        """The check on one line."""
        if self.passed:
            return f"pass     {self.name:<14} {formats.words(self.asked)}"
        named, more = self.problems[:_NAMED], len(self.problems) - _NAMED
        rest = f"; and {more} more" if more > 0 else ""
        return f"refused  {self.name:<14} {formats.words('; '.join(named))}{rest}"


@dataclass(frozen=True)
class Label:
    """Something that has to be known of results, and is no reason to refuse them."""

    name: str
    sentence: str

    @property
    def line(self) -> str:
        """The label on one line."""
        return f"label    {self.name:<14} {formats.words(self.sentence)}"


def check(runs: Sequence[Run], asked: SubmissionClass) -> list[Check]:
    """Check results against what a class asks for."""
    return [
        Check(name, phrase.format(asked=asked), tuple(problems(runs, asked)))
        for name, phrase, problems in _CHECKS
    ]


def _complete(runs: Sequence[Run], asked: SubmissionClass) -> Problems:
    for run in runs:
        if run.unfinished is not None:
            yield f"{run.path.name} {run.unfinished}"
        if run.training:
            yield f"{run.path.name} is of hpcfl train: a class is measured by hpcfl bench"


def _class(runs: Sequence[Run], asked: SubmissionClass) -> Problems:
    for run in runs:
        wrong = asked.differences(run.config | {"devices": run.devices})
        for name, (value, wanted) in wrong.items():
            yield (
                f"{run.path.name}: {name} is {formats.words(value, 'none')}, and the class has "
                f"{formats.words(wanted, 'none')}"
            )
        upload = _upload_phase(run)
        dropped = run.config.get("dropout_phase")
        if upload is not None and dropped != upload:
            yield (
                f"{run.path.name}: dropout_phase is {formats.words(dropped)}, and the class has "
                f"that of the upload, {upload}"
            )


def _upload_phase(run: Run) -> str | None:
    """Return the phase of a protocol's uploads; None if it does not come with hpcfl."""
    name = run.config.get("protocol")
    known = isinstance(name, str) and name in PROTOCOLS
    return find(str(name)).upload_phase() if known else None


def _alike(runs: Sequence[Run], asked: SubmissionClass) -> Problems:
    first, *others = runs
    for run in others:
        for facts in (pooling.configuration, pooling.machine):
            for name, (one, other) in pooling.differences(facts, first, run).items():
                yield (
                    f"{first.path.name} and {run.path.name} differ in {formats.words(name)}: "
                    f"{formats.words(one, 'none')} | {formats.words(other, 'none')}"
                )


def _launches(runs: Sequence[Run], asked: SubmissionClass) -> Problems:
    seen: dict[Any, Run] = {}
    for run in runs:
        # A copy under another number is no launch either: no two have the same times.
        for key in filter(None, (run.run_id, run.round_seconds.tobytes())):
            earlier = seen.setdefault(key, run)
            if earlier is not run:
                yield f"{earlier.path.name} and {run.path.name} are of the same launch"
                break
    if len(runs) < asked.launches:
        yield f"there are results of {len(runs)}, and the class asks for {asked.launches}"


def _rounds(runs: Sequence[Run], asked: SubmissionClass) -> Problems:
    for run in runs:
        measured = int((~run.warmup).sum())
        if measured < asked.rounds:
            yield f"{run.path.name} has {counted(measured, 'measured round')}, not {asked.rounds}"


def _validated(runs: Sequence[Run], asked: SubmissionClass) -> Problems:
    for run in runs:
        wrong = int((~run.validated).sum())
        if wrong:
            yield f"{run.path.name} has {counted(wrong, 'round')} whose sum was not right"


def _dropouts(runs: Sequence[Run], asked: SubmissionClass) -> Problems:
    for run in runs:
        gone = len(DropoutSchedule(run.devices, asked.dropout, "exact", "", 0).draw(0))
        summed = run.survived.sum(axis=1)
        for index in np.flatnonzero(summed != run.devices - gone):
            yield (
                f"{run.path.name} has {counted(int(summed[index]), 'device')} in the sum of round "
                f"{index}, not {run.devices - gone}"
            )


def _commit(runs: Sequence[Run], asked: SubmissionClass) -> Problems:
    for run in runs:
        for launch in run.launches.values():
            if launch.get("git_commit") is None or launch.get("git_dirty") is None:
                yield f"{run.path.name} does not record which commit was run"
            elif launch["git_dirty"] is not False:
                commit = formats.words(launch["git_commit"])[:12]
                yield f"{run.path.name} was made by code that differs from its commit {commit}"


# In the order in which they are reported: a name, what has to be so, and what is wrong.
_CHECKS: tuple[tuple[str, str, Callable[[Sequence[Run], SubmissionClass], Problems]], ...] = (
    ("complete", "every launch of hpcfl bench came to its end", _complete),
    ("class", "{asked.name}: N = {asked.devices}, d = {asked.dim}, and all that it fixes", _class),
    ("alike", "one configuration on one kind of machine", _alike),
    ("launches", "at least {asked.launches} launches, each once", _launches),
    ("rounds", "at least {asked.rounds} measured rounds in each launch", _rounds),
    ("validated", "every round's sum was right", _validated),
    ("dropouts", "as many devices in every sum as the class has", _dropouts),
    ("commit", "a commit that is known, without changes", _commit),
)


def labels(runs: Sequence[Run]) -> list[Label]:
    """Return what has to be known of results: each once."""
    found = [label for run in runs for label in _of_run(run)]
    known = {label.sentence for label in found}
    found += [Label("warning", one) for one in warnings(runs) if one not in known]
    return list(dict.fromkeys(found))


def _of_run(run: Run) -> Iterator[Label]:
    for environment in run.launches.values():
        for kind, sentence in disturbances.found(environment):
            yield Label(kind, sentence)
        transport = environment.get("transport")
        if transport == "loopback":
            yield Label(
                "one process",
                "all parties in one process: wall times have no communication in them",
            )
        elif transport == "netlab":
            yield Label("links", "hpcfl netlab shaped the links: wall times have these in them")
        elif transport != "mpi":
            yield Label("links", "how messages travelled is not recorded")
        shared = _most_on_a_rank(environment)
        if shared > 1 and transport != "loopback":
            yield Label(
                "virtual devices",
                f"up to {counted(shared, 'device')} on a rank: wall times have them one after "
                "the other",
            )
    if run.resumed:
        yield Label("resumed", f"{run.path.name} was interrupted and resumed")
    if _upload_phase(run) is None:
        yield Label(
            "own protocol",
            f"{run.protocol!r} does not come with hpcfl: what it promises, and the "
            "phase before which devices drop out, are not known here",
        )


def _most_on_a_rank(environment: Mapping[str, Any]) -> int:
    ranks = environment.get(PLACEMENT)
    if not isinstance(ranks, list):
        return 0
    held = [place.get("devices") for place in ranks if isinstance(place, dict)]
    return max((len(one) for one in held if isinstance(one, list)), default=0)
