"""What the accounts of all algorithms have in common."""

import math

import pytest

from hpcfl.algorithms.federated import PRIVATE, find_private
from hpcfl.errors import UsageError
from hpcfl.privacy.accounting.tables import guarantees

CDP = {
    "devices": 16,
    "per_round": 10,
    "batch_size": 32,
    "samples": 2441,
    "rounds": 20,
    "delta": 1e-4,
}
USERS = {"rounds": 5, "devices": 50, "per_round": 10}
SETTINGS = {
    "cdp": CDP,
    "dp-dsgd": CDP,
    "dp-fedavg": USERS,
    "locks": USERS | {"first_stage": 15},
    "fedsgd-dpc": {"rounds": 20, "devices": 10, "per_round": 5, "samples": 600},
}
INTEGERS = {"noise": "distributed", "honest": 9, "unit": 1e6, "dim": 50}


def account(name, **changes):
    return find_private(name).accountant.account(**{"sigma": 1.32, **SETTINGS[name], **changes})


@pytest.mark.parametrize("name", PRIVATE)
def test_calibrated_noise_is_enough_and_no_more(name):
    for found in find_private(name).accountant.noise(3.0, **SETTINGS[name]):
        side = {"paper": "paper", "proven": "proven", "same-rho tight": "tight"}[found.by]
        printed = float(f"{found.sigma:.6g}")
        assert getattr(account(name, sigma=printed), side).epsilon <= 3.0
        assert getattr(found.account, side).epsilon <= 3.0
        assert getattr(account(name, sigma=found.sigma * 0.99), side).epsilon > 3.0


def test_a_table_of_guarantees_says_whose_each_is():
    found = account("cdp")
    rows = guarantees(found).records()

    assert (found.algorithm, found.settings["batch_size"]) == ("cdp", 32)
    assert [row["value"] for row in rows][:3] == ["paper", "same-rho tight", "proven"]
    assert [row["epsilon"] for row in rows][::2] == [found.paper.epsilon, found.proven.epsilon]


def test_no_noise_is_found_where_there_is_none():
    noise = find_private("dp-fedavg").accountant.noise
    with pytest.raises(UsageError, match="nothing is released"):
        noise(3.0, **USERS | {"rounds": 0})
    with pytest.raises(UsageError, match="does not depend on sigma spends more"):
        noise(0.1, **USERS | {"sigma_count": 1e-3})
    with pytest.raises(UsageError, match="give epsilon alone"):
        noise(3.0, sigma=1.0, **USERS)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        *((name, {}) for name in PRIVATE),
        *(("cdp", {"shuffle": shuffle}) for shuffle in ("continuing", "straddling")),
        ("dp-fedavg", {"sampling": "exact"}),
        ("dp-fedavg", INTEGERS),
        ("locks", {"variant": "local"}),
        ("fedsgd-dpc", {"mechanism": "gaussian"}),
        ("fedsgd-dpc", {"delta": 1e-5}),
    ],
)
def test_no_rounds_cost_nothing(name, more):
    found = account(name, rounds=0, **more)

    assert {bound.epsilon for bound in (found.paper, *found.bounds)} == {0}


@pytest.mark.parametrize("more", [{"participations": 0}, INTEGERS | {"participations": 0}])
def test_a_device_that_never_takes_part_loses_nothing(more):
    assert account("dp-fedavg" if "noise" in more else "cdp", **more).proven.epsilon == 0


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("dp-fedavg", {}),
        ("dp-fedavg", {"sampling": "exact"}),
        ("dp-fedavg", INTEGERS),
        ("locks", {}),
        ("locks", {"variant": "local"}),
    ],
)
def test_failures_are_taken_off_delta(name, more):
    # First of the bounds: of distributed noise, the other one does not rest on what may fail.
    found = account(name, **more, rounds=4, failure=2e-6).bounds[0]
    less = account(name, **more, rounds=4, delta=2e-6).bounds[0]

    assert found.delta == 1e-5
    assert found.epsilon == pytest.approx(less.epsilon, rel=1e-6)
    assert "probability of at most 2e-06" in found.assumptions[-1]
    assert account(name, **more, rounds=5, failure=2e-6).bounds[0].epsilon == math.inf


COMMON = [
    ({"sigma": 0}, "sigma is 0"),
    ({"sigma": math.nan}, "sigma is nan"),
    ({"clip_norm": math.inf}, "clip norm is inf"),
    ({"rounds": -1}, "rounds is -1"),
    ({"rounds": 1.5}, "rounds is 1.5"),
    ({"rounds": math.nan}, "rounds is nan"),
    ({"devices": 0}, "devices is 0"),
    ({"per_round": 0}, "per round is 0"),
    ({"per_round": 51}, "51 of (10|16|50) devices a round"),
    ({"delta": 1}, "delta is 1"),
]
OWN = {
    "cdp": [
        ({"steps": 0}, "steps is 0"),
        ({"batch_size": 0}, "batch size is 0"),
        ({"colluding": 16}, "16 of 16 devices collude"),
        ({"lipschitz": 0.9}, "Lipschitz constant is 0.9"),
        ({"lipschitz": math.nan}, "Lipschitz constant is nan"),
        ({"shuffle": "some"}, "choose one of fresh, continuing, straddling"),
        ({"shuffle": "continuing", "secret_order": True}, "not with continuing epochs"),
        ({"participations": 21}, "in 21 of 20 rounds"),
        ({"participations": 0.5}, "participations is 0.5"),
        ({"integer_sigma": 0}, "integer sigma is 0"),
        ({"failure": 1}, "failure is 1"),
    ],
    "dp-dsgd": [({"steps": 10}, "one step a round, not 10")],
    "dp-fedavg": [
        ({"delta": 0}, "delta is 0"),
        ({"sampling": "some"}, "choose one of poisson, exact"),
        ({"sigma_count": 0}, "sigma count is 0"),
        ({"noise": "laplace"}, "choose one of central, distributed"),
        ({"honest": 3}, "honest is for distributed noise"),
        ({"participations": 3}, "participations is for distributed noise"),
        ({"noise": "distributed"}, "also needs honest, unit, dim"),
        ({"noise": "distributed", "honest": 3, "dim": 1}, "also needs unit$"),
        (INTEGERS | {"honest": 0}, "honest is 0"),
        (INTEGERS | {"honest": 51}, "51 of 50 devices are honest"),
        (INTEGERS | {"honest": 21, "sampling": "exact"}, "21 of 10 devices are honest"),
        (INTEGERS | {"unit": 0}, "unit is 0"),
        (INTEGERS | {"unit": 1e200}, "too large"),
        (INTEGERS | {"dim": 0}, "dim is 0"),
        (INTEGERS | {"participations": 101}, "in 101 of 5 rounds"),
        (INTEGERS | {"participations": -1}, "participations is -1"),
        (INTEGERS | {"honest_by_round": (9, 9)}, "2 numbers for 5 rounds"),
        (INTEGERS | {"honest_by_round": (-1,), "rounds": 1}, "honest by round is -1"),
        (INTEGERS | {"failure": -0.1}, "failure is -0.1"),
    ],
    "locks": [
        ({"first_stage": 0}, "first stage is 0"),
        ({"sigma_norms": 0}, "sigma norms is 0"),
        ({"sigma_norms": math.nan}, "sigma norms is nan"),
        ({"failure": 1.0}, "failure is 1.0"),
        ({"failure": math.nan}, "failure is nan"),
        ({"first_stage": 9}, "keeps 10 of the 9 users of stage 1, of 50"),
        ({"first_stage": 51}, "10 of the 51 users of stage 1, of 50"),
        ({"variant": "other"}, "choose one of trusted, local"),
        ({"first_stages": 5}, "for the variant local only"),
        ({"replies": 5}, "for the variant local only"),
        ({"replies": -1, "variant": "local"}, "replies is -1"),
        ({"first_stages": -1, "variant": "local"}, "first stages is -1"),
    ],
    "fedsgd-dpc": [
        ({"samples": 0}, "samples is 0"),
        ({"mechanism": "uniform"}, "choose one of laplace, gaussian"),
        ({"record_sampling": "some"}, "choose one of poisson, fixed"),
        ({"delta": -1e-5}, "delta is -1e-05"),
        ({"delta": 0, "mechanism": "gaussian"}, "delta is 0"),
        ({"fraction": 0}, "fraction is 0; it must be above 0"),
        (
            {"fraction": 1.1, "mechanism": "gaussian", "record_sampling": "fixed"},
            "fraction is 1.1; a sample of a fixed size",
        ),
        ({"fraction": math.nan, "mechanism": "gaussian"}, "fraction is nan"),
        ({"fraction": 0.5}, "with Laplace noise an answer uses all samples"),
        ({"fraction": 1e-5, "mechanism": "gaussian"}, "less than one of them"),
        ({"replies": 51}, "51 of 20 rounds"),
        ({"replies": -1}, "replies is -1"),
    ],
}


def test_wrong_settings_are_refused():
    for name, wrong, words in [
        (name, *case) for name, own in OWN.items() for case in (*COMMON, *own)
    ]:
        with pytest.raises(UsageError, match=words):
            account(name, **wrong)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("fedavg", {}, "no private algorithm 'fedavg'"),
        ("cdp", {}, "also needs"),
        ("locks", {"steps": 3}, "no setting"),
    ],
)
def test_what_has_no_account_or_lacks_a_setting_is_refused_in_a_sentence(name, settings, words):
    with pytest.raises(UsageError, match=words):
        find_private(name).accountant.account(sigma=1.0, **settings)
