"""The recipes of contrib/: run by ReFrame, and replayed without Ramble."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from commandline import hpcfl
from environments import make, run

from hpcfl.results.footer import KEYS
from hpcfl.system.revision import RELEASE

ROOT = Path(__file__).parents[2]
CONTRIB = ROOT / "contrib"
BIN = Path(sys.executable).parent


pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


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


def unit_of(key):
    return "s" if "seconds" in key else "B" if "bytes" in key else ""


def test_ramble_reads_the_footer_of_what_it_runs(tmp_path, monkeypatch):
    told = MagicMock(ExecutableApplication=object)
    told.__all__ = [
        *("ExecutableApplication", "executable", "figure_of_merit", "software_spec"),
        *("success_criteria", "tags", "workload", "workload_variable"),
    ]
    monkeypatch.setitem(sys.modules, "ramble", MagicMock(appkit=told))
    monkeypatch.setitem(sys.modules, "ramble.appkit", told)
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
    assert len(told.figure_of_merit.mock_calls) > 5
    for figure in told.figure_of_merit.mock_calls:
        (key,), about = figure.args, figure.kwargs
        (value,) = re.findall(about["fom_regex"], done.stdout)
        assert f"HPCFL {key}: {value}" in lines
        float(value)
        assert about["units"] == unit_of(key)


def test_benchpark_gives_ramble_the_variables_of_its_application(monkeypatch):
    """Replayed on stand-ins of Benchpark's classes; strong scaling keeps the devices."""
    added, given = {}, MagicMock()
    base = {
        "add_experiment_variable": lambda self, name, value, named=False: added.update(
            {name: value}
        ),
        **{
            name: getattr(given, name)
            for name in ("register_scaling_config", "set_required_variables", "add_package_spec")
        },
        "name": "hpcfl",
        "determine_version": lambda self: "@0.1.0",
        "spec": MagicMock(variants={"protocol": ["sparse"]}),
    }
    modules = {
        "directives": MagicMock(),
        "experiment": MagicMock(Experiment=type("Experiment", (), base)),
        "programming_model": MagicMock(ProgrammingModel=lambda *_: type("Model", (), {})),
        "scaling": MagicMock(Scaling=lambda *_: type("Scaling", (), {})),
    }
    monkeypatch.setitem(sys.modules, "benchpark", MagicMock())
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, f"benchpark.{name}", module)
    made = runpy.run_path(str(CONTRIB / "benchpark" / "experiment.py"))["Hpcfl"]()
    made.compute_applications_section()
    made.compute_package_section()

    application = (CONTRIB / "ramble" / "applications" / "hpcfl" / "application.py").read_text()
    taken = {*re.findall(r'workload_variable\(\s*"(\w+)"', application), "n_ranks"}
    assert added.keys() <= taken
    assert added["n_ranks"] == added["devices"] + 1
    given.add_package_spec.assert_called_once_with("hpcfl", ["hpcfl@0.1.0"])
    ((config,), _) = given.register_scaling_config.call_args
    scaled = [
        {
            name: how(MagicMock(val=lambda _, name=name: added[name]), 0, None, 2)
            for name, how in each.items()
        }
        for each in config.values()
    ]
    assert scaled == [{"n_ranks": 33}, {"n_ranks": 33, "devices": 32}]


def test_the_shell_of_the_container_is_valid():
    text = (CONTRIB / "apptainer" / "hpcfl.def").read_text()
    sections = dict(re.findall(r"^%(\w+)\n(.*?)(?=^%|\Z)", text, re.MULTILINE | re.DOTALL))

    assert {"files", "post", "environment", "runscript", "test"} <= sections.keys()
    for name in ("post", "environment", "runscript", "test"):
        done = subprocess.run(["sh", "-n"], input=sections[name], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), name


@pytest.mark.skipif(
    shutil.which("mpirun", path=f"{BIN}{os.pathsep}{os.environ['PATH']}") is None,
    reason="no mpirun: install the extra 'mpi' or an MPI of your own",
)
def test_reframe_runs_the_checks_and_logs_the_figures(tmp_path):
    programs, report = make(tmp_path / "venv", "ReFrame-HPC"), tmp_path / "report.json"
    run(
        *(programs / "reframe", "-C", CONTRIB / "reframe" / "settings.py"),
        *("-c", CONTRIB / "reframe", "-r", "--prefix", tmp_path, "--report-file", report),
        folder=tmp_path,
        path=BIN,
        PYTHONPATH=ROOT,
        HOME=tmp_path,
    )
    (session,) = json.loads(report.read_text())["runs"]
    cases = session["testcases"]

    assert {case["protocol"] for case in cases} == {*("fedavg", "secagg", "sparse", "cohort")}
    for case in cases:
        assert case["result"] == "pass"
        logged = {key.rpartition(":")[2]: value for key, value in case["perfvalues"].items()}
        assert {"bytes_up_mean", "round_seconds_median"} <= logged.keys() <= {*KEYS}
        for key, (value, *_, unit, _) in logged.items():
            assert value > 0
            assert unit == unit_of(key)
