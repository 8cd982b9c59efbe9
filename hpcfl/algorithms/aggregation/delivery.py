"""Protocols that do not bring the model to the devices, made such that a model can be trained.

Rounds of a benchmark need no model: a protocol of one's own may leave it out, or let its devices
drop what they receive. For training the model then travels in a phase ``model`` of its own, before
all others, and counts like any message; or it is taken from the message of the phase ``model``
that the protocol has.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation import PROTOCOLS
from hpcfl.algorithms.aggregation.base import MODEL, AggregationProtocol, ModelSender
from hpcfl.comm.phases import Pattern, Payload, Role, Step
from hpcfl.crypto.keys import SecretSource, system_secrets

PHASE = "model"


def delivery(steps: tuple[Step, ...]) -> Step | None:
    """Return the step in which devices receive the model before their upload, if there is one."""
    for step in steps:
        if step.upload:
            return None
        to_devices = step.pattern in (Pattern.BROADCAST, Pattern.SCATTER)
        if step.phase == PHASE and to_devices and step.role is Role.DEVICE:
            return step
    return None


@functools.cache
def delivering(kind: type[AggregationProtocol]) -> type[AggregationProtocol]:
    """Return a protocol whose devices keep the model: those of hpcfl do, others are made to."""
    if kind.name in PROTOCOLS:
        return kind
    own = delivery(kind.steps)
    step = own or MODEL

    class Delivering(kind):  # type: ignore[misc, valid-type]
        steps = kind.steps if own else (step, *kind.steps)

        def device(self, id: int, round_index: int, secrets: SecretSource) -> Any:
            device = super().device(id, round_index, secrets)
            # Only what has changed of the model is for who knows how to put it together.
            if self.parameters.model_update != "whole":
                return device
            return _Keeping(device, step, self.parameters.dim)

        def server(
            self,
            round_index: int,
            model: NDArray[np.float32],
            secrets: SecretSource = system_secrets,
        ) -> Any:
            server = super().server(round_index, model, secrets)
            return server if own else _Sending(server, step, model)

    Delivering.__name__, Delivering.__qualname__ = kind.__name__, kind.__qualname__
    Delivering.__module__ = kind.__module__
    return Delivering


class _Wrapped:
    """A party, with a method more than it has by itself."""

    def __init__(self, party: Any) -> None:
        self.party = party

    def __getattr__(self, name: str) -> Any:
        return getattr(self.party, name)


class _Keeping(_Wrapped):
    """A device that keeps the model, if it does not by itself."""

    def __init__(self, party: Any, step: Step, dim: int) -> None:
        super().__init__(party)
        self._bytes = 4 * dim
        assert step.receive is not None
        name = step.receive.__name__
        self._own = getattr(party, name, None)
        self._kept: NDArray[np.float32] | None = None
        setattr(self, name, self._receive)

    def _receive(self, payload: Payload) -> None:
        if payload.size == self._bytes:
            self._kept = payload.view("<f4")
        if self._own is not None:
            self._own(payload)

    @property
    def model(self) -> NDArray[np.float32] | None:
        own: NDArray[np.float32] | None = getattr(self.party, "model", None)
        return self._kept if own is None else own

    def forget_model(self) -> None:
        self._kept = None
        if hasattr(self.party, "forget_model"):
            self.party.forget_model()


class _Sending(_Wrapped):
    """A server that sends the model in a step which the protocol does not have."""

    def __init__(self, party: Any, step: Step, model: NDArray[np.float32]) -> None:
        super().__init__(party)
        self.send_model = ModelSender(model).send_model


def party_of(party: Any) -> Any:
    """Return a party as the protocol made it."""
    return party.party if isinstance(party, _Wrapped) else party
