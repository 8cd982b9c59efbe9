"""Sums of vectors that were proven short: exactness, bytes, hostile devices, helper and server."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol_rounds import bits, enrolled, play, raw, sent_by_device
from tiers import examples

from hpcfl.algorithms.aggregation.pine import RELAYED, SEALED, Pine, PineServer
from hpcfl.algorithms.aggregation.promises import Outcome, objection
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import Role
from hpcfl.crypto import pine
from hpcfl.crypto.proofs import F40
from hpcfl.errors import BelowThresholdError, MessageError, RefusedError, UsageError

DIM, BOUND = 30, 7532
V = 7884  # bytes of a verifier at d = 165,000


def made(devices=5, dim=DIM, members=None, **options):
    """Return a protocol whose devices and helper have enrolled."""
    options = {"dropout": 0.0, "clip_norm": 1.0} | options
    protocol = Pine(Parameters(len(members or range(devices)), dim, **options))
    joined = enrolled("pine", devices, security="passive")
    protocol.join(joined, members or range(devices), devices)
    return protocol


def vectors_of(protocol, norms, seed=0):
    """Return random vectors with these norms."""
    found = np.random.default_rng(seed).normal(size=(protocol.parameters.devices, DIM))
    return found / np.linalg.norm(found, axis=1)[:, None] * np.asarray(norms)[..., None]


def refusals(played):
    reasons = {id: getattr(error, "reason", str(error)) for id, error in played.kept_out.items()}
    return {
        id: why.partition(" left out, ")[2].partition(", for")[0] or why
        for id, why in reasons.items()
    }


def long(norm):
    return f"not short: its vector was not proven to have at most the norm of {norm} quanta"


# Sums


@settings(max_examples=examples(12))
@given(data=st.data())
def test_sums_are_those_of_the_rounded_vectors_whoever_drops_out_when(data):
    devices = data.draw(st.sampled_from([3, 4, 7, 12, 40]))
    protocol = made(devices, weights=np.arange(1, devices + 1) / sum(range(devices + 1)))
    spare = devices - protocol.parameters.threshold
    gone = data.draw(
        st.dictionaries(
            st.integers(0, devices - 1),
            st.sampled_from(["model", "verify_key", "masked_input", "verify", "unmask"]),
            max_size=spare,
        )
    )
    vectors = vectors_of(protocol, np.linspace(0.1, 2, devices), data.draw(st.integers(0, 99)))

    played = play(protocol, vectors, gone, index=data.draw(st.integers(0, 2**32 - 2)))

    early = {id for id, phase in gone.items() if phase not in ("verify", "unmask")}
    stay = [id for id in range(devices) if id not in early]
    assert stay == played.server.survivors
    total = sum(protocol.quantise(vectors[id], id, played.index) for id in stay)
    assert total.tolist() == played.server.total.tolist()
    weights = protocol.parameters.weights
    short = np.minimum(1, 1 / np.linalg.norm(vectors, axis=1))[:, None] * vectors
    mean = (weights[stay, None] * short[stay]).sum(axis=0) / weights[stay].sum()
    step = 1 / protocol.quantiser.levels / weights[stay].sum()
    assert np.abs(protocol.aggregate(played.server).mean - mean).max() < len(stay) * step


def test_a_round_of_some_members_is_exact():
    protocol = made(9, members=[1, 2, 5, 8])
    play(protocol, vectors_of(protocol, 0.5), {1: "masked_input"}).goes_on([0, 2, 3])


def test_vectors_are_clipped_to_the_norm_and_counted():
    protocol = made(5)
    vectors = vectors_of(protocol, [0.2, 0.99, 1.01, 3, 500])
    norms = [np.linalg.norm(protocol.quantise(vectors[id], id, 0)) for id in range(5)]

    assert max(norms) <= BOUND
    assert norms == pytest.approx([0.2 * BOUND, 0.99 * BOUND, BOUND, BOUND, BOUND], rel=2e-3)
    assert [0, 0, DIM, DIM, DIM] == [protocol.clipped[id][0] for id in range(5)]
    device = protocol.device(4, 0, None)
    assert DIM == device.unquantised(vectors[4])[2]
    assert 0 == device.unquantised(vectors[0])[2]


def test_of_unequal_weights_the_heaviest_reaches_the_bound():
    protocol = made(4, weights=np.array([0.1, 0.2, 0.3, 0.4]))
    vectors = vectors_of(protocol, 1)
    norms = [np.linalg.norm(protocol.quantise(vectors[id], id, 0)) for id in range(4)]
    assert norms == pytest.approx([BOUND / 4, BOUND / 2, 3 * BOUND / 4, BOUND], rel=2e-3)


def test_a_model_that_rounding_makes_too_long_is_refused():
    with pytest.raises(UsageError, match="too short to round 1000000000 values to"):
        Pine(Parameters(5, 1_000_000_000))


# Bytes


@pytest.mark.parametrize(("devices", "gone"), [(7, 0), (10, 3)])
def test_bytes_are_those_of_the_formula(devices, gone):
    protocol = made(devices, dropout=gone / devices)
    proofs, count, named = protocol.proofs, devices - gone, -(-devices // 8)
    norms, tests = BOUND.bit_length() * 2, (2 * 2**16 - 1).bit_length() + 1
    values = DIM + 2 * norms + 100 * tests
    assert proofs.elements == values

    played = play(protocol, dropouts=dict.fromkeys(range(gone), "masked_input"))

    sizes = {}
    for message in played.wire.messages:
        step = protocol.steps[message.header.step]
        sizes.setdefault((step.name, step.pattern.name), set()).add(len(message.payload))
    assert sizes == {
        ("model", "BROADCAST"): {4 * DIM},
        ("verify_key", "BROADCAST"): {32},
        ("masked_input", "GATHER"): {5 * (values + proofs.proof_elements) + 64 + 128 + 144},
        ("verify", "BROADCAST"): {named + 272 * count},
        ("verify", "GATHER"): {proofs.verifier_bytes * count},
        ("unmask", "BROADCAST"): {named + 64 * count},
        ("unmask", "GATHER"): {5 * DIM},
    }


def test_bytes_at_the_usual_length():
    """Of the draft's report, the nonce is left out: it follows from what all parties know."""
    protocol = Pine(Parameters(100, 165_000))
    assert protocol.largest_message + 16 == 5 * (166_852 + 3_082) + 64 + 128 + 144 + 16
    assert V == protocol.proofs.verifier_bytes
    assert RELAYED + 16 == 288


# Hostile devices


class Hostile:
    """A device that makes its report by other rules: with other methods of `owner`."""

    def __init__(self, device, owner, rules):
        self.device, self.owner, self.rules = device, owner, rules

    def __getattr__(self, name):
        return getattr(self.device, name)

    def send_masked_input(self, vector):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.rules.items():
                patch.setattr(self.owner, name, value)
            return self.device.send_masked_input(vector)


def hostile(which, owner=pine.Pine, **rules):
    return lambda id, device: Hostile(device, owner, rules) if id in which else device


def cheating(norm):
    """Return a way to make a report of a vector of a given norm, with the best proof of it."""

    def shard(self, vector, nonce, rand):
        direction = np.zeros(self.dim)
        direction[0] = 1
        integers = np.rint(direction * norm).astype(np.int64)
        square = int((integers.astype(object) ** 2).sum()) % self.field.modulus
        rest = (self.norm_bound**2 - square) % self.field.modulus
        return self._shard(integers, pine._bits([square, rest], self.norm_bits), nonce, rand)

    return shard


@pytest.mark.parametrize("norm", [BOUND + 1, 2 * BOUND, 1_000_000, F40.modulus // 3])
def test_a_vector_that_is_too_long_costs_its_device_alone(norm):
    protocol = made(7)
    played = play(protocol, wrap=hostile([2, 5], shard=cheating(norm)))

    played.goes_on([0, 1, 3, 4, 6])
    assert {2: long(BOUND), 5: long(BOUND)} == refusals(played)
    assert {2, 5} == {*played.server.refused}


def test_one_that_is_as_long_as_it_may_be_is_added():
    protocol = made(5)
    played = play(protocol, wrap=hostile([2], shard=cheating(BOUND)), vectors=np.zeros((5, DIM)))
    assert [BOUND, *[0] * (DIM - 1)] == played.server.total.tolist()
    played.nobody_left()


def wrapped(self, vector, nonce, rand):
    """Make a report of a long vector whose square is short modulo q, with a right proof of that."""
    root = next(k for k in range(10**6, 2 * 10**6) if k * k % self.field.modulus <= BOUND**2)
    integers = np.zeros(self.dim, np.int64)
    integers[0] = root
    square = root * root % self.field.modulus
    norms = pine._bits([square, self.norm_bound**2 - square], self.norm_bits)
    return self._shard(integers, norms, nonce, rand)


def test_a_vector_whose_square_is_short_modulo_q_fails_the_tests():
    played = play(made(5), wrap=hostile([3], shard=wrapped))
    played.goes_on([0, 1, 2, 4])
    assert {3: long(BOUND)} == refusals(played)


def changed_report(place, by=1):
    def change(payload):
        payload[place] ^= by
        return payload

    return change


NO_ELEMENT = slice(RELAYED, RELAYED + 5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (changed_report(0), "it does not decrypt"),
        (changed_report(SEALED - 1), "it does not decrypt"),
        (changed_report(SEALED), "it does not decrypt"),  # the public part is bound to the share
        (changed_report(RELAYED - 1), "it does not decrypt"),
        (changed_report(RELAYED), long(BOUND)),  # a value
        (changed_report(RELAYED + 5 * (DIM + 300)), long(BOUND)),  # a bit
        (changed_report(-65), long(BOUND)),  # the proof
        (changed_report(-1), long(BOUND)),  # a blind
        (changed_report(NO_ELEMENT, 0xFF), "a number is not an element of the field"),
        (lambda payload: payload[:-1], "bytes, expected"),
        (lambda payload: np.zeros_like(payload), "it does not decrypt"),
    ],
)
def test_a_malformed_report_costs_its_device_alone(change, reason):
    protocol = made(5)
    vectors = np.zeros((5, DIM))
    change = sent_by_device(protocol, "masked_input", 1, change)
    if reason == "a number is not an element of the field":
        change = sent_by_device(protocol, "masked_input", 1, no_element)
    played = play(protocol, vectors, change=change)
    played.goes_on([0, 2, 3, 4])
    assert reason in str(played.kept_out[1])
    assert [1] == [*played.kept_out]


def no_element(payload):
    payload[NO_ELEMENT] = 0xFF
    return payload


def reports_of(protocol, index):
    return play(protocol, index=index).sent("masked_input")


@pytest.mark.parametrize("binding", ["round", "device", "run", "norm"])
def test_a_report_counts_only_where_it_was_made(binding):
    old = made(5)
    protocol = made(5)
    if binding == "run":
        old.run = " of another run"
    if binding == "norm":
        old.proofs = pine.Pine(DIM, BOUND - 1)
        old.quantiser = replace(old.quantiser, levels=1.0)
    earlier = reports_of(old, 3 if binding == "round" else 4)
    of = 2 if binding == "device" else 1
    replay = sent_by_device(protocol, "masked_input", 1, lambda payload: raw(earlier[of]))

    played = play(protocol, index=4, change=replay)

    assert [0, 2, 3, 4] == played.server.survivors
    assert {1: "it does not decrypt"} == refusals(played)


def test_a_proof_counts_only_where_it_was_made():
    """Even if the helper's share is sealed for this round, by the device itself."""

    def place(self, device, round_index):
        there, _ = Place(self, device, round_index)
        return there, hashlib.sha256(b"another nonce").digest()[:16]

    Place = Pine.place
    played = play(made(5), wrap=hostile([1], Pine, place=place))
    played.goes_on([0, 2, 3, 4])
    assert {1: long(BOUND)} == refusals(played)


@pytest.mark.parametrize("number", range(4))
def test_a_device_that_tells_the_servers_different_randomness_harms_itself_alone(
    number, monkeypatch
):
    """It could make a proof of which the sums of verifiers say that it passes, as all do here."""
    shard = pine.Pine.shard

    def told(self, vector, nonce, rand):
        report = shard(self, vector, nonce, rand)
        public = bytearray(report.public)
        public[32 * number] ^= 1
        return pine.Report(bytes(public), report.leader, report.helper)

    monkeypatch.setattr("hpcfl.crypto.proofs.Gadget.accepts", lambda self, verifiers: True)
    played = play(made(5), wrap=hostile([4], shard=told))
    played.goes_on([0, 1, 2, 3])
    assert {4: long(BOUND)} == refusals(played)


def test_too_few_vectors_that_are_short_end_the_round_before_anything_is_told():
    with pytest.raises(BelowThresholdError, match="2 of 5 devices sent vectors that were proven"):
        play(made(5), wrap=hostile([0, 1, 2], shard=cheating(2 * BOUND)))
    with pytest.raises(BelowThresholdError, match="2 of 5 devices sent their reports"):
        play(made(5), dropouts=dict.fromkeys(range(3), "masked_input"))


def test_a_device_reports_once_a_round():
    played = play(made(5), index=2)
    for _ in range(2):
        error = played.refused(
            RefusedError, played.devices[1].send_masked_input, played.vectors[1] / 2
        )
        assert "has sent a report for round 2" in str(error)


# The helper


class Asked:
    """A helper after the reports of a round, and what the server would ask it next."""

    def __init__(self, index=1, devices=5):
        self.protocol = made(devices)
        played = play(self.protocol, index=index)
        told = {name: raw(played.told(name)) for name in ("verify_key", "unmask")}
        self.told = told | {
            "verify": next(
                raw(m.payload)
                for m in played.wire.messages
                if self.protocol.steps[m.header.step].name == "verify"
            )
        }
        self.right = {
            self.protocol.steps[m.header.step].name: m.payload
            for m in played.wire.messages
            if m.header.sender >= 2**31 and m.header.sender != 2**32 - 1
        }
        # The same enrolment anew: the helper has not heard of the round yet.
        self.protocol = made(devices)
        self.helper = self.protocol.helper(0, index, None)

    def up_to(self, *names):
        for name in names:
            getattr(self.helper, f"receive_{name}")(self.told[name])
        return self


def test_a_helper_answers_the_same_alone():
    asked = Asked().up_to("verify_key", "verify")
    assert asked.right["verify"] == asked.helper.send_verify().tobytes()
    asked.up_to("unmask")
    assert asked.right["unmask"] == asked.helper.send_unmask().tobytes()


def test_a_helper_does_nothing_before_it_is_asked_and_nothing_twice():
    asked = Asked()
    helper = asked.helper
    for name in ("verify", "unmask"):
        with pytest.raises(RefusedError, match="was not asked"):
            getattr(helper, f"send_{name}")()
    with pytest.raises(RefusedError, match="no key to verify with"):
        asked.up_to("verify")
    with pytest.raises(RefusedError, match="it has no report of device"):
        asked.up_to("unmask")
    with pytest.raises(RefusedError, match="a second key"):
        asked.up_to("verify_key", "verify_key")
    with pytest.raises(RefusedError, match="it has had reports for round 1 already"):
        asked.up_to("verify", "verify")
    with pytest.raises(RefusedError, match="it has told it"):
        asked.up_to("unmask", "unmask")
    for index in (0, 1):  # of an earlier round, too
        helper = asked.protocol.helper(0, index, None)
        helper.receive_verify_key(asked.told["verify_key"])
        with pytest.raises(RefusedError, match="it has had reports for round 1 already"):
            helper.receive_verify(asked.told["verify"])


def test_a_helper_tells_no_sum_of_fewer_devices_than_the_threshold_or_of_others():
    asked = Asked().up_to("verify_key", "verify")
    seeds = asked.told["unmask"][1:].tobytes()
    wrong = bytes(64)
    for named, told, words in (
        ([0, 1], seeds[:128], "a sum of 2 devices is not one of 3"),
        ([], b"", "a sum of 0 devices"),
        ([0, 1, 2, 3], seeds[:192] + wrong, "it has no report of device 3"),
        ([0, 1, 2, 4], seeds[:256], "it has no report of device 4"),
    ):
        with pytest.raises(RefusedError, match=words):
            asked.helper.receive_unmask(raw(bits(named, 5) + told))
    with pytest.raises(MessageError, match="bytes, expected"):
        asked.helper.receive_unmask(raw(bits([0, 1, 2], 5) + seeds[:128]))
    with pytest.raises(RefusedError, match="was not asked"):
        asked.helper.send_unmask()
    asked.helper.receive_unmask(raw(bits([0, 1, 2], 5) + seeds[:192]))
    assert 5 * DIM == asked.helper.send_unmask().size


def test_a_helper_takes_no_report_of_a_device_that_has_not_enrolled_or_under_another_name():
    asked = Asked().up_to("verify_key")
    told = asked.told["verify"]
    asked.helper._member._there -= {2}
    swapped = told.copy()
    first, second = slice(1, 1 + RELAYED), slice(1 + RELAYED, 1 + 2 * RELAYED)
    swapped[first], swapped[second] = told[second], told[first]
    asked.helper.receive_verify(swapped)

    verifiers = asked.helper.send_verify().reshape(5, -1)
    assert [False, False, False, True, True] == verifiers.any(axis=1).tolist()
    assert {3, 4} == {*asked.helper.state.shares}


def from_helper(protocol, name, change):
    return sent_by_device(protocol, name, 2**31, change)


@pytest.mark.parametrize("name", ["verify", "unmask"])
@pytest.mark.parametrize("change", [lambda sent: sent[:-1], no_element])
def test_a_malformed_answer_of_the_helper_ends_the_round_in_its_name(name, change):
    protocol = made(5)
    if change is no_element:

        def change(sent):
            sent[:5] = 0xFF
            return sent

    with pytest.raises(BelowThresholdError) as caught:
        play(protocol, change=from_helper(protocol, name, change))
    assert "cannot end: 0 of 1 helpers sent" in str(caught.value)
    assert f"malformed {name} message from helper 0" in str(caught.value)


def test_without_the_helper_no_round_ends():
    for phase in ("verify_key", "verify", "unmask"):
        with pytest.raises(BelowThresholdError, match="0 of 1 helpers sent"):
            play(made(5), dropouts={5: phase})


def test_a_helper_that_lies_about_a_proof_has_its_device_refused_and_no_other():
    protocol = made(5)
    size = protocol.proofs.verifier_bytes

    def lie(sent):
        sent[size] ^= 1
        return sent

    played = play(protocol, change=from_helper(protocol, "verify", lie))
    played.goes_on([0, 2, 3, 4])
    assert {1: long(BOUND)} == refusals(played)


# The server


def test_the_server_takes_a_helpers_message_once():
    played = play(made(5))
    for name in ("verify", "unmask"):
        error = played.refused(
            MessageError, getattr(played.server, f"receive_{name}"), 0, raw(b"anything")
        )
        assert "received twice" in error.reason


def test_the_key_of_proofs_is_drawn_in_every_round_and_devices_are_not_told():
    drawn = set()
    for index in range(3):
        played = play(made(5), index=index)
        key = played.told("verify_key")
        assert key == played.servers.drawn[0]
        drawn.add(key)
        for message in played.wire.messages:
            step = played.protocol.steps[message.header.step]
            assert step.name == "verify_key" or key not in message.sealed
            assert step.name != "verify_key" or step.role is Role.HELPER
    assert 3 == len(drawn)


def test_the_server_holds_bytes_of_shares_and_frees_them():
    played = play(made(5), before="verify")
    assert {5 * (played.protocol.proofs.elements + played.protocol.proofs.proof_elements) + 64} == {
        len(report.share) for report in played.server.state.values()
    }
    assert {b""} == {report.share for report in play(made(5)).server.state.values()}


def test_promises_name_the_norm_and_the_threshold():
    protocol = made(10, clip_norm=2.0)
    apart, short = protocol.promises()
    assert "sum of at least 6 devices' vectors" in apart.claim
    assert (
        "at most the norm 0.2002: that of --clip-norm 2 with the largest weight, and" in short.claim
    )
    assert 10 * protocol.proofs.forged == short.worst
    assert pine.Pine(165_000, pine.largest_bound()).forged < 2**-62
    assert objection([apart, short], Outcome(10, 5)) is not None
    assert objection([apart, short], Outcome(10, 6)) is None
    assert isinstance(protocol.server(0, np.zeros(DIM, np.float32)), PineServer)
