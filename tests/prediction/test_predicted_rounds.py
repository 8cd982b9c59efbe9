"""Bytes are those of real rounds; CPU seconds follow from what was learned, term by term."""

import json
import math
from functools import partial

import numpy as np
import pytest
from calibrations import flat, kinds

from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.algorithms.aggregation.costs import exchanged
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.loopback import Loopback
from hpcfl.costmodel import learning
from hpcfl.costmodel.calibration import ONCE, Calibration, load
from hpcfl.costmodel.model import EXTRAPOLATED, predict, terms_of
from hpcfl.errors import HpcflError, UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.populations.population import COLUMNS, draw, save
from hpcfl.results.linkmodel import LinkModel
from hpcfl.rounds.build import build
from hpcfl.rounds.eventclock import EventClock
from hpcfl.rounds.observer import Results
from hpcfl.rounds.timed import Played

KNOWN = flat()
CHOICES = ("round", "run")


def built(protocol, devices, dim, **options):
    return Experiment.prepare(
        BenchOptions(protocol, dim=dim, rounds=3, warmup=0, **options), devices
    )


def protocol_of(name, devices, dim, **options):
    return build(name, BenchOptions(name, **options), devices, dim)[0]


@pytest.mark.parametrize(
    ("protocol", "devices", "dim", "options"),
    [
        ("sparse", 20, 20_000, {}),
        ("sparse", 20, 20_000, {"locations": "bitmap", "dropout": 0.1}),
        ("sparse", 30, 20_000, {"degree": 10, "alpha": 0.05}),
        ("cohort", 30, 10_000, {"degree": 14, "alpha": 0.2, "dropout": 0.1}),
        ("secagg-graph", 40, 500, {"degree": 12, "dropout": 0.1}),
        # Nothing is left to chance here.
        ("secagg", 9, 501, {"bits": "12"}),
        ("secagg", 21, 333, {"degree": 8, "dropout": 0.0}),
        ("lightsecagg", 12, 701, {"bits": "12", "gamma": 0.3, "dropout": 0.0}),
    ],
)
def test_bytes_are_right_on_average_where_chance_decides(protocol, devices, dim, options):
    """What a device receives is exact, whoever drops out."""
    experiment = built(protocol, devices, dim, **options)
    rounds, phases = Results[Played](), [*exchanged(experiment.protocol).values()]
    experiment.run(Loopback(devices), rounds)
    for record in rounds.records:
        assert record.survived.all() == (options.get("dropout", 0.3) == 0)
        for number, phase in enumerate(phases):
            down = record.bytes_down[number][record.survived]
            assert set(down.tolist()) == {phase.down}, phase.name

    up = np.mean([record.bytes_up.sum(axis=0)[record.survived].mean() for record in rounds.records])
    # What sparse sends in three rounds spreads by up to 0.4 %, the rest by 0.01 %: more than six
    # standard deviations are allowed, which chance exceeds in fewer than one of 10^8 runs.
    spread = 0.025 if protocol == "sparse" else 0.001
    assert sum(phase.up for phase in phases) == pytest.approx(up, rel=spread)


class Announced(Loopback):
    """Keeps the length of the longest message of each gather, and what was announced."""

    def gather(self, senders, produce, largest):
        messages = [(id, produce(id)) for id in senders]
        self.gathers.append((max((message.size for _, message in messages), default=0), largest))
        return iter(messages)


@pytest.mark.parametrize("name", ["secagg", "lightsecagg", "cohort"])
def test_no_reply_is_longer_than_is_announced(name):
    """Dimensions are large, so that an upload is longer than any reply."""
    experiment = built(name, 12, 20_000, **({"alpha": 0.5} if name == "cohort" else {}))
    transport = Announced(experiment.devices)
    transport.gathers = []
    experiment.run(transport, Results[Played]())
    upload = max(announced for _, announced in transport.gathers)
    replies = [one for one in transport.gathers if one[1] < upload]
    longest, announced = map(max, zip(*replies, strict=True))
    assert longest <= announced <= 2 * longest


def test_a_cohorts_masked_values_are_those_that_linked_devices_have_in_common():
    protocol = protocol_of("cohort", 40, 4000, alpha=0.25, degree=6, dropout=0.0)
    own = protocol.segments.length(0)
    others = [*range(1, 4), *range(37, 40)]
    common = sum(
        stop - start for one in others for _, start, stop in protocol.segments.common(0, one)
    )
    assert terms_of(protocol)["device"]["masked values"] == own + common


def test_a_server_unpacks_the_uploads_of_all_survivors():
    found = terms_of(protocol_of("secagg", 20, 1200, bits="12", dropout=0.1))
    assert found["server"]["packed bytes"] == 18 * 1200 * 1.5


def test_members_unpack_the_shares_of_all_survivors():
    protocol = protocol_of("committee", 20, 1200, bits="12", dropout=0.1)
    dealt = protocol.code.devices * protocol.code.width
    found = terms_of(protocol)
    assert found["device"]["packed bytes"] == dealt * 1.5
    assert found["member"]["packed bytes"] == (dealt + 18 * protocol.code.width) * 1.5


def test_keys_for_shares_are_agreed_on_once_a_run_or_in_every_round():
    runs = {each: terms_of(protocol_of("secagg", 20, 9, transport_keys=each)) for each in CHOICES}
    assert runs["round"]["device"] == runs["run"]["device"] | {"transport keys": 19}
    assert {*CHOICES} == {protocol.parameters.transport_keys for protocol in kinds("secagg")}
    once = predict(protocol_of("secagg", 20, 9, transport_keys="run"), KNOWN)
    assert "without the agreement on transport keys, once for each pair of devices" in once.notes


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_term_is_there_in_some_round_of_a_calibration(name):
    """A term that is 0 in all of them would be learned to cost nothing."""
    found = {}
    for protocol in kinds(name):
        for party, terms in terms_of(protocol).items():
            for term, count in terms.items():
                found.setdefault((party, term), []).append(count)
    assert found
    # What some protocols do not have, and sums in a ring that is as long as no calibration's.
    never = {"rows", "rows of dropped", "dropped", "helpers", "routed bytes"}
    rare = "received values, bytes, not cached"
    for (party, term), counts in found.items():
        assert all(count >= 0 and math.isfinite(count) for count in counts)
        if term != rare and (party != "around" or term.partition(",")[0] not in never):
            assert any(counts), (party, term)


def test_costs_are_those_that_explain_rounds():
    """Whatever they are: from rounds that take what the costs say, the costs come out."""
    costs = {"peers": 3e-5, "masked values": 5e-10, "values": 7e-9, ONCE: 4e-4}
    rounds = []
    for devices, dim in ((5, 100), (9, 40_000), (30, 7), (30, 90_000), (60, 1000), (12, 120_000)):
        protocol = protocol_of("secagg", devices, dim)
        terms = terms_of(protocol)["device"] | {ONCE: 1}
        seconds = sum(cost * terms[term] for term, cost in costs.items())
        rounds.append((protocol, {"device": seconds}))
    found, error = learning.fitted(rounds)

    assert error < 1e-9
    for term, cost in found["device"].items():
        assert cost == pytest.approx(costs.get(term, 0.0), rel=1e-6, abs=1e-12)


def test_a_calibration_knows_every_party_that_played(monkeypatch):
    monkeypatch.setattr(learning, "SIZES", ((8, 64, 0.25), (8, 64, 0.0), (12, 64, 0.3)))
    monkeypatch.setattr(learning, "VARIED_SIZES", ((8, 64, 0.25),))
    monkeypatch.setattr(learning, "LEAST_SECONDS", 0.0)
    names = ["assisted", "committee"]
    done = []
    found = learning.calibrate(names, done.append)

    assert done == names
    assert {*found.costs["assisted"]} == {"device", "server", "around", "helper"}
    assert {*found.costs["committee"]} >= {"server", "around", "member"}
    assert predict(protocol_of("assisted", 50, 1000), found).server_cpu_seconds > 0


def test_modelled_seconds_are_those_of_the_link_model():
    link = LinkModel(uplink_mbps=8.0, downlink_mbps=80.0, latency_ms=10.0)
    protocol = protocol_of("fedavg", 4, 1000)
    found = predict(protocol, KNOWN, link)
    size = 16 + 4 * 1000

    assert [phase.link_seconds for phase in found.phases] == pytest.approx(
        [size * 8 / 80e6 + 0.01, size * 8 / 8e6 + 0.01, 0.0]
    )
    computing = found.device_cpu_seconds + found.server_cpu_seconds
    assert found.modelled_seconds == pytest.approx(found.link_seconds + computing)
    low, high = found.modelled_within
    assert low == pytest.approx(found.link_seconds + 0.8 * computing)
    assert high == pytest.approx(found.link_seconds + 1.6 * computing)


def clock(devices=100, name="mobile", **waits):
    return EventClock(draw(name, devices, 0), LinkModel(), **waits)


@pytest.mark.parametrize("name", ["secagg", "assisted", "opa", "committee", "flamingo", "prf"])
def test_devices_that_are_alike_take_what_they_take_without_a_population(name):
    protocol = protocol_of(name, 40, 3000, dropout=0.0)
    alone, alike = predict(protocol, KNOWN), predict(protocol, KNOWN, None, clock(40, "uniform"))

    # Members and other devices wait for each other in phases, but not on the clock.
    equal = partial(pytest.approx, rel=0.03 if find(name).has_committee else 1e-9)
    assert alike.link_seconds == equal(alone.link_seconds)
    assert alike.modelled_seconds == equal(alone.modelled_seconds)
    assert alike.modelled_within == equal(alone.modelled_within)


@pytest.mark.parametrize(("name", "devices"), [("fedavg", 12), ("secagg", 16), ("assisted", 15)])
def test_the_clock_shows_what_it_shows_in_real_rounds(name, devices, tmp_path):
    """On devices that compute in no time, so that only the server's computing is measured."""
    known = draw("mobile", devices, 3)
    columns = {column: getattr(known, column) for column in COLUMNS}
    save(tmp_path / "quick.csv", columns | {"compute": [1e-9] * devices})
    waits = {"population": str(tmp_path / "quick.csv"), "quorum": 0.75, "dropout": 0.25}
    experiment = built(name, devices, 2000, **waits)
    rounds = Results[Played]()
    experiment.run(Loopback(experiment.devices, experiment.protocol.helpers), rounds)
    found = predict(experiment.protocol, KNOWN, None, experiment.clock)

    for record in rounds.records:
        computed = record.cpu_seconds[:, -1].sum() + record.helper_cpu_seconds.max(initial=0.0)
        links = record.event_seconds.sum() - computed
        # Late devices' rows are not there to be received, and the formula counts them.
        assert links == pytest.approx(found.link_seconds, rel=0.03)
        assert f"{record.survived.sum()} of {devices} devices are in the sum" in found.notes


def test_a_quorum_shortens_a_round_and_a_deadline_bounds_it():
    secagg = protocol_of("secagg", 100, 50_000, dropout=0.2)
    everybody, most = (predict(secagg, KNOWN, None, clock(quorum=one)) for one in (1.0, 0.8))
    hasty = predict(secagg, KNOWN, None, clock(deadline_seconds=1.0))

    assert most.modelled_seconds < everybody.modelled_seconds
    assert not any("in the sum" in note for note in everybody.notes)
    assert "80 of 100 devices are in the sum" in most.notes
    # They left before they shared keys, so that their masks need not be removed.
    assert most.server_cpu_seconds < predict(secagg, KNOWN).server_cpu_seconds / 2
    assert any("in the sum" in note for note in hasty.notes)
    # Four exchanges.
    assert hasty.modelled_seconds <= 4 * 1.0 + hasty.server_cpu_seconds
    least, greatest = most.modelled_within
    assert most.link_seconds < least < most.modelled_seconds < greatest
    with pytest.raises(UsageError, match="42 devices answer in advertise_keys, and it needs 51"):
        predict(secagg, KNOWN, None, clock(deadline_seconds=0.1))


def test_one_process_plays_all_parties_one_after_the_other_members_of_a_committee_too():
    helped = protocol_of("assisted", 10, 1000, dropout=0.3)
    found = predict(helped, KNOWN)
    around = KNOWN.seconds(helped, "around", terms_of(helped)["around"])
    parties = 7 * found.device_cpu_seconds + 2 * found.helper_cpu_seconds + found.server_cpu_seconds
    assert found.measured_seconds == pytest.approx(parties + around)

    found = predict(protocol_of("committee", 100, 5000, committee=60), KNOWN)
    assert found.member_cpu_seconds > found.device_cpu_seconds
    assert found.computing_seconds == found.member_cpu_seconds + found.server_cpu_seconds
    mean = (60 * found.member_cpu_seconds + 40 * found.device_cpu_seconds) / 100
    assert found.mean_cpu_seconds == pytest.approx(mean)


@pytest.mark.parametrize(
    ("protocol", "options"),
    [("secagg-graph", {}), ("cohort", {"alpha": 1e-4}), ("fedavg", {})],
)
def test_a_million_devices_with_a_billion_parameters_are_predicted(protocol, options):
    found = predict(protocol_of(protocol, 10**6, 10**9, **options), KNOWN)
    assert EXTRAPOLATED in found.notes
    json.dumps(found.as_dict(), allow_nan=False)


def test_a_calibration_is_read_as_it_was_written(tmp_path):
    KNOWN.save(tmp_path / "known.json")
    assert load(tmp_path / "known.json") == KNOWN
    for content in ("", "[]", '{"format": "hpcfl-calibration/7"}'):
        (tmp_path / "known.json").write_text(content)
        with pytest.raises(HpcflError, match="hpcfl calibrate"):
            load(tmp_path / "known.json")


@pytest.mark.parametrize(
    ("options", "calibration", "sentence"),
    [
        ({"security": "active"}, KNOWN, "--security active"),
        ({}, Calibration({"fedavg": {}}), "secagg is not calibrated"),
        (
            {},
            Calibration({"secagg": {"device": {ONCE: 1.0}}}),
            "the cost of peers in secagg is unknown",
        ),
    ],
)
def test_what_has_no_model_or_is_not_calibrated_is_named(options, calibration, sentence):
    with pytest.raises(UsageError, match=sentence):
        predict(protocol_of("secagg", 10, 100, **options), calibration)
