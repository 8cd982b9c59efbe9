"""Helpers, coded masks, committees, ciphertexts: exact sums, whoever is gone.

Sums are compared with those of plain integers, modulo the group: vectors are multiples of what
values are rounded to, so that nothing is, and no code of a protocol says what is expected.
"""

from functools import cache
from itertools import product

import numpy as np
import pytest
from protocol_rounds import enrolled, make, play

from hpcfl.algorithms.aggregation import find
from hpcfl.comm.phases import phase_names
from hpcfl.crypto import ckks

DIM = 37
# The modulus of groups, and of what magnitude the values are that all devices' sums have room for.
GROUPS = {"fq": (2**32 - 5, 2**25), "ring32": (2**32, 2**25), "field16": (65521, 2**9)}
# Who vanishes: any devices, or those alone that do more than the others.
ROLES = {
    "assisted": ("device", "helper"),
    "lightsecagg": ("device",),
    "committee": ("device", "member"),
    "ckks": ("device", "member"),
}
NUMBERS = (3, 4, 5, 7, 10, 16, 25, 40)


def phases_of(name):
    """Return the phases of a round before which devices can vanish: they enrolled earlier."""
    return [phase for phase in phase_names(find(name).steps) if phase != "result"]


def cases():
    """Return everything to be played; the quick tier has every phase and role, and every number."""
    found = []
    for (name, roles), (turn, devices) in product(ROLES.items(), enumerate(NUMBERS)):
        # A helper whose masks are in the sum costs the round: test_assisted.py.
        ways = [way for way in product(phases_of(name), roles) if way != ("unmask", "helper")]
        for number, way in enumerate(ways):
            quick = number == turn % len(ways) or number % len(NUMBERS) == turn
            marks = () if quick else pytest.mark.full
            found.append(pytest.param(name, devices, *way, marks=marks))
    return found


def group_of(name, devices):
    """Return the group of a number of devices: every other time another one, if there is one."""
    others = {"assisted": "ring32", "lightsecagg": "field16", "committee": "field16"}
    return others.get(name, "fq") if devices % 2 else "fq"


def protocol_of(name, devices):
    """Return a protocol in which a tenth of the devices may drop out; they enrol if they must."""
    group = group_of(name, devices)
    # A vector's weight is 1 / N.
    options = {"dropout": 0.1, "levels": GROUPS[group][1] * devices, "group": group}
    if find(name).enrolment(devices, find(name).default_helpers) is None:
        return make(name, devices, DIM, **options)
    if find(name).default_helpers:
        options |= {"helpers": 4, "helper_dropout": 2}
    protocol = make(name, devices, DIM, **options)
    there = enrolled(name, devices, security="passive", helpers=options.get("helpers"))
    protocol.join(there, range(devices), devices)
    return protocol


def members_of(protocol, index):
    """Return the devices that do more than the others in a round that all are there for."""
    if protocol.name == "committee":
        return play(protocol, index=index, before="share_input").server.committee
    return [0, 1] if protocol.name == "ckks" else []  # who tells the sum


def uploaded_before(protocol, phase):
    phases = protocol.phases()
    return phases.index(phase) > phases.index(protocol.upload_phase())


def most_gone(protocol, phase):
    """Return how many devices may vanish before a phase, and how many members among them."""
    devices, uploaded = protocol.parameters.devices, uploaded_before(protocol, phase)
    if protocol.name == "lightsecagg":
        return devices - protocol.code.needed, devices
    most = devices if uploaded else devices - protocol.parameters.threshold
    if protocol.name == "committee":
        return most, protocol.code.devices - protocol.code.needed
    # One that tells the sum is enough.
    return most, 1 if protocol.name == "ckks" and uploaded else devices


def vanishing(protocol, phase, role, members, generator):
    """Return as many parties of a role as may vanish before a phase, chosen at random."""
    if role == "helper":
        numbers = generator.permutation(protocol.helpers)[: protocol.parameters.helper_dropout]
        return (protocol.parameters.devices + numbers).tolist()
    ids = generator.permutation(protocol.parameters.devices).tolist()
    of_members = [id for id in ids if id in members]
    others = [id for id in ids if id not in members]
    most, most_members = most_gone(protocol, phase)
    candidates = of_members[:most_members]
    if role == "device":
        candidates = others + candidates
    return candidates[:most]


@pytest.fixture
def keys_read_once(monkeypatch):
    """Read the key that devices share once: to do so for each is most of such a round's time."""
    tenseal = pytest.importorskip("tenseal")
    monkeypatch.setattr(tenseal, "context_from", cache(tenseal.context_from))


@pytest.mark.parametrize(("name", "devices", "phase", "role"), cases())
def test_a_sum_is_that_of_plain_integers_with_as_many_gone_as_may_be(
    name, devices, phase, role, request
):
    if name == "ckks":
        request.getfixturevalue("keys_read_once")
    generator = np.random.default_rng((devices, len(phase)))
    modulus, largest = GROUPS[group_of(name, devices)]
    integers = generator.integers(-largest, largest + 1, (devices, DIM))
    protocol = protocol_of(name, devices)
    index = int(generator.integers(2**31))
    gone = vanishing(protocol, phase, role, members_of(protocol, index), generator)
    assert gone
    step = devices / 2**ckks.STEP_BITS if name == "ckks" else 1 / largest

    played = play(protocol, integers * step, dict.fromkeys(gone, phase), index=index)

    stay = range(devices) if uploaded_before(protocol, phase) else {*range(devices)} - {*gone}
    assert sorted(stay) == played.server.survivors
    played.nobody_left()
    total = [sum(int(integers[id, k]) for id in stay) for k in range(DIM)]
    if name == "ckks":
        assert total == np.ldexp(played.server.total, ckks.STEP_BITS).tolist()
    else:
        told = played.server.total.tolist()
        assert [value % modulus for value in total] == [value % modulus for value in told]
        assert max(map(abs, told)) <= modulus // 2
