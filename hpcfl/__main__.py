"""Entry point of the program `hpcfl` and of ``python -m hpcfl``."""

from __future__ import annotations

import gc
import os
import sys

from hpcfl.system import launch


def main() -> None:
    """Run the command line; on a rank with devices, load only the code that devices need."""
    # Imported modules stay in memory. Garbage collection takes a tenth of the time of imports.
    gc.disable()
    if launch.launched_by_mpi():
        # Each core has one or more ranks, so BLAS threads would only slow down other ranks.
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ.setdefault(name, "1")
    leads = launch.launched_by_mpi() and sys.argv[1:2] == ["bench"]
    if leads and launch.leave_to_first_rank():
        from hpcfl.benchmark import device

        device.main()
    from hpcfl.cli import main as command_line

    gc.freeze()
    gc.enable()
    try:
        command_line()
    except SystemExit:
        if leads and launch.works_alone():
            from hpcfl.benchmark import device

            device.release()
        raise


if __name__ == "__main__":
    main()
