"""Lets ``python -m hpcfl`` do what ``hpcfl`` does."""

from hpcfl.cli import main

main()
