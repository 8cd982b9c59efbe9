"""The masks that a curious server can remove after a round, and the values that this exposes.

From the replies to its unmasking request the server reconstructs, as the protocol intends, the seed
of every survivor's private mask and the mask key of every dropped device. It has each upload
individually. Colluding devices tell it their mask keys. An honest survivor's values then only keep
the masks that it shares with other honest survivors.
"""

from __future__ import annotations

import math
from functools import singledispatch
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.cohort import Cohort
from hpcfl.algorithms.aggregation.messages import Flags, parse_vector
from hpcfl.algorithms.aggregation.secagg import SecAgg, pair_sign
from hpcfl.algorithms.aggregation.sharing import KEY_SHARE, SEED_SHARE
from hpcfl.algorithms.aggregation.sparse import SparseSecAgg
from hpcfl.algorithms.aggregation.topology import Links, RingLinks
from hpcfl.attack.transcript import Transcript
from hpcfl.comm import envelope
from hpcfl.comm.phases import Pattern, Payload
from hpcfl.crypto import keys, shamir
from hpcfl.crypto.groups import Elements
from hpcfl.crypto.keystream import KEY_BYTES as SEED_BYTES
from hpcfl.values import dataclass

# Devices, each with the secret that determines its masks with a given device.
Known = list[tuple[int, bytes]]
Left = tuple[NDArray[np.int64], Elements]


@dataclass(frozen=True)
class Seen:
    """The roles of the devices in a round."""

    round_index: int
    links: Links  # pairs of devices that share masks
    shared: Flags  # shape (N,): devices that shared keys, so that others mask with them
    honest: Flags  # shape (N,): survivors that do not collude with the server

    @property
    def ids(self) -> list[int]:
        """The honest survivors, increasing."""
        return np.flatnonzero(self.honest).tolist()

    def honest_neighbours(self, id: int) -> list[int]:
        """Return the honest survivors that a device is linked with."""
        return self.links.neighbours(id, self.honest)

    def neighbours(self) -> NDArray[np.int64]:
        """Return for each honest survivor its number of neighbours that shared keys."""
        return np.array([len(self.links.neighbours(id, self.shared)) for id in self.ids], np.int64)


@singledispatch
def strip(protocol: SecAgg, seen: Seen, id: int, upload: Payload, key: bytes, known: Known) -> Left:
    """Return the coordinates that an honest survivor sent, and their values without known masks.

    `upload` is its message, `key` the reconstructed key of its private mask, and `known` the
    devices whose masks with it the server knows. Raise MessageError if the upload is malformed.
    """
    where = np.arange(protocol.parameters.dim)[protocol.sent_in(seen.round_index)]
    values = protocol.read_values(upload, where.size, id)
    secrets = [secret for _, secret in known]
    signs = [-pair_sign(id, peer) for peer, _ in known]
    return where, protocol.summed_in.add_masks(values, [key, *secrets], [-1, *signs])


@strip.register
def _strip_sparse(
    protocol: SparseSecAgg, seen: Seen, id: int, upload: Payload, key: bytes, known: Known
) -> Left:
    where, values, _ = protocol.read_upload(upload, id)
    peers, secrets = [peer for peer, _ in known], [secret for _, secret in known]
    pairwise = protocol.summed_in.zeros(protocol.parameters.dim)
    np.add.at(pairwise, *protocol.pair_masks(seen.round_index, id, peers, secrets))
    private = protocol.summed_in.elements([key], [where.size])
    return where, protocol.summed_in.reduce(values.astype(np.int64) - private - pairwise[where])


@strip.register
def _strip_cohort(
    protocol: Cohort, seen: Seen, id: int, upload: Payload, key: bytes, known: Known
) -> Left:
    places = _places(seen)
    position = int(places[id])
    where = protocol.segments.coordinates(position)
    values = protocol.read_values(upload, where.size, id)
    others = [(peer, int(places[peer]), secret) for peer, secret in known]
    pairwise = protocol.pair_masks(seen.round_index, (id, position), others)
    private = protocol.summed_in.elements([key], [where.size])
    return where, protocol.summed_in.reduce(values.astype(np.int64) - private - pairwise)


@singledispatch
def alone(protocol: SecAgg, seen: Seen) -> tuple[float, float]:
    """Return the expected number of honest survivors' exposed values, and its standard error.

    The mean is over the keys unknown to the server; the error is 0 where nothing is random.
    """
    lonely = [id for id in seen.ids if not seen.honest_neighbours(id)]
    return float(protocol.upload_dim * len(lonely)), 0.0


@alone.register
def _alone_sparse(protocol: SparseSecAgg, seen: Seen) -> tuple[float, float]:
    """Return mean and standard deviation of the number of exposed values.

    Every pair of linked devices that shared keys selects a coordinate with probability pi = 1 - x.
    Honest survivor i has links to g_i other honest survivors and to o_i further devices. Its value
    at a coordinate is exposed if no pair of the first kind selects it, but one of the second does:

        P_i = x**g_i (1 - x**o_i).

    Coordinates are independent. At one coordinate, two linked survivors have a pair in common: both
    are exposed with probability x**(g_i + g_j - 1) (1 - x**o_i) (1 - x**o_j). For two survivors
    without a link the probability is P_i P_j.
    """
    row = {id: k for k, id in enumerate(seen.ids)}
    linked = np.zeros((len(row), len(row)), np.bool_)
    for id in row:
        linked[row[id], [row[other] for other in seen.honest_neighbours(id)]] = True
    inside = linked.sum(axis=1)
    x = 1 - float(protocol.pair_probability)
    some_outside = 1 - x ** (seen.neighbours() - inside)
    single = x**inside * some_outside
    first, second = np.nonzero(np.triu(linked))
    both = x ** (inside[first] + inside[second] - 1)
    both *= some_outside[first] * some_outside[second]
    covariance = both - single[first] * single[second]
    variance = float((single * (1 - single)).sum() + 2 * covariance.sum())
    dim = protocol.parameters.dim
    return float(dim * single.sum()), math.sqrt(dim * variance)


@alone.register
def _alone_cohort(protocol: Cohort, seen: Seen) -> tuple[float, float]:
    """Return the number of honest survivors' exposed values in their cohorts, and the error 0.

    A device at position p sends the segments p to p + m - 1. It masks the segments from p + a with
    a device a positions ahead, and those before p + m - b with a device b positions behind. If
    these are its nearest linked honest survivors, segments p + m - b to p + a - 1 are exposed.
    """
    places, segments, total = _places(seen), protocol.segments, 0
    for id in seen.ids:
        position = int(places[id])
        others = places[seen.honest_neighbours(id)]
        ahead = int(np.min((others - position) % segments.ring, initial=segments.size))
        behind = int(np.min((position - others) % segments.ring, initial=segments.size))
        first, last = position + segments.size - behind, position + ahead
        if first < last:
            total += segments.bound(last) - segments.bound(first)
    return float(total), 0.0


def _places(seen: Seen) -> NDArray[np.int64]:
    """Return the devices' positions on the ring."""
    return cast(RingLinks, seen.links).position


class Adversary:
    """The server after a round, and the devices that collude with it.

    They use a transcript, but not the true values in it.
    """

    def __init__(self, transcript: Transcript) -> None:
        self.protocol = transcript.kind(transcript.parameters)
        self._transcript = transcript
        self._public = {
            id: parse_vector(
                payload, "u1", 2 * keys.KEY_BYTES, "advertise_keys", f"device {id}"
            ).tobytes()
            for id, payload in self._payloads("advertise_keys").items()
        }
        context = self.protocol.round_context(transcript.round_index)
        self.seen = Seen(
            transcript.round_index,
            self.protocol.topology.link(self._public, transcript.nonce, context),
            transcript.survived | transcript.dropped,
            transcript.survived & ~transcript.colluding,
        )
        self._uploads = self._payloads("masked_input")
        self._seeds, self._mask_keys = self._reconstruct()
        self._secrets = self._agree()

    def _payloads(self, phase: str) -> dict[int, Payload]:
        """Return every device's message of a phase, without its envelope."""
        steps, index = self.protocol.steps, self._transcript.round_index
        sought = (phase, Pattern.GATHER)
        (number,) = (k for k, step in enumerate(steps) if (step.name, step.pattern) == sought)
        return {
            id: envelope.unseal(message, phase, number, index, id, envelope.SERVER)
            for id, message in self._transcript.messages[phase].items()
        }

    def _reconstruct(self) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """Return the survivors' private-mask seeds, and all known mask keys, by device."""
        survived, dropped = self._transcript.survived, self._transcript.dropped
        seed_shares, key_shares = {}, {}
        for id, payload in self._payloads("unmask").items():
            cut = SEED_SHARE * self.seen.links.asked_of(id, survived).size
            limbs = cut + KEY_SHARE * self.seen.links.asked_of(id, dropped).size
            shares = parse_vector(payload, "<u4", limbs, "unmask", f"device {id}")
            seed_shares[id] = shares[:cut].reshape(-1, SEED_SHARE)
            key_shares[id] = shares[cut:].reshape(-1, KEY_SHARE)
        seeds = self._combine(seed_shares, survived, SEED_SHARE, SEED_BYTES)
        mask_keys = self._combine(key_shares, dropped, KEY_SHARE, keys.KEY_BYTES)
        return seeds, mask_keys | dict(self._transcript.mask_keys)

    def _combine(
        self, shares: dict[int, Elements], owners: Flags, width: int, size: int
    ) -> dict[int, bytes]:
        received = self.seen.links.collect(shares, owners, width).without_checks()
        limbs = received.combine(self.seen.links.threshold)
        secrets = [shamir.from_limbs(one, size) for one in limbs]
        return dict(zip(np.flatnonzero(owners).tolist(), secrets, strict=True))

    def _agree(self) -> dict[int, list[tuple[int, bytes]]]:
        """Return each honest survivor's known mask secrets, with the device that shares each."""
        found: dict[int, list[tuple[int, bytes]]] = {id: [] for id in self.seen.ids}
        for id, private in self._mask_keys.items():
            if not self.seen.shared[id]:
                continue  # it vanished before any device masked with it
            victims = self.seen.honest_neighbours(id)
            public = [self._public[victim][keys.KEY_BYTES :] for victim in victims]
            secrets = keys.agree(private, public)
            secrets = self.protocol.mask_secrets(self._transcript.round_index, id, victims, secrets)
            for victim, secret in zip(victims, secrets, strict=True):
                found[victim].append((id, secret))
        return found

    def strip(self, id: int) -> Left:
        """Return an honest survivor's coordinates, and their values without known masks."""
        key = self.protocol.private_mask_key(self.seen.round_index, id, self._seeds[id])
        return strip(self.protocol, self.seen, id, self._uploads[id], key, self._secrets[id])

    def bound(self, id: int) -> int:
        """Return the largest magnitude of a device's values, from public parameters."""
        parameters = self.protocol.parameters
        return math.floor(parameters.levels * parameters.clip * self.protocol.scale(id)) + 1
