"""Renders job scripts for Slurm from templates."""
