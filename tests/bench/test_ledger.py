from itertools import count

import pytest

from hpcfl.crypto import threads
from hpcfl.rounds import ledger


@pytest.fixture
def ticking(monkeypatch):
    """Let every look at the CPU clock take a second."""
    monkeypatch.setattr(ledger.time, "thread_time", count().__next__)
    # Of tests before this one: a fraction beside which whole seconds are rounded.
    monkeypatch.setattr(threads, "_helped_seconds", 0)
