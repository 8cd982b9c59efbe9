"""Sparsification in the clear: every device sends k = round(alpha d) coordinates of its update.

``rand-k`` draws them at random, ``top-k`` takes those of the largest magnitude. Devices choose
different coordinates, so these updates cannot be masked; SparseSecAgg solves this problem (Ergun,
Sami and Guler 2021, Figure 2). `pairwise_overlap` measures how far their choices agree.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import SPARSIFICATION
from hpcfl.algorithms.federated.base import FederatedAlgorithm, Federation, Learn, Vector
from hpcfl.algorithms.noise import NoiseSecrets
from hpcfl.errors import UsageError
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.options.protocols import SparseOptions
from hpcfl.options.training import TrainOptions

Positions = NDArray[np.int64]


class Sparsified(FederatedAlgorithm):
    """Federated averaging of sparsified updates, optionally with error feedback.

    A device sends the fraction alpha, in (0, 1], of the coordinates. With error feedback, a device
    adds the unsent part to its next update (Seide et al. 2014; Karimireddy et al. 2019), and no
    value is scaled. `selected` holds the coordinates that each device of this rank chose in its
    latest round, increasing.
    """

    # Whether d / k times the sent values equal the update on average; otherwise none are scaled.
    unbiased: ClassVar[bool] = False

    leaves_out = True
    options = (*FederatedAlgorithm.options, SparseOptions)

    def __init__(self, federation: Federation, alpha: float, error_feedback: bool = False) -> None:
        super().__init__(federation)
        self._alpha = alpha
        self._unsent: dict[int, Vector] | None = {} if error_feedback else None
        self.selected: dict[int, Positions] = {}

    @classmethod
    def make(cls, federation: Federation, options: TrainOptions, secrets: NoiseSecrets) -> Self:
        return cls(federation, options.alpha, options.error_feedback)

    @classmethod
    def check(cls, federation: Federation, privacy: PrivacyOptions) -> None:
        protocol = federation.protocol
        if protocol.summed_in is not None:
            raise UsageError(
                f"{cls.name} cannot be aggregated by {protocol.name}: each device chooses its own "
                "coordinates, so the masks of a pair would not cancel; use --aggregate fedavg, or "
                "train fedavg with --aggregate sparse, where pairs choose together"
            )

    def contribution(self, device: int, round_index: int, learn: Learn) -> Vector:
        return self.sparsify(learn(), device, round_index)

    def take_choices(self, dim: int) -> tuple[list[Positions], int]:
        chosen = list(self.selected.values())
        self.selected.clear()
        return chosen, self.count(dim)

    def count(self, dim: int) -> int:
        """Return the number k of coordinates to send of `dim`, at least one."""
        return max(1, round(self._alpha * dim))

    def sparsify(self, update: Vector, device: int, round_index: int) -> Vector:
        """Return a device's update, shape (d,), with all but k coordinates set to zero."""
        if self._unsent is not None and device in self._unsent:
            update = update + self._unsent[device]
        positions = np.sort(self._choose(update, device, round_index))
        self.selected[device] = positions
        sent = np.zeros_like(update)
        sent[positions] = update[positions]
        if self._unsent is not None:
            self._unsent[device] = update - sent
        elif self.unbiased:
            sent *= np.float32(update.size / positions.size)
        return sent

    @abstractmethod
    def _choose(self, update: Vector, device: int, round_index: int) -> Positions:
        """Return the k coordinates to send, in any order."""


class RandK(Sparsified):
    """k coordinates drawn at random, independently by every device in every round."""

    name = "rand-k"
    unbiased = True

    def _choose(self, update: Vector, device: int, round_index: int) -> Positions:
        spawn_key = (SPARSIFICATION, round_index, device)
        seeds = np.random.SeedSequence(self.federation.seed, spawn_key=spawn_key)
        count = self.count(update.size)
        generator = np.random.default_rng(seeds)
        return generator.choice(update.size, count, replace=False, shuffle=False)


class TopK(Sparsified):
    """The k coordinates of the largest magnitude."""

    name = "top-k"

    def _choose(self, update: Vector, device: int, round_index: int) -> Positions:
        first = update.size - self.count(update.size)
        return np.argpartition(np.abs(update), first)[first:]


def pairwise_overlap(counts: NDArray[np.int64], selections: int, size: int) -> float:
    """Return the fraction of its coordinates that a pair of devices shares, mean over all pairs.

    A coordinate that c devices chose is common to c (c - 1) / 2 pairs. `counts`, shape (d,), has
    the number of devices that chose each coordinate, `selections` is the number of devices, and
    `size` the number of coordinates that each chose. NaN with fewer than two devices.
    """
    if selections < 2:
        return float("nan")
    common = int((counts * (counts - 1)).sum()) // 2
    pairs = selections * (selections - 1) // 2
    return common / (pairs * size)
