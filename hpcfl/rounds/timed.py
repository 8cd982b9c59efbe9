"""Plays one round of an aggregation protocol: timed, validated, and added up over the ranks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import (
    Aggregate,
    AggregationProtocol,
    Enrolment,
    QuantisedProtocol,
)
from hpcfl.comm.transport import Transport
from hpcfl.crypto.keys import SecretSource, insecure_secrets, system_secrets
from hpcfl.errors import HpcflError, ValidationError
from hpcfl.results.record import RoundRecord
from hpcfl.rounds.driver import Inputs, Prepare, Round
from hpcfl.rounds.failures import LossWatch, Strike, as_planned
from hpcfl.rounds.ledger import Ledger
from hpcfl.rounds.validation import agrees, expected_total, quantisation

if TYPE_CHECKING:
    from hpcfl.attack.recording import Recorder

SPENT = (
    *("bytes_up", "bytes_down", "messages_up", "messages_down"),
    *("wall_seconds", "cpu_seconds"),
)
# Stands for the round in envelopes of an enrolment.
NO_ROUND = 2**32 - 1
# Stands for a device's number in what the server's secrets come from.
SERVER = -2


@dataclass(frozen=True)
class Enrolled:
    """What came of an enrolment.

    Attributes
    ----------
    devices : mapping of int to device
        This rank's devices, with their secrets.
    population : int
        Number n of devices of all ranks.
    record : RoundRecord
        At the server what all ranks spent; elsewhere what this rank spent.
    first_round : int
        The round that it was for.
    """

    devices: Mapping[int, Any] = field(repr=False)
    population: int
    record: RoundRecord
    first_round: int

    def charge(self, record: RoundRecord, round_index: int) -> None:
        """Add what the enrolment cost to the record, of all n devices, if it is the first's."""
        if round_index != self.first_round:
            return
        for name in (*SPENT, "round_seconds"):
            setattr(record, name, getattr(record, name) + getattr(self.record, name))


def enrol(
    protocol: type[AggregationProtocol],
    transport: Transport,
    *,
    first_round: int,
    insecure_seed: int | None = None,
) -> Enrolled | None:
    """Let all devices enrol before the first round of a run; every rank calls this.

    Parameters
    ----------
    protocol : subclass of AggregationProtocol
        The protocol.
    transport : Transport
        How messages move.
    first_round : int
        The round that follows, to which the enrolment is charged.
    insecure_seed : int, optional
        Seed of the keys, which come from the operating system without it.

    Returns
    -------
    Enrolled or None
        None for a protocol without enrolment.

    Raises
    ------
    HpcflError
        On every rank, if the server cannot go on; on one rank, if one of its devices cannot.
    """
    count = transport.placement.devices
    enrolment = protocol.enrolment(count)
    if enrolment is None:
        return None
    local = transport.local_devices
    ledger = Ledger(protocol.phases(), count, local, transport.has_server)
    devices = {id: enrolment.device(id, _secrets(insecure_seed, NO_ROUND, id)) for id in local}
    _register(enrolment, transport, devices)
    played = Round(
        enrolment.steps,
        transport,
        ledger,
        index=NO_ROUND,
        devices=devices,
        server=enrolment.server() if transport.has_server else None,
        inputs=lambda id: np.empty(0),
        dropouts={},
        dim=0,
        largest_message=enrolment.largest_message,
    )
    transport.barrier()
    start = time.perf_counter()
    played.play()
    record = add_up(transport, ledger.record, time.perf_counter() - start)
    return Enrolled(devices, count, record, first_round)


def _register(enrolment: Enrolment, transport: Transport, devices: Mapping[int, Any]) -> None:
    """Tell all devices with which public key each of them is registered, if they are.

    This stands for a public-key infrastructure: it takes no part in a round's time and bytes, and
    the server, though the keys pass through its process, has no hand in them.
    """
    size = enrolment.registered_bytes
    if not size:
        return
    registry = np.zeros((transport.placement.devices, size), np.uint8)
    for id, device in devices.items():
        registry[id] = np.frombuffer(device.registers(), np.uint8)
    together = transport.sum_to_server(registry)
    message = None if together is None else together.reshape(-1)
    registry = transport.broadcast(message).reshape(-1, size)
    for device in devices.values():
        device.learn(registry)


@dataclass(frozen=True)
class Played:
    """What came of a round.

    Attributes
    ----------
    record : RoundRecord
        At the server what all ranks spent; elsewhere what this rank spent.
    aggregate : Aggregate or None
        What the round has given, at the server; None elsewhere.
    prepare_seconds : float
        Elapsed time of making the vectors, kept out of the record.
    quantisation_error, clipped_fraction : float
        As :func:`~hpcfl.rounds.validation.quantisation` says; NaN where it was not asked for, for
        protocols that do not quantise, and except at the server.
    checkable : bool
        Whether the aggregate could be validated: not if a device died after its upload, and nobody
        else knows the noise that it drew.
    refused : mapping of int to HpcflError
        As :class:`~hpcfl.rounds.driver.Round` has it; each has been printed.
    """

    record: RoundRecord
    aggregate: Aggregate | None
    prepare_seconds: float
    quantisation_error: float = float("nan")
    clipped_fraction: float = float("nan")
    checkable: bool = True
    refused: Mapping[int, HpcflError] = field(default_factory=dict)


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
    recorder: Recorder | None = None,
    enrolled: Enrolled | None = None,
    members: Sequence[int] | None = None,
    strike: Strike | None = None,
) -> Played:
    """Play a round; every rank calls this.

    Parameters
    ----------
    protocol : AggregationProtocol
        The protocol, for as many devices as the transport has.
    transport : Transport
        How messages move.
    index : int
        Number of the round.
    model : ndarray of float32, shape (d,)
        The model that the server broadcasts; other ranks' values do not matter.
    inputs, prepare, dropouts
        As for :class:`~hpcfl.rounds.driver.Round`.
    reduce : bool
        Sum the uploads within the transport.
    insecure_seed : int, optional
        Seed of the keys, which come from the operating system without it.
    with_quantisation : bool
        Find out, untimed, what clipping and rounding did to the sum.
    recorder : Recorder, optional
        Keeps what the server received and, untimed, what it takes to attack the round.
    enrolled : Enrolled, optional
        What `enrol` returned, for the run of which this is a round.
    members : sequence of int, optional
        The ids under which the round's devices enrolled, in increasing order; by default all.
    strike : callable, optional
        Called at each moment of each phase, see :class:`~hpcfl.rounds.driver.Round`; it may end
        this process.

    Raises
    ------
    HpcflError
        On every rank, if the server cannot go on; on one rank, if one of its devices cannot.
    """
    count = protocol.parameters.devices
    together = range(count) if members is None else members
    if enrolled is not None:
        protocol.join(enrolled.devices, together, enrolled.population)
    local = transport.local_devices
    ledger = Ledger(protocol.phases(), count, local, transport.has_server)
    devices = {id: protocol.device(id, index, _secrets(insecure_seed, index, id)) for id in local}
    if enrolled is not None:
        # The protocol may outlive the run: only the round's devices hold the enrolment's secrets.
        protocol.join({}, together, enrolled.population)
    server = None
    if transport.has_server:
        server = protocol.server(index, model, _secrets(insecure_seed, index, SERVER))
    transport.barrier()
    phases = protocol.phases()
    watch = LossWatch(transport, phases, strike)
    # To the others a device whose rank died is one that vanished before the round.
    dropouts = {**dropouts, **dict.fromkeys(watch.absent, phases[0])}
    round_ = Round(
        protocol.steps,
        transport,
        ledger,
        index=index,
        devices=devices,
        server=server,
        inputs=inputs,
        prepare=prepare,
        dropouts=dropouts,
        dim=protocol.parameters.dim,
        largest_message=protocol.largest_message,
        reduce_group=protocol.summed_in if reduce else None,
        listen=None if recorder is None else recorder.hear,
        watch=watch,
    )
    start = time.perf_counter()
    round_.play()
    elapsed = time.perf_counter() - start - round_.prepare_seconds

    record = add_up(transport, ledger.record, elapsed)
    upload = phases.index(protocol.upload_phase())
    survivors = [
        id for id in range(count) if id not in dropouts or phases.index(dropouts[id]) > upload
    ]
    kept_out = _kept_out(transport, round_, server, survivors)
    survivors = [id for id in survivors if id not in kept_out]
    for refusal in round_.refused.values():
        print(f"round {index}: {refusal}", file=sys.stderr)
    here = [devices[id] for id in survivors if id in devices]
    dim = protocol.parameters.dim
    exact = protocol.summed_in is not None
    checkable = True
    while True:
        lost = transport.lost
        gone = [] if server is None else [id for id in server.survivors if id in lost]
        checkable = not gone or insecure_seed is not None or protocol.repeatable
        proxies = [protocol.stand_in(server, id, index) for id in gone if checkable]
        expected = expected_total(transport, [*here, *proxies], inputs, dim, exact)
        # Whoever died meanwhile had a part in it that is missing now.
        if transport.lost == lost:
            break
    watch.enter(record)
    aggregate = None
    if server is not None and expected is not None:
        record.survived[server.survivors] = True
        record.validated = (
            checkable
            and as_planned(server.survivors, survivors, watch.phase_of, upload)
            and agrees(server.total, *expected)
        )
        aggregate = protocol.aggregate(server)
        record.promise_failure = protocol.promise_failure(protocol.outcome(server))
    if recorder is not None:
        recorder.collect(transport, devices, here, server, inputs)
    played = Played(
        record,
        aggregate,
        round_.prepare_seconds,
        checkable=checkable,
        refused=round_.refused,
    )
    if not with_quantisation or not isinstance(protocol, QuantisedProtocol):
        return played
    error, clipped = quantisation(transport, here, inputs, aggregate, dim)
    return replace(played, quantisation_error=error, clipped_fraction=clipped)


def _kept_out(
    transport: Transport, played: Round, server: Any | None, planned: list[int]
) -> set[int]:
    """Return, on every rank, who should have survived, but was refused before its upload counted.

    Parameters
    ----------
    transport : Transport
        Tells the other ranks; every rank calls this.
    played : Round
        The round.
    server : server or None
        The server, on its rank.
    planned : list of int
        The devices that were not to drop out.
    """
    told = None
    if server is not None:
        ids = sorted({*planned} & {*played.refused} - {*server.survivors})
        told = np.array(ids, np.int64).view(np.uint8)
    if not transport.tell(0 if told is None else told.size):
        return set()
    return set(transport.broadcast(told).view(np.int64).tolist())


def keep(store: Callable[[], None], validated: bool, index: int) -> HpcflError | None:
    """Store a round; return what speaks against going on.

    Parameters
    ----------
    store : callable
        Stores the round, whether its aggregate is right or not.
    validated : bool
        Whether it is.
    index : int
        Number of the round.
    """
    try:
        store()
    except HpcflError as error:
        return error
    if validated:
        return None
    return ValidationError(
        f"the aggregate of round {index} is wrong: it is not the sum of the survivors' vectors; "
        "the results file keeps the round as evidence"
    )


def _secrets(insecure_seed: int | None, index: int, device: int) -> SecretSource:
    if insecure_seed is None:
        return system_secrets
    return insecure_secrets(insecure_seed, index, device)


def add_up(transport: Transport, record: RoundRecord, elapsed: float) -> RoundRecord:
    """Return the sum of the ranks' records at the server, this rank's own elsewhere."""
    for name in SPENT:
        total = transport.sum_to_server(getattr(record, name))
        if total is not None:
            setattr(record, name, total)
    longest = transport.max_to_server(elapsed)
    record.round_seconds = elapsed if longest is None else longest
    return record
