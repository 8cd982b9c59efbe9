"""Changed messages, a million by default: what the protocols' parties make of them.

Every protocol plays whole rounds in one process with one message changed on its way (bits flipped,
cut, extended, spliced from another sender, phase or round, boundary numbers in every word, points
of low order, ...), and single parties receive single changed messages. A round must end with the
exact sum over the survivors that the server names, or with an error that is a sentence; in "own
choice" a sender gave a wrong but well-formed vector, key or share that nobody can tell from a right
one. Anything else is printed, counted, and makes the exit status 1.

    python benchmarks/fuzz_wire.py --count 1000000 --seed 1
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fuzz"))

import fuzzed_wire as wire  # type: ignore[import-not-found]

ROUND_SHARE = 0.05
SMALLEST, LARGEST = 5, 8
# More than any round here takes, with a message that is extended by `wire.HUGE` bytes.
PEAK_BYTES = 64 << 20
SHOWN = 20
FINE = {"exact", "own choice", "ended", "accepted", "refused"}


def draw_change(random: np.random.Generator) -> tuple[str, int, int]:
    kind = wire.KINDS[random.integers(len(wire.KINDS))]
    return kind, int(random.integers(10**9)), int(random.integers(10**9))


def draw_dropouts(random: np.random.Generator, case: str, devices: int) -> dict[int, str]:
    """Return dropouts in less than half of the rounds, of one or two devices."""
    protocol = wire.protocol(case, devices)
    if not protocol.tolerates_dropouts or random.random() < 0.6:
        return {}
    phases = protocol.phases()[1:]
    gone = random.choice(devices, int(random.integers(1, 3)), replace=False)
    return {int(id): phases[random.integers(len(phases))] for id in gone}


def one(random: np.random.Generator, whole: bool) -> tuple[str, str]:
    """Change one message; return what came of it, and how to do it again."""
    case = list(wire.CASES)[random.integers(len(wire.CASES))]
    devices = int(random.integers(SMALLEST, LARGEST + 1))
    try:
        if not whole:
            stands = wire.stands_of(case, devices)
            stand, change = stands[random.integers(len(stands))], draw_change(random)
            again = f"{case} {devices} {stand.method} {change}"
            return wire.receive(stand, *change, wire.honest(case, devices)[1]), again
        dropouts, target = draw_dropouts(random, case, devices), int(random.integers(10**6))
        arguments = (case, devices, dropouts, target, *draw_change(random))
        return wire.fuzzed(*arguments).kind, f"fuzzed{arguments}"
    except Exception:
        return "crash", f"{case} {devices}\n{traceback.format_exc()}"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--count", type=int, default=10**6, help="changed messages in all")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--rounds", type=float, default=ROUND_SHARE, help="part in whole rounds")
    options.add_argument("--seconds", type=float, default=np.inf, help="stop after this long")
    chosen = options.parse_args()
    random = np.random.default_rng(chosen.seed)
    counts: Counter[tuple[str, str]] = Counter()
    wrong, start, peak = 0, time.monotonic(), 0
    for number in range(chosen.count):
        if time.monotonic() - start > chosen.seconds:
            break
        whole = random.random() < chosen.rounds
        # Tracing makes a round several times slower: one in 50.
        traced = number % 50 == 0
        if traced:
            tracemalloc.start()
        outcome, again = one(random, whole)
        if traced:
            peak = max(peak, tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        counts["rounds" if whole else "messages", outcome] += 1
        if outcome not in FINE:
            wrong += 1
            if wrong <= SHOWN:
                print(f"{outcome}: {again}", flush=True)
        if (number + 1) % (chosen.count // 10 or 1) == 0:
            print(f"{number + 1} after {time.monotonic() - start:.0f} s", flush=True)
    for (part, outcome), count in sorted(counts.items()):
        print(f"{part:9} {outcome:11} {count:10}")
    print(f"in all {sum(counts.values())}, wrong sums and crashes {wrong}")
    print(f"peak of traced memory {peak / 2**20:.1f} MiB, at most {PEAK_BYTES / 2**20:.0f} allowed")
    return int(wrong > 0 or peak > PEAK_BYTES)


if __name__ == "__main__":
    sys.exit(main())
