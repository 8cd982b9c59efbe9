"""Protocols that go wrong on purpose, given to `hpcfl bench` as MODULE:CLASS."""

from hpcfl.algorithms.aggregation.fedavg import FedAvg, FedAvgDevice, FedAvgServer
from hpcfl.crypto.keys import system_secrets
from hpcfl.errors import RefusedError


class Crashing(FedAvg):
    """Device 2 fails within hpcfl, with an error that nobody foresaw."""

    name = "crashing"

    def device(self, id, round_index, secrets):
        device = FedAvgDevice(self, id)
        if id == 2:
            device._scale = None
        return device


class DividingDevice(FedAvgDevice):
    def send_upload(self, vector):
        return vector / (0 // 0)


class DividingServer(FedAvgServer):
    def receive_upload(self, id, payload):
        return 0 // 0


class Dividing(FedAvg):
    """All devices fail in the second round, in code of the user's own."""

    name = "dividing"

    def device(self, id, round_index, secrets):
        return (DividingDevice if round_index else FedAvgDevice)(self, id)


class DividingAtTheServer(FedAvg):
    name = "dividing-at-the-server"

    def server(self, round_index, model, secrets=system_secrets):
        return (DividingServer if round_index else FedAvgServer)(self, round_index, model)


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
    def finish_upload(self):
        super().finish_upload()
        self.total[7] += 1e-3


class Wrong(FedAvg):
    """The server's sum is off in one coordinate, from round 2 on."""

    name = "wrong"

    def server(self, round_index, model, secrets=system_secrets):
        return (WrongServer if round_index >= 2 else FedAvgServer)(self, round_index, model)
