"""Rounds as exchanges of a server with its clients, for frameworks that move the messages."""
