"""Whole rounds on rings and in cohorts against slow ones, from the secrets that devices drew."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
import slow_ring
from protocol_rounds import bits, integers_of, on_ring, places, play
from slow_reference import SlowRound

from hpcfl.algorithms.aggregation.topology import Ring
from hpcfl.comm.phases import Pattern
from hpcfl.crypto.keys import insecure_secrets

DEVICES, DIM = 11, 47
DROPOUTS = {
    "nobody": {},
    "before masked_input": {1: "masked_input", 4: "masked_input", 6: "masked_input"},
    "in every phase": {0: "advertise_keys", 2: "share_keys", 5: "masked_input", 7: "unmask"},
}
# Cohorts of 2 and of 4 devices, of more than half and of all: two runs of a pair may meet at both
# ends. Neighbours are few, or everybody, or fewer than a cohort has.
KINDS = [
    ("cohort", 4, {"alpha": 0.2}),
    ("cohort", 10, {"alpha": 0.4}),
    ("cohort", 4, {"alpha": 0.7}),
    ("cohort", 10, {"alpha": 0.7, "group": "ring32"}),
    ("cohort", 10, {"alpha": 1.0}),
    ("secagg-graph", 4, {}),
    ("secagg-graph", 6, {"group": "ring32"}),
    ("secagg", 4, {"group": "ring32"}),
    ("sparse", 4, {"alpha": 0.6, "sampler": "dense"}),
    ("sparse", 10, {"alpha": 0.6, "group": "ring32"}),
]
CASES = [
    pytest.param(number, dropouts, id=f"{name} {number} {dropouts}")
    for number, (name, *_) in enumerate(KINDS)
    for dropouts in DROPOUTS
]


@cache
def played_on_ring(number, dropouts):
    name, degree, options = KINDS[number]
    weights = np.arange(1.0, DEVICES + 1)
    protocol = on_ring(
        name,
        DEVICES,
        DIM,
        degree,
        2,
        locations="bitmap",
        weights=weights / weights.sum(),
        **options,
    )
    played = play(protocol, dropouts=DROPOUTS[dropouts], index=3)
    return played, SlowRound(played)


def quantised(played, slow, id):
    """Return what a device quantised; the coordinates that it sent, in their order."""
    where = slow.u(id)
    integers = integers_of(played, id, where)
    return dict(zip(where, integers.tolist(), strict=True))


@pytest.mark.parametrize(("number", "dropouts"), CASES)
def test_an_upload_is_the_vector_plus_its_private_mask_plus_the_neighbours_masks(number, dropouts):
    played, slow = played_on_ring(number, dropouts)

    assert slow.survivors == list(played.sent("masked_input"))
    for i in slow.survivors:
        masked = slow.upload(i, quantised(played, slow, i))
        content = b"".join(value.to_bytes(4, "little") for value in masked.values())
        if played.protocol.name == "sparse":
            where = list(masked)
            content = bytes(4) + len(where).to_bytes(4, "little") + bits(where, DIM) + content
        assert content == played.sent("masked_input")[i]


@pytest.mark.parametrize(("number", "dropouts"), CASES)
def test_the_server_takes_off_private_masks_and_those_of_neighbours_that_vanished(number, dropouts):
    played, slow = played_on_ring(number, dropouts)
    received, plain = [0] * DIM, [0] * DIM
    for i in slow.survivors:
        mine = quantised(played, slow, i)
        for k, value in slow.upload(i, mine).items():
            received[k] += value
            plain[k] += mine[k]

    total = [slow.signed(element) for element in slow.unmask(received)]
    assert plain == total
    assert total == played.server.total.tolist()
    if slow.dropped:
        wrong = slow.unmask(received, right_signs=False)
        assert total != [slow.signed(element) for element in wrong]


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_pairs_have_one_mask_between_them_and_it_cancels(number):
    """Without dropouts the pairwise masks add up to nothing, but each device's hide its vector."""
    _, slow = played_on_ring(number, "nobody")
    for k in range(DIM):
        sending = [i for i in slow.survivors if k in slow.u(i)]
        masks = [slow.pairwise(i, k) for i in sending]
        assert 0 == sum(masks) % slow.modulus
        assert all(mask % slow.modulus for mask in masks)


@pytest.mark.parametrize("number", [0, 1, 3, 4])
def test_no_two_streams_of_a_cohort_and_no_two_uses_of_one_are_the_same(number):
    """Every pair, every run and every coordinate has an element of its own."""
    _, slow = played_on_ring(number, "nobody")
    seen: list[int] = []
    for i, j in itertools.combinations(slow.sharers, 2):
        if j in slow.peers(i):
            seen += [slow.r(i, j, k) for k in slow.b(i, j)]
    seen += [mask for i in slow.sharers for mask in slow.private_mask(i)[: len(slow.u(i))]]
    # By chance, two of 3,000 elements are the same once in 900 rounds; these keys are fixed.
    assert len(seen) == len({*seen})


NONCE = bytes(range(100, 116))


@pytest.mark.parametrize("devices", [3, 4, 5, 6, 7, 8, 13])
@pytest.mark.parametrize("degree", [2, 4, 6, 12])
@pytest.mark.parametrize("absent", [(), (1,), (0, 2)])
def test_the_server_links_a_ring_as_the_slow_one_does(devices, degree, absent):
    """Absentees have a place, and nothing to do."""
    degree = min(degree, devices - 1)
    there = [id for id in range(devices) if id not in absent]
    public = {id: bytes([id]) * 64 for id in there}
    links = Ring(devices, degree, 1).link(public, NONCE, b"hpcfl/1 some round 7 links")
    order = slow_ring.ring_order(devices, public, NONCE, "some round 7")

    assert order == links.order.tolist()
    assert list(range(devices)) == sorted(order)
    survived = np.zeros(devices, np.bool_)
    survived[there[::2]] = True
    for id in there:
        slots = slow_ring.slots(order, id, degree)
        assert len({*slots}) == len(slots) == degree + 1
        held = slow_ring.holders(order, id, degree, there)
        assert held == links.holders(id).tolist() == [one for one in slots if one in there]
        assert sorted({*held} & {*there[::2]} - {id}) == links.neighbours(id, survived)
        assert [one for one in held if one in there[::2]] == links.asked_of(id, survived).tolist()
        # Whoever holds a device's shares is given those of its own to hold.
        assert all(id in links.holders(one) for one in held)


def test_the_order_on_the_ring_follows_from_the_nonce_every_key_the_round_and_the_protocol():
    public = {id: bytes([id]) * 64 for id in range(30)}
    orders = [slow_ring.ring_order(30, public, NONCE, "some round 7")]
    ring, context = Ring(30, 4, 1), b"hpcfl/1 some round 7 links"
    without = {id: keys for id, keys in public.items() if id != 29}
    changed = [
        (public, NONCE, context),
        (public, NONCE, b"hpcfl/1 some round 8 links"),
        (public, NONCE[:-1] + b"\0", context),
        (public, b"\0" + NONCE[1:], context),
        ({**public, 29: bytes(63) + b"\1"}, NONCE, context),
        ({**public, 0: b"\1" + bytes(63)}, NONCE, context),
        (without, NONCE, context),
    ]
    orders += [ring.link(*arguments).order.tolist() for arguments in changed]
    assert orders[0] == orders[1]
    assert 7 == len({tuple(order) for order in orders})
    assert all(list(range(30)) == sorted(order) for order in orders)


def test_the_nonce_is_drawn_once_all_keys_have_come():
    """So that no device can choose its keys to the order that they give."""
    protocol = on_ring("cohort", DEVICES, DIM, 4, 2, alpha=0.4)
    begun = play(protocol, before=("advertise_keys", Pattern.GATHER))
    assert [] == begun.servers.drawn
    played = play(protocol, before=("advertise_keys", Pattern.SCATTER))
    assert [16] == [len(drawn) for drawn in played.servers.drawn]

    # The same keys and another nonce give every device another neighbourhood.
    orders = []
    for seed in range(2):
        server = protocol.server(0, np.zeros(DIM, np.float32), insecure_secrets(seed, 0, 0))
        for id, keys in played.sent("advertise_keys").items():
            server.receive_advertise_keys(id, np.frombuffer(keys, np.uint8))
        server.finish_advertise_keys()
        orders.append(server._links.order.tolist())
        told = server.send_advertise_keys(3).tobytes()
        assert told[:16] == insecure_secrets(seed, 0, 0)(16) == server.nonce
        assert orders[-1][int.from_bytes(told[16:20], "little")] == 3
    assert orders[0] != orders[1]


def test_every_device_is_equally_often_at_every_place():
    """Over 400 rounds of 7 devices, in each of which only the nonce is another one."""
    counts = np.zeros((7, 7), np.int64)
    public = {id: bytes([id]) * 64 for id in range(6)}
    for number in range(400):
        order = Ring(7, 2, 1).link(public, number.to_bytes(16, "little"), b"links").order
        counts[order, np.arange(7)] += 1
    # Chi-square with 36 degrees of freedom: above 110 once in 5e8 sets of nonces.
    assert 7 * ((counts - 400 / 7) ** 2 / 400).sum() < 110


def test_the_places_that_devices_are_told_are_those_of_the_order():
    """Device 0, which advertised nothing, has one too."""
    played, slow = played_on_ring(0, "in every phase")

    assert {id: slow.order.index(id) for id in range(1, DEVICES)} == places(played)
    assert list(range(DEVICES)) == sorted(slow.order)
