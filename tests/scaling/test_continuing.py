"""What is modelled beyond the machine: the network's formulas, and lines that go on by them."""

import math

import pytest
from scaled_runs import scaled

from hpcfl.algorithms.aggregation.costs import OPERATIONS
from hpcfl.benchmark.experiment import Experiment
from hpcfl.costmodel.calibration import Calibration
from hpcfl.costmodel.continuing import continued
from hpcfl.costmodel.model import predict
from hpcfl.costmodel.network import Network
from hpcfl.costmodel.overheads import OVERHEADS
from hpcfl.errors import UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.results.scaling import study

# 1 GB/s and 1 ms: a byte takes a nanosecond.
NETWORK = Network(8.0, 1000.0)
FREE = Calibration({name: [0.0] for name in (*OPERATIONS, *OVERHEADS)})


def costing(**seconds):
    assert seconds.keys() <= OPERATIONS.keys()
    return Calibration({name: [seconds.get(name, 0.0)] for name in (*OPERATIONS, *OVERHEADS)})


def protocol(name, devices, dim, **options):
    return Experiment.prepare(BenchOptions(name, dim=dim, **options), devices).protocol


@pytest.mark.parametrize(
    ("pattern", "size", "ranks", "workers", "seconds"),
    [
        # A binomial tree of 5 ranks has three levels.
        ("broadcast", 1000, 5, 4, 3 * (1e-3 + 1e-6)),
        # A long message is scattered and gathered: (3 + 4) messages, twice 4 / 5 of the bytes.
        ("broadcast", 10**8, 5, 4, 7e-3 + 2 * 0.8 * 0.1),
        ("gather", 1000, 5, 3, 3 * (1e-3 + 1e-6)),
        ("route", 1000, 5, 4, 3e-3 + 1e-6),
    ],
)
def test_patterns_cost_what_hockneys_model_says(pattern, size, ranks, workers, seconds):
    assert NETWORK.seconds(pattern, size, ranks, workers) == pytest.approx(seconds)


def test_a_round_on_a_cluster_is_its_work_shared_out_and_its_messages():
    fedavg = protocol("fedavg", 8, 1000, dropout=0.0)
    free = predict(fedavg, FREE, ranks=5, network=NETWORK)
    # The model goes down once, 4,016 bytes; each of four ranks sends up those of two devices.
    model, upload, *_ = free.phases
    assert model.measured_seconds == pytest.approx(3 * (1e-3 + 4.016e-6))
    assert upload.measured_seconds == pytest.approx(4 * (1e-3 + 2 * upload.bytes_up * 1e-9))

    # What a device computes is paid twice on a rank of two devices; all else is the same.
    work = costing(message=1e-5, summed=1e-6)
    seconds = {}
    for ranks in (9, 5):
        found, messages = (predict(fedavg, c, ranks=ranks, network=NETWORK) for c in (work, FREE))
        seconds[ranks] = found.measured_seconds - messages.measured_seconds
    each = found.total("device_cpu_seconds")
    assert each > 0
    assert seconds[5] - seconds[9] == pytest.approx(each)
    assert seconds[9] > each + found.total("server_cpu_seconds") > each


def test_a_cluster_needs_no_calibration_of_its_ranks_and_is_named():
    secagg = protocol("secagg", 16, 1000)
    there = predict(secagg, FREE, ranks=9, network=NETWORK)

    assert predict(secagg, FREE, ranks=9).measured_seconds is None
    assert there.measured_seconds is not None
    assert there.network == "a network of 8 Gbit/s a rank and 1000 us latency"
    assert not any("need a calibration" in note for note in there.notes)


def test_a_strong_line_goes_on_with_as_many_devices(tmp_path):
    found = study([scaled(tmp_path, n, 1.0, dropout=0.0) for n in (2, 3)], "ranks")
    (line,) = continued(found, costing(mask_word=1e-7), NETWORK, [16, 8]).lines

    assert [(p.x, p.ranks, p.devices) for p in line.modelled] == [
        (1, 2, 16), (2, 3, 16), (8, 9, 16), (16, 17, 16),
    ]  # fmt: skip
    assert all(point.modelled for point in line.modelled)
    for point in line.modelled:
        alone = predict(
            protocol("secagg", 16, 1000, dropout=0.0),
            costing(mask_word=1e-7),
            ranks=point.ranks,
            network=NETWORK,
        )
        assert point.seconds == alone.measured_seconds
    base = line.modelled[0].seconds
    assert line.modelled[3].efficiency == pytest.approx(base / line.modelled[3].seconds / 16)
    # What was measured stays as it was.
    assert line.points == found.lines[0].points


def test_a_weak_line_goes_on_with_more_devices(tmp_path):
    runs = [scaled(tmp_path, n, 1.0, protocol="fedavg", devices=8 * (n - 1)) for n in (2, 3)]
    (line,) = continued(study(runs, "ranks"), FREE, NETWORK, [100]).lines

    assert [(p.x, p.devices) for p in line.modelled] == [(1, 8), (2, 16), (100, 800)]


def test_a_line_of_several_ranks_of_the_server_goes_on_with_as_many(tmp_path):
    runs = [scaled(tmp_path, n, 1.0, dim=50_000, server_ranks=2) for n in (3, 4)]
    (line,) = continued(study(runs, "ranks"), costing(summed=1e-6), NETWORK, [6]).lines

    assert [(p.x, p.ranks) for p in line.modelled] == [(1, 3), (2, 4), (6, 8)]
    known = costing(summed=1e-6)
    found = predict(protocol("secagg", 16, 50_000), known, None, 8, NETWORK, servers=2)
    assert line.modelled[2].seconds == found.measured_seconds


def test_nodes_go_on_with_as_many_ranks_each(tmp_path):
    runs = [scaled(tmp_path, 4 * k, 1.0, devices=31, hosts=[4] * k) for k in (1, 2)]
    (line,) = continued(study(runs, "nodes"), FREE, NETWORK, [8]).lines

    assert [(p.x, p.ranks) for p in line.modelled] == [(1, 4), (2, 8), (8, 32)]


def test_a_place_with_more_ranks_than_devices_is_left_out_with_a_note(tmp_path):
    few = [scaled(tmp_path, n, 1.0, protocol="fedavg", devices=20) for n in (2, 3)]
    many = [scaled(tmp_path, n, 1.0, devices=500) for n in (2, 3)]
    found = continued(study([*few, *many], "ranks"), FREE, NETWORK, [20, 127, 1023])

    places = {line.protocol: [point.x for point in line.modelled] for line in found.lines}
    assert places == {"fedavg": [1, 2, 20], "secagg": [1, 2, 20, 127]}
    told = [note for note in found.notes if "does not go on" in note]
    assert len(told) == 2
    assert "to 127, 1,023 ranks: it has 20 devices" in " ".join(told)


def test_nodes_hold_no_more_ranks_than_there_are_devices(tmp_path):
    runs = [scaled(tmp_path, 4 * k, 1.0, hosts=[4] * k) for k in (1, 2)]
    # Of 16 ranks of four nodes 15 hold devices, of 20 of five 19.
    (line,) = continued(study(runs, "nodes"), FREE, NETWORK, [4, 5]).lines

    assert [point.x for point in line.modelled] == [1, 2, 4]


@pytest.mark.parametrize(
    ("against", "options", "sentence"),
    [
        ("threads", {}, "the model has no further threads"),
        ("server-ranks", {}, "the model has no further server-ranks"),
        ("ranks", {"threads": 2}, "one thread a rank"),
        ("ranks", {"upload": "reduce"}, "secagg cannot be continued: the model is of gathered"),
        ("ranks", {"dropout_model": "bernoulli"}, "leave out --dropout-model"),
    ],
)
def test_what_is_not_modelled_is_refused_with_a_sentence(tmp_path, against, options, sentence):
    runs = [scaled(tmp_path, n, 1.0, cores=99, **options) for n in (2, 3)]
    with pytest.raises(UsageError, match=sentence):
        continued(study(runs, against), FREE, NETWORK, [9])


def test_modelled_points_are_finite(tmp_path):
    runs = [scaled(tmp_path, n, 1.0, protocol="fedavg", devices=n - 1) for n in (2, 3)]
    (line,) = continued(study(runs, "ranks"), FREE, NETWORK, [10**6]).lines

    assert line.modelled[-1].devices == 10**6
    assert all(math.isfinite(point.seconds) for point in line.modelled)
