"""Where secrets come from, what they decide, and that they go nowhere else (rules 3 and 5)."""

from __future__ import annotations

import numpy as np
import pytest
from protocol_rounds import (
    LINKED,
    UPLOADING,
    Source,
    Wire,
    make,
    play,
    spoiling,
)
from slow_reference import SlowRound

from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.phases import Pattern
from hpcfl.crypto import keys
from hpcfl.options.bench import BenchOptions

DEVICES = 5


def run(name, **options):
    """Run an experiment as `hpcfl bench` does; return what moved."""
    wire = Wire(DEVICES)
    prepared = Experiment.prepare(
        BenchOptions(name, **{"dim": 20, "alpha": 0.9, "rounds": 1, "warmup": 0, **options}),
        DEVICES,
    )
    prepared.run(wire)
    return wire, prepared


def payloads(wire, prepared, phase, pattern):
    steps = prepared.protocol.steps
    return [
        message.payload
        for message in wire.messages
        if (steps[message.header.step].phase, message.pattern) == (phase, pattern)
    ]


def public_keys(wire, prepared):
    both = payloads(wire, prepared, "advertise_keys", Pattern.GATHER)
    return [part for pair in both for part in (pair[:32], pair[32:])]


@pytest.fixture
def fixed_system(monkeypatch):
    """Put a source that repeats itself in the place of the operating system's generator."""
    source = Source(keys.insecure_secrets(5, 0, 0))
    monkeypatch.setattr(keys, "system_secrets", source)
    return source


@pytest.mark.parametrize("name", UPLOADING)
def test_every_secret_of_a_run_is_drawn_from_the_systems_source(name, fixed_system):
    wire, prepared = run(name, rounds=2, warmup=1)

    # Two private keys a device, the server's nonce, then a private-mask seed and the key of checks
    # and Shamir's coefficients a device, and the server's challenge.
    one_round = [32] * 2 * DEVICES + [16] + [16] * 2 * DEVICES + [16]
    assert one_round * 3 == [len(secret) for secret in fixed_system.drawn]
    private = [secret for secret in fixed_system.drawn if len(secret) == 32]
    expected = [keys.KeyPair.from_private(secret).public for secret in private]
    assert expected == public_keys(wire, prepared)


@pytest.mark.parametrize("name", LINKED)
def test_the_server_is_never_sent_shares_of_both_secrets_of_a_device(name):
    """Rule 1 over a whole round, read from the replies; of who is expelled, of neither secret."""
    protocol = make(name, 7, 10)
    change = spoiling(protocol, 3, [1, 6])
    played = play(protocol, dropouts={2: "masked_input", 5: "masked_input"}, change=change)
    assert [3] == list(played.kept_out)
    slow = SlowRound(played, (3,))
    assert [0, 1, 4, 6] == sorted(played.sent("unmask"))
    for j, content in played.sent("unmask").items():
        words = {*np.frombuffer(content, "<u4").tolist()}
        for i in slow.dealers:
            shares = slow.shares_of(i)[j]
            key, seed = {*shares[:10]}, {*shares[10:]}
            if i == 3:
                assert not words & (key | seed)
                continue
            told, kept = (key, seed) if i in slow.dropped else (seed, key)
            assert told <= words
            assert not kept & words
    assert {} == played.sent("pairs")
