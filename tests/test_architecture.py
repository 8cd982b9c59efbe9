"""Imports point only downwards and without circles, and frequent programs import little."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "hpcfl"

# Imports point only downwards, except for annotations. Unlisted parts are in the lowest layer.
LAYERS = {
    "__init__": 7,
    "__main__": 7,
    "cli": 7,
    "api": 5,
    "integrations": 6,
    "attack": 4,
    "audit": 4,
    "benchmark": 4,
    "costmodel": 4,
    "exchange": 4,
    "netlab": 4,
    "slurm": 4,
    "sweeping": 4,
    "training": 4,
    "advice": 4,
    "plots": 3,
    "rounds": 3,
    "algorithms": 2,
    "comm": 1,
}


def imports(tree):
    """Return all imports of a file except for annotations: modules, and names of modules."""
    found, pending = set(), [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        pending += ast.iter_child_nodes(node)
    return found


@cache
def read():
    """Return the imports of each module of the package, by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        own = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        found[own] = imports(ast.parse(path.read_text(encoding="utf-8")))
    return found


def graph():
    """Return the modules of the package that each of its modules imports.

    `hpcfl` itself is left out: it holds the version and imports the API lazily.
    """
    known = {own.removesuffix(".__init__"): names for own, names in read().items()}
    found = {}
    for own, names in known.items():
        modules = {one if one in known else one.rpartition(".")[0] for one in names}
        found[own] = (modules & known.keys()) - {own, "hpcfl"}
    return found


def part(module):
    """Return the package or the single module right below `hpcfl` that a module belongs to."""
    return (*module.split("."), "__init__")[1]


def test_imports_point_downwards_without_circles():
    modules = graph()
    upward = [
        f"{own} imports {name}"
        for own, names in modules.items()
        for name in names
        if LAYERS.get(part(name), 0) > LAYERS.get(part(own), 0)
    ]
    assert upward == []

    packages = {}
    for own, names in modules.items():
        if own != "hpcfl":
            packages.setdefault(part(own), set()).update({*map(part, names)} - {part(own)})
    TopologicalSorter(packages).prepare()  # raises CycleError
    TopologicalSorter(modules).prepare()


def test_protocols_know_no_transport_clock_or_file():
    forbidden = {"mpi4py", "time", "pathlib", "os", "socket", "h5py"}
    for own, names in read().items():
        if part(own) == "algorithms":
            assert not {name.partition(".")[0] for name in names} & forbidden, own
            below = {name for name in names if name.startswith("hpcfl.comm")}
            assert all(name.startswith("hpcfl.comm.phases") for name in below), own


def loaded(*arguments):
    """Return the modules that a run of Python has loaded."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


def test_a_device_of_a_hundred_loads_what_a_device_needs():
    """Only the server imports code that reads files, describes the machine or parses text."""
    program = (
        "import hpcfl.__main__, hpcfl.comm.mpi; from hpcfl.benchmark import device, session; "
        "from hpcfl.benchmark.experiment import Experiment, asked; "
        "options = asked({'protocol': 'sparse', 'dim': '100'}); "
        "Experiment.prepare(options, 5)"
    )
    unwanted = {
        *("h5py", "torch", "zipfile", "json", "difflib", "subprocess", "email", "statistics"),
        *("importlib.metadata", "click", "hpcfl.attack", "hpcfl.algorithms.federated"),
        *("hpcfl.results.reader", "hpcfl.results.writer", "hpcfl.system.environment"),
        *("hpcfl.algorithms.aggregation.cohort", "hpcfl.algorithms.aggregation.active"),
    }
    assert loaded("-c", program) & unwanted == set()


def test_exchanges_need_no_mpi_and_no_files():
    assert not loaded("-c", "import hpcfl.exchange.server, hpcfl.exchange.client") & {
        *("mpi4py", "h5py", "click", "torch", "scipy", "hpcfl.results.writer"),
    }


def test_asking_for_the_launcher_costs_no_import():
    """At 101 ranks on 2 cores, every 100 ms of import are 5 s of waiting."""
    asking = loaded("-S", "-c", "import os, sys, hpcfl.system.launch")

    more = asking - loaded("-S", "-c", "import os, sys")
    assert more - {"__future__"} == {"hpcfl", "hpcfl.system", "hpcfl.system.launch"}


def test_help_needs_none_of_the_heavy_packages():
    heavy = {"mpi4py", "numpy", "scipy", "torch", "matplotlib", "pandas", "h5py", "cryptography"}
    modules = (
        "hpcfl",
        "hpcfl.options.bench, hpcfl.options.training",
        "hpcfl.results, hpcfl.cli.report",
    )
    for arguments in (["-m", "hpcfl", "--help"], *(["-c", f"import {one}"] for one in modules)):
        assert loaded(*arguments) & heavy == set(), arguments
