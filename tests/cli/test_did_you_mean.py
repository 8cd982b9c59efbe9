"""Whatever is typed almost right is refused with the name that is meant."""

from pathlib import Path

import click
import pytest
from commandline import hpcfl, refusal
from test_help import COMMANDS, GROUPS

import hpcfl as api
from hpcfl.algorithms.aggregation import PROTOCOLS
from hpcfl.algorithms.federated import PRIVATE, REGISTRY
from hpcfl.cli import group
from hpcfl.cli.options import Choice
from hpcfl.errors import UsageError, nearest, no_such
from hpcfl.learning import datasets, models, partition
from hpcfl.options.bench import BenchOptions
from hpcfl.options.compare import METRICS
from hpcfl.options.definition import options_of
from hpcfl.options.names import DATASETS
from hpcfl.plots import KINDS
from hpcfl.results.columns import COLUMNS
from hpcfl.sweeping.shipped import titles
from hpcfl.training.presets import PRESETS

SMALL = ("--devices", "3", "--dim", "4")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def wrong(name):
    """Return a name with a mistake that people make: two letters in another order."""
    middle = len(name) // 2
    while name[middle] == name[middle - 1]:
        middle -= 1
    return name[: middle - 1] + name[middle] + name[middle - 1] + name[middle + 1 :]


# What is typed with a name of each kind in the place of {}, and the names.
PLACES = {
    "protocol": ("bench {}", [*PROTOCOLS, "dp-fedavg"]),
    "protocol of predict": ("predict {}", PROTOCOLS),
    "protocol of exposure": ("privacy exposure {}", PROTOCOLS),
    "aggregate": ("bench dp-fedavg --aggregate {}", PROTOCOLS),
    "algorithm": ("train {}", REGISTRY),
    "private algorithm": ("privacy epsilon {} --sigma 1", PRIVATE),
    "audited algorithm": ("attack audit {}", PRIVATE),
    "preset": ("train fedavg --preset {}", PRESETS),
    "phase": (f"bench secagg {' '.join(SMALL)} --dropout-phase {{}}", ["masked_input", "unmask"]),
    "metric": ("compare run.h5 run.h5 --metric {}", METRICS),
    "plot kind": ("plot run.h5 --kind {}", KINDS),
    "plan": ("sweep {}", titles()),
    "column": ("report run.h5 --columns {}", [one for one in COLUMNS if len(one) > 3]),
    "key": ("report run.h5 --where {}=1", ["protocol", "devices", "dropout", "min_cohort"]),
    "baseline": ("report run.h5 other.h5 --baseline {}", ["fedavg"]),
    "job": ("slurm render {}", ["bench", "train", "sweep-array"]),
    "shell": ("completion {}", ["bash", "fish"]),
    "data set": ("data fetch {}", ["mnist", "cifar10", "adult"]),
    "format": ("report run.h5 --format {}", ["terminal", "markdown", "latex", "json"]),
}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        pytest.param(line, name, id=f"{kind}-{name}")
        for kind, (line, names) in PLACES.items()
        for name in names
    ],
)
def test_a_name_that_is_almost_right_is_named(line, name):
    if "run.h5" in line:
        for path in ("run.h5", "other.h5"):
            dim = 4 if path == "run.h5" else 5
            api.bench("fedavg", devices=3, dim=dim, rounds=1, warmup=0, output=path)
    said = refusal(*line.format(wrong(name)).split())
    known = next(names for other, names in PLACES.values() if other == line)

    assert "did you mean " in said
    assert any(f"did you mean {one!r}?" in said for one in known), said


@pytest.mark.parametrize("key", ["devices", "dropout", "protocol", "repeats", "min-cohort"])
def test_a_key_of_a_plan_that_is_almost_right_is_named(key):
    Path("plan.toml").write_text(f'[grid]\nprotocol = ["fedavg"]\ndevices = 3\n{wrong(key)} = 1\n')

    assert f"did you mean {key!r}?" in refusal("sweep", "plan.toml", "--dry-run")


@pytest.mark.parametrize(("find", "names"), [
    (datasets.load, tuple(DATASETS)),
    (lambda name: models.build(name, (4,), 2, 0), models.NAMES),
    (lambda name: partition.make(name, datasets.load("synthetic"), 2, 0), partition.KINDS[:3]),
])  # fmt: skip
def test_names_of_the_python_interface_are_named_as_well(find, names):
    for name in names:
        with pytest.raises(UsageError, match="did you mean "):
            find(wrong(name))


def test_choices_of_every_option_are_named():
    for name, command in COMMANDS.items():
        for one in command.params:
            if isinstance(one.type, click.Choice):
                assert isinstance(one.type, Choice), (name, one.name)
    for about in options_of(BenchOptions).values():
        for choice in about.choices:
            if len(choice) > 3:
                with pytest.raises(UsageError, match=rf"--{about.dashed} is .*did you mean "):
                    about.check(wrong(choice))


@pytest.mark.parametrize("name", [*GROUPS])
def test_a_command_that_is_almost_right_is_named(name):
    command = group.get_command(click.Context(group), name) if name else group
    for sub in command.list_commands(click.Context(command)):
        done = hpcfl(*name.split(), wrong(sub))
        assert (done.returncode, done.stdout) == (2, "")
        assert "Did you mean " in done.stderr, (name, sub)


def test_an_option_that_is_almost_right_is_named():
    for name, command in COMMANDS.items():
        if name == "netlab":  # what follows is the command that it runs
            continue
        needed = {"privacy epsilon": ["cdp"], "privacy noise": ["cdp", "--epsilon", 1]}
        for one in command.params:
            if isinstance(one, click.Option) and len(one.opts[0]) > 7:
                typed = "--" + wrong(one.opts[0][2:])
                done = hpcfl(*name.split(), *needed.get(name, []), f"{typed}=1")
                assert "Did you mean " in done.stderr, (name, typed, done.stderr)


def test_what_is_like_nothing_is_answered_with_all_names():
    assert str(no_such("thing", "quux", ["one", "two"], also="or a third")) == (
        "there is no thing 'quux'; choose one of one, two, or a third"
    )
    assert str(no_such("thing", "TWO", ["one", "two"])).endswith("did you mean 'two'?")
    assert nearest("18", ["8", "16"]) is None
    assert len(str(no_such("thing", "q" * 1000, []))) < 120
    assert str(no_such("--bits", "12.0", ["8", "20"])) == "--bits is '12.0'; choose one of 8, 20"
