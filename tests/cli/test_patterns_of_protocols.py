"""The code of docs/own-protocol.md, and oddities besides: what works in bench works elsewhere."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from commandline import hpcfl, refusal

import hpcfl as api
from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.comm.phases import Pattern, Role
from hpcfl.results import load
from hpcfl.results.reader import find

PAGE = (Path(__file__).parents[2] / "docs/own-protocol.md").read_text()
CODE = "\n\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
# What a protocol may do in a benchmark, and training must not mind.
ODD = '''
from hpcfl.algorithms.aggregation.prf import Prf
from patterns import *


class NoModel(Plain):
    """Has no step for the model."""

    name = "no-model"
    steps = Plain.steps[1:]


class Scattered(Plain):
    """Sends every device the model in a message of its own."""

    name = "scattered"
    steps = (replace(Plain.steps[0], pattern=Pattern.SCATTER), Plain.steps[1])

    def server(self, round_index, model, secrets=system_secrets):
        return ScatteringServer(self, model)


class ScatteringServer(PlainServer):
    def send_model(self, id):
        return super().send_model()


class Bare:
    """A device of no class of hpcfl's, which drops the model."""

    def __init__(self, protocol, id):
        self.id, self.scale = id, protocol.parameters.weight(id) / protocol.divisor

    def receive_model(self, payload):
        pass

    send_upload = PlainDevice.send_upload
    contribution = PlainDevice.contribution


class Forgetful(Plain):
    name = "forgetful"

    def device(self, id, round_index, secrets):
        return Bare(self, id)


class Enrolled(Prf):
    """Enrols, and has devices that keep no model."""

    name = "enrolled"
    steps = Prf.steps[1:]

    def device(self, id, round_index, secrets):
        device = super().device(id, round_index, secrets)
        device._selected = [*self.members]
        return Hidden(device)


class Hidden:
    def __init__(self, device):
        self.id, self._device = device.id, device

    def send_masked_input(self, vector):
        return self._device.send_masked_input(vector)

    def contribution(self, vector):
        return self._device.contribution(vector)
'''
SIZE = {"devices": 6, "dim": 40, "rounds": 2, "warmup": 0}
SMALL = [word for name, value in SIZE.items() for word in (f"--{name}", value)]


def classes(module, code):
    """Return the names of the protocols that some code defines."""
    namespace = dict(vars(__import__(module)))
    return [
        name
        for name in re.findall(r"^class (\w+)", code, re.MULTILINE)
        if isinstance(namespace[name], type) and issubclass(namespace[name], AggregationProtocol)
    ]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "patterns.py").write_text(CODE)
    (folder / "odd.py").write_text(ODD)
    return folder


@pytest.fixture(autouse=True)
def folder(tmp_path, sources, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(sources), *sys.path])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path
    for name in ("patterns", "odd"):
        sys.modules.pop(name, None)


def told(*arguments):
    done = hpcfl(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


PATTERNS = (
    *("Plain", "Attended", "Blocks", "Shared", "Dithered", "Approved", "Asking", "Strict"),
    *("Declared", "Summed", "Counted", "Doubtful"),
)
ODDITIES = ("NoModel", "Scattered", "Forgetful", "Enrolled")
ALL = [*(f"patterns:{name}" for name in PATTERNS), *(f"odd:{name}" for name in ODDITIES)]


def test_every_protocol_of_the_page_and_the_list_is_tried():
    assert (*classes("patterns", CODE),) == PATTERNS
    assert {*classes("odd", ODD)} == {*ODDITIES}


def test_the_page_shows_every_pattern_and_role():
    for kind in (Pattern, Role):
        for member in kind:
            if member is not Role.DEVICE:
                assert str(member) in CODE
    for word in ("wants=", "relay=", "tolerates_dropouts", "receive_sum=", "active_variant"):
        assert word in CODE
    for error in ("MessageError", "RefusedError", "BelowThresholdError", "UsageError"):
        assert f"`{error}`" in PAGE


# Of all others in the full tier: each is trained by three times.
QUICK = ("patterns:Plain", "patterns:Asking", "odd:Forgetful", "odd:Enrolled")


@pytest.mark.parametrize(
    "given",
    [pytest.param(one, marks=() if one in QUICK else pytest.mark.full) for one in ALL],
)
def test_what_is_measured_is_trained_by_swept_and_called_from_python(given):
    told("bench", given, *SMALL, "--output", "run.h5")
    run = load("run.h5")
    assert run.validated.all()
    (Path("plan.toml")).write_text(
        f'[fixed]\ndim = 30\nrounds = 1\nwarmup = 0\n[grid]\ndevices = 6\nprotocol = ["{given}"]\n'
    )
    told("sweep", "plan.toml", "--output", "swept")
    assert [load(path).protocol for path in find(["swept"])] == [run.protocol]
    module, _, name = given.partition(":")
    kind = getattr(__import__(module), name)
    assert api.bench(kind, **SIZE, output="api.h5").validated.all()

    pytest.importorskip("torch")
    trained = api.train("fedavg", aggregate=kind, devices=6, rounds=3, epochs=2, output="train.h5")
    assert trained.validated.all()
    assert (trained.protocol, trained.rounds) == (run.protocol, 3)
    # The model reached the devices, and was paid for.
    phase = trained.phases.index("model")
    assert (trained.bytes_down[:, phase].sum(axis=1) > 0).all()
    added = [] if "model" in run.phases else ["model"]
    assert sorted(trained.phases) == sorted([*added, *run.phases])
    if name != "Blocks":  # of which a round moves a sixth of the model only
        assert trained.training["loss"][-1] < trained.training["loss"][0]
    reference = api.train("fedavg", devices=6, rounds=3, epochs=2, output="reference.h5", dropout=0)
    if name in ODDITIES[:3]:
        same = api.train(
            *("fedavg",), aggregate=kind, devices=6, rounds=3, epochs=2, dropout=0, output="same.h5"
        )
        np.testing.assert_allclose(same.weights, reference.weights, rtol=0, atol=1e-5)


@pytest.mark.parametrize("given", ["odd:NoModel", "odd:Forgetful"])
def test_a_model_that_is_delivered_costs_what_a_model_costs(given):
    pytest.importorskip("torch")
    one, plain = (
        api.train("fedavg", aggregate=name, devices=4, rounds=1, dropout=0, output=f"{number}.h5")
        for number, name in enumerate((given, "patterns:Plain"))
    )

    np.testing.assert_array_equal(one.bytes_down, plain.bytes_down)
    np.testing.assert_array_equal(one.bytes_up, plain.bytes_up)


@pytest.mark.parametrize("given", ["patterns:Summed", "odd:NoModel"])
def test_private_algorithms_train_by_it_too(given):
    """Whose model is followed by what the algorithm keeps beside it."""
    pytest.importorskip("torch")
    more = ("--sigma", 1, "--quantile", 0.5, "--devices", 6, "--rounds", 2)
    told("train", "dp-fedavg", "--aggregate", given, *more, "--output", "run.h5")

    assert load("run.h5").validated.all()


def test_what_is_declared_is_predicted_and_exposed():
    told("calibrate", "patterns:Declared", "patterns:Plain", "--output", "c.json")
    size = ("--devices", 6, "--dim", 40, "--calibration", "c.json")
    assert "there is no cost model of" in refusal("predict", "patterns:Plain", *size)
    for given in ("patterns:Declared",):
        told("bench", given, *SMALL, "--output", f"{given}.h5")
        run = load(f"{given}.h5")
        found = json.loads(told("predict", given, *size, "--json"))
        predicted = found["predictions"][0]["bytes_up"]
        assert {run.bytes_up.sum(axis=1)[run.survived].mean()} == {predicted}
        told("privacy", "exposure", given, "--simulated", 100)


def test_sums_are_formed_on_the_way_and_shares_have_no_dropouts():
    told("bench", "patterns:Summed", *SMALL, "--upload", "reduce", "--dropout", 0, "--output", ".")
    assert "cannot use --upload reduce" in refusal(
        "bench", "patterns:Shared", *SMALL, "--upload", "reduce"
    )
    assert "shared has no dropouts" in refusal("bench", "patterns:Shared", "--dropout", 0.2)


def test_the_active_variant_is_that_of_just_this_class():
    told("bench", "patterns:Counted", *SMALL, "--security", "active", "--output", "run.h5")
    assert load("run.h5").config["security"] == "active"
    assert "cannot be run with --security active" in refusal(
        "bench", "patterns:Attended", *SMALL, "--security", "active"
    )


def test_an_optional_step_is_played_where_the_server_wants_it():
    for dropout, sent in ((0.0, False), (0.4, True)):
        run = api.bench("patterns:Asking", **SIZE, dropout=dropout, output=f"{dropout}.h5")
        assert bool(run.bytes_up[:, run.phases.index("ask")].any()) is sent


def test_errors_cost_what_the_page_says(monkeypatch):
    patterns = __import__("patterns")
    send = patterns.PlainDevice.send_upload
    size = {**SIZE, "dropout": 0.0}

    # A malformed message costs the device its part, and nothing else.
    monkeypatch.setattr(
        patterns.PlainDevice, "send_upload", lambda self, v: send(self, v)[self.id == 1 :]
    )
    run = api.bench("patterns:Plain", **size, output="malformed.h5")
    assert run.validated.all()
    assert run.survived.all(axis=0).tolist() == [True, False, True, True, True, True]

    # So does a refusal; too many end the round, with why.
    def refuse(self, vector):
        if self.id < self.refusing:
            vector = np.full_like(vector, np.nan)
        return strict(self, vector)

    strict = patterns.StrictDevice.send_upload
    monkeypatch.setattr(patterns.PlainDevice, "send_upload", send)
    monkeypatch.setattr(patterns.StrictDevice, "send_upload", refuse)
    monkeypatch.setattr(patterns.StrictDevice, "refusing", 2, raising=False)
    run = api.bench("patterns:Strict", **size, output="refused.h5")
    assert run.survived.sum(axis=1).tolist() == [4, 4]
    monkeypatch.setattr(patterns.StrictDevice, "refusing", 4)
    done = hpcfl("bench", "patterns:Strict", *SMALL, "--dropout", 0, "--output", "ended.h5")
    assert done.returncode == 1
    assert "only 2 devices sent their vectors; refused: device 0 left the round" in done.stderr
    assert "Traceback" not in done.stderr


def test_noise_is_added_within_it_and_the_run_goes_on(folder):
    within = ("dp-fedavg", "--aggregate", "patterns:Summed")
    told("bench", *within, *SMALL, "--output", "run.h5")

    assert load("run.h5").protocol == "dp-fedavg-summed"
    assert "give --aggregate patterns:Summed beside --resume" in refusal(
        "bench", "--resume", "run.h5"
    )
    assert "is complete" in refusal("bench", *within, "--resume", "run.h5")
