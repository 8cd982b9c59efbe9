"""Run under mpirun by test_command_jobs; alone, without MPI, these tests are skipped."""

import hashlib
import time
from functools import partial

import counting
import numpy as np
import pytest
from player import parties, round_of

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.parameters import Parameters
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm import envelope
from hpcfl.comm.loopback import Loopback
from hpcfl.comm.placement import Placement
from hpcfl.comm.world import World
from hpcfl.crypto.groups import GROUPS
from hpcfl.errors import AgreedError, BelowThresholdError, HpcflError, RefusedError
from hpcfl.options.bench import BenchOptions
from hpcfl.rounds.clock import timed
from hpcfl.rounds.enrolment import enrol

pytestmark = pytest.mark.mpi(min_size=2)

DEVICES, DIM = 7, 5001
DROPOUTS = {1: "advertise_keys", 4: "masked_input", 6: "unmask"}


def transport(servers=1):
    """With so many server ranks, if there is another one for the devices."""
    from mpi4py import MPI

    from hpcfl.comm.mpi import MpiTransport

    comm = MPI.COMM_WORLD.Dup()
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


class Spoiling(Recorder):
    """Passes on rows of device 3 that nobody can open."""

    def route(self, senders, rows, width):
        blocks = [block.copy() for block in rows]
        for sender, block in zip(senders, blocks, strict=True):
            if sender == 3:
                block[:, -1] ^= 1
        return super().route(senders, blocks, width)


def play(inner, name, *, kind=Recorder, dropouts=DROPOUTS, reduce=False):
    """Play one round with fixed keys; return what this rank's parties received, sorted."""
    degree = 4 if name == "secagg-graph" else None
    protocol = find(name)(Parameters(DEVICES, DIM, alpha=0.5, degree=degree))
    recorder = kind(inner)
    devices, server = parties(protocol, recorder, 3)
    vectors = [np.random.default_rng(id).normal(0, 0.1, DIM) for id in range(DEVICES)]
    gone = {} if name == "fedavg" else dropouts
    options = {"index": 3, "dropouts": gone, "reduce": reduce}
    played = round_of(protocol, recorder, devices, server, vectors, **options)
    played.play()
    seen = sorted(recorder.seen)
    if server is not None:
        digest = hashlib.sha256(server.total.tobytes()).hexdigest()
        seen.append(("total", *server.survivors, *sorted(played.refused), digest))
    return seen


def of_rank(everything, inner):
    """Return what of a round this rank's parties see."""
    local, of_server = set(inner.local_devices), ("gather", "total")
    return [
        message
        for message in everything
        if (message[0] in of_server and inner.has_server)
        or (message[0] not in of_server and message[1] in local)
    ]


@pytest.mark.parametrize(
    "name",
    ["fedavg", "secagg", "secagg-graph", "sparse", "cohort", "common", "lightsecagg", "committee"],
)
def test_mpi_moves_the_same_bytes_as_the_loopback(name):
    inner = transport()
    mine = play(inner, name)
    expected = of_rank(play(Loopback(DEVICES), name), inner)

    assert expected == mine
    assert bool(expected) == (inner.has_server or bool(inner.local_devices))


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
    "prf": {"alpha": 0.3, "dropout": 0.0},
}


def count(case, gone, kind=counting.Counted, servers=1, dim=DIM):
    """Play a round; return what this rank's calls moved and what its ledger has: sent, received.

    None stands for what was received where a device left the round: it is still told what all are.
    """
    from mpi4py import MPI

    from hpcfl.comm.mpi import MpiTransport

    options = BenchOptions(protocol=case.split(",")[0], dim=dim, **CASES[case])
    protocol = Experiment.prepare(options, DEVICES).protocol
    enrolled = enrol(type(protocol), transport(), first_round=0, insecure_seed=1)
    if enrolled is not None:
        protocol.join(enrolled.devices, range(DEVICES), DEVICES)
    comm = kind(MPI.COMM_WORLD.Dup())
    placement = Placement.even(DEVICES, comm.size, min(servers, comm.size - 1))
    inner = MpiTransport(comm, placement)
    devices, server = parties(protocol, inner, 3)
    vectors = [np.random.default_rng(id).normal(0, 0.1, dim) for id in range(DEVICES)]
    reduce = options.upload == "reduce"
    played = round_of(
        protocol, inner, devices, server, vectors, index=3, dropouts=gone, reduce=reduce
    )
    played.play()
    local = inner.local_devices
    record = played.ledger.record
    stand_for = [id for id in local if id not in gone]
    whole = len(stand_for) == len(local)
    sent = comm.sent + len(stand_for) * comm.sent_once
    received = comm.received + len(local) * comm.received_once
    return [
        (sent, int(record.bytes_up[:, local].sum())),
        (received, int(record.bytes_down[:, local].sum())) if whole else None,
    ]


@pytest.mark.parametrize(
    ("case", "gone"),
    [
        *((case, {}) for case in CASES),
        *((case, {1: "advertise_keys", 5: "masked_input"}) for case in CASES if "sec" in case),
        ("cohort", {1: "advertise_keys", 5: "masked_input"}),
        ("fedavg", {1: "upload"}),
    ],
)
def test_the_ledger_has_every_byte_that_calls_of_mpi_move(case, gone):
    for pair in count(case, gone):
        if pair is not None:
            assert pair[0] == pair[1]


@pytest.mark.parametrize("servers", [2, 3])
def test_the_ledger_has_every_byte_that_several_ranks_of_a_server_receive(servers):
    """What these tell each other is none of the protocol's."""
    for pair in count("secagg", {1: "advertise_keys"}, servers=servers, dim=40_000):
        if pair is not None:
            assert pair[0] == pair[1]


@pytest.mark.parametrize(
    ("leak", "case"), [("Bcast", "fedavg"), ("Scatterv", "secagg-graph"), ("Isend", "fedavg")]
)
def test_a_byte_more_than_the_ledger_has_is_found(leak, case):
    local = transport().local_devices
    sent, received = count(case, {}, partial(counting.Leaking, leak=leak))

    assert received is not None
    assert (sent[0] > sent[1]) == (leak == "Isend" and bool(local))
    # Of a scatter the server's rank has a part as well.
    assert (received[0] > received[1]) == (leak == "Scatterv" or (leak == "Bcast" and bool(local)))


@pytest.mark.parametrize(
    ("name", "reduce"),
    [("secagg", False), ("secagg", True), ("secagg-graph", False), ("sparse", False)],
)
def test_a_dealer_is_expelled_on_all_ranks_and_the_others_end_the_round(name, reduce):
    """A step that is played only if it is wanted, before uploads that may be summed on the way."""
    gone = {1: "advertise_keys", 6: "unmask"}
    inner = transport()
    mine = play(inner, name, kind=Spoiling, dropouts=gone, reduce=reduce)
    everything = play(Loopback(DEVICES), name, kind=Spoiling, dropouts=gone, reduce=reduce)
    assert of_rank(everything, inner) == mine
    *_, (kind, *survivors, refused, _) = everything
    assert ("total", [0, 2, 4, 5, 6], 3) == (kind, survivors, refused)


@pytest.mark.parametrize("group", ["fq", "ring8", "ring16", "ring32", "field8", "field16"])
def test_reduce_is_the_sum_in_the_group(group):
    inner = transport()
    arithmetic = GROUPS[group]
    vectors = np.random.default_rng(2).integers(0, arithmetic.modulus, (DEVICES, DIM), np.int64)
    elements = vectors.astype(arithmetic.dtype)
    senders = [id for id in inner.local_devices if id != 4]
    zeros = np.zeros(DIM, arithmetic.dtype)
    result = inner.reduce(
        senders, lambda id: elements[id].view(np.uint8), arithmetic.add_into, zeros
    )

    if inner.has_server:
        assert result is not None
        expected = (vectors.sum(axis=0) - vectors[4]) % arithmetic.modulus
        assert result[0] == [0, 1, 2, 3, 5, 6]
        np.testing.assert_array_equal(result[1], expected)
    else:
        assert result is None


def test_transports_of_several_sizes_are_used_together_until_all_settle():
    from mpi4py import MPI

    from hpcfl.comm.patient import Patient

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
            patient = isinstance(each._comm, Patient)
            assert (each._comm._comm if patient else each._comm) == MPI.COMM_NULL


def test_any_number_of_transports_sum_in_a_field():
    inner = transport()
    ones = np.ones(3, np.uint32).view(np.uint8)
    for _ in range(40):  # more than mpi4py has room for operations
        chosen = inner.select(range(DEVICES))
        result = chosen.reduce(
            list(chosen.local_devices),
            lambda id: ones,
            GROUPS["fq"].add_into,
            np.zeros(3, np.uint32),
        )

    if inner.has_server:
        assert result is not None
        assert result[1].tolist() == [DEVICES] * 3


@pytest.mark.parametrize("largest", [10, 100])
@pytest.mark.parametrize("window", [25, 10**6])
@pytest.mark.parametrize("kept", [0, 10**6])
def test_gather_in_windows_brings_the_same_messages(monkeypatch, largest, window, kept):
    monkeypatch.setattr("hpcfl.comm.mpi.WINDOW_BYTES", window)
    monkeypatch.setattr("hpcfl.comm.gather.WINDOW_BYTES", window)
    monkeypatch.setattr("hpcfl.comm.scratch.KEPT_BYTES", kept)
    inner = transport()
    senders = [id for id in inner.local_devices if id != 2]
    for extra in range(3):  # more than once: memory may be used again
        messages = [np.full(id + extra + 1, id + extra, np.uint8) for id in range(DEVICES)]
        got = list(inner.gather(senders, messages.__getitem__, largest))

        if inner.has_server:
            assert [id for id, _ in got] == [0, 1, 3, 4, 5, 6]
            assert all(np.array_equal(message, messages[id]) for id, message in got)
        else:
            assert got == []


def test_the_server_lets_messages_move_while_it_uses_others(monkeypatch):
    """After each message but those of the last window, behind which no receives are posted."""
    from hpcfl.comm import gather

    monkeypatch.setattr("hpcfl.comm.gather.WINDOW_BYTES", 2 * 100)
    inner, moves = transport(), []
    windows = gather.windows(inner.placement, 100, 2 * 100)
    let_move = gather.Transfer.move
    monkeypatch.setattr(gather.Transfer, "move", lambda self: moves.append(let_move(self)))
    used = []
    for _ in inner.gather(inner.local_devices, lambda id: np.zeros(100, np.uint8), 100):
        used.append(len(moves))

    if inner.has_server:
        moved = list(range(DEVICES - len(windows[-1]) + 1))
        assert used == [*moved, *[moved[-1]] * (len(windows[-1]) - 1)]


@pytest.mark.parametrize("unit", [1, 7, 30])
def test_long_messages_are_received_in_parts(monkeypatch, unit):
    monkeypatch.setattr("hpcfl.comm.gather.WINDOW_BYTES", 80)
    monkeypatch.setattr("hpcfl.comm.gather.LEAST_PART_BYTES", 1)
    monkeypatch.setattr("hpcfl.comm.envelope.PART_UNIT", unit)
    inner = transport()
    data = np.random.default_rng(5).integers(0, 256, (DEVICES, 90), np.uint8)
    sizes = [90, 0, 3, 17, 1, 0, 64]
    senders = [id for id in inner.local_devices if sizes[id]]

    for _ in range(2):
        got = {}
        for id, part in inner.gather_parts(senders, lambda id: data[id, : sizes[id]], 90):
            assert part.size == sizes[id]
            assert part.start == sum(map(len, got.get(id, [])))
            assert part.start == 0 or (part.start - 16) % unit == 0
            got.setdefault(id, []).append(part.data.tolist())
        whole = {id: [value for piece in pieces for value in piece] for id, pieces in got.items()}
        if inner.has_server:
            assert whole == {id: data[id, :size].tolist() for id, size in enumerate(sizes) if size}
            # In windows of a device of each rank.
            together = min(inner.placement.ranks - 1, DEVICES)
            step = max(1, 80 // together // unit) * unit
            assert len(got[0]) == 1 + max(0, -(-(90 - 16 - step) // step))
        else:
            assert not whole
    # The calls after it are numbered alike on all ranks.
    assert inner.calls.number == 2 * -(-DEVICES // (inner.placement.ranks - 1))


@pytest.mark.parametrize("name", ["secagg", "secagg-graph", "common", "sparse", "prf"])
def test_uploads_in_parts_give_the_same_sum(monkeypatch, name):
    expected = total_of(Loopback(DEVICES), name)
    monkeypatch.setattr("hpcfl.comm.gather.WINDOW_BYTES", 2000)
    monkeypatch.setattr("hpcfl.comm.gather.LEAST_PART_BYTES", 1)

    assert total_of(transport(), name) in (expected, None)


@pytest.mark.parametrize("part", [1 << 12, 1 << 25])
@pytest.mark.parametrize(
    ("name", "group"),
    [("secagg", "fq"), ("secagg", "ring12"), ("secagg-graph", "ring16"), ("common", "ring32")],
)
@pytest.mark.parametrize("servers", [2, 3])
def test_a_server_of_several_ranks_has_the_same_sum(monkeypatch, name, group, servers, part):
    """Of devices whose uploads have a wrong size or envelope, or refuse, it uses nothing."""
    monkeypatch.setattr("hpcfl.comm.gather.WINDOW_BYTES", part)
    monkeypatch.setattr("hpcfl.comm.gather.LEAST_PART_BYTES", 1)
    found = []
    for inner in (Loopback(DEVICES), transport(servers)):
        parameters = Parameters(DEVICES, 100_000, alpha=0.5, group=group, levels=1 << 8)
        protocol = find(name)(parameters)
        devices, server = parties(protocol, inner, 3)
        vectors = [np.random.default_rng(id).uniform(-1, 1, 100_000) for id in range(DEVICES)]
        for id, change in ((2, shorter), (5, refusing)):
            if id in devices:
                devices[id].send_masked_input = partial(change, devices[id].send_masked_input)
        played = round_of(protocol, inner, devices, server, vectors, index=3)
        played._seal = partial(sealed_wrongly, played._seal)
        played.play()
        if server is not None:
            found.append((server.total.tolist(), server.survivors, sorted(played.refused)))
        if inner.helps_server:
            assert server is None
            assert not devices
            cpu = played.ledger.record.cpu_seconds[:, DEVICES]
            phases = protocol.phases()
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


def test_a_server_of_several_ranks_that_cannot_go_on_says_so_on_all():
    inner = transport(2)
    protocol = find("secagg")(Parameters(DEVICES, 100_000))
    devices, server = parties(protocol, inner, 3)
    vectors = [np.zeros(100_000)] * DEVICES
    gone = dict.fromkeys(range(5), "unmask")

    with pytest.raises(AgreedError, match="cannot end: 2 of 7 devices answered"):
        round_of(protocol, inner, devices, server, vectors, index=3, dropouts=gone).play()


def total_of(inner, name):
    """Play a round, and return its sum and survivors; None except at the server."""
    options = {"dropout": 0.0} if name == "prf" else {}
    protocol = Experiment.prepare(
        BenchOptions(protocol=name, dim=DIM, alpha=0.5, **options), DEVICES
    ).protocol
    enrolled = enrol(type(protocol), inner, first_round=0, insecure_seed=1)
    if enrolled is not None:
        protocol.join(enrolled.devices, range(DEVICES), DEVICES)
    devices, server = parties(protocol, inner, 3)
    vectors = [np.random.default_rng(id).normal(0, 0.1, DIM) for id in range(DEVICES)]
    gone = {} if name == "prf" else DROPOUTS
    round_of(protocol, inner, devices, server, vectors, index=3, dropouts=gone).play()
    return None if server is None else (server.total.tolist(), server.survivors)


@pytest.mark.parametrize("window", [1, 25, 10**6])
@pytest.mark.parametrize("call", [1, 7, 64, 2**30])
def test_messages_of_any_size_move_in_calls_of_a_limited_size(monkeypatch, window, call):
    monkeypatch.setattr("hpcfl.comm.mpi.WINDOW_BYTES", window)
    monkeypatch.setattr("hpcfl.comm.gather.WINDOW_BYTES", window)
    monkeypatch.setattr("hpcfl.comm.mpi.CALL_BYTES", call)
    monkeypatch.setattr("hpcfl.comm.gather.CALL_BYTES", call)
    inner = transport()
    data = np.random.default_rng(5).integers(0, 256, (DEVICES, 90), np.uint8)
    sizes = [90, 0, 3, 17, 1, 0, 64]
    senders = [id for id in inner.local_devices if sizes[id]]

    got = list(inner.gather(senders, lambda id: data[id, : sizes[id]], largest=90))
    told = inner.broadcast(data.reshape(-1) if inner.has_server else None)
    scattered = list(inner.scatter(senders, lambda id: data[id, : sizes[id]]))

    expected = [(id, data[id, : sizes[id]].tolist()) for id in range(DEVICES) if sizes[id]]
    assert [(id, m.tolist()) for id, m in got] == (expected if inner.has_server else [])
    assert told.tolist() == data.reshape(-1).tolist()
    assert [(id, m.tolist()) for id, m in scattered] == [
        one for one in expected if one[0] in inner.local_devices
    ]


@pytest.mark.parametrize("at_once", [1, 60, 2**24])
def test_rows_move_in_windows_and_come_to_the_same_devices(monkeypatch, at_once):
    monkeypatch.setattr("hpcfl.comm.rows.WINDOW_BYTES", at_once)
    monkeypatch.setattr("hpcfl.comm.rows.BATCH_BYTES", at_once)
    inner = transport()
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


def test_a_scatter_asks_the_server_once_for_every_device_and_nobody_else():
    inner = transport()
    asked = []

    def produce(id):
        asked.append(id)
        return np.array([id] if id % 2 else [], np.uint8)

    listening = [id for id in inner.local_devices if id != 3]
    got = {id: message.tolist() for id, message in inner.scatter(listening, produce)}

    assert asked == (list(range(DEVICES)) if inner.has_server else [])
    assert got == {id: [id] if id % 2 else [] for id in listening}


@pytest.mark.parametrize("call", [8, 40, 2**30])
def test_sums_move_in_calls_of_a_limited_size(monkeypatch, call):
    monkeypatch.setattr("hpcfl.comm.mpi.CALL_BYTES", call)
    inner = transport()
    vectors = np.arange(DEVICES * 33, dtype=np.uint32).reshape(DEVICES, 33)
    result = inner.reduce(
        list(inner.local_devices),
        lambda id: vectors[id].view(np.uint8),
        GROUPS["fq"].add_into,
        np.zeros(33, np.uint32),
    )

    if inner.has_server:
        assert result is not None
        assert result[1].tolist() == vectors.sum(axis=0).tolist()


def test_every_ranks_values_come_to_the_server():
    inner = transport()
    found = inner.collect(np.full((2, 3), inner.rank, np.float64))

    if inner.has_server:
        assert found[:, 1, 2].tolist() == list(range(inner.placement.ranks))
        assert found.shape == (inner.placement.ranks, 2, 3)
    else:
        assert found is None


def test_a_message_larger_than_announced_is_an_error():
    from hpcfl.comm.gather import made

    with pytest.raises(HpcflError, match="device 3 sends 30 bytes"):
        made(3, lambda id: np.zeros(10 * id, np.uint8), 29)


def test_an_error_of_the_server_is_raised_on_every_rank():
    inner = transport()
    error = BelowThresholdError("too few") if inner.has_server else None
    with pytest.raises(AgreedError, match="too few"):
        inner.raise_everywhere(error)
    with pytest.raises(AgreedError, match="too few"):
        inner.broadcast(None, error)


def test_sums_over_ranks_reach_the_server_whole():
    inner = transport()
    values = np.arange(100_000, dtype=np.int64).reshape(2, -1) + inner.rank
    total = inner.sum_to_server(values)

    ranks = inner.placement.ranks
    if inner.has_server:
        expected = ranks * np.arange(100_000).reshape(2, -1) + ranks * (ranks - 1) // 2
        np.testing.assert_array_equal(total, expected)
        assert inner.max_to_server(float(inner.rank)) == ranks - 1
    else:
        assert total is None
        assert inner.max_to_server(float(inner.rank)) is None


def test_times_of_ranks_add_up_to_their_phases_and_the_late_are_waited_for():
    """Rank 1's first device takes its time over its upload, for which the server waits."""
    inner = transport()
    protocol = find("fedavg")(Parameters(DEVICES, DIM))
    devices, server = parties(protocol, inner, 3)

    def inputs(id):
        if id == 0:
            time.sleep(0.3)
        return np.zeros(DIM)

    played = round_of(protocol, inner, devices, server, inputs, index=3)
    record = timed(inner, played)

    ranks, upload = inner.placement.ranks, protocol.phases().index("upload")
    if inner.has_server:
        parts = record.computing_seconds + record.mpi_seconds + record.waiting_seconds
        assert parts.shape == (len(protocol.phases()), ranks)
        np.testing.assert_allclose(
            parts, record.end_seconds - record.begin_seconds, rtol=0, atol=1e-6
        )
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
    from mpi4py import MPI

    from hpcfl.comm import clocks

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
