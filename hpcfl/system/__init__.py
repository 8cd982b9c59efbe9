"""Environment, launch, interruption, files, settings of MPI: what concerns the system."""
