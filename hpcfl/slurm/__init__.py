"""Renders job scripts for Slurm from templates, and submits them."""
