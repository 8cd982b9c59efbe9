"""All checks of what hpcfl needs, and what to do about what they found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hpcfl.errors import UsageError
from hpcfl.system import launch
from hpcfl.system.doctor import installation, machine, mpi
from hpcfl.system.doctor.check import OK, PROBLEM, Check


def examine(results: Path) -> Iterator[Check]:
    """Run every check, in an order in which the first problem explains later ones.

    The folder that results shall be written to is not created.
    """
    if (launch.guess_size() or 1) > 1:
        raise UsageError("hpcfl doctor starts mpirun by itself: call it without a launcher")
    yield machine.check_machine()
    yield installation.check_python()
    yield installation.check_packages()
    yield installation.check_command()
    library = mpi.find_library()
    launcher = mpi.find_launcher()
    yield mpi.check_mpi4py(library, launcher)
    yield mpi.check_mpirun(launcher, library)
    if launcher is not None:
        yield mpi.check_root(launcher)
    if launcher is not None and library.implementation is not None:
        launched = mpi.check_launch(launcher)
        yield launched
        if launched.status == OK:
            yield mpi.check_oversubscription(launcher)
            yield mpi.check_fault_tolerance(launcher)
    yield machine.check_shared_memory()
    yield machine.check_slurm()
    yield machine.check_results(results)
    yield machine.check_hdf5(results)


def render_line(check: Check) -> str:
    """Return one check as a line."""
    return f"{check.status:<8} {check.name:<17} {check.found}"


def render_remedies(checks: list[Check]) -> str:
    """Return what to do as a numbered list, problems first; empty if there is nothing to do."""
    open_checks = [check for check in checks if check.remedy]
    open_checks.sort(key=lambda check: check.status != PROBLEM)
    lines = [
        f"  {number}. {check.name}: {check.remedy}" for number, check in enumerate(open_checks, 1)
    ]
    return "\n".join(["To do:", *lines]) if lines else ""
