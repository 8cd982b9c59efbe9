import json

import pytest
from commandline import invoke

from hpcfl.algorithms.federated import find_private

CDP = (
    *("--rounds", 20, "--devices", 16, "--per-round", 10),
    *("--batch-size", 32, "--samples", 2441, "--steps", 10, "--delta", 1e-4),
)


def test_both_epsilons_are_printed_with_what_they_assume():
    done = invoke("privacy", "epsilon", "cdp", "--sigma", 0.01353, *CDP)
    account = find_private("cdp").account.of(
        sigma=0.01353, rounds=20, devices=16, per_round=10, batch_size=32, samples=2441, steps=10,
        delta=1e-4,
    )  # fmt: skip
    lines = {line.split("  ")[0]: line for line in done.output.splitlines()}
    text = " ".join(done.output.split())

    assert done.exit_code == 0
    assert f"{account.paper().epsilon:.4g}" in lines["paper"]
    assert f"{account.proven().epsilon:.4g}" in lines["proven"]
    for assumption in (*account.paper().assumptions, *account.proven().assumptions):
        assert assumption in text


def test_json_is_the_account():
    done = invoke("privacy", "epsilon", "cdp", "--sigma", 0.01353, *CDP, "--convex", "--json")
    found = json.loads(done.output)
    assert found["paper"]["epsilon"] == pytest.approx(10, rel=1e-2)
    assert found["proven"]["epsilon"] == min(bound["epsilon"] for bound in found["bounds"])
    assert found["settings"]["convex"] is True


def test_noise_for_an_epsilon_is_found_by_both_counts():
    done = invoke("privacy", "noise", "cdp", "--epsilon", 10, *CDP, "--json")
    found = json.loads(done.output)["noise"]
    assert found["paper"]["settings"]["sigma"] == pytest.approx(0.01353, rel=1e-2)
    assert found["proven"]["proven"]["epsilon"] <= 10
