"""The study's figures are those of rounds that were run, and its sentences those of its figures."""

import json
import math
import operator
import re
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import pytest
from commandline import hpcfl, refusal

from hpcfl.algorithms.aggregation import PROTOCOLS
from hpcfl.algorithms.aggregation.costs import OPERATIONS
from hpcfl.benchmark import experiment
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.world import connect
from hpcfl.costmodel.calibration import Calibration
from hpcfl.costmodel.overheads import OVERHEADS
from hpcfl.errors import UsageError
from hpcfl.options.training import TrainOptions
from hpcfl.reproduce.artefact import Context, Result
from hpcfl.reproduce.store import Store
from hpcfl.reproduce.study import artefacts, costs, findings, page, privacy, training
from hpcfl.reproduce.study.found import Costs, Estimate, Missing, mean_of
from hpcfl.training.build import planned_algorithm

ROOT = Path(__file__).parents[2]
KNOWN = Calibration({name: [1e-8] for name in (*OPERATIONS, *OVERHEADS)})
COSTED = [one for one in artefacts.ARTEFACTS if one.run is costs.run]
TINY = {"devices": 6, "dim": 40, "dropout": 0.2}


@pytest.fixture
def context(monkeypatch):
    monkeypatch.setattr(costs, "_calibration", lambda world: KNOWN)
    return Context(connect(), None)


@pytest.mark.parametrize("artefact", COSTED, ids=lambda one: one.id)
def test_every_setting_gives_only_options_that_its_protocol_has_a_use_for(artefact):
    """`asked` refuses an option without effect; what a protocol itself refuses is told."""
    for setting in artefact.scales["paper"].settings:
        asked = experiment.asked(costs._given(setting)[0])
        assert asked.devices == (setting["devices"],)


def test_a_setting_is_measured_where_that_is_short_and_predicted_otherwise(context, monkeypatch):
    setting = {"protocol": "secagg", **TINY}
    measured = costs.run(setting, context)
    monkeypatch.setattr(costs, "MOST_SECONDS", 0.0)
    predicted = costs.run(setting, context)

    assert measured["state"] == costs.MEASURED
    assert predicted["state"] == costs.PREDICTED
    # Bytes are known beforehand.
    assert measured["bytes_up"] == predicted["bytes_up"]
    assert measured["bytes_down"] == pytest.approx(predicted["bytes_down"], rel=0.05)
    median, low, high = measured["device_cpu_seconds"]
    assert 0 < low <= median <= high
    assert len(predicted["device_cpu_seconds"]) == 1
    slow, *_, fast = (one[0] for one in measured["modelled_seconds"].values())
    assert slow > fast
    json.dumps([measured, predicted], allow_nan=False)


def test_what_a_protocol_refuses_is_told_and_left_out(context):
    found = costs.run(
        {"protocol": "secagg-graph", "devices": 25, "dim": 40, "dropout": 0.3}, context
    )

    assert found["state"] == costs.REFUSED
    assert "every device with all others" in found["why"]
    with pytest.raises(Missing):
        Costs([Result({"protocol": "secagg", **costs.BASE}, found)]).at("secagg")


def test_an_epsilon_takes_the_fewest_bits_that_have_room_for_its_noise(context):
    sizes = {"devices": 20, "dim": 1_000, "dropout": 0.1}
    found = costs.run({"protocol": "secagg", **sizes, "epsilon": 2.0}, context)
    central = costs.run({"protocol": "fedavg", **sizes, "epsilon": 2.0}, context)
    coded = costs.run({"protocol": "lightsecagg", **sizes, "epsilon": 2.0}, context)

    bits = int(found["bits"])
    asked = TrainOptions(
        "dp-fedavg", aggregate="secagg", rounds=20, dropout=0.1, epsilon=2.0, noise="distributed"
    )

    def noise(bits):
        return planned_algorithm(replace(asked, bits=f"{bits}"), 20, 1_000).noise_in_sum

    assert found["noise_in_sum"] == pytest.approx(noise(bits), rel=1e-3)
    assert found["noise_in_sum"] <= 1.05 * noise(32) < noise(bits - 4)
    whole = costs.run({"protocol": "secagg", **sizes}, context)
    assert whole["bytes_up"] - found["bytes_up"] == 1_000 * (32 - bits) // 8
    assert "bits" not in central
    assert coded["bits"] == found["bits"]
    # Balle and Wang (2018), Theorem 8, with the sensitivity of 20 rounds.
    for one in (found, central, coded):
        moved = math.sqrt(20) / one["noise_multiplier"]
        above, below = (NormalDist().cdf(side * moved / 2 - 2.0 / moved) for side in (1, -1))
        assert above - math.exp(2.0) * below == pytest.approx(1e-5, rel=0.02)


def test_devices_of_a_committee_and_helpers_have_figures_of_their_own(context):
    sizes = {"devices": 20, "dim": 40, "dropout": 0.1}

    members = costs.run({"protocol": "committee", **sizes}, context)
    helpers = costs.run({"protocol": "assisted", **sizes}, context)

    assert "member_cpu_seconds" in members
    assert "helper_cpu_seconds" not in members
    assert "helper_cpu_seconds" in helpers


def test_the_interval_of_a_ratio_holds_both_intervals():
    found = Costs(
        [
            Result({"protocol": "secagg", **costs.BASE}, _round(2.0, 1.9, 2.2)),
            Result({"protocol": "secagg-graph", **costs.BASE}, _round(4.0, 3.8, 4.4)),
        ]
    )

    ratio = found.ratio("device_cpu_seconds", ("secagg-graph", {}), ("secagg", {}))

    assert ratio == Estimate(2.0, 3.8 / 2.2, 4.4 / 1.9)


def test_a_mean_has_students_interval():
    # NIST/SEMATECH e-Handbook, 1.3.5.2: mean plus or minus t(0.975, n - 1) s / sqrt(n).
    found = mean_of([9.0, 10.0, 11.0])

    assert found.value == 10.0
    assert found.high - 10.0 == pytest.approx(4.302653 / 3**0.5, rel=1e-6)
    with pytest.raises(Missing):
        mean_of([1.0])


def _round(median, low, high, sent=1000, **more):
    return {
        "state": costs.MEASURED,
        "bytes_up": sent,
        "bytes_down": sent,
        "device_cpu_seconds": [median, low, high],
        "server_cpu_seconds": [median, low, high],
        "modelled_seconds": {f"{rate}": [median, low, high] for rate in costs.UPLINKS},
        "exposed_alone": 0.0,
        **more,
    }


def _all_costs(sent):
    """Return results of every setting: figures that are invented, but for the bytes."""
    settings = {
        json.dumps(setting, sort_keys=True): setting
        for artefact in COSTED
        for setting in artefact.scales["paper"].settings
    }

    def taken(protocol):
        multiple = {"fedavg": 1.0, "cohort": 2.0}.get(protocol, 1.1)
        return {"noise_multiplier": 3.0, "noise_in_sum": 3.0 * multiple, "bits": "16"}

    return [
        Result(
            setting,
            _round(
                1.0,
                0.9,
                1.1,
                sent(setting["protocol"]),
                **taken(setting["protocol"]) if "epsilon" in setting else {},
            ),
        )
        for setting in settings.values()
    ]


def _trained(way, seed, rounds, reached=True):
    task = training.TASKS[0]
    return Result(
        {"protocol": way, "seed": seed, "target": task.target},
        {
            "rounds": rounds,
            "reached": reached,
            "bytes_up_total": 10**6 * rounds,
            "accuracy": [0.5] * rounds,
            "modelled_seconds": 5.0 * rounds,
            "modelled_seconds_of_training": (4.0 if way == "secagg" else 4.5) * rounds,
        },
    )


def test_sentences_say_what_was_found_and_nothing_of_what_was_not():
    rounds = Costs(_all_costs(lambda name: 8_000 if name == "secagg" else 1_000))
    before = findings.Evidence(rounds, {}, [], [])
    trained = {
        "training-2nn-iid": [
            _trained(way, seed, 10 + seed + 3 * (way == "sparse"))
            for way in training.WAYS
            for seed in range(3)
        ]
    }
    linked = [
        Result(
            {"protocol": name, "rate_mbps": 10},
            {
                "state": costs.MEASURED,
                "round_seconds": [took, 1.0, 4.0],
                "modelled_seconds": [1.0, 1.0, 1.0],
            },
        )
        for name, took in (("secagg", 1.5), ("sparse", 2.0), ("common", 3.0))
    ]
    after = findings.Evidence(rounds, trained, [], linked)

    told = {finding.title: finding.says for finding in findings.findings(after)}

    title = "With a tenth of the coordinates, SparseSecAgg sends 8.0 times less than SecAgg; where "
    sent = told[f"{title}vectors have 10,000 coordinates, 8.0 (N = 25) to 8.00 times (N = 10,000)"]
    assert "8.00 (N = 25), 8.00 (N = 50), " in sent
    title = "With 16 bits a value, SecAgg sends 1.00 times fewer bytes, and computes 1.00 times as"
    (narrow,) = [says for name, says in told.items() if name.startswith(title)]
    assert "with 16 bits 1 [0.818, 1.22] times, with 20 bits 1 [" in narrow
    settings = {finding.title: finding.where for finding in findings.findings(after)}
    assert all(
        re.match(r"(N =|d =|MNIST, the CNN with a tenth of it, N =) [\d,]+", where)
        for where in settings.values()
    )
    title = "For an epsilon of 1 to 8 SecAgg takes 16 bits a value, and 1.10 times the noise of a"
    noise = told[f"{title} trusted server"]
    assert "`secagg` 0.008 MB (16 bits); " in noise
    assert "adds to a sum is 3, 3, 3 and 3 times the norm to which updates are clipped" in noise
    assert "`secagg-graph` 1.10; `cohort` 2.00; " in noise
    title = "What a tenth of the coordinates costs in rounds to an accuracy"
    assert "`sparse` +3.0 with every seed" in told[title]
    assert title not in {one.title for one in findings.findings(before)}
    mean, least, most = mean_of([10 / 13, 11 / 14, 12 / 15])
    title = (
        f"Until an accuracy is reached, SparseSecAgg sends {least:.1f} to {most:.1f} times less "
    )
    fewer = told[f"{title}than SecAgg"]
    assert f"`sparse` {mean:.3g} [{least:.3g}, {most:.3g}]" in fewer
    assert "`common` 1 times less with every seed" in fewer
    _, least, most = mean_of([13 / 20, 14 / 22, 15 / 24])
    title = f"Until an accuracy is reached, SparseSecAgg takes {least:.2f} to {most:.2f} times as "
    assert (
        "`common` 0.5 times as long with every seed"
        in told[f"{title}long as SecAgg, training left out"]
    )
    title = "At 10 Mbit/s, rounds on real links take 2.00 times what is modelled"
    assert "10 Mbit/s 2.00 (1.50 to 3.00)" in told[title]
    assert findings.missing(before) == findings.missing(after) + 4


def test_a_trusted_servers_noise_is_measured_and_told_beside_the_rest_of_its_round(context):
    settings = privacy.central_settings()
    small = {**settings[0], "devices": 3, "dim": 2_000}
    found = privacy.central_noise(small, context)

    assert [one["dim"] for one in settings] == [*costs.DIMS]
    for name in ("noise_cpu_seconds", "server_cpu_seconds"):
        median, low, high = found[name]
        assert 0 < low <= median <= high < 1
    figures = {"noise_cpu_seconds": [3.0, 2.0, 4.0], "server_cpu_seconds": [6.0, 5.0, 8.0]}
    rounds = Costs(_all_costs(lambda name: 1_000))
    accuracies = [
        Result(one, {"last_accuracy": [0.8, 0.81]}) for one in privacy.training_settings()
    ]
    central = [Result(settings[0], figures)]
    for of_server, told in ((central, True), ([], False)):
        evidence = findings.Evidence(rounds, {}, accuracies, [], of_server)
        (says,) = (
            one for one in findings.findings(evidence) if "devices add themselves" in one.title
        )
        sentence = "draws its noise in 0.5 [0.25, 0.8] (d = 10,000) times the CPU seconds"
        assert (sentence in says.says) == told
        assert ("central-noise" in says.parts) == told


@pytest.mark.parametrize("commit", [page._COUNTED_ONE_BY_ONE, "another"])
def test_what_an_earlier_count_predicted_is_marked(tmp_path, commit):
    store = Store(tmp_path, "study")
    (links,) = (one for one in artefacts.ARTEFACTS if one.id == "study/links")
    for setting in links.scales["paper"].settings:
        found = {**_round(1.0, 1.0, 1.0), "state": costs.PREDICTED}
        store.add(setting, found, {"git_commit": commit})

    tables = {part.artefact.id: part.table for part in page._parts(store)}

    marked = any("are of an earlier version" in note for note in tables["study/links"].notes)
    assert marked == (commit == page._COUNTED_ONE_BY_ONE)


def test_runs_that_did_not_reach_the_accuracy_are_no_rounds_to_it():
    found = [
        *(_trained("secagg", seed, 10) for seed in range(3)),
        *(_trained("sparse", seed, 12, reached=seed != 2) for seed in range(3)),
    ]

    more = findings.paired(found, "sparse", lambda one: one.found["rounds"], operator.sub)

    assert more == Estimate(2.0, 2.0, 2.0)


@pytest.mark.parametrize(("later", "told"), [(1, True), (5, False)])
def test_rounds_are_said_to_be_the_same_only_where_no_seeds_tell_them_apart(later, told):
    """Whole vectors take 10 to 12 rounds, the others one less or so many more, by seed."""
    trained = [
        _trained(way, seed, 10 + seed + (0 if way == "secagg" else (-1, later, later)[seed]))
        for way in training.WAYS
        for seed in range(3)
    ]
    if not told:
        trained = [one for one in trained if one.setting["seed"]]
    rounds = Costs(_all_costs(lambda name: 1_000))
    evidence = findings.Evidence(rounds, {"training-2nn-iid": trained}, [], [])

    title = "A tenth of the coordinates costs no rounds that seeds can tell"
    assert told == (title in {one.title for one in findings.findings(evidence)})


def test_the_parts_that_a_finding_names_suffice_for_it(tmp_path):
    """What "Run it" runs gives the sentence, and no part is run for nothing."""
    kept = Store(ROOT / "results" / "reproduction", "study")
    by_name = {one.id.partition("/")[2]: one for one in artefacts.ARTEFACTS}
    told = findings.findings(page._evidence([*page._parts(kept)]))

    def said_by(parts):
        store = Store(tmp_path / "-".join(parts), "study")
        for part in parts:
            for one in kept.results(by_name[part])[1]:
                store.add(one.setting, one.found, {})
        return findings.findings(page._evidence([*page._parts(store)]))

    assert len(told) == len(findings._FINDINGS)
    for finding in told:
        assert finding.command.startswith(f"hpcfl reproduce study/{finding.parts[0]}")
        assert ("--data-dir" in finding.command) == any(
            by_name[part].needs("paper") for part in finding.parts
        )
        assert finding in said_by(finding.parts)
        for part in finding.parts if len(finding.parts) > 1 else ():
            assert finding not in said_by([one for one in finding.parts if one != part])


def test_the_page_holds_every_part_that_was_run(tmp_path):
    store = Store(tmp_path, "study")
    for one in _all_costs(lambda name: 8_000 if name == "secagg" else 1_000):
        store.add(one.setting, one.found, {})

    page.write(tmp_path / "docs/study.md", tmp_path)

    text = (tmp_path / "docs/study.md").read_text()
    for artefact in COSTED:
        assert f"## {artefact.title}" in text
        assert (tmp_path / "docs/study" / f"{artefact.id.partition('/')[2]}.svg").exists()
    assert "## Training" not in text


def test_what_is_kept_is_shown_without_running_anything(tmp_path):
    told = hpcfl("reproduce", "study", "--kept", "--output", tmp_path / "none").stdout

    assert told.count("not run yet") == len(artefacts.ARTEFACTS)
    assert "leave --again" in refusal("reproduce", "study", "--kept", "--again")


def test_there_is_no_figure_of_what_was_not_run(tmp_path):
    picture = tmp_path / "dim.svg"
    given = ("--kept", "--output", tmp_path / "none", "--plot", picture)

    assert "nothing to draw" in refusal("reproduce", "study/dim", *given)
    assert not picture.exists()


@pytest.mark.full
def test_the_page_is_what_is_generated_from_what_is_kept(tmp_path):
    page.write(tmp_path / "study.md", ROOT / "results" / "reproduction")

    assert (tmp_path / "study.md").read_text() == (ROOT / "docs" / "study.md").read_text()


def test_protocols_without_dropouts_or_an_option_are_left_out():
    told = {one["protocol"] for one in costs.settings_of(costs.BASE)}
    narrow = {one["protocol"] for one in costs.over_option("bits", [16])}

    assert told == {*PROTOCOLS} - {"prf"}
    assert {"secagg", "sparse", "common", "committee", "lightsecagg"} <= narrow
    assert not narrow & {"fedavg", "ckks"}


def test_settings_that_can_be_prepared_are_most(context):
    """So that a change of options does not turn the study into refusals."""
    refused = 0
    settings = [one for artefact in COSTED for one in artefact.scales["paper"].settings]
    for setting in settings:
        asked = experiment.asked(costs._given(setting)[0])
        try:
            Experiment.prepare(asked, asked.devices[0])
        except UsageError:
            refused += 1

    assert refused < len(settings) / 20
