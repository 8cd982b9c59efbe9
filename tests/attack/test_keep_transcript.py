import numpy as np
import pytest
from attack_rounds import SEED, recorded

from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.algorithms.aggregation.secagg import SecAgg
from hpcfl.attack.recording import colluding
from hpcfl.attack.stripping import Adversary
from hpcfl.attack.transcript import load
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.loopback import Loopback
from hpcfl.crypto import keys
from hpcfl.errors import UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.rounds.build import build
from hpcfl.rounds.observer import Results
from hpcfl.rounds.timed import Played


class Unknown(SecAgg):
    """A protocol with masks that the attack knows nothing of."""

    name = "unknown"
    not_attacked = "its masks are of another kind"


def test_keeping_costs_no_byte_and_no_message(tmp_path):
    records = []
    for path in (None, tmp_path / "round.npz"):
        options = BenchOptions("sparse", dim=200, rounds=2, insecure_seed=1, keep_transcript=path)
        rounds = Results[Played]()
        Experiment.prepare(options, 7).run(Loopback(7), rounds)
        records.append(rounds.records)

    for without, kept in zip(*records, strict=True):
        for name in ("bytes_up", "bytes_down", "messages_up", "messages_down", "survived"):
            np.testing.assert_array_equal(getattr(without, name), getattr(kept, name))


def test_it_is_the_last_round_that_is_kept():
    experiment, transcript = recorded("secagg", rounds=3, warmup=2)
    dropped = sorted(experiment.schedule.draw(4))

    assert transcript.round_index == 4
    assert np.flatnonzero(transcript.dropped).tolist() == dropped
    assert np.flatnonzero(~transcript.survived).tolist() == dropped


def test_what_is_kept_is_what_was_sent_and_what_colluders_hold():
    experiment, transcript = recorded("sparse", gamma=0.4)
    adversary = Adversary(transcript)
    honest = np.flatnonzero(transcript.survived & ~transcript.colluding).tolist()

    assert transcript.colluding.sum() == 4
    assert list(transcript.truth) == honest
    for id, private in transcript.mask_keys.items():
        source = keys.insecure_secrets(SEED, 0, id)
        assert private == [source(32), source(32)][1]
    for id, values in transcript.truth.items():
        where = adversary.strip(id).coordinates
        vector = experiment.updates.vector(0, id)[where]
        protocol = experiment.protocol
        np.testing.assert_array_equal(values, protocol.quantise(vector, id, 0))


def test_no_key_of_an_honest_device_is_in_the_file(tmp_path):
    path = tmp_path / "round.npz"
    options = BenchOptions("sparse", dim=200, gamma=0.4, insecure_seed=SEED, keep_transcript=path)
    Experiment.prepare(options, 10).run(Loopback(10))
    content, transcript = path.read_bytes(), load(path)
    index = transcript.round_index
    for id in range(10):
        source = keys.insecure_secrets(SEED, index, id)
        transport, mask, seed = source(32), source(32), source(16)

        assert transport not in content
        assert seed not in content
        assert (mask in content) == transcript.colluding[id]


def test_colluders_follow_from_the_seed_and_are_a_fraction_rounded_down():
    def drawn(devices=29, **options):
        built = build("secagg", BenchOptions("secagg", **options), devices, 10)[0]
        return colluding(built.parameters)

    assert drawn(gamma=0.29, devices=100).sum() == 29
    assert drawn(gamma=0.33).sum() == 9
    assert drawn(gamma=0.0).sum() == 0
    np.testing.assert_array_equal(drawn(gamma=0.33, seed=1), drawn(gamma=0.33, seed=1, levels=9))
    assert (drawn(gamma=0.33, seed=1) != drawn(gamma=0.33, seed=2)).any()
    # Every device may be one of them.
    assert np.any([drawn(gamma=0.33, seed=seed) for seed in range(40)], axis=0).all()


@pytest.mark.parametrize(
    ("protocol", "options", "sentence"),
    [
        ("sparse", {"insecure_seed": None}, "must be given together with --insecure-seed"),
        ("fedavg", {}, "rounds of fedavg cannot be attacked: its uploads are in the clear"),
        (
            "test_keep_transcript:Unknown",
            {},
            "rounds of unknown cannot be attacked: its masks",
        ),
        ("secagg", {"upload": "reduce"}, "which --upload reduce sums on the way"),
        ("secagg", {"dim": 10**7}, "of 100 devices would take about 8.0 GB, more than 2"),
        ("cohort", {"dim": 10**8}, "would take about 8.0 GB"),
        ("sparse", {"dim": 10**8}, "would take about 7.6 GB"),
    ],
)
def test_what_cannot_be_kept_is_refused(protocol, options, sentence, tmp_path):
    wanted = {"insecure_seed": 1, "keep_transcript": tmp_path / "round.npz"} | options

    with pytest.raises(UsageError, match=sentence):
        Experiment.prepare(BenchOptions(protocol, **wanted), 100)


def test_a_large_sparse_round_is_kept_all_the_same(tmp_path):
    # 10 times the coordinates would be too many for secagg.
    options = BenchOptions("sparse", dim=2 * 10**7, insecure_seed=1, keep_transcript=tmp_path / "r")

    Experiment.prepare(options, 100)


def test_every_protocol_is_attacked_or_refused(tmp_path):
    common = {"dim": 50, "insecure_seed": 1, "alpha": 0.5, "dropout": 0.0}
    for name in PROTOCOLS:
        options = BenchOptions(name, keep_transcript=tmp_path / name, **common)
        if find(name).not_attacked:
            with pytest.raises(UsageError):
                Experiment.prepare(options, 8)
        else:
            Experiment.prepare(options, 8).run(Loopback(8))
            assert load(tmp_path / name).kind.name == name
