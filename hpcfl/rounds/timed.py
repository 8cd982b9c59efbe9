"""One round of an aggregation protocol: timed, validated, and added up over the ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import Aggregate, AggregationProtocol
from hpcfl.algorithms.aggregation.promises import failure_of
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.algorithms.aggregation.ranges import Dealt, RangeSum
from hpcfl.comm.transport import Transport
from hpcfl.crypto.keys import helper_secrets, secrets_of
from hpcfl.errors import HpcflError, UsageError
from hpcfl.results.record import RoundRecord
from hpcfl.rounds.clock import timed
from hpcfl.rounds.driver import Inputs, Prepare, Round, RoundConfig
from hpcfl.rounds.enrolment import Enrolled
from hpcfl.rounds.eventclock import EventClock, RoundClock, needed_in
from hpcfl.rounds.failures import FailureWatch, as_planned
from hpcfl.rounds.ledger import Ledger
from hpcfl.rounds.observer import NOBODY, RoundObserver, Scene, Together
from hpcfl.rounds.validation import as_expected, quantisation
from hpcfl.values import dataclass, field, replace

# The server's number in the derivation of secrets, where devices have their ids.
SERVER = -2


@dataclass(frozen=True, repr=False)
class Played:
    """The result of a round."""

    record: RoundRecord  # at the server the costs of all ranks, elsewhere those of this rank
    aggregate: Aggregate | None  # at the server
    prepare_seconds: float  # elapsed time of making the vectors, not in the record
    # The results of `quantisation`; NaN if not requested or if the protocol does not quantise.
    quantisation_error: float = float("nan")
    clipped_fraction: float = float("nan")
    # False if a device died after its upload and its noise cannot be drawn again.
    checkable: bool = True
    refused: Mapping[int, HpcflError] = field(default_factory=dict)  # see `Round.refused`

    # The figures of training, by their names in results files.
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        """Whether the aggregate is right, or cannot be validated."""
        return self.record.validated or not self.checkable


def play(
    protocol: AggregationProtocol,
    transport: Transport,
    *,
    index: int,
    model: NDArray[np.float32],
    inputs: Inputs,
    prepare: Prepare | None = None,
    dropouts: Mapping[int, str],
    reduce: bool = False,
    insecure_seed: int | None = None,
    with_quantisation: bool = False,
    enrolled: Enrolled | None = None,
    members: Sequence[int] | None = None,
    clock: EventClock | None = None,
    observer: RoundObserver = NOBODY,
) -> Played:
    """Play a round of a protocol that has as many devices as the transport.

    Every rank calls this; the values of `model` matter only at the server. `inputs`, `prepare` and
    `dropouts` are as for :class:`~hpcfl.rounds.driver.Round`. With `reduce`, uploads are summed
    within the transport. Keys come from `insecure_seed`, or from the operating system.
    `with_quantisation` measures, untimed, the error from clipping and rounding. `members` are the
    ids under which the round's devices enrolled, in increasing order; by default all. With `clock`,
    devices drop out if they are late by it.

    Raise HpcflError on every rank if the server cannot continue; on one rank, if one of its devices
    cannot.
    """
    count, dim = protocol.parameters.devices, protocol.parameters.dim
    phases, local = protocol.phases(), transport.local_devices
    together = range(count) if members is None else members
    if enrolled is not None:
        protocol.join(enrolled.devices, together, enrolled.population)
    devices = {id: protocol.device(id, index, secrets_of(insecure_seed, index, id)) for id in local}
    helpers = {
        id: protocol.helper(id - count, index, helper_secrets(insecure_seed, index, id - count))
        for id in transport.local_helpers
    }
    server = None
    if transport.has_server:
        server = protocol.server(index, model, secrets_of(insecure_seed, index, SERVER))
    if enrolled is not None:
        # The protocol may outlive the run: only the round's devices hold the enrolment's secrets.
        protocol.join({}, together, enrolled.population)
    dealt, range_sum = deal_out(protocol, transport, server)
    if dealt is not None and observer.hears:
        raise UsageError("an observer hears no uploads that are dealt out to several server ranks")
    transport.compare_clocks()
    transport.barrier()  # afterwards all ranks know of the same deaths
    failures = FailureWatch(transport, phases)
    # A device whose rank has died counts as one that dropped out before the round.
    dropouts = {**dropouts, **dict.fromkeys(failures.absent, phases[0])}
    ledger, of_round = Ledger.of(phases, transport), None
    if clock is not None:
        of_round = RoundClock(clock, transport, ledger, together, needed_in(protocol))
        dropouts = {**dropouts, **dict.fromkeys(of_round.late, phases[0])}
    config = RoundConfig(
        index=index,
        dim=dim,
        called=f"round {index} of the protocol {protocol.name!r}",
        largest_message=protocol.largest_message,
        largest_reply=protocol.largest_reply,
        dropouts=dropouts,
        in_parts=not observer.hears,
        dealt=dealt,
        reduce_group=protocol.summed_in if reduce else None,
    )
    round_ = Round(
        *(protocol.steps, transport, ledger, config),
        devices=devices,
        helpers=helpers,
        server=server,
        inputs=inputs,
        prepare=prepare,
        range_sum=range_sum,
        observer=Together(observer, failures),
        clock=of_round,
    )
    record = timed(transport, round_)
    if of_round is not None:
        of_round.finish(record, [step.phase for step in protocol.steps])
        number = next(k for k, step in enumerate(protocol.steps) if step.upload)
        early = (id for id, (step, _) in of_round.late.items() if step <= number)
        dropouts = {**dropouts, **dict.fromkeys(early, phases[0])}
    upload = phases.index(protocol.upload_phase())
    planned = [
        id for id in range(count) if id not in dropouts or phases.index(dropouts[id]) > upload
    ]
    kept_out = _kept_out(transport, round_, server, planned)
    planned = [id for id in planned if id not in kept_out]
    for refusal in round_.refused.values():
        observer.refused(index, refusal)
    here = [devices[id] for id in planned if id in devices]
    total = np.empty(0) if server is None else server.total
    while True:
        lost = transport.failed
        gone = [] if server is None else [id for id in server.survivors if id in lost]
        checkable = not gone or insecure_seed is not None or protocol.repeatable
        proxies = [protocol.stand_in(server, id, index) for id in gone if checkable]
        right = as_expected(protocol, transport, [*here, *proxies], inputs, total)
        # If a rank died meanwhile, its part of the sum is missing: check again.
        if transport.failed == lost:
            break
    failures.enter(record)
    aggregate = None
    if server is not None:
        record.survived[server.survivors] = True
        if protocol.has_committee:
            record.in_committee[server.committee] = True
        record.validated = (
            checkable and as_planned(server.survivors, planned, failures.phase_of, upload) and right
        )
        aggregate = protocol.aggregate(server)
        record.promise_failure = failure_of(protocol.promises(), protocol.outcome(server))
    observer.collect(Scene(index, transport, devices, here, server, inputs))
    played = Played(
        record, aggregate, round_.prepare_seconds, checkable=checkable, refused=round_.refused
    )
    if not with_quantisation or not isinstance(protocol, QuantisedProtocol):
        return played
    error, clipped = quantisation(transport, here, inputs, aggregate, dim)
    return replace(played, quantisation_error=error, clipped_fraction=clipped)


def deal_out(
    protocol: AggregationProtocol, transport: Transport, server: Any | None
) -> tuple[Dealt | None, RangeSum | None]:
    """Split uploads among the ranks of a server, if it has several.

    Return the split, and this rank's own sum if it is a server rank other than the first.
    """
    if transport.placement.servers == 1:
        return None, None
    dealt = Dealt.uploads_of(protocol, transport.placement.servers)
    if server is not None:
        server.take_range(dealt.ranges[0])
    if not transport.helps_server:
        return dealt, None
    assert isinstance(protocol, QuantisedProtocol)
    return dealt, RangeSum.of(protocol, dealt.ranges[transport.rank])


def _kept_out(
    transport: Transport, played: Round, server: Any | None, planned: list[int]
) -> set[int]:
    """Return, on every rank, the planned devices that were refused before their uploads counted.

    `planned` are the devices that were not to drop out; every rank calls this.
    """
    told = None
    if server is not None:
        ids = sorted({*planned} & {*played.refused} - {*server.survivors})
        told = np.array(ids, np.int64).view(np.uint8)
    if not transport.tell(0 if told is None else told.size):
        return set()
    return set(transport.broadcast(told).view(np.int64).tolist())
