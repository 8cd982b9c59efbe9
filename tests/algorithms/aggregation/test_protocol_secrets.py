"""Where keys and seeds come from, and that they go nowhere they should not (rules 3 and 5)."""

from __future__ import annotations

import os

import numpy as np
import pytest
from protocol_rounds import (
    LINKED,
    SCATTERING,
    UPLOADING,
    Played,
    Source,
    Wire,
    make,
    play,
    secrets_in,
    seeded_sources,
    spoiling,
)
from slow_reference import SlowRound

from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.phases import Pattern
from hpcfl.crypto import keys
from hpcfl.errors import BelowThresholdError
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


def test_secrets_are_the_operating_systems_random_bytes():
    assert keys.secrets_of(None, 0, 0) is os.urandom


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
def test_nothing_but_the_given_source_decides_what_a_device_sends(name):
    """That what is drawn is used, the slow reference checks: for keys, seed and coefficients."""
    one = play(make(name, DEVICES, 20))
    other = play(make(name, DEVICES, 20))

    assert [m.sealed for m in one.wire.messages] == [m.sealed for m in other.wire.messages]
    for source in one.sources.values():
        assert [32, 32, 16, 16] == [len(secret) for secret in source.drawn]


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("name", UPLOADING)
def test_every_secret_that_a_device_draws_matters(name, place):
    one = play(make(name, DEVICES, 20, alpha=0.9))
    sources = seeded_sources(DEVICES)
    inner = sources[3]
    drawn: list[bytes] = []

    def changed(count):
        drawn.append(inner(count))
        return bytes(255 - byte for byte in drawn[-1]) if len(drawn) == place + 1 else drawn[-1]

    other = play(make(name, DEVICES, 20, alpha=0.9), sources={**sources, 3: Source(changed)})

    differ = {
        phase
        for phase, pattern in [
            ("advertise_keys", Pattern.GATHER),
            ("share_keys", Pattern.ROUTE),
            ("checks", Pattern.GATHER),
            ("masked_input", Pattern.GATHER),
            ("unmask", Pattern.GATHER),
        ]
        if [m.sealed for m in one.messages(phase, pattern)]
        != [m.sealed for m in other.messages(phase, pattern)]
    }
    expected = [
        {"advertise_keys", "share_keys"},
        {"advertise_keys", "share_keys", "checks", "masked_input"},
        {"share_keys", "checks", "masked_input", "unmask"},
        {"share_keys", "checks", "unmask"},
    ][place]
    if name in SCATTERING and place < 2:
        # The keys decide the places on the ring: who holds which share, and sends what.
        expected |= {"checks", "unmask"}
        expected |= set() if name == "secagg-graph" else {"masked_input"}
    assert expected == differ


@pytest.mark.parametrize("name", LINKED)
def test_the_experiments_seed_changes_the_vectors_and_no_key(name, monkeypatch):
    found = []
    for seed in (0, 1):
        source = Source(keys.insecure_secrets(5, 0, 0))
        monkeypatch.setattr(keys, "system_secrets", source)
        wire, prepared = run(name, seed=seed, dropout=0.0)
        sums = payloads(wire, prepared, "masked_input", Pattern.GATHER)
        found.append((source.drawn, public_keys(wire, prepared), sums))

    (drawn, public, sums), (drawn_again, public_again, other_sums) = found
    assert drawn == drawn_again
    assert public == public_again
    assert sums != other_sums


@pytest.mark.parametrize("name", LINKED)
def test_runs_with_the_same_seed_have_no_key_in_common(name):
    public = [key for _ in range(2) for key in public_keys(*run(name, seed=4))]

    assert 2 * 2 * DEVICES == len(set(public))


@pytest.mark.parametrize("options", [{}, {"insecure_seed": 3}], ids=["system", "insecure"])
@pytest.mark.parametrize("name", LINKED)
def test_keys_are_fresh_in_every_round(name, options):
    public = public_keys(*run(name, rounds=3, warmup=1, **options))

    assert 4 * 2 * DEVICES == len(set(public))


def test_an_insecure_seed_fixes_keys_and_another_gives_others():
    public = [public_keys(*run("secagg", insecure_seed=seed)) for seed in (3, 3, 4)]

    assert public[0] == public[1]
    assert set() == set(public[0]) & set(public[2])


@pytest.mark.parametrize("name", LINKED)
def test_no_secret_is_shown_by_the_names_of_the_parties_and_their_keys(name):
    played = play(make(name, DEVICES, 20), dropouts={1: "masked_input"})
    shown = "".join(
        f"{thing!r} {thing!s}"
        for thing in [
            *played.devices.values(),
            played.server,
            played.protocol,
            played.parameters,
            *(keys.KeyPair.from_private(source.drawn[0]) for source in played.sources.values()),
        ]
    )

    assert [] == secrets_in(shown, played.sources.values())


@pytest.mark.parametrize("name", UPLOADING)
def test_no_secret_moves_in_the_clear(name):
    """Of a survivor, at most its seed leaves it, in shares; this looks for whole secrets."""
    played = play(make(name, DEVICES, 20), dropouts={1: "masked_input"})
    moved = b"".join(message.sealed for message in played.wire.messages)

    for source in played.sources.values():
        for secret in source.drawn:
            assert secret not in moved


@pytest.mark.parametrize("name", LINKED)
def test_the_server_is_never_sent_t_shares_of_a_survivors_mask_key(name):
    """Rule 1 over a whole round, read from the replies: one secret a device, never both."""
    played = play(make(name, 7, 10), dropouts={2: "masked_input", 5: "masked_input"})
    slow = SlowRound(played)
    for j, content in played.sent("unmask").items():
        words = set(np.frombuffer(content, "<u4").tolist())
        for i in slow.sharers:
            shares = slow.shares_of(i)[j]
            key, seed = set(shares[:10]), set(shares[10:])
            revealed = (key, seed) if i in slow.dropped else (seed, key)
            assert revealed[0] <= words
            assert set() == revealed[1] & words


@pytest.mark.parametrize("name", LINKED)
def test_no_share_of_an_expelled_device_is_ever_sent_to_the_server(name):
    """Of neither secret: those of its holders that have one keep it, and so do its peers theirs."""
    change = spoiling(3, [1, 5])
    played = play(make(name, 7, 10), dropouts={2: "masked_input"}, change=change)
    assert [3] == list(played.kept_out)
    shares = SlowRound(played).shares_of(3)
    assert 7 == len(shares)
    assert [0, 1, 4, 5, 6] == sorted(played.sent("unmask"))
    for content in played.sent("unmask").values():
        told = set(np.frombuffer(content, "<u4").tolist())
        assert not told & {value for share in shares.values() for value in share}
    assert {} == played.sent("pairs")


def test_the_sentence_of_a_failed_round_holds_no_secret():
    played: Played = play(make("sparse", DEVICES, 10), before="unmask")

    error = played.refused(BelowThresholdError, played.server.finish_unmask)
    assert "0 of 5 devices answered" in str(error)
