"""Shares that are wrong although they look like shares: found, and left out where that can be."""

import fuzzed_wire as wire
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import seeded

from hpcfl.crypto import shamir
from hpcfl.crypto.groups import FQ


class Lying(wire.Wire):
    """A wire behind which some devices change what they answer with, in each of some steps."""

    def __init__(self, devices, lies):
        super().__init__(devices)
        self._lies = lies  # by step and device: change an answer in place

    def passed(self, sealed):
        message = super().passed(sealed).copy()
        sent = self.messages[-1]
        lie = self._lies.get(sent.step.name, {}).get(sent.sender)
        if lie is not None:
            lie(message[wire.ENVELOPE :].view("<u4"))
        return message


def exactly(outcome):
    """Return ``exact``, or how else a round ended."""
    if outcome.error is not None:
        return str(outcome.error)
    return "wrong" if outcome.differing().size else "exact"


def uniform(answers):
    answers[:] = np.random.default_rng(2).integers(0, wire.Q, answers.size)


def all_ones(answers):
    answers[:] = 2**32 - 1


def test_a_round_that_ends_as_too_many_are_expelled_says_so_and_why():
    """Seven devices, t = 4, of which four share keys; two of them have no share of one."""

    def silent(answers):
        answers[4:6] = 2**32 - 1

    gone = {4: "share_keys", 5: "share_keys", 6: "share_keys"}
    liars = Lying(7, {"checks": {0: silent, 1: silent}})
    outcome = wire.play("secagg", 7, gone, wire=liars)
    assert (
        "3 of 7 devices shared keys rightly by what the holders of their shares answered, at least "
        "4 are needed; refused: malformed share_keys message from device 2: too many holders have "
        "no right share of its secrets: it is expelled"
    ) in str(outcome.error)


# one hostile device, and others that vanish as planned

# Devices, and how many of them may vanish so that t + 2 are left, one that is hostile among them.
SPARE = dict.fromkeys(wire.SHARING, (9, 2))
SPARE |= {case: (10, 1) for case in wire.SHARING if "active" in case}
SPARE |= {
    case: (9, 0) for case in wire.SHARING if case.endswith("degree") or case == "secagg-graph"
}


@st.composite
def lies(draw):
    """Draw a lie about shares, or about answers; None for the truth."""
    seed = draw(st.integers(0, 10**6))

    def some(values):
        random = np.random.default_rng(seed)
        chosen = random.random(values.size) < random.choice([0.05, 0.3, 0.8])
        values[chosen] = random.integers(0, wire.Q, int(chosen.sum()))

    return draw(st.sampled_from([None, uniform, all_ones, some]))


@pytest.mark.parametrize("case", wire.each(wire.SHARING))
def test_whatever_one_device_deals_and_answers_costs_itself_alone(case, monkeypatch):
    """Wrong shares to any, none to some, false answers, others' shares later; it may vanish too."""
    devices, spare = SPARE[case]
    phases = [phase for phase in wire.protocol(case, devices).phases()[1:] if phase != "result"]
    ended = set()

    @seeded(25)
    @given(st.data())
    def rounds(data):
        hostile = data.draw(st.integers(0, devices - 1))
        honest = st.sampled_from([id for id in range(devices) if id != hostile])
        gone = data.draw(st.dictionaries(honest, st.sampled_from(phases), max_size=spare))
        vanishes = data.draw(st.sampled_from([None, None, *phases[phases.index("masked_input") :]]))
        dropouts = gone if vanishes is None else {**gone, hostile: vanishes}
        wronged = data.draw(st.sampled_from([0, 0, 1, 1, 2, 3, devices]))
        value = data.draw(st.sampled_from([wire.Q, None]))
        seed = data.draw(st.integers(0, 10**6))

        def change(*arguments):
            shares, random = split(*arguments), np.random.default_rng(seed)
            for holder in random.permutation(len(shares))[:wronged].tolist():
                limb = int(random.integers(shares.shape[1]))
                other = int(random.integers(1, wire.Q))
                shares[holder, limb] = value or (int(shares[holder, limb]) + other) % wire.Q
            return shares

        told = {step: {hostile: data.draw(lies())} for step in ("checks", "unmask")}
        before = ("advertise_keys", "share_keys")
        sharing = [id for id in range(devices) if gone.get(id) not in before]
        split, calls = shamir.split, iter(sharing)

        def deal(*arguments):
            return (change if next(calls) == hostile else split)(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(shamir, "split", deal)
            outcome = wire.play(case, devices, dropouts, wire=Lying(devices, told))
        assert "exact" == exactly(outcome)
        assert {*outcome.refused} <= {hostile}
        early = (*before, "masked_input")
        stays = [id for id in range(devices) if dropouts.get(id) not in early]
        survivors = {*outcome.server.survivors}
        assert {*stays} - {hostile} <= survivors <= {*stays}
        # Who has shared nothing holds nothing.
        if wronged - (devices - len(sharing)) > 1:
            assert hostile not in survivors
        ended.add(hostile in survivors)

    rounds()
    assert {True, False} == ended


# the check by itself


@seeded(150)
@given(st.data())
def test_shares_are_consistent_if_none_is_wrong(data):
    threshold = data.draw(st.integers(1, 5))
    count = data.draw(st.integers(threshold, 10))
    secrets, limbs = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    random = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    holders = np.sort(random.choice(40, count, replace=False))
    numbers = tuple(holders.tolist())
    shares = np.stack(
        [
            shamir.split(
                random.integers(0, 2**31, limbs).astype(np.uint32),
                random.integers(0, wire.Q, (threshold - 1, limbs)).astype(np.uint32),
                numbers,
            )
            for _ in range(secrets)
        ]
    )
    came = random.random((secrets, count)) < 0.8
    if data.draw(st.booleans()):
        came[:] = True
    # What did not come does not count, whatever is in its place.
    shares[~came] = random.integers(0, wire.Q, (int((~came).sum()), limbs))
    assert shamir.consistent(shares, holders, came, threshold).all()
    wrong = int(random.integers(secrets))
    there = np.flatnonzero(came[wrong])
    if there.size == 0:
        return
    victim, limb = int(random.choice(there)), int(random.integers(limbs))
    shares[wrong, victim, limb] = (int(shares[wrong, victim, limb]) + 1) % FQ.modulus
    found = shamir.consistent(shares, holders, came, threshold)
    assert (there.size <= threshold) == found[wrong]
    assert np.delete(found, wrong).all()


def test_the_check_is_not_the_same_twice(monkeypatch):
    """Whoever knew it could choose shares that pass."""
    holders, came = np.arange(6), np.ones((1, 6), np.bool_)
    one, other = (shamir._parity_weights(holders, came, 3, FQ) for _ in range(2))
    assert (one != other).any()
    monkeypatch.setattr(shamir.os, "urandom", bytes)
    one, other = (shamir._parity_weights(holders, came, 3, FQ) for _ in range(2))
    assert (one == other).all()
