import json

import pytest
from commandline import hpcfl, refusal

from hpcfl.cli import group
from hpcfl.results import load
from hpcfl.training.presets import PRESETS

pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _no_data(monkeypatch):
    monkeypatch.delenv("HPCFL_DATA", raising=False)


def trained_config(folder, *arguments):
    """Train on digits for a round; return the options of the run."""
    small = ("--dataset", "digits", "--rounds", 1, "--json")
    job = hpcfl("train", *arguments, *small, "--output", folder)
    assert job.returncode == 0, job.stderr
    return load(json.loads(job.stdout)["path"]).config


def test_a_preset_sets_what_is_not_typed(tmp_path):
    config = trained_config(
        tmp_path,
        *("fedavg", "--preset", "zcdp-adult-lr", "--model", "softmax", "--devices", 5),
        *("--per-round", 4),
    )

    assert (config["steps"], config["epochs"], config["momentum"]) == (10, None, 0.0)
    assert (config["devices"], config["per_round"], config["dropout"]) == (5, 4, 0.0)
    assert config["model"] == "softmax"


@pytest.mark.parametrize("preset", ["zcdp-adult-lr", "locks-mnist"])
def test_epochs_or_steps_that_are_typed_replace_those_of_a_preset(tmp_path, preset):
    small = ("--model", "softmax", "--devices", 5, "--per-round", 4)
    steps = trained_config(tmp_path / "a", "fedavg", "--preset", preset, *small, "--steps", 3)
    epochs = trained_config(tmp_path / "b", "fedavg", "--preset", preset, *small, "--epochs", 2)

    assert (steps["steps"], steps["epochs"]) == (3, None)
    assert (epochs["steps"], epochs["epochs"]) == (None, 2)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_names_options_and_values_that_exist(preset, tmp_path):
    """Up to the data, which are not there: everything before them is checked first."""
    options = ("--preset", preset, "--rounds", 1, "--output", tmp_path)
    sentence = refusal("train", "fedavg", *options)

    assert "is read from files: " in sentence
    assert f"the data set {PRESETS[preset]['dataset']} " in sentence


def test_the_shell_completes_choices():
    from click.shell_completion import ShellComplete

    shell = ShellComplete(group, {}, "hpcfl", "_HPCFL_COMPLETE")
    completed = shell.get_completions(["train", "fedavg", "--schedule"], "s")
    assert [one.value for one in completed] == ["sqrt"]


def test_the_settings_of_presets_are_options_of_the_command():
    from hpcfl.cli.train import command

    options = {parameter.name for parameter in command.params}
    for settings in PRESETS.values():
        assert settings.keys() <= options


def test_the_overlap_is_told_at_the_end(tmp_path):
    job = hpcfl("train", "rand-k", "--devices", 8, "--rounds", 2, "--output", tmp_path)

    assert job.returncode == 0, job.stderr
    assert "coordinates that a pair of devices has in common: " in job.stdout
    assert list(tmp_path.glob("train-rand-k-8x640-*.h5"))
