"""What single operations cost on this machine: CPU seconds of this thread, measured.

Every operation is timed through the function that a round calls, at one size, or at two sizes where
it has a cost for every call and one for every element; those of `BY_LENGTH` for vectors that fit
the cache and for vectors that do not. What is measured:

======================  ===========================================================================
operation               one of it
======================  ===========================================================================
message                 a message's envelope put on, taken off and entered
sealed_byte             a byte of a message copied behind its envelope
key_pair                an X25519 key pair made
agreement               an X25519 secret agreed on with one peer
derivation              a key derived from a secret (HKDF)
holder                  one device on a key list read and checked
reply_holder            one holder's place in an unmasking request and reply
share_product           a product in F_q while sharing or combining
sealed_share            a share encrypted, opened_share: decrypted and checked
answered                a holder's answer to the challenge for one dealer
booked                  a holder's answers checked and kept
settled                 an answer compared with those of the dealer's other holders
verified                a reply compared with its holder's answers, verified_share: a share of it
weight, weight_pair     Lagrange's weights for t holders: for each of t, and of t * t
ring_weight             the same for many owners at once, an element of t * t
ring_inverse            the same, an element of t
ring_reply              a holder's shares put where they belong
asked                   a device's neighbours looked up on a ring
listed, ordered         a neighbour on a key list, a device on a ring
secret                  a secret put together from its limbs
quantised               a coordinate clipped, scaled and rounded
reduced, decoded        an integer made a group element, and back
mask_key                a keystream opened to be added to a vector
mask_block, mask_word   a block, and a word, of it added
element_key, element    the same, where the words themselves are wanted
stream_key, streamed    a keystream opened, a word of it added to a run
gap_key, gap_1e3        a pattern's key; a gap drawn, for a probability of 1e-3, and others;
                        "_far" where the gaps of all pairs do not fit the cache
folded                  an element with its sign added at a coordinate
scanned                 a coordinate looked at for selected ones
located, unlocated      a location coded and decoded
unlocated_dim           the same, for each of d coordinates
picked, scatter_added   an element taken from, and added to, some coordinates
run_added, summed       an element of a run, of a whole vector, checked and added to the sum
dealt                   a place of a cohort's run turned into a coordinate
near                    a neighbour looked at for a common cohort
weighted, float_added   a coordinate weighted, and added, in the clear
drawn                   a coordinate of a synthetic vector drawn (not CPU time of a device)
======================  ===========================================================================
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from fractions import Fraction
from statistics import median

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms import locations
from hpcfl.algorithms.aggregation import sharing
from hpcfl.algorithms.aggregation.cohort import Segments, add_stream
from hpcfl.algorithms.aggregation.costs import GAP_RATES
from hpcfl.algorithms.aggregation.secagg import SecAgg, pair_sign
from hpcfl.algorithms.aggregation.topology import CompleteLinks, Ring, RingLinks, ring_order
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm import envelope
from hpcfl.crypto import keys, shamir
from hpcfl.crypto.groups import BLOCK_WORDS, FQ
from hpcfl.crypto.sampling import GapSampler
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
# Part of the coordinates that is selected at alpha = 0.1. NumPy finds them another way, in a third
# of the time, where it is a tenth or more.
SELECTED = 0.095
# Integers in a page of memory.
PAGE = 512
LIMBS = sharing.KEY_SHARE + sharing.SEED_SHARE
# Gaps drawn at once for so many pairs, where their arrays do not fit the cache.
PAIRS, FAR_GAPS = 20, 200_000
REPEATS = 7


# Measured at two lengths of vectors: as they are, and with "_far" where the cache is too small.
BY_LENGTH = (
    *("drawn", "quantised", "reduced", "decoded", "element", "weighted"),
    *("folded", "scanned", "picked", "scatter_added", "located", "unlocated", "unlocated_dim"),
    *("streamed", "dealt", "run_added", "dealt_back"),
)
OPERATIONS = (
    *("key_pair", "agreement", "derivation", "share_product", "holder", "sealed_share"),
    *("opened_share", "reply_holder", "weight_pair", "weight", "secret", "summed", "upload"),
    *("answered", "booked", "settled", "verified", "verified_share"),
    *("float_added", *BY_LENGTH, *(f"{name}_far" for name in BY_LENGTH)),
    *("mask_word", "mask_block", "mask_key", "element_key", "gap_key"),
    *(f"gap_{suffix}" for suffix in GAP_RATES.values()),
    *(f"gap_{suffix}_far" for suffix in GAP_RATES.values()),
    *("near", "stream_key", "message", "sealed_byte"),
    *("ordered", "listed", "asked", "ring_inverse", "ring_weight", "ring_reply"),
)


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


def measure(progress: Callable[[str], None] = lambda name: None) -> dict[str, list[float]]:
    """Return samples of what each operation costs.

    Parameters
    ----------
    progress : callable
        Takes the name of each operation that is done.

    Returns
    -------
    dict of str to list of float
        CPU seconds of one operation, several samples; not negative.
    """
    found: dict[str, list[float]] = {}
    kinds = (_keys, _sharing, _checks, _vectors, _masks, _sparse, _cohorts, _messages, _rings)
    for kernel in kinds:
        for name, samples in kernel():
            found[name] = [max(0.0, sample) for sample in samples]
            progress(name)
    return found


def _per(samples: list[float], count: float) -> list[float]:
    return [sample / count for sample in samples]


def _line(work: Callable[[int], Work], small: int, large: int) -> tuple[list[float], list[float]]:
    """Return samples of the cost of a call, and of an element, from calls of two sizes."""
    few, many = cpu_seconds(work(small)), cpu_seconds(work(large))
    slopes = [(b - a) / (large - small) for a, b in zip(few, many, strict=True)]
    slope = median(slopes)
    return [a - slope * small for a in few], slopes


Kernels = Iterator[tuple[str, list[float]]]


def _keys() -> Kernels:
    yield "key_pair", cpu_seconds(lambda: keys.KeyPair.generate(keys.system_secrets))
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
    holders, terms = DEVICES, DEVICES // 2 + 1
    generator = np.random.default_rng(1)
    coefficients = generator.integers(0, FQ.modulus, (terms - 1, LIMBS), np.uint32)
    limbs = generator.integers(0, 2**31, LIMBS, np.uint32)
    everybody = tuple(range(holders))
    product = cpu_seconds(lambda: shamir.split(limbs, coefficients, everybody))
    yield "share_product", _per(product, holders * terms * LIMBS)

    device = protocol.device(0, 0, keys.system_secrets)
    others = [protocol.device(id, 0, keys.system_secrets) for id in range(1, DEVICES)]
    public = {one.id: one.send_advertise_keys().tobytes() for one in (device, *others)}
    listed = CompleteLinks(DEVICES, terms, public).key_list(None)
    topology = protocol.topology

    def read() -> None:
        topology.read_key_list(listed, 0, public[0]).check_keys()

    yield "holder", _per(cpu_seconds(read), holders)
    for one in (device, *others):
        one.receive_advertise_keys(listed)
    rows = {one.id: one.send_share_keys() for one in others}
    # Device 0's place in the rows of the others is the first.
    senders = np.array(sorted(rows), np.int64)
    mine = np.stack([rows[id][1][0] for id in senders.tolist()])

    def seal() -> None:
        device._seed = b""
        device.send_share_keys()

    split = median(product) + median(
        cpu_seconds(lambda: FQ.elements([bytes(16)], [(terms - 1) * LIMBS]))
    )
    yield "sealed_share", [(s - split) / len(others) for s in cpu_seconds(seal)]
    opened = cpu_seconds(lambda: device.receive_share_keys(senders, mine))
    yield "opened_share", _per(opened, len(others))
    device.receive_challenge(np.zeros(sharing.CHALLENGE_BYTES, np.uint8))

    def answer_challenge() -> None:
        device._checked = False
        device.send_checks()

    yield "answered", _per(cpu_seconds(answer_challenge), holders)

    flags = np.ones(DEVICES, np.bool_)
    request = CompleteLinks(DEVICES, terms, public).request(None, flags, ~flags)

    def answer() -> None:
        device._request = None
        device.receive_unmask(request)
        device.send_unmask()

    yield "reply_holder", _per(cpu_seconds(answer), holders)

    def weigh(count: int) -> Work:
        chosen = tuple(range(count))
        return lambda: shamir._weights_at_zero.__wrapped__(chosen)

    # a t + b t^2, from two sizes.
    small, large = 60, 480
    few, many = cpu_seconds(weigh(small)), cpu_seconds(weigh(large))
    pairs = [(b / large - a / small) / (large - small) for a, b in zip(few, many, strict=True)]
    yield "weight_pair", pairs
    yield "weight", [a / small - median(pairs) * small for a in few]
    key_limbs = shamir.to_limbs(bytes(range(32)))
    yield "secret", cpu_seconds(lambda: shamir.from_limbs(key_limbs, 32))


def _checks() -> Kernels:
    """Measure the server's book of who dealt what rightly; all dealers deal the same shares."""
    terms, generator = DEVICES // 2 + 1, np.random.default_rng(1)
    everybody = np.arange(DEVICES)
    shares = shamir.split(
        generator.integers(0, 2**31, LIMBS, np.uint32),
        generator.integers(0, FQ.modulus, (terms - 1, LIMBS), np.uint32),
        tuple(everybody.tolist()),
    )
    challenge = sharing.Challenge.of(bytes(sharing.CHALLENGE_BYTES))
    answers = challenge.answers(shares).astype("<u4")
    book = sharing.Dealings(challenge)
    payloads = [np.tile(one, (DEVICES, 1)).reshape(-1).view(np.uint8) for one in answers]

    def keep() -> None:
        book._answers.clear()
        book.receive(0, everybody, payloads[0])

    yield "booked", cpu_seconds(keep)
    for holder in range(1, DEVICES):
        book.receive(holder, everybody, payloads[holder])
    links = CompleteLinks(DEVICES, terms, dict.fromkeys(range(DEVICES), b""))
    everywhere = np.ones(DEVICES, np.bool_)
    yield "settled", _per(cpu_seconds(lambda: book.settle(links, everywhere)), DEVICES**2)

    def verify(count: int) -> Work:
        """Return the work on a reply of so many shares, half of them of seeds."""
        alone = sharing.Dealings(challenge)
        alone.receive(0, np.arange(count), np.tile(answers[0], (count, 1)).view(np.uint8))
        alive, gone = np.split(np.arange(count), 2)
        seeds = np.tile(shares[0, sharing.KEY_SHARE :], (alive.size, 1))
        mask_keys = np.tile(shares[0, : sharing.KEY_SHARE], (gone.size, 1))

        def work() -> None:
            alone.verified(0, alive, seeds, seeds=True)
            alone.verified(0, gone, mask_keys, seeds=False)

        return work

    reply, share = _line(verify, 20, 10 * DEVICES)
    yield "verified", reply
    yield "verified_share", share


def _vectors() -> Kernels:
    total = np.zeros(LONG, np.int64)
    received = itertools.cycle([np.arange(LONG, dtype=np.uint32) for _ in range(COLD)])

    def take() -> None:
        came = next(received)
        if int(came.max()) < FQ.modulus:
            np.add(total, came, out=total)

    yield "summed", _per(cpu_seconds(take), LONG)
    yield "upload", _after_work()
    floats = np.zeros(LONG)
    vectors = itertools.cycle([np.ones(LONG, np.float32) for _ in range(COLD)])

    def accumulate() -> None:
        np.add(floats, next(vectors), out=floats)

    yield "float_added", _per(cpu_seconds(accumulate), LONG)
    # What goes through a vector is slower where it does not fit the cache.
    for suffix, length in (("", DIM), ("_far", FAR)):
        for kernel in (_along, _at_coordinates, _along_run):
            for name, samples in kernel(length):
                yield name + suffix, samples


def _along(length: int) -> Kernels:
    """Measure what is done to every coordinate of a vector."""
    protocol = SecAgg(Parameters(DEVICES, length))
    updates = SyntheticUpdates(length, 0)
    vector = updates.vector(0, 0)
    integers = protocol.quantise(vector, 0, 0)
    elements = FQ.reduce(integers)
    yield "drawn", _per(cpu_seconds(lambda: updates.vector(0, 1)), length)
    yield "quantised", _per(cpu_seconds(lambda: protocol.quantise(vector, 0, 0)), length)
    yield "reduced", _per(cpu_seconds(lambda: FQ.reduce(integers)), length)
    yield "decoded", _per(cpu_seconds(lambda: FQ.decode(elements)), length)
    yield "element", _per(cpu_seconds(lambda: FQ.elements([bytes(16)], [length])), length)
    weight = 0.01

    def weigh() -> None:
        weighted = (vector * weight).astype("<f4")
        np.count_nonzero(weighted)

    yield "weighted", _per(cpu_seconds(weigh), length)


def _after_work() -> list[float]:
    """Return what an upload costs the server before its first coordinate.

    It comes after work of other kinds, which leaves neither code nor data in the caches.
    """
    protocol = SecAgg(Parameters(DEVICES, 8))
    ledger = Ledger(protocol.phases(), DEVICES, range(DEVICES), True)
    message = envelope.seal(4, 0, 0, envelope.SERVER, np.zeros(8, np.uint32))
    elements = np.zeros(BLOCK_WORDS, np.uint32)
    seeds = [k.to_bytes(16, "little") for k in range(30)]
    samples = []
    for _ in range(60):
        server = protocol.server(0, np.zeros(8, np.float32))
        server._shared = set(range(DEVICES))
        server._dealings = sharing.Dealings(sharing.Challenge.known())
        FQ.add_masks(elements, seeds, [1] * len(seeds))
        start = time.thread_time()
        with ledger.work("masked_input", None):
            payload = envelope.unseal(message, "masked_input", 4, 0, 0, envelope.SERVER)
            server.receive_masked_input(0, payload)
        samples.append(time.thread_time() - start)
    return samples


def _masks() -> Kernels:
    seeds = [k.to_bytes(16, "little") for k in range(30)]
    signs = [pair_sign(15, k) for k in range(30)]

    def add(words: int) -> list[float]:
        elements = np.zeros(words, np.uint32)
        return _per(cpu_seconds(lambda: FQ.add_masks(elements, seeds, signs)), len(seeds))

    few, one, four = add(8), add(BLOCK_WORDS), add(4 * BLOCK_WORDS)
    word = [(b - a) / (BLOCK_WORDS - 8) for a, b in zip(few, one, strict=True)]
    block = [(b - a - 3 * BLOCK_WORDS * median(word)) / 3 for a, b in zip(one, four, strict=True)]
    yield "mask_word", word
    yield "mask_block", block
    yield "mask_key", [sample - median(block) for sample in few]
    yield "element_key", cpu_seconds(lambda: FQ.elements([bytes(16)], [4]))


def _sparse() -> Kernels:
    for rate, suffix in GAP_RATES.items():
        sampler = GapSampler(Fraction(rate))

        def draw(selected: int, sampler: GapSampler = sampler, rate: float = rate) -> Work:
            seeds = [k.to_bytes(16, "little") for k in range(PAIRS)]
            return lambda: sampler.select(seeds, round(selected / rate))

        call, each = _line(draw, 50, 1000)
        if rate == 1e-3:
            yield "gap_key", _per(call, PAIRS)
        yield f"gap_{suffix}", _per(each, PAIRS)
        many = FAR_GAPS // PAIRS
        drawn = cpu_seconds(draw(many))
        yield f"gap_{suffix}_far", [(one - median(call)) / FAR_GAPS for one in drawn]


def _at_coordinates(dim: int) -> Kernels:
    """Measure what is done at some coordinates, in order."""
    generator = np.random.default_rng(1)
    where = np.flatnonzero(generator.random(dim) < SELECTED)
    # As of twenty pairs, one after the other.
    of_pairs = np.concatenate([where[pair::20] for pair in range(20)])
    signs, counts = np.array([1, -1], np.int64), [where.size // 2, where.size - where.size // 2]
    elements = generator.integers(0, FQ.modulus, where.size, np.uint32)
    # What does not fit the cache was used by others in between: copies take turns.
    copies = range(COPIES if dim >= FAR else 1)
    # Written to, so that memory is there.
    integers = itertools.cycle([np.ones(dim, np.int64) for _ in copies])
    flagged = itertools.cycle([np.ones(dim, np.bool_) for _ in copies])

    def fold() -> None:
        next(flagged)[of_pairs] = True
        np.add.at(next(integers), of_pairs, np.repeat(signs, counts) * elements)

    yield "folded", _per(cpu_seconds(fold), where.size)

    def scan() -> None:
        # Memory of its own, which is there once every page has been written to.
        np.zeros(dim, np.int64)[::PAGE] = 1
        flags = np.zeros(dim, np.bool_)
        flags[where] = True
        np.flatnonzero(flags)

    yield "scanned", _per(cpu_seconds(scan), dim)
    vectors = itertools.cycle([generator.standard_normal(dim, np.float32) for _ in copies])
    values = np.zeros(where.size, np.int64)

    def pick() -> None:
        next(vectors)[where]
        values + next(integers)[where] + elements

    yield "picked", _per(cpu_seconds(pick), where.size)
    came = itertools.cycle([(where.copy(), elements.copy()) for _ in range(4)])

    def scatter() -> None:
        positions, added = next(came)
        if int(added.max()) < FQ.modulus:
            next(integers)[positions] += added

    yield "scatter_added", _per(cpu_seconds(scatter), where.size)
    places = itertools.cycle([where.copy() for _ in copies])
    coded = cpu_seconds(lambda: locations.encode(next(places), dim, "auto"))
    yield "located", _per(coded, where.size)
    sparser = where[::10]
    many, few = cpu_seconds(_decode(where, dim)), cpu_seconds(_decode(sparser, dim))
    each = [(b - a) / (where.size - sparser.size) for a, b in zip(few, many, strict=True)]
    yield "unlocated", each
    yield "unlocated_dim", [(a - median(each) * sparser.size) / dim for a in few]


def _decode(where: NDArray[np.int64], dim: int) -> Work:
    message = locations.encode(where, dim, "auto")
    messages = itertools.cycle([message.copy() for _ in range(COLD)])
    return lambda: locations.decode(next(messages), dim)


def _cohorts() -> Kernels:
    segments = Segments(DIM, DEVICES, 10)
    near = cpu_seconds(lambda: [any(segments.common(3, place)) for place in range(DEVICES)])
    yield "near", _per(near, DEVICES)
    few = np.zeros(4, np.int64)
    yield "stream_key", cpu_seconds(lambda: add_stream(FQ, few, bytes(16), 1))


def _along_run(length: int) -> Kernels:
    """Measure what is done to every coordinate of a cohort's run, and of their places."""
    run = np.zeros(length, np.int64)
    yield "streamed", _per(cpu_seconds(lambda: add_stream(FQ, run, bytes(16), 1)), length)
    segments = Segments(10 * length, DEVICES, 10)
    yield "dealt", _per(cpu_seconds(lambda: segments.dealt(length, length)), length)
    total = np.ones(10 * length, np.int64)
    starts = itertools.cycle(range(0, 10 * length, length))
    runs = itertools.cycle([np.zeros(length, np.uint32) for _ in range(4)])

    def take() -> None:
        start, came = next(starts), next(runs)
        if int(came.max()) < FQ.modulus:
            total[start : start + length] += came.astype(np.int64)

    yield "run_added", _per(cpu_seconds(take), length)
    place = Segments(length, DEVICES, 10).dealt(0, length)
    whole = total[:length]

    def bring_back() -> None:
        back = np.empty_like(whole)
        back[place] = whole

    yield "dealt_back", _per(cpu_seconds(bring_back), length)


def _messages() -> Kernels:
    ledger = Ledger(["model"], 1, range(1), True)

    def carry(size: int) -> Work:
        payload = np.zeros(size, np.uint8)

        def work() -> None:
            with ledger.work("model", 0):
                message = envelope.seal(0, 0, 0, envelope.SERVER, payload)
            ledger.sent("model", 0, message.size)
            with ledger.work("model", None):
                envelope.unseal(message, "model", 0, 0, 0, envelope.SERVER)
            kept.append(message)

        return work

    # The last few messages are still there, so that new ones get memory of their own.
    kept: deque[object] = deque(maxlen=COLD)
    call, each = _line(carry, 64, 2_000_000)
    yield "message", call
    yield "sealed_byte", each


def _rings() -> Kernels:
    degree, threshold = 60, 30
    generator = np.random.default_rng(1)
    ring = Ring(10 * DEVICES, degree, threshold)
    public = {id: generator.bytes(64) for id in range(10 * DEVICES)}
    links = RingLinks(ring, public, b"nonce", b"kernel")
    order = cpu_seconds(lambda: ring_order(len(public), public, b"nonce", b"kernel"))
    yield "ordered", _per(order, len(public))
    yield "listed", _per(cpu_seconds(lambda: links.key_list(7)), degree)
    flags = np.ones(len(public), np.bool_)
    yield "asked", cpu_seconds(lambda: links.asked_of(7, flags))
    owners, columns = 50, sharing.SEED_SHARE
    holders = np.tile(np.arange(threshold), (owners, 1))
    shares = generator.integers(0, FQ.modulus, (owners, threshold, columns), np.uint32)
    inverse = cpu_seconds(lambda: shamir._inverse(holders.astype(np.uint64) + np.uint64(1)))
    yield "ring_inverse", _per(inverse, owners * threshold)
    both = cpu_seconds(lambda: shamir.combine_each(shares, holders))
    yield "ring_weight", [(b - median(inverse)) / (owners * threshold**2) for b in both]
    small = Ring(2 * degree, degree, threshold)
    near = RingLinks(small, {id: public[id] for id in range(2 * degree)}, b"nonce", b"kernel")
    everybody = np.ones(2 * degree, np.bool_)
    replies = {
        id: np.zeros((near.asked_of(id, everybody).size, columns), np.uint32)
        for id in range(2 * degree)
    }
    collected = cpu_seconds(lambda: near.collect(replies, everybody, columns))
    yield "ring_reply", _per(collected, 2 * degree)
