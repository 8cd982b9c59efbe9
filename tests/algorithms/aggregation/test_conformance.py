"""What every protocol must do: exact sums, dropouts, thresholds, tampering, bytes by formula.

Vectors are multiples of what values are rounded to, so that the sum of a round is compared with one
of plain integers, and no code of a protocol says what is expected.
"""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol_rounds import SECURE, enrolled, make, play, raw, sent_by
from tiers import examples

from hpcfl.algorithms.aggregation import ACTIVE, PROTOCOLS, find
from hpcfl.algorithms.aggregation.costs import exchanged
from hpcfl.algorithms.aggregation.pine import norm_before_rounding
from hpcfl.comm.phases import GATHER, LOCAL, ROUTE, SCATTER, Role, call, phase_names
from hpcfl.crypto import ckks
from hpcfl.errors import BelowThresholdError, MessageError, RefusedError

DIM = 37
NUMBERS = (3, 4, 5, 7, 10, 17, 40)
# The modulus of groups, and of what magnitude the values are that all devices' sums have room for.
GROUPS = {"fq": (2**32 - 5, 2**25), "ring32": (2**32, 2**25), "field16": (65521, 2**9)}
# The same for pine, whose vectors have a norm of at most 7,532 integers.
SHORT = (2**20 * 1048555 + 1, 2**10)
FIELDS = ("lightsecagg", "committee")
DRAWN = ("committee", "opa")  # whose members a nonce draws
KINDS = [(name, "passive") for name in PROTOCOLS] + [(name, "active") for name in ACTIVE]
# Those in which a message that was cut short costs its sender alone.
FORGIVING = [kind for kind in KINDS if kind[0] != "prf"]


@pytest.fixture(autouse=True)
def keys_read_once(monkeypatch):
    """Read the key that devices share once: to do so for each is most of such a round's time."""
    try:
        import tenseal
    except ImportError:
        return
    monkeypatch.setattr(tenseal, "context_from", cache(tenseal.context_from))


def made(kind, devices, group="fq", **options):
    """Return a protocol in which a tenth of the devices may drop out; they enrol if they must."""
    name, security = kind
    for needs, package in (("ckks", "tenseal"), ("flamingo", "nacl")):
        if name == needs:
            pytest.importorskip(package)
    # Fewer than a third may collude; of a few devices nobody does.
    options = {"dropout": 0.1, "gamma": 0.0, "alpha": 1.0} | options
    if name in ("fedavg", "ckks"):
        group, levels = "fq", options.pop("levels", 1000)
    else:
        # A vector's weight is 1 / N.
        levels = options.pop("levels", GROUPS[group][1] * devices)
    if name == "prf":
        options["dropout"] = 0.0
    if name == "assisted":
        options |= {"helpers": 4}
    if name == "pine":  # whose norm takes the place of levels
        options |= {"clip_norm": norm_before_rounding(7532, DIM) / SHORT[1]}
    protocol = make(name, devices, DIM, security=security, group=group, levels=levels, **options)
    if security == "passive" and find(name).enrolment(devices, 2) is not None:
        there = enrolled(protocol, devices, security="passive", helpers=options.get("helpers"))
        protocol.join(there, range(devices), devices)
    return protocol


def group_of(protocol, group):
    """Return the modulus of a protocol's sums, and the largest of its devices' integers."""
    return SHORT if protocol.name == "pine" else GROUPS[group]


def whole(protocol, generator, group="fq"):
    """Return integers for every device, and the vectors that stand for them."""
    _, largest = group_of(protocol, group)
    devices = protocol.parameters.devices
    integers = generator.integers(-largest, largest + 1, (devices, DIM))
    step = devices / 2**ckks.STEP_BITS if protocol.name == "ckks" else 1 / largest
    return integers, integers * step


def assert_sum(played, integers, stay, group="fq"):
    """Assert that the round ended with the sum of these devices' integers."""
    assert sorted(stay) == played.server.survivors
    if played.protocol.name == "sparse":  # whose values are scaled by a probability
        played.goes_on(sorted(stay))
        return
    total = np.zeros(DIM, np.int64)
    for id in stay:
        where = sent_by(played, id)
        total[where] += integers[id][where]
    name, told = played.protocol.name, played.server.total
    if name == "fedavg":
        scale = GROUPS[group][1] * played.parameters.devices
        assert np.allclose(total, told * scale, rtol=1e-5, atol=1)
    elif name == "ckks":
        assert total.tolist() == np.ldexp(told, ckks.STEP_BITS).tolist()
    else:
        modulus, _ = group_of(played.protocol, group)
        assert (total % modulus).tolist() == (told.astype(np.int64) % modulus).tolist()
        assert np.abs(told).max() <= modulus // 2


def spare(protocol):
    """Return how many devices may vanish in any phase, and how many members of a committee."""
    devices = protocol.parameters.devices
    most = devices - protocol.needed_in_sum
    members = devices
    if protocol.name in DRAWN:
        members = protocol.code.devices - protocol.code.needed
    if protocol.name == "ckks":
        members = 1  # of the two that tell the sum
    if protocol.name == "flamingo":
        members = protocol.setting[0] - protocol.setting[1]
    return most, members


def members_of(protocol, index):
    """Return the devices that do more than the others in a round that all are there for."""
    if protocol.name in DRAWN:
        dealing = protocol.server_class.dealing
        return play(protocol, index=index, before=dealing).server.committee
    if protocol.name == "flamingo":
        return protocol.enrolled[0].decryptors
    return range(protocol.parameters.devices) if protocol.name == "ckks" else []


def uploaded_before(protocol, phase):
    phases = protocol.phases()
    return phases.index(phase) > phases.index(protocol.upload_phase())


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@settings(max_examples=examples(len(NUMBERS)))
@given(data=st.data())
def test_the_sum_is_that_of_plain_integers_whoever_drops_out_when(kind, data):
    devices = data.draw(st.sampled_from(NUMBERS))
    seed, index = data.draw(st.integers(0, 2**31)), data.draw(st.integers(0, 2**32 - 2))
    generator = np.random.default_rng(seed)
    group = "field16" if kind[0] in FIELDS and devices % 2 else "fq"
    protocol = made(kind, devices, group)
    integers, vectors = whole(protocol, generator, group)
    most, most_members = spare(protocol)
    phases = [phase for phase in phase_names(protocol.steps) if phase != "result"]
    gone = {}
    members = {*members_of(protocol, index)}
    for id in generator.permutation(devices).tolist():
        if len(gone) < most and (id not in members or most_members > len(members & {*gone})):
            gone[id] = data.draw(st.sampled_from(phases))

    played = play(protocol, vectors, gone, index=index)

    stay = [id for id in range(devices) if id not in gone or uploaded_before(protocol, gone[id])]
    assert_sum(played, integers, stay, group)
    played.nobody_left()


@pytest.mark.parametrize("phase", ["first", "upload"])
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_as_many_as_are_needed_end_the_round_exactly_and_one_less_not_at_all(kind, phase):
    devices = 9
    protocol = made(kind, devices)
    before = protocol.upload_phase()
    if phase == "first":
        before = next(name for name in phase_names(protocol.steps) if name != "model")
    most = devices - protocol.needed_in_sum
    leaving = [id for id in range(devices) if id not in members_of(protocol, 0)]
    leaving += [id for id in range(devices) if id not in leaving]
    integers, vectors = whole(protocol, np.random.default_rng(3))

    if protocol.name not in DRAWN:  # their members may be among them
        played = play(protocol, vectors, dict.fromkeys(leaving[:most], before))
        assert_sum(played, integers, sorted(leaving[most:]))
    with pytest.raises(BelowThresholdError) as caught:
        play(protocol, vectors, dict.fromkeys(leaving[: most + 1], before))
    assert "cannot end" in str(caught.value)


def gathered(protocol):
    """Return the steps in which a device's message comes to the server, by number."""
    return [
        number
        for number, step in enumerate(protocol.steps)
        if step.pattern is GATHER and step.role is Role.DEVICE and step.wants is None
    ]


def tampered(number, sender, change):
    def changed(header, message):
        if (header.step, header.sender) != (number, sender) or message.ndim > 1:
            return message
        return change(message.copy())

    return changed


def shorter(message):
    return message[:-1]


def of_another_round(message):
    message[4] ^= 1
    return message


def of_another_device(message):
    message[8] ^= 1
    return message


def costs_itself_alone(protocol, number, change):
    """Assert that a changed message of device 5 in a step costs it the round, and nobody else."""
    devices, sender = 9, 5
    integers, vectors = whole(protocol, np.random.default_rng(number))
    played = play(protocol, vectors, index=number, change=tampered(number, sender, change))
    after = uploaded_before(protocol, protocol.steps[number].phase)
    assert_sum(played, integers, [id for id in range(devices) if after or id != sender])
    assert {sender} == {*played.kept_out}
    assert isinstance(played.kept_out[sender], MessageError | RefusedError)


@pytest.mark.parametrize("change", [shorter, of_another_round, of_another_device])
@pytest.mark.parametrize("kind", FORGIVING, ids="-".join)
def test_a_message_that_is_not_as_it_should_be_costs_its_sender_alone(kind, change):
    protocol = made(kind, 9)
    for number in gathered(protocol):
        costs_itself_alone(protocol, number, change)


# Messages that are bitmaps or tags.
NO_ELEMENTS = ("held", "consistency_check")


@pytest.mark.parametrize("kind", FORGIVING, ids="-".join)
def test_so_does_a_key_of_no_use_and_a_value_that_is_none(kind):
    protocol = made(kind, 9)

    def useless_key(message):
        message[16:48] = 0
        return message

    def no_element(message):
        message[-4:] = 255  # above the modulus, or NaN
        return message

    for number in gathered(protocol):
        step = protocol.steps[number]
        if step.name == "advertise_keys" and kind[1] == "passive":
            costs_itself_alone(protocol, number, useless_key)
        elif kind[0] == "opa" and step.upload:
            continue  # whose words are any
        elif kind[0] != "ckks" and step.name not in ("advertise_keys", *NO_ELEMENTS):
            costs_itself_alone(protocol, number, no_element)


@pytest.mark.parametrize("kind", FORGIVING, ids="-".join)
def test_a_vector_that_is_no_numbers_is_its_devices_refusal(kind):
    protocol = made(kind, 9)
    integers, vectors = whole(protocol, np.random.default_rng(1))
    vectors[5, ::2], vectors[5, 1::2] = np.nan, -np.inf
    played = play(protocol, vectors)

    assert [5] == list(played.left) == list(played.kept_out)
    assert isinstance(played.left[5], RefusedError)
    assert "not a finite number" in str(played.left[5])
    assert_sum(played, integers, [id for id in range(9) if id != 5])


def asked_device(protocol, index=0):
    """Return a device that plays every step: a member of the committee, where there is one."""
    return next(iter(members_of(protocol, index)), 4)


def exchanges(kind):
    """Yield every step with a device and the server, a round in which it is next, and a device."""
    protocol = made(kind, 9)
    for index, step in enumerate(protocol.steps):
        if not step.wants and step.pattern not in (LOCAL, ROUTE) and step.role is not Role.HELPER:
            played = play(protocol, index=index, before=(step.name, step.pattern))
            yield step, played, asked_device(protocol, index)


def of_other_lengths(right):
    return [right[:0], right[:-1], np.append(right, np.uint8(0))]


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_messages_of_other_lengths_are_refused_in_the_name_of_their_sender(kind):
    """The right one is taken afterwards, once, and from nobody that is not in the round."""
    for step, played, id in exchanges(kind):
        device, server = played.devices[id], played.server
        if step.name == "decrypt":
            continue  # of ckks: whatever comes first is its one sum of the round
        if step.pattern is not GATHER:
            right = call(step.send, server, *[id] * (step.pattern is SCATTER))
            for wrong in of_other_lengths(right):
                error = played.refused(MessageError, call, step.receive, device, wrong)
                assert (step.phase, "the server") == (error.phase, error.sender)
            call(step.receive, device, right)
            continue
        right = call(step.send, device, *[played.vectors[id]] * step.upload)
        for wrong in of_other_lengths(right):
            error = played.refused(MessageError, call, step.receive, server, id, wrong)
            assert (step.phase, f"device {id}") == (error.phase, error.sender)
        call(step.receive, server, id, right)
        error = played.refused(MessageError, call, step.receive, server, id, right)
        assert "received twice" in error.reason
        steps = played.protocol.steps
        if ROUTE in [one.pattern for one in steps[: steps.index(step)]]:  # not all have dealt
            played.refused(MessageError, call, step.receive, server, 2**32 - 1, right)


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_a_device_refuses_a_list_of_keys_in_which_its_own_are_others(kind):
    """Of a ring's lists they are no part; members of a committee have a list of their own."""
    name = "dealers_keys" if kind[0] == "committee" else "advertise_keys"
    for step, played, id in exchanges(kind):
        if step.name != name or step.pattern in (GATHER, SCATTER):
            continue
        own, told = played.sent("advertise_keys")[id], call(step.send, played.server).tobytes()
        if own in told:
            wrong = raw(told.replace(own, own[:-1] + bytes([own[-1] ^ 1])))
            error = played.refused(MessageError, call, step.receive, played.devices[id], wrong)
            assert "not as it sent" in error.reason


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_a_device_deals_masks_and_answers_once(kind):
    """Two ciphertexts under one nonce, or vectors under one mask, tell their difference."""
    protocol = made(kind, 9)
    id = asked_device(protocol)
    played = play(protocol)
    device = played.devices[id]
    for number, step in enumerate(protocol.steps):
        if step.wants or step.pattern is LOCAL or step.role is Role.HELPER:
            continue
        if step.pattern is ROUTE or (step.upload and kind[0] not in ("fedavg", "ckks")):
            vector = [played.vectors[id] / 2] * (step.upload or step.name == "share_input")
            played.refused(RefusedError, call, step.send, device, *vector)
        elif step.name == "challenge" or (
            step.pattern is not GATHER and uploaded_before(protocol, step.phase)
        ):
            asked = [m for m in played.wire.messages if m.header.step == number]
            (message, *_) = [m for m in asked if m.header.receiver in (id, 2**32 - 2)]
            played.refused(RefusedError, call, step.receive, device, raw(message.payload))
        elif kind[0] in FIELDS and step.pattern is GATHER and uploaded_before(protocol, step.phase):
            played.refused(RefusedError, call, step.send, device)


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_nothing_is_unmasked_that_was_not_asked_for(kind):
    for step, played, id in exchanges(kind):
        if step.pattern is GATHER or not uploaded_before(played.protocol, step.phase):
            continue
        for later in played.protocol.steps:
            if later.pattern is GATHER and later.phase in (step.phase, "unmask"):
                played.refused(RefusedError, call, later.send, played.devices[id])


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_rows_that_do_not_open_make_nobody_else_leave(kind):
    protocol = made(kind, 9)
    routes = [number for number, step in enumerate(protocol.steps) if step.pattern is ROUTE]
    integers, vectors = whole(protocol, np.random.default_rng(1))

    def spoil(header, message):
        if header.step in routes and header.sender == 5:
            message = message.copy()
            message[..., -1] ^= 1
        return message

    played = play(protocol, vectors, change=spoil)
    assert {*played.kept_out} <= {5}
    assert_sum(played, integers, [id for id in range(9) if not routes or id != 5])


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_a_dealer_is_out_if_more_have_nothing_of_it_than_may_be_at_fault_and_not_before(kind):
    probe = made(kind, 9)
    routes = [number for number, step in enumerate(probe.steps) if step.pattern is ROUTE]
    most = getattr(probe, "most_at_fault", 1)
    for count in (most, most + 1) if routes else ():
        protocol = made(kind, 9)
        integers, vectors = whole(protocol, np.random.default_rng(count))

        def spoil(header, message, count=count):
            if header.step in routes and header.sender == 5:
                message = message.copy()
                message[:count, -1] ^= 1
            return message

        played = play(protocol, vectors, change=spoil)
        assert_sum(played, integers, [id for id in range(9) if count == most or id != 5])
        assert (5 in played.kept_out) == (count > most)


@pytest.mark.parametrize("dropped", [0, 2])
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_what_moves_is_what_the_formula_says(kind, dropped):
    devices = 10
    if kind[0] == "prf" and dropped:
        return
    plan = {"dropout": dropped / devices} if dropped else {"dropout": 0.0}
    protocol = made(kind, devices, **plan)
    leaving = [id for id in range(devices) if id not in members_of(protocol, 0)][:dropped]
    leaving = leaving if len(leaving) == dropped else [*range(dropped)]
    if protocol.name in DRAWN and dropped:
        return  # members of a committee come and go with it
    gone = dict.fromkeys(leaving, protocol.upload_phase())
    record = play(protocol, None, gone).record
    about = 0.05 if kind[0] == "sparse" else 0.2 if kind[0] == "ckks" else 1e-12
    there = [id for id in range(devices) if id not in leaving]
    for number, phase in enumerate(exchanged(protocol).values()):
        up, down = record.bytes_up[number, there], record.bytes_down[number, there]
        members = phase.members / len(there) if phase.members else 0.0
        if protocol.name == "ckks":
            members = 2 / len(there) if phase.name == "decrypt" else 0.0
        moved = (record.helper_bytes_up[number], record.helper_bytes_down[number])
        for found, of_one in zip(moved, (phase.helper_up, phase.helper_down), strict=True):
            assert [of_one] * protocol.helpers == found.tolist()
        assert up.mean() == pytest.approx(phase.up + members * phase.member_up, rel=about)
        assert down.mean() == pytest.approx(phase.down + members * phase.member_down, rel=about)


@pytest.mark.parametrize("name", [*SECURE, "fedavg", *FIELDS, "opa", "assisted", "prf"])
@pytest.mark.parametrize("options", [{"scaling": "paper"}, {"weights": True}])
def test_weights_and_scaling_leave_the_mean_that_of_the_survivors(name, options):
    devices = 8
    weights = np.arange(1, devices + 1) / 36
    options = {"weights": weights} if "weights" in options else options
    protocol = made((name, "passive"), devices, levels=2**20, clip=2.0, **options)
    vectors = np.random.default_rng(2).uniform(-1, 1, (devices, DIM)).astype(np.float32)
    gone = {} if name == "prf" else {7: protocol.upload_phase()}
    if name in DRAWN:
        gone = {}
    played = play(protocol, vectors, gone)

    stay = played.server.survivors
    weights = weights if "weights" in options else np.full(devices, 1 / devices)
    mean = (weights[stay, None] * vectors[stay]).sum(axis=0) / weights[stay].sum()
    found = protocol.aggregate(played.server)
    if options.get("scaling") == "paper":
        planned = 1 - protocol.parameters.dropout
        mean *= weights[stay].sum() / planned
    assert np.allclose(mean, found.mean, atol=1 if name == "sparse" else 1e-4)
