"""Runs on one machine in which every device has its own network namespace and shaped link."""
