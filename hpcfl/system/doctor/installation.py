"""Checks of Python, of the packages that hpcfl requires, and of its command."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import sys
from pathlib import Path

from hpcfl.system import environment
from hpcfl.system.doctor.check import OK, PROBLEM, WARNING, Check, numbers

MINIMUM_PYTHON = (3, 11, 4)
# Used when the package's own metadata is not there to be asked.
REQUIRED_PACKAGES = (
    *("click", "cryptography", "h5py", "mpi4py", "numpy", "tabulate", "threadpoolctl"),
)


def check_python() -> Check:
    """Check the version of the running interpreter."""
    found = f"{sys.version.split()[0]} ({sys.executable})"
    if sys.version_info < MINIMUM_PYTHON:
        needed = ".".join(map(str, MINIMUM_PYTHON))
        return Check("Python", PROBLEM, found, f"use Python {needed} or newer")
    return Check("Python", OK, found)


def check_packages() -> Check:
    """Check that the required packages are there, in the versions that are required."""
    found, wrong = [], []
    for name, minimum in required_packages().items():
        version = environment.package_version(name)
        found.append(f"{name} {version or 'missing'}")
        if version is None or numbers(version) < numbers(minimum):
            wrong.append(f"{name}>={minimum}" if minimum else name)
    remedy = f"pip install {' '.join(f'{name!r}' for name in wrong)}" if wrong else ""
    return Check("packages", PROBLEM if wrong else OK, ", ".join(found), remedy)


def required_packages() -> dict[str, str]:
    """Return the packages that hpcfl requires, each with its lowest version, or "" for any."""
    try:
        lines = importlib.metadata.requires("hpcfl") or []
    except importlib.metadata.PackageNotFoundError:
        return dict.fromkeys(REQUIRED_PACKAGES, "")
    required = {}
    for line in lines:
        name, minimum = re.match(r"[\w.-]+", line), re.search(r">=\s*([\w.]+)", line)
        if name and "extra ==" not in line:
            required[name[0]] = minimum[1] if minimum else ""
    return required


def check_command() -> Check:
    """Check that ``mpirun hpcfl`` would start this installation."""
    path = shutil.which("hpcfl")
    here = Path(sys.executable).parent
    if path is None:
        remedy = f"install it (make setup) and put {here} on PATH, or start python -m hpcfl"
        return Check("hpcfl command", WARNING, "not on PATH", remedy)
    if Path(path).parent.resolve() != here.resolve():
        remedy = f"put {here} first on PATH: another environment's hpcfl would be started"
        return Check("hpcfl command", WARNING, path, remedy)
    return Check("hpcfl command", OK, path)
