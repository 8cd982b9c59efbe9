"""Pools of launches of one configuration, which count as repeats."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import names
from hpcfl.report import formats
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import Run
from hpcfl.results.record import KNOWN
from hpcfl.results.summary import Summary, summarise
from hpcfl.system.environment import steering
from hpcfl.values import dataclass

# Options that do not change a round's work, and entries derived from options or from resuming.
_FREE = {*names(BenchOptions, "repeat"), "promises", "scaled_by", "rounds_repeated"}
_GIVEN = {*names(BenchOptions, "repeat if given")}
_ANY = {*names(BenchOptions, "repeat if any")}
# Facts of the environment that repeats must share, besides the variables that steer MPI. Repeats
# may run on different hosts, because they are meant to sample the nodes. A fact that a file lacks,
# for example because an earlier version wrote it, differs from any recorded value.
MACHINE = (
    *("transport", "ranks", "host_ranks", "mapping", "binding", "fault_tolerance", "networks"),
    *("mpi_library", "mpi_library_text", "mpi_device", "thread_level"),
    *("cpu_model", "cores_physical", "cores_logical", "cores_usable", "cpu_governor", "cpu_turbo"),
    *("hpcfl_version", "git_commit", "git_dirty", "git_changes"),
    *("kernel", "python_version", "numpy_version", "mpi4py_version", "openssl_version"),
    *("keystream_mode", "masks_added_by", "keys_derived_by", "keys_agreed_by"),
)
# Options that end a training run.
_ENDS = ("rounds", "max_seconds", "target_accuracy")


@dataclass(frozen=True, repr=False)
class Pool:
    """One or more launches of one configuration on one kind of machine."""

    runs: tuple[Run, ...]

    @property
    def run(self) -> Run:
        """A run with the rounds of all launches in sequence, and all else from the first launch.

        Its status is the first one that is not ``complete``, if any.
        """
        first = self.runs[0]
        if len(self.runs) == 1:
            return first
        rounds: dict[str, Any] = {
            one.name: np.concatenate([getattr(run, one.name) for run in self.runs]) for one in KNOWN
        }
        rounds["training"] = {
            name: np.concatenate([run.training[name] for run in self.runs])
            for name in first.training
            if all(name in run.training for run in self.runs)
        }
        once = [run.enrolment for run in self.runs if run.enrolment is not None]
        rounds["enrolment"] = Pool(tuple(once)).run if once else None
        unfinished = [run.status for run in self.runs if run.status != "complete"]
        return dataclasses.replace(first, status=[*unfinished, "complete"][0], **rounds)

    def summary(self, link: LinkModel, target: float | None = None) -> Summary:
        """Return a summary of the measured rounds of all launches; see `summary.summarise`."""
        return summarise(self.run, link, target, self.runs)


def group(runs: Sequence[Run], *, trainings: bool = False) -> list[Pool]:
    """Return pools of the runs with equal configuration and machine, in order of their first runs.

    The configuration is the protocol, its phases, the number of devices and every option except the
    seed, the output and those that decide the number of rounds. Each training run has a pool of its
    own, because its rounds are not repeats; with `trainings`, training runs that differ only in
    their seeds share one. A resumed training run counts as one run.
    """
    pools: dict[str, list[Run]] = {}
    for number, run in enumerate(runs):
        alone: Any = None
        if run.training:
            # What a training run reaches depends on how long it runs.
            alone = [run.config.get(name) for name in _ENDS] if trainings else number
        key = json.dumps([alone, configuration(run), machine(run)], sort_keys=True)
        pools.setdefault(key, []).append(run)
    return [Pool(tuple(members)) for members in pools.values()]


def apart(runs: Sequence[Run]) -> list[Pool]:
    """Return a pool for every run."""
    return [Pool((run,)) for run in runs]


def configuration(run: Run) -> dict[str, Any]:
    """Return the entries of a run's configuration that affect the work of a round."""
    options = {
        name: value is not None if name in _GIVEN else bool(value) if name in _ANY else value
        for name, value in run.config.items()
        if name not in _FREE
    }
    phases = ", ".join(run.phases)
    return options | {"protocol": run.protocol, "phases": phases, "devices": run.devices}


def machine(run: Run) -> dict[str, Any]:
    """Return the recorded facts about the machine and the software of a run.

    If its hosts, or the launches of a resumed run, differ in a fact, the list of their values is
    returned for it.
    """
    launches = [_machine(environment) for environment in run.launches.values()]
    facts = {}
    for name in dict.fromkeys(name for known in launches for name in known):
        values = [known.get(name) for known in launches]
        facts[name] = values if any(value != values[0] for value in values) else values[0]
    return facts


def _machine(environment: Mapping[str, Any]) -> dict[str, Any]:
    # The shaped links of hpcfl netlab are part of the machine.
    lab = sorted(name for name in environment if name.startswith("netlab_"))
    facts = {**environment, **(environment.get("host_facts") or {})}
    known = {name: facts[name] for name in (*MACHINE, *lab) if facts.get(name) is not None}
    variables = facts.get("environment_variables")
    if isinstance(variables, list):  # hosts differ in them
        known["environment_variables"] = variables
    settings = steering(environment.get("environment_variables") or {})
    # The names come from a file and are printed, so control characters are replaced.
    return known | {formats.words(name): value for name, value in settings.items()}


def differences(
    facts: Callable[[Run], Mapping[str, Any]], first: Run, second: Run
) -> dict[str, tuple[Any, Any]]:
    """Return the facts in which two runs differ, with both values; None for a missing one."""
    one, other = facts(first), facts(second)
    names = dict.fromkeys([*one, *other])
    pairs = {name: (one.get(name), other.get(name)) for name in names}
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b}


def summarised(
    pools: Sequence[Pool], target: float | None = None, **link: float | None
) -> list[tuple[Pool, Summary]]:
    """Return pools with their summaries, sorted by `Summary.like` so that comparable ones adjoin.

    Comparable pools keep their order. `link` is as for :meth:`~hpcfl.results.reader.Run.link`,
    `target` as for `summarise`.
    """
    found = [(pool, pool.summary(pool.runs[0].link(**link), target)) for pool in pools]
    return sorted(found, key=lambda one: one[1].like)
