"""hpcfl's protocols inside frameworks for federated learning; each module needs its framework."""
