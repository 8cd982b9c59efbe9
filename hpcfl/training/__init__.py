"""Experiments that train real models: rounds of a federated algorithm through any aggregation."""
