import math
from dataclasses import replace
from itertools import product

import h5py
import numpy as np
import pytest
from attack_rounds import Graph, changed, components, recorded

from hpcfl.algorithms.aggregation import find
from hpcfl.attack import components as module
from hpcfl.attack.components import attack, predict
from hpcfl.attack.stripping import Adversary
from hpcfl.attack.tables import render
from hpcfl.errors import HpcflError, UsageError
from hpcfl.privacy.exposure import exposure
from hpcfl.privacy.masking import BySelection
from hpcfl.privacy.population import Population


def check(found, graph):
    """Compare findings with the graph of the round, in which values are told from chance."""
    sizes, proper = graph.sizes(), graph.sizes(proper=True)
    values = {(int(id), int(place)): int(value) for id, place, value in found.values}

    assert values.keys() == graph.alone()
    # Rounded at random to one of the two integers beside it.
    assert all(abs(value - graph.values[key]) < 1 for key, value in values.items())
    for one in found.sums:
        assert (one.found, one.correct, one.beyond) == (
            sizes[one.size],
            sizes[one.size],
            proper[one.size],
        )
        assert one.by_chance < 0.5
    assert found.sent == sum(size * count for size, count in sizes.items())
    assert found.unresolved == sum(size * sizes[size] for size in sizes if size > len(found.sums))
    assert found.allowed == len(graph.sets)
    assert (found.unmasked, found.untried) == (sizes[1], 0)
    assert found.agrees


def attacked(name, largest=3, **options):
    """Attack a recorded round, and compare what is found with its graph; return both."""
    experiment, transcript = recorded(name, **options)
    found, graph = attack(transcript, largest=largest), Graph(experiment, transcript)
    check(found, graph)
    return found, graph


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dropout": 0.0, "gamma": 0.4},
        {"gamma": 0.0},
        {"group": "ring32", "seed": 1},
        {"group": "ring24", "levels": 50, "seed": 1},
        {"rotate": True},
        {"sampler": "dense"},
        {"degree": 4, "dropout": 0.2},
        {"alpha": 1.0},
        {"dropout_phase": "advertise_keys"},
        {"dropout_phase": "share_keys", "gamma": 0.4},
        {"dropout_phase": "unmask"},
        {"dropout_phase": "advertise_keys", "degree": 6, "dropout": 0.2, "gamma": 0.3},
        {"warmup": 1, "rounds": 2},
    ],
    ids=str,
)
def test_sparse_exposes_exactly_the_components_of_its_masks(options):
    found, _ = attacked("sparse", **options)

    assert found.alone.correct > 0
    assert found.beyond > 0
    assert found.round_index == options.get("warmup", 0) * 2


@pytest.mark.parametrize("name", ["secagg", "secagg-graph", "cohort"])
@pytest.mark.parametrize("phase", ["advertise_keys", "share_keys", "masked_input", "unmask"])
def test_the_others_expose_nothing_but_the_allowed_sums(name, phase):
    found, _ = attacked(name, dropout_phase=phase, alpha=0.9, gamma=0.1)

    assert (found.alone.found, found.beyond, found.prediction.count) == (0, 0, 0)
    assert found.allowed == 400
    assert "Beyond that it learned nothing." in render(found)


def test_a_cohort_with_one_honest_survivor_exposes_that_one():
    found, graph = attacked("cohort", gamma=0.4, dropout=0.2, seed=5)
    sole = {place for place, sets in graph.sets.items() if len(set.union(*sets)) == 1}

    assert 0 < len(sole) < 300
    assert set(found.values[:, 1].tolist()) == sole
    assert found.prediction.count == found.alone.correct == len(sole)
    # That value is the sum that the server is allowed to learn.
    assert found.beyond == 0
    assert f"{len(sole)} of them are a single device's value" in " ".join(render(found).split())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("secagg-graph", {"degree": 2, "devices": 12}),
        ("secagg", {"degree": 2, "devices": 12, "seed": 3}),
        # With seed 2 six devices have a sum of three that is small by chance, and so the others'.
        ("cohort", {"degree": 2, "devices": 14, "alpha": 0.5, "gamma": 0.3, "seed": 6}),
        ("cohort", {"degree": 4, "devices": 14, "alpha": 0.7}),
        ("cohort", {"degree": 2, "devices": 12, "alpha": 0.8, "dropout_phase": "share_keys"}),
    ],
)
def test_on_a_ring_of_few_neighbours_the_honest_fall_apart(name, options):
    found, _ = attacked(name, **{"gamma": 0.4, "dropout": 0.1, "seed": 2} | options)

    assert found.beyond > 0
    assert found.prediction.count == found.alone.correct > 0
    assert found.prediction.standard_error == 0


def test_values_of_unequal_weight_are_recognised_by_their_own_bounds(tmp_path):
    weights = np.arange(1, 11) ** 3.0
    with h5py.File(tmp_path / "updates.h5", "w") as file:
        # All of them at the clip, so that no smaller bound would do.
        file["updates"] = np.where(np.arange(4000).reshape(10, 400) % 3, 1.0, -1.0)
        file["weights"] = weights
    _, graph = attacked("sparse", updates=tmp_path / "updates.h5")
    scales = {abs(value) for value in graph.values.values()}

    assert max(scales) > 50 * min(scales)


def test_on_a_smaller_ring_values_are_larger_and_recognised(tmp_path):
    np.save(tmp_path / "updates.npy", np.ones((10, 400)))
    # Three vanish at once; of seven, each sends two sevenths instead of three tenths.
    options = {"dropout_phase": "advertise_keys", "gamma": 0.4, "levels": 2**16}
    found, _ = attacked("cohort", updates=tmp_path / "updates.npy", **options)

    assert found.alone.correct > 0


@pytest.mark.parametrize("largest", [1, 5])
def test_sums_of_as_many_as_are_asked_for_are_recognised(largest):
    found, _ = attacked("sparse", largest, alpha=1.0)

    assert len(found.sums) == largest
    assert found.sums[-1].correct > 0


def test_many_levels_make_chance_finds_which_are_told_from_true_ones():
    experiment, transcript = recorded("sparse", levels=2**26, dim=4000, alpha=0.5, gamma=0.0)
    graph = Graph(experiment, transcript)
    found = attack(transcript)
    alone = found.alone

    # Most of these chance finds hide a value that could be part of a sum.
    assert alone.by_chance > 50
    assert abs(alone.found - alone.correct - alone.by_chance) < 5 * math.sqrt(alone.by_chance)
    assert alone.correct == graph.sizes()[1]
    assert found.sums[1].correct < graph.sizes()[2]
    assert found.agrees


def test_where_a_value_is_not_small_nothing_is_tried():
    _, transcript = recorded("secagg", devices=3, levels=2**30, dropout=0.0, gamma=0.0)
    found = attack(transcript)

    assert [(one.tested, one.skipped, one.found) for one in found.sums] == [(0, 400, 0)] * 3
    assert found.unresolved == found.untried == found.sent == 1200
    assert "Beyond that it recognised nothing." in render(found)


def test_who_is_alone_is_counted_where_few_bits_leave_values_unrecognised():
    few = {"bits": "16", "levels": None, "alpha": 0.5, "dim": 2000, "gamma": 0.3334}
    experiment, transcript = recorded("sparse", **few)
    found, graph = attack(transcript), Graph(experiment, transcript)
    # Only at coordinates that nobody else sent. One that is masked is right by chance at times.
    sole = sum(len(set.union(*sets)) == 1 for sets in graph.sets.values())
    text = " ".join(render(found).split())

    assert experiment.options.group == "ring16"
    assert found.alone.correct == sole < graph.sizes()[1] - 500
    assert 0 <= found.unmasked - graph.sizes()[1] < 5
    assert found.agrees
    assert found.untried == found.sent - sole
    assert f"no mask left {found.unmasked}, " in text
    assert "Beyond that it recognised nothing." in text
    assert f"Not recognised, nor shown to be hidden: {found.untried} values" in text
    assert "learned nothing" not in text
    assert "Hidden in larger sums" not in text


def test_untried_values_are_not_said_to_be_hidden_in_larger_sums():
    few = {"bits": "16", "levels": None, "devices": 60, "gamma": 0.33}
    _, transcript = recorded("sparse", **few, alpha=0.1, dim=3000)
    found = attack(transcript)
    text = " ".join(render(found).split())

    assert found.learned
    assert 0 < found.untried < found.unresolved
    larger = found.unresolved - found.untried
    assert f"Hidden in larger sums: {larger} values. Not recognised, nor shown" in text


@pytest.mark.parametrize("largest", [1, 3])
def test_values_that_few_bits_let_guess_are_not_learned(largest):
    few = {"bits": "8", "levels": 1, "gamma": 0.3334, "dim": 20000}
    _, transcript = recorded("secagg", **few)
    found = attack(transcript, largest)

    assert found.alone.correct == found.alone.beyond > 100
    assert found.alone.right_by_chance == pytest.approx(found.alone.correct, rel=0.3)
    assert found.prediction.count == 0
    assert found.agrees
    assert not found.learned
    assert "of them are true, as a guess among so few numbers" in " ".join(render(found).split())


@pytest.mark.parametrize("mean", [1e-8, 1e-4, 0.1, 1.0, 10.0, 100.0])
def test_chance_exceeds_what_it_may_once_in_millions(mean):
    most = module.most_by_chance(mean)

    def beyond(count):
        terms = range(count + 1, count + 400)
        return sum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in terms)

    assert beyond(most) < module.RARE
    # Not by far more: a wide bound would hide what is wrong.
    assert most <= mean + 8 * math.sqrt(mean) + 4
    assert module.most_by_chance(0) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"devices": 5, "gamma": 0.2, "dropout": 0.0},
        {"devices": 5, "gamma": 0.2, "dropout": 0.2, "dropout_phase": "unmask"},
        {"devices": 6, "gamma": 0.2, "dropout": 0.0, "degree": 4},
        {"devices": 5, "gamma": 0.0, "dropout": 0.0},
    ],
    ids=str,
)
def test_mean_and_error_of_the_prediction_are_those_of_all_patterns(options):
    _, transcript = recorded("sparse", alpha=0.9, **options)
    adversary = Adversary(transcript)
    devices = transcript.parameters.devices
    everybody = np.ones(devices, np.bool_)
    pairs = [
        (i, j)
        for i in range(devices)
        for j in adversary.seen.links.neighbours(i, everybody)
        if i < j
    ]
    honest = set(np.flatnonzero(adversary.seen.honest).tolist())
    probability = float(transcript.parameters.pair_probability)
    moments = np.zeros(3)
    for pattern in product([False, True], repeat=len(pairs)):
        chosen = [pair for pair, taken in zip(pairs, pattern, strict=True) if taken]
        senders = {id for pair in chosen for id in pair} & honest
        alone = sum(len(one) == 1 for one in components(senders, chosen))
        weight = math.prod(probability if taken else 1 - probability for taken in pattern)
        moments += weight * np.array([1, alone, alone**2])
    found = predict(adversary, transcript)

    assert moments[0] == pytest.approx(1)
    assert found.count == pytest.approx(400 * moments[1], rel=1e-9, abs=1e-9)
    assert found.standard_error**2 == pytest.approx(
        400 * (moments[2] - moments[1] ** 2), rel=1e-9, abs=1e-9
    )


def test_the_prediction_is_the_closed_form_for_the_number_of_honest_survivors():
    _, transcript = recorded("sparse", devices=20)
    found = attack(transcript)
    x, survivors = 1 - 0.3 / 19, found.honest
    alone = x ** (survivors - 1) * (1 - x ** (20 - survivors))

    assert found.prediction.count == pytest.approx(400 * found.honest * alone)
    assert found.prediction.low < found.prediction.count < found.prediction.high


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sparse", {"dropout": 0.0}),
        ("sparse", {"dropout": 0.3}),
        ("sparse", {"dropout": 0.3, "degree": 20}),
        ("sparse", {"dropout": 0.2, "dropout_model": "bernoulli"}),
        ("cohort", {"dropout": 0.0}),
        ("cohort", {"dropout": 0.3}),
        ("secagg", {"dropout": 0.3}),
        ("secagg-graph", {"dropout": 0.3, "degree": 20}),
    ],
)
def test_before_the_round_the_expectation_is_that_of_the_formulas(name, options):
    _, transcript = recorded(name, devices=40, gamma=0.33, dim=50, **options)
    who = Population(40, 13, options["dropout"], options.get("dropout_model", "exact"))
    masking = find(name).masking(40, 0.3, options.get("degree"))
    formulas = exposure(name, masking, who, samples=1)

    before = predict(Adversary(transcript), transcript).before
    assert before == pytest.approx(formulas.alone_of_sent.formula, rel=1e-9)


@pytest.mark.parametrize("phase", ["unmask", "share_keys", "advertise_keys"])
def test_before_the_round_other_dropouts_count_as_what_they_are(phase):
    _, transcript = recorded("sparse", devices=20, dim=50, dropout_phase=phase)
    nobody = exposure("sparse", BySelection(20, 0.3), Population(20, 4, 0.0), samples=1)
    # Who vanishes after the upload has sent; whoever does before, makes the graph smaller.
    expected = pytest.approx(nobody.alone_of_sent.formula) if phase == "unmask" else None

    assert predict(Adversary(transcript), transcript).before == expected


def test_cohorts_along_a_ring_of_few_neighbours_have_no_closed_form():
    _, transcript = recorded("cohort", devices=20, dim=50, degree=8)  # cohorts of 6

    assert predict(Adversary(transcript), transcript).before is None


def test_the_part_of_each_device_is_told_without_chance_finds():
    experiment, transcript = recorded("sparse", levels=2**26, dim=2000)
    graph = Graph(experiment, transcript)
    sent = {id: sum(key[0] == id for key in graph.values) for id in transcript.truth}
    parts = sorted(sum(key[0] == id for key in graph.alone()) / sent[id] for id in sent)

    found = attack(transcript)
    assert found.by_device == (parts[0], pytest.approx(np.median(parts)), parts[-1])
    assert found.alone.found > found.alone.correct


def test_nothing_to_recover_is_said():
    _, transcript = recorded("sparse", dim=1, alpha=0.001)

    with pytest.raises(UsageError, match="no honest survivor sent anything"):
        attack(transcript)


def test_a_device_that_sent_nothing_is_no_obstacle():
    experiment, transcript = recorded("sparse", dim=4, alpha=0.2)
    sizes = [values.size for values in transcript.truth.values()]

    assert min(sizes) == 0 < max(sizes)
    check(attack(transcript), Graph(experiment, transcript))


def replaced(transcript, phase, messages):
    """Return a transcript with other messages of a phase."""
    return replace(transcript, messages={**transcript.messages, phase: messages})


def first_honest(transcript, phase):
    return min(set(transcript.messages[phase]) & set(transcript.truth))


def dropped(transcript, phase):
    return int(np.flatnonzero(transcript.dropped)[0])


def colluder(transcript, phase):
    return int(np.flatnonzero(transcript.colluding)[0])


def one_more(part):
    return part + 1


@pytest.mark.parametrize(
    ("phase", "whose", "place", "change", "sentence"),
    [
        ("masked_input", first_honest, 0, one_more, "its version is 2, expected 1"),
        ("masked_input", first_honest, 4, one_more, "its round is 1, expected 0"),
        ("masked_input", first_honest, 16, one_more, "locations' coding . is unknown|announced"),
        ("masked_input", first_honest, -4, one_more, "the sum at coordinate .* is not that of the"),
        ("masked_input", first_honest, slice(-4, None), 255, "is not a (group|field) element"),
        ("unmask", first_honest, 16, one_more, "do not combine to a secret|sum at coordinate"),
        # Behind it is only the check of the share.
        ("unmask", first_honest, -8, one_more, "mask key is not the advertised|do not combine"),
        ("unmask", first_honest, slice(-4, None), 255, "is not a (group|field) element"),
        (
            "advertise_keys",
            dropped,
            -32,
            one_more,
            r"device \d: its mask key is not the advertised",
        ),
        ("advertise_keys", colluder, -32, one_more, r"device \d: its mask key is not the advert"),
        ("advertise_keys", first_honest, slice(-32, None), 0, "its mask key has low order"),
    ],
)
def test_messages_that_do_not_fit_are_refused_with_a_sentence(
    phase, whose, place, change, sentence
):
    _, transcript = recorded("sparse", gamma=0.4)
    id = whose(transcript, phase)
    messages = dict(transcript.messages[phase])
    messages[id] = message = messages[id].copy()
    message[place] = change(message[place]) if callable(change) else change

    with pytest.raises(HpcflError, match=sentence):
        attack(replaced(transcript, phase, messages))


@pytest.mark.parametrize("name", ["sparse", "cohort", "secagg"])
def test_searching_in_small_parts_finds_the_same(name, monkeypatch):
    _, transcript = recorded(name, levels=2**20, gamma=0.4)
    whole = attack(transcript)
    monkeypatch.setattr(module, "AT_ONCE", 100)
    parts = attack(transcript)

    for one, other in zip(parts.sums, whole.sums, strict=True):
        assert one.by_chance == pytest.approx(other.by_chance, rel=0.05)
        one.by_chance = other.by_chance
    assert parts.as_dict() == whole.as_dict()
    np.testing.assert_array_equal(np.sort(parts.values, axis=0), np.sort(whole.values, axis=0))


def test_true_values_of_another_round_are_refused():
    _, transcript = recorded("sparse")
    id = min(transcript.truth)
    values = transcript.truth[id]
    wrong = replace(transcript, truth={**transcript.truth, id: changed(values, 0)})
    short = replace(transcript, truth={**transcript.truth, id: values[:-1]})

    with pytest.raises(HpcflError, match="is not that of the true values"):
        attack(wrong)
    with pytest.raises(UsageError, match=f"device {id} are not as many as it sent"):
        attack(short)


def test_too_few_replies_are_refused():
    _, transcript = recorded("sparse", devices=12, degree=4, dropout=0.0)
    few = {id: transcript.messages["unmask"][id] for id in (0, 1)}

    with pytest.raises(UsageError, match=r"does not fit together: .* at least .* are needed"):
        attack(replaced(transcript, "unmask", few))


def test_the_true_values_are_not_used_to_find_any():
    _, transcript = recorded("sparse")
    found = attack(transcript)
    # At one coordinate, what two devices sent alone is changed so that their sum stays the same.
    places, counts = np.unique(found.values[:, 1], return_counts=True)
    place = places[counts > 1][0]
    truth = dict(transcript.truth)
    adversary = Adversary(transcript)
    two = found.values[found.values[:, 1] == place, 0][:2].tolist()
    for id, by in zip(two, (1, -1), strict=True):
        index = adversary.strip(id).coordinates.tolist().index(place)
        truth[id] = changed(truth[id], index, by)
    again = attack(replace(transcript, truth=truth))

    np.testing.assert_array_equal(again.values, found.values)
    assert again.alone.found == found.alone.found == found.alone.correct
    assert again.alone.correct == found.alone.correct - 2
