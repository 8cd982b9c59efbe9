"""Sweeps: many configurations of `hpcfl bench` and `train` from one plan, in one launch or many."""
