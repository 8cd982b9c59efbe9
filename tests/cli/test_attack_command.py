import json

import pytest
from click.testing import CliRunner
from commandline import hpcfl, refusal

from hpcfl.attack import components
from hpcfl.attack.components import ExpectedCount, Findings, attack
from hpcfl.attack.tables import render
from hpcfl.attack.transcript import load
from hpcfl.cli.attack import command
from hpcfl.cli.bench import command as bench
from hpcfl.errors import HpcflError, UsageError

SMALL = ("--devices", 12, "--dim", 500, "--rounds", 1, "--warmup", 0, "--alpha", 0.3)


def run(*arguments):
    """Run the command in this process."""
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def keep(folder, protocol, *options):
    """Return the transcript of a round that the command line has run."""
    path = folder / f"{protocol}.npz"
    arguments = (protocol, *SMALL, "--insecure-seed", 1, "--keep-transcript", path, *options)
    done = CliRunner().invoke(bench, [*map(str, arguments), "--output", str(folder / "results")])
    assert done.exit_code == 0, done.output
    return path


def test_a_kept_round_is_announced_attacked_and_explained(tmp_path):
    path = tmp_path / "round.npz"
    options = ("--insecure-seed", 1, "--keep-transcript", path, "--output", tmp_path)
    kept = hpcfl("bench", "sparse", *SMALL, *options)
    done = hpcfl("attack", "components", path)
    text = " ".join(done.stdout.split())

    assert (kept.returncode, done.returncode) == (0, 0), done.stderr
    assert "Warning: --insecure-seed is given: keys are not secret." in kept.stderr
    assert "Warning: --keep-transcript is given: values are not secret either." in kept.stderr
    assert f"Transcript of the last round, insecure: {path}" in kept.stdout
    assert "protocol sparse, round 0" in text
    assert "12, of which 1 collude with the server; of the others 9 survived, 2 did not" in text
    assert "agrees yes, within 5 standard errors" in text
    assert "Every one of these sums was found, and equals that of the true values." in text
    assert "Beyond that it learned" in text
    assert "values by themselves" in text


def test_json_is_what_the_library_returns(tmp_path):
    path = keep(tmp_path, "sparse", "--gamma", 0.25)
    found = json.loads(run("components", path, "--json", "--largest", 4).stdout)
    same = attack(load(path), 4)

    assert found == json.loads(json.dumps(same.as_dict()))
    assert [one["size"] for one in found["sums"]] == [1, 2, 3, 4]
    assert found["alone_of_sent"] == found["sums"][0]["correct"] / found["sent"]
    assert found["alone_of_dim"] == found["sums"][0]["correct"] / (found["honest"] * 500)
    assert found["agrees"] is True
    assert found["prediction"]["low"] <= found["sums"][0]["correct"] <= found["prediction"]["high"]
    assert found["beyond"] == sum(one["beyond"] for one in found["sums"])
    assert "values" not in found


def test_the_table_holds_the_figures(tmp_path):
    path = keep(tmp_path, "sparse", "--gamma", 0.25)
    found = attack(load(path))
    one = found.alone
    (line,) = (line for line in render(found).splitlines() if line.startswith("values   "))
    cells = line.split()

    assert cells[1:3] == [str(one.tested), str(one.small)]
    assert cells[4:6] == [str(one.found), str(one.correct)]
    assert cells[6:] == [f"{one.correct / found.sent:.2%}", str(one.beyond), str(one.skipped)]
    assert f"recovered alone   {one.correct}, " in render(found)


def test_sums_alone_are_more_than_is_allowed(tmp_path):
    found = attack(load(keep(tmp_path, "sparse", "--gamma", 0.25)))
    found.alone.beyond = 0
    sums = found.sums[1].beyond + found.sums[2].beyond

    assert f"learned 0 values by themselves, and {sums} sums of 2 to 3" in render(found)


@pytest.mark.parametrize("protocol", ["secagg", "secagg-graph", "cohort"])
def test_the_others_are_said_to_hide_all_but_the_allowed_sums(tmp_path, protocol):
    # Some of this many sums are small by chance.
    text = run("components", keep(tmp_path, protocol, "--levels", 2**22, "--alpha", 0.9)).stdout

    assert "recovered alone   0, 0.0000% of what was sent" in text
    assert "Beyond that it learned nothing." in text
    assert "none of them is true" in " ".join(text.split())


def test_findings_that_do_not_agree_fail(tmp_path, monkeypatch):
    path = keep(tmp_path, "sparse")

    def wrong(*_):
        return ExpectedCount(10.0, 1.0, None)

    monkeypatch.setattr(components, "predict", wrong)
    result = run("components", path)

    assert isinstance(result.exception, HpcflError)
    assert "are predicted: they differ by more than chance" in str(result.exception)
    assert "agrees            NO" in result.stdout
    assert "before the round  no closed form" in result.stdout


@pytest.mark.parametrize(("count", "agrees"), [(94, False), (95, True), (105, True), (106, False)])
def test_the_interval_is_five_standard_errors(count, agrees):
    found = Findings.__new__(Findings)
    object.__setattr__(found, "sums", [components.Sums(1, correct=count)])
    object.__setattr__(found, "prediction", ExpectedCount(100.0, 1.0, None))

    assert found.agrees is agrees


def test_other_ranks_say_nothing(tmp_path, monkeypatch):
    path = keep(tmp_path, "secagg")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")

    assert run("components", path).stdout == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["attack", "components", "nowhere.npz"], "nowhere.npz cannot be read: No such file"),
        (["attack", "components", "/"], "cannot be read: Is a directory"),
        (["attack", "components"], "Missing argument 'TRANSCRIPT'"),
        (["attack", "components", "x", "--largest", "0"], "0 is not in the range"),
        (["attack", "nonsense"], "No such command 'nonsense'"),
        (["bench", "sparse", "--keep-transcript", "x.npz"], "together with --insecure-seed"),
        (
            ["bench", "fedavg", "--insecure-seed", "1", "--keep-transcript", "x.npz"],
            "rounds of fedavg cannot be attacked",
        ),
        (
            ["bench", "sparse", "--insecure-seed", "1", "--keep-transcript", "/proc/x"],
            "the transcript cannot be saved to /proc/x",
        ),
        (
            ["bench", "sparse", "--devices", "4,5", "--insecure-seed=1", "--keep-transcript=x"],
            "--keep-transcript takes one number of devices",
        ),
    ],
)
def test_wrong_use_is_one_sentence_and_status_2(arguments, sentence):
    assert sentence in refusal(*arguments)


def test_a_damaged_file_is_refused(tmp_path):
    path = keep(tmp_path, "sparse")
    content = bytearray(path.read_bytes())
    place = content.index(b"masked_input_data") + 5000
    content[place] ^= 1
    path.write_bytes(content)
    result = run("components", path)

    assert isinstance(result.exception, UsageError)
    assert "Bad CRC-32 for file 'masked_input_data.npy'" in str(result.exception)


def test_help_explains_and_shows_how():
    top, mine = hpcfl("attack", "--help"), hpcfl("attack", "components", "--help")

    assert "components" in top.stdout
    assert "hpcfl attack components round.npz" in mine.stdout
    assert "attack" in hpcfl("--help").stdout
