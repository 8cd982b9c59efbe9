"""FedAvg in the clear: devices send weighted vectors, the server adds them.

The baseline for every protocol that hides vectors (McMahan et al. 2017).

On the wire, ``upload`` is d float32 or, if shorter, the locations of the nonzero coordinates
(:mod:`hpcfl.algorithms.locations`), followed by one float32 for each: that is what a sparsified
update costs without masks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms import locations
from hpcfl.algorithms.aggregation.base import (
    MODEL,
    AggregationProtocol,
    ModelReceiver,
    RoundServer,
    check_finite,
)
from hpcfl.algorithms.aggregation.messages import parse_vector
from hpcfl.algorithms.quantisation import all_finite
from hpcfl.comm.phases import GATHER, LOCAL, Method, Payload, Step, room
from hpcfl.crypto.keys import SecretSource, system_secrets
from hpcfl.errors import MessageError
from hpcfl.options.protocols import MaskingOptions
from hpcfl.privacy.masking import InTheClear


class FedAvgDevice(ModelReceiver):
    """A device that sends its weighted vector without masks."""

    def __init__(self, protocol: FedAvg, id: int) -> None:
        super().__init__(protocol.model_dim)
        self.id = id
        self._coding = protocol.parameters.locations
        self._scale = protocol.parameters.weight(id) / protocol.divisor

    def send_upload(self, vector: NDArray[np.floating]) -> Payload:
        """Return the weighted vector, little-endian float32; without zeros if that is shorter."""
        weighted = self._weighted(vector)
        check_finite(self.id, weighted)
        whole = weighted.view(np.uint8)
        # Counting zeros after a comparison takes a sixth of the time of counting nonzero values.
        zeros = np.count_nonzero(weighted == 0)
        # Every location of another coordinate takes a bit or more.
        if 4 * zeros <= locations.HEADER.itemsize + (weighted.size - zeros) // 8:
            return whole
        positions = np.flatnonzero(weighted)
        coded = locations.encode(positions, weighted.size, self._coding)
        sparse = np.concatenate([coded, weighted[positions].view(np.uint8)])
        return sparse if sparse.size < whole.size else whole

    def contribution(self, vector: NDArray[np.floating]) -> tuple[slice, NDArray[np.float64]]:
        return slice(None), self._weighted(vector).astype(np.float64)

    def _weighted(self, vector: NDArray[np.floating]) -> NDArray[np.float32]:
        weighted = room(4 * vector.size).view("<f4")
        return np.multiply(vector, self._scale, out=weighted, casting="same_kind")


class FedAvgServer(RoundServer):
    """A server that sees every vector."""

    def __init__(self, protocol: FedAvg, round_index: int, model: NDArray[np.float32]) -> None:
        super().__init__(protocol, round_index, model)
        self.total = np.zeros(self._dim)

    def receive_upload(self, sender: int, payload: Payload) -> None:
        """Add a device's vector to the sum; refuse values that are not finite."""
        name = self._first("upload", sender, self.survivors)
        where: NDArray[np.int64] | slice = slice(None)
        count, used = self._dim, 0
        # A payload has locations only if that makes it shorter than the whole vector.
        if payload.size < 4 * self._dim:
            try:
                where, used = locations.decode(payload, self._dim)
            except ValueError as error:
                raise MessageError("upload", name, str(error)) from None
            count = where.size
        values = parse_vector(payload[used:], "<f4", count, "upload", name)
        # An infinity or NaN would make the sum, and every later model, worthless.
        if not all_finite(values):
            raise MessageError("upload", name, "a value is not finite")
        self.total[where] += values
        self.survivors.append(sender)

    def finish_upload(self) -> None:
        self._settle_survivors("sent their vectors")


class FedAvg(AggregationProtocol):
    """Plain vectors: float32 on the wire, float64 in the sum."""

    name = "fedavg"
    by_coordinate = True
    steps = (
        MODEL,
        Step(
            "upload",
            GATHER,
            FedAvgDevice.send_upload,
            FedAvgServer.receive_upload,
            upload=True,
            finish=FedAvgServer.finish_upload,
        ),
        Step("result", LOCAL),
    )

    @classmethod
    def masking(cls, devices: int, options: MaskingOptions) -> InTheClear:
        return InTheClear()

    def device(self, id: int, round_index: int, secrets: SecretSource) -> FedAvgDevice:
        return FedAvgDevice(self, id)

    def server(
        self, round_index: int, model: NDArray[np.float32], secrets: SecretSource = system_secrets
    ) -> FedAvgServer:
        return FedAvgServer(self, round_index, model)

    def sizes(self) -> dict[Method, float]:
        return {FedAvgDevice.send_upload: 4 * self.parameters.dim}

    def decode(self, total: NDArray[Any]) -> NDArray[np.float64]:
        return total
