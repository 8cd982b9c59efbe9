"""What memory ranks are predicted to take is what they take, where vectors are most of it."""

import subprocess
import sys

import pytest

from hpcfl.costmodel import model
from hpcfl.options.bench import BenchOptions
from hpcfl.results import load
from hpcfl.rounds import memory
from hpcfl.rounds.build import build
from hpcfl.rounds.memory import START_BYTES, predict_memory


def predicted(protocol, devices, dim, ranks=1, **options):
    return predict_memory(
        build(protocol, BenchOptions(protocol, **options), devices, dim)[0], ranks
    )


@pytest.mark.parametrize(
    ("protocol", "options", "bytes_a_coordinate"),
    [
        # Vectors that are parts of one, the model and its message, a sum and an upload.
        ("secagg", {}, 4 + 4 + 4 + 5 + 4),
        ("secagg", {"bits": "16"}, 4 + 4 + 4 + 2 + 2),
        # The sum, the mean, the mean turned back, with two differences of 2**26 pairs, and signs.
        ("secagg", {"rotate": True}, 4 + 4 + 4 + 8 + 8 + 9 * 2**26 / 10**8 + 2**26 / 10**8),
        # The model three times, the coordinates of a tenth, and two sums.
        ("common", {"model_update": "changed"}, 4 + 3 * 4 + 0.8 + 4 + 4),
        # Words of four bytes, of which 2.5 are sent.
        ("secagg", {"bits": "20"}, 4 + 4 + 4 + 4 + 4),
    ],
)
def test_a_process_holds_a_few_vectors_however_many_devices_it_has(
    protocol, options, bytes_a_coordinate
):
    for devices in (10, 1000):
        found = predicted(protocol, devices, 10**8, degree=2, **options)
        assert found.server == pytest.approx(START_BYTES + bytes_a_coordinate * 10**8)
        assert found.device is None
        assert found.together == found.server


def test_ranks_share_the_devices_and_the_server_holds_parts_of_an_upload():
    found = predicted("secagg", 10, 10**8, ranks=6)

    # Two messages at a time, of two devices, whose vectors are parts of one.
    assert found.device == START_BYTES + (4 + 2 * 4) * 10**8
    assert found.server == START_BYTES + (4 + 5) * 10**8 + 4 * 10**8
    assert found.together == found.server + 5 * found.device


def test_devices_of_few_coordinates_have_vectors_of_their_own():
    few, many = (predicted("secagg", devices, 10**6) for devices in (10, 60))

    assert many.server - few.server == pytest.approx(4e6 * 50, rel=0.01)


@pytest.mark.parametrize(
    ("protocol", "devices", "options"),
    [
        ("secagg", 20, {}),
        ("secagg", 4, {"rotate": True}),
        ("common", 20, {}),
        ("common", 4, {"model_update": "changed"}),
        ("sparse", 20, {}),
        ("cohort", 20, {}),
        ("lightsecagg", 4, {}),
    ],
)
def test_the_peak_of_a_run_is_the_predicted_one(tmp_path, protocol, devices, options):
    """Within a quarter, of 70 to 400 MB beyond the start."""
    path, dim = tmp_path / "run.h5", 4_000_000
    command = [sys.executable, "-m", "hpcfl", "bench", protocol, "--devices", str(devices)]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", *([] if value is True else [value])]
    command += ["--dim", str(dim), "--rounds", "1", "--warmup", "1", "--output", str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    run = load(path)
    assert run.peak_bytes is not None
    assert run.resident_bytes is not None

    took = run.peak_bytes.max() - START_BYTES
    expected = predicted(protocol, devices, dim, **options).server - START_BYTES
    assert took == pytest.approx(expected, rel=0.25)


@pytest.mark.parametrize(("there", "warned"), [(10**9, True), (10**11, False), (None, False)])
def test_rounds_beyond_the_memory_of_this_machine_are_warned_of(monkeypatch, there, warned):
    monkeypatch.setattr(model, "memory_bytes", lambda: there)
    found = list(model._beyond(memory.Memory(2e9, 1e9, 3)))

    assert bool(found) == warned
    if warned:
        assert "takes about 4.0 GB of memory, and this machine has 1.0 GB" in found[0]
