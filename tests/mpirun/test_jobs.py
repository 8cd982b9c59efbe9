import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from launcher import assert_refused, bench, hpcfl, mpirun, needs_mpirun

from hpcfl.algorithms.aggregation import find
from hpcfl.comm.phases import phase_names
from hpcfl.results import load
from hpcfl.system import launch

pytestmark = needs_mpirun

SMALL = ("--dim", 2000, "--rounds", 2, "--warmup", 1)


@pytest.mark.parametrize(
    "ranks", [5, *(pytest.param(n, marks=pytest.mark.full) for n in (2, 3, 17))]
)
@pytest.mark.parametrize("protocol", ["fedavg", "secagg", "sparse"])
def test_every_protocol_is_validated_on_any_number_of_ranks(tmp_path, ranks, protocol):
    devices = max(3, ranks - 1)
    (summary,) = bench(ranks, tmp_path, protocol, *SMALL, "--devices", devices)
    (path,) = tmp_path.glob("*.h5")
    run = load(path)

    assert (summary["rounds_validated"], summary["rounds_total"]) == (3, 3)
    assert summary["transport"] == "mpi"
    assert (run.status, run.devices, run.dim) == ("complete", devices, 2000)
    assert run.environment["ranks"] == ranks
    # A third of the devices drop out before the upload, rounded down.
    assert run.survived.sum(axis=1).tolist() == [devices - int(0.3 * devices)] * 3


RINGS = (
    ("secagg-graph", "--degree", 6, "--dropout", 0.1),
    ("sparse", "--degree", 6, "--dropout", 0.1, "--alpha", 0.5),
    ("cohort", "--degree", 6, "--dropout", 0.1, "--alpha", 0.3),
    ("cohort", "--alpha", 0.8),
)
PHASES = ("advertise_keys", "share_keys", "masked_input")


@pytest.mark.parametrize(
    ("options", "phase"),
    [
        pytest.param(ring, phase, marks=() if k % 3 == j else pytest.mark.full)
        for k, ring in enumerate(RINGS)
        for j, phase in enumerate(PHASES)
    ],
    ids=lambda value: "-".join(map(str, value[:3])) if isinstance(value, tuple) else value,
)
def test_rings_are_validated_whenever_devices_drop_out(tmp_path, options, phase):
    (summary,) = bench(4, tmp_path, *options, *SMALL, "--devices", 20, "--dropout-phase", phase)

    assert summary["rounds_validated"] == summary["rounds_total"] == 3


def test_without_the_option_every_rank_but_the_first_is_a_device(tmp_path):
    (summary,) = bench(5, tmp_path, "sparse", *SMALL)

    assert summary["devices"] == 4


@pytest.mark.parametrize(
    "options", [("secagg",), ("secagg", "--security", "active"), ("prf",)], ids="-".join
)
def test_devices_that_share_ranks_send_and_sum_the_same(tmp_path, options):
    runs, sums = [], []
    for ranks in (2, 3, 8):
        target = tmp_path / f"{ranks}.npy"
        shared = ("--devices", 7, "--save-aggregate", target)
        (summary,) = bench(ranks, tmp_path / str(ranks), *options, *SMALL, *shared)
        assert (summary["rounds_validated"], summary["rounds_total"]) == (3, 3)
        runs.append(load(Path(summary["path"])))
        sums.append(np.load(target))

    if "active" in options:
        # Of those who survived the upload, all that the server hears of are asked.
        check = runs[0].phases.index("consistency_check")
        assert (runs[0].bytes_up[:, check] > 0).sum(axis=1).tolist() == [5] * 3
    if "prf" in options:
        # They enrol once, before the first round.
        assert runs[0].bytes_up[0, 0].tolist() == [16 + 32] * 7
        assert runs[0].bytes_up[1:, 0].sum() == 0
    for run, total in zip(runs, sums, strict=True):
        for name in ("bytes_up", "bytes_down", "messages_up", "messages_down", "survived"):
            np.testing.assert_array_equal(getattr(run, name), getattr(runs[0], name))
        np.testing.assert_array_equal(total, sums[0])


def test_several_device_counts_in_one_launch_give_a_file_each(tmp_path):
    summaries = bench(6, tmp_path, "secagg", *SMALL, "--devices", "2,5,9")

    assert [summary["devices"] for summary in summaries] == [2, 5, 9]
    assert len(list(tmp_path.glob("secagg-*.h5"))) == 3
    assert all(summary["rounds_validated"] == 3 for summary in summaries)


@pytest.mark.parametrize("protocol", ["secagg", "prf"])
@pytest.mark.parametrize("group", ["fq", "ring32", "ring16"])
def test_uploads_summed_within_reduce_give_the_same_sum(tmp_path, protocol, group):
    options = (protocol, *SMALL, "--devices", 7, "--group", group)
    sums = []
    for upload in ("gather", "reduce"):
        target = tmp_path / f"{upload}.npy"
        bench(4, tmp_path / upload, *options, "--upload", upload, "--save-aggregate", target)
        sums.append(np.load(target))

    np.testing.assert_array_equal(sums[0], sums[1])


def test_helpers_on_ranks_of_their_own_tell_the_same(tmp_path):
    runs, sums = [], []
    for ranks in (1, 4, 6):
        target = tmp_path / f"{ranks}.npy"
        given = ("assisted", *SMALL, "--devices", 7, "--save-aggregate", target)
        (summary,) = bench(ranks, tmp_path / str(ranks), *given)
        assert (summary["rounds_validated"], summary["rounds_total"]) == (3, 3)
        runs.append(load(Path(summary["path"])))
        sums.append(np.load(target))

    traffic = ("bytes_up", "bytes_down", "messages_up", "messages_down")
    for run, total in zip(runs, sums, strict=True):
        for name in (*traffic, "survived", *(f"helper_{one}" for one in traffic)):
            np.testing.assert_array_equal(getattr(run, name), getattr(runs[0], name))
        np.testing.assert_array_equal(total, sums[0])
        assert (run.helper_cpu_seconds.sum(axis=1) > 0).all()
    # The enrolment comes before all rounds: nobody knows of its times in one.
    known = np.isfinite(runs[1].begin_seconds).all(axis=(0, 2))
    assert [phase != "advertise_keys" for phase in runs[1].phases] == known.tolist()
    assert ["server", "helper 0", "helper 1", "3"] == [runs[1].rank_name(k) for k in range(4)]
    # Of the last summary's six ranks, three hold devices.
    peaks = runs[2].peak_bytes[runs[2].measured]
    assert summary["helper_peak_bytes"] == peaks[:, 1:3].max()
    assert summary["device_peak_bytes"] == peaks[:, 3:].max()
    found = [(one["devices"], one["helpers"]) for one in runs[1].environment["placement"]]
    assert [([], []), ([], [0]), ([], [1]), ([*range(7)], [])] == found


def test_helpers_that_drop_out_cost_nothing_on_ranks_of_their_own(tmp_path):
    runs = []
    for ranks in (1, 6):
        given = ("assisted", *SMALL, "--devices", 7, "--helpers", 3, "--helper-dropout", 2)
        (summary,) = bench(ranks, tmp_path / str(ranks), *given)
        assert summary["rounds_validated"] == summary["rounds_total"]
        runs.append(load(Path(summary["path"])))

    for name in ("bytes_up", "bytes_down", "survived", "helper_bytes_up", "helper_bytes_down"):
        np.testing.assert_array_equal(getattr(runs[1], name), getattr(runs[0], name))
    assert {1} == {*(runs[1].helper_bytes_up[:, runs[1].phases.index("unmask")] > 0).sum(axis=1)}


@pytest.mark.full
@pytest.mark.parametrize(
    "protocol",
    [
        *("assisted", "committee", "lightsecagg"),
        pytest.param("ckks", marks=pytest.mark.skipif(not find_spec("tenseal"), reason="optional")),
    ],
)
@pytest.mark.parametrize("devices", [3, 40])
def test_helped_coded_and_encrypted_sums_are_the_same_on_any_number_of_ranks(
    tmp_path, protocol, devices
):
    """With dropouts before each phase, on one rank and on one of three other numbers in turn."""
    kind = find(protocol)
    phases = [name for name in phase_names(kind.steps) if name not in ("model", "result")]
    many = (2 + kind.default_helpers, 5, 17)
    # Which of them begins depends on the devices, so that each phase meets two of the three.
    for turn, phase in enumerate(phases, start=devices):
        given = (protocol, *SMALL, "--devices", devices, "--dropout", 0.1, "--dropout-phase", phase)
        sums = []
        for ranks in (1, many[turn % len(many)]):
            place = tmp_path / f"{phase}-{ranks}"
            (summary,) = bench(ranks, place, *given, "--save-aggregate", place.with_suffix(".npy"))
            assert summary["rounds_validated"] == summary["rounds_total"]
            sums.append(np.load(place.with_suffix(".npy")))
        np.testing.assert_array_equal(sums[1], sums[0])


@pytest.mark.parametrize("options", [("secagg",), ("common", "--alpha", 0.5, "--bits", 16)])
def test_a_server_of_several_ranks_sums_and_is_sent_the_same(tmp_path, options):
    runs, sums = [], []
    for servers in (1, 2):
        target = tmp_path / f"{servers}.npy"
        given = ("--devices", 7, "--dim", 70_000, "--rounds", 2, "--server-ranks", servers)
        (summary,) = bench(4, tmp_path / str(servers), *options, *given, "--save-aggregate", target)
        assert summary["rounds_validated"] == summary["rounds_total"]
        assert summary["server_ranks"] == servers
        runs.append(load(Path(summary["path"])))
        sums.append(np.load(target))

    for name in ("bytes_up", "bytes_down", "messages_up", "messages_down", "survived"):
        np.testing.assert_array_equal(getattr(runs[1], name), getattr(runs[0], name))
    np.testing.assert_array_equal(sums[1], sums[0])
    assert [runs[1].rank_name(rank) for rank in range(4)] == ["server 0", "server 1", "2", "3"]
    peaks = runs[1].peak_bytes[runs[1].measured]
    assert summary["server_peak_bytes"] == peaks[:, :2].max()
    assert summary["device_peak_bytes"] == peaks[:, 2:].max()
    assert [len(place["devices"]) for place in runs[1].environment["placement"]] == [0, 0, 4, 3]


def test_memory_of_the_server_and_of_devices_is_told_apart(tmp_path):
    """Rank 1 has two devices' vectors at once, the server one sum; each has its own start."""
    (summary,) = bench(
        3, tmp_path, "secagg", "--devices", 3, "--dim", 10**6, "--rounds", 1, "--dropout", 0
    )
    (path,) = tmp_path.glob("*.h5")
    run = load(path)

    assert run.resident_bytes.shape == run.peak_bytes.shape == (run.rounds, 3)
    # A sum of five bytes a coordinate, and a masked vector of four, less what was free: up to 2 MB
    # beside other programs.
    grown = run.peak_bytes - run.resident_bytes
    assert (grown[0] > [2.5e6, 2e6, 2e6]).all()
    for who, ranks in (("server", slice(1)), ("device", slice(1, None))):
        assert summary[f"{who}_ready_bytes"] == run.resident_bytes[0, ranks].max()
        assert summary[f"{who}_peak_bytes"] == run.peak_bytes[run.measured, ranks].max()


def test_devices_on_several_ranks_are_sent_what_has_changed_of_the_model(tmp_path):
    options = ("--devices", 5, "--dim", 1000, "--rounds", 2, "--warmup", 1, "--bits", 20)
    bench(3, tmp_path, "common", *options, "--model-update", "changed")
    (path,) = tmp_path.glob("*.h5")
    run = load(path)

    assert run.validated.all()
    received = run.bytes_down[:, run.phases.index("model"), :5]
    assert received.tolist() == [[16 + 4000] * 5, [16 + 400] * 5, [16 + 400] * 5]


def test_own_updates_are_aggregated_and_saved(tmp_path):
    updates = np.random.default_rng(1).normal(0, 0.1, (4, 50))
    np.save(tmp_path / "updates.npy", updates)
    options = ("--updates", tmp_path / "updates.npy", "--save-aggregate", tmp_path / "sum.npy")
    bench(5, tmp_path / "out", "secagg", *options, "--rounds", 1, "--dropout", 0)

    # Four devices of weight 1/4, each rounded to a level of 2^-20: the sum is four times the mean.
    np.testing.assert_allclose(
        np.load(tmp_path / "sum.npy"), updates.sum(axis=0), rtol=0, atol=4 * 4 / 2**20
    )


def test_a_rank_that_crashes_ends_the_job_with_its_traceback(tmp_path):
    job = mpirun(5, "hpcfl", "bench", "faulty_protocols:Crashing", *SMALL, "--output", tmp_path)

    assert job.returncode != 0
    assert "TypeError: unsupported operand" in job.stderr
    assert re.search(r"\[rank 3 on \S+\] Traceback", job.stderr)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("Dividing", "DividingDevice.send_upload"),
        ("DividingAtTheServer", "DividingServer.receive_upload"),
    ],
)
def test_what_code_of_ones_own_raises_is_said_by_one_rank(name, method, tmp_path):
    job = mpirun(5, "hpcfl", "bench", f"faulty_protocols:{name}", *SMALL, "--output", tmp_path)
    (path,) = tmp_path.glob("*.h5")
    (said,) = re.findall(r"^.*Error: .*$", job.stderr, re.MULTILINE)

    assert job.returncode != 0
    assert "Error: round 1 of the protocol 'dividing" in said
    assert f"phase upload: {method} raised ZeroDivisionError: " in said
    assert "faulty_protocols.py:" in said
    assert "Traceback" not in job.stderr
    assert load(path).rounds == 1


def test_a_device_that_refuses_costs_the_round_itself_and_is_reported(tmp_path):
    refusing = ("faulty_protocols:Refusing", *SMALL, "--dropout", 0)
    job = hpcfl(5, "bench", *refusing, "--output", tmp_path)
    (path,) = tmp_path.glob("*.h5")
    run = load(path)

    assert job.returncode == 0, job.stderr
    for index in range(len(run.validated)):
        line = f"round {index}: device 2 left the round in upload: device 2 refuses"
        assert job.stderr.count(line) == 1
    assert run.validated.all()
    assert [2] == np.flatnonzero(~run.survived.all(axis=0)).tolist()


def test_a_wrong_sum_fails_the_run_and_is_kept_as_evidence(tmp_path):
    job = hpcfl(4, "bench", "faulty_protocols:Wrong", *SMALL, "--output", tmp_path)
    (path,) = tmp_path.glob("*.h5")
    run = load(path)

    assert job.returncode == 1
    assert job.stderr.count("the aggregate of round 2 is wrong") == 1
    assert (run.status, run.validated.tolist()) == ("failed", [True, True, False])


def test_below_the_threshold_the_job_fails_once_and_keeps_finished_rounds(tmp_path):
    # With this seed rounds 0 and 1 keep enough of the six devices, and round 2 does not.
    options = ("--dropout", 0.4, "--dropout-model", "bernoulli", "--devices", 6, "--seed", 5)
    small = ("--dim", 100, "--rounds", 9, "--output", tmp_path)
    job = hpcfl(4, "bench", "secagg", *options, *small)
    (path,) = tmp_path.glob("*.h5")
    run = load(path)

    assert_refused(job, "Error: round 2 cannot end: ", status=1)
    assert "at least 4 are needed" in job.stderr
    assert (run.status, run.validated.tolist()) == ("failed", [True, True])


def test_a_missing_device_ends_the_job_once_with_a_sentence(tmp_path):
    deserting = ("faulty_protocols:Deserting", *SMALL, "--devices", 4, "--dropout", 0.3)
    job = hpcfl(3, "bench", *deserting, "--output", tmp_path)

    assert_refused(job, "round 0 cannot end: prf has no way to remove the masks", status=1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["sparse", "--alpha", "1.5"], "alpha is 1.5"),
        (["secagg", "--devices", "1"], "secagg needs at least 2 devices, but there are 1"),
        (["secagg", "--no-such-option"], "No such option"),
        (["nonsense"], "there is no protocol 'nonsense'"),
        (["secagg", "--output", "/proc/nothing"], "cannot write /proc/nothing"),
        (
            ["secagg", "--devices", "2", "--server-ranks", "3"],
            "3 ranks cannot do that and hold devices: start 4",
        ),
        (
            ["assisted", "--devices", "2"],
            "--helpers is 2: 3 ranks cannot do that and hold devices: start 4",
        ),
        (["sparse", "--devices", "3", "--server-ranks", "2"], "sparse cannot use --server-ranks"),
        (
            ["secagg", "--dim", "9", "--devices", "2", "--server-ranks", "2"],
            "has 9 values: too few",
        ),
        (
            ["secagg", "--devices", "2", "--server-ranks", "2", "--upload", "reduce"],
            "with --upload reduce one rank receives all of every upload",
        ),
        (["secagg", "--updates", "/nowhere.npy"], "there is no file /nowhere.npy"),
    ],
)
def test_wrong_use_is_refused_once_with_a_sentence(options, sentence):
    assert_refused(hpcfl(3, "bench", *options), sentence)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["bench", "sparse", "--alpha", "0"], "alpha is 0.0; it must be above 0"),
        # What one rank does alone fails without waiting for the others.
        (["privacy", "exposure", "nonsense"], "no protocol 'nonsense'"),
        (["privacy", "epsilon", "nonsense"], "no private algorithm 'nonsense'"),
        (["report", "nowhere"], "no file or folder nowhere"),
        (["attack", "components", "nowhere"], "nowhere cannot be read"),
    ],
)
def test_refused_ranks_leave_in_order(options, sentence):
    assert_refused(mpirun(3, "hpcfl", *options), sentence)


@pytest.mark.full
@pytest.mark.timeout(400)
def test_the_main_job_runs_on_101_ranks(tmp_path):
    (summary,) = bench(101, tmp_path, "sparse", "--rounds", 2, "--warmup", 0, limit_seconds=360)

    assert (summary["devices"], summary["dim"], summary["theta"]) == (100, 165_000, 0.3)
    assert (summary["rounds_validated"], summary["survivors_min"]) == (2, 70)


# Runs a command in the folder that has the rank's number.
IN_OWN_FOLDER = (
    'cd "$0/' + "".join(f"${{{name}}}" for name in launch.RANK_VARIABLES[:3]) + '" && "$@"'
)


@pytest.mark.parametrize("there", [True, False])
def test_ranks_that_read_other_vectors_are_named(tmp_path, there):
    for rank in range(3):
        (tmp_path / str(rank)).mkdir()
        if rank < 2 or there:
            # In a row of that rank's alone.
            rows = np.where(np.arange(4)[:, None] == 3, rank // 2, np.ones((4, 900)))
            np.save(tmp_path / str(rank) / "u.npy", rows)
    ran = ("bench", "secagg", "--updates", "u.npy", "--devices", 4, "--rounds", 1)
    job = mpirun(3, "bash", "-c", IN_OWN_FOLDER, tmp_path, "hpcfl", *ran)

    assert_refused(job, "do not read the same from u.npy")
    assert re.search(r"Error: rank 2 \(on \S+\) and rank 0 \(on \S+\) do not read", job.stderr)
    assert ("there is no file u.npy" in job.stderr) == (not there)
