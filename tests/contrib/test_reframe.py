"""The checks of contrib/reframe, run by ReFrame."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from environments import make, run

from hpcfl.results.footer import LINES

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
