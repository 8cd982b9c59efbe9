"""What a plan says: its cells, each configuration once, and what is wrong with it."""

import itertools

import pytest

from hpcfl.errors import UsageError
from hpcfl.sweeping.cells import resolve
from hpcfl.sweeping.plan import read


def cells(folder, text):
    """Return the cells of a plan."""
    (folder / "plan.toml").write_text(text)
    return resolve(read(folder / "plan.toml"))


def test_cells_are_the_products_of_all_lists_and_repeats(tmp_path):
    found = cells(
        tmp_path,
        """
        [fixed]
        dim = 1_000
        [grid]
        protocol = ["sparse", "cohort"]
        devices = [20, 30]
        alpha = [0.2, 0.4]
        repeats = 2
        """,
    )
    alphas = ("--alpha=0.2", "--alpha=0.4")

    assert [(c.protocol, c.devices, c.arguments[1], c.repeat) for c in found] == list(
        itertools.product(("sparse", "cohort"), (20, 30), alphas, (0, 1))
    )
    assert {cell.dim for cell in found} == {1000}
    assert len({cell.id for cell in found}) == len({cell.file for cell in found}) == 16


def test_several_grids_add_up_and_an_option_without_effect_makes_no_second_cell(tmp_path):
    found = cells(
        tmp_path,
        """
        [fixed]
        devices = 3
        [[grid]]
        protocol = ["fedavg", "secagg"]
        alpha = [0.1, 0.2]
        [[grid]]
        protocol = "sparse"
        seed = [1, 2]
        alpha = 0.1
        rounds = 7
        [[grid]]
        protocol = "dp-fedavg"
        dropout = 0.0
        """.replace('"secagg"]', '"secagg", "sparse"]'),
    )

    assert [cell.protocol for cell in found] == [
        *("fedavg", "secagg", "sparse", "sparse", "sparse", "sparse", "dp-fedavg-secagg")
    ]
    assert [cell.rounds for cell in found] == [12] * 4 + [9] * 2 + [12]
    assert found[5].arguments == (
        *("sparse", "--alpha=0.1", "--devices=3", "--rounds=7", "--seed=2"),
    )
    assert found[1].arguments == ("secagg", "--devices=3")


def test_trainings_are_cells_beside_benchmarks(tmp_path):
    found = cells(
        tmp_path,
        """
        [fixed]
        devices = 5
        [[grid]]
        algorithm = "fedavg"
        aggregate = ["secagg", "sparse"]
        alpha = [0.1, 0.2]
        seed = [1, 2]
        [[grid]]
        algorithm = "cdp"
        preset = "zcdp-adult-lr"
        data-dir = ["elsewhere", "here"]
        aggregate = "prf"
        target-accuracy = [0.5, 0.6]
        noise-multiplier = 1
        [[grid]]
        protocol = "secagg"
        """,
    )

    assert [(c.command.name, c.algorithm, c.protocol, c.dim) for c in found] == [
        *[("train", "fedavg", "secagg", None)] * 2,
        *[("train", "fedavg", "sparse", None)] * 4,
        *[("train", "cdp", "prf", None)] * 2,  # wherever the data lie
        ("bench", None, "secagg", 165_000),
    ]
    # secagg has no use for alpha; a preset's settings are those of the cell.
    assert found[0].arguments == ("fedavg", "--aggregate=secagg", "--devices=5", "--seed=1")
    assert "--preset=zcdp-adult-lr" in found[6].arguments
    assert (found[0].rounds, found[6].rounds) == (100, 20)
    assert found[6].title == "cdp by prf, N = 5, adult-lr on adult"
    assert len({cell.id for cell in found}) == len({cell.file for cell in found}) == 9
    options = found[6].command.parse(found[6].arguments)
    assert (options.steps, options.epochs, str(options.data_dir)) == (10, None, "elsewhere")


TRAIN = '[grid]\nalgorithm = ["fedavg"]\ndevices = [3]\n'
GRID = '[grid]\nprotocol = ["secagg"]\ndevices = [3]\n'
WRONG = (
    (GRID + "alpha = [0.1, 2.0]", "[grid], alpha", "--alpha is 2.0; it must be"),
    (GRID + "dim = [true]", "[grid], dim", "True is neither a number nor text"),
    (GRID + "dim = []", "[grid], dim", "a list belongs in [grid], and must not be empty"),
    (GRID + "repeats = 0", "[grid], repeats", "0 is not a number of repeats"),
    (GRID + "dropout_model = ['exact']", "[grid], dropout_model", "mean 'dropout-model'?"),
    (GRID + "[fixed]\ndim = [1, 2]", "[fixed], dim", "a list belongs in [grid]"),
    (GRID + "[fixed]\ndevices = 3", "[grid], devices", "it is in [fixed] too"),
    ("fixed = 3\n" + GRID, "plan.toml", "must be tables"),
    ("[grid]\nprotocol = ['secagg']", "[grid]", "give either devices or devices-per-rank"),
    (GRID.replace("devices", "devices-per-rank").replace("3", "0"), "[grid]", "--devices is 0"),
    (GRID + "algorithm = 'cdp'", "[grid]", "give either protocol or algorithm"),
    ("[grid]\nprotocol = ['secag']\ndevices = 3", "[grid], protocol", "no protocol 'secag'"),
    (GRID.replace("3", "'3,4'"), "[grid], devices", "not a number of devices"),
    ("[[grid]]\nprotocol=['secagg']\ndevices=[3]\n[[grid]]\ndim=[9]", "number 2", "give either"),
    ("[grid", "plan.toml", "is not TOML"),
    (TRAIN + "aggregate = ['secagg']\nalpha = [0.1]", "[grid], alpha", "not an option of fedavg"),
)


@pytest.mark.parametrize(("text", "place", "sentence"), WRONG)
def test_a_wrong_plan_is_refused_with_file_table_and_key(tmp_path, text, place, sentence):
    with pytest.raises(UsageError) as caught:
        cells(tmp_path, text)

    assert str(tmp_path / "plan.toml") in str(caught.value)
    assert place in str(caught.value)
    assert sentence in str(caught.value)


PER_RANK = """
[fixed]
devices-per-rank = 8
[[grid]]
protocol = ["fedavg"]
[[grid]]
protocol = ["secagg"]
server-ranks = [1, 3]
[[grid]]
protocol = ["assisted"]
helpers = [2]
"""


@pytest.mark.parametrize(
    ("ranks", "devices"),
    # In one process, which is all ranks at once, there are those of one. Servers and helpers are
    # on ranks of their own, which hold no devices.
    [(1, [8, 8, 8, 8]), (2, [8, 8, 8, 8]), (9, [64, 64, 48, 48])],
)
def test_devices_of_each_rank_are_counted_for_those_that_hold_some(tmp_path, ranks, devices):
    (tmp_path / "plan.toml").write_text(PER_RANK)

    assert [cell.devices for cell in resolve(read(tmp_path / "plan.toml", ranks))] == devices
