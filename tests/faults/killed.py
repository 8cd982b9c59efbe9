"""The command line of hpcfl, with ranks that kill themselves when their time has come.

Among its arguments: --kill rank=7,phase=masked_input,round=3,moment=before, or rank=7+9; the moment
is one of `hpcfl.rounds.driver.MOMENTS`. Rounds count from 0, warm-up included.
"""

import os
import signal
import sys

from hpcfl import __main__
from hpcfl.benchmark import session
from hpcfl.rounds.observer import NOBODY, RoundObserver, Together
from hpcfl.system import launch


class Killer(RoundObserver):
    def __init__(self, kills):
        plans = [dict(part.split("=") for part in kill.split(",")) for kill in kills]
        self.times = {
            (int(plan["round"]), plan["moment"], plan["phase"])
            for plan in plans
            if str(launch.guess_rank()) in plan["rank"].split("+")
        }

    def at(self, index, moment, phase):
        if (index, moment, phase) in self.times:
            os.kill(os.getpid(), signal.SIGKILL)


def main(arguments):
    kills = []
    while "--kill" in arguments:
        place = arguments.index("--kill")
        _, kill = arguments[place : place + 2]
        kills.append(kill)
        arguments = arguments[:place] + arguments[place + 2 :]
    killer, run = Killer(kills), session.run

    def run_and_kill(world, options, report, observer=NOBODY, **more):
        run(world, options, report, Together(killer, observer), **more)

    session.run = run_and_kill
    sys.argv = ["hpcfl", *arguments]
    __main__.main()


if __name__ == "__main__":
    main(sys.argv[1:])
