"""No option is ignored: whatever a protocol or an algorithm has no use for is refused."""

from dataclasses import fields
from itertools import product

import pytest

import hpcfl as package
from hpcfl.algorithms import federated
from hpcfl.algorithms.aggregation import PROTOCOLS
from hpcfl.benchmark import experiment
from hpcfl.errors import UsageError
from hpcfl.options.definition import options_of
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.options.training import TrainOptions
from hpcfl.rounds import usage
from hpcfl.sweeping import plan
from hpcfl.training import defaults

# Another value than the default, of every option that a protocol or an algorithm is asked about.
VALUES = {
    "alpha": 0.4,
    "dropout": 0.2,
    "dropout_model": "bernoulli",
    "dropout_phase": "result",
    "scaling": "paper",
    "degree": 4,
    "gamma": 0.2,
    "min_cohort": 2,
    "security_bits": 41,
    "security": "active",
    "group": "ring32",
    "bits": "16",
    "upload": "reduce",
    "sampler": "dense",
    "levels": 1000,
    "clip": 0.5,
    "committee": 3,
    "helpers": 3,
    "threads": 2,
    "rotate": True,
    "uplink_mbps": 10.0,
    "downlink_mbps": 10.0,
    "helper_mbps": 10.0,
    "latency_ms": 5.0,
    "sigma": 2.0,
    "noise_multiplier": 2.0,
    "clip_norm": 2.0,
    "epsilon": 4.0,
    "epsilon_by": "paper",
    "delta": 1e-6,
    "mechanism": "laplace",
    "noise": "distributed",
    "shuffle": "fresh",
    "convex": True,
    "quantile": 0.5,
    "first_stage": 5,
    "variant": "local",
    "sigma_norms": 2.0,
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_option_of_protocols_is_used_or_refused(protocol):
    """By bench, and alike by a plan: what a protocol does not declare cannot be given."""
    for name in sorted(usage.OF_PROTOCOLS):
        is_used_or_refused(protocol, name)


def is_used_or_refused(protocol, name):
    cohorts = {"alpha": 0.5} if protocol == "cohort" else {}
    given = {"protocol": protocol, "devices": 10} | cohorts | {name: VALUES[name]}
    options = experiment.resolved(given)
    # It says of every option what becomes of it, whatever its default is.
    used = name in usage.of_benchmark(options)
    dashed = name.replace("_", "-")
    content = {"grid": {key.replace("_", "-"): value for key, value in given.items()}}
    if not used:
        for refused in (lambda: experiment.asked(given), lambda: plan.combine(content, "a plan")):
            with pytest.raises(UsageError, match=f"{dashed}.* no use for it"):
                refused()
        return
    experiment.asked(given)
    (setting,) = plan.combine(content, "a plan")
    assert any(argument.startswith(f"--{dashed}") for argument in setting.arguments)
    try:
        found = experiment.Experiment.prepare(options, 10).config()
    except UsageError:
        return  # the value is refused, with its own reason
    plain = {key: value for key, value in given.items() if key != name} | cohorts
    other = experiment.Experiment.prepare(experiment.resolved(plain), 10).config()
    assert found != other


def test_all_options_of_protocols_and_algorithms_have_another_value_here():
    asked = usage.OF_PROTOCOLS | set(options_of(PrivacyOptions))
    assert asked == VALUES.keys()
    defaults_of = {field.name: field.default for field in fields(TrainOptions)}
    assert [] == [name for name, value in VALUES.items() if value == defaults_of[name]]


def test_an_option_of_algorithms_is_used_or_refused():
    for algorithm, name in product(
        federated.REGISTRY, sorted(defaults.OF_ALGORITHMS & VALUES.keys())
    ):
        given = {"algorithm": algorithm, name: VALUES[name]}
        if name in ("epsilon_by", "noise"):
            given |= {"sigma": 1.0, "aggregate": "secagg"}
        declared = federated.find(algorithm).uses(defaults.resolved(given, None))
        unused = given.keys() & defaults.OF_ALGORITHMS - declared
        if unused:
            with pytest.raises(UsageError, match=r"--\S+ is given, and .* no use for it"):
                defaults.asked(given)
        else:
            defaults.asked(given)


def test_the_api_refuses_what_it_would_ignore(tmp_path):
    for refused in (
        lambda: package.bench("fedavg", devices=3, dim=5, gamma=0.1, output=tmp_path),
        lambda: package.train("fedavg", devices=3, quantile=0.5, output=tmp_path),
        lambda: package.sweep(
            {"protocol": ["secagg", "fedavg"], "devices": 3, "alpha": [0.1, 0.2]}, output=tmp_path
        ),
    ):
        with pytest.raises(UsageError, match="no use for it"):
            refused()


def test_a_presets_settings_are_not_given_by_anybody():
    # It says alpha, which secagg has no use for.
    options = defaults.asked({"algorithm": "fedavg", "aggregate": "secagg"}, "sparse-secagg-mnist")
    assert options.alpha == 0.1


def test_combinations_of_a_grid_leave_out_what_their_protocol_has_no_use_for():
    grid = {"protocol": ["secagg", "sparse"], "devices": 5, "alpha": [0.1, 0.2]}
    found = [setting.arguments for setting in plan.combine({"grid": grid}, "a plan")]

    assert found == [
        ("secagg", "--devices=5"),
        ("secagg", "--devices=5"),
        ("sparse", "--alpha=0.1", "--devices=5"),
        ("sparse", "--alpha=0.2", "--devices=5"),
    ]
