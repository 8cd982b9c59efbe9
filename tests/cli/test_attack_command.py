from commandline import hpcfl, invoke

from hpcfl.attack import components
from hpcfl.attack.components import ExpectedCount
from hpcfl.errors import HpcflError

SMALL = ("--devices", 12, "--dim", 500, "--rounds", 1, "--warmup", 0)
ALPHA = ("--alpha", 0.3)


def keep(folder, protocol, *options):
    """Return the transcript of a round that the command line has run."""
    path = folder / f"{protocol}.npz"
    keeping = ("--insecure-seed", 1, "--keep-transcript", path, "--output", folder / "results")
    sent = () if protocol.startswith("secagg") else ALPHA
    done = invoke("bench", protocol, *SMALL, *sent, *keeping, *options)
    assert done.exit_code == 0, done.output
    return path


def test_a_kept_round_is_announced_attacked_and_explained(tmp_path):
    path = tmp_path / "round.npz"
    options = ("--insecure-seed", 1, "--keep-transcript", path, "--output", tmp_path)
    kept = hpcfl("bench", "sparse", *SMALL, *ALPHA, *options)
    done = hpcfl("attack", "components", path)
    text = " ".join(done.stdout.split())

    assert (kept.returncode, done.returncode) == (0, 0), done.stderr
    assert "warning: --insecure-seed is given: keys are not secret" in kept.stderr
    assert "warning: --keep-transcript is given: values are not secret either" in kept.stderr
    assert f"Transcript of the last round, insecure: {path}" in kept.stdout
    assert "protocol sparse, round 0" in text
    assert "12, of which 1 collude with the server; of the others 9 survived, 2 did not" in text
    assert "agrees yes, within 5 standard errors" in text
    assert "Every one of these sums was found, and equals that of the true values." in text
    assert "Beyond that it learned" in text
    assert "values by themselves" in text


def test_findings_that_do_not_agree_fail(tmp_path, monkeypatch):
    path = keep(tmp_path, "sparse")
    monkeypatch.setattr(components, "predict", lambda *_: ExpectedCount(10.0, 1.0, None))
    result = invoke("attack", "components", path)

    assert isinstance(result.exception, HpcflError)
    assert "are predicted: they differ by more than chance" in str(result.exception)
    assert "agrees            NO" in result.stdout
    assert "before the round  no closed form" in result.stdout
