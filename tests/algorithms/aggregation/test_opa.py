"""One message per device, whose masks add up; the shares of keys are those of a committee."""

import numpy as np
import pytest
from protocol_rounds import Source, bits, enrolled, make, play, raw, sent_by_device
from scipy import stats

from hpcfl.algorithms.aggregation.opa import Member, Opa
from hpcfl.algorithms.aggregation.work import terms
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import Pattern
from hpcfl.crypto import keystream
from hpcfl.crypto.keys import insecure_secrets
from hpcfl.crypto.ringlwe import RING_DIM, masks, small
from hpcfl.errors import BelowThresholdError, MessageError, RefusedError, UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.rounds.build import build

DEVICES, DIM = 20, 5000


@pytest.fixture
def protocol():
    return joined(DEVICES, dropout=0.1)


def joined(devices, dim=DIM, population=None, members=None, **options):
    made = make("opa", devices, dim, **{"gamma": 0.0, "dropout": 0.1} | options)
    population = population or devices
    there = enrolled("opa", population, security="passive")
    made.join(there, members or range(devices), population)
    return made


def test_an_upload_is_the_vector_under_a_key_that_its_shares_add_up_to(protocol):
    """From what devices drew: key, errors and words, without the protocol's code for them."""
    played = play(protocol, index=4)
    played.goes_on(range(DEVICES))
    drawn = [source.drawn[0] for source in played.sources.values()]
    keys, errors = np.zeros(RING_DIM, np.int64), np.zeros(protocol.words, np.int64)
    total = np.zeros(protocol.words, np.uint64)
    for id, seed in enumerate(drawn):
        stream = keystream.open_stream(seed)
        keys += small(stream, RING_DIM)
        errors += small(stream, protocol.words)
        protocol.packing.add(np.frombuffer(played.sent("masked_input")[id], np.uint8), total)
    seed = protocol.public_seed(4, played.server.model.view(np.uint8))
    for part, words in masks(keystream.open_stream(seed), keys, protocol.words // RING_DIM):
        total[part] -= words
    sums = played.server.total.astype(np.int64)
    left = (total - protocol.packing.spread(sums) - errors.view(np.uint64)) << np.uint64(
        64 - protocol.packing.word_bits
    )
    assert not left.any()


def test_vectors_of_devices_that_were_sent_another_model_add_up_to_noise(protocol):
    """Chi-squared on the highest bits of the sum; noise fails once in a million times."""
    played = play(protocol, before="masked_input")
    server, other = played.server, played.devices[3]
    server.finish_held()
    other.state.public_seed = protocol.public_seed(0, np.ones(4 * DIM, np.uint8))
    for id, device in played.devices.items():
        server.receive_masked_input(id, device.send_masked_input(played.vectors[id]))
    server.finish_masked_input()
    for id in server.committee:
        played.devices[id].receive_sum_shares(server.send_sum_shares())
        server.receive_sum_shares(id, played.devices[id].send_sum_shares())
    server.finish_sum_shares()
    server.finish_result()
    counts = np.bincount((server.total.astype(np.int64) % 2**32) >> 28, minlength=16)
    assert stats.chisquare(counts).pvalue > 1e-6


def test_the_public_polynomials_depend_on_the_round_and_the_whole_model(protocol):
    model = np.zeros(4 * DIM, np.uint8)
    changed = model.copy()
    changed[-1] = 1
    seeds = {protocol.public_seed(*about) for about in ((0, model), (1, model), (0, changed))}
    assert 3 == len(seeds)


def test_a_device_shares_a_key_once_in_a_round_and_never_in_an_earlier_one():
    """Two vectors under one key tell their difference; two rows under one nonce theirs."""
    protocol = joined(4)
    played = play(protocol, index=7)
    for index in (6, 7):
        device = protocol.device(2, index, insecure_secrets(1, index, 2))
        device.receive_model(raw(played.told("model")))
        error = played.refused(RefusedError, device.send_share_key)
        assert "has shared a key in round 7" in str(error)
        played.refused(RefusedError, device.send_masked_input, played.vectors[2])
    played.refused(RefusedError, played.devices[2].send_masked_input, played.vectors[2])
    assert played.devices[2].state.key_seed == b""


def test_every_round_has_a_key_of_its_own(protocol):
    source = {id: Source(insecure_secrets(9, 0, id)) for id in range(DEVICES)}
    first = play(protocol, index=20, sources=source).sent("masked_input")
    second = play(protocol, index=21, sources=source).sent("masked_input")
    assert first[3] != second[3]
    assert source[3].drawn[0] != source[3].drawn[2]


def test_a_device_that_has_not_enrolled_takes_no_part():
    protocol = joined(4)
    member = Member(1, 4, insecure_secrets(1, 0, 1))
    with pytest.raises(RefusedError, match="it has not enrolled"):
        member.enter(0)
    listed = enrolled("opa", 4, security="passive")[1].listed
    with pytest.raises(MessageError, match="not as it sent it"):
        member.receive_advertise_keys(raw(listed))
    with pytest.raises(RefusedError, match="refuses to enrol twice"):
        protocol.enrolled[1].receive_advertise_keys(raw(listed))


def test_a_list_of_other_devices_than_those_of_the_round_is_refused():
    protocol = joined(4, population=9, members=[1, 4, 5, 8])
    played = play(protocol, before="share_key")
    told = raw(played.told("model"))
    wrong = np.concatenate([told[:-2], raw(bits([1, 4, 6, 8], 9))])
    device = protocol.device(0, 1, insecure_secrets(1, 0, 0))
    assert "others than it was offered" in str(
        played.refused(RefusedError, device.receive_model, wrong)
    )
    play(protocol, index=3).goes_on(range(4))


def test_a_dealer_whose_shares_too_many_members_lack_is_left_out_with_its_upload(protocol):
    members = play(protocol, index=30, before="share_key").server.committee
    dealer = next(id for id in range(DEVICES) if id not in members)

    def spoil(rows):
        rows[:2, -1] ^= 1
        return rows

    played = play(protocol, index=30, change=sent_by_device(protocol, "share_key", dealer, spoil))
    played.goes_on([id for id in range(DEVICES) if id != dealer])
    assert {dealer} == {*played.kept_out}
    assert "hold no share of it" in str(played.kept_out[dealer])


@pytest.mark.parametrize("phase", ["share_key", "masked_input", "sum_shares"])
def test_a_device_that_vanishes_costs_nothing_and_a_member_its_answer(protocol, phase):
    index = 40 + len(phase)
    members = play(protocol, index=index, before="share_key").server.committee
    other = next(id for id in range(DEVICES) if id not in members)
    played = play(protocol, dropouts={other: phase, members[0]: phase}, index=index)
    gone = {other, members[0]} if phase != "sum_shares" else set()
    played.goes_on([id for id in range(DEVICES) if id not in gone])


def test_with_too_few_answers_the_round_ends_and_nothing_is_known(protocol):
    members = play(protocol, index=50, before="share_key").server.committee
    gone = members[: len(members) - protocol.code.needed + 1]
    with pytest.raises(BelowThresholdError, match="added up the shares that they hold, at least"):
        play(protocol, dropouts=dict.fromkeys(gone, "sum_shares"), index=50)


def test_members_add_up_the_keys_of_enough_devices_once(protocol):
    played = play(protocol, index=60, before=("sum_shares", Pattern.BROADCAST))
    device = played.devices[played.server.committee[0]]
    few = raw(bits(range(10), DEVICES))
    error = played.refused(RefusedError, device.receive_sum_shares, few)
    assert "of 10 devices: 11 are needed" in str(error)
    device.receive_sum_shares(raw(bits(range(DEVICES), DEVICES)))
    again = raw(bits(range(DEVICES - 1), DEVICES))
    assert "a second request" in str(played.refused(RefusedError, device.receive_sum_shares, again))


@pytest.mark.parametrize(
    ("devices", "committee", "pieces", "private"),
    [(20, 10, 4, 2), (100, 37, 15, 10), (1000, 105, 42, 35)],
)
def test_sizes_are_those_that_the_formulas_give(devices, committee, pieces, private):
    protocol = Opa(Parameters(devices, 165_000, gamma=0.1, dropout=0.1, group="ring20", levels=1))
    code, packing = protocol.code, protocol.packing
    assert (committee, pieces, private) == (code.devices, code.pieces, code.private)
    assert (2, 20, 52) == (packing.values, packing.bits, packing.word_bits)
    assert 41 * 2048 * 13 // 2 == protocol.largest_message
    bits_of_key = 12 if devices == 20 else 16 if devices == 100 else 20
    assert bits_of_key == protocol.field.bits
    assert -(-bits_of_key * -(-2048 // pieces) // 8) + 16 == protocol.row_bytes


def test_the_sum_of_keys_is_exact_in_the_smallest_field():
    """Keys of the largest magnitude, of as many devices as the field has room for."""
    for devices in (2, 779, 780, 12_482):
        field = Opa(Parameters(devices, 10, levels=1)).field
        assert field.modulus > 84 * devices + 1
        largest = np.full(2, 42 * devices)
        assert (field.decode(field.reduce(-largest)) == -largest).all()


def test_costs_are_those_of_small_rounds_also_where_keys_need_a_larger_field():
    small, large = (terms(Opa(Parameters(devices, 100, levels=1))) for devices in (40, 1000))
    assert {party: {*known} for party, known in small.items()} == {
        party: {*known} for party, known in large.items()
    }


def test_mpi_cannot_sum_words_on_the_way():
    with pytest.raises(UsageError, match="opa cannot use --upload reduce"):
        build("opa", BenchOptions("opa", upload="reduce"), 10, 100)
