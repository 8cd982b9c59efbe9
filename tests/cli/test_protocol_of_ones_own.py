"""A protocol, and a federated algorithm, in a file of the user's work with every command."""

import json
import sys

import pytest
from commandline import hpcfl, refusal

import hpcfl as api
from hpcfl.costmodel import learning
from hpcfl.errors import OwnCodeError
from hpcfl.privacy.accounting import zcdp
from hpcfl.results import load
from hpcfl.results.reader import find
from hpcfl.rounds import timed

OWN = '''
"""Secure aggregation of a part of the vector, and rounds that say what they take by themselves."""

import os
from dataclasses import dataclass

import numpy as np

from hpcfl.algorithms.aggregation.base import (
    MODEL,
    AggregationProtocol,
    ModelReceiver,
    ModelSender,
)
from hpcfl.algorithms.aggregation.costs import Crowd
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.algorithms.aggregation.secagg import SecAgg
from hpcfl.algorithms.federated.base import FederatedAlgorithm
from hpcfl.algorithms.federated.private import PrivateAlgorithm
from hpcfl.algorithms.noise import clip_l2
from hpcfl.comm.phases import Pattern, Step
from hpcfl.crypto.keys import system_secrets
from hpcfl.privacy.accounting import zcdp
from hpcfl.privacy.accounting.account import ADD_USER, Account, Guarantee
from hpcfl.privacy.masking import InTheClear


class Salted(SecAgg):
    """SecAgg whose masks are drawn otherwise."""

    name = "salted"

    def pair_context(self, round_index, i, j, use):
        return b"salt " + super().pair_context(round_index, i, j, use)


class PlainDevice(ModelReceiver):
    def __init__(self, protocol, id, round_index):
        super().__init__(protocol.parameters.dim)
        self.id, self._protocol, self._round = id, protocol, round_index

    def _quantise(self, vector):
        return self._protocol.quantise(vector, self.id, self._round)

    def send_upload(self, vector):
        return self._protocol.summed_in.reduce(self._quantise(vector)).view(np.uint8)

    def contribution(self, vector):
        return slice(None), self._quantise(vector)

    def unquantised(self, vector):
        scaled = vector.astype(np.float64) * self._protocol.scale(self.id)
        return slice(None), scaled, 0


class PlainServer(ModelSender):
    def __init__(self, protocol, model):
        super().__init__(model)
        self._group = protocol.summed_in
        self._sum = np.zeros(protocol.parameters.dim, np.int64)
        self.survivors, self.total = [], None

    def receive_upload(self, sender, payload):
        self._sum += payload.view("<u4")
        self.survivors.append(sender)

    def finish_upload(self):
        self.survivors.sort()

    def finish_result(self):
        self.total = self._group.decode(self._group.reduce(self._sum))


class Plain(QuantisedProtocol):
    """Quantised vectors in the clear."""

    name = "plain"
    not_active = "everybody may read it"
    not_attacked = "there is nothing to take off"
    steps = (
        MODEL,
        Step(
            "upload",
            Pattern.GATHER,
            PlainDevice.send_upload,
            PlainServer.receive_upload,
            upload=True,
            finish=PlainServer.finish_upload,
        ),
        Step("result", Pattern.LOCAL, finish=PlainServer.finish_result),
    )

    @classmethod
    def masking(cls, devices, alpha, degree):
        return InTheClear()

    def sizes(self):
        return {PlainDevice.send_upload: 4 * self.parameters.dim}

    def terms(self):
        return {"device": {"values": self.parameters.dim}, "server": {"vectors": 1}}

    def device(self, id, round_index, secrets):
        return PlainDevice(self, id, round_index)

    def server(self, round_index, model, secrets=system_secrets):
        return PlainServer(self, model)


class Signs(FederatedAlgorithm):
    """Every device sends the signs of its update."""

    name = "signs"

    def contribution(self, device, round_index, state, learn):
        return np.float32(0.01) * np.sign(learn())


@dataclass(frozen=True)
class LoudAccount(Account):
    algorithm = "loud"
    zeta: float = 1.0
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

    def contribution(self, device, round_index, state, learn):
        return clip_l2(learn(), 1.0)

    def update(self, aggregate, state, participants, round_index):
        total = aggregate.mean * len(participants)
        noise = self.noise(round_index, -1).gaussian(total.size, self.sigma)
        return (total + noise) / self.federation.participation.per_round


class Nameless(AggregationProtocol):
    steps = Plain.steps


class Bare(AggregationProtocol):
    name = "bare"
    steps = Plain.steps


class Silent(Plain):
    name = "silent"
    steps = Plain.steps[:1]


class Twin(SecAgg):
    pass


class Rash(Signs):
    name = "rash"
    private = True


class EndlessServer(PlainServer):
    def finish_result(self):
        del self.total


class Endless(Plain):
    name = "endless"

    def server(self, round_index, model, secrets=system_secrets):
        return EndlessServer(self, model)


class NothingDevice(PlainDevice):
    def send_upload(self, vector):
        return None


class Nothing(Plain):
    name = "nothing"

    def device(self, id, round_index, secrets):
        return NothingDevice(self, id, round_index)


def fail(how):
    if how == "ends":
        raise SystemExit(0)
    return 1 // 0


class FailingDevice(PlainDevice):
    def receive_model(self, payload):
        self.check("receive_model")
        super().receive_model(payload)

    def send_upload(self, vector):
        self.check("send_upload")
        return super().send_upload(vector)

    def contribution(self, vector):
        self.check("contribution")
        return super().contribution(vector)

    def check(self, place):
        self._protocol.check(place, self._round)


class FailingServer(PlainServer):
    def __init__(self, protocol, round_index, model):
        super().__init__(protocol, model)
        self.check = lambda place: protocol.check(place, round_index)

    def send_model(self):
        self.check("send_model")
        return super().send_model()

    def receive_upload(self, sender, payload):
        self.check("receive_upload")
        super().receive_upload(sender, payload)

    def finish_upload(self):
        self.check("finish_upload")
        super().finish_upload()


class Failing(Plain):
    """Goes wrong in round 1, in a place and a way that the environment says."""

    name = "failing"

    def check(self, place, round_index):
        wanted, how = os.environ["FAILING"].split()
        if place == wanted and round_index == 1:
            fail(how)

    def device(self, id, round_index, secrets):
        self.check("device", round_index)
        return FailingDevice(self, id, round_index)

    def server(self, round_index, model, secrets=system_secrets):
        self.check("server", round_index)
        return FailingServer(self, round_index, model)


class FailingSigns(Signs):
    name = "failing-signs"

    def contribution(self, device, round_index, state, learn):
        return learn() if round_index == 0 else {}["nothing"]
'''
SMALL = ("--devices", 6, "--dim", 40, "--rounds", 2, "--warmup", 0)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return a folder of the user's, with the file in it."""
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path
    sys.modules.pop("own", None)


def told(*arguments):
    """Return what a command prints that succeeds."""
    done = hpcfl(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["salted", "plain"])
def test_it_is_measured_reported_and_drawn(name, folder):
    pytest.importorskip("matplotlib")
    given = f"own:{name.title()}"
    told("bench", given, *SMALL, "--output", "run.h5")
    drawing = ("plot", "run.h5", "--kind", "tradeoff", "--output", "figure.png")

    assert load(folder / "run.h5").protocol == name
    assert name in told("report", "run.h5")
    assert "Figure: figure.png" in told(*drawing)
    assert "cannot be run with --security active" in refusal(
        "bench", given, *SMALL, "--security", "active"
    )


@pytest.mark.parametrize("name", ["salted", "plain"])
def test_it_is_swept_and_trained_by(name, folder):
    pytest.importorskip("torch")
    given = f"own:{name.title()}"
    (folder / "plan.toml").write_text(
        f'[fixed]\ndim = 30\nrounds = 1\nwarmup = 0\n[grid]\ndevices = 4\nprotocol = ["{given}"]\n'
    )
    told("sweep", "plan.toml", "--output", "swept")
    trained = told(
        *("train", "own:Signs", "--aggregate", given, "--devices", 4, "--rounds", 1),
        *("--dataset", "digits", "--output", "trained", "--json"),
    )

    assert [load(path).protocol for path in find("swept")] == [name]
    run = load(json.loads(trained)["path"])
    assert (run.protocol, run.config["algorithm"]) == (name, "own:Signs")


def test_what_is_not_complete_is_refused_in_a_sentence(folder):
    for command, given, sentence in (
        ("bench", "own:Nameless", "lacks decode(total), device(id, round_index, secrets), server("),
        ("bench", "own:Bare", "the protocol 'own:Bare' lacks decode(total), device("),
        ("bench", "own:Silent", "must have steps, a tuple of hpcfl.comm.phases.Step, one of them"),
        ("bench", "own:Twin", "is called 'secagg', as one that comes with hpcfl"),
        ("train", "own:Rash", "is private without an account of what it costs"),
    ):
        assert sentence in refusal(command, given)
    assert not list(folder.rglob("*.h5"))  # before anything is begun


def test_a_server_that_does_not_say_the_sum_is_told_so_after_the_first_round():
    done = hpcfl("bench", "own:Endless", *SMALL)

    assert done.returncode == 2
    assert "EndlessServer, has no total after the round" in done.stderr
    assert "HPCFL status: failed" in done.stdout.splitlines()


def test_a_message_that_is_none_is_a_sentence():
    done = hpcfl("bench", "own:Nothing", *SMALL)

    assert done.returncode == 2
    assert "NothingDevice.send_upload must return an array of bytes, uint8" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("place", "how", "method", "raised"),
    [
        ("send_upload", "divides", "phase upload: FailingDevice.send_upload", "ZeroDivisionError"),
        ("receive_upload", "ends", "phase upload: FailingServer.receive_upload", "SystemExit: 0"),
        ("device", "divides", "'failing': Failing.device", "ZeroDivisionError"),
    ],
)
def test_what_it_raises_in_a_round_is_a_sentence_with_its_line(
    place, how, method, raised, folder, monkeypatch
):
    monkeypatch.setenv("FAILING", f"{place} {how}")
    done = hpcfl("bench", "own:Failing", *SMALL, "--rounds", 3, "--output", "run.h5")
    wanted = "raise SystemExit(0)" if how == "ends" else "return 1 // 0"
    line = next(n for n, text in enumerate(OWN.splitlines(), 1) if wanted in text)
    said = done.stderr.splitlines()[-1]

    assert done.returncode == 1
    assert said.startswith("Error: round 1 of the protocol 'failing'")
    assert f"{method} raised {raised}" in said
    assert said.endswith(f"({folder}/own.py:{line})")
    assert "Traceback" not in done.stderr
    assert (load("run.h5").status, load("run.h5").rounds) == ("failed", 1)


def test_what_an_algorithm_of_ones_own_raises_in_a_round_is_a_sentence(folder):
    pytest.importorskip("torch")
    done = hpcfl("train", "own:FailingSigns", "--devices", 2, "--rounds", 2)

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert ": FailingSigns.contribution raised " in done.stderr.splitlines()[-1]


def test_a_mistake_of_hpcfl_is_not_put_on_a_protocol(monkeypatch):
    monkeypatch.setattr(timed, "as_planned", None)
    with pytest.raises(TypeError):
        api.bench("own:Plain", devices=3, dim=4, rounds=1, warmup=0)


def test_the_python_api_has_what_was_raised_as_the_cause(folder, monkeypatch):
    monkeypatch.setenv("FAILING", "send_upload ends")
    with pytest.raises(OwnCodeError) as raised:
        api.bench("own:Failing", devices=3, dim=4, rounds=3, warmup=0, output="run.h5")
    assert isinstance(raised.value.__cause__, SystemExit)


@pytest.mark.parametrize("name", ["salted", "plain"])
def test_its_rounds_are_predicted_from_what_it_declares(name, folder, monkeypatch):
    # As they are calibrated: by rounds of the protocol itself.
    monkeypatch.setattr(learning, "SIZES", learning.SIZES[:3])
    monkeypatch.setattr(learning, "VARIED_SIZES", ())
    told("calibrate", f"own:{name.title()}", "--output", "c.json")
    arguments = ("--devices", 6, "--dim", 40, "--calibration", "c.json")
    told("bench", f"own:{name.title()}", *SMALL, "--output", "run.h5")
    found = json.loads(told("predict", f"own:{name.title()}", *arguments, "--json"))
    (prediction,) = found["predictions"]
    run = load(folder / "run.h5")

    assert {run.bytes_up.sum(axis=1)[run.survived].mean()} == {prediction["bytes_up"]}
    assert prediction["server_cpu_seconds"] > 0


def test_what_it_exposes_is_what_it_declares():
    clear, salted = (
        json.loads(told("privacy", "exposure", given, "--simulated", 100, "--json"))
        for given in ("own:Plain", "own:Salted")
    )

    assert (clear["protocol"], clear["alone_of_sent"]["formula"]) == ("plain", 1.0)
    assert (salted["protocol"], salted["alone_of_sent"]["formula"]) == ("salted", 0.0)


def test_it_is_attacked_or_says_why_not():
    keep = ("--insecure-seed", 1, "--keep-transcript", "round.npz", "--output", "run.h5")
    told("bench", "own:Salted", *SMALL, "--gamma", 0.4, *keep)

    attacked = told("attack", "components", "round.npz", "--protocol", "own:Salted")
    assert "Beyond that it learned nothing." in attacked
    assert "name its class with --protocol" in refusal("attack", "components", "round.npz")
    assert "rounds of plain cannot be attacked: there is nothing to take off" in refusal(
        "bench", "own:Plain", *SMALL, *keep
    )


def test_what_an_algorithm_costs_is_what_it_declares():
    given = ("own:Loud", "--rounds", 3, "--zeta", 2, "--json")
    given += ("--devices", 4, "--per-round", 2)
    found = json.loads(told("privacy", "epsilon", *given, "--sigma", 1.5))
    noise = json.loads(told("privacy", "noise", *given, "--epsilon", found["paper"]["epsilon"]))

    assert found["settings"] | {"sigma": 1.5, "rounds": 3, "zeta": 2.0} == found["settings"]
    assert found["proven"]["epsilon"] == zcdp.exact_epsilon(3 * (2 / 1.5) ** 2 / 2, 1e-5)
    sigmas = [one["settings"]["sigma"] for one in noise["noise"].values()]
    assert sigmas == pytest.approx([1.5, 1.5])
    for wrong, said in (
        (("--theta", 1), "--theta"),
        (("--zeta=wide",), "'wide' is not a number"),
        (("--zeta",), "'--zeta' requires an argument"),
        (("--samples", 1), "loud has no setting samples"),
    ):
        assert said in refusal("privacy", "epsilon", *given, "--sigma", 1, *wrong)


def test_the_noise_of_an_algorithm_is_audited():
    pytest.importorskip("torch")
    audited = told("attack", "audit", "own:Loud", "--runs", 100)

    assert "It agrees with what is proven" in audited
    assert "--samples is for cdp" in refusal("attack", "audit", "own:Loud", "--samples", 2)
    assert "there is no private algorithm 'own:Signs'" in refusal("attack", "audit", "own:Signs")


def test_a_private_algorithm_is_trained_within_its_budget(folder):
    pytest.importorskip("torch")
    trained = told(
        *("train", "own:Loud", "--devices", 3, "--rounds", 2, "--epsilon", 5),
        *("--dataset", "digits", "--output", "trained", "--json"),
    )
    run = load(json.loads(trained)["path"])

    assert run.config["algorithm"] == "own:Loud"
    assert run.training["epsilon_proven"][-1] == pytest.approx(5, rel=1e-6)
