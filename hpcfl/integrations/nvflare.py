"""Secure aggregation in NVFlare: an aggregator for ScatterAndGather, and a filter for clients.

Trainer and workflow stay as they are. The exchanges before and after the training are aux messages;
the upload replaces the trained model in the result of the task. Processes of a job live on, so
clients are not saved: one that restarts enrols no more, and its old keys are gone.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import ContentBlockedException, Filter
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.abstract.aggregator import Aggregator
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType

from hpcfl.errors import HpcflError, RefusedError, UsageError
from hpcfl.exchange import Client, Policy, ServerRound, Session
from hpcfl.exchange.request import Offer
from hpcfl.exchange.server import Replies, Requests
from hpcfl.integrations import updates

TOPIC, BYTES, UPLOAD = "hpcfl", "hpcfl bytes", "hpcfl upload"


class SecureAggregator(Aggregator):
    """The aggregator of a job whose server learns the mean of the clients' models.

    `most_examples` is as in :class:`hpcfl.integrations.flower.SecureAggregation`, and `options` are
    those of the protocol. Protocols with helpers are refused.
    """

    def __init__(
        self,
        protocol: str = "secagg",
        most_examples: float | None = None,
        timeout_seconds: float = 60,
        **options: Any,
    ) -> None:
        super().__init__()
        updates.check_weighted(protocol, most_examples)
        self._most, self._timeout = most_examples, timeout_seconds
        # The first round tells how many values a model has.
        self._session = Session(protocol, 1, about={updates.MOST: most_examples}, **options)
        if self._session.helpers:
            raise UsageError(f"{protocol} has helpers, which NVFlare's jobs have not")
        self._round: ServerRound | None = None
        self._clients: list[str] = []
        self._replies: dict[int, bytes] = {}

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Play a round up to the upload as it begins."""
        super().handle_event(event_type, fl_ctx)
        if event_type == AppEventType.ROUND_STARTED:
            try:
                self._begin(fl_ctx)
            except HpcflError as error:
                self._fail(error, fl_ctx)

    def _begin(self, fl_ctx: FLContext) -> None:
        self._replies = {}

        def ask(requests: Requests) -> Replies:
            return self._ask(requests, fl_ctx)

        if not self._clients:
            self._session.dim = updates.length([*_model(fl_ctx).values()], self._most)
            self._clients = sorted(one.name for one in fl_ctx.get_engine().get_clients())
            # The first round starts before the clients' processes do.
            everybody = dict.fromkeys(range(len(self._clients)), b"")
            for _ in range(int(self._timeout)):
                if len(ask(everybody)) == len(everybody):
                    break
                time.sleep(1)
            enrolment = self._session.enrol(len(self._clients))
            if enrolment is not None:
                enrolment.play(ask)
        index = fl_ctx.get_prop(AppConstants.CURRENT_ROUND)
        self._round = self._session.round(index, range(len(self._clients)))
        self._ask(self._round.up_to_upload(ask), fl_ctx, upload=True)

    def _ask(self, requests: Requests, fl_ctx: FLContext, upload: bool = False) -> Replies:
        """Send all requests at once, and return the replies."""
        engine = fl_ctx.get_engine()

        def send(id: int) -> bytes | None:
            name, message = self._clients[id], Shareable({BYTES: requests[id], UPLOAD: upload})
            # In 2.9.0, multicast_aux_requests with a timeout raises TypeError.
            found = engine.send_aux_request([name], TOPIC, message, self._timeout, fl_ctx) or {}
            reply: bytes | None = found.get(name, {}).get(BYTES)
            return reply

        with ThreadPoolExecutor(max(1, len(requests))) as pool:
            replies = zip(requests, pool.map(send, requests), strict=True)
            return {id: reply for id, reply in replies if reply is not None}

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Keep a client's upload until all have come."""
        name = shareable.get_peer_prop(ReservedKey.IDENTITY_NAME, "")
        if shareable.get_return_code() != ReturnCode.OK or name not in self._clients:
            return False
        upload = from_shareable(shareable).data.get(BYTES)
        if upload is None:
            return False
        self._replies[self._clients.index(name)] = upload
        return True

    def aggregate(self, fl_ctx: FLContext) -> Shareable:
        """Play the rest of the round, and return the model after the mean change."""
        model, played = _model(fl_ctx), self._round
        self._round = None
        if played is not None:
            try:
                played.up_to_upload(lambda requests: self._ask(requests, fl_ctx), self._replies)
                after = updates.applied([*model.values()], played)
                model = dict(zip(model, after, strict=True))
            except HpcflError as error:
                self._fail(error, fl_ctx)
        return DXO(DataKind.WEIGHTS, data=model).to_shareable()

    def _fail(self, error: HpcflError, fl_ctx: FLContext) -> None:
        self._round = None
        self.log_error(fl_ctx, f"the round ends without a sum: {error}")


def _model(fl_ctx: FLContext) -> dict[str, Any]:
    weights: dict[str, Any] = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)[ModelLearnableKey.WEIGHTS]
    return {name: np.asarray(values) for name, values in weights.items()}


class SecureFilter(Filter):
    """A filter on the results of a client's train task, which sends masked changes of the model.

    `policy` are the fields of :class:`~hpcfl.exchange.policy.Policy`. Metrics and all else in a
    result is dropped. Unlike NVFlare's DXOFilter, it blocks a result that it cannot mask.
    """

    def __init__(self, **policy: Any) -> None:
        super().__init__()
        self._client = Client(Policy(**policy))
        self._upload = b""  # the request that the result of the current task answers
        self._before: dict[str, NDArray[Any]] = {}  # the model of the current task

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Take requests from the start of the run on, and models before a trainer changes them."""
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.START_RUN:
            fl_ctx.get_engine().register_aux_message_handler(TOPIC, self._handle)
        elif event_type == EventType.BEFORE_TASK_EXECUTION:
            model = from_shareable(fl_ctx.get_prop(FLContextKey.TASK_DATA)).data
            self._before = {name: np.array(one) for name, one in model.items()}

    def _handle(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        reply = make_reply(ReturnCode.OK)
        if request[UPLOAD] or not request[BYTES]:
            self._upload = reply[BYTES] = request[BYTES]
            return reply

        def nothing(offer: Offer) -> NDArray[np.float32]:
            raise RefusedError("the client uploads only the result of a task")

        reply[BYTES] = self._client.handle(request[BYTES], nothing)
        return reply

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return a result with the masked change in place of the model; block any other."""
        asked, self._upload = self._upload, b""
        if shareable.get_return_code() != ReturnCode.OK:
            return make_reply(shareable.get_return_code())
        try:
            if not asked:
                raise ValueError("the server did not ask for a masked result")
            trained, before = from_shareable(shareable), self._before
            after = [np.asarray(trained.data[name]) for name in before]
            if trained.data_kind == DataKind.WEIGHT_DIFF:
                after = [old + one for old, one in zip(before.values(), after, strict=True)]
            elif trained.data_kind != DataKind.WEIGHTS:
                raise ValueError(f"the result holds {trained.data_kind}, and not a model")
            examples = trained.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND, 1)
            upload = self._client.handle(
                asked,
                lambda offer: updates.change([*before.values()], after, examples, offer),
            )
        except Exception as error:
            raise ContentBlockedException(str(error)) from error
        return DXO(DataKind.APP_DEFINED, data={BYTES: upload}).to_shareable()
