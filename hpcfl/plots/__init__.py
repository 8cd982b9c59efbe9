"""Figures of results, drawn with matplotlib."""

KINDS = {
    "partition": "which device has how many samples of which class",
    "accuracy": "accuracy against rounds, bytes or modelled seconds",
}
"""What `hpcfl plot` draws of results files, and in words."""
