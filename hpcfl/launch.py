import os


def launched_by_mpi():
    return "OMPI_COMM_WORLD_SIZE" in os.environ


def guess_rank():
    return int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))


def guess_size():
    return int(os.environ["OMPI_COMM_WORLD_SIZE"]) if launched_by_mpi() else None


def terminal_for_progress():
    return None
