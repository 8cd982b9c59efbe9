"""Which part of the model each device is sent, where only what has changed is (`ModelUpdates`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hpcfl.comm.phases import Where

NEVER = -1


class ModelUpdates:
    """The models that devices have, and this rank's copy of the last one; kept for a whole run.

    What the devices of a rank have differs from the last model in nothing but coordinates that they
    are still to be sent: so one copy is enough for all of them. Who is in a round counts as having
    its model: a device that refuses the message, which no server here gives reason to, would not be
    sent again what was in it. `changed` tells which of `dim`
    coordinates a round may change, which all know.
    """

    def __init__(self, population: int, dim: int, changed: Callable[[int], Where]):
        self._dim, self._changed = dim, changed
        # By device: the round whose model it has.
        self._have = np.full(population, NEVER, np.int64)
        self._had: list[int] = []
        self._lacking: dict[int, Where] = {}
        self.received: NDArray[np.float32] | None = None
        # At the server: the model that was sent last, in which round, and the round in which it was
        # last found to have changed in other coordinates than were known to.
        self._sent: NDArray[np.float32] | None = None
        self._sent_in = self._elsewhere_in = NEVER

    def go_on(self, had: NDArray[np.int64], model: NDArray[np.float32]) -> None:
        """Take up what `kept` returned in an earlier launch, with the same `model`.

        Every rank calls this, and the server `note`. A rank's copy is that model at once: what a
        device lacks of it, it is sent all the same.
        """
        self._have, self.received = had.copy(), model.copy()

    def kept(self, index: int, model: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return, at the server, the round whose model each device has before this round.

        It is `NEVER` for those that are to be sent all of `model`, which is this round's.
        """
        whole = self._have < self._last_elsewhere(index, model)
        return np.where(whole, NEVER, self._have)

    def begin(self, index: int, ids: Sequence[int]) -> bool:
        """Let these devices be sent the model of a round; return whether all lack the same."""
        self._had = self._have[list(ids)].tolist()
        self._lacking = {had: self._since(had, index) for had in set(self._had)}
        self._have[list(ids)] = index
        return len(self._lacking) == 1

    def _since(self, had: int, index: int) -> Where:
        """Return the coordinates in which the models of two rounds may differ, in their order."""
        if had == NEVER:
            return slice(None)
        changed = np.zeros(self._dim, np.bool_)
        for each in range(had, index):
            changed[self._changed(each)] = True
        return slice(None) if changed.all() else np.flatnonzero(changed)

    def receive(self, slot: int, payload: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the model that a device of the round has with what it was sent.

        ValueError if that is neither all of the model nor what the device lacks.
        """
        values, where = payload.view("<f4"), self._lacking[self._had[slot]]
        if values.size == self._dim:
            where = slice(None)
        elif isinstance(where, slice) or values.size != where.size:
            # Of one value NumPy would make as many as are missing.
            raise ValueError(f"{values.size} coordinates")
        if self.received is None:
            self.received = np.empty(self._dim, np.float32)
        self.received[where] = values
        return self.received

    def to_send(self, slot: int, index: int, model: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return what the server sends a device of its model, shape (d,)."""
        if self._sent_in != index:
            self.note(index, model)
        had = self._had[slot]
        return model if had < self._elsewhere_in else model[self._lacking[had]]

    def note(self, index: int, model: NDArray[np.float32]) -> None:
        """Keep, at the server, a round's model, and whether it has changed as all believe."""
        self._elsewhere_in = self._last_elsewhere(index, model)
        self._sent, self._sent_in = model.copy(), index

    def _last_elsewhere(self, index: int, model: NDArray[np.float32]) -> int:
        """Return in which round, up to this one, a model had changed in unknown coordinates."""
        if self._sent is not None:
            changed = model != self._sent
            changed[self._since(self._sent_in, index)] = False
            if changed.any():
                return index
        return self._elsewhere_in
