"""The state of a training run on disk, from which it goes on as if nothing had happened.

Devices keep nothing from round to round, and all random numbers follow from the seed and the number
of rounds played, so the state is the server's alone.

A private run counts what it has cost through its checkpoints. Whoever goes on from one plays again
what the launch before has played after it, with new noise; so a launch, before it plays, writes
into the file that it goes on from how many rounds it may play until there is a later checkpoint,
and what the launch before may have played is charged for (`Checkpoint.claimed`). When there is a
later one, the file is marked as superseded (`Checkpoints`). The copy of a file knows nothing of
what is done with the original.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError
from hpcfl.options.definition import names, options_of
from hpcfl.options.training import TrainOptions
from hpcfl.results.schema import CHECKPOINT_SUFFIX
from hpcfl.system import files, outputs
from hpcfl.system.outputs import without_home

VERSION = 5
# What may differ between the run that was interrupted and the one that goes on: some options, and
# sentences that follow from them.
FREE = {*names(TrainOptions, "resumable"), "promises"}


@dataclass(frozen=True)
class Checkpoint:
    """The server's state between two rounds."""

    next_round: int
    weights: NDArray[np.float32]  # the model, shape (d,)
    velocity: NDArray[np.float64]  # the server's momentum, shape (d,)
    bytes_up: int  # that all devices have sent so far
    config: Mapping[str, Any]  # the options of the run
    asked: Mapping[str, Any]  # what it was asked for; see `hpcfl.options.definition.asked_for`
    # Rounds that may have been played besides those before this one, and in vain, at most.
    repeated: int = 0
    # Rounds that may be played after this one before the next checkpoint, at most: whoever resumes
    # from here plays them again.
    at_risk: int = 0
    survivors: tuple[int, ...] = ()  # how many devices are in the sum of each round before
    successor: str = ""  # the later checkpoint of a run that went on from here, if there is one

    def claimed(self, rounds: int) -> Checkpoint:
        """Return the state for a launch that goes on from here, charged for the one before.

        The launch may play so many rounds before it writes a checkpoint of its own.
        """
        return replace(self, repeated=self.repeated + self.at_risk, at_risk=rounds)

    def save(self, path: Path) -> None:
        """Write the state so that the file is always whole, whenever the process dies."""
        with outputs.writing(path, outputs.CHECKPOINT) as file:
            np.savez(
                file,
                version=VERSION,
                next_round=self.next_round,
                weights=self.weights,
                velocity=self.velocity,
                bytes_up=self.bytes_up,
                repeated=self.repeated,
                at_risk=self.at_risk,
                survivors=np.array(self.survivors, np.int64),
                successor=np.frombuffer(self.successor.encode(), np.uint8),
                config=np.frombuffer(_bound(self.config).encode(), np.uint8),
                asked=np.frombuffer(json.dumps(dict(self.asked)).encode(), np.uint8),
            )


class Checkpoints:
    """Where the state of a run is kept, one checkpoint in the place of the other.

    A private run that went on from another file gives it, with the state that is in it.
    """

    def __init__(
        self, path: Path, source: Path | None = None, state: Checkpoint | None = None
    ) -> None:
        self.path = path
        self._source = None if source is None or state is None else (source, state)

    def save(self, state: Checkpoint) -> None:
        """Write the state, and mark the file that the run went on from."""
        state.save(self.path)
        if self._source is None:
            return
        (path, source), self._source = self._source, None
        try:
            if path.samefile(self.path):
                return
            # Scripts go on from the latest file of a folder, which it is not to become.
            times = path.stat().st_atime_ns, path.stat().st_mtime_ns
            replace(source, successor=without_home(str(self.path))).save(path)
            os.utime(path, ns=times)
        except FileNotFoundError:
            return  # nobody can go on from it


def path_for(results: Path) -> Path:
    """Return where the checkpoint of a run is kept: beside its results file."""
    return results.with_suffix(CHECKPOINT_SUFFIX)


def restored(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes the options of a run that goes on from a file, beside what is given.

    UsageError if something given is another value than the run's, and may not be.
    """
    from hpcfl.results.restoring import together

    if path.suffix.lower() in outputs.RESULTS.endings:
        raise UsageError(
            f"{path} is a file of results, and a training goes on from its checkpoint: "
            f"hpcfl train --resume {path_for(path)}"
        )
    with _reading(path):
        arrays = _arrays(path)
        stored, before = _object(arrays, "config"), _object(arrays, "asked")
    code = ("algorithm", "aggregate", "model")
    found = together(TrainOptions, path, before, stored, given, FREE, code)
    # Beside the rounds before, unless another place is given.
    return {"output": str(path.parent), **found}


def load(path: Path, config: Mapping[str, Any], free: Collection[str] = ()) -> Checkpoint:
    """Return the state in a file; a UsageError says that it is not of a run with these options.

    But for those that are `free`, beside `FREE`.
    """
    with _reading(path):
        arrays = _arrays(path)
        stored = _object(arrays, "config")
        checkpoint = Checkpoint(
            next_round=int(arrays["next_round"]),
            weights=arrays["weights"],
            velocity=arrays["velocity"],
            bytes_up=int(arrays["bytes_up"]),
            config=config,
            asked=_object(arrays, "asked"),
            repeated=int(arrays["repeated"]),
            at_risk=int(arrays["at_risk"]),
            survivors=tuple(arrays["survivors"].tolist()),
        )
        successor = arrays["successor"].tobytes().decode()
    if successor:
        raise UsageError(
            f"{path} is superseded: a private run that went on from it has written "
            f"{successor}, which knows what was played since; resume from that"
        )
    wanted = json.loads(_bound(config))
    unsaid = stored.keys() & options_of(TrainOptions) - wanted.keys()
    bound = [name for name in (*wanted, *unsaid) if name not in free]
    other = [name for name in bound if stored.get(name) != wanted.get(name)]
    if other:
        name = other[0]
        raise UsageError(
            f"{path} is of a run with {name} {stored.get(name)}, not {wanted.get(name)}: "
            "leave it out, or give the same"
        )
    return checkpoint


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Say in a sentence what is wrong with a file that is read."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read as a checkpoint: {error.strerror or error}"
        ) from None
    except KeyError as error:
        raise UsageError(f"{path} cannot be read as a checkpoint: it has no {error}") from None
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} cannot be read as a checkpoint: {error}") from None


def _arrays(path: Path) -> Mapping[str, NDArray[Any]]:
    arrays = files.load_npz(path)
    if arrays["version"] != VERSION:
        raise UsageError(f"{path} was written by another version of hpcfl")
    return arrays


def _object(arrays: Mapping[str, NDArray[Any]], name: str) -> dict[str, Any]:
    return dict(json.loads(arrays[name].tobytes()))


def _bound(config: Mapping[str, Any]) -> str:
    """Return the options that a resumed run must share, as JSON."""
    return json.dumps({name: value for name, value in config.items() if name not in FREE})
