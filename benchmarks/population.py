"""What the event clock of a population adds to the rounds of many devices.

The CPU seconds inside the clock are measured beside those of the whole round in the same round, as
rounds differ from each other by more than that. Holding the uploads back is not in it.
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
        self.ratios: list[float] = []
        self._inside, self._start = 0.0, time.process_time()
        for name in ("__init__", "trained", "after", "answers", "finish"):
            setattr(RoundClock, name, self._measured(getattr(RoundClock, name)))

    def _measured(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*arguments: Any) -> Any:
            start = time.process_time()
            result = method(*arguments)
            self._inside += time.process_time() - start
            return result

        return measured

    def finished(self, index: int, result: Played) -> None:
        whole = time.process_time() - self._start
        self.ratios.append(whole / (whole - self._inside))
        print(f"    round {index}: {whole:.2f} s, {1e3 * self._inside:.1f} ms of it in the clock")
        self._inside, self._start = 0.0, time.process_time()


def main() -> None:
    """Measure a protocol without masks and one with them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("protocols", nargs="*", default=["fedavg", "secagg-graph"])
    parser.add_argument("--devices", type=int, default=10_000)
    given, observer = parser.parse_args(), Ratio()
    for name in given.protocols:
        asked = {"protocol": name, "dim": 100, "population": "mobile", "rounds": 2, "warmup": 0}
        experiment = Experiment.prepare(resolved(asked), given.devices)
        experiment.run(Loopback(given.devices), observer)
        figure(f"{name}: a round with the clock / without", max(observer.ratios[-2:]), 1.05)


if __name__ == "__main__":
    main()
