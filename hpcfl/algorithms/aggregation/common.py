"""Common coordinates: SecAgg on alpha d coordinates, the same for all devices, new in each round.

This saves as many bytes as SparseSecAgg without its exposure: either all devices send a coordinate,
and the server learns the sum over all survivors, or no device sends it. The mean of a round is
unbiased because the coordinates are drawn at random. Its error does not shrink with more devices,
because no device sends the missing coordinates; with `cohort` and as many values, it shrinks.

Systematic sampling (W. G. Madow and L. H. Madow, "On the theory of systematic sampling", 1944)
draws the coordinates: from a random start, in steps of the golden section of d, which spreads them
evenly over the vector (see the module `cohort`). All parties know the start: it follows from the
run's seed and the round. On the wire, ``masked_input`` is one group element for each coordinate.
"""

from __future__ import annotations

import numpy as np

from hpcfl.algorithms.aggregation.base import ALL, SPARSIFICATION
from hpcfl.algorithms.aggregation.cohort import Segments
from hpcfl.algorithms.aggregation.secagg import SecAgg
from hpcfl.comm.phases import Where
from hpcfl.options.protocols import MaskingOptions, SparseOptions
from hpcfl.privacy.masking import Drawn, Flags, InCohorts, Masking, ring_degree
from hpcfl.privacy.population import Population
from hpcfl.values import dataclass


class CommonCoordinates(SecAgg):
    """Secure aggregation of coordinates that are the same for all devices."""

    name = "common"
    options = (*SecAgg.options, SparseOptions)
    sparse_upload = True
    same_coordinates = True

    @property
    def upload_dim(self) -> int:
        return max(1, round(self.parameters.alpha * self.parameters.dim))

    @property
    def inclusion(self) -> float:
        return self.upload_dim / self.parameters.dim

    def sent_in(self, round_index: int) -> Where:
        plan = self.parameters
        if self.upload_dim == plan.dim:
            return ALL  # in order, without the memory for all positions
        seeds = np.random.SeedSequence(plan.seed, spawn_key=(SPARSIFICATION, round_index))
        start = int(np.random.default_rng(seeds).integers(plan.dim))
        return Segments(plan.dim, 1, 1).dealt(start, self.upload_dim)

    @classmethod
    def masking(cls, devices: int, options: MaskingOptions) -> Masking:
        return AllOrNobody(devices, options.alpha, ring_degree(options.degree, devices))


@dataclass(frozen=True)
class AllOrNobody(Masking):
    """With probability alpha all devices send a coordinate, masked together; otherwise none do."""

    devices: int  # number N of devices
    alpha: float
    degree: int | None  # neighbours of a device; None for all

    @property
    def together(self) -> InCohorts:
        """The masking of a coordinate that all devices send."""
        return InCohorts(self.devices, self.degree)

    def sent(self, population: Population) -> float:
        return self.alpha

    def alone_of_sent(self, population: Population) -> float:
        return self.together.alone_of_sent(population)

    def sole(self, population: Population) -> float:
        return self.alpha * self.together.sole(population)

    def draw(self, honest: Flags, generator: np.random.Generator) -> Drawn:
        sends, left, right = self.together.draw(honest, generator)
        sends[generator.random(len(honest)) >= self.alpha] = False
        return sends, left, right
