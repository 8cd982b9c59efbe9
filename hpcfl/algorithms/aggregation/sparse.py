"""SparseSecAgg (Ergun, Sami and Guler 2021): secure aggregation of sparse vectors.

Keys, shares and unmasking are SecAgg's. Every pair of devices has two more keys from the same
agreement: one selects coordinates (eq. 13), one masks them (eq. 11). A device sends the coordinates
that it selected with at least one peer. On the wire, ``masked_input`` is the locations
(:mod:`hpcfl.algorithms.locations`) followed by one group element for each.

The additive mask of a pair is drawn for the selected coordinates only: its k-th element belongs to
the k-th coordinate that the pair selected, and the k-th element of a private mask to the k-th
location sent. That has the distribution of the paper's masks of length d at those coordinates, the
only ones at which they are used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms import locations
from hpcfl.algorithms.aggregation import terms as of
from hpcfl.algorithms.aggregation.costs import (
    Crowd,
    Operations,
    Phases,
    add,
    at,
    beyond_cache,
    converted,
    mask_words,
    packed,
    sent,
    unpacked,
)
from hpcfl.algorithms.aggregation.curious import Seen
from hpcfl.algorithms.aggregation.promises import Certain, Promise
from hpcfl.algorithms.aggregation.secagg import Known, SecAgg, SecAggDevice, SecAggServer, pair_sign
from hpcfl.algorithms.aggregation.terms import Terms
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import Payload
from hpcfl.crypto.groups import Elements, Sums
from hpcfl.crypto.keys import SecretSource
from hpcfl.crypto.sampling import SAMPLERS, GapSampler
from hpcfl.errors import MessageError, UsageError
from hpcfl.options.shared import RoundOptions
from hpcfl.privacy.masking import BySelection, check_alpha, ring_degree

Positions = NDArray[np.int64]


class SparseDevice(SecAggDevice):
    """A device that sends the coordinates it selected with its peers."""

    _protocol: SparseSecAgg

    def send_masked_input(self, vector: NDArray[np.floating]) -> Payload:
        """Return the locations and the masked values of the selected coordinates (eq. 18)."""
        self._upload_once(vector)
        dim, group = self._parameters.dim, self._parameters.arithmetic
        peers, secrets = self._mask_secrets(self._members())
        positions, masks = self._protocol.pair_masks(self._round, self.id, peers, secrets)
        selected = np.zeros(dim, np.bool_)
        selected[positions] = True
        where = np.flatnonzero(selected)
        # Kept as it is sent, a few bits a location: there may be thousands of devices on a rank.
        self._coded = locations.encode(where, dim, self._parameters.locations)
        # Where a coordinate is among those: half as long as a sum over all coordinates would be.
        place = np.empty(dim, np.uint32)
        place[where] = np.arange(where.size, dtype=np.uint32)
        pairwise = group.zeros(where.size)
        np.add.at(pairwise, place[positions], masks)
        key = self._protocol.private_mask_key(self._round, self.id, self._seed)
        total = self._integers(vector, where).astype(group.sums, copy=False)
        total += pairwise
        group.add_mask(total, key, 1)
        values = group.reduce(total)
        return np.concatenate([self._coded, group.pack(values)])

    def sent(self) -> Positions:
        return locations.decode(self._coded, self._parameters.dim)[0]


class SparseServer(SecAggServer):
    """A server that adds up sparse vectors at their locations."""

    _protocol: SparseSecAgg

    def __init__(
        self, protocol: SecAgg, round_index: int, model: NDArray[np.float32], secrets: SecretSource
    ) -> None:
        super().__init__(protocol, round_index, model, secrets)
        self._sum = self._group.zeros(protocol.parameters.dim)
        self._coded: dict[int, Payload] = {}

    def _add_upload(self, sender: int, payload: Payload) -> None:
        """Add a device's values to the sum at its locations (eq. 20)."""
        positions, values, used = self._protocol.read_upload(payload, sender)
        self._sum[positions] += values
        # A copy, without the values: they would take as much memory as all vectors.
        self._coded[sender] = payload[:used].copy()

    def received_from(self, id: int) -> NDArray[np.int64]:
        """Return the coordinates that a survivor sent: ndarray of int64, increasing."""
        return locations.decode(self._coded[id], self._parameters.dim)[0]

    def _remove_masks(self) -> Elements:
        for id, seed in zip(self.survivors, self._seeds, strict=True):
            positions = self.received_from(id)
            key = self._protocol.private_mask_key(self.round_index, id, seed)
            self._sum[positions] -= self._group.elements([key], [positions.size])
        for id in self.dropped:
            # What the dropped device would have added is what its peers' masks lack to cancel.
            peers = self._links.neighbours(id, self._survived)
            secrets = self._secrets_with(id, peers)
            missing = self._protocol.pair_masks(self.round_index, id, peers, secrets)
            np.add.at(self._sum, *missing)
        found, self._sum = self._group.reduce(self._sum), self._sum[:0].copy()
        return found


class SparseSecAgg(SecAgg):
    """Secure aggregation of the coordinates that pairs of devices select together."""

    name = "sparse"
    sparse_upload = True
    uploads_in_parts = False
    device_class: ClassVar[type[SecAggDevice]] = SparseDevice
    server_class: ClassVar[type[SecAggServer]] = SparseServer
    # At a coordinate the sum is over the few devices that selected it.
    noise_adds_up = False

    @classmethod
    def uses(cls, options: RoundOptions) -> frozenset[str]:
        return (super().uses(options) | {"sampler", "locations"}) - {"threads"}

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters)
        self._sampler = SAMPLERS[parameters.sampler](parameters.pair_probability)

    def promises(self) -> list[Promise]:
        alone = (
            "the sum at a coordinate is of those devices alone that selected it: where that is one "
            "device, the server learns its value ('hpcfl privacy exposure sparse' says how often)"
        )
        return [*super().promises(), Certain(alone)]

    @property
    def inclusion(self) -> float:
        return self.parameters.selection_probability

    @property
    def sum_bytes(self) -> int:
        return self.summed_in.sums.itemsize * self.parameters.dim

    @property
    def working_bytes(self) -> int:
        # Which coordinates are sent, and which one of them each is. Five arrays of them: what pairs
        # selected with the masks there, what is sent with the masks and the values there.
        selected = math.ceil(self.inclusion * self.parameters.dim)
        return super().working_bytes + (1 + 4) * self.parameters.dim + 5 * 8 * selected

    @property
    def largest_upload(self) -> int:
        bitmap = -(-self.parameters.dim // 8)
        # Gaps may be asked for where they are longer: two bits a coordinate bound them.
        located = locations.HEADER.itemsize + 2 * bitmap + 1
        return located + super().largest_upload

    @classmethod
    def masking(cls, devices: int, alpha: float, degree: int | None) -> BySelection:
        check_alpha(alpha)
        return BySelection(devices, alpha, ring_degree(degree, devices))

    @classmethod
    def active_variant(cls) -> type[SecAgg] | None:
        from hpcfl.algorithms.aggregation.active import ActiveSparse

        return ActiveSparse if cls is SparseSecAgg else None

    def mask_terms(self, crowd: Crowd) -> tuple[Terms, Terms]:
        parameters, dim, survivors = self.parameters, self.parameters.dim, crowd.survivors
        if not isinstance(self._sampler, GapSampler):
            raise UsageError("there is no cost model of --sampler dense; leave it at gaps")
        group, selected = self.summed_in, parameters.selection_probability * dim
        of_pair = float(parameters.pair_probability) * dim
        pairs = crowd.dropped * crowd.neighbours_among(survivors)
        device = (
            of.far("coordinates", dim)
            | of.far("selected values", selected, dim)
            | of.far("masked values", crowd.degree * of_pair, dim)
        )
        server = (
            of.far("coordinates", dim)
            | of.far("received values", survivors * selected, dim)
            | of.far("unmasked values", pairs * of_pair, dim)
        )
        return device | of.packed(group, selected), server | of.packed(group, survivors * selected)

    def count_masks(self, phases: Phases, crowd: Crowd) -> None:
        parameters, dim, survivors = self.parameters, self.parameters.dim, crowd.survivors
        if not isinstance(self._sampler, GapSampler):
            raise UsageError("there is no cost model of --sampler dense; leave it at gaps")
        share = parameters.selection_probability
        selected = share * dim
        upload, unmask = phases["masked_input"], phases["unmask"].server
        located = locations.expected_bytes(share, dim, parameters.locations)
        upload.sends(
            locations.HEADER.itemsize + located + self.summed_in.bits / 8 * selected, survivors
        )
        pair = self._cost_of_pair(self._sampler.words_for(dim))
        group = self.summed_in
        private = {"keystream": 1, **mask_words(group, selected)}
        add(upload.device, pair, crowd.degree)
        # All coordinates are gone through for the selected ones, in memory that is new.
        scanned = at("summed", dim * (1 + beyond_cache(dim)), dim)
        # Of each selected one the value is taken and converted, and its location coded, which takes
        # about as long as 1.3 conversions.
        coded = converted(selected, 2 + 1.3) | at("scattered", selected, dim)
        for work in (sent(selected), {"derivation": 1}, private, scanned, coded):
            add(upload.device, work)
        add(upload.device, packed(group, selected))
        # Its location is decoded, as fast, and its element added; in unmask, its mask comes off.
        taken = converted(selected, 1.3) | at("scattered", selected, dim)
        add(upload.server, {"message": 2} | taken | unpacked(group, selected), survivors)
        add(unmask, taken, survivors)
        add(unmask, private, survivors)
        alive = crowd.neighbours_among(survivors)
        add(unmask, pair, crowd.dropped * alive)
        add(unmask, converted(dim))

    def _cost_of_pair(self, gaps: int) -> Operations:
        """Return what a pair's selection and masks take (`pair_masks`), drawn in so many gaps."""
        dim = self.parameters.dim
        selected = float(self.parameters.pair_probability) * dim
        return {
            "derivation": 3,
            "agreement": 1,
            # Of its gaps and of its masks, each one of many that are read in a row.
            "mask_key": 2,
            "gap": gaps,
            **mask_words(self.summed_in, selected),
            **at("scattered", selected, dim),
        }

    def strip(
        self, seen: Seen, id: int, upload: Payload, key: bytes, known: Known
    ) -> tuple[Positions, Elements]:
        where, values, _ = self.read_upload(upload, id)
        peers, secrets = [peer for peer, _ in known], [secret for _, secret in known]
        pairwise = self.summed_in.zeros(self.parameters.dim)
        np.add.at(pairwise, *self.pair_masks(seen.round_index, id, peers, secrets))
        private = self.summed_in.elements([key], [where.size])
        return where, self.summed_in.reduce(values.astype(np.int64) - private - pairwise[where])

    def alone(self, seen: Seen) -> tuple[float, float]:
        """Return mean and standard deviation of the number of values that are alone.

        Every pair of linked devices that shared keys selects a coordinate with the probability
        pi = 1 - x. Honest survivor i, linked with g_i other honest survivors and o_i devices else,
        is alone at a coordinate if none of the former pairs selects it, but one of the latter does:

            P_i = x**g_i (1 - x**o_i).

        Coordinates are independent. At one, two that are linked with each other have a pair in
        common, so that both are alone with x**(g_i + g_j - 1) (1 - x**o_i) (1 - x**o_j), and two
        that are not with P_i P_j.
        """
        row = {id: k for k, id in enumerate(seen.ids)}
        linked = np.zeros((len(row), len(row)), np.bool_)
        for id in row:
            linked[row[id], [row[other] for other in seen.honest_neighbours(id)]] = True
        inside = linked.sum(axis=1)
        outside = seen.neighbours() - inside
        x = 1 - float(self.parameters.pair_probability)
        some_outside = 1 - x**outside
        alone = x**inside * some_outside
        first, second = np.nonzero(np.triu(linked))
        both = x ** (inside[first] + inside[second] - 1)
        both *= some_outside[first] * some_outside[second]
        covariance = both - alone[first] * alone[second]
        variance = float((alone * (1 - alone)).sum() + 2 * covariance.sum())
        dim = self.parameters.dim
        return float(dim * alone.sum()), math.sqrt(dim * variance)

    def read_upload(self, payload: Payload, id: int) -> tuple[Positions, Elements, int]:
        """Return the locations of an upload, its values, and how many bytes the former took."""
        try:
            positions, used = locations.decode(payload, self.parameters.dim)
        except ValueError as error:
            raise MessageError("masked_input", f"device {id}", str(error)) from None
        return positions, self.read_values(payload[used:], positions.size, id), used

    def pair_masks(
        self, round_index: int, i: int, peers: Sequence[int], secrets: Sequence[bytes]
    ) -> tuple[Positions, Sums]:
        """Return where and what device `i` adds for its peers, with its signs.

        The coordinates that each pair selected, the pairs' lists end to end, and the signed element
        that device `i` adds at each.
        """
        selection = self.pair_keys(round_index, i, peers, secrets, "multiplicative mask")
        additive = self.pair_keys(round_index, i, peers, secrets, "additive mask")
        positions, counts = self._sampler.select(selection, self.parameters.dim)
        group = self.summed_in
        elements = group.elements(additive, counts.tolist())
        signs = np.array([pair_sign(i, peer) for peer in peers], np.int64)
        # Of a ring the lowest bits of a product are right, whatever became of the sign.
        return positions, np.repeat(signs.astype(group.sums), counts) * elements
