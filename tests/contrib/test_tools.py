"""The recipes of contrib/ with their tools, each in an environment of its own."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from hpcfl.results.footer import LINES

ROOT = Path(__file__).parents[2]
CONTRIB = ROOT / "contrib"
BIN = Path(sys.executable).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SECONDS = 240

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

# Checks of a site: one of a protocol whose sums are wrong.
SITE = """
import reframe as rfm
from hpcfl_checks import HpcflBench
from reframe.core.builtins import parameter


@rfm.simple_test
class Broken(HpcflBench):
    protocol = parameter(["faulty_protocols:Wrong"])
    devices = 4
    dim = 100
    rounds = 3
    num_tasks = 2
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
"""

# Prints what the modules that an easyconfig depends on have in them, by name.
RESOLVE = """
import json, sys
from pathlib import Path
from easybuild.tools.options import set_up_configuration

path, shipped, prefix = sys.argv[1:]
# --fetch: without a program for modules.
arguments = [f"--robot={shipped}", f"--prefix={prefix}", "--fetch"]
arguments.append("--allow-use-as-root-and-accept-consequences")
set_up_configuration(args=arguments, silent=True)

from easybuild.framework.easyconfig.easyconfig import process_easyconfig
from easybuild.framework.easyconfig.style import check_easyconfigs_style
from easybuild.tools.modules import NoModulesTool
from easybuild.tools.robot import resolve_dependencies

found = process_easyconfig(path)
held = {}
for one in resolve_dependencies(found, NoModulesTool(), retain_all_deps=True):
    held[one["ec"].name] = one["ec"].version
    for extension in one["ec"].get_ref("exts_list"):
        if isinstance(extension, (list, tuple)) and len(extension) > 1:
            held[extension[0]] = extension[1]
print(json.dumps({"held": held, "style": check_easyconfigs_style([path])}))
"""


def run(*command, folder, status=0, **variables):
    """Run a program; return its standard output."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=os.environ | {name: str(value) for name, value in variables.items()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == status, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def environment(folder, *packages):
    """Make a virtual environment with some packages; return its folder of programs."""
    run(sys.executable, "-m", "venv", folder, folder=folder.parent)
    run(folder / "bin" / "pip", "install", "--quiet", *packages, folder=folder.parent)
    return folder / "bin"


@pytest.fixture(scope="module")
def reframe(tmp_path_factory):
    """Return a function that has ReFrame run the checks in a folder, and returns its report."""
    if shutil.which("mpirun", path=f"{BIN}{os.pathsep}{os.environ['PATH']}") is None:
        pytest.skip("no mpirun: install the extra 'mpi' or an MPI of your own")
    folder = tmp_path_factory.mktemp("reframe")
    programs = environment(folder / "venv", "ReFrame-HPC")

    def checked(checks, status=0):
        report = folder / "report.json"
        run(
            *(programs / "reframe", "-C", CONTRIB / "reframe" / "settings.py"),
            *("-c", checks, "-r", "--prefix", folder, "--report-file", report),
            folder=folder,
            status=status,
            PATH=f"{BIN}{os.pathsep}{os.environ['PATH']}",
            PYTHONPATH=os.pathsep.join(
                [str(ROOT), str(ROOT / "tests" / "mpirun"), str(CONTRIB / "reframe")]
            ),
            OMPI_ALLOW_RUN_AS_ROOT=1,
            OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1,
            HOME=folder,
        )
        (session,) = json.loads(report.read_text())["runs"]
        return session["testcases"]

    return checked


def test_reframe_runs_the_checks_and_logs_the_figures(reframe):
    cases = reframe(CONTRIB / "reframe")
    units = {line.key: line.unit for line in LINES}

    assert {case["check_vars"]["protocol"] for case in cases} == {
        *("fedavg", "secagg", "sparse", "cohort")
    }
    for case in cases:
        assert case["result"] == "pass"
        logged = {key.rpartition(":")[2]: value for key, value in case["perfvalues"].items()}
        assert {"device_upload_bytes", "device_cpu_ms", "round_ms"} <= logged.keys()
        for key, (value, *_, unit, _) in logged.items():
            assert value > 0
            assert unit == units[key]


def test_a_check_of_wrong_sums_fails(reframe, tmp_path):
    (tmp_path / "site.py").write_text(SITE)
    (case,) = reframe(tmp_path, status=1)

    assert (case["result"], case["fail_phase"]) == ("fail", "sanity")


def test_easybuild_finds_the_dependencies_of_its_recipe(tmp_path):
    programs = environment(tmp_path / "venv", "easybuild", "pycodestyle")
    (recipe,) = (CONTRIB / "easybuild").glob("*.eb")
    shipped = tmp_path / "venv" / "easybuild" / "easyconfigs"
    told = run(
        *(programs / "python", "-c", RESOLVE, recipe, shipped, tmp_path / "prefix"),
        folder=tmp_path,
        PATH=f"{programs}{os.pathsep}{os.environ['PATH']}",
        PYTHONPATH="",
    )
    found = json.loads(told.splitlines()[-1])

    assert found["style"] == 0, told
    assert found["held"]["Python"] in Requirement(f"python{PROJECT['requires-python']}").specifier
    version = ".".join(found["held"]["Python"].split(".")[:2])
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]
    for requirement in map(Requirement, PROJECT["dependencies"]):
        held = found["held"][requirement.name]
        assert re.fullmatch(r"[\d.]+", held)
        assert held in requirement.specifier, requirement
