"""Options are defined once: types, ranges, defaults and what they are for."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from hpcfl.algorithms.federated import participation
from hpcfl.algorithms.parameters import Parameters
from hpcfl.benchmark import session
from hpcfl.benchmark.experiment import asked
from hpcfl.cli.options import given, options
from hpcfl.crypto.groups import GROUPS
from hpcfl.crypto.sampling import SAMPLERS
from hpcfl.errors import UsageError
from hpcfl.learning.private import SHUFFLES
from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import OptionGroup, make, option, options_of, part
from hpcfl.options.exposure import ExposureOptions
from hpcfl.options.predict import PredictOptions
from hpcfl.options.shared import LinkOptions
from hpcfl.options.training import LocalOptions, TrainOptions
from hpcfl.privacy import population
from hpcfl.privacy.accounting import dp_fedavg, fedsgd_dpc, locks
from hpcfl.results import columns, pooling
from hpcfl.sweeping.commands import COMMANDS
from hpcfl.training import checkpoint

WHOLE_DIM, WHOLE_DEVICES = 2**32 - 1, 2**31 - 1
INF, NAN = math.inf, math.nan
# Values at the edge of what is possible, and values beyond it.
PROTOCOL: dict[str, tuple[list[Any], list[Any]]] = {
    "alpha": ([1e-9, 1.0], [0.0, -0.1, 1.5, NAN]),
    "dropout": ([0.0, 0.4999], [-0.1, 0.5, 1.0, NAN]),
    "gamma": ([0.0, 0.4999], [-0.1, 0.5, NAN]),
    "clip": ([1e-9, 1e9], [0.0, -1.0, INF, NAN]),
    "levels": ([1], [0, -5]),
    "degree": ([2], [0, 3]),
    "min_cohort": ([1], [0]),
    "security_bits": ([1, 1000], [0, 1001]),
    "correctness_bits": ([1, 1000], [0, 1001]),
    "group": (["ring32"], ["fp"]),
    "bits": (["auto", "8"], ["4", "18"]),
    "model_update": (["changed"], ["none"]),
    "sampler": (["dense"], [""]),
    "locations": (["bitmap"], ["rice"]),
    "dropout_model": (["bernoulli"], ["often"]),
    "scaling": (["paper"], ["none"]),
    "security": (["active"], ["some"]),
    "uplink_mbps": ([1e-9], [1e-10, 0.0, -1.0, INF, NAN]),
    "threads": ([1, 1000], [0, -1]),
    "committee": ([2], [1, 0]),
    "helpers": ([1], [0, -1]),
    "helper_dropout": ([0, 1], [-1]),
    "helper_mbps": ([1e-9], [1e-10, 0.0, -1.0, INF, NAN]),
    "downlink_mbps": ([1e-9], [1e-10, 0.0, INF, NAN]),
    "latency_ms": ([0.0], [-0.001, INF, NAN]),
}
RUN = {"seed": ([0], [-1]), "insecure_seed": ([0], [])}
RANGES: dict[type[OptionGroup], dict[str, tuple[list[Any], list[Any]]]] = {
    BenchOptions: PROTOCOL
    | RUN
    | {
        "devices": ([(1,), (WHOLE_DEVICES, 3)], [(0,), (3, -1), (WHOLE_DEVICES + 1,)]),
        "dim": ([1, WHOLE_DIM], [0, -1, WHOLE_DIM + 1]),
        "rounds": ([1], [0]),
        "max_rounds": ([10], [0, 9]),
        "warmup": ([0], [-1]),
        "server_ranks": ([1], [0]),
        "rel_ci": ([1e-9, 0.999], [0.0, 1.0, NAN]),
        "max_seconds": ([1e-9], [0.0, INF, NAN]),
    },
    TrainOptions: PROTOCOL
    | RUN
    | {
        "devices": ([1, WHOLE_DEVICES], [0]),
        "rounds": ([1], [0]),
        "epochs": ([1], [0]),
        "batch_size": ([0], [-1]),
        "learning_rate": ([1e-9], [0.0, INF, NAN]),
        "momentum": ([0.0, 0.999], [1.0, -0.1]),
        "decay": ([1e-9, 1.0], [0.0, 1.1]),
        "weight_decay": ([0.0], [-1.0, INF]),
        "sigma": ([1e-9], [0.0, INF]),
        "noise_multiplier": ([1e-9], [0.0, -1.0]),
        "clip_norm": ([1e-9], [0.0, INF]),
        "epsilon": ([1e-9], [0.0, NAN]),
        "delta": ([1e-9, 0.999], [0.0, 1.0]),
        "quantile": ([0.5], [0.0, 1.0]),
        "sigma_norms": ([1e-9], [0.0]),
        "data_fraction": ([1e-9, 1.0], [0.0, 1.1]),
        "target_accuracy": ([1e-9, 1.0], [0.0, 1.1]),
        "server_learning_rate": ([1e-9], [0.0]),
        "server_momentum": ([0.0, 0.999], [-0.1, 1.0]),
        "checkpoint_every": ([1], [0]),
        "per_round": ([1], [0]),
        "first_stage": ([1], [0]),
        "max_seconds": ([0.0], [-1.0, INF]),
    },
    PredictOptions: PROTOCOL
    | {
        "devices": ([(1,)], [(0,)]),
        "dim": ([(1,), (WHOLE_DIM,)], [(0,), (WHOLE_DIM + 1,)]),
        "ranks": ([1], [0]),
        "server_ranks": ([1], [0]),
        "network_gbps": ([0.001], [0.0, INF]),
        "network_us": ([0.0], [-1.0, INF]),
    },
    ExposureOptions: {
        "devices": ([1, WHOLE_DEVICES], [0]),
        "alpha": PROTOCOL["alpha"],
        "dropout": PROTOCOL["dropout"],
        "dropout_model": (["targeted"], ["often"]),
        "gamma": ([0, Fraction(1, 3), 1], [Fraction(-1, 3), Fraction(4, 3)]),
        "colluding": ([0], [-1]),
        "degree": ([2], [1]),
        "dim": ([1, WHOLE_DIM], [0, WHOLE_DIM + 1]),
        "floor": ([1], [0]),
        "simulated": ([1], [0]),
        "seed": ([0], [-1]),
    },
}
EVERY = [(group, name) for group, ranges in RANGES.items() for name in ranges]


@pytest.mark.parametrize(("group", "name"), EVERY)
def test_a_value_is_taken_up_to_the_edge_and_refused_by_name_beyond(group, name):
    inside, outside = RANGES[group][name]
    for value in inside:
        assert getattr(group("secagg", **{name: value}), name) == value
    for value in outside:
        with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} is "):
            group("secagg", **{name: value})


@pytest.mark.parametrize("group", RANGES)
def test_every_number_has_a_range_that_is_tested(group):
    numbers = {
        name
        for name, about in options_of(group).items()
        if about.type in (int, float, Fraction, tuple[int, ...])
    }
    inherited = {"noise_multiplier", "clip_norm", "delta"}  # bench has those of training
    assert numbers - RANGES[group].keys() <= inherited | {"steps"}


def test_choices_are_those_that_there_are():
    known = options_of(BenchOptions) | options_of(TrainOptions)

    assert known["group"].choices == tuple(GROUPS)
    widths = [str(group.bits) for group in GROUPS.values() if group.name.startswith("ring")]
    assert known["bits"].choices == ("auto", *widths)
    assert known["sampler"].choices == tuple(SAMPLERS)
    assert set(known["shuffle"].choices) == set(SHUFFLES)
    assert known["variant"].choices == locks.VARIANTS
    assert known["sampling"].choices == participation.MODES
    assert set(known["mechanism"].choices) == set(fedsgd_dpc.MECHANISMS)
    assert set(known["noise"].choices) == set(dp_fedavg.NOISES)
    assert set(known["dropout_model"].choices) < set(population.MODELS)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"dimm": 3}, "there is no option 'dimm'; did you mean 'dim'?"),
        ({"quux": 3}, "there is no option 'quux'$"),
        ({"dim": "many"}, "--dim is 'many'; it must be a whole number"),
        ({"dim": 1.5}, "--dim is 1.5; it must be a whole number"),
        ({"dim": True}, "--dim is True; it must be a whole number"),
        ({"dim": 0}, "--dim is 0; it must be at least 1 and at most 4294967295"),
        ({"alpha": "x"}, "--alpha is 'x'; it must be a number"),
        ({"devices": "3,x"}, "--devices is '3,x'; it must be whole numbers like 25,50,100"),
        ({"group": 32}, "--group is '32'; choose one of fq, ring8"),
        ({"group": 3.2}, "--group is 3.2; it must be text"),
        ({"group": "f2"}, "--group is 'f2'; choose one of fq, ring8, .*, field28$"),
        ({"bits": 18}, "--bits is '18'; choose one of auto, 8, 12, 16"),
        ({"bits": 16, "group": "ring32"}, "ring32 and --bits 16 are two groups: give one of them"),
        # The default group, which is given here.
        ({"bits": 16, "group": "fq"}, "--group fq and --bits 16 are two groups: give one of them"),
        ({"bits": "auto", "group": "fq"}, "--group fq and --bits auto are two groups"),
        ({"dropout": 0.5}, "below 0.5, as more than half of the devices must stay"),
        ({"clip_norm": 2.0}, "are for dp-fedavg: secagg adds no noise"),
        ({"protocol": "dp-fedavg", "noise_multiplier": -1}, "--noise-multiplier is -1.0"),
    ],
)
def test_wrong_keywords_are_refused_in_a_sentence(given, sentence):
    with pytest.raises(UsageError, match=sentence):
        asked({"protocol": "secagg"} | given)


def test_keywords_are_read_as_their_type_says():
    made = make(
        BenchOptions,
        {"protocol": "secagg", "devices": 20, "clip": 1, "updates": "u.npy", "kill": "rank=1"},
    )

    assert (made.devices, made.updates, made.kill) == ((20,), Path("u.npy"), ("rank=1",))
    assert isinstance(made.clip, float)
    assert make(BenchOptions, {"protocol": "secagg", "devices": [3, 4]}).devices == (3, 4)


def test_a_protocol_without_dropouts_has_none_unless_some_are_given():
    assert asked({"protocol": "secagg"}).dropout == 0.3
    assert asked({"protocol": "prf"}).dropout == 0.0
    assert asked({"protocol": "dp-fedavg", "aggregate": "prf"}).dropout == 0.0
    assert asked({"protocol": "prf", "dropout": 0.1}).dropout == 0.1


def test_an_option_has_one_default_wherever_it_is():
    parameters = {one.name: one.default for one in fields(Parameters)}
    for name, about in options_of(BenchOptions).items():
        if name in parameters and name not in ("devices", "dim", "levels"):
            assert about.default == parameters[name]


def test_what_an_option_is_for_is_said_by_its_field():
    """Files of earlier versions depend on these: another set is another meaning of resume."""
    assert session._FREE == {"save_aggregate", "keep_transcript", "kill", "note"}
    assert checkpoint.FREE == {
        *("rounds", "target_accuracy", "max_seconds", "data_dir", "torch_device"),
        *(
            "uplink_mbps",
            "downlink_mbps",
            "latency_ms",
            "helper_mbps",
            "checkpoint_every",
            "resume",
            "note",
            "promises",
        ),
    }
    assert pooling._FREE == {
        *("rounds", "max_rounds", "rel_ci", "max_seconds"),
        *("seed", "output", "save_aggregate", "note", "promises", "rounds_repeated"),
        "scaled_by",  # follows from the others
    }
    assert pooling._GIVEN == {"insecure_seed", "keep_transcript"}
    assert pooling._ANY == {"warmup"}
    for command, without in (
        ("bench", {"output", "resume", "save_aggregate", "keep_transcript"}),
        ("train", {"output", "resume"}),
    ):
        of_plans = {about.name for about in COMMANDS[command].keys.values()}
        assert {*options_of(COMMANDS[command].group)} - of_plans == without
    assert set(columns.TOLD_APART) == {
        *("alpha", "dropout", "dropout_model", "degree", "locations", "gamma", "min_cohort"),
        *("security", "group", "levels", "clip", "rotate", "model_update", "threads", "helpers"),
        *("helper_dropout", "committee", "shared"),
        *("error_feedback", "per_round", "sampling"),
        *("epsilon", "noise_multiplier", "noise"),
        *("epochs", "steps", "batch_size", "learning_rate", "momentum", "decay", "weight_decay"),
        *("server_learning_rate", "server_momentum", "seed"),
    }


def test_a_part_of_options_is_the_group_that_they_inherit():
    chosen = TrainOptions("fedavg", momentum=0.25, latency_ms=3)

    assert part(chosen, LocalOptions) == LocalOptions(momentum=0.25)
    assert part(chosen, LinkOptions) == LinkOptions(latency_ms=3)


def test_an_option_of_the_command_line_is_made_from_its_field():
    """What adding an option takes: the field, and nothing else."""

    @dataclass(frozen=True, kw_only=True)
    class Tea(OptionGroup):
        cups: int = option(2, "Cups.", at_least=1, unit="cups")
        kind: str = option("green", "Kind.", choices=("green", "black"))
        sugar: bool = option(False, "Sweet.")

    @click.command()
    @options(Tea)
    def brew(**typed):
        click.echo(make(Tea, given(typed)))

    run = CliRunner().invoke
    help = run(brew, ["--help"]).output

    assert run(brew, []).output.strip() == str(Tea())
    assert run(brew, ["--cups=3", "--sugar"]).output.strip() == str(Tea(cups=3, sugar=True))
    assert str(run(brew, ["--cups=0"]).exception) == "--cups is 0; it must be at least 1"
    for words in ("--cups CUPS", "[default: 2]", "--kind [green|black]", "[default: green]"):
        assert words in help


def test_options_are_known_without_importing_a_heavy_package():
    code = "import sys, hpcfl.options.bench, hpcfl.options.training"
    heavy = "{'numpy', 'mpi4py', 'torch', 'h5py'}"
    done = subprocess.run([sys.executable, "-c", f"{code}; print({heavy} & {{*sys.modules}})"],
                          capture_output=True, text=True, timeout=60)  # fmt: skip

    assert done.stdout.strip() == "set()", done.stderr
