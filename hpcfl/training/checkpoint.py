"""The model of a training between two rounds, in a file beside its results.

All other results of earlier rounds are in the results file, to which a resumed run appends. Rounds
of the file after the checkpoint are played again.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError
from hpcfl.results.schema import CHECKPOINT_SUFFIX
from hpcfl.system import files, outputs
from hpcfl.values import dataclass


@dataclass(frozen=True)
class Checkpoint:
    """The server's state between two rounds."""

    next_round: int
    weights: NDArray[np.float32]  # the model, shape (d,)
    run_id: str = ""  # of the results file to which the checkpoint belongs

    def save(self, path: Path) -> None:
        """Write the state; the file is complete even if the process dies meanwhile."""
        with outputs.writing(path, outputs.CHECKPOINT) as file:
            np.savez(file, next_round=self.next_round, weights=self.weights, run_id=self.run_id)


def path_for(results: Path) -> Path:
    """Return the path of a run's checkpoint, which is beside its results file."""
    return Path(os.path.realpath(results)).with_suffix(CHECKPOINT_SUFFIX)


def load(results: Path, run_id: str) -> Checkpoint:
    """Return a run's checkpoint, from beside its results; raise UsageError if there is none."""
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
