import json
import math
import re
from statistics import median

import numpy as np
import pytest

from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.algorithms.aggregation.costs import (
    CACHED,
    OPERATIONS,
    at,
    converted,
    masks,
    packed,
    received,
    sent,
    streamed,
    unpacked,
)
from hpcfl.algorithms.aggregation.work import cost_notes, costs_of
from hpcfl.algorithms.rotation import butterflies
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.loopback import Loopback
from hpcfl.costmodel import kernels, overheads
from hpcfl.costmodel.calibration import CACHED_BYTES, Calibration, PatternCost, default_path, load
from hpcfl.costmodel.model import EXTRAPOLATED, predict
from hpcfl.costmodel.network import Network
from hpcfl.costmodel.overheads import AROUND_AT_SERVER, OVERHEADS, overhead
from hpcfl.crypto import keys
from hpcfl.crypto.groups import FQ, GROUPS, STREAMS_AT_ONCE
from hpcfl.errors import HpcflError, UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.results.linkmodel import LinkModel
from hpcfl.rounds.build import build
from hpcfl.rounds.observer import Results
from hpcfl.rounds.timed import Played


def costs(**given):
    """Return samples in which every operation is free but those given."""
    return {name: [given.get(name, 0.0)] for name in (*OPERATIONS, *OVERHEADS)}


def built(protocol, devices, dim, **options):
    return Experiment.prepare(
        BenchOptions(protocol, dim=dim, rounds=3, warmup=0, **options), devices
    )


def played(experiment):
    rounds = Results[Played]()
    experiment.run(Loopback(experiment.devices, experiment.protocol.helpers), rounds)
    return rounds.records


def expected(experiment):
    return costs_of(experiment.protocol)


@pytest.fixture
def contexts(monkeypatch):
    """Return a list that fills with the contexts in which keys are derived."""
    derive, found = keys.derive, []

    def noted(secret, context, *length):
        found.append(context)
        return derive(secret, context, *length)

    monkeypatch.setattr(keys, "derive", noted)
    return found


@pytest.mark.parametrize(
    ("protocol", "devices", "dim", "options"),
    [
        ("fedavg", 7, 1000, {}),
        ("secagg", 9, 500, {}),
        ("secagg", 20, 333, {"dropout": 0.0}),
        ("secagg", 9, 501, {"bits": "12"}),
        ("cohort", 20, 1000, {"alpha": 0.2, "bits": "16"}),
        ("prf", 9, 501, {"bits": "20", "dropout": 0.0}),
        ("secagg", 21, 333, {"degree": 8, "dropout": 0.0}),
        ("secagg-graph", 60, 500, {"degree": 20, "dropout": 0.0}),
        ("cohort", 30, 3000, {"degree": 14, "alpha": 0.2, "dropout": 0.0}),
        ("common", 9, 500, {"alpha": 0.2}),
        ("prf", 8, 700, {"dropout": 0.0}),
        ("assisted", 9, 700, {"bits": "12", "helpers": 3}),
        ("assisted", 9, 700, {"helpers": 10, "helper_dropout": 3}),
        ("assisted", 9, 700, {"shared": True, "alpha": 0.3}),
        ("lightsecagg", 9, 700, {}),
        ("lightsecagg", 9, 701, {"bits": "12"}),
        ("committee", 16, 700, {"dropout": 0.0}),
        ("committee", 16, 701, {"dropout": 0.0, "bits": "8"}),
        ("lightsecagg", 12, 700, {"gamma": 0.3, "dropout": 0.0}),
    ],
)
def test_bytes_are_exact_where_nothing_is_left_to_chance(protocol, devices, dim, options):
    experiment = built(protocol, devices, dim, **options)
    records = played(experiment)

    for number, phase in enumerate(expected(experiment)):
        if phase.name == "advertise_keys" and protocol in ("assisted", "prf"):
            continue  # once, before the first round
        for record in records:
            up, down = record.bytes_up[number], record.bytes_down[number]
            ordinary = record.survived & ~record.in_committee
            assert set(up[ordinary].tolist()) == {phase.up}, phase.name
            assert set(down[ordinary].tolist()) == {phase.down}, phase.name
            if not record.in_committee.any():
                assert np.count_nonzero(up) == (phase.senders if phase.up else 0)
            members = {phase.up + phase.member_up}
            assert set(up[record.in_committee].tolist()) <= members, phase.name
            members = {phase.down + phase.member_down}
            assert set(down[record.in_committee].tolist()) <= members, phase.name
            for found, bytes_of_one in (
                (record.helper_bytes_up[number], phase.helper_up),
                (record.helper_bytes_down[number], phase.helper_down),
            ):
                assert set(found.tolist()) <= {0, bytes_of_one}
                moving = experiment.protocol.helpers_in_round if bytes_of_one else 0
                assert np.count_nonzero(found) == moving


def test_what_has_changed_of_the_model_is_predicted_from_the_second_round_on():
    experiment = built("common", 9, 500, alpha=0.2, model_update="changed", dropout=0.0)
    first, *later = (record.bytes_down[0].tolist() for record in played(experiment))
    down = expected(experiment)[0].down

    assert first == [16 + 4 * 500] * 9
    assert [16 + 4 * 100] * 9 == [down] * 9 == later[0] == later[1]
    assert "without the first round" in " ".join(cost_notes(experiment.protocol))


def test_the_bytes_of_a_ring_are_those_of_its_messages():
    # 30 devices, 14 neighbours and oneself, cohorts of 6, runs of 600; none drops out.
    experiment = built("cohort", 30, 3000, degree=14, alpha=0.2, dropout=0.0)
    phases = {phase.name: phase for phase in expected(experiment)}
    envelope, slots, row = 16, 2, 4 * (10 + 6) + 16

    assert phases["model"].down == envelope + 4 * 3000
    assert phases["advertise_keys"].up == envelope + 64
    assert phases["advertise_keys"].down == envelope + 16 + 4 + slots + 14 * (4 + 64)
    assert phases["share_keys"].routed == 14 * (envelope + row)
    assert phases["share_keys"].up == 14 * (envelope + row) + envelope + 15 * 8
    assert phases["share_keys"].down == 14 * (envelope + row) + envelope + 16
    assert phases["masked_input"].up == envelope + 4 * 600
    # How many survive, two bitmaps over the slots, and one of the 11 places around.
    assert phases["unmask"].down == envelope + 4 + 2 * slots + 2
    assert phases["unmask"].up == envelope + 15 * 6 * 4


@pytest.mark.parametrize(
    ("protocol", "devices", "dim", "options"),
    [
        ("sparse", 20, 20_000, {}),
        ("sparse", 20, 20_000, {"locations": "bitmap", "dropout": 0.1}),
        ("sparse", 12, 20_000, {"alpha": 0.9, "locations": "gaps"}),
        ("sparse", 30, 20_000, {"degree": 10, "alpha": 0.05}),
        ("cohort", 20, 9_999, {"alpha": 0.3}),
        ("cohort", 30, 10_000, {"degree": 14, "alpha": 0.2, "dropout": 0.1}),
        ("secagg-graph", 60, 500, {"degree": 20, "dropout": 0.1}),
    ],
)
def test_bytes_are_right_on_average_where_chance_decides(protocol, devices, dim, options):
    """What a device receives is exact, whoever drops out."""
    experiment = built(protocol, devices, dim, **options)
    records, phases = played(experiment), expected(experiment)
    for record in records:
        assert record.survived.all() == (options.get("dropout", 0.3) == 0)
        for number, phase in enumerate(phases):
            down = record.bytes_down[number][record.survived]
            assert set(down.tolist()) == {phase.down}, phase.name

    up = np.mean([record.bytes_up.sum(axis=0)[record.survived].mean() for record in records])
    # What sparse sends in three rounds spreads by up to 0.4 %, the rest by 0.01 %: more than six
    # standard deviations are allowed, which chance exceeds in fewer than one of 10^8 runs.
    spread = 0.025 if protocol == "sparse" else 0.001
    assert sum(phase.up for phase in phases) == pytest.approx(up, rel=spread)


def test_masks_of_a_dense_round_are_counted():
    # 10 devices, 3 of which drop out: 7 private masks and 3 * 7 pairs are taken off.
    experiment = built("secagg", 10, 1000)
    phases = {phase.name: phase for phase in expected(experiment)}

    assert phases["masked_input"].device["mask_word"] == 10 * 1000
    assert phases["unmask"].server["mask_word"] == pytest.approx((7 + 3 * 7) * 1000)
    assert phases["unmask"].server["agreement"] == pytest.approx(3 * 7 + 3)
    # To make two key pairs, too.
    assert phases["advertise_keys"].device["agreement"] == 2 + 9


@pytest.mark.parametrize(
    ("protocol", "devices", "options", "derived"),
    [
        # A device's private mask; of each pair its secret, and from that the keys of its uses.
        ("secagg", 9, {"dropout": 0.0}, 9 * (1 + 8)),
        ("secagg-graph", 30, {"degree": 12, "dropout": 0.0}, 30 * (1 + 12)),
        ("sparse", 9, {"dropout": 0.0}, 9 * (1 + 8 * 3)),
        ("sparse", 30, {"degree": 12, "dropout": 0.0}, 30 * (1 + 12 * 3)),
        # Of 14 neighbours 10 are in a cohort with a device.
        ("cohort", 30, {"degree": 14, "alpha": 0.2, "dropout": 0.0}, 30 * (1 + 10 * 2)),
        ("cohort", 30, {"degree": 4, "alpha": 0.2, "dropout": 0.0}, 30 * (1 + 4 * 2)),
        # With the server, who takes off the masks of three devices with seven.
        ("secagg", 10, {"dropout": 0.3}, 7 * (1 + 9) + 3 * 7),
        ("sparse", 10, {"dropout": 0.3}, 7 * (1 + 9 * 3) + 3 * 7 * 3),
    ],
)
def test_the_derivations_of_masks_are_counted(protocol, devices, options, derived, contexts):
    """Both by the model and in rounds: for every private mask the server derives the key again."""
    experiment = built(protocol, devices, 500, **options)
    records = played(experiment)
    of_masks = [one for one in contexts if re.search(rb" (private|additive|multiplic.*) mask", one)]
    phases = {phase.name: phase for phase in expected(experiment)}
    survivors = int(records[0].survived.sum())
    modelled = phases["masked_input"].device["derivation"] * survivors
    modelled += phases["unmask"].server["derivation"]

    derived += survivors
    assert 3 * derived == len(of_masks)
    assert derived == pytest.approx(modelled)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_runs_that_cohorts_have_in_common_are_counted(dropout, contexts):
    experiment = built("cohort", 30, 600, degree=14, alpha=0.2, dropout=dropout)
    records = played(experiment)
    looked_up = sum(b"of the run of" in context for context in contexts)
    phases = {phase.name: phase for phase in expected(experiment)}
    survivors = int(records[0].survived.sum())
    modelled = survivors * phases["masked_input"].device["common_run"]
    modelled += phases["unmask"].server["common_run"]

    assert phases["masked_input"].device["common_run"] == 10
    # Who drops out decides how many neighbours in a cohort survive.
    assert looked_up == pytest.approx(3 * modelled, rel=0.2 * dropout)


@pytest.mark.parametrize("devices", [4, 16])
def test_the_keys_of_a_committee_are_counted(devices, contexts):
    """A device agrees with the members, a member with all devices: none does both."""
    experiment = built("committee", devices, 500, dropout=0.0)
    members = int(played(experiment)[0].in_committee.sum())
    phase = next(phase for phase in expected(experiment) if phase.name == "advertise_keys")
    by_all = devices * phase.device["derivation"] + members * phase.member["derivation"]
    found = 3 * (members * (devices - 1) + (devices - members) * members)

    assert len(contexts) == found == 3 * by_all
    assert phase.device["agreement"] == 1 + members
    assert phase.member["agreement"] == phase.member["derivation"]


@pytest.mark.parametrize("degree", [None, 4])
def test_shares_and_their_checks_are_counted(degree):
    experiment = built("secagg", 10, 1000, degree=degree)
    phases = {phase.name: phase for phase in expected(experiment)}
    holders = 10 if degree is None else degree + 1

    assert phases["share_keys"].device["share"] == holders - 1
    assert phases["share_keys"].server["settled"] == 10 * holders
    assert phases["unmask"].server["settled"] == pytest.approx(7 * holders / 2)
    assert phases["share_keys"].server.get("ring") == (None if degree is None else 10)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_more_devices_and_longer_vectors_take_more(protocol):
    every = Calibration(costs() | {name: [1e-6] for name in OPERATIONS})
    dropout = {"dropout": 0.0} if protocol == "prf" else {}

    def seconds(devices, dim):
        found = predict(built(protocol, devices, dim, **dropout).protocol, every).measured_seconds
        assert found is not None
        return found

    assert seconds(30, 1000) < seconds(40, 1000) < seconds(40, 2000)


@pytest.mark.parametrize("alpha", [0.5, 1e-2])
def test_gaps_are_those_that_the_sampler_reads(alpha):
    protocol = built("sparse", 10, 1000, alpha=alpha, dropout=0.0).protocol
    upload = next(phase for phase in costs_of(protocol) if phase.name == "masked_input")

    assert upload.device["gap"] == 9 * protocol.sampler.words_for(1000)


def test_operations_beyond_the_cache_are_counted_apart():
    assert at("scattered", 10.0, 1000) == {"scattered": 10.0, "scattered_far": 0.0}
    found = at("scattered", 10.0, 4 * CACHED)
    assert found == pytest.approx({"scattered": 2.5, "scattered_far": 7.5})
    assert streamed(FQ, 10.0, 4 * CACHED) == pytest.approx({"mask_word": 10, "summed_far": 7.5})
    assert converted(4 * CACHED, 2.0) == {"converted": 2 * CACHED, "converted_far": 6 * CACHED}


def test_what_moves_and_masks_a_vector_is_counted():
    assert sent(10) == {"message": 1, "summed": 5, "summed_far": 0}
    assert received(None, 3, 10) == {"message": 6, "summed": 30, "summed_far": 0}
    assert masks(FQ, 3, 10) == {"mask_key": 3, "mask_word": 30, "masked": 10}
    # So many streams at a time: the sum is then an element again.
    assert masks(FQ, STREAMS_AT_ONCE + 1, 10)["masked"] == 20
    assert {} == packed(FQ, 10) == packed(GROUPS["ring16"], 10) == unpacked(FQ, 10)


def test_to_rotate_vectors_is_counted_on_both_sides():
    plain, rotated = (built("cohort", 20, 1000, rotate=rotate).protocol for rotate in (False, True))
    for before, after in zip(costs_of(plain), costs_of(rotated), strict=True):
        more = {"butterfly": butterflies(1000)}
        on_device = more if after.name == "masked_input" else {}
        at_server = more if after.name == "result" else {}
        assert after.device == before.device | on_device
        assert after.server == before.server | at_server


def test_in_a_ring_bytes_of_words_are_counted_and_what_is_packed():
    ring = GROUPS["ring12"]
    assert received(ring, 3, 10) == {"message": 6, "summed_byte": 60, "summed_byte_far": 0}
    assert masks(ring, 3, 10) == {"mask_key": 3, "mask_byte": 60}
    assert streamed(ring, 10.0, 10.0) == {"mask_byte": 20, "summed_byte_far": 0}
    assert packed(ring, 10) == {"packed_byte": 15}
    assert unpacked(ring, 10) == {"unpacked_byte": 15}


# Sums of counts, the first operation of the list once, the second twice, and so on.
COUNTED = [
    ("fedavg", {}, 1.173094600e07, 1.623982510e08),
    ("secagg", {}, 1.476213460e08, 1.089101402e09),
    ("secagg", {"degree": 6}, 4.810485800e07, 4.407282121e08),
    ("secagg-graph", {"degree": 8, "dropout": 0.1}, 5.675666600e07, 4.406002938e08),
    ("sparse", {"alpha": 0.2}, 2.235550011e07, 1.571624051e08),
    ("sparse", {"alpha": 0.2, "degree": 6, "dropout": 0.1}, 2.234291437e07, 1.823663968e08),
    ("cohort", {"alpha": 0.2}, 1.001919196e07, 1.371670133e08),
    ("cohort", {"alpha": 0.2, "degree": 14, "dropout": 0.1}, 9.990049960e06, 1.348817758e08),
    ("common", {"alpha": 0.2}, 3.185847467e07, 2.241567220e08),
    ("prf", {"dropout": 0.0}, 1.432620460e08, 2.456289890e08),
    ("lightsecagg", {}, 6.586764903e08, 4.134264763e08),
    ("committee", {}, 5.774042186e08, 1.485435496e08),
    ("assisted", {}, 2.647657000e07, 1.914962390e08),
]


@pytest.mark.parametrize(("protocol", "options", "device", "server"), COUNTED)
def test_a_round_takes_the_operations_that_it_took(protocol, options, device, server):
    """Of vectors of which a part does not fit the cache; a change here is to be meant."""
    each = Calibration({name: [number + 1.0] for number, name in enumerate(OPERATIONS)})
    phases = costs_of(built(protocol, 30, 3 * CACHED, **options).protocol)

    assert sum(each.seconds(phase.device) for phase in phases) == pytest.approx(device, rel=1e-9)
    assert sum(each.seconds(phase.server) for phase in phases) == pytest.approx(server, rel=1e-9)


def test_an_operation_that_is_not_measured_is_named():
    with pytest.raises(UsageError, match="the operation 'quantised', which is not measured; there"):
        Calibration(costs()).seconds({"quantised": 1.0})


def test_modelled_seconds_are_those_of_the_link_model():
    link = LinkModel(uplink_mbps=8, downlink_mbps=16, latency_ms=5)
    calibration = Calibration(costs(mask_word=2e-6, summed=3e-6, agreement=1e-4))
    experiment = built("secagg", 10, 1000)
    phases = expected(experiment)
    found = predict(experiment.protocol, calibration, link)

    for phase, one in zip(phases, found.phases, strict=True):
        device, server = calibration.seconds(phase.device), calibration.seconds(phase.server)
        same = link.phase_seconds(
            np.array([[phase.up]]),
            np.array([[phase.down]]),
            np.array([[phase.messages_up]]),
            np.array([[phase.messages_down]]),
            np.array([[device, server]]),
        )
        assert one.modelled_seconds == pytest.approx(float(same[0]))
        assert one.device_cpu_seconds == pytest.approx(device)
    assert sum(found.shares.values()) == pytest.approx(1)


def test_one_process_plays_the_devices_one_after_the_other():
    # Every conversion takes a second: two of each coordinate of 7 devices, one of the sum's.
    experiment = built("secagg", 10, 4)
    found = predict(experiment.protocol, Calibration(costs(converted=1.0)))

    assert found.measured_seconds == pytest.approx(7 * 2 * 4 + 4)


def test_ranks_share_the_devices_and_slow_each_other_down():
    calibration = Calibration(
        costs(converted=1.0),
        ranks=3,
        links=dict.fromkeys(("broadcast", "gather", "route"), PatternCost(0.5, 0.0, 0.0)),
        devices_slowdown=1.5,
    )
    experiment = built("secagg", 10, 4, dropout=0.0)
    found = predict(experiment.protocol, calibration, ranks=3)

    # Five devices a rank, four coordinates each, twice, and the server's four; model 1, keys 2,
    # shares 1, the challenge and its answers 2, upload 1, unmask 2.
    assert found.measured_seconds == pytest.approx(1.5 * 5 * 4 * 2 + 4 + 0.5 * 9)


@pytest.mark.parametrize("network", [None, Network()])
def test_what_is_around_each_device_is_shared_out_over_the_ranks_that_hold_them(network):
    """But for the server's part; what comes once in a round, every rank does at the same time."""
    free = dict.fromkeys(("broadcast", "gather", "route"), PatternCost(0.0, 0.0, 0.0))
    slow = (1.0, 1.0) if network else (3.0, 2.0)
    protocol = built("secagg", 12, 100).protocol

    def seconds(ranks, **known):
        calibration = Calibration(costs(**known), ranks, free, *slow)
        idle = Calibration(costs(), ranks, free, *slow)
        found, nothing = (
            predict(protocol, c, ranks=ranks, network=network).measured_seconds
            for c in (calibration, idle)
        )
        return found - nothing

    of_devices, of_server = slow[0] * (1 - AROUND_AT_SERVER), slow[1] * AROUND_AT_SERVER
    for ranks, most in ((3, 6), (5, 3), (13, 1), (20, 1)):
        assert seconds(ranks, around_secagg_each=1.0) == pytest.approx(
            of_devices * most + of_server * 12
        )
        assert seconds(ranks, around_secagg=1.0) == pytest.approx(slow[1])
        # Of 12 s less 6 s, as a line through few and many devices may say, 6 s are shared out.
        assert seconds(ranks, around_secagg_each=1.0, around_secagg=-6.0) == pytest.approx(
            (of_devices * most + of_server * 12) / 2
        )
    # One process does all of it.
    alone = predict(protocol, Calibration(costs(around_secagg_each=1.0))).measured_seconds
    assert alone == pytest.approx(12)


@pytest.mark.parametrize("network", [None, Network()])
def test_ranks_of_a_server_share_the_work_on_values(network):
    """Five uploads and the masks taken off the sum, but neither its decoding nor shares."""
    free = dict.fromkeys(("broadcast", "gather", "route"), PatternCost(0.0, 0.0, 0.0))
    experiment = built("secagg", 6, 10**5, dropout=0.2)

    def seconds(servers, **known):
        calibration = Calibration(costs(**known), servers + 1, free)
        found = predict(experiment.protocol, calibration, None, servers + 1, network, servers)
        return found.measured_seconds

    shared = [seconds(servers, summed=1.0, summed_far=1.0) for servers in (1, 2, 4)]
    by_server = sum(
        phase.server.get(name, 0.0)
        for phase in expected(experiment)
        for name in ("summed", "summed_far")
    )
    assert shared[0] - shared[1] == pytest.approx(by_server / 2)
    assert shared[0] - shared[2] == pytest.approx(by_server * 3 / 4)
    for name in ("converted", "share_product", "settled", "agreement"):
        one, two = (seconds(servers, **{name: 1.0}) for servers in (1, 2))
        assert one == pytest.approx(two, rel=1e-4)


def test_ranks_of_a_server_must_be_there_and_have_something_to_share():
    secagg = built("secagg", 6, 10**5, dropout=0.0).protocol
    with pytest.raises(UsageError, match="needs at least 3: 2 of the server, 1 of devices"):
        predict(secagg, Calibration(costs()), ranks=2, servers=2)
    with pytest.raises(UsageError, match="needs at least 4: 1 of the server, 2 helpers, 1 of dev"):
        predict(built("assisted", 6, 9, dropout=0.0).protocol, Calibration(costs()), ranks=3)
    with pytest.raises(UsageError, match="sparse cannot use --server-ranks"):
        predict(built("sparse", 6, 10**5).protocol, Calibration(costs()), ranks=9, servers=2)


def test_messages_take_their_bytes_and_the_server_is_slowed_down_too():
    betas = {"broadcast": 1.0, "gather": 1e3, "route": 1e6}
    links = {name: PatternCost(0.0, beta, 0.0) for name, beta in betas.items()}
    calibration = Calibration(costs(summed=1.0), 3, links, 1.0, 2.0)
    experiment = built("secagg", 10, 4, dropout=0.0)
    found = predict(experiment.protocol, calibration, ranks=3)
    phases = {phase.name: phase for phase in expected(experiment)}

    broadcast = sum(phases[name].down for name in ("model", "advertise_keys", "unmask"))
    gathered = 5 * sum(phases[name].up for name in ("advertise_keys", "masked_input", "unmask"))
    # A row of 16 limbs for each of the others; then 16 bytes, and two limbs for each of ten.
    routed = 5 * 9 * (16 + 4 * 16 + 16)
    broadcast += 16 + 16
    gathered += 5 * (16 + 10 * 8)
    assert found.measured_seconds == pytest.approx(
        broadcast + 1e3 * gathered + 1e6 * routed + 2 * 10 * 4
    )


def test_bytes_that_do_not_fit_the_cache_have_a_cost_of_their_own():
    link = PatternCost(2.0, 3.0, 5.0)

    assert link.seconds(10) == 32.0
    assert link.seconds(CACHED_BYTES + 10) == 2.0 + 3.0 * CACHED_BYTES + 50.0


def test_the_enrolment_of_prf_is_said_to_be_left_out():
    found = predict(built("prf", 5, 10, dropout=0.0).protocol, Calibration(costs()))

    assert any("enrolment" in note for note in found.notes)


def test_messages_to_helpers_and_their_answers_take_time_among_ranks():
    links = {name: PatternCost(0.5, 0.0, 0.0) for name in ("broadcast", "gather", "route")}
    experiment = built("assisted", 10, 4, dropout=0.0)
    found = predict(experiment.protocol, Calibration(costs(), 4, links), ranks=4)

    # The model, the upload, who survived, and the answers of both helpers together.
    assert found.measured_seconds == pytest.approx(4 * 0.5)


def test_rows_between_devices_of_one_process_take_their_bytes():
    # What a route takes without any is a part of the overhead.
    links = {"route": PatternCost(0.5, 1.0, 1.0)}
    experiment = built("secagg", 10, 4, dropout=0.0)
    found = predict(experiment.protocol, Calibration(costs(), 1, links))

    # Every device sends a row of 16 limbs to each of the others.
    assert found.measured_seconds == pytest.approx(10 * 9 * (16 + 4 * 16 + 16))


def test_ranks_that_were_not_calibrated_are_not_guessed():
    found = predict(built("secagg", 10, 4).protocol, Calibration(costs()), ranks=5)

    assert found.measured_seconds is None
    assert any("mpirun -n 5 hpcfl calibrate" in note for note in found.notes)


@pytest.mark.parametrize(
    ("protocol", "options"),
    [
        ("secagg-graph", {"degree": 200}),
        ("sparse", {"degree": 20}),
        ("cohort", {"degree": 20, "alpha": 0.01}),
    ],
)
def test_a_million_devices_with_a_billion_parameters_are_predicted(protocol, options):
    asked = BenchOptions(protocol, dim=10**9, **options)
    found = predict(build(protocol, asked, 10**6, 10**9)[0], Calibration(costs(mask_word=1e-9)))

    assert found.total("bytes_down") > 4e9
    assert math.isfinite(found.total("modelled_seconds"))
    assert any(note.startswith("extrapolated") for note in found.notes)


@pytest.mark.parametrize(("devices", "dim"), [(101, 10), (10, 2_000_001)])
def test_what_is_larger_than_what_the_model_was_checked_with_is_said(devices, dim):
    def notes(devices, dim):
        protocol, _ = build("fedavg", BenchOptions("fedavg"), devices, dim)
        return predict(protocol, Calibration(costs())).notes

    assert EXTRAPOLATED in notes(devices, dim)
    assert EXTRAPOLATED not in notes(100, 2_000_000)


def test_what_cannot_be_run_is_said():
    protocol, _ = build("secagg", BenchOptions("secagg"), 200_000, 10)
    notes = predict(protocol, Calibration(costs())).notes

    assert any("cannot be run" in note for note in notes)


@pytest.mark.parametrize("option", [{"sampler": "dense"}, {"security": "active"}])
def test_samplers_and_variants_without_a_model_are_refused(option):
    ((name, value),) = option.items()
    with pytest.raises(UsageError, match=f"no cost model of --{name} {value}"):
        costs_of(built("sparse", 10, 100, **option).protocol)


def test_every_operation_is_measured(monkeypatch):
    for name, value in (("DIM", 2000), ("FAR", 4000), ("LONG", 1 << 16), ("REPEATS", 2)):
        monkeypatch.setattr(kernels, name, value)

    def once(work, least=0.0):
        work()
        return [1e-6]

    monkeypatch.setattr(kernels, "cpu_seconds", once)
    samples = kernels.measure()

    assert set(samples) == set(OPERATIONS)
    assert all(math.isfinite(one) and one >= 0 for values in samples.values() for one in values)


def test_overheads_are_what_is_left_over_once_in_a_round_and_for_each_device(monkeypatch):
    """From rounds of few and of many devices; a third of them was disturbed."""

    def left_over(protocol, devices, costs):
        once, each, peers = costs["once"], 0.5, devices - 1
        return {
            "secagg": [
                {"device": one + each * peers, "server": 2 * (one + each * devices)}
                for one in (once, once, 99.0)
            ],
            # Its devices have no peers.
            "fedavg": [{"device": once + devices, "server": once}],
        }.get(protocol, [])

    monkeypatch.setattr(overheads, "_left_over", left_over)
    found = overheads.measure({"once": [1.0, 3.0, 3.0]})

    assert set(found) == set(OVERHEADS)
    once, each = found["device_secagg"], found["device_secagg_each"]
    assert each == pytest.approx([0.5])
    assert median(once) == pytest.approx(3.0)
    assert len(once) == 3 * overheads.PASSES  # disturbed ones are kept, and do not count
    assert median(found["server_secagg"]) == pytest.approx(6.0)
    assert found["server_secagg_each"] == pytest.approx([1.0])
    assert found["device_fedavg_each"] == [0.0]
    assert median(found["device_fedavg"]) == 3.0 + overheads.FEW
    # A party that takes no part, and a protocol that cannot be played, have none.
    assert found["helper_secagg"] == found["device_committee"] == [0.0]


def test_a_devices_overhead_grows_with_its_peers_and_not_with_the_round():
    """In a graph they hardly become more."""
    each = Calibration(costs(**{"device_secagg-graph_each": 1.0, "server_secagg-graph_each": 1.0}))
    for devices in (50, 500):
        found = predict(built("secagg-graph", devices, 100, degree=20).protocol, each)
        assert found.total("device_cpu_seconds") == pytest.approx(20)
        assert found.total("server_cpu_seconds") == pytest.approx(devices)


def test_every_protocol_is_played_for_what_operations_leave_over(monkeypatch):
    monkeypatch.setattr(overheads, "ROUNDS", 2)
    monkeypatch.setattr(overheads, "PASSES", 1)
    played = {}
    left_over = overheads._left_over

    def seen(protocol, devices, costs):
        played[protocol, devices] = left_over(protocol, devices, costs)
        return played[protocol, devices]

    monkeypatch.setattr(overheads, "_left_over", seen)
    overheads.measure({name: [0.0] for name in OPERATIONS})

    sizes = (overheads.FEW, overheads.MANY)
    assert set(played) == {(protocol, size) for protocol in PROTOCOLS for size in sizes}
    for (protocol, size), rounds in played.items():
        if not rounds:
            assert protocol == "ckks"  # its library may be missing
            continue
        parties = {"device", "server", "helper", "around"}
        has_committee = find(protocol).has_committee
        parties |= {"member"} if has_committee else set()
        complete = [one for one in rounds if "device" in one]
        assert all({*one} == parties for one in complete), (protocol, size)
        # Of few devices, all that are in no committee may drop out.
        assert complete == rounds or (has_committee and size == overheads.FEW)
        # Without operations, all that a party took is left over.
        assert all(one["device"] > 0 for one in complete)
        assert all(one["server"] > 0 for one in rounds)
        assert all((one["helper"] > 0) == (protocol == "assisted") for one in rounds)


def test_what_operations_account_for_is_taken_off_the_time_of_a_round(monkeypatch):
    monkeypatch.setattr(overheads, "ROUNDS", 2)

    def device(cost):
        found = overheads._left_over("secagg", overheads.FEW, dict.fromkeys(OPERATIONS, cost))
        return median(one["device"] for one in found)

    # A thousand seconds for each operation are more than there were.
    assert device(1e3) < -1e3 < 0 < device(0.0)


def test_what_members_and_helpers_take_beyond_operations_grows_with_the_number_of_devices():
    known = costs(member_committee=1.0, member_committee_each=0.01, helper_assisted=2.0)

    committee = predict(built("committee", 20, 100).protocol, Calibration(known))
    assisted = predict(built("assisted", 20, 100).protocol, Calibration(known))

    assert committee.total("member_cpu_seconds") == pytest.approx(1.2)
    assert committee.total("device_cpu_seconds") == 0
    assert assisted.total("helper_cpu_seconds") == pytest.approx(2.0)


@pytest.mark.parametrize(("protocol", "dim"), [("ckks", 5000), ("committee", 500)])
def test_members_are_predicted_to_work_in_every_phase_in_which_they_do(protocol, dim):
    """They are devices as well: where a device receives, encrypts or shares, so does a member."""
    if protocol == "ckks":
        pytest.importorskip("tenseal")
    experiment = built(protocol, 12, dim, dropout=0.0)
    record = played(experiment)[-1]  # without what comes before the first round
    each = Calibration({name: [1.0] for name in (*OPERATIONS, *OVERHEADS)})
    found = predict(experiment.protocol, each)

    member = record.cpu_seconds[:, :-1][:, record.in_committee].mean(axis=1)
    predicted = {phase.name for phase in found.phases if phase.member_cpu_seconds}
    assert predicted == {one.name for one, spent in zip(found.phases, member, strict=True) if spent}
    more = sum(each.seconds(phase.member) for phase in expected(experiment))
    more += each.seconds(overhead("member", protocol, 12))
    together = found.total("device_cpu_seconds") + more
    assert found.total("member_cpu_seconds") == pytest.approx(together)
    # Played in one process, what members do besides takes its time too.
    assert found.measured_seconds == pytest.approx(
        12 * found.total("device_cpu_seconds")
        + int(record.in_committee.sum()) * more
        + found.total("server_cpu_seconds")
        + sum(each.seconds(phase.around) for phase in expected(experiment))
        + each.seconds(overhead("around", protocol, 12))
    )


def test_what_a_member_of_ckks_sends_and_receives_is_predicted():
    """Ciphertexts are compressed, so that sizes differ by some bytes."""
    pytest.importorskip("tenseal")
    experiment = built("ckks", 12, 5000, dropout=0.25)
    for record in played(experiment)[1:]:
        ordinary = record.survived & ~record.in_committee
        for number, phase in enumerate(expected(experiment)):
            for way, member in (("up", phase.member_up), ("down", phase.member_down)):
                moved = getattr(record, f"bytes_{way}")[number]
                of_device = getattr(phase, way)
                assert moved[ordinary].mean() == pytest.approx(of_device, rel=1e-3), phase.name
                assert moved[record.in_committee].mean() == pytest.approx(
                    of_device + member, rel=1e-3
                ), phase.name


def test_a_protocol_that_is_newer_than_the_calibration_is_taken_for_its_nearest_relative(tmp_path):
    path = tmp_path / "c.json"
    older = {name: value for name, value in costs().items() if "_common" not in name}
    Calibration(older).save(path)
    notes = predict(built("common", 10, 100).protocol, load(path)).notes

    assert "Python's own work of common is taken to be that of secagg" in notes


def test_a_calibration_is_read_as_it_was_written(tmp_path):
    links = {name: PatternCost(1e-3, 2e-9, 3e-9) for name in ("broadcast", "gather", "route")}
    saved = Calibration(costs(gap=0.25), 3, links, 1.5, 1.25, {"a": 1})
    saved.save(tmp_path / "deep" / "c.json")

    assert load(tmp_path / "deep" / "c.json") == saved


@pytest.mark.parametrize(
    "change",
    [
        lambda content: "",
        lambda content: "[]",
        lambda content: json.dumps(content | {"format": "hpcfl-calibration/9"}),
        lambda content: json.dumps(content | {"links": {"gather": [1]}}),
        lambda content: json.dumps(content | {"cpu_seconds": {"agreement": [1.0]}}),
        lambda content: json.dumps(content | {"cpu_seconds": {"agreement": ["x"]}}),
    ],
)
def test_a_file_that_is_no_calibration_is_refused(tmp_path, change):
    path = tmp_path / "c.json"
    Calibration(costs()).save(path)
    path.write_text(change(json.loads(path.read_text())))

    with pytest.raises(HpcflError, match=r"c\.json") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_the_default_place_is_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert default_path().parent == tmp_path / "hpcfl"
    with pytest.raises(UsageError, match="hpcfl calibrate"):
        load(default_path())
