"""Predicts the costs of a round: counts of bytes and operations, times calibrated unit costs."""
