import json

from commandline import invoke

from hpcfl.audit.instance import Instance, default
from hpcfl.audit.measure import audit
from hpcfl.crypto.noise import FastNoise
from hpcfl.errors import HpcflError


def test_the_table_compares_paper_measured_and_proven():
    done = invoke("attack", "audit", "cdp", "--runs", 200, "--seed", 2)
    found = audit(default("cdp"), 200, seed=2)
    assert done.exit_code == 0, done.output
    assert found.gaussian is not None
    rows = {line.split("  ")[0]: line for line in done.output.splitlines()}

    for row, epsilon in (
        ("paper", found.paper),
        ("measured, at least", found.measured.epsilon),
        ("measured by mu, at least", found.gaussian.epsilon),
        ("proven", found.proven),
    ):
        assert rows[row].removeprefix(row).split()[0] == f"{epsilon:.4g}"
    assert "neighbours      replace one record" in done.output
    assert "1, 1 times in the rounds of its device" in done.output
    assert f"refutes the paper's {found.paper:.4g}" in " ".join(done.output.split())


def test_json_is_what_the_library_returns():
    options = ("--sigma", 2, "--samples", 3, "--batch-size", 3, "--rounds", 1, "--delta", 1e-3)
    done = invoke("attack", "audit", "cdp", "--runs", 40, "--json", "--confidence", 0.9, *options)
    instance = Instance("cdp", 2.0, samples=3, batch_size=3, delta=1e-3)
    same = audit(instance, 40, confidence=0.9)

    assert done.exit_code == 0, done.output
    assert json.loads(done.output) == json.loads(json.dumps(same.as_dict()))


def test_options_of_every_algorithm_reach_it():
    for algorithm, *options in (
        ("dp-dsgd", "--aggregate", "fedavg", "--devices", 4),
        ("fedsgd-dpc", "--mechanism", "laplace", "--samples", 1, "--shuffle", "fresh"),
        ("dp-fedavg", "--sampling", "exact", "--per-round", 1),
        ("locks", "--variant", "trusted", "--first-stage", 1, "--sigma-norms", 2),
    ):
        done = invoke("attack", "audit", algorithm, "--runs", 20, "--json", *options)
        assert done.exit_code == 0, done.output
        instance = json.loads(done.output)["instance"]
        for option, value in zip(options[::2], options[1::2] or [True], strict=True):
            assert instance[str(option)[2:].replace("-", "_")] == value


def test_less_noise_than_proven_fails(monkeypatch):
    draw = FastNoise.gaussian
    monkeypatch.setattr(FastNoise, "gaussian", lambda self, size, std: draw(self, size, std / 2))
    done = invoke("attack", "audit", "cdp", "--samples", 1, "--runs", 200)

    assert isinstance(done.exception, HpcflError)
    assert "there is less noise than the account assumes" in str(done.exception)
    assert "CONTRADICTS" in done.output
