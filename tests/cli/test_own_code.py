"""Protocols and algorithms of a user's own: the code of docs/own-protocol.md, and oddities."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from commandline import hpcfl, refusal, told

import hpcfl as api
from hpcfl.costmodel import calibration, learning
from hpcfl.errors import OwnCodeError
from hpcfl.privacy.accounting import zcdp
from hpcfl.results import load
from hpcfl.results.reader import find

PAGE = (Path(__file__).parents[2] / "docs/own-protocol.md").read_text()
CODE = "\n\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
PATTERNS = (
    *("Plain", "Attended", "Blocks", "Shared", "Dithered", "Approved", "Asking", "Strict"),
    *("Declared", "Summed"),
)
MORE = '''
import os
from dataclasses import dataclass

from hpcfl.algorithms.aggregation.secagg import SecAgg
from hpcfl.algorithms.federated.base import FederatedAveraging
from hpcfl.algorithms.federated.private import PrivateAlgorithm
from hpcfl.algorithms.noise import clip_l2
from hpcfl.options.definition import option
from hpcfl.privacy.accounting import zcdp
from hpcfl.privacy.accounting.account import ADD_USER, Account, Guarantee
from patterns import *


class NoModel(Plain):
    """Has no step for the model."""

    name = "no-model"
    steps = Plain.steps[1:]


class WrongDecode(Plain):
    name = "wrong-decode"

    def decode(self, total):
        return total[:-1]


class Salted(SecAgg):
    name = "salted"

    def pair_contexts(self, *arguments):
        return [b"salt " + context for context in super().pair_contexts(*arguments)]


@dataclass(frozen=True)
class LoudAccount(Account):
    algorithm = "loud"
    zeta: float = option(1.0, "Norm of an update.")
    clip_norm: float = 1.0
    delta: float = 1e-5

    def paper(self):
        rho = self.rounds * zcdp.gaussian_rho(self.sigma / self.zeta)
        epsilon = zcdp.exact_epsilon(rho, self.delta)
        return Guarantee(epsilon, self.delta, ADD_USER, ("all updates are short",), "exact")

    def bounds(self):
        return (self.paper(),)


class Loud(PrivateAlgorithm):
    """Noise of a trusted server on the sum over all users."""

    name = "loud"
    account = LoudAccount

    def contribution(self, device, round_index, learn):
        return clip_l2(learn(), 1.0)

    def update(self, aggregate, participants, round_index):
        total = aggregate.mean * len(participants)
        noise = self.noise(round_index, -1).gaussian(total.size, self.sigma)
        return (total + noise) / self.federation.participation.per_round


class Nameless(AggregationProtocol):
    steps = Plain.steps


class Twin(SecAgg):
    pass


class NothingDevice(PlainDevice):
    def send_upload(self, vector):
        pass


class Nothing(Plain):
    name = "nothing"

    def device(self, id, round_index, secrets):
        return NothingDevice(self, id)


class Rash(FederatedAveraging):
    name = "rash"
    private = True


class Failing(Plain):
    """Goes wrong in round 1, in a way that the environment says."""

    name = "failing"

    def device(self, id, round_index, secrets):
        if round_index == 1 and os.environ["FAILING"] == "ends":
            raise SystemExit(0)
        return super().device(id, round_index, secrets) if round_index != 1 else 1 // 0
'''
SIZE = {"devices": 6, "dim": 40, "rounds": 2, "warmup": 0}
SMALL = [word for name, value in SIZE.items() for word in (f"--{name}", value)]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return a folder of the user's, with the code in it."""
    (tmp_path / "patterns.py").write_text(CODE)
    (tmp_path / "own.py").write_text(MORE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path
    for name in ("patterns", "own"):
        sys.modules.pop(name, None)


# Of all others in the full tier: each is trained by three times.
QUICK = ("patterns:Plain", "patterns:Asking")
ALL = [*(f"patterns:{name}" for name in PATTERNS), "own:Salted"]


@pytest.mark.parametrize(
    "given", [pytest.param(one, marks=() if one in QUICK else pytest.mark.full) for one in ALL]
)
def test_what_is_measured_is_trained_by_swept_and_called_from_python(given):
    told("bench", given, *SMALL, "--output", "run.h5")
    run = load("run.h5")
    assert run.validated.all()
    Path("plan.toml").write_text(
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
    if name != "Blocks":  # of which a round moves a sixth of the model only
        assert trained.training["loss"][-1] < trained.training["loss"][0]


def test_what_is_declared_is_predicted_exposed_and_attacked(monkeypatch):
    monkeypatch.setattr(learning, "SIZES", learning.SIZES[:3])
    monkeypatch.setattr(learning, "VARIED_SIZES", ())
    told("calibrate", "fedavg", "--output", "c.json")
    told("calibrate", "own:Salted", "--output", "c.json")
    assert [*json.loads(Path("c.json").read_text())["seconds"]] == ["fedavg", "salted"]
    older = calibration.load(Path("c.json"))
    elsewhere = replace(older, about=older.about | {"cpu_model": "another"})
    assert elsewhere.updated(older) == older
    assert "declares no terms" in refusal("calibrate", "patterns:Plain", "--output", "c.json")
    keep = ("--insecure-seed", 1, "--keep-transcript", "round.npz", "--output", "run.h5")
    told("bench", "own:Salted", *SMALL, "--gamma", 0.4, *keep)
    run = load("run.h5")
    size = ("--devices", 6, "--dim", 40, "--calibration", "c.json", "--json")
    (predicted,) = json.loads(told("predict", "own:Salted", *size))["predictions"]
    assert {run.bytes_up.sum(axis=1)[run.survived].mean()} == {predicted["bytes_up"]}

    exposed = json.loads(told("privacy", "exposure", "own:Salted", "--devices", 20, "--json"))
    assert (exposed["protocol"], exposed["alone_of_sent"]["formula"]) == ("salted", 0.0)
    attacked = told("attack", "components", "round.npz", "--protocol", "own:Salted")
    assert "beyond that no" in attacked
    assert "name its class with --protocol" in refusal("attack", "components", "round.npz")


def test_uploads_and_optional_steps():
    told("bench", "patterns:Summed", *SMALL, "--upload", "reduce", "--dropout", 0, "--output", ".")
    reduced = ("bench", "patterns:Shared", *SMALL, "--upload", "reduce")
    assert "cannot use --upload reduce" in refusal(*reduced)
    assert "shared has no dropouts" in refusal("bench", "patterns:Shared", "--dropout", 0.2)
    active = refusal("bench", "patterns:Attended", *SMALL, "--security", "active")
    assert "cannot be run with --security active" in active
    for dropout, sent in ((0.0, False), (0.4, True)):
        run = api.bench("patterns:Asking", **SIZE, dropout=dropout, output=f"{dropout}.h5")
        assert bool(run.bytes_up[:, run.phases.index("ask")].any()) is sent


def test_what_is_not_complete_is_refused_in_a_sentence(folder):
    for command, given, sentence in (
        ("bench", "own:Nameless", "lacks decode, device, server, name"),
        ("bench", "own:Twin", "is called 'secagg'"),
        ("train", "own:Rash", "is private without an account of what it costs"),
        ("train", ("fedavg", "--aggregate", "own:NoModel"), "must receive the model in the phase"),
    ):
        words = given if isinstance(given, tuple) else (given,)
        assert sentence in refusal(command, *words)
    assert not list(folder.rglob("*.h5"))  # before anything is begun


def test_what_own_code_does_wrong_in_a_round_is_a_sentence(folder, monkeypatch):
    done = hpcfl("bench", "own:Nothing", *SMALL)
    assert done.returncode == 2
    assert "NothingDevice.send_upload must return an array of bytes, uint8" in done.stderr
    for how, raised, line in (
        ("divides", "ZeroDivisionError", "1 // 0"),
        ("ends", "SystemExit: 0", "raise SystemExit(0)"),
    ):
        monkeypatch.setenv("FAILING", how)
        done = hpcfl("bench", "own:Failing", *SMALL, "--rounds", 3, "--output", f"{how}.h5")
        place = next(n for n, text in enumerate(MORE.splitlines(), 1) if line in text)
        said = done.stderr.splitlines()[-1]

        assert done.returncode == 1
        assert said.startswith("Error: round 1 of the protocol 'failing'")
        assert f"Failing.device raised {raised}" in said
        assert said.endswith(f"({folder}/own.py:{place})")
        assert "Traceback" not in done.stderr
        assert (load(f"{how}.h5").status, load(f"{how}.h5").rounds) == ("failed", 1)
    with pytest.raises(OwnCodeError) as caught:
        api.bench("own:Failing", **SIZE | {"rounds": 3}, output="api.h5")
    assert isinstance(caught.value.__cause__, SystemExit)


def test_what_a_method_returns_wrongly_is_a_sentence():
    done = hpcfl("bench", "own:WrongDecode", *SMALL, "--output", "wrong.h5")
    assert done.returncode == 1
    assert "could not be broadcast" in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("Error: round 0 of the protocol 'wrong-")
    assert "Traceback" not in done.stderr


def test_what_an_algorithm_costs_is_what_it_declares():
    given = ("own:Loud", "--rounds", 3, "--zeta", 2, "--json", "--devices", 4, "--per-round", 2)
    found = json.loads(told("privacy", "epsilon", *given, "--sigma", 1.5))
    target = ("--epsilon", found["paper"]["epsilon"])
    noise = json.loads(told("privacy", "epsilon", *given, *target))

    assert found["settings"] | {"sigma": 1.5, "rounds": 3, "zeta": 2.0} == found["settings"]
    assert found["proven"]["epsilon"] == zcdp.exact_epsilon(3 * (2 / 1.5) ** 2 / 2, 1e-5)
    sigmas = [one["settings"]["sigma"] for one in noise["noise"].values()]
    assert sigmas == pytest.approx([1.5, 1.5])
    for wrong, said in (
        (("--theta", 1), "--theta"),
        (("--zeta=wide",), "--zeta is 'wide'; it must be a number"),
        (("--samples", 1), "--samples"),
    ):
        assert said in refusal("privacy", "epsilon", *given, "--sigma", 1, *wrong)


def test_a_private_algorithm_is_trained_within_its_budget():
    pytest.importorskip("torch")
    trained = told(
        *("train", "own:Loud", "--devices", 3, "--rounds", 2, "--epsilon", 5),
        *("--dataset", "digits", "--output", "trained", "--json"),
    )
    run = load(json.loads(trained)["path"])

    assert run.config["algorithm"] == "own:Loud"
    assert run.training["epsilon_proven"][-1] == pytest.approx(5, rel=1e-6)
