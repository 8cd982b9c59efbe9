"""Secure aggregation inside Flower: the strategy's mean, and what the mod refuses."""

import copy
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs hpcfl[flower]")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, FedTrimmedAvg
from flwr.supercore.task_identity import TaskIdentity

from hpcfl.errors import UsageError
from hpcfl.integrations.flower import RECORD, SecureAggregation, mod

TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
NODES, DIM = [11, 12, 13, 14, 15, 16, 17], 50
PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"


class Node(Grid):
    """Nodes in this process; `failing` raise an exception while they train."""

    run = SimpleNamespace(run_id=1)
    set_run = create_message = push_messages = pull_messages = None

    def __init__(self, app, failing=()):
        self.app, self.failing, self.sent = app, {*failing}, []
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in NODES}

    def get_node_ids(self):
        return NODES

    def send_and_receive(self, messages, *, timeout=None):
        return [reply for message in messages for reply in self.handled(message)]

    def handled(self, message):
        node = message.metadata.dst_node_id
        message = copy.deepcopy(message)
        message.metadata.__dict__["_message_id"] = f"{len(self.sent)}"
        if node in self.failing and message.content.array_records:
            return []
        self.sent.append((copy.deepcopy(message), copy.deepcopy(self.contexts[node].state)))
        return [self.app(message, self.contexts[node])]


def trained(node, weights):
    return weights + np.random.default_rng(node).uniform(-0.1, 0.1, DIM).astype(np.float32)


def app_of(*mods):
    app = ClientApp()

    @app.train(mods=[*mods])
    def train(message, context):
        weights = message.content["arrays"]["weights"].numpy()
        model = {
            "weights": Array(trained(context.node_id, weights)),
            "steps": Array(np.array(context.node_id, np.int64)),
        }
        metrics = MetricRecord({"num-examples": context.node_id, "loss": 0.5})
        content = {"arrays": ArrayRecord(model), "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    return app


def start(strategy, grid, rounds=2):
    model = ArrayRecord({
        "weights": Array(np.zeros(DIM, np.float32)),
        "steps": Array(np.array(10, np.int64)),
    })  # fmt: skip
    return strategy.start(grid, model, num_rounds=rounds)


def fedavg(kind=FedAvg, **options):
    return kind(min_available_nodes=5, fraction_evaluate=0.0, **options)


@pytest.mark.parametrize(
    ("protocol", "options"),
    [
        ("secagg", {}),
        ("secagg-graph", {}),
        ("committee", {"bits": 32}),
        ("assisted", {"helpers": NODES[-2:]}),
        ("secagg", {"transport_keys": "run"}),
        ("secagg", {"kind": FedAdam}),
    ],
)
def test_the_model_is_that_of_the_strategy_without_masks(protocol, options, tmp_path):
    kind = options.pop("kind", FedAvg)
    plain = Node(app_of())
    plain.get_node_ids = lambda: [node for node in NODES if node not in options.get("helpers", ())]
    expected = start(fedavg(kind), plain)
    grid = Node(app_of(mod(tmp_path)))
    strategy = SecureAggregation(fedavg(kind), protocol, most_examples=100, clip=10, **options)
    found = start(strategy, grid)

    for name in ("weights", "steps"):
        one, other = found.arrays[name].numpy(), expected.arrays[name].numpy()
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=0)
    for message, _ in grid.sent:
        if message.metadata.dst_node_id in options.get("helpers", ()):
            assert not message.content.array_records


def test_a_protocol_that_sends_a_part_of_the_coordinates_counts_all_clients_the_same(tmp_path):
    with pytest.raises(UsageError, match="most_examples=None"):
        SecureAggregation(fedavg(), "common", most_examples=9)
    grid = Node(app_of(mod(tmp_path)))
    strategy = SecureAggregation(fedavg(), "common", most_examples=None, alpha=0.5)
    found = start(strategy, grid, rounds=1).arrays["weights"].numpy()
    mean = np.mean([trained(node, np.zeros(DIM)) for node in NODES], axis=0)
    sent = found != 0
    assert 0 < sent.sum() < DIM
    # The mean of all is estimated from those that are sent, 26 of the 51 values of the model.
    np.testing.assert_allclose(found[sent] * 26 / 51, mean[sent], atol=1e-5)


def test_a_client_cannot_trade_its_weight_for_a_longer_change_where_norms_are_limited():
    """The mean is divided by the sum of weights, which a client could make small."""
    with pytest.raises(UsageError, match="most_examples=None"):
        SecureAggregation(fedavg(), "pine", most_examples=9, helpers=NODES[-1:])


def test_a_client_that_fails_in_its_training_is_not_in_the_mean(tmp_path):
    grid = Node(app_of(mod(tmp_path)), failing=[12])
    found = (
        start(SecureAggregation(fedavg(), most_examples=100), grid, rounds=1)
        .arrays["weights"]
        .numpy()
    )
    there = [node for node in NODES if node != 12]
    models = [trained(node, np.zeros(DIM)) for node in there]
    np.testing.assert_allclose(found, np.average(models, axis=0, weights=there), atol=1e-4)


def test_a_round_without_enough_clients_leaves_the_model_and_says_why(tmp_path, caplog):
    grid = Node(app_of(mod(tmp_path)), failing=NODES[:5])
    found = start(SecureAggregation(fedavg(), most_examples=100), grid, rounds=1)
    assert not found.arrays["weights"].numpy().any()
    assert "round 1 ends without a sum: round 1 cannot end: 2 of 7 devices" in caplog.text


@pytest.mark.parametrize("metrics", [False, True])
def test_metrics_leave_only_if_the_client_says_so(metrics, tmp_path):
    found = start(
        SecureAggregation(fedavg(), most_examples=100),
        Node(app_of(mod(tmp_path, send_metrics=metrics))),
    )
    losses = [dict(each).get("loss") for each in found.train_metrics_clientapp.values()]
    assert losses == pytest.approx([0.5, 0.5]) if metrics else losses in ([], [None, None])


@pytest.mark.parametrize("kind", [FedMedian, FedTrimmedAvg])
def test_strategies_that_look_at_single_models_are_refused(kind):
    with pytest.raises(UsageError, match="looks at single updates"):
        SecureAggregation(kind(), most_examples=None)


def test_a_client_with_the_mod_answers_no_plain_message(tmp_path):
    grid = Node(app_of(mod(tmp_path)))
    assert not start(fedavg(), grid, rounds=1).arrays


@pytest.mark.parametrize("protocol", ["secagg", "assisted", "pine"])
def test_a_state_that_flower_gives_again_masks_no_second_model(protocol, tmp_path):
    """The state of before the upload comes back: a crash before it was saved, or two at once."""
    grid = Node(app_of(mod(tmp_path, helpers=1)))
    helpers = {"assisted": {"helpers": NODES[-2:]}, "pine": {"helpers": NODES[-1:]}}
    helpers = helpers.get(protocol, {})
    most = None if protocol == "pine" else 100
    start(SecureAggregation(fedavg(), protocol, most_examples=most, **helpers), grid, rounds=1)
    uploads = [(message, state) for message, state in grid.sent if message.content.array_records]
    message, state = uploads[0]
    context = Context(1, message.metadata.dst_node_id, {}, state, {})
    reply = grid.app(message, context).content[RECORD]["reply"]
    assert b"has answered step" in reply


def blocks(page, title):
    """Return the code of the page after a file's name."""
    found = re.search(rf"`{re.escape(title)}`:\n\n```\w+\n(.*?)```", page, re.DOTALL)
    assert found, title
    return found.group(1)


def test_the_app_of_the_page_runs_in_flowers_simulation(tmp_path):
    pytest.importorskip("ray", reason="needs flwr[simulation]")
    page = PAGE.read_text(encoding="utf-8")
    (tmp_path / "app").mkdir()
    for name in ("app/server_app.py", "app/client_app.py"):
        (tmp_path / name).write_text(blocks(page, name), encoding="utf-8")
    program = (
        "from flwr.simulation import run_simulation\n"
        "from app import client_app, server_app\n"
        "run_simulation(server_app.app, client_app.app, num_supernodes=5)\n"
    )
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": "."}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "mean of the model: 0.533" in done.stdout, done.stderr[-3000:]
    assert len([*(tmp_path / "state" / "hpcfl").iterdir()]) == 5


@pytest.fixture
def deployed(tmp_path):
    """Return a function that runs an app with a SuperLink and SuperNodes, each its own group."""
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")}
    environment |= {"FLWR_HOME": str(tmp_path / "flwr"), "FLWR_TELEMETRY_ENABLED": "0"}
    scripts, started = Path(sys.executable).parent, []

    def start(name, *words):
        with open(tmp_path / f"{len(started)}.log", "wb") as log:
            started.append(
                subprocess.Popen(
                    [scripts / name, "--insecure", *words],
                    stdout=log, stderr=log, env=environment, start_new_session=True,
                )
            )  # fmt: skip

    def run(folder, nodes):
        ports = free_ports(nodes + 1)
        config = f'[superlink]\ndefault = "x"\n[superlink.x]\naddress = "127.0.0.1:{ports[0]}"\n'
        (tmp_path / "flwr").mkdir()
        (tmp_path / "flwr" / "config.toml").write_text(config + "insecure = true\n")
        start("flower-superlink", "--port", str(ports[0]))
        for number, port in enumerate(ports[1:]):
            about = f"partition-id={number} num-partitions={nodes}"
            link = f"127.0.0.1:{ports[0]}"
            start(
                "flower-supernode", "--superlink", link, "--port", str(port), "--node-config", about
            )
        words = [scripts / "flwr", "run", str(folder), "x", "--stream"]
        deadline = time.monotonic() + 60
        while True:
            done = subprocess.run(
                words, env=environment, capture_output=True, text=True, timeout=400
            )
            if "unavailable" not in done.stdout + done.stderr or time.monotonic() > deadline:
                return done.stdout + done.stderr
            time.sleep(2)

    yield run
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.mark.full
def test_a_supernode_that_is_killed_while_it_trains_is_not_in_the_mean(deployed, tmp_path):
    page = PAGE.read_text(encoding="utf-8")
    (tmp_path / "code" / "app").mkdir(parents=True)
    for name in ("app/server_app.py", "app/client_app.py", "pyproject.toml"):
        code = blocks(page, name).replace("num_rounds=2", "num_rounds=1")
        training = '    number = int(context.node_config["partition-id"])\n'
        dying = f"{training}    if number == 4:\n        os.killpg(0, 9)\n"
        code = code.replace(training, dying).replace("import numpy", "import os\nimport numpy", 1)
        (tmp_path / "code" / name).write_text(code, encoding="utf-8")
    log = deployed(tmp_path / "code", nodes=5)
    assert "mean of the model: 0.2000" in log or "mean of the model: 0.1999" in log, log[-4000:]
    assert "ends without a sum" not in log


def test_a_client_that_answers_nonsense_costs_itself_alone(tmp_path, caplog):
    class Liar(Node):
        def handled(self, message):
            replies = super().handled(message)
            for reply in replies:
                if reply.metadata.src_node_id == 12:
                    reply.content[RECORD]["reply"] = 5
            return replies

    found = start(SecureAggregation(fedavg(), most_examples=100), Liar(app_of(mod(tmp_path))))
    assert found.arrays["weights"].numpy().any()
    assert "node 12: not an answer of hpcfl's mod" in caplog.text


def test_a_server_learns_no_number_of_examples_that_it_does_not_count(tmp_path, caplog):
    grid = Node(app_of(mod(tmp_path)))
    found = start(SecureAggregation(fedavg(), most_examples=15.5), grid, rounds=1)
    there = [node for node in NODES if node <= 15]
    models = [trained(node, np.zeros(DIM)) for node in there]
    mean = np.average(models, axis=0, weights=there)
    np.testing.assert_allclose(found.arrays["weights"].numpy(), mean, atol=1e-4)
    assert "the mean of 5 of 7 clients" in caplog.text
    assert "node 17 (device 6) left the round" in caplog.text
    reasons = [line for line in caplog.text.splitlines() if "left the round" in line]
    assert all("more than 15.5: raise most_examples" in line for line in reasons)
    assert not any("17 examples" in line for line in reasons)
