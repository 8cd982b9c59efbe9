"""Experiments on vectors: rounds of an aggregation protocol, timed, validated and logged."""
