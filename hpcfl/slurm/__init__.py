"""Job scripts for Slurm: filled in from templates."""
