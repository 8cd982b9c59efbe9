"""What is advised does what was asked for, and costs least by prediction."""

import json

import pytest
from calibrations import flat
from commandline import hpcfl, told

from hpcfl.advice.advisor import TOLD_APART, advise
from hpcfl.advice.tables import command
from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.errors import UsageError
from hpcfl.options.advise import CRITERIA, AdviseOptions
from hpcfl.options.protocols import ProtocolOptions
from hpcfl.privacy.population import Population
from hpcfl.results import load

# As fast as no machine is, but every operation costs something.
KNOWN = flat()
ALL = {"helpers": 2, "alpha": 0.2}


def reasons(**options):
    refusals = advise(AdviseOptions(**options), KNOWN).refusals
    return {refusal.protocol: refusal.reason for refusal in refusals}


@pytest.mark.parametrize(
    "options",
    [
        {},
        ALL,
        {"security": "active"},
        {"alpha": 0.1, "devices": 1000},
        {"devices": 2, "dim": 1},
        {"devices": 10**6, "dim": 10**8},
        {"dropout": 0.0, "gamma": 0.0},
    ],
)
def test_every_protocol_is_either_a_choice_or_refused_in_a_sentence(options):
    advice = advise(AdviseOptions(**options), KNOWN)
    told = [*advice.choices, *advice.refusals]

    assert sorted(one.protocol for one in told) == sorted(PROTOCOLS)
    names = {choice.protocol for choice in advice.choices}
    assert ("assisted" in names) == ("helpers" in options)
    assert ("prf" in names) == (options.get("dropout") == 0)
    assert ("cohort" in names) == ("alpha" in options)
    assert options.get("security") != "active" or names == {"secagg"}
    assert all(refusal.reason for refusal in advice.refusals)
    json.dumps(advice.as_dict(), allow_nan=False)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_the_first_one_costs_least(criterion):
    advice = advise(AdviseOptions(criterion=criterion, **ALL), KNOWN)
    costs = [choice.cost(criterion) for choice in advice.choices]

    assert len(costs) > 5
    assert costs == sorted(costs)
    near = 1 if criterion == "upload" else TOLD_APART
    assert len(advice.as_good) == sum(cost <= near * costs[0] for cost in costs[1:])


def test_advice_for_a_population(tmp_path):
    KNOWN.save(tmp_path / "known.json")
    asked = ("--devices", 40, "--dim", 2000, "--calibration", tmp_path / "known.json")
    asked = (*asked, "--population", "iot", "--quorum", "4/5")
    advised = json.loads(hpcfl("advise", *asked, "--json").stdout)
    times = [one["costs"]["time"] for one in advised["qualify"]]

    assert times == sorted(times)
    assert advised["asked"]["dropout"] == 0.2
    assert advised["asked"]["population"] == "iot"
    refused = {one["protocol"]: one["reason"] for one in advised["do_not"]}
    assert "loses a round" in refused["prf"]
    words = " ".join(hpcfl("advise", *asked).stdout.split())
    assert "--population iot --quorum 0.8" in words
    assert "devices of the population iot, a quorum of 80 %, no deadline" in words
    best = advised["best"]
    (found,) = json.loads(hpcfl("predict", best, *asked, "--json").stdout)["predictions"]
    assert found["modelled_seconds"] > 2 * 4  # Latencies of iot devices are seconds.
    said = " ".join(hpcfl("predict", best, *asked).stdout.split())
    assert "devices of the population iot, a quorum of 80 %, no deadline" in said


def test_quorum_and_deadline_are_for_a_population():
    with pytest.raises(UsageError, match="for the devices of a --population"):
        advise(AdviseOptions(quorum=0.9), KNOWN)
    assert "population" not in advise(AdviseOptions(), KNOWN).as_dict()["asked"]


def test_costs_are_those_that_predict_prints(tmp_path, monkeypatch):
    KNOWN.save(tmp_path / "known.json")
    size = ("--devices", 60, "--dim", 3000, "--calibration", tmp_path / "known.json", "--json")
    advised = json.loads(hpcfl("advise", *size, "--helpers", 2, "--uplink-mbps", 7).stdout)

    assert {one["protocol"] for one in advised["qualify"]} >= {"secagg", "assisted", "lightsecagg"}
    for one in advised["qualify"]:
        options = [word for option in one["options"] for word in option.split()]
        typed = ("predict", one["protocol"], *size, *options, "--uplink-mbps", 7)
        (found,) = json.loads(hpcfl(*typed).stdout)["predictions"]
        for criterion, figure in CRITERIA.items():
            assert one["costs"][criterion] == pytest.approx(found[figure])


def test_what_is_advised_can_be_measured_and_hides_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = AdviseOptions(devices=12, dim=40, **ALL)
    choices = advise(asked, KNOWN).choices
    assert len(choices) > 5
    for choice in choices:
        words = command(choice, asked).split()[1:]
        told(*words, "--rounds", 1, "--warmup", 1, "--output", f"{choice.protocol}.h5")
        run = load(tmp_path / f"{choice.protocol}.h5")
        assert run.validated.all()
        # A committee's devices send more, and chance decides how many coordinates some do.
        if not find(choice.protocol).has_committee and choice.protocol != "sparse":
            sent = run.bytes_up[-1].sum(axis=0)[run.survived[-1]].mean()
            assert sent == pytest.approx(choice.cost("upload"), rel=0.01)


@pytest.mark.parametrize(
    ("options", "protocol", "reason"),
    [
        ({}, "fedavg", "learn 100 % of the values"),
        ({}, "cohort", "sends a part of the coordinates"),
        ({}, "prf", "loses a round in which any device drops out"),
        ({"security": "active"}, "secagg-graph", "no variant against a server that cheats"),
        ({"security": "active"}, "ckks", "no variant against a server that cheats"),
        ({"devices": 2}, "secagg-graph", "would link every device with all others"),
    ],
)
def test_why_a_protocol_does_not_qualify(options, protocol, reason):
    assert reason in reasons(**options)[protocol]


def test_with_one_helper_assisted_is_named_with_what_it_then_promises(tmp_path):
    KNOWN.save(tmp_path / "known.json")
    for helpers in (1, 2):
        advised = hpcfl(
            *("advise", "--devices", 20, "--helpers", helpers, "--helper-mbps", 0.1),
            *("--calibration", tmp_path / "known.json"),
        )
        words = " ".join(advised.stdout.split())
        assert "least time: assisted" not in words
        assert "not assisted" not in words
        alone = "assisted promises: as long as the helper does not collude with the server"
        assert (alone in words) == (helpers == 1)
        promising = [
            choice.protocol
            for choice in advise(AdviseOptions(devices=20, helpers=helpers), KNOWN).choices
            if choice.promises
        ]
        assert {"secagg", "lightsecagg"} <= {*promising}
        assert all(f"{name} promises: " in words for name in promising)


def test_a_server_that_cheats_leaves_out_as_many_honest_devices_as_it_may():
    active = {"security": "active", "alpha": 0.1}
    found = {one.protocol: one for one in advise(AdviseOptions(**active), KNOWN).choices}

    promised = "The set has at least 67 devices"
    assert any(promised in claim for claim in found["sparse"].promises)
    population = Population(100, 10, 0.33, "targeted")
    alone = find("sparse").masking(100, ProtocolOptions(alpha=0.1)).alone_of_sent(population)
    assert found["sparse"].exposed_alone == pytest.approx(alone)
    assert found["secagg"].exposed_alone == 0
    assert found["secagg"].exchanges == 4
