"""Common coordinates: SecAgg of the same alpha d coordinates of every device, others each round.

What SparseSecAgg saves in bytes without its exposure: at a coordinate either everybody sends, and
the server learns the sum of all survivors, or nobody does. The mean of a round is without bias, as
the coordinates are drawn, but what it lacks no device makes up for: its error does not shrink with
the number of devices, where that of `cohort`, which sends as many values, does.

How coordinates are drawn is said in the module `coordinates`. On the wire, ``masked_input`` is one
group element for each.

As all know which coordinates a round may change, a device that has an earlier model needs only
those of the rounds since (`ModelUpdates`, ``--model-update changed``): ``model`` is then a float32
for each of them, in increasing order. It is the whole model for a device that has none, where the
coordinates are all of them, and where the server finds that the model has changed elsewhere. The
size tells which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation import coordinates
from hpcfl.algorithms.aggregation.base import ModelSender
from hpcfl.algorithms.aggregation.messages import from_server
from hpcfl.algorithms.aggregation.modelupdates import ModelUpdates
from hpcfl.algorithms.aggregation.secagg import SecAgg, SecAggDevice, SecAggServer
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import BROADCAST, SCATTER, Method, Payload
from hpcfl.errors import UsageError
from hpcfl.privacy.masking import (
    Drawn,
    Flags,
    InCohorts,
    Masking,
    ring_degree,
)
from hpcfl.privacy.population import Population


class CommonDevice(SecAggDevice):
    """A device that may be sent only what has changed of the model."""

    _protocol: CommonCoordinates

    def receive_model(self, payload: Payload) -> None:
        """Keep the model: it was sent all of it, or the coordinates that it lacked."""
        models = self._protocol.models
        if models is None:
            super().receive_model(payload)
            return
        try:
            self.model = models.receive(self.id, payload)
        except ValueError:
            reason = f"{payload.size} bytes are neither the model nor what this device lacks"
            raise from_server("model", reason) from None


class CommonServer(SecAggServer):
    """A server that may send only what has changed of the model."""

    _protocol: CommonCoordinates

    def send_model(self, receiver: int | None = None) -> Payload:
        """Return the model: all of it, or the coordinates that a device lacks."""
        models = self._protocol.models
        if models is None:
            return super().send_model()
        # Without a receiver, all lack the same.
        return models.to_send(receiver or 0, self.round_index, self.model).view(np.uint8)


class CommonCoordinates(SecAgg):
    """Secure aggregation of coordinates that are the same for all devices."""

    name = "common"
    sparse_upload = True
    same_coordinates = True
    device_class = CommonDevice
    server_class = CommonServer
    not_active = "it has not been analysed against such a server"

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters)
        if parameters.rotate and parameters.model_update == "changed":
            raise UsageError(
                "with --rotate all of the model changes in every round: leave it out, or "
                "--model-update changed"
            )
        self.models: ModelUpdates | None = None

    def follow(self, models: ModelUpdates, index: int, ids: Sequence[int]) -> None:
        """Let the devices of a round be sent only what has changed of the model.

        These are their ids in `models`, in order. Every rank calls this before the round.
        """
        self.models = models
        pattern = BROADCAST if models.begin(index, ids) else SCATTER
        self.steps = tuple(
            replace(step, pattern=pattern) if step.phase == "model" else step for step in self.steps
        )

    @property
    def upload_dim(self) -> int:
        return coordinates.count(self.parameters)

    @property
    def inclusion(self) -> float:
        return self.upload_dim / self.parameters.dim

    def sent_in(self, round_index: int) -> NDArray[np.int64]:
        return coordinates.of_round(self.parameters, round_index)

    def sizes(self) -> dict[Method, float]:
        # Not of the first round, in which the whole model is sent.
        changed = {ModelSender.send_model: 4 * self.upload_dim}
        return super().sizes() | (changed if self.parameters.model_update == "changed" else {})

    @classmethod
    def masking(cls, devices: int, alpha: float, degree: int | None) -> Masking:
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

    def sent(self, population: Population) -> float:
        return self.alpha

    def alone_of_sent(self, population: Population) -> float:
        return self.together.alone_of_sent(population)

    def sole(self, population: Population) -> float:
        return self.alpha * self.together.sole(population)

    def draw(self, honest: Flags, generator: np.random.Generator) -> Drawn:
        drawn = self.together.draw(honest, generator)
        drawn.sends[generator.random(len(honest)) >= self.alpha] = False
        return drawn
