import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "hpcfl"

# Imports point downwards only, but for annotations. What is not listed is a leaf, the lowest layer.
LAYERS = {
    "cli": 7,
    "api": 5,
    "attack": 4,
    "audit": 4,
    "benchmark": 4,
    "costmodel": 4,
    "netlab": 4,
    "optimize": 4,
    "slurm": 4,
    "sweeping": 4,
    "training": 4,
    "advice": 4,
    "plots": 3,
    "rounds": 3,
    "algorithms": 2,
    "comm": 1,
}
MODULES = sorted(PACKAGE.rglob("*.py"))


def layer(module):
    """Return the layer of a dotted module name, which is that of its package."""
    return LAYERS.get(module.split(".")[1], 0)


def imported(path):
    """Return the modules of the package that a file imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("hpcfl.")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path):
    own = ".".join(("hpcfl", *path.relative_to(PACKAGE).with_suffix("").parts))
    if own in ("hpcfl.__main__", "hpcfl.__init__"):
        return
    names = {one for one in imported(path) if one.rpartition(".")[0] not in for_types(path)}
    upward = sorted(name for name in names if layer(name) > layer(own))

    assert upward == []


def import_graph():
    """Return the modules that each module imports anywhere, but for annotations alone."""

    def name(path):
        return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)

    modules = {name(path).removesuffix(".__init__"): path for path in MODULES}
    graph = {}
    for own, path in modules.items():
        named = {one if one in modules else one.rpartition(".")[0] for one in imported(path)}
        graph[own] = (named & modules.keys()) - {own} - for_types(path)
    return graph


def test_no_modules_import_each_other():
    graph = import_graph()
    # A protocol names the variant which is made of it.
    for protocol in ("secagg", "sparse"):
        graph[f"hpcfl.algorithms.aggregation.{protocol}"].discard(
            "hpcfl.algorithms.aggregation.active"
        )

    TopologicalSorter(graph).prepare()  # raises CycleError


def test_no_packages_import_each_other():
    graph = {}
    for own, names in import_graph().items():
        # The name `hpcfl` itself is the version and the lazy front door of the API.
        if own != "hpcfl":
            package = own.split(".")[1]
            imports = {name.split(".")[1] for name in names if name != "hpcfl"}
            graph.setdefault(package, set()).update(imports - {package})

    TopologicalSorter(graph).prepare()  # raises CycleError


def for_types(path):
    """Return the modules that a file imports for annotations only."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            found |= {one.module or "" for one in node.body if isinstance(one, ast.ImportFrom)}
    return found


@pytest.mark.parametrize("path", sorted((PACKAGE / "algorithms").rglob("*.py")), ids=str)
def test_protocols_know_no_transport_clock_or_file(path):
    tree = ast.parse(path.read_text())
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    forbidden = {"mpi4py", "time", "pathlib", "os", "socket", "h5py"}

    assert not {name.partition(".")[0] for name in names} & forbidden
    assert {name for name in names if name.startswith("hpcfl.comm")} <= {"hpcfl.comm.phases"}


def test_a_device_of_a_hundred_loads_what_a_device_needs():
    """What reads files, describes the machine or parses text is imported where the server is."""
    program = (
        "import sys, hpcfl.__main__, hpcfl.comm.mpi; from hpcfl.benchmark import device, session; "
        "from hpcfl.benchmark.experiment import Experiment, asked; "
        "options = asked(device.read(['sparse', '--dim', '100'])); "
        "Experiment.prepare(options, 5); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    unwanted = {
        *(
            "h5py",
            "torch",
            "zipfile",
            "json",
            "difflib",
            "subprocess",
            "email",
            "importlib.metadata",
            "statistics",
        ),
        *("hpcfl.results.reader", "hpcfl.results.writer", "hpcfl.system.environment"),
        *("hpcfl.algorithms.aggregation.cohort", "hpcfl.algorithms.aggregation.active"),
        *("hpcfl.algorithms.federated", "hpcfl.attack", "click"),
    }

    assert set(done.stdout.split()) & unwanted == set()


@pytest.mark.parametrize("arguments", [["-c", "import hpcfl"], ["-m", "hpcfl", "--help"]])
def test_help_needs_none_of_the_heavy_packages(arguments):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    heavy = {"mpi4py", "numpy", "torch", "matplotlib", "pandas", "h5py", "cryptography"}

    assert {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()} & heavy == set()
