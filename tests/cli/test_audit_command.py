from commandline import invoke

from hpcfl.audit import measure
from hpcfl.crypto.noise import FastNoise
from hpcfl.errors import HpcflError


def test_the_table_compares_paper_measured_and_proven(monkeypatch):
    audits = []

    def noted(*given, **options):
        audits.append(audit(*given, **options))
        return audits[-1]

    audit = measure.audit
    monkeypatch.setattr(measure, "audit", noted)
    done = invoke("attack", "audit", "cdp", "--runs", 200, "--seed", 2)
    (found,) = audits
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


def test_less_noise_than_proven_fails(monkeypatch):
    draw = FastNoise.gaussian
    monkeypatch.setattr(FastNoise, "gaussian", lambda self, size, std: draw(self, size, std / 2))
    done = invoke("attack", "audit", "cdp", "--samples", 1, "--runs", 200)

    assert isinstance(done.exception, HpcflError)
    assert "there is less noise than the account assumes" in str(done.exception)
    assert "CONTRADICTS" in done.output
