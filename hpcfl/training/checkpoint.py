"""The model of a training between two rounds, in a file beside its results.

All else that the rounds before have come to is in the results file, to which a run that goes on
appends. Rounds that the file has and that are behind the checkpoint are played again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError
from hpcfl.results.schema import CHECKPOINT_SUFFIX
from hpcfl.system import files, outputs


@dataclass(frozen=True)
class Checkpoint:
    """The server's state between two rounds."""

    next_round: int
    weights: NDArray[np.float32]  # the model, shape (d,)
    run_id: str = ""  # of the results file that it belongs to

    def save(self, path: Path) -> None:
        """Write the state so that the file is always whole, whenever the process dies."""
        with outputs.writing(path, outputs.CHECKPOINT) as file:
            np.savez(file, next_round=self.next_round, weights=self.weights, run_id=self.run_id)


def path_for(results: Path) -> Path:
    """Return where the checkpoint of a run is kept: beside its results file."""
    return Path(os.path.realpath(results)).with_suffix(CHECKPOINT_SUFFIX)


def load(results: Path, run_id: str) -> Checkpoint:
    """Return the state of a run that is kept beside its results; UsageError if there is none."""
    path = path_for(results)
    try:
        arrays = files.load_npz(path)
        if str(arrays["run_id"]) != run_id:
            raise ValueError("it is of another run")
        return Checkpoint(int(arrays["next_round"]), arrays["weights"], run_id)
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise UsageError(
            f"{results} goes on from a checkpoint, and {path} cannot be read as one ({error}): "
            "begin anew, with --checkpoint-every"
        ) from None
