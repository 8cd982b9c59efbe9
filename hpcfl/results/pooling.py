"""Several launches of one configuration, taken together as repeats."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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

# Options that leave the work of a round as it is, and what follows from options or from going on.
_FREE = {*names(BenchOptions, "repeat"), "promises", "scaled_by", "rounds_repeated"}
_GIVEN = {*names(BenchOptions, "repeat if given")}
_ANY = {*names(BenchOptions, "repeat if any")}
# What of the environment makes two runs measurements of the same thing, with the variables that
# steer MPI. Host names do not: which nodes a launch gets is part of what repeats
# are for. What a file does not hold, as those of earlier versions, is not what another one holds.
MACHINE = (
    *("transport", "ranks", "host_ranks", "mapping", "binding", "fault_tolerance", "networks"),
    *("mpi_library", "mpi_library_text", "mpi_device", "thread_level"),
    *("cpu_model", "cores_physical", "cores_logical", "cores_usable", "cpu_governor", "cpu_turbo"),
    *("hpcfl_version", "git_commit", "git_dirty", "git_changes"),
    *("kernel", "python_version", "numpy_version", "mpi4py_version", "openssl_version"),
    *("masks_added_by", "keys_agreed_by"),
)
# What ends a training run.
_ENDS = ("rounds", "max_seconds", "target_accuracy")


@dataclass(frozen=True, repr=False)
class Pool:
    """Launches of one configuration on one kind of machine, at least one."""

    runs: tuple[Run, ...]

    @property
    def run(self) -> Run:
        """All launches as one: the rounds of each after the other, the rest as in the first.

        Its status is the first that is not ``complete``.
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
        unfinished = [run.status for run in self.runs if run.status != "complete"]
        return dataclasses.replace(first, status=[*unfinished, "complete"][0], **rounds)

    def summary(self, link: LinkModel, target: float | None = None) -> Summary:
        """Summarise the measured rounds of all launches together; see `summary.summarise`."""
        return summarise(self.run, link, target, self.runs)


def group(runs: Sequence[Run], *, trainings: bool = False) -> list[Pool]:
    """Put together the runs of equal configuration and machine, in the order of their first runs.

    The configuration is the protocol, its phases, the number of devices and every option but the
    seed, the output and what decides how many rounds there are. Training runs stay apart, because
    their rounds are not repeats, unless those that differ in their seeds alone are asked for. A
    training run that was resumed is one with what it went on from.
    """
    pools: dict[str, list[Run]] = {}
    for number, run in enumerate(runs):
        alone: Any = None
        if run.training:
            # How far it goes is part of what it reaches.
            alone = [run.config.get(name) for name in _ENDS] if trainings else number
        key = json.dumps([alone, configuration(run), machine(run)], sort_keys=True)
        pools.setdefault(key, []).append(run)
    return [Pool(tuple(members)) for members in pools.values()]


def apart(runs: Sequence[Run]) -> list[Pool]:
    """Return a pool for every run."""
    return [Pool((run,)) for run in runs]


def configuration(run: Run) -> dict[str, Any]:
    """Return what a run measured, without what leaves the work of a round as it is."""
    options = {
        name: value is not None if name in _GIVEN else bool(value) if name in _ANY else value
        for name, value in run.config.items()
        if name not in _FREE
    }
    phases = ", ".join(run.phases)
    return options | {"protocol": run.protocol, "phases": phases, "devices": run.devices}


def machine(run: Run) -> dict[str, Any]:
    """Return what a run was measured with, as far as it was recorded.

    A fact in which its hosts differ is the list of their values, and one in which the launch that
    continued a run (``--resume``) differs that of all launches.
    """
    launches = [_machine(environment) for environment in run.launches.values()]
    facts = {}
    for name in dict.fromkeys(name for known in launches for name in known):
        values = [known.get(name) for known in launches]
        facts[name] = values if any(value != values[0] for value in values) else values[0]
    return facts


def _machine(environment: Mapping[str, Any]) -> dict[str, Any]:
    # The links of a lab (hpcfl netlab) are part of the machine.
    lab = sorted(name for name in environment if name.startswith("netlab_"))
    facts = {**environment, **(environment.get("host_facts") or {})}
    known = {name: facts[name] for name in (*MACHINE, *lab) if facts.get(name) is not None}
    variables = facts.get("environment_variables")
    if isinstance(variables, list):  # hosts differ in them
        known["environment_variables"] = variables
    settings = steering(environment.get("environment_variables") or {})
    # Names from a file are printed, too.
    return known | {formats.words(name): value for name, value in settings.items()}


def differences(
    facts: Callable[[Run], Mapping[str, Any]], first: Run, second: Run
) -> dict[str, tuple[Any, Any]]:
    """Return the names of facts that differ, with both values; None where there is none."""
    one, other = facts(first), facts(second)
    names = dict.fromkeys([*one, *other])
    pairs = {name: (one.get(name), other.get(name)) for name in names}
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b}


def summarised(
    pools: Sequence[Pool], target: float | None = None, **link: float | None
) -> list[tuple[Pool, Summary]]:
    """Return pools with their summaries, those that can be compared beside each other.

    In the order of their sizes, and of the pools where these are equal. `link` is as for
    :meth:`~hpcfl.results.reader.Run.link`, `target` as for `reached`.
    """
    found = [(pool, pool.summary(pool.runs[0].link(**link), target)) for pool in pools]
    return sorted(found, key=lambda one: one[1].like)
