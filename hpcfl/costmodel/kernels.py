"""What the operations of a round cost on this machine: CPU seconds of this thread, measured.

They are named and described in :data:`hpcfl.algorithms.aggregation.costs.OPERATIONS`. Each is timed
through the function that a round calls.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from statistics import median

import numpy as np

from hpcfl.algorithms.aggregation import sealed, sharing
from hpcfl.algorithms.aggregation.base import check_finite
from hpcfl.algorithms.aggregation.cohort import Cohort
from hpcfl.algorithms.aggregation.costs import Operations, coded, sealed_rows
from hpcfl.algorithms.aggregation.lightsecagg import LightSecAgg
from hpcfl.algorithms.aggregation.secagg import SecAgg, pair_sign
from hpcfl.algorithms.aggregation.topology import CompleteLinks, RingGraph, RingLinks
from hpcfl.algorithms.noise import IntegerNoise
from hpcfl.algorithms.parameters import Parameters
from hpcfl.algorithms.rotation import Rotation, butterflies
from hpcfl.comm import envelope
from hpcfl.crypto import ckks, keys, matrices, shamir
from hpcfl.crypto.coding import INTERPOLATED_ROW
from hpcfl.crypto.groups import BLOCK_BYTES, FQ, GROUPS, Group, Ring
from hpcfl.crypto.sampling import GapSampler
from hpcfl.errors import UsageError
from hpcfl.rounds.inputs import SyntheticUpdates
from hpcfl.rounds.ledger import Ledger

Work = Callable[[], object]
# Vectors that come one after the other are not in the cache: so many of them are gone through.
COLD = 24
# Long vectors that take turns, so that none is in the cache.
COPIES = 6
# Vectors and keys of the measurements: d and N of the kind that is asked for most.
DIM, DEVICES = 100_000, 100
LONG = 500_000
# Coordinates that do not fit the cache, eight bytes each.
FAR = 2_000_000
# Part of the coordinates that is selected at alpha = 0.1.
SELECTED = 0.095
# Gaps are drawn at once for so many pairs, with a probability of a thousandth.
PAIRS, RATE = 20, 1e-3
# Of discrete noise: how wide it is hardly matters.
NOISE_SIGMA = 2**20
LIMBS = sharing.KEY_SHARE + sharing.SEED_SHARE
REPEATS = 7
# What is called once a round finds nothing in the caches: so many bytes are gone through before.
COLD_REPEATS = 15
EVICTING = 1 << 26


def cpu_seconds(work: Work, least: float = 0.02) -> list[float]:
    """Return the CPU seconds of one call, measured several times over as many calls as needed."""
    work()
    calls, start = 0, time.thread_time()
    while time.thread_time() - start < least:
        work()
        calls += 1
    samples = []
    for _ in range(REPEATS):
        start = time.thread_time()
        for _ in range(calls):
            work()
        samples.append((time.thread_time() - start) / calls)
    return samples


def cold_cpu_seconds(work: Work) -> list[float]:
    """Return the CPU seconds of one call after work on other data, measured several times."""
    work()
    others = np.zeros(EVICTING, np.uint8)
    samples = []
    for _ in range(COLD_REPEATS):
        others += 1
        start = time.thread_time()
        work()
        samples.append(time.thread_time() - start)
    return samples


def measure(progress: Callable[[str], None] = lambda name: None) -> dict[str, list[float]]:
    """Return CPU seconds of each operation, several samples; not negative.

    `progress` takes the name of each operation that is done.
    """
    found: dict[str, list[float]] = {}
    for kernel in (
        *(_vectors, _messages, _keys, _sharing, _ring, _masks, _selection, _coding),
        *(_encryption, _noise),
    ):
        for name, samples in kernel():
            found[name] = [max(0.0, sample) for sample in samples]
            progress(name)
    return found


def _per(samples: list[float], count: float) -> list[float]:
    return [sample / count for sample in samples]


Kernels = Iterator[tuple[str, list[float]]]


def _vectors() -> Kernels:
    protocol = SecAgg(Parameters(DEVICES, DIM))

    def convert(length: int) -> list[float]:
        vectors = itertools.cycle([SyntheticUpdates(length, 0).vector(0, id) for id in range(2)])

        def work() -> None:
            vector = next(vectors)
            check_finite(0, vector)
            protocol.elements(vector, slice(None), 0, 0)

        return _per(cpu_seconds(work), 2 * length)

    yield "converted", convert(DIM)
    sums = FQ.reduce(np.random.default_rng(1).integers(-(2**20), 2**20, DIM))
    yield "decoded", _per(cpu_seconds(lambda: FQ.signed(sums)), DIM)
    yield "converted_far", convert(FAR)
    ring = GROUPS["ring16"]
    # Near: vectors that were just made, and are still in the cache.
    for suffix, length, vectors in (("", DIM, 2), ("_far", LONG, COLD)):
        yield f"summed{suffix}", _per(_adding(FQ, length, vectors), length)
        each = length * ring.dtype.itemsize
        yield f"summed_byte{suffix}", _per(_adding(ring, length, vectors), each)
    rotation, vector = Rotation(LONG, np.random.default_rng(1)), np.ones(LONG, np.float32)
    yield "butterfly", _per(cpu_seconds(lambda: rotation.turn(vector)), butterflies(LONG))
    packing = GROUPS["ring28"]
    elements = packing.reduce(np.arange(DIM))
    payload = packing.pack(elements)
    yield "packed_byte", _per(cpu_seconds(lambda: packing.pack(elements)), payload.size)
    back = cpu_seconds(lambda: packing.unpack(payload, DIM))
    yield "unpacked_byte", _per(back, payload.size)


def _adding(group: Group, length: int, vectors: int) -> list[float]:
    """Return what it takes to check a vector and to add it to a sum; so many take turns."""
    adder = group.adder(length)
    received = itertools.cycle([group.reduce(np.arange(length)) for _ in range(vectors)])

    def take() -> None:
        values = next(received)
        if isinstance(group, Ring) or int(values.max()) < group.modulus:
            adder.add(values)

    return cpu_seconds(take)


def _messages() -> Kernels:
    ledger = Ledger(["model"], 1, range(1), True)
    payload = np.zeros(64, np.uint8)

    def carry() -> None:
        with ledger.work("model", 0):
            message = envelope.seal(0, 0, 0, envelope.SERVER, payload)
        ledger.sent("model", 0, message.size)
        with ledger.work("model", None):
            envelope.unseal(message, "model", 0, 0, 0, envelope.SERVER)

    yield "message", cpu_seconds(carry)


def _keys() -> Kernels:
    pair = keys.KeyPair.generate(keys.system_secrets)
    others = [keys.KeyPair.generate(keys.system_secrets).public for _ in range(50)]
    yield "agreement", _per(cpu_seconds(lambda: keys.agree(pair.private, others)), len(others))
    protocol = SecAgg(Parameters(DEVICES, 10))
    secrets = [bytes(32)] * 50
    peers = range(1, 51)
    derive = cpu_seconds(lambda: protocol.pair_keys(3, 0, peers, secrets, "additive mask"))
    yield "derivation", _per(derive, 50)


def _sharing() -> Kernels:
    protocol = SecAgg(Parameters(DEVICES, 10))
    terms = DEVICES // 2 + 1
    generator = np.random.default_rng(1)
    coefficients = generator.integers(0, FQ.modulus, (terms - 1, LIMBS), np.uint32)
    limbs = generator.integers(0, 2**31, LIMBS, np.uint32)
    everybody = np.arange(DEVICES)
    shares = shamir.split(limbs, coefficients, tuple(everybody.tolist()))
    product = cpu_seconds(lambda: shamir.split(limbs, coefficients, tuple(everybody.tolist())))
    yield "share_product", _per(product, DEVICES * terms * LIMBS)

    device = protocol.device(0, 0, keys.system_secrets)
    others = [protocol.device(id, 0, keys.system_secrets) for id in range(1, DEVICES)]
    public = {one.id: one.send_advertise_keys().tobytes() for one in (device, *others)}
    links = CompleteLinks(DEVICES, terms, public)
    listed = links.key_list(None)
    for one in (device, *others):
        one.receive_advertise_keys(listed)
    rows = {one.id: one.send_share_keys() for one in others}
    # Device 0's place in the rows of the others is the first.
    senders = np.array(sorted(rows), np.int64)
    mine = np.stack([rows[id][1][0] for id in senders.tolist()])
    flags = np.ones(DEVICES, np.bool_)
    request = links.bits(None, flags, ~flags)
    sealing = device._transport_keys
    device.receive_challenge(np.zeros(sharing.CHALLENGE_BYTES, np.uint8))

    def share() -> None:
        """Go with device 0 through all that it does for every peer, but for agreements."""
        protocol.topology.read_key_list(listed, 0, public[0]).check_keys()
        device._seed, device._checked, device._request = b"", False, None
        device._transport_keys = sealing
        device.send_share_keys()
        device.receive_share_keys(senders, mine)
        device.send_checks()
        device.receive_unmask(request)
        device.send_unmask()

    yield "share", [(each - median(product)) / len(others) for each in cpu_seconds(share)]

    # The server's book of who dealt what rightly; all dealers deal the same shares.
    challenge = sharing.Challenge.of(bytes(sharing.CHALLENGE_BYTES))
    book = sharing.Dealings(challenge)
    for holder, answers in enumerate(challenge.answers(shares).astype("<u4")):
        book.receive(holder, everybody, np.tile(answers, (DEVICES, 1)).reshape(-1).view(np.uint8))
    settling = cpu_seconds(lambda: book.settle(links, flags, DEVICES))
    yield "settled", _per(settling, DEVICES**2)


def _ring() -> Kernels:
    degree, threshold = 60, 30
    devices = range(2 * degree)
    generator = np.random.default_rng(1)
    public = {id: generator.bytes(64) for id in devices}
    links = RingLinks(RingGraph(len(devices), degree, threshold), public, b"nonce", b"kernel")
    flags = np.ones(len(devices), np.bool_)
    columns = sharing.SEED_SHARE
    replies = {id: np.zeros((links.asked_of(id, flags).size, columns), np.uint32) for id in devices}

    def serve() -> None:
        """Look up what a round needs: who is asked for both lists of a request, and a reply."""
        for id in devices:
            links.key_list(id)
            for _ in range(5):
                links.asked_of(id, flags)
        for _ in range(3):
            links.collect(replies, flags, columns)

    yield "ring", _per(cpu_seconds(serve), len(devices))


def _masks() -> Kernels:
    seeds = [k.to_bytes(16, "little") for k in range(30)]
    signs = [pair_sign(15, k) for k in range(30)]

    def added(group: Group, count: int, keys: int) -> list[float]:
        vector = np.zeros(count, group.dtype)
        return cpu_seconds(lambda: group.add_masks(vector, seeds[:keys], signs[:keys]))

    ring, size = GROUPS["ring16"], BLOCK_BYTES
    opened = _per(added(ring, 8, len(seeds)), len(seeds))
    yield "mask_key", opened
    key = median(opened)
    of_ring = _per(added(ring, size, len(seeds)), len(seeds))
    yield "mask_byte", [(each - key) / (size * ring.dtype.itemsize) for each in of_ring]
    one, every = added(FQ, size, 1), added(FQ, size, len(seeds))
    word = ((median(every) - median(one)) / (len(seeds) - 1) - key) / size
    yield "mask_word", [word * each / median(every) for each in every]
    yield "masked", [(each - key) / size - word for each in one]
    keystream = cpu_seconds(lambda: FQ.elements([bytes(16)], [4]))
    yield "keystream", keystream

    # One coordinate in a segment: the masks of a device's pairs cost next to nothing but looking
    # up what is in common, a key and a keystream for each.
    cohort, middle = Cohort(Parameters(DEVICES, DEVICES)), DEVICES // 2
    near = range(middle - cohort.cohort_size + 1, middle + cohort.cohort_size)
    others = [(place, place, bytes(32)) for place in near if place != middle]
    ids, secrets = [id for id, _, _ in others], [secret for _, _, secret in others]
    derived = cpu_seconds(lambda: cohort.pair_keys(0, middle, ids, secrets, "additive mask"))
    known = median(keystream) + median(derived) / len(others)
    pairs = cpu_seconds(lambda: cohort.pair_masks(0, (middle, middle), others))
    yield "common_run", [each / len(others) - known for each in pairs]


def _selection() -> Kernels:
    sampler = GapSampler(Fraction(RATE))
    seeds = [k.to_bytes(16, "little") for k in range(PAIRS)]
    few, many = 50, 1000
    base = median(cpu_seconds(lambda: sampler.select(seeds, round(few / RATE))))
    drawn = cpu_seconds(lambda: sampler.select(seeds, round(many / RATE)))
    yield "gap", [(each - base) / (PAIRS * (many - few)) for each in drawn]
    yield "scattered", _scattered(DIM, copies=1)
    # What does not fit the cache was used by others in between: copies take turns.
    yield "scattered_far", _scattered(FAR, COPIES)


def _coding() -> Kernels:
    generator = np.random.default_rng(1)

    def product(rows: int, terms: int, columns: int) -> tuple[list[float], Operations]:
        left = generator.integers(0, FQ.modulus, (rows, terms), np.uint64)
        right = generator.integers(0, FQ.modulus, (terms, columns), np.uint32)
        return cpu_seconds(lambda: matrices.product(left, right)), coded(FQ, rows, terms, columns)

    # With many rows of many terms products take most of it, with few what is done to elements: both
    # are sums of the two, which this solves for.
    (many, many_work), (few, few_work) = (
        product(DEVICES, 60, DIM // 50),
        product(20, 6, DIM // 10),
    )
    pairs = np.array([[work["product"], work["coded"]] for work in (many_work, few_work)])
    solved = np.linalg.solve(pairs, [many, few])
    yield "product", solved[0].tolist()
    yield "coded", solved[1].tolist()
    long, work = product(20, 6, LONG)
    near = median(solved[0]) * work["product"] + median(solved[1]) * work["coded"]
    far_samples = [(each - near) / work["coded_far"] for each in long]
    far = median(far_samples)
    yield "coded_far", far_samples
    points, places = np.arange(1, 61), np.arange(101, 151)
    entries = points.size * (places.size + INTERPOLATED_ROW)
    yield "interpolated", _per(cpu_seconds(lambda: matrices.lagrange(points, places)), entries)

    def recover(dim: int) -> tuple[list[float], LightSecAgg]:
        """Measure what recovering a sum of that length takes, of which all pieces are received."""
        protocol = LightSecAgg(Parameters(10, dim))
        code, server = protocol.code, protocol.server(0, np.zeros(1, np.float32))
        mask = generator.integers(0, FQ.modulus, code.needed * code.width, np.uint32)
        ids = range(code.devices)
        sums = code.encode(mask[:dim], mask[dim : dim + code.private * code.width], ids)

        def work() -> None:
            for id in ids:
                server._take_answer("unmask", id, sums[id].view(np.uint8))
            server._decoded("unmask", {id: id for id in ids})

        return cold_cpu_seconds(work), protocol

    tiny, _ = recover(10)
    yield "recovered", tiny
    whole, protocol = recover(4 * DIM)
    code = protocol.code
    rest = coded(FQ, code.pieces, code.needed, code.width)
    known = {"product": median(solved[0]), "coded": median(solved[1]), "coded_far": far}
    known_seconds = median(tiny) + sum(known[name] * count for name, count in rest.items())
    yield "answered", [(each - known_seconds) / (code.devices * code.width) for each in whole]

    def carry(peers: int, size: int) -> tuple[list[float], Operations]:
        """Measure what is done to rows of so many bytes, sent to all peers and received of them."""
        protocol = LightSecAgg(Parameters(peers + 1, 1))
        protocol.code = replace(protocol.code, dim=protocol.code.pieces * size // 4)
        device, ids = protocol.device(0, 0, keys.system_secrets), np.arange(1, peers + 1)
        transport_keys = dict.fromkeys(ids.tolist(), bytes(16))
        pieces = np.zeros((peers, size // 4), np.uint32)
        arrived = []
        for id in ids.tolist():
            sent = sealed.labels(protocol.name, 0, id, 0)
            arrived.append(sealed.seal(transport_keys[id], sent, pieces[0].tobytes()))
        moved = np.concatenate(
            [
                envelope.seal_rows(0, 0, id, np.array([0]), row[None])
                for id, row in zip(ids.tolist(), arrived, strict=True)
            ]
        )

        def work() -> None:
            device._transport_keys, device._pieces = transport_keys, {}
            envelope.seal_rows(0, 0, 0, *device._sealed(ids.tolist(), pieces))
            device._keep("share_masks", ids, envelope.unseal_rows(moved, 0, 0, ids, 0))
            assert len(device._pieces) == peers

        return cpu_seconds(work), sealed_rows(2 * peers, protocol.row_bytes)

    short, work = carry(DEVICES - 1, 16)
    row = median(short) / work["sealed"]
    yield "sealed", _per(short, work["sealed"])
    near, work = carry(DEVICES - 1, 4 * DIM // 100)
    byte = (median(near) - row * work["sealed"]) / work["sealed_byte"]
    yield "sealed_byte", [(each - row * work["sealed"]) / work["sealed_byte"] for each in near]
    long, work = carry(20, 4 * LONG)
    near_seconds = row * work["sealed"] + byte * work["sealed_byte"]
    yield "sealed_byte_far", [(each - near_seconds) / work["sealed_byte_far"] for each in long]


def _encryption() -> Kernels:
    try:
        context = ckks.Context()
    except UsageError:  # without the library nothing is encrypted
        yield from ((name, [0.0]) for name in ("encrypted", "ciphertext", "decrypted", "key_read"))
        return
    blocks = 4
    values, secret = np.linspace(-1, 1, blocks * ckks.SLOTS), context.written()
    sealed_values = context.encrypt(values)
    total = context.add([], sealed_values, values.size)
    yield "encrypted", _per(cpu_seconds(lambda: context.encrypt(values)), blocks)
    added = cpu_seconds(lambda: context.add(total, sealed_values, values.size))
    yield "ciphertext", _per(added, blocks)
    opened = cpu_seconds(lambda: context.decrypt(sealed_values, values.size))
    yield "decrypted", _per(opened, blocks)
    yield "key_read", cpu_seconds(lambda: ckks.Context(secret))


def _noise() -> Kernels:
    noise = IntegerNoise(NOISE_SIGMA, bytes(16))
    yield "noise", _per(cpu_seconds(lambda: noise.draw(DIM, 0, 0)), DIM)


def _scattered(dim: int, copies: int) -> list[float]:
    generator = np.random.default_rng(1)
    where = np.flatnonzero(generator.random(dim) < SELECTED)
    elements = generator.integers(0, FQ.modulus, where.size, np.uint32)
    # Written to, so that memory is there.
    vectors = itertools.cycle([np.ones(dim, np.int64) for _ in range(copies)])
    received = itertools.cycle([(where.copy(), elements.copy()) for _ in range(4)])

    def scatter() -> None:
        positions, added = next(received)
        if int(added.max()) < FQ.modulus:
            next(vectors)[positions] += added

    return _per(cpu_seconds(scatter), where.size)
