"""Recommends a protocol: which ones qualify, their costs, and why the others do not qualify."""
