"""Ranks that stay, and run one command line after the other: mpirun -n R standing_ranks.py FOLDER.

Each line of the pipe FOLDER/jobs is one, as JSON: the program (`hpcfl` or `python`), the number of
ranks, the arguments, and where to work. The first ranks run it on a communicator of their own, and
write what they print to FOLDER/NUMBER.RANK.out and .err; then rank 0 writes their statuses to
FOLDER/NUMBER.done. All end when the pipe is closed, or when the process that tests is no more, in
the middle of a job too.
"""

import json
import os
import runpy
import sys
import threading
import time
import traceback
from itertools import count
from pathlib import Path

from mpi4py import MPI

from hpcfl.cli import main
from hpcfl.comm import world
from hpcfl.system import launch

sys.path.insert(0, str(Path(__file__).parents[1]))

from commandline import captured

FOLDER = Path(sys.argv[1])
CONTROL = MPI.COMM_WORLD.Dup()


def end_with(tester):
    while Path(f"/proc/{tester}").exists() or not Path("/proc/self").exists():
        time.sleep(1)
    os._exit(1)


def wait_for_all():
    """Wait without taking time from the ranks at work, and from other tests."""
    everybody = CONTROL.Ibarrier()
    while not everybody.Test():
        time.sleep(0.005)


def python():
    """Do what the interpreter does with these arguments."""
    del sys.argv[0]
    try:
        if sys.argv[0] == "-m":
            del sys.argv[0]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        elif sys.argv[0] == "-c":
            exec(sys.argv.pop(1), {"__name__": "__main__"})
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except Exception:
        traceback.print_exc()
        sys.exit(1)


def run(job, comm, name):
    """Run a command line as a process that mpirun started would; return its status."""
    MPI.COMM_WORLD = comm
    os.environ[launch.RANK_VARIABLES[0]] = str(comm.rank)
    os.environ[launch.SIZE_VARIABLES[0]] = str(comm.size)
    launch._alone, world._world = False, None  # what the command before this one left
    os.chdir(job["folder"])
    done = captured(main if job["program"] == "hpcfl" else python, job["arguments"])
    Path(f"{name}.out").write_text(done.stdout)
    Path(f"{name}.err").write_text(done.stderr)
    return done.returncode


threading.Thread(target=end_with, args=(int(sys.argv[2]),), daemon=True).start()
jobs = os.fdopen(os.open(FOLDER / "jobs", os.O_RDONLY)) if CONTROL.rank == 0 else None
for number in count():
    line = jobs.readline() if jobs is not None else None
    wait_for_all()
    line = CONTROL.bcast(line)
    if not line:
        break
    job = json.loads(line)
    takes_part = CONTROL.rank < job["ranks"]
    comm = CONTROL.Split(0 if takes_part else MPI.UNDEFINED, CONTROL.rank)
    name = FOLDER / f"{number}.{CONTROL.rank}"
    status = run(job, MPI.Intracomm(comm), name) if takes_part else 0
    wait_for_all()
    statuses = CONTROL.gather(status)
    if CONTROL.rank == 0:
        (FOLDER / "done").write_text(json.dumps(statuses))
        (FOLDER / "done").rename(FOLDER / f"{number}.done")
