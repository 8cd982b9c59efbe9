"""Submissions: results in one archive that others can check and compare."""
