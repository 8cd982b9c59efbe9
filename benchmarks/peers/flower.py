"""Flower's SecAgg+ with 100 clients, t = 51, 30 of which drop out before the masked vector."""

import copy
import time
from types import SimpleNamespace

import numpy as np
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Context, RecordDict, ndarrays_to_parameters
from flwr.server import Grid, LegacyContext, ServerConfig, SimpleClientManager
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_PARAMS_RECORD
from flwr.supercore.task_identity import TaskIdentity

N, D, GONE = 100, 165_000, 30
spent = {}


def vector(id):
    return np.random.default_rng(id).uniform(-1, 1, D).astype(np.float32)


class Client(NumPyClient):
    def __init__(self, id):
        self.id = id

    def fit(self, parameters, config):
        return [vector(self.id)], 1, {}


def app(id):
    def client_fn(context: Context):
        return Client(id).to_client()

    return ClientApp(client_fn=client_fn, mods=[secaggplus_mod])


class InMemory(Grid):
    """Hands every message to its client at once."""

    run = SimpleNamespace(run_id=1)
    stage = 0

    def __init__(self):
        self.contexts = {id: Context(1, id, {}, RecordDict(), {}) for id in range(1, N + 1)}
        self.apps = {id: app(id) for id in self.contexts}

    def get_node_ids(self):
        return list(self.contexts)

    def send_and_receive(self, messages, *, timeout=None):
        self.stage += 1
        replies = []
        for message in messages:
            id = message.metadata.dst_node_id
            if self.stage >= 3 and id <= GONE:
                continue
            message = copy.deepcopy(message)  # as a network does
            message.metadata.__dict__["_message_id"] = f"{self.stage}-{id}"
            start = time.process_time()
            replies.append(self.apps[id](message, self.contexts[id]))
            spent.setdefault(self.stage, []).append(time.process_time() - start)
        return replies

    set_run = create_message = push_messages = pull_messages = None


TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
initial = ndarrays_to_parameters([np.zeros(D, np.float32)])
strategy = FedAvg(
    fraction_fit=1.0,
    min_fit_clients=N,
    min_available_clients=N,
    fraction_evaluate=0.0,
    initial_parameters=initial,
)
context = LegacyContext(
    Context(1, 0, {}, RecordDict(), {}), ServerConfig(num_rounds=1), strategy, SimpleClientManager()
)
start = time.process_time()
fit = SecAggPlusWorkflow(
    num_shares=N,
    reconstruction_threshold=N // 2 + 1,
    max_weight=1.0,
    clipping_range=1.0,
    quantization_range=2**20,
)
DefaultWorkflow(fit_workflow=fit)(InMemory(), context)
total, clients = time.process_time() - start, sum(map(sum, spent.values()))
for stage, seconds in spent.items():
    print(f"stage {stage}: median of {len(seconds)} clients {1e3 * np.median(seconds):.1f} ms")
print(f"all clients {clients:.1f} s, server {total - clients:.1f} s")
found = context.state.array_records[MAIN_PARAMS_RECORD].to_numpy_ndarrays()[0]
expected = np.mean([vector(id) for id in range(GONE + 1, N + 1)], axis=0)
print("largest error", np.abs(found - expected).max())
