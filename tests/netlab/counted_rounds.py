"""Run in a lab by test_ledger_on_the_wire: `hpcfl`, and what interfaces count during each round.

python counted_rounds.py FOLDER bench ...

Every rank writes FOLDER/RANK.json: for each round the bytes and packets received, then the bytes
and packets sent, by its host's interface.
"""

import json
import sys
from pathlib import Path

from hpcfl.__main__ import main
from hpcfl.comm.mpi import MpiTransport
from hpcfl.netlab.lab import INTERFACE
from hpcfl.rounds.driver import Round
from hpcfl.system import launch

folder = Path(sys.argv.pop(1))
rounds, before = [], []


def counters():
    """Return what this host's interface has counted so far."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    (counted,) = (line.split(":")[1] for line in lines if line.strip().startswith(INTERFACE))
    values = [int(value) for value in counted.split()]
    return [*values[:2], *values[8:10]]


def before_a_round(barrier):
    # Of the last barrier: who leaves it first may send at once.
    def counted(self):
        before[:] = counters()
        barrier(self)

    return counted


def a_round(play):
    # It ends with word from the server, which has all that was sent to it then.
    def counted(self):
        play(self)
        rounds.append([now - then for now, then in zip(counters(), before, strict=True)])
        (folder / f"{launch.guess_rank()}.json").write_text(json.dumps(rounds))

    return counted


MpiTransport.barrier = before_a_round(MpiTransport.barrier)
Round.play = a_round(Round.play)
main()
