"""What is drawn is what the results hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hpcfl.errors import UsageError
from hpcfl.plots import accuracy, exposure, partition, style
from hpcfl.privacy.exposure import exposure as exposure_of
from hpcfl.privacy.population import Population
from hpcfl.results import load
from hpcfl.results.reader import Run
from hpcfl.results.record import RoundRecord
from hpcfl.results.writer import ResultsWriter

TABLE = np.arange(12).reshape(4, 3)


def trained(path: Path, rounds: int = 3, **config: object) -> Run:
    """Return a run of four devices whose figures are easy to tell apart."""
    names = ("accuracy", "bytes_up_total", "modelled_seconds")
    with ResultsWriter(
        path,
        protocol="sparse",
        command="hpcfl train",
        config={"dataset": "digits", "partition": "iid", "algorithm": "fedavg"} | config,
        environment={},
        phases=["upload"],
        devices=4,
        rounds=rounds,
        training=names,
        partition=TABLE,
    ) as writer:
        for k in range(rounds):
            record = RoundRecord.empty(1, 4)
            values = (0.5 + 0.1 * k, 2e6 * (k + 1), 1.5)
            writer.append(record, dict(zip(names, values, strict=True)))
    return load(path)


def test_a_partition_is_drawn_with_devices_across_and_classes_up(tmp_path: Path) -> None:
    (axes, _) = partition.draw(trained(tmp_path / "a.h5")).axes
    (image,) = axes.images

    np.testing.assert_array_equal(image.get_array(), TABLE.T)
    assert image.origin == "lower"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("device", "class")
    written = {text.get_position(): text.get_text() for text in axes.texts}
    assert written == {(d, c): str(TABLE[d, c]) for d in range(4) for c in range(3) if TABLE[d, c]}


@pytest.mark.parametrize(
    ("against", "across"),
    [("rounds", [1, 2, 3]), ("bytes", [2, 4, 6]), ("seconds", [1.5, 3.0, 4.5])],
)
def test_accuracy_is_drawn_over_what_was_spent(
    tmp_path: Path, against: str, across: list[float]
) -> None:
    (axes,) = accuracy.draw([trained(tmp_path / "a.h5")], against).axes
    (line,) = axes.lines

    np.testing.assert_allclose(line.get_xdata(), across)
    np.testing.assert_allclose(line.get_ydata(), [0.5, 0.6, 0.7])
    assert axes.get_xlabel() == accuracy.AXES[against]


def test_runs_are_named_by_what_tells_them_apart(tmp_path: Path) -> None:
    runs = [
        trained(tmp_path / f"{k}.h5", seed=k, alpha=0.1, algorithm=name)
        for k, name in enumerate(["fedavg", "top-k"])
    ]

    assert accuracy.labels(runs) == ["sparse, N = 4, seed 0", "top-k, N = 4, seed 1"]
    assert accuracy.labels(runs[:1]) == ["sparse, N = 4"]


def test_a_target_is_marked(tmp_path: Path) -> None:
    (axes,) = accuracy.draw([trained(tmp_path / "a.h5")], "rounds", target=0.65).axes

    assert [list(line.get_ydata()) for line in axes.lines[1:]] == [[0.65, 0.65]]


def test_lines_differ_without_their_colours() -> None:
    looks = [style.line_style(k, 100) for k in range(28)]

    assert len({(look["marker"], look["linestyle"]) for look in looks}) == 28
    assert len({look["color"] for look in looks[:7]}) == 7


def test_exposure_is_drawn_as_it_is_computed() -> None:
    figure = exposure.draw("sparse", 30, 10, [0.0, 0.3])
    left, right = figure.axes

    for number, dropout in enumerate([0.0, 0.3]):
        for k in (0, 6, 12):
            alpha = float(exposure.ALPHAS[k])
            found = exposure_of("sparse", Population(30, 10, dropout), alpha=alpha, samples=10)
            assert left.lines[number].get_ydata()[k] == pytest.approx(found.theorem_2)
            assert right.lines[number].get_ydata()[k] == pytest.approx(
                100 * found.alone_of_sent.formula
            )


@pytest.mark.parametrize("ending", style.FORMATS)
def test_the_same_figure_gives_the_same_file(tmp_path: Path, ending: str) -> None:
    run = trained(tmp_path / "a.h5")
    paths = [tmp_path / f"{k}{ending}" for k in range(2)]
    for path in paths:
        style.save(accuracy.draw([run], "rounds"), path)

    assert paths[0].stat().st_size > 1000
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_file_that_cannot_be_written_is_refused_in_a_sentence(tmp_path: Path) -> None:
    run = trained(tmp_path / "a.h5")
    with pytest.raises(UsageError, match=r"cannot write .*/a\.h5/x\.png"):
        style.save(accuracy.draw([run], "rounds"), tmp_path / "a.h5" / "x.png")
    with pytest.raises(UsageError, match=r"does not end in .png, .svg or .pdf"):
        style.save(accuracy.draw([run], "rounds"), tmp_path / "x.bmp")
