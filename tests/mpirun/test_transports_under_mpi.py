import sys

import pytest
from launcher import HERE, mpirun, needs_mpirun


@needs_mpirun
@pytest.mark.parametrize(
    "ranks", [3, *(pytest.param(n, marks=pytest.mark.full) for n in (2, 5, 11))]
)
def test_the_transport_tests_pass_under_mpirun(ranks):
    job = mpirun(
        ranks,
        *(sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider"),
        *("--only-mpi", "--noconftest", HERE / "test_transports.py"),
    )

    assert job.returncode == 0, job.stdout[-5000:]
    assert " passed" in job.stdout
    assert "skipped" not in job.stdout
