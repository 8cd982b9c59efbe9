"""What the event clock of a population adds to the rounds of many devices.

CPU seconds in the clock beside those of the round that it is in, as rounds differ by more.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from harness import figure
from hpcfl.benchmark.experiment import Experiment, resolved
from hpcfl.comm.loopback import Loopback
from hpcfl.rounds.eventclock import RoundClock
from hpcfl.rounds.observer import RoundObserver
from hpcfl.rounds.timed import Played


class Ratio(RoundObserver):
    """Measures rounds, and what of them is spent in the clock."""

    def __init__(self) -> None:
        for name in ("__init__", "trained", "after", "answers", "finish"):
            setattr(RoundClock, name, self._measured(getattr(RoundClock, name)))

    def begin(self) -> None:
        self.ratio, self._inside, self._start = 1.0, 0.0, time.process_time()

    def _measured(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*arguments: Any) -> Any:
            start = time.process_time()
            result = method(*arguments)
            self._inside += time.process_time() - start
            return result

        return measured

    def finished(self, index: int, result: Played) -> None:
        whole = time.process_time() - self._start
        self.ratio = whole / (whole - self._inside)
        print(f"{whole:.2f} s, {self._inside:.4f} s of it in the clock")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("protocols", nargs="*", default=["fedavg", "secagg-graph"])
    parser.add_argument("--devices", type=int, default=10_000)
    given, observer = parser.parse_args(), Ratio()
    for name in given.protocols:
        asked = {"protocol": name, "dim": 100, "population": "mobile", "rounds": 1, "warmup": 0}
        experiment = Experiment.prepare(resolved(asked), given.devices)
        observer.begin()
        experiment.run(Loopback(given.devices), observer)
        figure(f"{name}: a round with the clock / without", observer.ratio, 1.05)


if __name__ == "__main__":
    main()
