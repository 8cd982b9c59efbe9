"""A committee that adds up shares: exact sums, shares by an independent path, what is refused."""

import hashlib
import itertools
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st
from protocol_rounds import Header, bits, make, play, raw, sent_by_device, updates
from scipy import stats
from slow_reference import elements, hkdf

from hpcfl.algorithms.aggregation import committee
from hpcfl.algorithms.aggregation.committee import Committee
from hpcfl.algorithms.parameters import Parameters
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.loopback import Loopback
from hpcfl.comm.phases import Pattern, Role
from hpcfl.crypto.keys import agree
from hpcfl.errors import BelowThresholdError, MessageError, RefusedError, UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.results import load
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.summary import summarise
from hpcfl.rounds.observer import Results
from hpcfl.rounds.timed import Played as Timed

Q = 2**32 - 5
PHASES = ("advertise_keys", "share_input", "sum_shares")
DEVICES = 12


def shared(devices=DEVICES, dim=20, **options):
    return make("committee", devices, dim, **options)


# Exact sums


@given(data=st.data())
def test_the_sum_is_exact_whoever_drops_out_of_any_phase(data):
    devices, dim = data.draw(st.integers(2, 16)), data.draw(st.integers(1, 150))
    rate, gamma = (data.draw(st.sampled_from([0.0, 0.1, 0.2])) for _ in range(2))
    protocol = shared(devices, dim, dropout=rate, gamma=gamma, rotate=data.draw(st.booleans()))
    code = protocol.code
    # As many as may be missing of the committee, and no more than half of the devices.
    most = min(code.devices - code.needed, devices - protocol.parameters.threshold)
    ids = st.integers(0, devices - 1)
    gone = data.draw(st.lists(ids, unique=True, max_size=most))
    dropouts = {id: data.draw(st.sampled_from(PHASES)) for id in gone}

    played = play(protocol, dropouts=dropouts, index=data.draw(st.integers(0, 2**32 - 1)))

    played.goes_on()
    played.nobody_left()


def test_a_round_ends_with_a_sentence_where_too_few_members_are_left():
    protocol = shared(dropout=0.1)
    members = play(protocol, before="share_input").server.committee
    gone = members[: len(members) - protocol.code.needed + 1]
    for phase, what in (
        ("share_input", "hold shares"),
        ("sum_shares", "added up the shares that they hold"),
    ):
        with pytest.raises(BelowThresholdError, match=f"committee {what}, at least"):
            play(protocol, dropouts=dict.fromkeys(gone, phase))
    with pytest.raises(BelowThresholdError, match="members of the committee advertised keys"):
        play(protocol, dropouts=dict.fromkeys(gone, "advertise_keys"))


def test_a_round_ends_where_too_few_devices_are_in_the_sum():
    protocol = shared(dropout=0.1)
    members = play(protocol, before="share_input").server.committee
    # Of the members none but one is missing.
    gone = [*members[:1], *(id for id in range(DEVICES) if id not in members)]
    spare = [id for id in members[1:] if len(gone) < DEVICES - protocol.parameters.threshold + 1]
    gone = [*gone, *spare][: DEVICES - protocol.parameters.threshold + 1]
    with pytest.raises(BelowThresholdError, match="6 of 12 devices dealt pieces, at least 7"):
        play(protocol, dropouts=dict.fromkeys(gone, "share_input"))


# C, l and T


@pytest.mark.parametrize(
    ("devices", "gamma", "dropout"),
    [(100, 0.1, 0.3), (1000, 0.1, 0.1), (1000, 0.33, 0.0), (40, 0.0, 0.1), (300, 0.2, 0.2)],
)
def test_a_committee_is_private_and_decodable_by_the_tails_of_its_draw(devices, gamma, dropout):
    """SciPy's hypergeometric tails; one member more vanishes, and one answers falsely."""
    code = Committee(Parameters(devices, 10_000, gamma=gamma, dropout=dropout)).code
    colluding, dropped = int(gamma * devices), int(dropout * devices)
    members, private, needed = code.devices, code.private, code.needed

    assert members < devices
    assert stats.hypergeom.sf(private, devices, colluding, members) <= 2**-40
    assert private == 1 or stats.hypergeom.sf(private - 1, devices, colluding, members) > 2**-40
    spare = members - needed - 2
    assert stats.hypergeom.sf(spare, devices, dropped, members) <= 2**-20
    assert spare == 0 or stats.hypergeom.sf(spare - 1, devices, dropped, members) > 2**-20


def test_the_committee_is_the_smallest_that_costs_at_most_twice_what_all_would():
    plan = Parameters(100, 1000, gamma=0.1, dropout=0.1)
    protocol = Committee(plan)

    def expansion(members):
        code = committee.choose_code(plan, protocol.threat, members, protocol.field)
        return members / code.pieces if code else float("inf")

    chosen = protocol.code.devices
    assert expansion(chosen) <= 2 * expansion(100)
    assert all(expansion(fewer) > 2 * expansion(100) for fewer in range(2, chosen))


def test_a_committee_of_a_given_size():
    assert 60 == Committee(Parameters(100, 10, committee=60, gamma=0.1)).code.devices
    with pytest.raises(UsageError, match="--committee is 101, and there are 100 devices"):
        Committee(Parameters(100, 10, committee=101))
    with pytest.raises(UsageError, match=r"of 12 members more may collude .* raise --committee"):
        Committee(Parameters(100, 10, committee=12, gamma=0.3))


def test_where_more_may_collude_than_stay_the_protocol_refuses_to_be_run():
    with pytest.raises(UsageError, match="of all members more may collude than are sure to stay"):
        Committee(Parameters(40, 10, gamma=0.45, dropout=0.49, population=1000))


def test_the_committee_follows_from_a_nonce_and_is_any_set_equally_often():
    """The first different words of a keystream, by hand; chi-squared over all pairs of five."""
    from hpcfl.crypto import keystream

    nonce, index = bytes(range(16)), 3
    key = hashlib.sha256(b"hpcfl/1 committee round 3 members" + nonce).digest()[:16]
    stream = keystream.open_stream(key).update(bytes(8 * 200))
    words = [int.from_bytes(stream[k : k + 8], "little") % 30 for k in range(0, len(stream), 8)]
    first = [*dict.fromkeys(words)]
    assert sorted(first[:7]) == committee.drawn(30, 7, nonce, index)
    # Of 30, 20 are all but the first ten.
    assert sorted({*range(30)} - {*first[:10]}) == committee.drawn(30, 20, nonce, index)
    assert [*range(30)] == committee.drawn(30, 30, nonce, index)

    for size in (2, 3):
        counts = dict.fromkeys(itertools.combinations(range(5), size), 0)
        for trial in range(4000):
            counts[tuple(committee.drawn(5, size, trial.to_bytes(16, "little"), 0))] += 1
        # A right draw fails here once in a million times; the seeds are fixed.
        assert stats.chisquare(list(counts.values())).pvalue > 1e-6


# Messages


def slow_value(points, values, place):
    total = 0
    for x, value in zip(points, values, strict=True):
        up, down = value, 1
        for other in points:
            if other != x:
                up, down = up * (place - other) % Q, down * (x - other) % Q
        total += up * pow(down, -1, Q)
    return total % Q


def test_rows_are_the_sealed_shares_of_quantised_vectors():
    """From what the devices drew: keys, random pieces, packed sharing, AES-GCM."""
    devices, dim, index = 7, 11, 4
    played = play(shared(devices, dim, dropout=0.0, gamma=0.0, committee=5), index=index)
    code, members = played.protocol.code, played.server.committee
    needed, private, width = code.needed, code.private, code.width
    assert (5, 3, 1, 6) == (code.devices, needed, private, width)

    rows = {
        (message.header.sender, message.header.receiver): message.payload
        for message in played.messages("share_input", Pattern.ROUTE)
    }
    assert {*rows} == {(i, m) for i in range(devices) for m in members if i != m}
    for (i, member), row in rows.items():
        random = elements(played.sources[i].drawn[1], private * width, Q)
        vector = played.protocol.quantise(played.vectors[i], i, index) % Q
        words = [*vector.tolist(), *[0] * ((needed - private) * width - dim), *random]
        pieces = [words[k * width : (k + 1) * width] for k in range(needed)]
        points = range(code.devices + 1, code.devices + needed + 1)
        place = members.index(member) + 1
        share = [slow_value(points, column, place) for column in zip(*pieces, strict=True)]

        secret = agree(played.sources[i].drawn[0], [played.sent("advertise_keys")[member]])[0]
        name = f"hpcfl/1 committee round {index}"
        pair = f"{name} pair {min(i, member)} {max(i, member)} piece transport"
        nonce = i.to_bytes(4, "little") + member.to_bytes(4, "little") + bytes(4)
        content = np.array(share, "<u4").tobytes()
        sealed = AESGCM(hkdf(secret, pair)).encrypt(
            nonce, content, f"{name} from {i} to {member}".encode()
        )
        assert sealed == row


def test_messages_have_the_sizes_of_the_document():
    played = play(shared(dim=22, gamma=0.1, dropout=0.1))
    code, members = played.protocol.code, played.server.committee
    told = {
        (m.header.step, len(m.payload))
        for m in played.wire.messages
        if m.pattern is Pattern.BROADCAST
    }
    steps = {step.name: number for number, step in enumerate(played.protocol.steps)}

    assert {32} == {len(one) for one in played.sent("advertise_keys").values()}
    assert (2, 16 + 2 + 32 * code.devices) in told
    assert (steps["dealers_keys"], 32 * DEVICES) in told
    rows = played.messages("share_input", Pattern.ROUTE)
    assert {4 * code.width + 16} == {len(row.payload) for row in rows}
    assert code.devices * (DEVICES - 1) == len(rows)
    assert {bits(range(DEVICES), DEVICES)} == {*played.sent("held").values()}
    assert {*members} == {*played.sent("held")} == {*played.sent("sum_shares")}
    assert {4 * code.width} == {len(one) for one in played.sent("sum_shares").values()}


def test_only_members_are_told_whose_shares_to_add_up():
    record = play(shared()).record
    phases = Committee.phases()
    members = play(shared()).server.committee
    down = record.bytes_down[phases.index("sum_shares")]
    assert {*np.flatnonzero(down)} == {*members}


# Hostile devices, and messages that are none


def committee_of(protocol):
    return play(protocol, before="share_input").server.committee


def test_a_device_of_whose_shares_two_members_hold_none_is_left_out():
    protocol = shared(dropout=0.1)
    members = committee_of(protocol)

    def spoil(rows):
        rows[np.isin(Header.receivers_of(rows), members[:2]), -1] ^= 1
        return rows

    liar = next(id for id in range(DEVICES) if id not in members)
    played = play(protocol, change=sent_by_device(protocol, "share_input", liar, spoil))

    played.goes_on([id for id in range(DEVICES) if id != liar])
    assert {liar} == {*played.kept_out}
    assert "too many devices hold no share of it" in str(played.kept_out[liar])


def test_one_member_that_holds_no_share_of_a_device_leaves_the_sum_to_others():
    protocol = shared(dropout=0.1)
    members = committee_of(protocol)

    def spoil(rows):
        rows[Header.receivers_of(rows) == members[0], -1] ^= 1
        return rows

    liar = next(id for id in range(DEVICES) if id not in members)
    played = play(protocol, change=sent_by_device(protocol, "share_input", liar, spoil))

    played.goes_on(range(DEVICES))
    assert {members[0]} == {*played.left}
    assert f"it holds no share of device {liar}" in str(played.left[members[0]])


def test_one_member_that_says_it_holds_nothing_costs_nobody_anything():
    protocol = shared(dropout=0.1)
    member = committee_of(protocol)[3]
    change = sent_by_device(protocol, "held", member, lambda payload: payload * 0)
    played = play(protocol, change=change)
    played.goes_on(range(DEVICES))
    played.nobody_left()


def test_a_wrong_sum_of_shares_is_found_and_left_out_even_after_dropouts():
    protocol = shared(30, dropout=0.2)
    members = committee_of(protocol)
    code = protocol.code
    gone = dict.fromkeys(members[: code.devices - code.needed - 2], "sum_shares")

    def other_sum(payload):
        payload.view("<u4")[1] //= 2
        return payload

    change = sent_by_device(protocol, "sum_shares", members[-1], other_sum)
    played = play(protocol, dropouts=gone, change=change)

    played.goes_on(range(30))
    assert {members[-1]} == {*played.kept_out}


@pytest.mark.parametrize("step", ["held", "sum_shares"])
def test_a_message_counts_once_and_only_of_members(step):
    played = play(shared(), before=(step, Pattern.GATHER))
    members = played.server.committee
    send = getattr(played.devices[members[0]], f"send_{step}")
    sent, receive = send(), getattr(played.server, f"receive_{step}")
    receive(members[0], sent)
    twice = played.refused(MessageError, receive, members[0], sent)
    assert "received twice" in str(twice)
    other = next(id for id in range(DEVICES) if id not in members)
    error = played.refused(MessageError, receive, other, sent)
    assert "is not in the committee" in str(error)


def test_who_advertised_no_key_shares_nothing():
    """Its rows are nobody's, and it is out of the sum."""
    protocol = shared(dropout=0.1)
    members = committee_of(protocol)
    late = next(id for id in range(DEVICES) if id not in members)
    change = sent_by_device(protocol, "advertise_keys", late, lambda payload: payload[:-1])
    played = play(protocol, change=change)
    played.goes_on([id for id in range(DEVICES) if id != late])


# What devices refuse


def member_about_to_add_up(**options):
    played = play(shared(**options), before=("sum_shares", Pattern.BROADCAST))
    return played, played.devices[played.server.committee[0]]


def test_a_member_adds_up_shares_of_enough_devices_once():
    played, member = member_about_to_add_up()
    error = played.refused(RefusedError, member.receive_sum_shares, raw(bits(range(6), DEVICES)))
    assert "refuses to add up the shares of 6 devices: 7 are needed" in str(error)
    played.refused(RefusedError, member.send_sum_shares)

    member.receive_sum_shares(raw(bits(range(DEVICES), DEVICES)))
    for survivors in (range(DEVICES), range(11)):
        request = raw(bits(survivors, DEVICES))
        error = played.refused(RefusedError, member.receive_sum_shares, request)
        assert "refuses a second request to add up the shares" in str(error)


def test_a_device_shares_a_vector_once_a_round():
    played, member = member_about_to_add_up()
    vector = updates(played.protocol)[0]
    error = played.refused(RefusedError, member.send_share_input, vector)
    assert "refuses to share a vector twice" in str(error)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda told: told[:17], "17 bytes name no committee"),
        (lambda told: told[:-1], "bytes, expected"),
        (lambda told: np.concatenate([told[:16], raw(bits(range(1, 12), 12))]), "not received"),
        (lambda told: np.concatenate([told[:17], raw(b"\xff"), told[18:]]), "beyond the last, 11"),
        # Another committee has other members, of which too few advertised keys.
        (
            lambda told: np.concatenate([told[:16], raw(bits([0], 12)), told[18 : 18 + 32]]),
            "bytes, expected|devices: 7 are needed|members: ",
        ),
    ],
)
def test_a_committee_that_is_none_is_refused(change, words):
    played = play(shared(), before=("advertise_keys", Pattern.BROADCAST))
    told = played.server.send_advertise_keys()
    with pytest.raises((MessageError, RefusedError), match=words):
        played.devices[0].receive_advertise_keys(change(told))


@pytest.mark.parametrize("bad", [bytes(32), (2**255 - 19).to_bytes(32, "little")])
def test_a_key_with_which_nothing_can_be_agreed_costs_its_sender_alone(bad):
    protocol = shared(dropout=0.1)
    change = sent_by_device(protocol, "advertise_keys", 4, lambda payload: raw(bad).copy())
    play(protocol, change=change).goes_on([id for id in range(DEVICES) if id != 4])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"degree": 4}, "deals pieces to a committee, so --degree 4 has no effect"),
        ({"group": "ring32"}, "sums vectors in fq, or in fieldB of B bits, not in ring32"),
    ],
)
def test_options_that_it_has_no_use_for_are_refused(options, words):
    with pytest.raises(UsageError, match=words):
        Committee(Parameters(12, 10, **options))


# Figures of members are apart


def test_members_are_no_part_of_the_devices_figures(tmp_path):
    from hpcfl.api import bench

    bench("committee", devices=30, dim=50, rounds=3, warmup=0, output=tmp_path / "c.h5")
    stored = load(tmp_path / "c.h5")
    assert stored.validated.all()
    assert stored.in_committee.sum(axis=1).tolist() == [stored.config["committee"]] * 3
    # Another committee in each round.
    assert not (stored.in_committee[0] == stored.in_committee[1]).all()

    found = summarise(stored, LinkModel())
    member = stored.in_committee
    survived, sent = stored.survived, stored.bytes_up.sum(axis=1)
    assert found.total.bytes_up_mean == sent[survived & ~member].mean()
    assert found.total.member_bytes_up_mean == sent[survived & member].mean()
    cpu = stored.cpu_seconds[..., :-1].sum(axis=1)
    # Of those whose vectors are in the sum, as a device that drops out may be slow before.
    rounds = [*zip(cpu, member, survived, strict=True)]
    slowest = np.median([row[there & ~of].max() for row, of, there in rounds])
    assert found.total.device_cpu_seconds.median == slowest
    slowest = np.median([row[there & of].max() for row, of, there in rounds])
    assert found.total.member_cpu_seconds.median == slowest


def test_where_all_are_members_there_are_no_devices_figures(tmp_path):
    from hpcfl.api import bench

    given = {"devices": 8, "dim": 50, "rounds": 1, "warmup": 0, "committee": 8}
    bench("committee", output=tmp_path / "c.h5", **given)
    found = summarise(load(tmp_path / "c.h5"), LinkModel())
    assert found.total.bytes_up_mean is None
    assert np.isnan(found.total.device_cpu_seconds.median)
    assert found.total.member_bytes_up_mean > 0


@pytest.mark.parametrize("size", [8, 7])
def test_figures_are_drawn_of_rounds_with_no_or_one_device_that_is_in_no_committee(tmp_path, size):
    """With one, it drops out of some rounds: of these there is no figure, and it is not nothing."""
    pytest.importorskip("matplotlib")
    from hpcfl.api import bench
    from hpcfl.plots import chosen

    given = {"devices": 8, "dim": 50, "rounds": 12, "warmup": 0, "committee": size}
    # Another committee would have no such round in one case of thirty.
    bench("committee", insecure_seed=1, output=tmp_path / "c.h5", **given)
    bench("secagg", output=tmp_path / "s.h5", devices=8, dim=50, rounds=2, warmup=0)
    run, other = load(tmp_path / "c.h5"), load(tmp_path / "s.h5")

    lonely = ~(run.survived & run.ordinary).any(axis=1)
    assert lonely.any()
    assert lonely.tolist() == np.isnan(run.slowest_cpu_seconds("device")[:, -1]).tolist()
    assert lonely.tolist() == np.isnan(run.survivor_bytes()).tolist()
    for kind in ("ranks", "phases", "scaling", "tradeoff"):
        chosen(kind, {}).draw([run, other]).draw_without_rendering()


def test_of_a_round_of_some_devices_the_others_are_no_devices_of_it(tmp_path):
    """As in training with --per-round: who is not in a round has no figures in it."""
    from hpcfl.api import bench

    given = {"devices": 8, "dim": 50, "rounds": 3, "warmup": 0, "committee": 8}
    bench("committee", output=tmp_path / "c.h5", **given)
    run = load(tmp_path / "c.h5")
    more = {
        name: np.concatenate([getattr(run, name), np.zeros_like(getattr(run, name))], axis=-1)
        for name in (
            *("bytes_up", "bytes_down", "messages_up", "messages_down"),
            *("survived", "in_committee"),
        )
    }
    cpu, wall = (
        np.concatenate([one[..., :-1], np.zeros_like(one[..., :-1]), one[..., -1:]], axis=-1)
        for one in (run.cpu_seconds, run.wall_seconds)
    )
    found = summarise(replace(run, **more, cpu_seconds=cpu, wall_seconds=wall), LinkModel())
    assert found.total.bytes_up_mean is None
    assert np.isnan(found.total.device_cpu_seconds.median)


@pytest.mark.parametrize(
    ("protocol", "options", "words"),
    [
        ("committee", {"upload": "reduce"}, "its uploads are rows for other devices"),
        ("secagg", {"committee": 4}, "--committee is 4, and secagg has none: leave it out"),
    ],
)
def test_options_without_effect_are_refused(protocol, options, words):
    with pytest.raises(UsageError, match=words):
        Experiment.prepare(BenchOptions(protocol=protocol, **options), 10)


def test_shares_that_do_not_belong_together_end_the_round_or_cost_a_member():
    protocol = shared(dropout=0.1)
    members = committee_of(protocol)
    liar = next(id for id in range(DEVICES) if id not in members)

    def wrap(id, device):
        if id == liar:
            send = device.send_share_input

            def dealing(vector):
                receivers, rows = send(vector)
                device.state.dealt = False
                other, rows_of_other = send(vector * 0.5)
                assert receivers.tolist() == other.tolist()
                rows[:3] = rows_of_other[:3]
                return receivers, rows

            device.send_share_input = dealing
        return device

    with pytest.raises(BelowThresholdError, match="dealt pieces that do not belong together"):
        play(protocol, wrap=wrap)


def test_rounds_are_validated_and_a_committee_is_chosen_in_training_too():
    options = BenchOptions(protocol="committee", dim=300, dropout=0.2, rounds=2, warmup=0)
    experiment = Experiment.prepare(options, 24)
    rounds = Results[Timed]()
    experiment.run(Loopback(24), rounds)
    assert all(played.right for played in rounds.results)


def test_steps_name_the_committee():
    by_role = {step.name for step in Committee.steps if step.role is Role.COMMITTEE}
    assert by_role == {"dealers_keys", "held", "sum_shares"}
