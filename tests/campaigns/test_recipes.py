"""The recipes of contrib/: run by ReFrame, and played without Ramble."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import pytest
from commandline import hpcfl
from environments import make, run

from hpcfl.results.footer import LINES
from hpcfl.system.revision import RELEASE

ROOT = Path(__file__).parents[2]
CONTRIB = ROOT / "contrib"
BIN = Path(sys.executable).parent


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


def test_the_shell_of_the_container_is_valid():
    text = (CONTRIB / "apptainer" / "hpcfl.def").read_text()
    sections = dict(re.findall(r"^%(\w+)\n(.*?)(?=^%|\Z)", text, re.MULTILINE | re.DOTALL))

    assert {"files", "post", "environment", "runscript", "test"} <= sections.keys()
    for name in ("post", "environment", "runscript", "test"):
        done = subprocess.run(["sh", "-n"], input=sections[name], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), name


@pytest.fixture(scope="module")
def reframe(tmp_path_factory):
    """Return a function that has ReFrame run the checks in a folder, and returns its report."""
    if shutil.which("mpirun", path=f"{BIN}{os.pathsep}{os.environ['PATH']}") is None:
        pytest.skip("no mpirun: install the extra 'mpi' or an MPI of your own")
    folder = tmp_path_factory.mktemp("reframe")
    programs = make(folder / "venv", "ReFrame-HPC")

    def checked(checks, status=0):
        report = folder / "report.json"
        run(
            *(programs / "reframe", "-C", CONTRIB / "reframe" / "settings.py"),
            *("-c", checks, "-r", "--prefix", folder, "--report-file", report),
            folder=folder,
            status=status,
            path=BIN,
            PYTHONPATH=os.pathsep.join(
                [str(ROOT), str(ROOT / "tests" / "mpirun"), str(CONTRIB / "reframe")]
            ),
            HOME=folder,
        )
        (session,) = json.loads(report.read_text())["runs"]
        return session["testcases"]

    return checked


def test_reframe_runs_the_checks_and_logs_the_figures(reframe):
    cases = reframe(CONTRIB / "reframe")
    units = {line.key: line.unit for line in LINES}

    assert {case["protocol"] for case in cases} == {*("fedavg", "secagg", "sparse", "cohort")}
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
