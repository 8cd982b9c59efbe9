"""Checks of everything that hpcfl needs: what was found, and what to do about it.

Whatever may be broken is tried in a process of its own with a time limit, so that a broken MPI
gives a line in the report instead of ending it.
"""
