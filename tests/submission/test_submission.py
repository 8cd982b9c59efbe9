"""What is accepted: classes, archives, labels and scores."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import run_files
import tampered
from commandline import hpcfl, refusal

from hpcfl.algorithms.aggregation import PROTOCOLS
from hpcfl.results import load
from hpcfl.submission import archive, checks, describe
from hpcfl.submission.classes import CLASSES, SubmissionClass, fingerprint
from hpcfl.submission.scores import ROUND, scores
from hpcfl.submission.verify import verify

DOCUMENT = (Path(__file__).parents[2] / "docs" / "submissions.md").read_text(encoding="utf-8")


def pack(folder, output, job=None):
    """Pack the results of a folder as a user does."""
    script = folder / "job.sbatch" if job is None else job
    if job is None:
        script.write_bytes(tampered.JOB)
    return hpcfl(
        *("submit", "pack", folder, "--class", "small", "--job", script, "--output", output)
    )


def test_results_of_the_class_are_packed_and_accepted(own, tmp_path):
    done = pack(own, tmp_path / "x.zip")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Submission: {tmp_path / 'x.zip'}" in done.stdout
    found = hpcfl("submit", "verify", tmp_path / "x.zip")

    assert found.returncode == 0, found.stdout
    assert "\nACCEPTED: small, secagg, 2 launches\n" in found.stdout
    assert "refused" not in found.stdout.lower()
    (digest,) = [line.split()[1] for line in found.stdout.splitlines() if line.startswith("digest")]
    assert f"Digest: {digest}\n" in done.stdout


@pytest.mark.parametrize("protocol", [*PROTOCOLS, "dp-fedavg"])
def test_every_protocol_that_tolerates_dropouts_can_be_submitted(protocol, tmp_path, monkeypatch):
    if protocol == "ckks":
        pytest.importorskip("tenseal")
    # Cohorts of a tenth of the devices need some.
    devices = 100 if protocol == "cohort" else 6
    monkeypatch.setitem(CLASSES, "small", dataclasses.replace(tampered.TINY, devices=devices))
    folder = tampered.measure(tmp_path / "results", protocol, devices=devices)
    done = pack(folder, tmp_path / "x.zip")
    if protocol == "prf":
        assert "dropout is 0.0, and the class has 0.3" in done.stdout
        return

    assert done.returncode == 0, done.stdout
    found = verify(tmp_path / "x.zip")
    assert found.accepted
    assert [one.phase for one in found.scores] == [*load(folder / "0.h5").phases, ROUND]
    named = {name for one in found.scores for name in one.scores}
    assert ("member_cpu_seconds" in named) == (protocol in ("committee", "ckks"))
    assert ("helper_cpu_seconds" in named) == (protocol == "assisted")


@pytest.mark.parametrize(
    "options",
    [
        {"protocol": "secagg", "group": "ring16", "degree": 4},
        {"protocol": "secagg", "bits": "12", "rotate": True},
        {"protocol": "secagg", "server_ranks": 1, "threads": 2, "security": "active"},
        {"protocol": "sparse", "locations": "bitmap", "sampler": "dense"},
        {"protocol": "assisted", "helpers": 1},
        {"protocol": "committee", "committee": 6},
        {"protocol": "secagg", "upload": "reduce", "max_rounds": 5, "rel_ci": 0.9},
    ],
)
def test_what_a_class_leaves_free_is_accepted(options, tmp_path):
    folder = tampered.measure(tmp_path / "results", **options)
    done = pack(folder, tmp_path / "x.zip")

    assert done.returncode == 0, done.stdout + done.stderr


def test_what_would_be_refused_is_not_packed(own, tmp_path):
    for path in own.glob("*.h5"):
        tampered.edited(path, "config", dropout=0.1)
    done = pack(own, tmp_path / "x.zip")

    assert done.returncode == 1
    assert "h5: dropout is 0.1, and the class has 0.3; " in done.stdout
    assert done.stdout.endswith("nothing was written: 1 of 8 checks failed\n")
    assert not (tmp_path / "x.zip").exists()


def test_an_archive_is_the_same_bytes_whenever_and_from_wherever_it_is_made(own, tmp_path):
    pack(own, tmp_path / "a.zip")
    other = tampered.copy(own, tmp_path / "other")
    (other / "0.h5").rename(other / "z.h5")
    for path in other.glob("*.h5"):
        path.touch()
    pack(other, tmp_path / "b.zip", other / "job.sbatch")

    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    names = [*tampered.contents(tmp_path / "a.zip")]
    assert names == sorted(names)


def test_the_manifest_says_where_results_come_from(good):
    members = tampered.contents(good)
    manifest = json.loads(members[archive.MANIFEST])
    listed = manifest["files"]

    assert manifest["schema"] == "hpcfl/1"
    assert listed.keys() == members.keys() - {archive.MANIFEST}
    for name, about in listed.items():
        assert about == vars(archive.digest(members[name]))
    for launches in manifest["environment"].values():
        (facts,) = launches
        assert facts["git_commit"].startswith("0123456789abcdef")
        assert facts["git_dirty"] is False
        assert {"cpu_model", "hosts", "mpi_library", "numpy_version"} <= facts.keys()


@pytest.mark.parametrize(
    ("content", "says"), [(b"\xff\xfe", "can't decode"), (b"x" * (2**20 + 1), "exceed the limit")]
)
def test_a_job_script_is_a_text(content, says, own, tmp_path):
    (tmp_path / "job").write_bytes(content)
    arguments = ("submit", "pack", own, "--class", "small", "--output", tmp_path / "x.zip")
    assert says in refusal(*arguments, "--job", tmp_path / "job")
    assert "cannot be read as a job script" in refusal(*arguments, "--job", tmp_path / "none")


def test_a_submission_is_a_zip_file(own, tmp_path):
    arguments = ("submit", "pack", own, "--class", "small", "--job", own / "0.h5")
    assert "does not end in .zip: the" in refusal(*arguments, "--output", tmp_path / "x.tar")


def test_too_many_files_are_refused_before_anything_is_written(tmp_path):
    sources = {archive.result_name(f"{number:032x}"): b"" for number in range(1001)}
    with pytest.raises(Exception, match="at most 1000 files"):
        archive.write(tmp_path / "x.zip", sources)
    assert [*tmp_path.iterdir()] == []


# Labels: what an environment says, and the label that follows.
LABELS = {
    "oversubscribed": ({"host_ranks": "[101]", "cores_usable": 2}, "101 ranks on 2 cores"),
    "load": ({"before_load_1min": np.array([9.5]), "cores_usable": 2}, "a load of 9.5 on 2 cores"),
    "swap": (
        {"before_swapped_in_bytes": np.zeros(1), "after_swapped_in_bytes": np.array([2.0**24])},
        "16 MiB were swapped in",
    ),
    "links": ({"transport": "netlab"}, "shaped the links"),
    "virtual devices": (
        {"transport": "mpi", "placement": '[{"devices": []}, {"devices": [0, 1, 2]}]'},
        "up to 3 devices on a rank",
    ),
    "one process": ({"transport": "loopback"}, "no communication"),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_say_what_times_have_in_them_and_refuse_nothing(name, own, tmp_path):
    facts, sentence = LABELS[name]
    for path in own.glob("*.h5"):
        tampered.edited(path, "environment", **facts)
    done = pack(own, tmp_path / "x.zip")
    found = verify(tmp_path / "x.zip")

    assert found.accepted, done.stdout
    assert any(one.name == name and sentence in one.sentence for one in found.labels)
    shown = hpcfl("submit", "verify", tmp_path / "x.zip").stdout
    assert f"label    {name}" in shown
    assert f"label    {name}" in done.stdout


def test_a_protocol_of_ones_own_is_labelled(tmp_path, monkeypatch):
    examples = Path(__file__).parents[2] / "examples"
    monkeypatch.syspath_prepend(examples)
    folder = tampered.measure(tmp_path / "results", "own_protocol:SignSum")
    done = pack(folder, tmp_path / "x.zip")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "label    own protocol" in done.stdout


def test_resumed_results_are_labelled_and_every_launch_of_them_is_checked(own, tmp_path):
    run = load(own / "0.h5")
    dirty = run.environment | {"git_dirty": True, "first_round": 2}
    run.resumed.append(dirty)
    other = load(own / "1.h5")
    found = {one.name: one.problems for one in checks.check([run, other], tampered.TINY)}

    assert "differs from its commit" in found["commit"][0]
    assert "resumed" in {one.name for one in checks.labels([run, other])}


def test_scores_are_medians_of_launches_with_their_intervals(tmp_path):
    runs = []
    for scale in range(1, 7):
        records = [run_files.simple_record(scale, warmup=number == 0) for number in range(3)]
        runs.append(load(run_files.write_run(tmp_path / f"{scale}.h5", records)))
    found = {one.phase: one.scores for one in scores(runs)}

    assert [*found] == [*run_files.PHASES, ROUND]
    # 20 ms at the server and 5 ms at the slowest device, times 1 to 6.
    server, device = (found["masked_input"][f"{who}_cpu_seconds"] for who in ("server", "device"))
    assert server.median == pytest.approx(0.070)
    assert (server.interval.low, server.interval.high) == pytest.approx((0.020, 0.120))
    assert device.median == pytest.approx(0.0175)
    assert found["masked_input"]["wall_seconds"].median == pytest.approx(0.0315)
    assert found["masked_input"]["device_up_bytes"].median == pytest.approx(200 * 3.5)
    # Between barriers, not the 18 ms of its phases.
    assert found[ROUND]["wall_seconds"].median == pytest.approx(0.35)
    assert found[ROUND]["server_cpu_seconds"].median == pytest.approx(0.21)
    assert found[ROUND]["device_up_bytes"].median == pytest.approx(210 * 3.5)
    assert not any(name.startswith(("helper", "member")) for name in found[ROUND])


def test_scores_of_few_launches_have_no_interval(good):
    found = json.loads(hpcfl("submit", "verify", good, "--json").stdout)

    assert found["accepted"]
    assert found["scores"][-1]["phase"] == ROUND
    for name, score in found["scores"][-1].items():
        if name != "phase":
            assert name.endswith(("_seconds", "_bytes"))
            assert score["median"] >= 0
            assert score["low"] is score["high"] is None


def test_real_classes_have_launches_enough_for_an_interval():
    from hpcfl.results.statistics import median_interval

    for one in REAL:
        assert median_interval(range(one.launches)).known
        assert not median_interval(range(one.launches - 1)).known


REAL = [SubmissionClass(one.name, one.devices, one.dim, one.rounds) for one in CLASSES.values()]


def test_the_sizes_of_the_classes_are_these():
    assert [(one.devices, one.dim) for one in REAL] == [
        (100, 165_000),
        (1_000, 1_000_000),
        (10_000, 10_000),
    ]


def test_a_fingerprint_is_of_the_content_and_not_of_its_order():
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
    assert len({one.fingerprint for one in REAL}) == 3


def test_the_commands_of_the_classes_make_what_they_fix(monkeypatch):
    from hpcfl.benchmark.experiment import asked
    from hpcfl.cli.bench import command

    for one in REAL:
        words = one.command.split()[5:]
        with command.make_context("bench", ["secagg", *words[1:]]) as context:
            given = {name: value for name, value in context.params.items() if value}
        options = asked({name: given[name] for name in ("protocol", "devices", "dim", "rounds")})
        config = options.recorded() | {"devices": one.devices, "kill": None}

        assert one.differences(config) == {}
        assert options.rounds == one.rounds


@pytest.mark.parametrize("part", ["classes", "fixed", "free"])
def test_the_document_says_what_classes_are(part, monkeypatch):
    for one in REAL:
        monkeypatch.setitem(CLASSES, one.name, one)
    made = {
        "classes": lambda: describe.sizes().markdown(),
        "fixed": describe.fixed,
        "free": describe.free,
    }
    start, end = f"<!-- {part} -->\n", f"\n<!-- /{part} -->"
    found = DOCUMENT[DOCUMENT.index(start) + len(start) : DOCUMENT.index(end)]
    words = " ".join(found.replace("`", "").split()) if part != "classes" else found

    assert words == made[part]()


def test_the_document_names_every_check_and_label(good):
    names = [one.name for one in verify(good).checks]
    for name in (*names, *LABELS, "quota", "heat", "stolen", "own protocol", "resumed"):
        assert f"| `{name}` |" in DOCUMENT, name


def test_classes_are_shown_with_their_commands(monkeypatch):
    for one in REAL:
        monkeypatch.setitem(CLASSES, one.name, one)
    shown = json.loads(hpcfl("submit", "classes", "--json").stdout)["classes"]

    assert [*shown] == [*CLASSES] == ["small", "large", "many"]
    for one in REAL:
        assert shown[one.name]["command"] == one.command
        assert shown[one.name]["fixed"]["dropout"] == 0.3
        assert shown[one.name]["class_hash"] == one.fingerprint
    assert "--dim 1000000" in hpcfl("submit", "classes").stdout
