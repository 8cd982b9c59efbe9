"""The recipes of contrib/, as far as they can be read without their tools."""

import re
import runpy
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import pytest
from commandline import hpcfl
from packaging.requirements import Requirement

from hpcfl.results.footer import LINES
from hpcfl.system.revision import RELEASE

ROOT = Path(__file__).parents[2]
CONTRIB = ROOT / "contrib"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture
def tool(monkeypatch):
    """Return a function that stands modules of a tool in, with names that recipes take from it."""

    def stand_in(module, **names):
        parts = module.split(".")
        for count in range(1, len(parts) + 1):
            name = ".".join(parts[:count])
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        vars(sys.modules[module]).update(names)

    return stand_in


def test_the_recipes_are_of_this_release():
    (easyconfig,) = CONTRIB.glob("easybuild/*.eb")
    assert easyconfig.name.startswith(f"hpcfl-{RELEASE}-")
    for path in CONTRIB.rglob("*"):
        if path.is_file() and path.suffix in (".eb", ".py", ".def", ".md"):
            text = path.read_text()
            found = re.findall(r"hpcfl-(\d+\.\d+\.\d+)", text)
            found += re.findall(r"""(?<!\w)version(?:\(| = )["'](\d+\.\d+\.\d+)["']""", text)
            found += re.findall(r"image\.version (\S+)", text)
            assert {*found} <= {RELEASE}, path


def test_ramble_reads_the_footer_of_what_it_runs(tool, tmp_path, monkeypatch):
    told = MagicMock()
    names = ("executable", "figure_of_merit", "software_spec", "success_criteria", "tags")
    names += ("workload", "workload_variable")
    tool(
        "ramble.appkit",
        ExecutableApplication=object,
        **{name: getattr(told, name) for name in names},
    )
    runpy.run_path(str(CONTRIB / "ramble" / "applications" / "hpcfl" / "application.py"))

    variables = {call.args[0]: call.kwargs["default"] for call in told.workload_variable.mock_calls}
    small = variables | {"devices": 5, "dim": 50, "rounds": 2}
    (executable,) = told.executable.mock_calls
    line = executable.args[1].format(**small, experiment_run_dir=tmp_path)
    done = hpcfl(*line.split()[1:])
    assert done.returncode == 0, done.stderr

    lines = done.stdout.splitlines()
    (criterion,) = told.success_criteria.mock_calls
    assert any(re.match(criterion.kwargs["match"], text) for text in lines)
    units = {one.key: "" if one.unit == "1" else one.unit for one in LINES}
    assert len(told.figure_of_merit.mock_calls) > 5
    for figure in told.figure_of_merit.mock_calls:
        (key,), about = figure.args, figure.kwargs
        (value,) = re.findall(about["fom_regex"], done.stdout)
        assert f"HPCFL {key}: {value}" in lines
        float(value)
        assert about["units"] == units[key]


def test_spack_knows_the_dependencies_of_the_project(tool):
    conditions = [""]
    found = {}

    @contextmanager
    def when(condition):
        conditions.append(condition)
        yield
        conditions.pop()

    def depends_on(spec, **_):
        name, _, versions = spec.partition("@")
        found.setdefault(conditions[-1], {})[name] = versions

    variants = MagicMock()
    nothing = {
        name: MagicMock()
        for name in ("default_args", "license", "on_package_attributes", "run_after", "version")
    }
    tool("spack.package", **nothing, depends_on=depends_on, variant=variants, when=when)
    tool("spack_repo.builtin.build_systems.python", PythonPackage=object)
    runpy.run_path(
        str(CONTRIB / "spack" / "spack_repo" / "hpcfl" / "packages" / "hpcfl" / "package.py")
    )

    assert {call.args[0] for call in variants.mock_calls} == {"plot", "table", "train"}
    for extra, asked in {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}.items():
        condition = extra and f"+{extra}"
        if condition not in found:
            continue
        wanted = {}
        for requirement in map(Requirement, asked):
            limits = {one.operator: one.version for one in requirement.specifier}
            # Spack's 2 is every version 2.x, and Python's <3 ends behind them.
            last = str(int(limits["<"]) - 1) if "<" in limits else ""
            wanted[f"py-{requirement.name}"] = f"{limits['>=']}:{last}"
        of_python = {
            name: text for name, text in found[condition].items() if name.startswith("py-")
        }
        of_python.pop("py-setuptools", None)
        assert of_python == wanted, extra
    assert found.keys() == {"", "+plot", "+table", "+train"}
    assert found[""]["python"] == PROJECT["requires-python"].removeprefix(">=") + ":"


def test_the_shell_of_the_container_is_valid():
    text = (CONTRIB / "apptainer" / "hpcfl.def").read_text()
    sections = dict(re.findall(r"^%(\w+)\n(.*?)(?=^%|\Z)", text, re.MULTILINE | re.DOTALL))

    assert {"files", "post", "environment", "runscript", "test"} <= sections.keys()
    for name in ("post", "environment", "runscript", "test"):
        done = subprocess.run(["sh", "-n"], input=sections[name], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), name


def test_the_readme_of_the_recipes_links_to_files():
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", (CONTRIB / "README.md").read_text())

    assert [target for target in targets if not (CONTRIB / target).exists()] == []
