"""Sweeps: many configurations of `hpcfl bench` from one plan, in one launch or many."""
