"""Protocols and phases look the same in every figure, and differ from each other."""

import itertools

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from page_runs import write_run

from hpcfl.algorithms import federated
from hpcfl.algorithms.aggregation import PROTOCOLS, active_variant, find
from hpcfl.errors import UsageError
from hpcfl.plots import chosen, looks
from hpcfl.results import load

KNOWN = [*PROTOCOLS, *federated.REGISTRY, *(f"dp-fedavg-{name}" for name in PROTOCOLS)]
# What eyes without one kind of receptors see (Machado et al. 2009), in linear RGB.
BLINDNESS = {
    "none": np.eye(3),
    "red": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "green": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
}


def seen(colour, kind):
    """Return a colour in OKLab, where distances are what they seem."""
    part = np.asarray(to_rgb(colour))
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(BLINDNESS[kind]) @ linear, 0, 1)
    cones = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    lab = [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
    return np.array(lab) @ np.cbrt(cones @ linear)


@pytest.mark.parametrize("kind", BLINDNESS)
def test_colours_are_told_apart_by_all_eyes(kind):
    for one, other in itertools.combinations(looks.COLOURS, 2):
        # 0.02 is just noticeable; colours beside each other that are 0.07 apart are distinct.
        assert np.linalg.norm(seen(one, kind) - seen(other, kind)) > 0.07, (one, other)


def test_no_two_protocols_or_algorithms_look_the_same():
    found = looks.of_protocols(KNOWN)

    assert len({(look.colour, look.marker) for look in found.values()}) == len(set(KNOWN))
    assert len({found[name].colour for name in PROTOCOLS}) == len(PROTOCOLS)
    for name in PROTOCOLS:
        assert found[f"dp-fedavg-{name}"].colour == found[name].colour


def ink(look):
    """Return where a marker of a look puts ink, of a size to be seen, and in black alone."""
    figure = Figure((0.3, 0.3), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.plot([0], [0], **look.points() | {"color": "black"}, markersize=14)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., 0] < 128


def test_protocols_and_algorithms_are_told_apart_without_colours():
    found = looks.of_protocols(KNOWN)
    drawn = {name: ink(look) for name, look in found.items()}

    assert drawn.keys() == set(KNOWN)
    for one, other in itertools.combinations(drawn, 2):
        either = drawn[one] | drawn[other]
        differing = (drawn[one] ^ drawn[other]).sum() / either.sum()
        assert differing > 0.1, (one, other)


def test_a_protocol_of_ones_own_has_a_marker_that_no_other_of_the_figure_has():
    for number in range(40):
        names = [f"own-{number}", *PROTOCOLS, "dp-fedavg", "dp-fedavg-secagg", "rand-k"]
        markers = [look.marker for look in looks.of_protocols(names).values()]
        assert len(set(markers)) == len(names)


def test_no_two_phases_of_anything_have_the_same_colour():
    kinds = [find(name) for name in PROTOCOLS]
    kinds += [active_variant(kind) for kind in kinds if active_variant(kind) is not None]
    phases = {phase for kind in kinds for phase in kind.phases()} | {"norms"}
    found = looks.of_phases(phases)

    assert set(found) == phases
    assert len({area["facecolor"] for area in found.values()}) == len(phases)
    assert {area["hatch"] for area in found.values()} == {""}


@pytest.mark.parametrize("find_looks", [looks.of_protocols, looks.of_phases])
def test_what_does_not_come_with_hpcfl_has_a_spare_look_of_its_own(find_looks):
    own = [f"own-{number}" for number in range(12)]
    known = find_looks(["secagg", "model"])
    together = find_looks([*own, "secagg", "model"])
    looked = [str(look) for look in together.values()]

    assert len(set(looked)) == len(looked)
    assert find_looks(["own-3"])["own-3"] == find_looks(["secagg", "own-3"])["own-3"]
    assert find_looks([*reversed(own), "model", "secagg"]) == together
    assert {name: together[name] for name in ("secagg", "model") if name in PROTOCOLS} == {
        name: known[name] for name in ("secagg", "model") if name in PROTOCOLS
    }


def test_lines_of_a_protocol_keep_its_colour_and_differ_in_all_else():
    names = [f"sparse, N = {number}" for number in range(1, looks.MOST_OF_ONE + 1)]
    found = looks.of_lines([("sparse", name) for name in reversed(names)])
    shown = [str(found[name].points() | found[name].curve(5)) for name in names]

    assert len(set(shown)) == len(shown)
    assert {(look.colour, look.marker) for look in found.values()} == {
        (looks.of_protocols(["sparse"])["sparse"].colour, "D")
    }
    assert [found[name].line for name in names] == list(range(len(names)))  # 9 before 10
    with pytest.raises(UsageError, match="19 lines of sparse and 18 can be told apart"):
        looks.of_lines([("sparse", f"{name} {k}") for name in names[:10] for k in (1, 2)][:19])
    with pytest.raises(UsageError, match="29 lines to draw and 28"):
        looks.of_lines([(str(number), str(number)) for number in range(29)])
    assert len({str(looks.numbered(number).curve(5)) for number in range(28)}) == 28


@pytest.mark.parametrize("kind", ["scaling", "phases", "ranks", "exposure", "tradeoff", "accuracy"])
def test_files_in_another_order_or_with_others_change_no_colour(tmp_path, kind):
    training = {"training": True, "dataset": "digits"} if kind == "accuracy" else {}
    runs = [
        load(write_run(tmp_path / f"{name}{n}.h5", name, n, dropout=0.0, **training))
        for name in ("secagg", "sparse", "fedavg")
        for n in (8, 12)
    ]

    def colours(drawn):
        (legend,) = chosen(kind, {}).draw(drawn).legends
        names = [text.get_text() for text in legend.get_texts()]
        handles = [
            one.get_facecolor()
            if hasattr(one, "get_facecolor")
            else (one.get_color(), one.get_marker())
            for one in legend.legend_handles
        ]
        return {name.split(",")[0]: look for name, look in zip(names, handles, strict=True)}

    found = colours(runs)
    assert colours(runs[::-1]) == found
    for run in (runs[:1], runs[2:3]):
        some = colours(run)
        known = {name for name in some if "round" not in name} & found.keys()
        assert known
        assert {name: some[name] for name in known} == {name: found[name] for name in known}
