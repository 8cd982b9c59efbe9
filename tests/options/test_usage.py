"""No option is ignored: whatever a protocol or an algorithm does not declare is refused."""

from dataclasses import fields

import pytest

from hpcfl.algorithms import federated
from hpcfl.algorithms.aggregation import ACTIVE, PROTOCOLS
from hpcfl.benchmark import experiment
from hpcfl.errors import UsageError
from hpcfl.options.definition import options_of
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.options.protocols import ProtocolOptions
from hpcfl.options.training import TrainOptions
from hpcfl.sweeping import plan
from hpcfl.training import defaults

# Another value than the default, of every option that a protocol or an algorithm may declare.
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
    "levels": 1000,
    "clip": 0.5,
    "committee": 3,
    "helpers": 3,
    "threads": 2,
    "transport_keys": "run",
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
    "first_stage": 5,
    "variant": "local",
    "sigma_norms": 2.0,
}


def test_all_options_of_protocols_and_algorithms_have_another_value_here():
    assert {*options_of(ProtocolOptions), *options_of(PrivacyOptions)} == VALUES.keys()
    defaults_of = {field.name: field.default for field in fields(TrainOptions)}
    assert [] == [name for name, value in VALUES.items() if value == defaults_of[name]]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_option_of_protocols_is_used_or_refused(protocol):
    """By bench, and alike by a plan: what a protocol does not declare cannot be given."""
    plain = {"protocol": protocol, "devices": 10} | ({"alpha": 0.5} if protocol == "cohort" else {})
    for name in options_of(ProtocolOptions):
        given = plain | {name: VALUES[name]}
        if name == "security" and protocol not in ACTIVE:
            continue  # there is no such class: see `find`
        options = experiment.resolved(given)
        unused = experiment.unused_by(options)
        content = {"grid": {key.replace("_", "-"): value for key, value in given.items()}}
        dashed = name.replace("_", "-")
        if name in unused:
            for refused in (
                lambda given=given: experiment.asked(given),
                lambda content=content: plan.combine(content, "a plan"),
            ):
                with pytest.raises(UsageError, match=f"use --{dashed}:|{dashed}: it is not an"):
                    refused()
            continue
        experiment.asked(given)
        try:
            found = experiment.Experiment.prepare(options, 10).config()
        except UsageError:
            continue  # the value is refused, with its own reason
        other = {key: value for key, value in given.items() if key != name} | plain
        assert found != experiment.Experiment.prepare(experiment.resolved(other), 10).config()


@pytest.mark.parametrize("algorithm", federated.REGISTRY)
def test_an_option_of_algorithms_is_used_or_refused(algorithm):
    for name in options_of(PrivacyOptions):
        given = {"algorithm": algorithm, name: VALUES[name]}
        if name in ("epsilon_by", "noise"):
            given |= {"sigma": 1.0, "aggregate": "secagg"}
        declared = {one for group in federated.find(algorithm).options for one in options_of(group)}
        if given.keys() & {*options_of(PrivacyOptions)} <= declared:
            defaults.asked(given)
        else:
            with pytest.raises(UsageError, match=r"does not use --\S+: leave it out"):
                defaults.asked(given)


def test_a_presets_settings_are_not_given_by_anybody():
    # It says alpha, which secagg has no use for.
    options = defaults.asked({"algorithm": "fedavg", "aggregate": "secagg"}, "sparse-secagg-mnist")
    assert options.alpha == 0.1
