"""Checks of the machine: its load, shared memory, Slurm, and the folder of results."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from hpcfl.errors import HpcflError
from hpcfl.system import environment, srun
from hpcfl.system.doctor.check import OK, PROBLEM, WARNING, Check, gibibytes
from hpcfl.system.doctor.running import run
from hpcfl.system.hdf5 import SETTING

HDF5_SECONDS = 60.0
FREE_DISK_BYTES = 1 << 30
# Open MPI maps 16 MiB a rank and really uses 0.1 MiB; 101 ranks were seen to run in this much.
SHARED_MEMORY_BYTES = 64 << 20

_HDF5_PROGRAM = """
import sys, warnings, h5py, pathlib
from hpcfl.system import hdf5
warnings.simplefilter("ignore")
path = pathlib.Path(sys.argv[1])
with hdf5.opened(path, "x") as file:
    file["x"] = [1, 2, 3]
    held = hdf5.locked(path)
with hdf5.opened(path, "r") as file:
    assert file["x"][...].tolist() == [1, 2, 3]
print(h5py.version.hdf5_version, "locked" if held else "unlocked")
"""


def check_machine() -> Check:
    """Report cores, memory and load, because other work on the machine spoils measurements."""
    facts = environment.capture_local()
    cores, load = facts["cores_usable"], facts["load_1min"]
    found = (
        f"{facts['cores_physical'] or '?'} cores, {facts['cores_logical'] or '?'} hardware "
        f"threads, {cores or '?'} usable; {gibibytes(facts['memory_available_bytes'])} of "
        f"{gibibytes(facts['memory_bytes'])} memory free; load {_rounded(load)}"
    )
    if load is not None and cores and load > 0.5 * cores:
        return Check("machine", WARNING, found, "wait for other work to end before you measure")
    if facts["swap_used_bytes"]:
        found += f"; {gibibytes(facts['swap_used_bytes'])} swapped out"
        return Check("machine", WARNING, found, "see what needs the memory before you measure")
    return Check("machine", OK, found)


def check_shared_memory() -> Check:
    """Check that ranks of one host have room to exchange messages."""
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Check("shared memory", OK, f"no {folder} here")
    free = shutil.disk_usage(folder).free
    if free < SHARED_MEMORY_BYTES:
        remedy = "remove old files there, or give the container more (docker run --shm-size=1g)"
        return Check("shared memory", WARNING, f"{free >> 20} MiB free in {folder}", remedy)
    return Check("shared memory", OK, f"{gibibytes(free)} free in {folder}")


def check_slurm() -> Check:
    """Report the process managers that Slurm, if it is here, offers to srun."""
    if shutil.which("srun") is None:
        return Check("Slurm", OK, "not here; mpirun starts the ranks")
    try:
        found = srun.usable(srun.offered())
    except HpcflError as error:
        return Check(
            "Slurm", WARNING, str(error), "start ranks with mpirun inside sbatch or salloc"
        )
    if not found:
        remedy = "start ranks with mpirun inside sbatch or salloc"
        return Check("Slurm", WARNING, "srun offers no process manager for MPI", remedy)
    tried = "in a job, hpcfl slurm probe tries them"
    return Check("Slurm", OK, f"srun offers {', '.join(found)}; {tried}")


def check_results(results: Path) -> Check:
    """Check that results can be written to the folder, and that there is room."""
    folder = _existing(results)
    remedy = "choose another folder with --output"
    if not folder.is_dir():
        return Check("results", PROBLEM, f"{folder} is not a folder", remedy)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"hpcfl")
    except OSError as error:
        return Check("results", PROBLEM, f"cannot write to {folder}: {error.strerror}", remedy)
    free = shutil.disk_usage(folder).free
    found = f"{results} is writable, {gibibytes(free)} free"
    if free < FREE_DISK_BYTES:
        return Check("results", WARNING, found, f"make room, or {remedy}")
    return Check("results", OK, found)


def check_hdf5(results: Path) -> Check:
    """Check that HDF5 files can be written, locked and read where results go."""
    try:
        with tempfile.TemporaryDirectory(prefix=".hpcfl-", dir=_existing(results)) as folder:
            ran = run([sys.executable, "-c", _HDF5_PROGRAM, f"{folder}/x.h5"], HDF5_SECONDS)
    except OSError as error:
        return Check("HDF5", PROBLEM, f"cannot be tried: {error.strerror}", "see results")
    version, _, held = ran.output.strip().partition(" ")
    if held == "locked":
        return Check("HDF5", OK, f"{version} writes, locks and reads there")
    if held:
        remedy = "let no two runs write to one file, or use a file system with locks"
        return Check("HDF5", WARNING, f"{version} writes and reads there without locks", remedy)
    cure = f"unset {SETTING}" if SETTING in ran.reason else "pip install --force-reinstall h5py"
    remedy = f"{cure}, or choose another folder with --output"
    return Check("HDF5", PROBLEM, f"cannot write a file there: {ran.reason}", remedy)


def _existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if place.exists())


def _rounded(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}"
