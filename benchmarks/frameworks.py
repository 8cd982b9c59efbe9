"""Rounds inside Flower: plain, with its own SecAgg+, and with hpcfl's protocols.

    python benchmarks/frameworks.py [--devices N] [--dim D] [--gone K] [--rounds R]

All clients run in this process, one after the other; a grid hands every message over as the bytes
that Flower sends. K clients are gone from the upload on. CPU times are of the clients' apps, which
do not train; all figures are medians over clients and rounds, without the first. The rows of MPI
are the same rounds of `hpcfl bench` on N + 1 ranks. Needs ``hpcfl[flower]``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, serde
from flwr.proto.message_pb2 import Message as Wire
from flwr.server import Grid, LegacyContext, ServerConfig, SimpleClientManager
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity
from tabulate import tabulate

from harness import figure, launched
from hpcfl.algorithms.aggregation import find
from hpcfl.exchange import Client, FileJournal, Policy, Session
from hpcfl.exchange.server import Replies, Requests
from hpcfl.integrations.flower import SecureAggregation, mod

TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
COLUMNS = ("exchanges", "client CPU, ms", "upload, kB", "download, kB", "round, s")
HELPERS = 2


def vector(id: int, dim: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(id).uniform(-1, 1, dim).astype(np.float32)


class InMemory(Grid):
    """Calls an app for every message; `late` is the exchange from which clients are gone."""

    run = SimpleNamespace(run_id=1)
    set_run = create_message = push_messages = pull_messages = None

    def __init__(self, app: ClientApp, clients: int, gone: int, late: int | None = None) -> None:
        self._app, self._gone, self._late = app, gone, late
        self._contexts = {id: Context(1, id, {}, RecordDict(), {}) for id in range(1, clients + 1)}
        self.begin()

    def get_node_ids(self) -> list[int]:
        return [*self._contexts]

    def begin(self) -> None:
        """Forget what was spent."""
        self.exchanges, self.start = 0, time.perf_counter()
        self.cpu: dict[int, float] = defaultdict(float)
        self.up, self.down = Counter[int](), Counter[int]()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        messages, replies = [*messages], []
        self.exchanges += bool(messages)
        for message in messages:
            id = message.metadata.dst_node_id
            upload = self._late is None and bool(message.content.array_records)
            if id <= self._gone and (upload or self.exchanges >= (self._late or 9)):
                continue
            raw = serde.message_to_proto(message).SerializeToString()
            received = serde.message_from_proto(Wire.FromString(raw))
            received.metadata.__dict__["_message_id"] = f"{id} {self.exchanges} {self.start}"
            start = time.process_time()
            reply = self._app(received, self._contexts[id])
            self.cpu[id] += time.process_time() - start
            back = serde.message_to_proto(reply).SerializeToString()
            self.down[id] += len(raw)
            self.up[id] += len(back)
            replies.append(serde.message_from_proto(Wire.FromString(back)))
        return replies

    def spent(self, helpers: int = 0) -> list[float]:
        """Return the figures of a round, in the order of the columns."""
        ids = [id for id in self._contexts if self._gone < id <= len(self._contexts) - helpers]
        each = [np.median([of[id] for id in ids]) for of in (self.cpu, self.up, self.down)]
        seconds = time.perf_counter() - self.start
        return [self.exchanges, 1e3 * each[0], each[1] / 1e3, each[2] / 1e3, seconds]


def legacy(clients: int, dim: int, gone: int, rounds: int) -> list[list[float]]:
    """Play rounds of Flower's own SecAgg+, in which all clients are neighbours."""

    class Client(NumPyClient):
        def __init__(self, id: int) -> None:
            self.id = id

        def fit(self, parameters: Any, config: Any) -> Any:
            return [vector(self.id, dim)], 1, {}

    app = ClientApp(client_fn=lambda context: Client(context.node_id).to_client(),
                    mods=[secaggplus_mod])  # fmt: skip
    found = []
    for _ in range(rounds):
        grid = InMemory(app, clients, gone, late=3)
        strategy = LegacyFedAvg(
            min_fit_clients=clients,
            min_available_clients=clients,
            fraction_evaluate=0.0,
            initial_parameters=ndarrays_to_parameters([np.zeros(dim, np.float32)]),
        )
        config = ServerConfig(num_rounds=1)
        fit = SecAggPlusWorkflow(clients, clients // 2 + 1, max_weight=1.0, clipping_range=1.0,
                                 quantization_range=2**20)  # fmt: skip
        context = Context(1, 0, {}, RecordDict(), {})
        DefaultWorkflow(fit_workflow=fit)(
            grid, LegacyContext(context, config, strategy, SimpleClientManager())
        )
        found.append(grid.spent())
    return found


def message_api(
    wrapped: Callable[[FedAvg], Any],
    clients: int,
    dim: int,
    gone: int,
    rounds: int,
    helpers: int = 0,
) -> list[list[float]]:
    """Play rounds of Flower's Message API."""
    plain = wrapped is plainly
    app, folder = ClientApp(), tempfile.mkdtemp()

    @app.train(mods=[] if plain else [mod(folder)])
    def train(message: Message, context: Context) -> Message:
        model = ArrayRecord({"x": Array(vector(context.node_id, dim))})
        about = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": model, "metrics": about}), reply_to=message)

    grid = InMemory(app, clients + helpers, gone)
    strategy, found = wrapped(FedAvg(min_train_nodes=clients, min_available_nodes=clients)), []
    arrays = ArrayRecord({"x": Array(np.zeros(dim, np.float32))})
    for number in range(1, rounds + 1):
        grid.begin()
        messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
        replies = grid.send_and_receive(messages)
        strategy.aggregate_train(number, replies)
        found.append(grid.spent(helpers))
    return found


def plainly(strategy: FedAvg) -> FedAvg:
    return strategy


def over_mpi(protocol: str, clients: int, dim: int, gone: int, rounds: int) -> list[list[float]]:
    """Play the same rounds on MPI ranks, without a framework."""
    ranks = 1 + clients + find(protocol).default_helpers
    words = f"mpirun -n {ranks} hpcfl bench {protocol} --dim {dim} --dropout {gone / clients}"
    played, found = launched(*words.split(), "--rounds", rounds, "--warmup", 0), []
    for k, there in enumerate(played.survived):
        of = (one[k, :, : there.size] for one in
              (played.cpu_seconds, played.bytes_up, played.bytes_down))  # fmt: skip
        cpu, up, down = (np.median(one.sum(axis=0)[there]) for one in of)
        found.append([float("nan"), 1e3 * cpu, up / 1e3, down / 1e3, played.round_seconds[k]])
    return found


def states(protocol: str, devices: int = 500) -> tuple[int, float]:
    """Return the largest saved state of a device in bytes, and seconds to save and restore it."""
    session, key = Session(protocol, 10, dropout=0.1), bytes(32)
    journal, limits = FileJournal(tempfile.mkdtemp()), Policy()
    clients = [Client(limits, journal if id == 0 else None) for id in range(devices + HELPERS)]
    found = []

    def ask(requests: Requests) -> Replies:
        replies = {id: clients[id].handle(asked, lambda offer: np.zeros(10, np.float32))
                   for id, asked in requests.items()}  # fmt: skip
        took = []
        for _ in range(5):  # the quickest: other programs interrupt
            start = time.perf_counter()
            saved = clients[0].save(key)
            restored = Client.restore(saved, key, limits, journal)
            took.append(time.perf_counter() - start)
        clients[0] = restored
        found.append((len(saved), min(took)))
        return replies

    for played in (session.enrol(devices), session.round(0, range(devices))):
        if played is not None:
            played.play(ask)
    return max(size for size, _ in found), max(seconds for _, seconds in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("devices", 10), ("dim", 100_000), ("gone", 0), ("rounds", 6)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    about = given.devices, given.dim, given.gone, given.rounds
    os.environ.setdefault("FLWR_LOG_LEVEL", "ERROR")
    systems: dict[str, Callable[..., list[list[float]]]] = {
        "Flower, plain FedAvg": partial(message_api, plainly),
        "Flower, its own SecAgg+": legacy,
    }
    for protocol in ("secagg", "secagg-graph", "common", "assisted"):
        helpers = range(given.devices + 1, given.devices + HELPERS + 1)
        options: dict[str, Any] = {"most_examples": None if protocol == "common" else 1}
        options |= {"helpers": helpers} if protocol == "assisted" else {}
        wrap = partial(SecureAggregation, protocol=protocol, **options)
        count = HELPERS if protocol == "assisted" else 0
        systems[f"Flower, hpcfl {protocol}"] = partial(message_api, wrap, helpers=count)
        systems[f"MPI, hpcfl {protocol}"] = partial(over_mpi, protocol)
    # The first round also imports and enrols.
    rows = {name: np.median((found := play(*about))[1:] or found, axis=0)
            for name, play in systems.items()}  # fmt: skip
    print(tabulate([[name, *row] for name, row in rows.items()], ("", *COLUMNS), "pipe",
                   floatfmt=("", ".0f", ".1f", ".1f", ".1f", ".2f")))  # fmt: skip
    plain, own = (rows[f"Flower, {name}"] for name in ("plain FedAvg", "its own SecAgg+"))
    for protocol, most in (("secagg", 0.4), ("assisted", 0.2)):
        row = rows[f"Flower, hpcfl {protocol}"]
        figure(f"CPU of a client, {protocol} / Flower's SecAgg+", row[1] / own[1], most)
        figure(f"upload, {protocol} / plain FedAvg", row[2] / plain[2], 1.02)
    for protocol, kilobytes in (("secagg", 52), ("secagg-graph", 10), ("assisted", 1)):
        size, seconds = states(protocol)
        figure(f"saved state of a device, N = 500, {protocol}", size / 1e3, kilobytes, " kB")
        figure("    saving and restoring it", 1e3 * seconds, 1, " ms")


if __name__ == "__main__":
    main()
