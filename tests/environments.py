"""Programs in separate environments, as if there were no checkout."""

from __future__ import annotations

import os
import subprocess
import sys

SECONDS = 300


def run(*command, folder, path=None, status=0, **variables):
    """Run a program in a folder, with the folder `path` first in PATH; return its output.

    It has this process's environment without PYTHONPATH, and additional `variables`.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        environment["PATH"] = f"{path}{os.pathsep}{environment['PATH']}"
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "NO_COLOR"):
        environment[name] = "1"
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment | {name: str(value) for name, value in variables.items()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == status, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def make(folder, *packages, python=sys.executable):
    """Make a virtual environment with some packages; return its folder of programs."""
    programs = folder / "bin"
    run(python, "-m", "venv", "--without-pip", folder, folder=folder.parent)
    # Most modules of a tool are never imported, so do not compile them.
    pip = (sys.executable, "-m", "pip", "--python", programs / "python", "install", "--no-compile")
    run(*pip, "--quiet", *packages, folder=folder.parent)
    return programs
