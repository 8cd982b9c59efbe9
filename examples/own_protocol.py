"""An example of your own protocol: a device sends the signs of its vector, one bit per coordinate.

Run it from this folder, with as many devices as you like:

    mpirun -n 5 hpcfl bench own_protocol:SignSum
    hpcfl train fedavg --devices 10 --aggregate own_protocol:SignSum --server-learning-rate 0.02
"""

import numpy as np

from hpcfl.algorithms.aggregation.base import MODEL, AggregationProtocol, ModelReceiver, ModelSender
from hpcfl.algorithms.aggregation.messages import parse_vector
from hpcfl.comm.phases import Pattern, Step


class SignDevice(ModelReceiver):
    """Sends the signs of its vector."""

    def __init__(self, protocol, id):
        super().__init__(protocol.parameters.dim)
        self.id = id

    def send_upload(self, vector):
        return np.packbits(vector >= 0)

    def contribution(self, vector):
        """Return the coordinates and values that the validation of the round adds up itself."""
        return slice(None), np.where(vector >= 0, 1.0, -1.0)


class SignServer(ModelSender):
    """Adds up the signs."""

    def __init__(self, protocol, model):
        super().__init__(model)
        self._dim = protocol.parameters.dim
        self.survivors = []
        self.total = np.zeros(self._dim)

    def receive_upload(self, sender, payload):
        bits = parse_vector(payload, "u1", -(-self._dim // 8), "upload", f"device {sender}")
        self.total += np.where(np.unpackbits(bits, count=self._dim), 1.0, -1.0)
        self.survivors.append(sender)


class SignSum(AggregationProtocol):
    """The mean of the signs, in the clear (signSGD by majority, without the final vote)."""

    name = "sign-sum"
    steps = (
        MODEL,
        Step(
            "upload",
            Pattern.GATHER,
            SignDevice.send_upload,
            SignServer.receive_upload,
            upload=True,
        ),
    )

    def device(self, id, round_index, secrets):
        return SignDevice(self, id)

    def server(self, round_index, model, secrets):
        return SignServer(self, model)

    def decode(self, total):
        """Return the sum of the signs times the weights, which are all 1 / N here.

        hpcfl divides it by the weight of the survivors, so that it becomes their mean.
        """
        return total / self.parameters.devices
