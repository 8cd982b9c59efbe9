"""The program `hpcfl`, and ``python -m hpcfl``."""

from __future__ import annotations

import gc
import os
import sys

from hpcfl.system import launch


def main() -> None:
    """Run the command line; on a rank with devices only what these need."""
    # All that is loaded stays. To look for garbage in it takes a tenth of the time of loading.
    gc.disable()
    if launch.launched_by_mpi():
        # One rank a core, or many: threads of BLAS would only stand in the other ranks' way.
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
