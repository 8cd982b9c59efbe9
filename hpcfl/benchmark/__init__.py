"""Experiments on vectors: repeat rounds of an aggregation protocol, time, check and log them."""
