"""Hands job scripts to Slurm."""

from __future__ import annotations

import re
import shutil
import subprocess

from hpcfl.errors import HpcflError, UsageError

_SUBMIT_SECONDS = 120


def submit(script: str) -> str:
    """Submit a script with sbatch, and return the number of its job."""
    if shutil.which("sbatch") is None:
        raise UsageError(
            "there is no sbatch on this machine: use a login node of the cluster, or print the "
            "script with hpcfl slurm render"
        )
    try:
        done = subprocess.run(
            ["sbatch", "--parsable"],
            input=script,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SUBMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise HpcflError(
            f"sbatch did not answer for {_SUBMIT_SECONDS} s; see with squeue whether it has the job"
        ) from None
    except OSError as error:
        raise HpcflError(f"sbatch cannot be run: {error.strerror}") from None
    if done.returncode != 0:
        reason = re.sub(r"sbatch: (error: )?", "", done.stderr.strip()).replace("\n", "; ")
        raise HpcflError(f"sbatch refuses the job: {reason or f'status {done.returncode}'}")
    # "number" or "number;cluster", after whatever a plug-in of the site prints.
    lines = done.stdout.split()
    number = lines[-1].partition(";")[0] if lines else ""
    if not number.isdigit():
        raise HpcflError(f"sbatch did not say which job it made, but {done.stdout.strip()!r}")
    return number
