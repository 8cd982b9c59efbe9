"""What all ranks of a transport do together; test_jobs has them run pytest on this file."""

import hashlib
import time
from functools import partial

import counting
import numpy as np
import pytest
from mpi4py import MPI
from player import parties, round_of

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.parameters import Parameters
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm import clocks, envelope, star
from hpcfl.comm.gates import Gated
from hpcfl.comm.loopback import Loopback
from hpcfl.comm.mpi import MpiTransport
from hpcfl.comm.patient import Patient
from hpcfl.comm.placement import Placement
from hpcfl.comm.world import World
from hpcfl.crypto.groups import GROUPS
from hpcfl.errors import AgreedError, BelowThresholdError, RefusedError
from hpcfl.options.bench import BenchOptions
from hpcfl.rounds.clock import timed
from hpcfl.rounds.enrolment import enrol

# More ranks than one: pytest-mpi leaves these tests out elsewhere.
pytestmark = pytest.mark.mpi(min_size=2)

DEVICES, DIM = 7, 5001


def transport(servers=1, kind=lambda comm: comm):
    """With so many server ranks, if there is another one for the devices, over a communicator."""
    comm = kind(MPI.COMM_WORLD.Dup())
    return MpiTransport(comm, Placement.even(DEVICES, comm.size, min(servers, comm.size - 1)))


class Recorder:
    """Passes everything on to a transport, and keeps a hash of every message that arrives."""

    def __init__(self, inner):
        self._inner = inner
        self.seen = []

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def _keep(self, kind, party, message):
        self.seen.append((kind, party, hashlib.sha256(message.tobytes()).hexdigest()))

    def broadcast(self, *arguments):
        message = self._inner.broadcast(*arguments)
        for device in self._inner.local_devices:
            self._keep("broadcast", device, message)
        return message

    def scatter(self, *arguments):
        for receiver, message in self._inner.scatter(*arguments):
            self._keep("scatter", receiver, message)
            yield receiver, message

    def gather(self, senders, produce, largest):
        for sender, message in self._inner.gather(senders, produce, largest):
            self._keep("gather", sender, message)
            yield sender, message

    def route(self, *arguments):
        received, took_part = self._inner.route(*arguments)
        return self._kept(received), took_part

    def _kept(self, received):
        for receiver, mine in received:
            for sender, row in zip(mine.senders.tolist(), mine.rows, strict=True):
                self._keep(f"route from {sender}", receiver, row)
            yield receiver, mine


def vectors(dim=DIM):
    return [np.random.default_rng(id).normal(0, 0.1, dim) for id in range(DEVICES)]


CASES = {
    "fedavg": {},
    "secagg": {},
    "secagg, summed by MPI": {"upload": "reduce"},
    "secagg, active": {"security": "active"},
    "secagg-graph": {"degree": 4},
    "sparse": {"alpha": 0.3},
    "cohort": {"alpha": 0.3},
    "common": {"alpha": 0.3},
    "lightsecagg": {},
    # All are members: a broadcast to some reaches all ranks, and is entered for these alone.
    "committee": {"committee": DEVICES},
    "opa": {"committee": DEVICES},
    "flamingo": {},
    "prf": {"alpha": 0.3, "dropout": 0.0},
}


def play(inner, case, gone, dim=DIM):
    """Play a round with fixed keys; return it and what this rank's parties received, sorted."""
    options = BenchOptions(protocol=case.split(",")[0], dim=dim, **CASES[case])
    protocol = Experiment.prepare(options, DEVICES).protocol
    among = transport() if inner.name == "mpi" else inner  # of which nothing is counted
    enrolled = enrol(protocol, among, insecure_seed=1)
    if enrolled is not None:
        protocol.join(enrolled.devices, range(DEVICES), DEVICES)
    recorder = Recorder(inner)
    devices, server = parties(protocol, recorder, 3)
    reduce = options.upload == "reduce" and inner.name == "mpi"
    more = {"index": 3, "dropouts": gone, "reduce": reduce}
    played = round_of(protocol, recorder, devices, server, vectors(dim), **more)
    played.play()
    seen = sorted(recorder.seen)
    if server is not None:
        digest = hashlib.sha256(server.total.tobytes()).hexdigest()
        seen.append(("total", *server.survivors, *sorted(played.refused), digest))
    return played, seen


@pytest.mark.parametrize(
    ("case", "servers"), [*((case, 1) for case in CASES), ("secagg", 2), ("secagg", 3)]
)
def test_mpi_moves_the_bytes_of_the_loopback_and_the_ledger_has_them_all(case, servers):
    """What several ranks of a server tell each other is none of the protocol's."""
    summed, dim = "summed" in case, DIM if servers == 1 else 40_000
    gone = {1: "upload" if case == "fedavg" else "advertise_keys"} if case != "prf" else {}
    if gone and case != "fedavg" and not summed:
        gone[4] = "unmask"
    inner = transport(servers, counting.Counted)
    comm, local = inner._comm, set(inner.local_devices)
    played, mine = play(inner, case, gone, dim)
    first = comm.rank == 0
    everything = comm._comm.bcast(play(Loopback(DEVICES), case, gone, dim)[1] if first else None)
    expected = [
        one
        for one in everything
        if (inner.has_server if one[0] in ("gather", "total") else one[1] in local)
        # What is added on the way, or comes in parts, is not received whole.
        and not (one[0] == "gather" and (summed or servers > 1))
    ]
    assert [one for one in mine if one[0] != "gather" or not (summed or servers > 1)] == expected
    assert bool(expected) == (inner.has_server or bool(local))

    record = played.ledger.record
    stand_for = [id for id in local if id not in gone]
    sent = comm.sent + len(stand_for) * comm.sent_once
    received = comm.received + len(local) * comm.received_once
    assert sent == record.bytes_up[:, list(local)].sum()
    # One that left the round is still told what all are.
    if len(stand_for) == len(local):
        assert received == record.bytes_down[:, list(local)].sum()


# Messages of any size, in windows and in calls of any size, over MPI's collectives and our own


@pytest.fixture(params=["MPI", "patient", "gated", "star"])
def kind(request):
    """Return what makes of a communicator one of each kind."""
    kinds = {"MPI": lambda comm: comm, "patient": Patient, "gated": Gated, "star": star.Star}
    return kinds[request.param]


@pytest.fixture
def sizes(monkeypatch):
    """Return what sets the sizes in which messages move."""

    def set_to(window=1 << 25, call=1 << 30, kept=0, rows=1 << 24, unit=840):
        for module, name, size in (
            *(("gather", "WINDOW_BYTES", window), ("gather", "CALL_BYTES", call)),
            *(("gather", "TURN_BYTES", window), ("mpi", "CALL_BYTES", call)),
            *(("scratch", "KEPT_BYTES", kept), ("gather", "LEAST_PART_BYTES", 1)),
            *(("rows", "WINDOW_BYTES", rows), ("rows", "BATCH_BYTES", rows)),
            ("envelope", "PART_UNIT", unit),
        ):
            monkeypatch.setattr(f"hpcfl.comm.{module}.{name}", size)

    return set_to


SIZES = [90, 0, 3, 17, 1, 0, 64]
DATA = np.random.default_rng(5).integers(0, 256, (DEVICES, 90), np.uint8)
EXPECTED = [(id, DATA[id, :size].tolist()) for id, size in enumerate(SIZES) if size]


def message(id):
    return DATA[id, : SIZES[id]]


@pytest.mark.parametrize(
    ("window", "call", "kept"),
    [(1, 1, 0), (200, 7, 10**6), (200, 2**30, 0), (10**6, 64, 0), (10**6, 2**30, 10**6)],
)
def test_messages_move_in_windows_and_calls_of_any_size(sizes, kind, window, call, kept):
    sizes(window, call, kept)
    inner = transport(kind=kind)
    senders = [id for id in inner.local_devices if SIZES[id]]

    for _ in range(2):  # more than once: memory may be used again
        got = list(inner.gather(senders, message, largest=90))
        assert [(id, m.tolist()) for id, m in got] == (EXPECTED if inner.has_server else [])
    told = inner.broadcast(DATA.reshape(-1) if inner.has_server else None)
    scattered = list(inner.scatter(senders, message))
    summed = inner.reduce(
        list(inner.local_devices),
        lambda id: np.arange(33, dtype=np.uint32).view(np.uint8) * 1,
        GROUPS["fq"].add_into,
        np.zeros(33, np.uint32),
    ) if call > 3 else None  # fmt: skip

    assert told.tolist() == DATA.reshape(-1).tolist()
    local = [one for one in EXPECTED if one[0] in inner.local_devices]
    assert [(id, m.tolist()) for id, m in scattered] == local
    assert summed is None or summed[1].tolist() == [7 * k for k in range(33)]


@pytest.mark.parametrize("unit", [1, 7, 30])
@pytest.mark.parametrize("ids", [range(DEVICES), [0, 2, 3, 6]])
def test_long_messages_are_received_in_parts(sizes, unit, ids):
    sizes(window=80, unit=unit)
    whole = transport()
    inner = whole.select(ids)
    senders = [id for id in inner.local_devices if SIZES[ids[id]]]

    for _ in range(2):
        got = {}
        for id, part in inner.gather_parts(senders, lambda id: message(ids[id]), 90):
            assert part.size == SIZES[ids[id]]
            assert part.start == sum(map(len, got.get(id, [])))
            assert part.start == 0 or (part.start - 16) % unit == 0
            got.setdefault(id, []).append(part.data.tolist())
        found = [(ids[id], [value for piece in got[id] for value in piece]) for id in sorted(got)]
        assert found == [one for one in EXPECTED if inner.has_server and one[0] in ids]
        if inner.has_server:
            # In windows of as many devices as ranks.
            ranks = inner.placement.ranks - 1
            step = max(1, 80 // min(ranks, len(ids)) // unit) * unit
            assert len(got[0]) == 1 + max(0, -(-(90 - 16 - step) // step))
    # The calls after it are numbered alike on all ranks.
    assert inner.calls.number == 2 * -(-len(ids) // (inner.placement.ranks - 1))


@pytest.mark.parametrize("at_once", [1, 60, 2**24])
def test_rows_move_in_windows_and_come_to_the_same_devices(sizes, kind, at_once):
    sizes(rows=at_once)
    inner = transport(kind=kind)
    senders = [id for id in inner.local_devices if id != 2]
    rows = []
    for id in senders:
        others = np.array([other for other in range(DEVICES) if other != id], np.int64)
        payloads = np.tile(np.arange(5, dtype=np.uint8) + 10 * id, (len(others), 1))
        rows.append(envelope.seal_rows(0, 0, id, others, payloads))

    received, took_part = inner.route(senders, rows, envelope.BYTES + 5)
    found = {id: (mine.senders.tolist(), mine.rows) for id, mine in received}

    assert [id for id in range(DEVICES) if id != 2] == np.flatnonzero(took_part).tolist()
    assert inner.local_devices == list(found)
    for id, (sources, sealed) in found.items():
        assert [one for one in range(DEVICES) if one not in (2, id)] == sorted(sources)
        assert [10 * source for source in sources] == sealed[:, envelope.BYTES].tolist()
        assert (envelope.read_headers(sealed)["receiver"] == id).all()


# Uploads that several ranks of a server receive, or one in parts


@pytest.mark.parametrize(
    ("name", "group", "part"),
    [("secagg", "fq", 12), ("secagg-graph", "ring16", 25), ("common", "ring32", 12)],
)
@pytest.mark.parametrize("servers", [2, 3])
def test_a_server_of_several_ranks_has_the_same_sum(sizes, name, group, servers, part):
    """Of devices whose uploads have a wrong size or envelope, or refuse, it uses nothing."""
    sizes(window=1 << part)
    found = []
    for inner in (Loopback(DEVICES), transport(servers)):
        parameters = Parameters(DEVICES, 100_000, alpha=0.5, group=group, levels=1 << 8)
        protocol = find(name)(parameters)
        devices, server = parties(protocol, inner, 3)
        inputs = [np.random.default_rng(id).uniform(-1, 1, 100_000) for id in range(DEVICES)]
        for id, change in ((2, shorter), (5, refusing)):
            if id in devices:
                devices[id].send_masked_input = partial(change, devices[id].send_masked_input)
        played = round_of(protocol, inner, devices, server, inputs, index=3)
        played._seal = partial(sealed_wrongly, played._seal)
        played.play()
        if server is not None:
            found.append((server.total.tolist(), server.survivors, sorted(played.refused)))
        if inner.helps_server:
            cpu, phases = played.ledger.record.cpu_seconds[:, DEVICES], protocol.phases()
            assert cpu[phases.index("masked_input")] > 0
            assert cpu[phases.index("unmask")] > 0
            assert not played.ledger.record.wall_seconds.any()
    if len(found) == 2:
        assert found[0] == found[1]
        assert np.abs(found[0][0]).max() > 0
        assert found[0][2] == [2, 3, 5]


def sealed_wrongly(seal, number, sender, receiver, payload):
    """Return a message of the right size, of device 3 an upload of another round."""
    message = seal(number, sender, receiver, payload)
    if sender == 3 and payload.size > 10_000:
        message[4] ^= 1
    return message


def shorter(send, vector):
    return send(vector)[:-1]


def refusing(send, vector):
    raise RefusedError("device 5 refuses to go on")


# Sums, values, clocks, and several transports at a time


@pytest.mark.parametrize("group", ["fq", "ring8", "ring16", "ring32", "field8", "field16"])
def test_reduce_is_the_sum_in_the_group(kind, group, monkeypatch):
    monkeypatch.setattr(star, "BUFFER_BYTES", 1000)  # a sum in many parts
    arithmetic = GROUPS[group]
    values = np.random.default_rng(2).integers(0, arithmetic.modulus, (DEVICES, DIM), np.int64)
    elements = values.astype(arithmetic.dtype)
    # More transports than mpi4py has room for operations.
    more = 7 if group == "ring8" else 1
    for inner in (transport(kind=kind), *(transport().select(range(DEVICES)) for _ in range(more))):
        senders = [id for id in inner.local_devices if id != 4]
        result = inner.reduce(
            senders,
            lambda id: elements[id].copy().view(np.uint8),
            arithmetic.add_into,
            np.zeros(DIM, arithmetic.dtype),
        )
        assert (result is not None) == inner.has_server
        if result is not None:
            assert result[0] == [0, 1, 2, 3, 5, 6]
            expected = (values.sum(axis=0) - values[4]) % arithmetic.modulus
            np.testing.assert_array_equal(result[1], expected)


def test_transports_of_several_sizes_are_used_together_until_all_settle():
    world = World(MPI.COMM_WORLD)
    made = [world.transport(devices) for devices in (1, DEVICES, 1, DEVICES) * 2]
    for each in made:
        total = None if each is None else each.sum_to_server(np.ones(1, np.int64))
        if total is not None:
            assert total.tolist() == [min(each.placement.devices + 1, world.size)]
    assert world.rank > 1 or None not in made[:2]

    world.settle(None)
    for each in made:
        if each is not None:
            assert getattr(each._comm, "_comm", each._comm) == MPI.COMM_NULL


def test_what_ranks_tell_each_other_comes_to_those_it_is_for():
    world = World(MPI.COMM_WORLD)
    first, ranks = world.rank == 0, range(world.size)
    parts = [{"a": np.arange(rank), "b": np.float32([rank])} for rank in ranks] if first else None
    mine = world.distribute(parts)
    collected = world.collect(bytes([world.rank]) * world.rank)

    assert mine["a"].tolist() == list(range(world.rank))
    assert (mine["b"].dtype, mine["b"].tolist()) == (np.float32, [world.rank])
    assert collected == ([bytes([rank]) * rank for rank in ranks] if first else None)
    assert world.agreed(lambda: {"of": world.rank}) == {"of": 0}
    assert world.tell(7 + world.rank) == 7
    with pytest.raises(AgreedError, match="too few"):
        world.first_alone(lambda: (_ for _ in ()).throw(BelowThresholdError("too few")))


def test_an_error_of_the_server_is_raised_on_every_rank():
    inner = transport()
    error = BelowThresholdError("too few") if inner.has_server else None
    with pytest.raises(AgreedError, match="too few"):
        inner.raise_everywhere(error)
    with pytest.raises(AgreedError, match="too few"):
        inner.broadcast(None, error)


def test_sums_and_values_of_all_ranks_reach_the_server(kind):
    inner = transport(kind=kind)
    ranks = inner.placement.ranks
    # Without a dimension, as `route` has it; and nobody leaves the barrier before the last comes.
    number = np.array(inner.rank * 3, np.int64)
    inner._comm.Allreduce(MPI.IN_PLACE, number, MPI.MAX)
    assert int(number) == 3 * (ranks - 1)
    begin = MPI.COMM_WORLD.bcast(time.perf_counter())
    if inner.rank == ranks - 1:
        time.sleep(0.05)
    inner._comm.Barrier()
    assert time.perf_counter() >= begin + 0.05
    total = inner.sum_to_server(np.arange(100_000, dtype=np.int64).reshape(2, -1) + inner.rank)
    largest = inner.max_to_server(float(inner.rank))
    found = inner.collect(np.full((2, 3), inner.rank, np.float64))

    if inner.has_server:
        expected = ranks * np.arange(100_000).reshape(2, -1) + ranks * (ranks - 1) // 2
        np.testing.assert_array_equal(total, expected)
        assert largest == ranks - 1
        assert found[:, 1, 2].tolist() == list(range(ranks))
        assert found.shape == (ranks, 2, 3)
    else:
        assert (total, largest, found) == (None, None, None)


def test_plain_messages_have_a_rate_at_the_server(kind):
    inner = transport(kind=kind)
    found = inner.plain_bytes_per_second()
    assert (found is not None) == inner.has_server
    assert found is None or found > 0


def test_times_of_ranks_add_up_to_their_phases_and_the_late_are_waited_for():
    """Rank 1's first device takes its time over its upload, for which the server waits."""
    inner = transport()
    protocol = find("fedavg")(Parameters(DEVICES, DIM))
    devices, server = parties(protocol, inner, 3)

    def inputs(id):
        if id == 0:
            time.sleep(0.3)
        return np.zeros(DIM)

    record = timed(inner, round_of(protocol, inner, devices, server, inputs, index=3))

    ranks, upload = inner.placement.ranks, protocol.phases().index("upload")
    if inner.has_server:
        parts = record.computing_seconds + record.mpi_seconds + record.waiting_seconds
        assert parts.shape == (len(protocol.phases()), ranks)
        elapsed = record.end_seconds - record.begin_seconds
        np.testing.assert_allclose(parts, elapsed, rtol=0, atol=1e-6)
        assert record.computing_seconds[upload, 1] > 0.3
        assert record.waiting_seconds[upload, 0] > 0.2
        assert record.waiting_seconds[upload, 0] > record.waiting_seconds[upload, 1]
        assert (record.begin_seconds[1:] >= record.begin_seconds[:-1]).all()
        assert 0 <= record.skew_seconds < 10
        assert record.clock_offset_seconds.tolist() == [0.0] * ranks
    else:
        assert not record.begin_seconds.size


def test_clocks_of_hosts_are_compared_by_messages():
    """Ranks call themselves hosts of their own: their clock is the same, as far as is known."""
    comm = MPI.COMM_WORLD.Dup()
    apart, together, pairs = (
        clocks.first_of_hosts(comm, f"host{name}") for name in (comm.rank, "", comm.rank // 2)
    )
    assert apart.tolist() == list(range(comm.size))
    assert not together.any()
    assert pairs.tolist() == [2 * (rank // 2) for rank in range(comm.size)]
    apart, together = (clocks.compare(comm, firsts) for firsts in (apart, together))

    assert abs(apart.seconds) <= apart.uncertainty_seconds + 1e-9 * time.perf_counter()
    assert (apart.uncertainty_seconds > 0) == (comm.rank > 0)
    assert together == (0.0, 0.0)
