"""A server that takes long uploads part by part has the sum that it has of whole ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from player import parties, round_of

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.ranges import RangeSum
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm import envelope
from hpcfl.comm.loopback import Loopback
from hpcfl.comm.transport import Part
from hpcfl.crypto.groups import FQ, GROUPS, Field
from hpcfl.errors import MessageError
from hpcfl.rounds.enrolment import enrol

DEVICES, DIM = 5, 3001
# A whole number of pairs of values, whatever their bits.
PART_BYTES = 840


class InParts(Loopback):
    """A loopback that delivers uploads in parts, those of two devices in turns."""

    def __init__(self, devices, change=lambda sender, message: message, helpers=0):
        super().__init__(devices, helpers)
        self._change = change
        self.delivered = 0

    def gather_parts(self, senders, produce, largest):
        for some in pairs(senders):
            cut = [self._cut(id, self._change(id, produce(id))) for id in some]
            for parts in itertools.zip_longest(*cut):
                for part in filter(None, parts):
                    self.delivered += 1
                    yield part

    def _cut(self, id, message):
        stops = range(envelope.BYTES + PART_BYTES, message.size + PART_BYTES, PART_BYTES)
        start = 0
        for stop in stops or [message.size]:
            yield id, Part(message.size, start, message[start:stop].copy())
            start = stop


def pairs(ids):
    ids = list(ids)
    return [ids[k : k + 2] for k in range(0, len(ids), 2)]


def sum_of(transport, name="secagg", group="fq", dim=DIM, dropouts=None):
    """Play a round; return the server and the round."""
    levels = GROUPS[group].half_range // (DEVICES + 1)
    kind = find(name)
    more = {} if kind.tolerates_dropouts else {"dropout": 0.0}
    protocol = kind(Parameters(DEVICES, dim, group=group, alpha=0.5, levels=levels, **more))
    enrolled = enrol(type(protocol), transport, insecure_seed=1)
    if enrolled is not None:
        protocol.join(enrolled.devices, range(DEVICES), DEVICES)
    devices, server = parties(protocol, transport)
    vectors = [np.random.default_rng(id).uniform(-1, 1, dim) for id in range(DEVICES)]
    played = round_of(protocol, transport, devices, server, vectors, dropouts=dropouts)
    played.play()
    return server, played


@pytest.mark.parametrize("group", [name for name in GROUPS if not name.startswith("field")])
@pytest.mark.parametrize("dim", [DIM, DIM + 1])
def test_the_sum_is_that_of_whole_uploads(group, dim):
    gone = {1: "masked_input"}
    in_parts = InParts(DEVICES)
    server, _ = sum_of(in_parts, group=group, dim=dim, dropouts=gone)
    whole, _ = sum_of(Loopback(DEVICES), group=group, dim=dim, dropouts=gone)

    size = GROUPS[group].wire_bytes(dim)
    assert in_parts.delivered == (DEVICES - 1) * -(-size // PART_BYTES)
    assert server.survivors == whole.survivors == [0, 2, 3, 4]
    np.testing.assert_array_equal(server.total, whole.total)
    assert np.abs(server.total).max() > 0


def of_another_round(message):
    message = message.copy()
    message[4] ^= 1
    return message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda message: message[:-1], f"received {4 * DIM - 1} bytes, expected {4 * DIM}"),
        (lambda message: message[:-5000], f"received {4 * DIM - 5000} bytes, expected {4 * DIM}"),
        (of_another_round, "its round is 1, expected 0"),
    ],
)
def test_a_wrong_size_or_envelope_is_refused_before_anything_counts(change, words):
    transport = InParts(DEVICES, lambda sender, sent: change(sent) if sender == 2 else sent)
    server, played = sum_of(transport)
    whole, _ = sum_of(Loopback(DEVICES), dropouts={2: "masked_input"})

    with pytest.raises(MessageError, match=words):
        raise played.refused[2]
    np.testing.assert_array_equal(server.total, whole.total)


@pytest.mark.parametrize("bits", [12, 20, 28])
def test_bits_behind_the_last_value_of_an_upload_in_parts_do_not_count(bits):
    """They are found too late for the upload to be refused."""

    def change(sender, message):
        if sender == 2:
            message = message.copy()
            message[-1] |= 0xF0
        return message

    server, played = sum_of(InParts(DEVICES, change), group=f"ring{bits}")
    whole, _ = sum_of(Loopback(DEVICES), group=f"ring{bits}")

    assert not played.refused
    np.testing.assert_array_equal(server.total, whole.total)


@given(
    st.sampled_from([FQ, Field(251 * 2**24 + 1), *(GROUPS[f"ring{b}"] for b in (8, 12, 16, 32))]),
    st.integers(1, 600),
    st.integers(0, 2**32 - 1),
)
def test_any_words_add_up_any_number_of_times(group, times, seed):
    """Words that are no elements count as what they stand for."""
    generator = np.random.default_rng(seed)
    count = 8
    most = 2 ** (8 * group.dtype.itemsize) if group.bits == 32 else group.modulus
    uploads, expected = RangeSum(group, range(count), count), np.zeros(count, np.int64)
    for _ in range(times):
        words = generator.integers(most - 5, most, count, np.int64).astype(group.dtype)
        uploads.add(words)
        expected += words.astype(np.int64)

    found = uploads.take()
    np.testing.assert_array_equal(found, expected % group.modulus)
    signed = group.signed(found.copy())
    assert signed.itemsize == group.dtype.itemsize
    np.testing.assert_array_equal(signed, group.decode(found))
    np.testing.assert_array_equal(signed.astype(np.int64) % group.modulus, found)
    assert np.abs(signed.astype(np.int64)).max() <= group.half_range + (group.modulus % 2 == 0)
