"""Rounds are recorded and attacked: as much is found as is predicted, and nothing else."""

import json
import math
import re
import tempfile
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from commandline import hpcfl, invoke

from hpcfl import bench
from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.algorithms.aggregation.secagg import SecAgg
from hpcfl.attack import components as module
from hpcfl.attack.components import ExpectedCount, attack, predict
from hpcfl.attack.stripping import Adversary
from hpcfl.attack.transcript import load
from hpcfl.crypto import keys
from hpcfl.errors import HpcflError, UsageError

SEED = 3


def recorded(protocol, devices=10, **options):
    """Return the transcript of a round; few levels, so that chance is rare."""
    defaults = {"dim": 400, "rounds": 1, "warmup": 0, "levels": 2000, "alpha": 0.3, "gamma": 0.2}
    with tempfile.TemporaryDirectory() as folder:
        kept = {"insecure_seed": SEED, "keep_transcript": Path(folder) / "round.npz"}
        given = {"devices": devices} | defaults | kept | options
        if protocol.startswith("secagg"):
            given.pop("alpha")
        bench(protocol, **given, output=folder)
        return load(kept["keep_transcript"])


def components(vertices, edges):
    """Return the connected components, by merging the two sides of every edge."""
    of = {vertex: {vertex} for vertex in vertices}
    for left, right in edges:
        if left in of and right in of and of[left] is not of[right]:
            merged = of[left] | of[right]
            of |= dict.fromkeys(merged, merged)
    return [set(one) for one in {frozenset(one) for one in of.values()}]


def changed(values, index, by=1):
    """Return a copy of an array with one element changed."""
    copy = values.copy()
    copy[index] += values.dtype.type(by)
    return copy


def attacked(name, **options):
    """Attack a recorded round; compare what is found with the truth and the prediction."""
    transcript = recorded(name, **options)
    found = attack(transcript)
    adversary = Adversary(transcript)
    sent = {id: adversary.strip(id)[0] for id in transcript.truth}
    true = {
        (id, int(place)): int(value)
        for id, values in transcript.truth.items()
        for place, value in zip(sent[id], values, strict=True)
    }
    values = {(int(id), int(place)): int(value) for id, place, value in found.values}
    right = sum(values[key] == true[key] for key in values)

    assert found.sent == len(true)
    assert found.allowed == len({place for _, place in true})
    assert 0 <= found.recognised - right < 5
    assert found.unmasked == right
    assert found.learned <= right
    assert found.agrees
    return found, true


@pytest.mark.parametrize(
    "options",
    [
        {"warmup": 1, "rounds": 2},
        {"dropout": 0.0, "gamma": 0.4},
        {"group": "ring24", "levels": 50, "seed": 1},
        {"alpha": 1.0},
        {"degree": 6, "dropout": 0.2, "gamma": 0.3, "dropout_phase": "advertise_keys"},
        {"dropout_phase": "unmask"},
        {"dim": 4, "alpha": 0.2},  # one device sends nothing
    ],
    ids=str,
)
def test_sparse_exposes_exactly_the_values_that_nobody_honest_masks(options):
    found, _ = attacked("sparse", **options)

    assert found.round_index == options.get("warmup", 0) * 2
    assert found.learned > 0 or "dim" in options


@pytest.mark.parametrize("name", ["secagg", "secagg-graph", "cohort"])
@pytest.mark.parametrize("phase", ["advertise_keys", "masked_input", "unmask"])
def test_the_others_expose_nothing_but_the_allowed_sums(name, phase):
    found, _ = attacked(name, dropout_phase=phase, alpha=0.9, gamma=0.1)

    assert (found.unmasked, found.learned, found.prediction.count) == (0, 0, 0)
    assert found.allowed == 400


def test_a_cohort_with_one_honest_survivor_exposes_that_one():
    found, true = attacked("cohort", gamma=0.4, dropout=0.2, seed=5)
    senders = Counter(place for _, place in true)
    sole = sum(count == 1 for count in senders.values())

    assert found.prediction.count == found.unmasked == sole > 0
    assert found.learned == 0  # it is the sum that the server is meant to learn


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("secagg", {"degree": 2, "devices": 12, "seed": 4}),
        ("cohort", {"degree": 4, "devices": 14, "alpha": 0.7}),
    ],
)
def test_on_a_ring_of_few_neighbours_the_honest_fall_apart(name, options):
    found, _ = attacked(name, **{"gamma": 0.4, "dropout": 0.1, "seed": 2} | options)

    assert found.learned > 0
    assert (found.prediction.count, found.prediction.standard_error) == (found.unmasked, 0)


def test_few_bits_make_chance_finds_that_count_as_nothing():
    transcript = recorded("secagg", bits="8", levels=1, gamma=0.3334, dim=20000, dropout=0.0)
    found = attack(transcript)

    assert found.unmasked == pytest.approx(found.sent / 256, rel=0.3)
    assert found.recognised == pytest.approx(found.by_chance, rel=0.1)
    assert (found.learned, found.prediction.count, found.agrees) == (0, 0, True)


@pytest.mark.parametrize(
    "options", [{"dropout": 0.0}, {"dropout": 0.2, "dropout_phase": "unmask"}], ids=str
)
def test_mean_and_error_of_the_prediction_are_those_of_all_patterns(options):
    transcript = recorded("sparse", alpha=0.9, devices=5, gamma=0.2, **options)
    adversary = Adversary(transcript)
    everybody = np.ones(5, np.bool_)
    links = adversary.seen.links
    pairs = [(i, j) for i in range(5) for j in links.neighbours(i, everybody) if i < j]
    honest = set(np.flatnonzero(adversary.seen.honest).tolist())
    probability = float(adversary.protocol.pair_probability)
    moments = np.zeros(3)
    for pattern in product([False, True], repeat=len(pairs)):
        chosen = [pair for pair, taken in zip(pairs, pattern, strict=True) if taken]
        senders = {id for pair in chosen for id in pair} & honest
        alone = sum(len(one) == 1 for one in components(senders, chosen))
        weight = math.prod(probability if taken else 1 - probability for taken in pattern)
        moments += weight * np.array([1, alone, alone**2])
    found = predict(adversary, transcript)

    assert found.count == pytest.approx(400 * moments[1], rel=1e-9, abs=1e-9)
    variance = 400 * (moments[2] - moments[1] ** 2)
    assert found.standard_error**2 == pytest.approx(variance, rel=1e-9, abs=1e-9)
    for count, agrees in ((-5, True), (-5.1, False), (5, True), (5.1, False)):
        off = round(found.count) + count * 1.0
        one = ExpectedCount(round(found.count), 1.0)
        assert (one.low <= off <= one.high) is agrees


def test_a_round_that_does_not_fit_together_is_refused():
    transcript = recorded("sparse")
    id = min(transcript.truth)
    sent = transcript.messages["masked_input"]
    other = {**sent, id: changed(sent[id], -4)}
    few = dict(list(transcript.messages["unmask"].items())[:2])

    for change, sentence in (
        ({"truth": {**transcript.truth, id: changed(transcript.truth[id], 0)}}, "not that of the"),
        ({"messages": {**transcript.messages, "masked_input": other}}, "not that of the true"),
        ({"messages": {**transcript.messages, "unmask": few}}, "at least .* are needed"),
    ):
        with pytest.raises(HpcflError, match=sentence):
            attack(replace(transcript, **change))
    with pytest.raises(UsageError, match="no honest survivor sent anything"):
        attack(recorded("sparse", dim=1, alpha=0.001))


# Recording


def test_keeping_costs_nothing_and_writes_no_key_of_an_honest_device(tmp_path):
    path = tmp_path / "round.npz"
    size = {"devices": 10, "dim": 200, "rounds": 2, "gamma": 0.4, "insecure_seed": SEED}
    without, one = (
        bench("sparse", **size, keep_transcript=kept, output=tmp_path) for kept in (None, path)
    )
    for name in ("bytes_up", "bytes_down", "messages_up", "messages_down", "survived"):
        np.testing.assert_array_equal(getattr(without, name), getattr(one, name))

    content, transcript = path.read_bytes(), load(path)
    assert transcript.colluding.sum() == 4
    assert (
        list(transcript.truth)
        == np.flatnonzero(transcript.survived & ~transcript.colluding).tolist()
    )
    for id in range(10):
        source = keys.insecure_secrets(SEED, transcript.round_index, id)
        transport, mask, seed = source(32), source(32), source(16)
        assert transport not in content
        assert seed not in content
        assert (mask in content) == transcript.colluding[id]
    with np.load(path, allow_pickle=False) as file:
        assert str(file["warning"]).startswith("INSECURE: this file holds secret keys")
        arrays = dict(file)
    np.savez(tmp_path / "other.npz", **arrays | {"format": np.array("mine")})
    with pytest.raises(UsageError, match="cannot be read as a transcript"):
        load(tmp_path / "other.npz")


def test_every_protocol_is_attacked_or_refused(tmp_path):
    def keep(name, **more):
        given = {"dim": 50, "insecure_seed": 1, "dropout": 0.0, **more}
        given |= {"alpha": 0.5} if name in ("sparse", "cohort", "common") else {}
        bench(name, devices=8, **given, keep_transcript=tmp_path / name, output=tmp_path)

    for name in PROTOCOLS:
        if not issubclass(find(name), SecAgg):
            with pytest.raises(UsageError):
                keep(name)
        else:
            keep(name)
            assert load(tmp_path / name).kind.name == name
    for more, sentence in (
        ({"insecure_seed": None}, "together with --insecure-seed"),
        ({"upload": "reduce"}, "--upload reduce sums on the way"),
    ):
        with pytest.raises(UsageError, match=sentence):
            keep("secagg", **more)


def test_the_command_attacks_what_bench_has_kept(tmp_path, monkeypatch):
    path = tmp_path / "round.npz"
    kept = hpcfl(
        *("bench", "sparse", "--devices", 12, "--dim", 500, "--rounds", 1, "--warmup", 0),
        *("--alpha", 0.3, "--insecure-seed", 1, "--keep-transcript", path, "--output", tmp_path),
    )
    assert kept.returncode == 0, kept.stderr
    found = json.loads(invoke("attack", "components", path, "--json").stdout)

    assert found == json.loads(json.dumps(attack(load(path)).as_dict()))
    monkeypatch.setattr(module, "predict", lambda *_: ExpectedCount(10.0, 1.0))
    result = invoke("attack", "components", path)
    assert "are predicted: they differ by more than chance" in str(result.exception)
    assert re.search("agrees +NO", result.stdout)
