"""SparseSecAgg (Ergun, Sami and Guler 2021): secure aggregation of sparse vectors.

Keys, shares and unmasking are those of SecAgg. Every pair of devices derives two more keys from the
same agreement: one selects coordinates (eq. 13), the other masks them (eq. 11). A device sends the
coordinates that it selected with at least one peer. On the wire, ``masked_input`` is the locations
(:mod:`hpcfl.algorithms.locations`) followed by one group element for each.

The additive mask of a pair is drawn for the selected coordinates only: its k-th element belongs to
the k-th coordinate that the pair selected, and the k-th element of a private mask to the k-th
location sent. The paper's masks of length d have the same distribution at these coordinates, and
are used nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms import locations
from hpcfl.algorithms.aggregation.promises import Certain, Promise
from hpcfl.algorithms.aggregation.secagg import (
    SecAgg,
    SecAggDevice,
    SecAggServer,
    SecAggState,
    ServerState,
    pair_sign,
)
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import Method, Payload
from hpcfl.crypto.groups import Elements, Sums
from hpcfl.crypto.sampling import GapSampler
from hpcfl.errors import MessageError
from hpcfl.options.protocols import (
    CommonOptions,
    GraphOptions,
    MaskingOptions,
    QuantisedOptions,
    SparseOptions,
    ThreatOptions,
    TransportOptions,
)
from hpcfl.privacy.masking import BySelection, ring_degree
from hpcfl.values import dataclass, field, replace

Positions = NDArray[np.int64]


@dataclass
class SparseDeviceState(SecAggState):
    """What a device keeps in addition: its coded locations, a few bits each."""

    coded: Payload = field(default_factory=lambda: np.zeros(0, np.uint8))


@dataclass
class SparseServerState(ServerState):
    """What the server keeps in addition: the sum, and each device's coded locations."""

    total: Sums = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    coded: dict[int, Payload] = field(default_factory=dict)


class SparseDevice(SecAggDevice):
    """A device that sends the coordinates that it selected with its peers."""

    _protocol: SparseSecAgg
    state: SparseDeviceState
    state_class = SparseDeviceState

    def send_masked_input(self, vector: NDArray[np.floating]) -> Payload:
        """Return the locations and the masked values of the selected coordinates (eq. 18)."""
        self._once("upload")
        dim, group = self._parameters.dim, self._parameters.arithmetic
        peers, secrets = self._mask_secrets(self._members())
        positions, masks = self._protocol.pair_masks(self._round, self.id, peers, secrets)
        selected = np.zeros(dim, np.bool_)
        selected[positions] = True
        where = np.flatnonzero(selected)
        coded = locations.encode(where, dim, self._parameters.locations)
        self.state.coded = coded
        # The index of each coordinate in the upload: half the memory of a sum over all coordinates.
        place = np.empty(dim, np.uint32)
        place[where] = np.arange(where.size, dtype=np.uint32)
        pairwise = group.zeros(where.size)
        np.add.at(pairwise, place[positions], masks)
        key = self._protocol.private_mask_key(self._round, self.id, self.state.seed)
        elements = self._protocol.elements(vector, where, self.id, self._round)
        total = elements.astype(group.sums, copy=False)
        total += pairwise
        group.add_each([total], [key], [1])
        return np.concatenate([coded, group.pack(group.reduce(total))])

    def sent(self) -> Positions:
        return locations.decode(self.state.coded, self._parameters.dim)[0]


class SparseServer(SecAggServer):
    """A server that adds up sparse vectors at their locations."""

    _protocol: SparseSecAgg
    state: SparseServerState
    state_class = SparseServerState

    def _add_upload(self, sender: int, payload: Payload) -> None:
        """Add a device's values to the sum at its locations (eq. 20)."""
        positions, values, used = self._protocol.read_upload(payload, sender)
        if not self.state.total.size:
            self.state.total = self._protocol.summed_in.zeros(self._dim)
        self.state.total[positions] += values
        # A copy without the values, which would take as much memory as all vectors.
        self.state.coded[sender] = payload[:used].copy()

    def received_from(self, id: int) -> Positions:
        return locations.decode(self.state.coded[id], self._dim)[0]

    def _remove_masks(self) -> Elements:
        total, self.state.total = self.state.total, self.state.total[:0].copy()
        for id, key in zip(self.survivors, self.private_mask_keys(), strict=True):
            positions = self.received_from(id)
            total[positions] -= self._protocol.summed_in.elements([key], [positions.size])
        for id in self.dropped:
            # The masks that the dropped device would have added cancel those of its peers.
            missing = self._protocol.pair_masks(self.round_index, id, *self._secrets_with(id))
            np.add.at(total, *missing)
        return self._protocol.summed_in.reduce(total)


class SparseSecAgg(SecAgg):
    """Secure aggregation of the coordinates that pairs of devices select together."""

    name = "sparse"
    options = (
        *(CommonOptions, QuantisedOptions, GraphOptions, ThreatOptions),
        *(TransportOptions, SparseOptions),
    )
    sparse_upload = True
    # At each coordinate, only the few devices that selected it are in the sum.
    noise_adds_up = False
    device_class: ClassVar[Callable[..., Any]] = SparseDevice
    server_class: ClassVar[Callable[..., Any]] = SparseServer
    # A range of an upload does not correspond to a fixed range of coordinates.
    steps = tuple(replace(step, receive_part=None, by_all_ranks=False) for step in SecAgg.steps)

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters)
        self.sampler = GapSampler(self.pair_probability)

    def promises(self) -> list[Promise]:
        alone = (
            "the sum at a coordinate covers only the devices that selected it. Where only one did, "
            "the server learns its value ('hpcfl privacy exposure sparse' says how often)"
        )
        return [*super().promises(), Certain(alone)]

    @property
    def _peers(self) -> int:
        others = self.parameters.devices - 1
        return min(self.parameters.degree or others, others)

    @property
    def pair_probability(self) -> Fraction:
        """Probability pi = alpha / (N - 1) that a pair selects a coordinate (eq. 13).

        On a ring of degree k it is alpha / k, so that a device sends as many coordinates.
        """
        return Fraction(self.parameters.alpha) / self._peers

    @property
    def inclusion(self) -> float:
        """Probability p that a device sends a coordinate (eq. 14)."""
        rate = float(self.pair_probability)
        return -math.expm1(self._peers * math.log1p(-rate)) if rate < 1 else 1.0

    @classmethod
    def masking(cls, devices: int, options: MaskingOptions) -> BySelection:
        return BySelection(devices, options.alpha, ring_degree(options.degree, devices))

    @property
    def largest_message(self) -> int:
        # Gaps may be chosen even if longer than a bitmap; they need at most two bits a coordinate.
        located = locations.HEADER.itemsize + 2 * -(-self.parameters.dim // 8) + 1
        return located + super().largest_message

    def sizes(self) -> dict[Method, float]:
        share, plan = self.inclusion, self.parameters
        located = locations.expected_bytes(share, plan.dim, plan.locations)
        values = self.summed_in.bits / 8 * share * plan.dim
        upload = {SecAggDevice.send_masked_input: locations.HEADER.itemsize + located + values}
        return super().sizes() | upload

    def read_upload(self, payload: Payload, id: int) -> tuple[Positions, Elements, int]:
        """Return an upload's locations, its values, and the size of the locations in bytes."""
        try:
            positions, used = locations.decode(payload, self.parameters.dim)
        except ValueError as error:
            raise MessageError("masked_input", f"device {id}", str(error)) from None
        return positions, self.read_values(payload[used:], positions.size, id), used

    def pair_masks(
        self, round_index: int, i: int, peers: Sequence[int], secrets: Sequence[bytes]
    ) -> tuple[Positions, Sums]:
        """Return the coordinates and values that device `i` adds for its peers.

        The coordinates are the concatenated selections of the pairs; the values are the signed mask
        elements that device `i` adds there.
        """
        selection = self.pair_keys(round_index, i, peers, secrets, "multiplicative mask")
        additive = self.pair_keys(round_index, i, peers, secrets, "additive mask")
        positions, counts = self.sampler.select(selection, self.parameters.dim)
        group = self.summed_in
        elements = group.elements(additive, counts.tolist())
        signs = np.array([pair_sign(i, peer) for peer in peers], np.int64)
        # In a ring the lowest bits of a product are correct even if the sign wrapped around.
        return positions, np.repeat(signs.astype(group.sums), counts) * elements
