"""Common coordinates: SecAgg of the same alpha d coordinates of every device, others each round.

What SparseSecAgg saves in bytes without its exposure: at a coordinate either everybody sends, and
the server learns the sum of all survivors, or nobody does. The mean of a round is without bias, as
the coordinates are drawn, but what it lacks no device makes up for: its error does not shrink with
the number of devices, where that of `cohort`, which sends as many values, does.

Coordinates are drawn by systematic sampling (W. G. Madow and L. H. Madow, "On the theory of
systematic sampling", 1944): from a random start on, in steps of the golden section of d, so that
they are spread evenly over the vector (see the module `cohort`). The start follows from the run's
seed and the round, and all know it. On the wire, ``masked_input`` is one group element for each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import SPARSIFICATION
from hpcfl.algorithms.aggregation.cohort import Segments
from hpcfl.algorithms.aggregation.costs import Crowd, Phases, add, at, converted
from hpcfl.algorithms.aggregation.secagg import SecAgg
from hpcfl.privacy import simulate
from hpcfl.privacy.masking import Closed, InCohorts, Masking, check_alpha, ring_degree
from hpcfl.privacy.population import Population


class CommonCoordinates(SecAgg):
    """Secure aggregation of coordinates that are the same for all devices."""

    name = "common"
    sparse_upload = True
    not_active = "it has not been analysed against such a server"

    @property
    def upload_dim(self) -> int:
        return max(1, round(self.parameters.alpha * self.parameters.dim))

    @property
    def inclusion(self) -> float:
        return self.upload_dim / self.parameters.dim

    def sent_in(self, round_index: int) -> NDArray[np.int64]:
        dim = self.parameters.dim
        spawn_key = (SPARSIFICATION, round_index)
        seeds = np.random.SeedSequence(self.parameters.seed, spawn_key=spawn_key)
        start = int(np.random.default_rng(seeds).integers(dim))
        return Segments(dim, 1, 1).dealt(start, self.upload_dim)

    def count_masks(self, phases: Phases, crowd: Crowd) -> None:
        super().count_masks(phases, crowd)
        dim, sent = self.parameters.dim, self.upload_dim
        add(phases["masked_input"].device, converted(sent) | at("scattered", sent, dim))
        add(phases["result"].server, converted(sent) | at("scattered", sent / 2, sent))

    @classmethod
    def masking(cls, devices: int, alpha: float, degree: int | None) -> Masking:
        check_alpha(alpha)
        return AllOrNobody(devices, alpha, ring_degree(degree, devices))


@dataclass(frozen=True)
class AllOrNobody(Masking):
    """With the probability alpha everybody sends a coordinate, masked together; else nobody."""

    devices: int  # number N of devices
    alpha: float
    degree: int | None  # neighbours of a device; None for all

    @property
    def together(self) -> InCohorts:
        """Where everybody sends."""
        return InCohorts(self.devices, self.degree)

    def closed(self, population: Population) -> Closed:
        found = self.together.closed(population)
        return Closed(
            contributors=self.alpha * found.contributors,
            sent=self.alpha,
            alone_of_dim=self.alpha * found.alone_of_dim,
            sole=None if found.sole is None else self.alpha * found.sole,
            split=None if found.split is None else self.alpha * found.split,
            sizes=found.sizes,
        )

    def draw(self, honest: simulate.Flags, generator: np.random.Generator) -> simulate.Drawn:
        drawn = self.together.draw(honest, generator)
        drawn.sends[generator.random(len(honest)) >= self.alpha] = False
        return drawn
