"""Secure aggregation in Flower's Message API: a wrapper for strategies, and a mod for clients.

    strategy = SecureAggregation(FedAvg(), "secagg")      # in the ServerApp

    @app.train(mods=[mod()])                              # in the ClientApp
    def train(message, context): ...

The server exchanges messages with the clients before the strategy's own train messages, which carry
a request in addition, and after their replies. The strategy itself gets one reply: the mean of the
clients' changes, added to the model. docs/frameworks.md says what is protected, and what is not.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any

import flwr.app as fl
import numpy as np
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common import log
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.serverapp.strategy.strategy_utils import (
    aggregate_metricrecords,
    validate_message_reply_consistency,
)
from numpy.typing import NDArray

from hpcfl.errors import HpcflError, RefusedError, UsageError
from hpcfl.exchange import Client, FileJournal, Policy, ServerRound, Session
from hpcfl.exchange.request import Offer, Request
from hpcfl.integrations import updates

# The name of hpcfl's record in messages, and in the state of a client.
RECORD = "hpcfl"
# What names of strategies begin with that need single updates, or clip or blur them themselves.
_REFUSED = ("Bulyan", "DifferentialPrivacy", "FedMedian", "FedTrimmedAvg", "FedXgb", "Krum",
            "MultiKrum", "QFedAvg")  # fmt: skip


class SecureAggregation(Strategy):
    """A strategy whose server learns the mean of the clients' models, and no single one.

    Parameters
    ----------
    strategy
        A strategy that averages models, such as FedAvg, FedAdam or FedAvgM.
    protocol
        The name of a protocol of hpcfl.
    most_examples
        The most training examples of any client, or somewhat more: a client's weight is its share
        of them. None if all clients count the same.
    helpers
        The ids of the nodes that are helpers, each of another institution: two or more for
        `assisted`, one for `pine`, which clients' policies must accept (``helpers=1``). They are
        not sampled.
    evaluation
        Whether to ask clients for their evaluations, which they send in the clear.
    timeout_seconds
        How long to wait for the replies of each exchange other than the training itself.
    **options
        Options of the protocol, as `clip`, `gamma`, `dropout` or `bits`.
    """

    def __init__(
        self,
        strategy: Strategy,
        protocol: str = "secagg",
        *,
        most_examples: float | None,
        helpers: Sequence[int] = (),
        evaluation: bool = False,
        timeout_seconds: float = 600,
        **options: Any,
    ) -> None:
        if any(kind.__name__.startswith(_REFUSED) for kind in type(strategy).__mro__):
            raise UsageError(
                f"{type(strategy).__name__} looks at single updates, which secure aggregation "
                "hides: wrap FedAvg or another strategy that averages"
            )
        updates.check_weighted(protocol, most_examples)
        if helpers:
            options["helpers"] = len(helpers)
        self.strategy = strategy
        self._most, self._helpers = most_examples, [*helpers]
        self._evaluation, self._timeout = evaluation, timeout_seconds
        # The first round tells how many values a model has.
        self._session = Session(protocol, 1, about={updates.MOST: most_examples}, **options)
        if self._session.helpers != len(helpers):
            raise UsageError(
                f"{protocol} has {self._session.helpers} helpers, and {len(helpers)} nodes are "
                "named: give helpers=[their node ids], which are no clients of yours"
            )
        self._enrolled: list[int] = []  # nodes by enrolment id
        # Of the current round: nodes by client, devices before helpers; and the model before it.
        self._round: ServerRound | None = None
        self._nodes: list[int] = []
        self._arrays = fl.ArrayRecord()
        self._grid: _Hiding

    def summary(self) -> None:
        """Log the protocol and the wrapped strategy."""
        log(INFO, "\t├──> Secure aggregation: %s", self._session.name)
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: fl.ArrayRecord, config: fl.ConfigRecord, grid: Grid
    ) -> Iterable[fl.Message]:
        """Play a round up to the upload, and return the strategy's messages with its requests."""
        hidden = _Hiding(grid, self._helpers)
        chosen = self.strategy.configure_train(server_round, arrays, config, hidden)
        messages = {message.metadata.dst_node_id: message for message in chosen}
        if not messages:
            return []
        try:
            self._round = self._begun(server_round, arrays, hidden, {*messages})
            requests = self._round.up_to_upload(self._ask)
        except UsageError:
            raise
        except HpcflError as error:
            self._fail(server_round, error)
            return []
        theirs = {id: messages[self._nodes[id]] for id in requests}
        return [
            self._message(id, requests[id], one.content, one.metadata.ttl)
            for id, one in theirs.items()
        ]

    def _message(
        self, id: int, asked: bytes, content: Mapping[str, Any] = {}, ttl: float | None = None
    ) -> fl.Message:
        """Return a request to a client, with what else is for it."""
        record = fl.RecordDict({**content, RECORD: fl.ConfigRecord({"request": asked})})
        kind = fl.MessageType.TRAIN
        return fl.Message(record, dst_node_id=self._nodes[id], message_type=kind, ttl=ttl)

    def _begun(
        self, server_round: int, arrays: fl.ArrayRecord, hidden: _Hiding, chosen: set[int]
    ) -> ServerRound:
        """Return a round of the chosen nodes, after the enrolment if it is the first."""
        session, self._arrays, self._grid = self._session, arrays, hidden
        session.dim = updates.length(arrays.to_numpy_ndarrays(), self._most)
        if session.enrols and not self._enrolled:
            everybody = sorted(hidden.get_node_ids())
            self._nodes = [*everybody, *self._helpers]
            enrolment = session.enrol(len(everybody))
            if enrolment is not None:
                enrolment.play(self._ask)
            self._enrolled = everybody
        numbered = self._enrolled if session.enrols else sorted(chosen)
        members = [id for id, node in enumerate(numbered) if node in chosen]
        if len(members) < len(chosen):
            log(INFO, "%d nodes joined after the enrolment: left out", len(chosen) - len(members))
        self._nodes = [*(numbered[id] for id in members), *self._helpers]
        return session.round(server_round, members)

    def _ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        """Return the replies to requests that come without a model."""
        messages = [self._message(id, asked) for id, asked in requests.items()]
        return self._told(self._grid.send_and_receive(messages, timeout=self._timeout))

    def _told(self, replies: Iterable[fl.Message]) -> dict[int, bytes]:
        """Return the clients' replies by number; log what other nodes answer."""
        found = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            if _has_record(reply):
                found[self._nodes.index(node)] = reply.content[RECORD]["reply"]
            else:
                reason = reply.error.reason if reply.has_error() else "not an answer of hpcfl's mod"
                log(WARNING, "node %d: %s. Its train function needs mods=[mod()]", node, reason)
        return found

    def _fail(self, server_round: int, error: HpcflError) -> None:
        self._round = None
        log(ERROR, "round %d ends without a sum: %s", server_round, error)

    def aggregate_train(
        self, server_round: int, replies: Iterable[fl.Message]
    ) -> tuple[fl.ArrayRecord | None, fl.MetricRecord | None]:
        """Play the rest of the round, and let the strategy have the mean.

        Without a sum, return the model that the round began with.
        """
        replies, played, self._round = [*replies], self._round, None
        if played is None:
            return self._arrays, None
        try:
            played.up_to_upload(self._ask, self._told(replies))
            mean = self._mean(played, [*filter(_has_record, replies)])
        except HpcflError as error:
            self._fail(server_round, error)
            return self._arrays, None
        finally:
            for id, reason in played.refused.items():
                log(WARNING, "node %d (device %d) left the round: %s", self._nodes[id], id, reason)
        survivors, clients = len(played.server.survivors), played.offer.devices
        log(INFO, "secure aggregation: the mean of %d of %d clients", survivors, clients)
        return self.strategy.aggregate_train(server_round, [mean])

    def _mean(self, played: ServerRound, replies: Sequence[fl.Message]) -> fl.Message:
        """Return the mean of a round as the reply of one client."""
        before = self._arrays
        after = updates.applied(before.to_numpy_ndarrays(), played)
        key = getattr(self.strategy, "weighted_by_key", "num-examples")
        # Only clients whose mod says so send metrics.
        metrics = [reply.content for reply in replies if reply.content.metric_records]
        averaged = fl.MetricRecord()
        if metrics:
            try:
                validate_message_reply_consistency(metrics, key, check_arrayrecord=False)
                averaged = aggregate_metricrecords(metrics, key)
            except Exception as error:  # a client may send anything
                log(ERROR, "the clients' metrics are not averaged: %s", error)
        averaged[key] = 1.0
        model = fl.ArrayRecord(dict(zip(before.keys(), map(fl.Array, after), strict=True)))
        replies[0].content = fl.RecordDict({"arrays": model, "metrics": averaged})
        return replies[0]

    def configure_evaluate(
        self, server_round: int, arrays: fl.ArrayRecord, config: fl.ConfigRecord, grid: Grid
    ) -> Iterable[fl.Message]:
        """Ask for evaluations if that is wanted."""
        if not self._evaluation:
            return []
        hidden = _Hiding(grid, self._helpers)
        return self.strategy.configure_evaluate(server_round, arrays, config, hidden)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[fl.Message]
    ) -> fl.MetricRecord | None:
        """Let the strategy aggregate evaluations."""
        return self.strategy.aggregate_evaluate(server_round, replies)


class _Hiding:
    """A grid without the nodes that are helpers."""

    def __init__(self, grid: Grid, helpers: Sequence[int]) -> None:
        self._grid, self._helpers = grid, {*helpers}

    def get_node_ids(self) -> list[int]:
        return [node for node in self._grid.get_node_ids() if node not in self._helpers]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


def _has_record(reply: fl.Message) -> bool:
    record = {} if reply.has_error() else reply.content.get(RECORD, {})
    return isinstance(record.get("reply"), bytes)


def mod(
    folder: str | os.PathLike[str] | None = None,
    *,
    weighted_by_key: str = "num-examples",
    send_metrics: bool = False,
    **policy: Any,
) -> Mod:
    """Return the mod for a client's train function.

    Parameters
    ----------
    folder
        Where the node keeps its key and its journal, on a disk that lasts; by default what the
        node's configuration says as `hpcfl-folder`, or `hpcfl` in the folder for programs' states
        of the user (``XDG_STATE_HOME``).
    weighted_by_key
        The metric of the reply that holds the number of training examples.
    send_metrics
        Whether to send the other metrics, and that number, in the clear.
    **policy
        The fields of :class:`~hpcfl.exchange.policy.Policy`.
    """
    limits = Policy(**policy)

    def secure(
        message: fl.Message, context: fl.Context, call_next: ClientAppCallable
    ) -> fl.Message:
        record = message.content.get(RECORD)
        if record is None or "request" not in record:
            reason = (
                "this client takes part in secure aggregation only: wrap the server's strategy in "
                "hpcfl.integrations.flower.SecureAggregation"
            )
            return fl.Message(fl.Error(ErrorCode.MOD_FAILED_PRECONDITION, reason), reply_to=message)
        trained: list[fl.Message] = []

        def vector(offer: Offer) -> NDArray[np.float32]:
            del message.content[RECORD]
            reply = call_next(message, context)
            trained.append(reply)
            if reply.has_error():
                log(ERROR, "the client did not train: %s", reply.error.reason)
                raise RefusedError("the client did not train")
            before, after = (
                next(iter(content.array_records.values())).to_numpy_ndarrays()
                for content in (message.content, reply.content)
            )
            metrics = {k: v for m in reply.content.metric_records.values() for k, v in m.items()}
            if offer.about[updates.MOST] is not None and weighted_by_key not in metrics:
                raise RefusedError(f"the client's train function gives no {weighted_by_key!r}")
            return updates.change(before, after, metrics.get(weighted_by_key, 0), offer)

        home = _home(folder, context)
        key, asked = _key(home), record["request"]
        client, kept = Client(limits, FileJournal(home / "journal")), context.state.get(RECORD)
        if kept is not None and kept["run"] == Request.read(asked).offer.run:
            client = Client.restore(kept["client"], key, limits, FileJournal(home / "journal"))
        content = fl.RecordDict({RECORD: fl.ConfigRecord({"reply": client.handle(asked, vector)})})
        if client.run:  # or else it has refused its first request
            kept = fl.ConfigRecord({"run": client.run, "client": client.save(key)})
            context.state[RECORD] = kept
        if trained and send_metrics:
            content.update(trained[0].content.metric_records.items())
        return fl.Message(content, reply_to=message)

    return secure


def _home(folder: str | os.PathLike[str] | None, context: fl.Context) -> Path:
    """Return the folder of a node, private to its user."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    chosen = folder or context.node_config.get("hpcfl-folder") or Path(state, "hpcfl")
    home = Path(str(chosen), str(context.node_id))
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    return home


def _key(home: Path) -> bytes:
    """Return the key of a node, made when it is first needed."""
    path = home / "key"
    while True:
        with suppress(FileNotFoundError):
            return path.read_bytes()
        # Another process must never read a part of the key.
        draft = path.with_name(f"key.{secrets.token_hex(8)}")
        with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
        with suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()
