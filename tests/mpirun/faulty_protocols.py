"""Protocols that go wrong on purpose, given to `hpcfl bench` as MODULE:CLASS."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.fedavg import FedAvg, FedAvgDevice, FedAvgServer
from hpcfl.algorithms.aggregation.prf import Prf
from hpcfl.comm.phases import Payload
from hpcfl.crypto.keys import SecretSource, system_secrets
from hpcfl.errors import RefusedError


class CrashingDevice(FedAvgDevice):
    def send_upload(self, vector: NDArray[np.floating]) -> Payload:
        if self.id == 2:
            raise ZeroDivisionError("device 2 divides by zero")
        return super().send_upload(vector)


class Crashing(FedAvg):
    """Device 2 fails with an error that nobody foresaw."""

    def device(self, id: int, round_index: int, secrets: SecretSource) -> FedAvgDevice:
        return CrashingDevice(self, id)


class RefusingDevice(FedAvgDevice):
    def send_upload(self, vector: NDArray[np.floating]) -> Payload:
        if self.id == 2:
            raise RefusedError("device 2 refuses")
        return super().send_upload(vector)


class Refusing(FedAvg):
    """Device 2 fails alone, with an error that is a sentence."""

    def device(self, id: int, round_index: int, secrets: SecretSource) -> FedAvgDevice:
        return RefusingDevice(self, id)


class WrongServer(FedAvgServer):
    def finish_result(self) -> None:
        self.total[7] += 1e-3


class Wrong(FedAvg):
    """The server's sum is off in one coordinate, from round 2 on."""

    def server(
        self,
        round_index: int,
        model: NDArray[np.float32],
        secrets: SecretSource = system_secrets,
    ) -> FedAvgServer:
        return (WrongServer if round_index >= 2 else FedAvgServer)(self, model)


class Deserting(Prf):
    """Devices drop out although nobody can take off their masks."""

    tolerates_dropouts = True
