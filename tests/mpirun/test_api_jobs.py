import sys

from launcher import mpirun, needs_mpirun

import hpcfl

pytestmark = needs_mpirun

SCRIPT = """
import sys
import hpcfl
from mpi4py import MPI

run = hpcfl.bench("secagg", dim=100, rounds=1, warmup=0, dropout=0.0, output=sys.argv[1])
try:
    hpcfl.bench("secagg", dim=100, dropout_phase="never")
except hpcfl.UsageError as error:
    refused = "has no phase 'never'" in str(error)
ranks = MPI.COMM_WORLD.gather((run is not None, refused))
if run is not None:
    print(run.devices, run.environment["ranks"], ranks)
"""


def test_ranks_of_a_script_play_together(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = mpirun(4, sys.executable, script, tmp_path / "run.h5")

    assert done.returncode == 0, done.stderr
    expected = [(True, True), (False, True), (False, True), (False, True)]
    assert done.stdout.strip() == f"3 4 {expected}"
    assert hpcfl.load(tmp_path / "run.h5").validated.all()
