import json

import pytest
from commandline import hpcfl, invoke

from hpcfl.attack import components
from hpcfl.attack.components import ExpectedCount, Findings, attack
from hpcfl.attack.tables import render
from hpcfl.attack.transcript import load
from hpcfl.errors import HpcflError, UsageError

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


def test_json_and_the_table_are_what_the_library_returns(tmp_path):
    path = keep(tmp_path, "sparse", "--gamma", 0.25)
    found = json.loads(invoke("attack", "components", path, "--json", "--largest", 4).stdout)
    same = attack(load(path), 4)
    one = same.alone
    (line,) = (line for line in render(same).splitlines() if line.startswith("values   "))
    cells = line.split()

    assert found == json.loads(json.dumps(same.as_dict()))
    assert [one["size"] for one in found["sums"]] == [1, 2, 3, 4]
    assert found["alone_of_sent"] == found["sums"][0]["correct"] / found["sent"]
    assert found["alone_of_dim"] == found["sums"][0]["correct"] / (found["honest"] * 500)
    assert found["agrees"] is True
    assert found["prediction"]["low"] <= found["sums"][0]["correct"] <= found["prediction"]["high"]
    assert found["beyond"] == sum(one["beyond"] for one in found["sums"])
    assert "values" not in found
    assert cells[1:3] == [str(one.tested), str(one.small)]
    assert cells[4:6] == [str(one.found), str(one.correct)]
    assert cells[6:] == [f"{one.correct / same.sent:.2%}", str(one.beyond), str(one.skipped)]
    assert f"recovered alone   {one.correct}, " in render(same)
    # Sums alone are more than is allowed, too.
    one.beyond = 0
    sums = sum(each.beyond for each in same.sums)
    assert f"learned 0 values by themselves, and {sums} sums of 2 to 4" in render(same)


@pytest.mark.parametrize("protocol", ["secagg", "secagg-graph", "cohort"])
def test_the_others_are_said_to_hide_all_but_the_allowed_sums(tmp_path, protocol):
    # Some of this many sums are small by chance.
    alpha = ("--alpha", 0.9) if protocol == "cohort" else ()
    path = keep(tmp_path, protocol, "--levels", 2**22, *alpha)
    text = invoke("attack", "components", path).stdout

    assert "recovered alone   0, 0.0000% of what was sent" in text
    assert "Beyond that it learned nothing." in text
    assert "none of them is true" in " ".join(text.split())


def test_a_round_with_few_bits_that_agrees_does_not_fail(tmp_path):
    path = keep(tmp_path, "sparse", "--bits", 16, "--gamma", 0.3334)
    result = invoke("attack", "components", path)

    assert result.exit_code == 0, result.output
    assert "agrees            yes" in result.stdout
    assert "Not recognised, nor shown to be hidden" in result.stdout
    assert "learned nothing" not in result.stdout


def test_findings_that_do_not_agree_fail(tmp_path, monkeypatch):
    path = keep(tmp_path, "sparse")
    monkeypatch.setattr(components, "predict", lambda *_: ExpectedCount(10.0, 1.0, None))
    result = invoke("attack", "components", path)

    assert isinstance(result.exception, HpcflError)
    assert "are predicted: they differ by more than chance" in str(result.exception)
    assert "agrees            NO" in result.stdout
    assert "before the round  no closed form" in result.stdout


@pytest.mark.parametrize(("count", "agrees"), [(94, False), (95, True), (105, True), (106, False)])
def test_the_interval_is_five_standard_errors(count, agrees):
    found = Findings.__new__(Findings)
    object.__setattr__(found, "unmasked", count)
    object.__setattr__(found, "prediction", ExpectedCount(100.0, 1.0, None))

    assert found.agrees is agrees


def test_a_damaged_file_is_refused(tmp_path):
    path = keep(tmp_path, "sparse")
    content = bytearray(path.read_bytes())
    content[content.index(b"masked_input_data") + 5000] ^= 1
    path.write_bytes(content)
    result = invoke("attack", "components", path)

    assert isinstance(result.exception, UsageError)
    assert "Bad CRC-32 for file 'masked_input_data.npy'" in str(result.exception)
