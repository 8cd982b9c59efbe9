"""Uploads as the server receives them, of devices that all have the same vector."""

import os
from itertools import takewhile

import numpy as np
from player import parties, round_of

from hpcfl.algorithms import locations
from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm import envelope
from hpcfl.comm.loopback import Loopback
from hpcfl.rounds.enrolment import enrol
from hpcfl.rounds.observer import RoundObserver

DEVICES = 8
PROTOCOLS = {
    "secagg": {},
    "secagg-graph": {"degree": 4},
    "cohort": {"alpha": 0.5, "degree": 8},
    "common": {"alpha": 0.6},
    "assisted": {},
    "lightsecagg": {},
    "prf": {"dropout": 0.0},
    "sparse": {"alpha": 0.6},
}
# Its vectors are elements of a field.
IN_NO_RING = ("lightsecagg",)


def system(round_index, device):
    """Return the operating system's generator, as the source of a device's secrets in a round."""
    return os.urandom


def make(name, group, dim, devices=DEVICES, **options):
    """Return a protocol, whose groups have room for vectors up to 1 in magnitude."""
    return find(name)(Parameters(devices, dim, group=group, **PROTOCOLS[name] | options))


def received(protocol, vector, rounds, secrets=system):
    """Return what each device uploads in rounds with fresh keys, by device and round."""
    count = protocol.parameters.devices
    transport = Loopback(count, protocol.helpers)
    enrolled = enrol(type(protocol), transport, first_round=0)
    if enrolled is not None:
        protocol.join(enrolled.devices, range(count), count)
    begin = [*takewhile(lambda step: not step.upload, protocol.steps)]
    steps = protocol.steps[: len(begin) + 1]
    uploads = [[] for _ in range(count)]

    class Keeping(RoundObserver):
        def heard(self, index, step, sender, message):
            if step == protocol.upload_phase():
                uploads[sender].append(message[envelope.BYTES :].copy())

    for index in range(rounds):
        made = parties(protocol, transport, index, secrets)
        options = {"index": index, "steps": steps, "observer": Keeping()}
        round_of(protocol, transport, *made, lambda id: vector, **options).play()
    return uploads


def values(protocol, vector, rounds, length, secrets=system):
    """Return the first `length` words of every upload, those of a device one after the other.

    The last device's are left out: together the uploads of a round of prf are as many equations as
    the sum that they give, and all but one are independent.
    """
    rows = []
    by_device = received(protocol, vector, rounds, secrets)[:-1]
    uploads = [one for device in by_device for one in device]
    for upload in uploads:
        if protocol.name == "sparse":
            upload = upload[locations.decode(upload, protocol.parameters.dim)[1] :]
        rows.append(upload[: 4 * length].view("<u4"))
    return np.array(rows)


def sent_coordinates(protocol, vector, rounds, secrets=system):
    """Return which coordinates the first device sends in each round, shape (rounds, d)."""
    sent = np.zeros((rounds, protocol.parameters.dim), np.bool_)
    for row, upload in zip(sent, received(protocol, vector, rounds, secrets)[0], strict=True):
        row[locations.decode(upload, protocol.parameters.dim)[0]] = True
    return sent
