"""Recorded rounds for the tests of the attack, and their masking graphs found in another way."""

import hashlib
import hmac
import tempfile
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np

from hpcfl.algorithms.aggregation.cohort import golden_step
from hpcfl.algorithms.aggregation.topology import RingGraph
from hpcfl.attack.transcript import load
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.loopback import Loopback
from hpcfl.crypto import keys
from hpcfl.options.bench import BenchOptions

SEED = 3


def recorded(protocol, devices=10, **options):
    """Return an experiment of one round and its transcript; few levels, so that chance is rare."""
    defaults = {"dim": 400, "rounds": 1, "warmup": 0, "levels": 2000, "alpha": 0.3, "gamma": 0.2}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "round.npz"
        insecure = {"insecure_seed": SEED, "keep_transcript": path}
        experiment = Experiment.prepare(
            BenchOptions(protocol, **defaults | insecure | options), devices
        )
        experiment.run(Loopback(devices))
        return experiment, load(path)


class Graph:
    """The graph of masks between honest survivors at every coordinate, from the devices' keys."""

    # By coordinate that honest survivors sent: the components of those that sent it.
    sets: dict[int, list[set[int]]]
    # By honest survivor and coordinate: its scaled value before rounding.
    values: dict[tuple[int, int], float]

    def __init__(self, experiment, transcript):
        self._protocol = experiment.protocol
        self._round = transcript.round_index
        parameters = experiment.protocol.parameters
        shared = np.flatnonzero(transcript.survived | transcript.dropped).tolist()
        honest = set(np.flatnonzero(transcript.survived & ~transcript.colluding).tolist())
        self._pairs = {}
        for id in range(parameters.devices):
            source = keys.insecure_secrets(SEED, self._round, id)
            source(keys.KEY_BYTES)  # the share-transport key
            self._pairs[id] = keys.KeyPair.generate(source)
        where, edges = self._masks(transcript, shared)
        self.values = {}
        senders = defaultdict(set)
        for id in honest:
            vector = experiment.updates.vector(self._round, id)
            vector = self._protocol.sent_values(vector, slice(None), self._round)
            scale = parameters.levels * self._protocol.scale(id)
            for coordinate in where[id]:
                self.values[id, coordinate] = scale * np.clip(
                    float(vector[coordinate]), -parameters.clip, parameters.clip
                )
                senders[coordinate].add(id)
        self.sets = {
            coordinate: components(ids, edges[coordinate]) for coordinate, ids in senders.items()
        }

    def _masks(self, transcript, shared):
        """Return the coordinates of every device and the pairs that mask every coordinate."""
        protocol, dim = self._protocol, self._protocol.parameters.dim
        place, reach = self._ring(transcript)
        linked = [
            (i, j)
            for i, j in combinations(shared, 2)
            if place is None
            or min((place[i] - place[j]) % len(place), (place[j] - place[i]) % len(place)) <= reach
        ]
        where = {id: set() for id in shared}
        edges = defaultdict(list)
        if protocol.name == "cohort":
            size = protocol.cohort_size
            bounds = [s * dim // len(place) for s in range(len(place) + 1)]
            for id in shared:
                for segment in range(place[id], place[id] + size):
                    first = segment % len(place)
                    places = range(bounds[first], bounds[first + 1])
                    where[id] |= {place * golden_step(dim) % dim for place in places}
        elif protocol.name != "sparse":
            where = {id: set(range(dim)) for id in shared}
        for i, j in linked:
            common = where[i] & where[j]
            if protocol.name == "sparse":
                common = self._selected(i, j)
                where[i] |= common
                where[j] |= common
            for coordinate in common:
                edges[coordinate].append((i, j))
        return where, edges

    def _ring(self, transcript):
        """Return the device's places, and how far apart neighbours are."""
        topology = self._protocol.topology
        if not isinstance(topology, RingGraph):
            return None, 0
        public = {
            id: message[16:].tobytes()
            for id, message in transcript.messages["advertise_keys"].items()
        }
        context = self._protocol.round_context(self._round)
        order = topology.link(public, transcript.nonce, context).order
        reach = len(order) if len(order) - 1 <= topology.degree else topology.degree // 2
        return {int(id): place for place, id in enumerate(order)}, reach

    def _selected(self, i, j):
        """Return what a pair selects: the key follows from its secret, not from its keys alone."""
        protocol = self._protocol
        (key,) = keys.agree(self._pairs[i].private, [self._pairs[j].public])
        pair = f"hpcfl/1 {protocol.name} round {self._round} pair {min(i, j)} {max(i, j)}"
        for use in ("additive mask", "multiplicative mask"):
            key = hkdf(key, f"{pair} {use}")
        return set(protocol.sampler.select([key], protocol.parameters.dim)[0].tolist())

    def alone(self):
        """Return device and coordinate of every value that is alone."""
        return {
            (next(iter(one)), coordinate)
            for coordinate, sets in self.sets.items()
            for one in sets
            if len(one) == 1
        }


def hkdf(secret, context):
    """Return the first 16 bytes of HKDF-SHA256 without salt (RFC 5869)."""
    key = hmac.digest(bytes(32), secret, hashlib.sha256)
    return hmac.digest(key, context.encode() + b"\x01", hashlib.sha256)[:16]


def components(vertices, edges):
    """Return the connected components, by merging the two sides of every edge."""
    of = {vertex: {vertex} for vertex in vertices}
    for left, right in edges:
        if left in of and right in of and of[left] is not of[right]:
            merged = of[left] | of[right]
            of |= dict.fromkeys(merged, merged)
    return [set(one) for one in {frozenset(one) for one in of.values()}]


def changed(values, index, by=1):
    """Return a copy of an array with one element changed."""
    copy = values.copy()
    copy[index] += values.dtype.type(by)
    return copy
