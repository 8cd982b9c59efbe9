import h5py
import numpy as np
import pytest
from player import Said

import hpcfl
from hpcfl.algorithms.aggregation.fedavg import FedAvg, FedAvgDevice
from hpcfl.algorithms.aggregation.secagg import SecAgg, SecAggServer
from hpcfl.algorithms.parameters import Parameters
from hpcfl.benchmark.experiment import Experiment
from hpcfl.cli.watching import Spoken
from hpcfl.comm.loopback import Loopback
from hpcfl.crypto import keystream
from hpcfl.crypto.discrete_gaussian import LARGEST_SIGMA
from hpcfl.crypto.groups import GROUPS
from hpcfl.errors import UsageError, ValidationError
from hpcfl.options.bench import BenchOptions
from hpcfl.rounds import rates, validation
from hpcfl.rounds.observer import Results, Together
from hpcfl.rounds.timed import Played
from hpcfl.rounds.validation import as_expected


def run(protocol, devices=6, **options):
    """Return the records of all rounds of a small experiment."""
    options = {"dim": 300, "rounds": 2, "warmup": 1} | options
    rounds = Results[Played]()
    experiment = Experiment.prepare(BenchOptions(protocol=protocol, **options), devices)
    experiment.run(Loopback(devices), Together(rounds, Spoken()))
    return rounds.records


@pytest.mark.parametrize("phase", ["advertise_keys", "share_keys", "masked_input", "unmask"])
def test_devices_can_drop_out_before_any_phase(phase):
    records = run("secagg", dropout_phase=phase)
    index = ["model", "advertise_keys", "share_keys", "masked_input", "unmask"].index(phase)

    for record in records:
        silent = record.messages_up[index:-1].sum(axis=0) == 0
        assert record.validated
        assert silent.sum() == 1
        # Who drops out after the upload is still part of the sum.
        assert int(record.survived.sum()) == (6 if phase == "unmask" else 5)


def test_a_wrong_sum_is_stored_unvalidated_and_fails(monkeypatch):
    finish = SecAggServer.finish_result

    def finish_wrongly(self):
        finish(self)
        self.total[17] += 1

    monkeypatch.setattr(SecAggServer, "finish_result", finish_wrongly)
    rounds = Results[Played]()
    experiment = Experiment.prepare(BenchOptions("secagg", dim=300), 6)
    with pytest.raises(ValidationError, match="the aggregate of round 0 is wrong"):
        experiment.run(Loopback(6), rounds)

    assert [record.validated for record in rounds.records] == [False]


def test_a_survivor_left_out_of_the_sum_is_noticed(monkeypatch):
    finish = SecAggServer.finish_result

    def forget_one(self):
        finish(self)
        self.survivors = self.survivors[1:]

    monkeypatch.setattr(SecAggServer, "finish_result", forget_one)
    with pytest.raises(ValidationError):
        run("secagg")


class Device:
    """A device that adds its vector as it is."""

    def __init__(self, id):
        self.id = id

    def contribution(self, vector):
        return slice(None), vector

    def contributions(self, vector):
        yield self.contribution(vector)


def test_float_sums_are_compared_within_their_rounding_error():
    vectors = np.array([[0.1, 1e9], [0.2, 1.0], [0.3, -1e9]])
    devices = [Device(id) for id in range(3)]
    protocol = FedAvg(Parameters(3, 2))

    def right(*total):
        found = np.array(total)
        return as_expected(protocol, Loopback(3), devices, vectors.__getitem__, found)

    assert right(0.3 + 0.2 + 0.1, 1.0)
    assert not right(0.6 + 1e-12, 1.0)
    assert not right(0.6)
    assert not right(0.6, 1.0, 0.0)


def test_long_float_sums_are_compared_part_by_part(monkeypatch):
    monkeypatch.setattr(validation, "PART", 70)
    vectors = np.random.default_rng(1).normal(size=(3, 200)).astype(np.float32)
    protocol = FedAvg(Parameters(3, 200))
    devices = [FedAvgDevice(protocol, id) for id in range(3)]
    total = sum(device.contribution(vectors[device.id])[1] for device in devices)
    for place in (None, 0, 69, 70, 199):
        wrong = total.copy()
        if place is not None:
            wrong[place] += 1e-9
        found = as_expected(protocol, Loopback(3), devices, vectors.__getitem__, wrong)
        assert found == (place is None)


def test_long_uploads_are_compared_with_the_keystream_of_the_same_job(monkeypatch, tmp_path):
    monkeypatch.setattr(rates, "LONG_BYTES", 4_000)
    monkeypatch.setattr(keystream, "bytes_per_second", lambda: 1e9)
    options = {"devices": 4, "dim": 3_000, "rounds": 1, "warmup": 1, "dropout": 0.0, "bits": "16"}
    found = hpcfl.bench("secagg", **options, output=tmp_path / "long.h5")
    figures, spent = found.summary(), np.median(found.cpu_seconds[1, 3, :4])
    assert figures["keystream_share"] == pytest.approx(4 * 2 * 3_000 / 1e9 / spent)
    sent = found.bytes_up[1, 3].sum() / found.wall_seconds[1, 3, -1]
    assert figures["upload_bytes_per_second"] == pytest.approx(sent)
    assert figures["mpi_bytes_per_second"] is None  # one process
    short = hpcfl.bench("secagg", **options | {"dim": 100}, output=tmp_path / "short.h5")
    assert short.summary()["keystream_bytes_per_second"] is None


@pytest.mark.parametrize(("bits", "right"), [(8, False), (12, True)])
def test_a_sum_that_wrapped_around_is_no_right_sum(bits, right):
    """Though both paths would wrap alike: the range is what no sum may leave."""
    group = GROUPS[f"ring{bits}"]
    protocol = SecAgg(Parameters(3, 2, group=group.name, levels=1))
    vectors = np.array([[100, -3], [100, 1], [50, 1]])
    total = group.signed(group.reduce(vectors.sum(axis=0)))

    devices = [Device(id) for id in range(3)]
    found = as_expected(protocol, Loopback(3), devices, vectors.__getitem__, total)
    assert found == right


def test_dim_must_fit_the_updates(tmp_path):
    np.save(tmp_path / "u.npy", np.ones((3, 5)))
    with pytest.raises(UsageError, match=r"--dim is 6, but the rows of .* have 5 numbers"):
        Experiment.prepare(BenchOptions("fedavg", dim=6, updates=tmp_path / "u.npy"), 3)

    assert (
        Experiment.prepare(BenchOptions("fedavg", updates=tmp_path / "u.npy"), 3).updates.dim == 5
    )


@pytest.mark.parametrize(
    ("protocol", "value"),
    [("fedavg", np.nan), ("secagg", np.inf), ("sparse", np.nan), ("cohort", np.inf)],
)
def test_a_vector_that_is_not_finite_costs_the_round_its_device(tmp_path, protocol, value, capsys):
    rows = np.ones((10, 30))
    # Of every coordinate, as a device of a sparse protocol sends only some.
    rows[2] = value
    np.save(tmp_path / "u.npy", rows)
    options = {"dim": None, "updates": tmp_path / "u.npy", "alpha": 0.5}
    records = run(protocol, 10, **options, seed=3)

    assert all(record.validated for record in records)
    # Three others drop out, as planned.
    assert all(set(np.flatnonzero(~record.survived)) >= {2} for record in records)
    assert [int(record.survived.sum()) for record in records] == [6, 6, 6]
    assert "device 2 refuses to upload its vector" in capsys.readouterr().err


def test_sums_of_a_cohort_are_right_where_those_of_all_devices_would_not_fit(tmp_path):
    """Six devices are in a coordinate's sum; all twenty together would leave the group's range."""
    np.save(tmp_path / "u.npy", np.ones((20, 60), np.float32))
    options = {"dim": None, "updates": tmp_path / "u.npy", "dropout": 0.0, "gamma": 0.0}
    records = run("cohort", 20, alpha=0.3, bits="16", **options)

    assert all(record.validated for record in records)


@pytest.mark.parametrize("options", [("secagg", 0.0), ("prf", 0.0), ("sparse", 0.3)])
def test_the_device_whose_values_are_clipped_is_named_once(tmp_path, options):
    """Wherever it is among the devices of a rank, and in whichever round it takes part."""
    (protocol, dropout), said = options, Said()
    rows = np.full((20, 40), 0.5)
    rows[:, ::2] *= -1
    rows[15, :10] = 4.0
    np.save(tmp_path / "u.npy", rows)
    chosen = {"dim": None, "updates": tmp_path / "u.npy", "alpha": 0.5}
    options = BenchOptions(protocol, rounds=4, dropout=dropout, clip=3.2, **chosen)
    Experiment.prepare(options, 20).run(Loopback(20), said)
    (told,) = [sentence for sentence in said.sentences if "device 15 " in sentence]
    assert "values of device 15 are beyond --clip 3.2 and are cut to it" in told


@pytest.mark.parametrize("protocol", ["pine", "dp-fedavg"])
def test_a_vector_clipped_to_a_norm_is_told_unless_an_account_needs_it(tmp_path, protocol):
    said, rows = Said(), np.full((6, 40), 0.1)
    rows[4] = 0.5
    np.save(tmp_path / "u.npy", rows)
    chosen = {"dim": None, "updates": tmp_path / "u.npy", "dropout": 0.0, "clip_norm": 1.0}
    experiment = Experiment.prepare(BenchOptions(protocol, rounds=2, warmup=0, **chosen), 6)
    experiment.run(Loopback(6, experiment.protocol.helpers), said)
    told = [sentence for sentence in said.sentences if " are beyond " in sentence]
    assert (protocol == "pine") == len(told)
    if told:
        assert "100.00% of the values of device 4 are beyond --clip-norm 1 and are cut" in told[0]


@pytest.mark.parametrize("weights", [[1, 1, 1, 1], [1, 1000, 1, 1]])
def test_noise_is_refused_where_users_do_not_count_alike(tmp_path, weights):
    with h5py.File(tmp_path / "u.h5", "w") as file:
        file["updates"], file["weights"] = np.ones((4, 50)), weights
    options = {"dim": None, "updates": tmp_path / "u.h5", "noise_multiplier": 5.0, "dropout": 0.0}
    if max(weights) == 1:
        assert all(record.validated for record in run("dp-fedavg", 4, **options))
    else:
        with pytest.raises(UsageError, match="unequal weights"):
            run("dp-fedavg", 4, **options)


@pytest.mark.parametrize("devices", [2, 3, 6])
def test_the_noise_of_a_few_devices_can_be_drawn_with_the_levels_that_are_chosen(devices):
    """Where the group has room for more noise than there is a sampler for."""
    options = {"noise_multiplier": 4.0, "dropout": 0.0}
    assert all(record.validated for record in run("dp-fedavg", devices, **options))

    prepared = Experiment.prepare(BenchOptions("dp-fedavg", dim=300, **options), devices)
    noise = prepared.protocol.noise
    assert noise is not None
    assert LARGEST_SIGMA / 2 < noise.sigma <= LARGEST_SIGMA or devices == 6
    too_many = {"levels": 2 * prepared.options.levels} if devices == 2 else {"levels": 2**30}
    with pytest.raises(UsageError, match="levels"):
        Experiment.prepare(BenchOptions("dp-fedavg", dim=300, **options, **too_many), devices)
