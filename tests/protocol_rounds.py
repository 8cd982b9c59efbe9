"""Rounds of a protocol in one process, with all their messages, for tests to inspect.

`play` plays a round of any protocol with the project's own driver. A test can change the delivered
messages (`change`), the behaviour of a device (`wrap`), and the server (`server`, `apart`).
"""

from __future__ import annotations

import base64
import itertools
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from numpy.typing import NDArray
from player import round_of
from slow_ring import cohort_size, ring_order, run, slots

from hpcfl.algorithms import locations
from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.loopback import Loopback
from hpcfl.comm.phases import Pattern
from hpcfl.crypto.keys import insecure_secrets
from hpcfl.errors import HpcflError
from hpcfl.results.record import RoundRecord
from hpcfl.rounds.enrolment import enrol
from hpcfl.rounds.observer import NOBODY

SECURE = ("secagg", "sparse", "secagg-graph", "cohort", "common")
# Protocols on a ring, where the server sends each device a separate message.
SCATTERING = ("secagg-graph", "cohort")
# One for each topology: other protocols share their code, except for masks and uploads.
LINKED = ("secagg", "cohort")
# One for each kind of masks and uploads.
UPLOADING = ("secagg", "sparse", "cohort")
ENVELOPE_BYTES = 16


class Source:
    """Hands out secret bytes and remembers them."""

    def __init__(self, source):
        self._source = source
        self.drawn: list[bytes] = []

    def __call__(self, count):
        self.drawn.append(self._source(count))
        return self.drawn[-1]


class Header(NamedTuple):
    """An envelope, read by hand."""

    version: int
    step: int
    reserved: int
    round: int
    sender: int
    receiver: int

    @classmethod
    def of(cls, message):
        return cls(*struct.unpack("<BBHIII", message[:ENVELOPE_BYTES].tobytes()))

    @classmethod
    def receivers_of(cls, rows):
        """Return the receivers of the rows of a route."""
        return np.array([cls.of(row).receiver for row in rows], np.int64)


class Message(NamedTuple):
    """A sealed message as it was sent."""

    pattern: Pattern
    header: Header
    sealed: bytes

    @property
    def payload(self):
        return self.sealed[ENVELOPE_BYTES:]


def sent_by_device(protocol, name, senders, change):
    """Return a change of the messages that some devices send in an exchange.

    `change` takes the payload of a message, or the rows of a route with their envelopes.
    """
    number = next(
        number
        for number, step in enumerate(protocol.steps)
        if step.name == name and step.pattern in (Pattern.GATHER, Pattern.ROUTE)
    )
    senders = [senders] if isinstance(senders, int) else senders

    def changed(header, message):
        if header.step != number or header.sender not in senders:
            return message
        if message.ndim > 1:
            return change(message.copy())
        return np.concatenate([message[:ENVELOPE_BYTES], change(message[ENVELOPE_BYTES:].copy())])

    return changed


def spoiling(protocol, dealer, victims):
    """Return a change of a device's rows to some others, which then cannot open them."""

    def spoil(rows):
        rows[np.isin(Header.receivers_of(rows), victims), -1] ^= 1
        return rows

    return sent_by_device(protocol, "share_keys", dealer, spoil)


class Wire(Loopback):
    """A loopback that keeps every message, and lets a test change the delivered ones.

    `change` is called with each message and its header. For a route, it is called with all rows of
    a sender and the header of the first one.
    """

    def __init__(self, devices, change=None, helpers=0):
        super().__init__(devices, helpers)
        self._change = change or (lambda header, message: message)
        self.messages: list[Message] = []
        self.summed: dict[int, bytes] = {}
        self.announced: list[tuple[int, int]] = []

    def broadcast(self, message, error=None):
        message = super().broadcast(message, error)
        self._keep(Pattern.BROADCAST, message)
        return self._change(Header.of(message), message)

    def scatter(self, receivers, produce):
        for receiver, message in super().scatter(receivers, produce):
            if message.size:
                self._keep(Pattern.SCATTER, message)
                message = self._change(Header.of(message), message)
            yield receiver, message

    def gather(self, senders, produce, largest):
        for sender, message in super().gather(senders, produce, largest):
            self._keep(Pattern.GATHER, message)
            self.announced.append((message.size, largest))
            yield sender, self._change(Header.of(message), message)

    def reduce(self, senders, produce, add_into, zeros):
        def keep(sender):
            payload = produce(sender)
            self.summed[sender] = payload.tobytes()
            return payload

        return super().reduce(senders, keep, add_into, zeros)

    def route(self, senders, rows, width):
        """Change a device's block of rows; the change may alter their number and their length."""
        blocks = []
        for block in rows:
            for row in block:
                self._keep(Pattern.ROUTE, row)
            blocks.append(self._change(Header.of(block[0]), block) if len(block) else block)
        return super().route(senders, blocks, width)

    def _keep(self, pattern, message):
        self.messages.append(Message(pattern, Header.of(message), message.tobytes()))


@dataclass
class Played:
    """A round, or the beginning of one, with everything about it."""

    protocol: AggregationProtocol
    index: int
    vectors: NDArray[np.floating]
    dropouts: Mapping[int, str]
    sources: dict[int, Source]
    servers: Source
    devices: dict[int, Any]
    server: Any
    wire: Wire
    record: RoundRecord = field(repr=False)
    # The reasons for which the server refused devices, and for which devices left, by id.
    kept_out: dict[int, HpcflError] = field(default_factory=dict)
    left: dict[int, HpcflError] = field(default_factory=dict)
    error: HpcflError | None = None  # that ended the round

    @property
    def parameters(self):
        return self.protocol.parameters

    @property
    def nonce(self):
        """The first secret that the server drew, after it had all keys."""
        return self.servers.drawn[0]

    @property
    def label(self):
        """The round's label in all derivations."""
        return f"{self.protocol.name} round {self.index}"

    def order(self, keys=None):
        """Return the ids around the ring for these keys, by default the keys that devices sent."""
        keys = self.sent("advertise_keys") if keys is None else keys
        return ring_order(self.parameters.devices, keys, self.nonce, self.label)

    def messages(self, name, pattern):
        """Return the messages of one exchange, in the order in which they were sent.

        The name of an exchange is that of its step: its phase's, or challenge, checks, expelled,
        pairs.
        """
        return [
            message
            for message in self.wire.messages
            if message.pattern is pattern
            # A refusal has a step number outside the protocol.
            and message.header.step < len(self.protocol.steps)
            and self.protocol.steps[message.header.step].name == name
        ]

    def sent(self, name):
        """Return each device's payload to the server in an exchange."""
        found = {m.header.sender: m.payload for m in self.messages(name, Pattern.GATHER)}
        if not found and name == self.protocol.upload_phase():
            return dict(self.wire.summed)
        return found

    def told(self, name):
        """Return the server's payload for all devices in an exchange."""
        (message,) = self.messages(name, Pattern.BROADCAST)
        return message.payload

    def told_each(self, name):
        """Return the server's separate payload for each device in an exchange."""
        return {m.header.receiver: m.payload for m in self.messages(name, Pattern.SCATTER)}

    def taking_part(self, phase):
        """Return the devices that have not dropped out before the end of a phase."""
        order = self.protocol.phases()
        return [
            id
            for id in range(self.parameters.devices)
            if id not in self.dropouts or order.index(self.dropouts[id]) > order.index(phase)
        ]

    def refused(self, kind, call, *arguments):
        """Return the error of exactly `kind` that a call raises; it may contain no secret."""
        with pytest.raises(HpcflError) as caught:
            call(*arguments)
        assert kind is caught.type, caught.value
        assert_tells_no_secret(caught.value, self.sources)
        return caught.value

    def goes_on(self, survivors=None):
        """Assert that the round ended with the exact sum over these devices.

        By default, they are all devices that had not dropped out before the upload.
        """
        if survivors is None:
            survivors = self.taking_part(self.protocol.upload_phase())
        assert list(survivors) == self.server.survivors
        assert sum_of(self, survivors).tolist() == self.server.total.tolist()

    def nobody_left(self):
        """Assert that all devices took part to the end."""
        assert ({}, {}) == (self.kept_out, self.left)


def enrolled(name, devices, seed=5, security="active", helpers=None):
    """Return devices that enrolled together over a transport, followed by the helpers.

    `name` may be a protocol, whose parameters matter then; the server's side comes with it.
    """
    kind = find(name, security) if isinstance(name, str) else name
    loopback = Loopback(devices, kind.helpers_of(helpers))
    found = enrol(kind, loopback, insecure_seed=seed)
    assert found is not None
    whole = not isinstance(name, str)
    return {id: party for id, party in found.devices.items() if whole or id >= 0}


def make(name, devices, dim=20, *, security="passive", identities=None, members=None, **options):
    """Return a protocol with few levels, so that no choice of the other parameters overflows.

    Unless a degree is given, a ring is complete: all devices are neighbours, as in SecAgg. Cohorts
    have half of the devices, and sparse uploads half of the coordinates. Devices enrol if needed.
    """
    defaults: dict[str, Any] = {"levels": 1000, "security": security}
    if name in SCATTERING:
        defaults["degree"] = max(2, devices - devices % 2)
    if name == "cohort":
        defaults["alpha"] = max(0.5, 2 / devices)
    if security == "active":
        defaults["alpha"] = 0.5
    protocol = find(name, security)(Parameters(devices, dim, **{**defaults, **options}))
    if security == "active":
        identities = enrolled(name, devices) if identities is None else identities
        protocol.join(identities, range(devices) if members is None else members, len(identities))
    return protocol


def on_ring(name, devices, dim, degree, threshold, **options):
    """Return a protocol on a ring of this degree with a given `threshold` for shares.

    The protocol's own choice of a threshold would depend on probabilities; the behaviour of a ring
    with a given threshold does not.
    """
    protocol = make(name, devices, dim, degree=degree, **options)
    protocol.topology.threshold = threshold
    return protocol


def updates(protocol, seed=0):
    """Return a vector for every device, with some coordinates beyond the clip."""
    parameters = protocol.parameters
    generator = np.random.default_rng(seed)
    shape = (parameters.devices, parameters.dim)
    return generator.uniform(-1.2, 1.2, shape) * parameters.clip


def seeded_sources(devices, index=0, seed=0):
    """Return reproducible sources, so that a failed test can be repeated."""
    return {id: Source(insecure_secrets(seed, index, id)) for id in range(devices)}


def play(
    protocol,
    vectors=None,
    dropouts=None,
    *,
    index=0,
    sources=None,
    upload="gather",
    before=None,
    order=None,
    change=None,
    wrap=None,
    server=None,
    apart=False,
    observer=NOBODY,
    raises=True,
):
    """Play a round over the loopback transport.

    `dropouts` maps a device to the phase before which it drops out. With `before`, a phase or an
    exchange, or one of its patterns, only the steps before it are played. `order` is the order in
    which devices are played. `wrap` returns a replacement for a device. `server` makes another
    server than the protocol's. With `apart`, the server may send each device a different message
    instead of a broadcast. An error that ends the round may hold no secret; it is raised with
    `raises`, else kept.
    """
    devices, dim = protocol.parameters.devices, protocol.parameters.dim
    vectors = updates(protocol) if vectors is None else vectors
    sources = seeded_sources(devices, index) if sources is None else sources
    servers = Source(insecure_secrets(0, index, -1))
    made = protocol.server if server is None else lambda *rest: server(protocol, *rest)
    if apart:
        protocol.steps = tuple(
            replace(step, pattern=Pattern.SCATTER)
            if step.pattern is Pattern.BROADCAST and step.name not in ("model", "challenge")
            else step
            for step in protocol.steps
        )
    steps = itertools.takewhile(
        lambda step: (
            before
            not in (step.phase, step.name, (step.phase, step.pattern), (step.name, step.pattern))
        ),
        protocol.steps,
    )
    made_devices = {}
    for id in range(devices) if order is None else order:
        device = protocol.device(id, index, sources[id])
        made_devices[id] = device if wrap is None else wrap(id, device)
    dropouts = {} if dropouts is None else dropouts
    wire = Wire(devices, change, protocol.helpers)
    made_server = made(index, np.zeros(dim, np.float32), servers)
    round_played = round_of(
        *(protocol, wire, made_devices, made_server, vectors),
        index=index,
        dropouts=dropouts,
        steps=tuple(steps),
        reduce=upload == "reduce",
        observer=observer,
    )
    played = Played(
        protocol=protocol,
        index=index,
        vectors=vectors,
        dropouts=dropouts,
        sources=sources,
        servers=servers,
        devices=made_devices,
        server=made_server,
        wire=wire,
        record=round_played.ledger.record,
    )
    played.kept_out, played.left = round_played.refused, round_played.left
    try:
        round_played.play()
    except HpcflError as error:
        assert_tells_no_secret(error, sources)
        if raises:
            raise
        played.error = error
    return played


def sent_by(played, id):
    """Return the coordinates that a device sent, in their order, according to its messages."""
    parameters = played.parameters
    if played.protocol.name == "sparse":
        message = np.frombuffer(played.sent("masked_input")[id], np.uint8)
        return locations.decode(message, parameters.dim)[0]
    if played.protocol.name == "cohort":
        ring, position = parameters.devices, places(played)[id]
        size = cohort_size(ring, parameters.alpha)
        return np.array(run(parameters.dim, ring, size, position), np.int64)
    return played.protocol.sent_in(played.index)


def sum_of(played, ids):
    """Return the sum of some devices' quantised vectors, from the vectors and messages only."""
    total = np.zeros(played.parameters.dim, np.int64)
    for id in ids:
        where = sent_by(played, id)
        total[where] += integers_of(played, id, where)
    return total


def assert_tells_no_secret(error, sources):
    """Assert that an error, and earlier errors in its traceback, hold no secret."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert [] == secrets_in(f"{error} {error!r} {before!r}", sources.values())


def secrets_in(text, sources):
    """Return the parts of drawn secrets in `text`: any six bytes or any limb of a secret."""
    found = []
    for secret in (secret for source in sources for secret in source.drawn):
        parts = [secret[k : k + 6] for k in range(len(secret) - 5)]
        number = int.from_bytes(secret, "little")
        limbs = [number >> shift & (2**31 - 1) for shift in range(0, 8 * len(secret), 31)]
        forms = [base64.b64encode(secret[:30]).decode(), str(number)]
        forms += [str(int.from_bytes(secret, "big"))]
        forms += [form for part in parts for form in (part.hex(), repr(part)[2:-1])]
        forms += [str(list(part))[1:-1] for part in parts]
        forms += [str(limb) for limb in limbs if limb > 10**6]
        found += [form for form in forms if form in text]
    return found


def places(played):
    """Return the position on the ring that the server told each device."""
    told = played.told_each("advertise_keys")
    return {id: int.from_bytes(message[16:20], "little") for id, message in told.items()}


def integers_of(played, id, where):
    """Return the quantised values of a device at `where` in this round."""
    return played.protocol.quantise(played.vectors[id][where], id, played.index)


def shares_by_receiver(devices):
    """Let every device share its keys; return the senders and rows for each receiver, by sender."""
    sent: dict[int, list[tuple[int, NDArray[np.uint8]]]] = {id: [] for id in devices}
    for sender in sorted(devices):
        for receiver, row in zip(*devices[sender].send_share_keys(), strict=True):
            sent[int(receiver)].append((sender, row))
    return {
        receiver: (np.array([id for id, _ in rows]), np.stack([row for _, row in rows]))
        for receiver, rows in sent.items()
    }


def bits(ids, devices):
    """Return a bitmap of devices; the first bit of a byte is the most significant one."""
    text = "".join("1" if id in ids else "0" for id in range(devices)).ljust(
        -(-devices // 8) * 8, "0"
    )
    return bytes(int(text[k : k + 8], 2) for k in range(0, len(text), 8))


def key_list(played, receiver, keys):
    """Return the server's message with these keys to a device; on a ring, in the ring's order.

    On a ring a device does not receive its own keys, but they determine its place.
    """
    parameters = played.parameters
    if parameters.degree is None:
        listed = b"".join(keys[id] for id in sorted(keys))
        return raw(bits(list(keys), parameters.devices) + listed)
    order = played.order(keys)
    return ring_list(played.nonce, order, order.index(receiver), keys, parameters.degree)


def ring_list(nonce, order, position, keys, degree):
    """Return the server's message to the device at a position of a ring."""
    around = slots(order, order[position], degree)
    present = bits([slot for slot, id in enumerate(around) if id in keys], len(around))
    neighbours = [id for id in around if id in keys and id != order[position]]
    entries = b"".join(struct.pack("<I", id) + keys[id] for id in neighbours)
    return raw(nonce + struct.pack("<I", position) + present + entries)


def bits_near(played, receiver, ids):
    """Return a bitmap of all devices, or on a ring of the devices in a device's slots."""
    parameters = played.parameters
    if parameters.degree is None:
        return bits(ids, parameters.devices)
    around = slots(played.order(), receiver, played.protocol.topology.degree)
    return bits([slot for slot, id in enumerate(around) if id in ids], len(around))


def request(played, receiver, survivors, dropped, total=None):
    """Return the server's message that asks a device to unmask.

    On a ring it contains the total number of survivors.
    """
    content = bits_near(played, receiver, survivors) + bits_near(played, receiver, dropped)
    if played.parameters.degree is not None:
        content = struct.pack("<I", len(survivors) if total is None else total) + content
    if played.protocol.name == "cohort":
        order = played.order()
        ring, place = len(order), order.index(receiver)
        size = cohort_size(ring, played.parameters.alpha)
        near = [order[(place + k) % ring] for k in range(1 - size, size)]
        content += bits([k for k, id in enumerate(near) if id in survivors], len(near))
    return raw(content)


def expelled_list(played, receiver, expelled):
    """Return the server's message to a device with the expelled devices.

    On a ring it names the ones that the device is linked with, and contains the total number.
    """
    count = b"" if played.parameters.degree is None else struct.pack("<I", len(expelled))
    return raw(count + bits_near(played, receiver, expelled))


def pair_secret(played, id, other):
    """Return the secret from which the masks of two devices are derived, by X25519."""
    private = X25519PrivateKey.from_private_bytes(played.sources[id].drawn[1])
    public = X25519PublicKey.from_public_bytes(played.sent("advertise_keys")[other][32:])
    secret = private.exchange(public)
    (found,) = played.protocol.mask_secrets(played.index, id, [other], [secret])
    return bytes(found)


def raw(content):
    """Return bytes as a payload."""
    return np.frombuffer(content, np.uint8)
