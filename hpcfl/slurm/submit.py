"""Submits job scripts to Slurm."""

from __future__ import annotations

import subprocess

from hpcfl.errors import HpcflError, UsageError

_SUBMIT_SECONDS = 120


def submit(script: str) -> str:
    """Submit a script with sbatch, and return the number of the job."""
    try:
        done = subprocess.run(
            ["sbatch", "--parsable"],
            input=script,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SUBMIT_SECONDS,
        )
    except FileNotFoundError:
        raise UsageError(
            "there is no sbatch on this machine: use a login node of the cluster, or print the "
            "script with hpcfl slurm render"
        ) from None
    except subprocess.TimeoutExpired:
        raise HpcflError(
            f"sbatch did not answer for {_SUBMIT_SECONDS} s; see with squeue whether it has the job"
        ) from None
    # The last word is "number" or "number;cluster"; a site's plug-in may print text before it.
    lines = done.stdout.split()
    if done.returncode != 0 or not lines:
        raise HpcflError(f"sbatch refuses the job: {done.stderr.strip() or done.returncode}")
    return lines[-1].partition(";")[0]
