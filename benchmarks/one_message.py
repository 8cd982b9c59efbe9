"""Protocols with one message per device and round: costs of their parties at N = 1,000.

    python benchmarks/one_message.py [opa] [flamingo]

All CPU times are those of one process, the least of several interleaved repeats. Takes about five
minutes on one core.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial

import numpy as np

from harness import cpu_seconds, figure
from hpcfl.algorithms.aggregation import find, sealed
from hpcfl.algorithms.aggregation.base import DIRECTORY
from hpcfl.algorithms.aggregation.messages import bits
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
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


def plan(group: str = "fq") -> Parameters:
    """Return the parameters of a round."""
    return Parameters(DEVICES, DIM, dropout=DROPOUT, gamma=0.1, group=group, levels=2**18)


def secagg_device(group: str = "fq") -> Callable[[], float]:
    """Return a function that plays a device of `secagg`; it returns its CPU seconds."""
    protocol = find("secagg")(plan(group))
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
    assert isinstance(protocol, QuantisedProtocol)
    print("enrolling", DEVICES, "devices")
    enrolled = enrol(protocol, transport)
    assert enrolled is not None
    protocol.join(enrolled.devices, range(DEVICES), DEVICES)
    secagg = secagg_device()
    own, others = [], []
    for index in range(20):
        device = protocol.device(0, index, system_secrets)
        own.append(cpu_seconds(partial(device.send_masked_input, VECTOR)))
        if not index % 3:
            others.append(secagg())
    least = min(own), min(others)
    name = "flamingo, device ({:.1f} ms) / secagg ({:.0f} ms)"
    figure(name.format(*(1e3 * one for one in least)), least[0] / least[1], 0.06)

    known, server = enrolled.devices[DIRECTORY], protocol.server(20, MODEL)
    away = [id for id in range(DEVICES) if id not in known.decryptors][: DEVICES // 10]
    devices, adding = {}, 0.0
    for id in {*range(DEVICES)} - {*away}:
        devices[id] = protocol.device(id, 20, system_secrets)
        sent = devices[id].send_masked_input(VECTOR)
        adding += cpu_seconds(partial(server.receive_masked_input, id, sent))
    server.finish_masked_input()
    decrypting = []
    for id in known.decryptors:
        asked = server.send_unmask(id)
        decrypting.append(cpu_seconds(partial(devices[id].receive_unmask, asked)))
        server.receive_unmask(id, devices[id].send_unmask())
    pairs, answers = server.state.pairs, server.state.answers
    # Short pieces in turn: other load on the machine affects both alike.
    seeds = curve = 0.0
    gc.freeze()  # a server's process holds no devices
    for start in range(0, len(pairs), 20):
        part = slice(start, start + 20)
        server.state.pairs = some = pairs[part]
        server.state.answers = {place: told[part] for place, told in answers.items()}
        tried = [
            (cpu_seconds(server._seeds_of_pairs), counted(len(some), known.threshold))
            for _ in range(7)
        ]
        fastest = [min(one) for one in zip(*tried, strict=True)]
        seeds, curve = seeds + fastest[0], curve + fastest[1]
    figure("flamingo, server, seeds of pairs / operations on the curve", seeds / curve, 1.2)
    server.state.pairs, server.state.answers = pairs, answers
    whole = cpu_seconds(server.finish_unmask)
    print(
        f"{len(pairs)} pairs; a decryptor {min(decrypting) * 1e3:.0f} ms; server: adding uploads "
        f"{adding:.2f} s, seeds of pairs {seeds:.2f} s, all of unmasking {whole:.2f} s"
    )


def opa() -> None:
    """Compare what any device of `opa` does with a device of `secagg`, with values of 20 bits."""
    protocol, transport = find("opa")(plan("ring20")), Loopback(DEVICES)
    enrolled = enrol(protocol, transport)
    assert enrolled is not None
    protocol.join(enrolled.devices, range(DEVICES), DEVICES)
    secagg = secagg_device("ring20")
    others: list[float] = []
    first: list[float] = []
    later: list[float] = []
    for index in range(30):
        server = protocol.server(index, MODEL)
        model = server.send_model()
        # Device 0 has agreed with most members before, the other one with none.
        for id, spent in ((0, later), (index + 1, first)):
            device = protocol.device(id, index, system_secrets)
            works = (
                partial(device.receive_model, model),
                device.send_share_key,
                partial(device.send_masked_input, VECTOR),
            )
            spent.append(sum(map(cpu_seconds, works)))
        others.append(secagg())
    for name, spent in (("the first", first), ("a later", later)):
        told = f"opa, {name} round of a device ({1e3 * min(spent):.1f} ms)"
        told += f" / secagg ({1e3 * min(others):.0f} ms)"
        figure(told, min(spent) / min(others), 0.06)


def counted(pairs: int, threshold: int) -> float:
    """Return the seconds of as many operations on the curve, by PyNaCl's own calls."""
    bindings, point = edwards.library(), edwards.base(7)
    scalar = edwards.packed(int.from_bytes(system_secrets(31), "little"))

    def work() -> None:
        for _ in range(pairs):
            bindings.crypto_scalarmult_ed25519_base_noclamp(scalar)
            for _ in range(threshold - 1):
                bindings.crypto_core_ed25519_add(point, point)

    return cpu_seconds(work)


if __name__ == "__main__":
    for name in sys.argv[1:] or ("opa", "flamingo"):
        {"opa": opa, "flamingo": flamingo}[name]()
