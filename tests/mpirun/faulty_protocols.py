"""Protocols that go wrong on purpose, given to `hpcfl bench` as MODULE:CLASS."""

from hpcfl.algorithms.aggregation.fedavg import FedAvg, FedAvgDevice, FedAvgServer
from hpcfl.algorithms.aggregation.prf import Prf
from hpcfl.crypto.keys import system_secrets
from hpcfl.errors import RefusedError


class CrashingDevice(FedAvgDevice):
    def send_upload(self, vector):
        if self.id == 2:
            raise ZeroDivisionError("device 2 divides by zero")
        return super().send_upload(vector)


class Crashing(FedAvg):
    """Device 2 fails with an error that nobody foresaw."""

    name = "crashing"

    def device(self, id, round_index, secrets):
        return CrashingDevice(self, id)


class RefusingDevice(FedAvgDevice):
    def send_upload(self, vector):
        if self.id == 2:
            raise RefusedError("device 2 refuses")
        return super().send_upload(vector)


class Refusing(FedAvg):
    """Device 2 fails alone, with an error that is a sentence."""

    name = "refusing"

    def device(self, id, round_index, secrets):
        return RefusingDevice(self, id)


class WrongServer(FedAvgServer):
    def finish_result(self):
        self.total[7] += 1e-3


class Wrong(FedAvg):
    """The server's sum is off in one coordinate, from round 2 on."""

    name = "wrong"

    def server(self, round_index, model, secrets=system_secrets):
        return (WrongServer if round_index >= 2 else FedAvgServer)(self, model)


class Deserting(Prf):
    """Devices drop out although nobody can take off their masks."""

    name = "deserting"
    tolerates_dropouts = True
