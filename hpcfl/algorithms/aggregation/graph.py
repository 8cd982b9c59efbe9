"""SecAgg+ (Bell et al., CCS 2020): secure aggregation on a masking graph of few neighbours.

It differs from SecAgg in one thing: a device shares keys and masks only with the k nearest devices
on a ring. Degree and threshold follow from the fractions of devices that may collude and drop out
(:mod:`hpcfl.privacy.ring`), so a device does O(log N) work instead of O(N).
"""

from __future__ import annotations

from hpcfl.algorithms.aggregation.secagg import SecAgg
from hpcfl.algorithms.aggregation.topology import Topology, ring_of
from hpcfl.errors import UsageError
from hpcfl.options.protocols import MaskingOptions
from hpcfl.privacy.masking import Masking


class GraphSecAgg(SecAgg):
    """Secure aggregation of whole vectors on a ring."""

    name = "secagg-graph"

    @classmethod
    def masking(cls, devices: int, options: MaskingOptions) -> Masking:
        if options.degree is None:
            raise UsageError(
                "secagg-graph needs the number of neighbours of a device: give a degree"
            )
        return super().masking(devices, options)

    def _topology(self) -> Topology:
        return ring_of(self.parameters)
