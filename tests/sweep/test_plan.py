import itertools

import pytest

from hpcfl.errors import UsageError
from hpcfl.options.definition import Option
from hpcfl.sweeping import plan
from hpcfl.sweeping.cells import resolve
from hpcfl.sweeping.commands import COMMANDS
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


def test_several_grids_add_up(tmp_path):
    found = cells(
        tmp_path,
        """
        [fixed]
        devices = 3
        [[grid]]
        protocol = ["fedavg", "secagg"]
        [[grid]]
        protocol = "sparse"
        sampler = ["gaps", "dense"]
        rounds = 7
        """,
    )

    assert [cell.protocol for cell in found] == ["fedavg", "secagg", "sparse", "sparse"]
    assert [cell.rounds for cell in found] == [12, 12, 9, 9]
    assert found[3].arguments == ("sparse", "--devices=3", "--rounds=7", "--sampler=dense")


def test_an_option_without_effect_makes_no_second_cell(tmp_path):
    found = cells(
        tmp_path,
        '[grid]\nprotocol = ["secagg", "sparse"]\ndevices = [5]\nalpha = [0.1, 0.2]\nrepeats = 2',
    )

    assert [cell.protocol for cell in found] == ["secagg"] * 2 + ["sparse"] * 4
    assert [cell.repeat for cell in found[:2]] == [0, 1]


def test_the_id_is_of_the_whole_configuration_however_it_is_written(tmp_path):
    grid = '[grid]\nprotocol = ["secagg"]\ndevices = [5]\n'
    (plain,) = cells(tmp_path, grid)
    (spelled,) = cells(
        tmp_path, '[fixed]\ndim=165000\ndropout=0.30\nclip=1\ndevices=5\nprotocol="secagg"'
    )
    others = [
        cells(tmp_path, grid + line)[0]
        for line in ("clip = 2.0", "seed = 1", "dropout = 0.2", "rounds = 3", "latency-ms = 5")
    ]

    assert plain.id == spelled.id
    assert len({plain.id, *(cell.id for cell in others)}) == 6


def test_noise_makes_another_cell(tmp_path):
    grid = "devices = [20]\ndim = [100]\nrounds = [1]\n[fixed]\ndropout = 0.0\n"
    found = cells(tmp_path, '[grid]\nprotocol = ["secagg", "dp-fedavg"]\n' + grid)
    noisy = cells(tmp_path, '[grid]\nprotocol = ["dp-fedavg"]\nnoise-multiplier = [2]\n' + grid)

    assert [cell.protocol for cell in found] == ["secagg", "dp-fedavg-secagg"]
    assert len({cell.id for cell in found + noisy}) == 3


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
        data-dir = "elsewhere"
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
        *[("train", "cdp", "prf", None)] * 2,
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


def test_where_data_lie_makes_no_other_training(tmp_path):
    grid = '[grid]\nalgorithm = ["fedavg"]\ndevices = [5]\n'
    (plain,) = cells(tmp_path, grid)
    (same,) = cells(tmp_path, grid + 'checkpoint-every = 7\nepochs = 5\nmodel = "softmax"')
    (adult,) = cells(tmp_path, grid + 'dataset = "adult"')
    (moved,) = cells(tmp_path, grid + 'dataset = "adult"\ndata-dir = "x"')
    (other,) = cells(tmp_path, grid + "learning-rate = 0.5")

    assert plain.id == same.id
    assert adult.id == moved.id
    assert len({plain.id, adult.id, other.id}) == 3


def test_a_configuration_that_cannot_work_is_a_cell_too(tmp_path):
    found = cells(
        tmp_path,
        '[grid]\nprotocol = ["cohort"]\ndevices = [10]\nmin-cohort = [1, 1000]\ndim = [100]',
    )

    assert len({cell.id for cell in found}) == 2
    assert found[1].dim == 100


TRAIN = '[grid]\nalgorithm = ["fedavg"]\ndevices = [3]\n'
GRID = '[grid]\nprotocol = ["secagg"]\ndevices = [3]\n'


def test_a_wrong_plan_is_refused_with_file_table_and_key(tmp_path):
    for text, place, sentence in (
        (GRID + "alpha = [0.1, 2.0]", "[grid], alpha", "--alpha is 2.0; it must be"),
        (GRID + "dim = [1e5]", "[grid], dim", "--dim is '100000.0'; it must be a whole number"),
        (GRID + "dim = [true]", "[grid], dim", "True is neither a number nor text"),
        (GRID + "dim = [[1]]", "[grid], dim", "[1] is neither a number nor text"),
        (GRID + "dim = []", "[grid], dim", "the list is empty"),
        (GRID + 'group = ["f2"]', "[grid], group", "--group is 'f2'; choose one of"),
        (GRID + "repeats = 0", "[grid], repeats", "0 is not a number of repeats"),
        (GRID + "dropout_model = ['exact']", "[grid], dropout_model", "mean 'dropout-model'?"),
        (GRID + "output = ['x']", "[grid], output", "there is no option of a plan"),
        (
            GRID + "keep-transcript = ['x']",
            "[grid], keep-transcript",
            "there is no option of a plan",
        ),
        (GRID + "updates = ['nowhere.npy']", "[grid], updates", "there is no file nowhere.npy"),
        (GRID + "[fixed]\ndim = [1, 2]", "[fixed], dim", "a list of values belongs in [grid]"),
        (GRID + "[fixed]\ndevices = 3", "[grid], devices", "it is in [fixed] too"),
        (GRID + "[other]\ndim = 3", "plan.toml", "'other' is neither [fixed] nor [grid]"),
        ("dim = 3\n" + GRID, "plan.toml", "'dim' is neither [fixed] nor [grid]"),
        ("fixed = 3\n" + GRID, "[fixed]", "not a table"),
        ("grid = []", "plan.toml", "no cells"),
        ("[grid]\nprotocol = ['secagg']", "[grid]", "says devices"),
        ("[grid]\ndevices = [3]", "[grid]", "says protocol or algorithm"),
        ("[grid]\nprotocol = ['--help']", "[grid], protocol", "'--help' is not a protocol"),
        ("[grid]\nprotocol = ['secag']", "[grid], protocol", "there is no protocol 'secag'"),
        (GRID.replace("3", "'3,4'"), "[grid], devices", "not a number of devices"),
        (GRID.replace("3", "0"), "[grid], devices", "--devices is 0; it must be at least 1"),
        ("[[grid]]\nprotocol=['secagg']\ndevices=[3]\n[[grid]]\nalpha=[9]", "number 2, alpha", "9"),
        ("[grid", "plan.toml", "is not TOML"),
        (GRID + "algorithm = 'cdp'", "[grid]", "protocol or algorithm, not both"),
        (TRAIN.replace("fedavg", "fedagv"), "[grid], algorithm", "'fedagv'"),
        (TRAIN + "aggregate = ['secag']", "[grid], aggregate", "there is no protocol 'secag'"),
        (TRAIN + "aggregate = ['secagg']\nalpha = [0.1]", "[grid], alpha", "fedavg has no use"),
        (
            TRAIN + "dim = [3]",
            "[grid], dim",
            "no option of a plan 'dim'; see hpcfl train --help",
        ),
        (TRAIN + "resume = ['x']", "[grid], resume", "there is no option of a plan 'resume'"),
        (TRAIN + "preset = ['zcdp']", "[grid], preset", "choose one of"),
        (TRAIN + "data-dir = ['x']", "[grid], data-dir", "fedavg has no use for it"),
        (GRID + "epochs = [3]", "[grid], epochs", "there is no option of a plan 'epochs'"),
    ):
        with pytest.raises(UsageError) as caught:
            cells(tmp_path, text)

        assert str(tmp_path / "plan.toml") in str(caught.value)
        assert place in str(caught.value)
        assert sentence in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_flag_is_typed_where_it_is_set(monkeypatch):
    keys = COMMANDS["bench"].keys
    monkeypatch.setitem(keys, "quick", Option("Quick.", name="quick", type=bool))
    grid = {"protocol": "secagg", "devices": 4, "quick": [True, False]}
    typed = [setting.arguments for setting in plan.combine({"grid": grid}, "a plan")]

    assert typed == [("secagg", "--devices=4", "--quick"), ("secagg", "--devices=4")]
    with pytest.raises(UsageError, match=r"\[grid\], quick: 1 is neither a number nor text"):
        plan.combine({"grid": grid | {"quick": 1}}, "a plan")


def test_a_missing_plan_is_refused(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read(tmp_path / "plan.toml")


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
    [
        # In one process, which is all ranks at once, there are those of one.
        (1, [8, 8, 8, 8]),
        (2, [8, 8, 8, 8]),
        # Servers and helpers are on ranks of their own, which hold no devices.
        (9, [64, 64, 48, 48]),
    ],
)
def test_devices_of_each_rank_are_counted_for_those_that_hold_some(tmp_path, ranks, devices):
    (tmp_path / "plan.toml").write_text(PER_RANK)

    assert [cell.devices for cell in resolve(read(tmp_path / "plan.toml", ranks))] == devices


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("devices = 3", "devices and devices-per-rank both say how many"),
        ("devices-per-rnk = 3", "did you mean 'devices-per-rank'?"),
        ("devices-per-rank = 0", "--devices is 0"),
        ("devices-per-rank = 'many'", "'many'"),
    ],
)
def test_wrong_devices_of_each_rank_are_refused(tmp_path, line, sentence):
    text = f"[fixed]\n{line}\n[grid]\nprotocol = 'fedavg'\n"
    text += "" if "-" in line else "devices-per-rank = 8\n"
    with pytest.raises(UsageError, match=sentence):
        cells(tmp_path, text)
