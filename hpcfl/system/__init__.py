"""The system around a run: environment, launch, interruption, files and settings of MPI."""
