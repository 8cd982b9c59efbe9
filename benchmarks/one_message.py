"""Protocols with one message per device and round: costs of their parties at N = 1,000.

All CPU times are those of one process, the least of several interleaved repeats. Takes about five
minutes on one core.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import numpy as np

from harness import cpu_seconds, figure
from hpcfl.algorithms.aggregation import find, sealed
from hpcfl.algorithms.aggregation.base import DIRECTORY
from hpcfl.algorithms.aggregation.messages import bits
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.algorithms.aggregation.ranges import RangeSum
from hpcfl.algorithms.aggregation.sealed import TAG_BYTES
from hpcfl.algorithms.aggregation.sharing import SHARE_BYTES
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.loopback import Loopback
from hpcfl.crypto import edwards
from hpcfl.crypto.keys import KEY_BYTES, KeyPair, cut, system_secrets
from hpcfl.crypto.keystream import KEY_BYTES as SEED_BYTES
from hpcfl.rounds.enrolment import enrol

DEVICES, DIM, DROPOUT = 1_000, 165_000, 0.1
MODEL = np.zeros(DIM, np.float32)
VECTOR = np.random.default_rng(1).uniform(-1, 1, DIM).astype(np.float32)


def plan() -> Parameters:
    """Return the parameters of a round."""
    return Parameters(DEVICES, DIM, dropout=DROPOUT, gamma=0.1)


def secagg_device() -> Callable[[], float]:
    """Return a function that plays a device of `secagg`; it returns its CPU seconds."""
    protocol = find("secagg")(plan())
    server = protocol.server(0, MODEL)
    size = 2 * KEY_BYTES
    # The server's list of keys; the measured device puts its own in the first place.
    for id in range(DEVICES):
        fresh = b"".join(KeyPair.generate(system_secrets).public for _ in range(2))
        server.receive_advertise_keys(id, np.frombuffer(fresh, np.uint8))
    server.finish_advertise_keys()
    listed = server.send_advertise_keys().copy()
    mine = slice(listed.size - DEVICES * size, listed.size - (DEVICES - 1) * size)
    others, there = np.arange(1, DEVICES), range(DEVICES - DEVICES // 10)
    gone = range(DEVICES - DEVICES // 10, DEVICES)
    request = np.concatenate([bits(there, DEVICES), bits(gone, DEVICES)])
    shares = np.zeros((DEVICES - 1, SHARE_BYTES - TAG_BYTES), np.uint8)

    def seconds() -> float:
        device = protocol.device(0, 0, system_secrets)
        listed[mine] = device.send_advertise_keys()
        spent = cpu_seconds(partial(device.receive_advertise_keys, listed))
        derived = cut(device.state.transport_keys, SEED_BYTES)[1:]
        rows = np.empty((DEVICES - 1, SHARE_BYTES), np.uint8)
        seals = sealed.seals(derived, protocol.context(0), ((id, 0) for id in others.tolist()))
        sealed.seal(seals, shares, rows)
        for work in (
            device.send_share_keys,
            partial(device.receive_share_keys, others, rows),
            partial(device.receive_challenge, np.zeros(16, np.uint8)),
            device.send_checks,
            partial(device.send_masked_input, VECTOR),
            partial(device.receive_unmask, request),
            device.send_unmask,
        ):
            spent += cpu_seconds(work)
        assert not device.ignored
        return spent

    return seconds


def flamingo() -> None:
    """Compare a device with one of `secagg`, and the server with its operations on the curve."""
    protocol, transport = find("flamingo")(plan()), Loopback(DEVICES)
    print("enrolling", DEVICES, "devices")
    enrolled = enrol(protocol, transport, first_round=0)
    assert enrolled is not None
    assert isinstance(protocol, QuantisedProtocol)
    protocol.join(enrolled.devices, range(DEVICES), DEVICES)
    secagg = secagg_device()
    found = []
    for index in range(9):
        device = protocol.device(0, index, system_secrets)
        found.append((cpu_seconds(partial(device.send_masked_input, VECTOR)), secagg()))
    own, others = map(min, zip(*found, strict=True))
    figure(f"device ({own * 1e3:.1f} ms) / secagg ({others * 1e3:.0f} ms)", own / others, 0.06)

    known = enrolled.devices[DIRECTORY]
    server = protocol.server(9, MODEL)
    away = [id for id in range(DEVICES) if id not in known.decryptors][::9][:100]
    devices, spent = {}, 0.0
    for id in range(DEVICES):
        if id not in away:
            devices[id] = protocol.device(id, 9, os.urandom)
            sent = devices[id].send_masked_input(VECTOR)
            spent += cpu_seconds(partial(server.receive_masked_input, id, sent))
    spent += cpu_seconds(server.finish_masked_input)
    work = []
    for id in known.decryptors[: known.threshold]:
        asked = server.send_unmask(id)
        work.append(cpu_seconds(partial(devices[id].receive_unmask, asked)))
        server.receive_unmask(id, devices[id].send_unmask())
    pairs = len(server.state.pairs)
    print(f"decryptor: {min(work) * 1e3:.0f} ms, {pairs} pairs")

    scalar, point = int.from_bytes(os.urandom(31)), edwards.base(7)
    repeats = 2_000

    def counted() -> float:
        """Return the seconds of the server's operations at the rate of the moment."""
        bindings, raw = edwards.library(), edwards.packed(scalar)
        add = cpu_seconds(
            lambda: [bindings.crypto_core_ed25519_add(point, point) for _ in range(repeats)]
        )
        base = cpu_seconds(
            lambda: [bindings.crypto_scalarmult_ed25519_base_noclamp(raw) for _ in range(repeats)]
        )
        return pairs * ((known.threshold - 1) * add + base) / repeats

    unmasked, curve = [], []
    for _ in range(5):
        vars(server)["_uploads"] = RangeSum.of(protocol, range(DIM))
        curve.append(counted())
        unmasked.append(cpu_seconds(server.finish_unmask))
    curve.append(counted())
    elements, masks = np.zeros(DIM, protocol.summed_in.dtype), pairs + len(server.survivors)
    seeds = [os.urandom(16) for _ in range(100)]
    adding = min(
        cpu_seconds(lambda: protocol.summed_in.mask(elements, seeds, [1] * 100)) for _ in range(3)
    )
    adding *= masks / 100
    least = min(unmasked)
    print(
        f"server: uploads {spent:.2f} s, unmasking {least:.2f} s, of it masks {adding:.2f} s; "
        f"operations on the curve {min(curve):.2f} s"
    )
    figure("server, its keys / operations on the curve", (least - adding) / min(curve), 1.2)
    figure("server, all / operations on the curve", (spent + least) / min(curve), 2)


if __name__ == "__main__":
    flamingo()
