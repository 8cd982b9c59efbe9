"""Rounds as exchanges of a server with its clients, for frameworks that move the messages."""

from hpcfl.exchange.client import Client
from hpcfl.exchange.journal import FileJournal
from hpcfl.exchange.policy import Policy
from hpcfl.exchange.server import ServerRound, Session

__all__ = ["Client", "FileJournal", "Policy", "ServerRound", "Session"]
