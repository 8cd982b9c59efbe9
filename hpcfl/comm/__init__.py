"""Placement of the parties, transports for the messages of phases, and notes on their time."""
