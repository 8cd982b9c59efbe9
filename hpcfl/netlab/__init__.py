"""Runs on one machine with a network of its own for every device, each with a shaped link."""
