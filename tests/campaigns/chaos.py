"""Runs `hpcfl bench` with faults many times, and checks the results.

    python tests/campaigns/chaos.py --count 200 --seed 1 [--first 0]

Run number k of a seed always has the same plan; only the state in which a signal finds the run
differs. Ranks die (in a phase, by `killed.py`, or by SIGKILL from outside at any moment), stop for
a while, or are told to leave. After each run, whatever happened:

- it has ended within the limit, with a status that fits the fault, and no process is left;
- the results file is readable, and all its rounds are validated;
- an unfinished run is not called complete, and a finished one has all its rounds;
- only killed devices are lost, and an error is one sentence without a traceback;
- a run that can be resumed with `--resume` is finished by it.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

sys.path.append(str(Path(__file__).parents[1] / "mpirun"))
sys.path.append(str(Path(__file__).parents[1] / "faults"))

from launcher import MPIRUN, environment, start
from ulfm import HPCFL, ULFM, kill

from hpcfl.algorithms.aggregation import find
from hpcfl.errors import HpcflError
from hpcfl.results import load
from hpcfl.system.interruption import LEFT_STATUS

LIMIT_SECONDS = 90.0
# Processes may take this long to end after mpirun has ended.
LEFT_BEHIND_SECONDS = 15.0
MARK = "HPCFL_CHAOS"
RANK = "OMPI_COMM_WORLD_RANK"
PROTOCOLS = ("fedavg", "secagg", "sparse", "cohort")
KILLED = 128 + signal.SIGKILL

# For each kind of fault: its weight, and the allowed statuses of mpirun. A death may be too late to
# matter, or leave too few devices.
KINDS = {
    "killed by option": (5, {0, 1}),
    "killed from outside": (5, {0, 1}),
    "killed without ULFM": (2, {0, 1, KILLED}),
    "server killed": (3, {0, 1, KILLED}),
    "launcher killed": (1, {-signal.SIGKILL}),
    "stopped for a while": (3, {0}),
    "told to leave": (4, {0, 1, LEFT_STATUS}),
    "one rank told to leave": (2, {0, 1, LEFT_STATUS}),
}
SURVIVED = ("killed by option", "killed from outside")
# Runs with these faults may end before there is a file.
EARLY = ("killed without ULFM", "server killed", "launcher killed", "told to leave")


@dataclass
class Plan:
    """One run: its job, and its faults."""

    number: int  # in the campaign
    kind: str  # one of KINDS
    protocol: str
    ranks: int
    devices: int
    dim: int
    rounds: int
    kill: list[str] = field(default_factory=list)  # arguments of tests/faults/killed.py
    victims: list[int] = field(default_factory=list)  # ranks that die or get the signal
    signal: int = 0  # 0 for none
    moment_seconds: float = 0.0  # delay of the signal after the results file exists
    stop_seconds: float = 0.0  # for how long a rank is stopped

    def lost(self):
        """Return the devices that are killed; the server's rank has none."""
        dead = [rank for rank in self.victims if rank and self.signal in (0, signal.SIGKILL)]
        return {id for rank in dead for id in range(rank - 1, self.devices, self.ranks - 1)}

    def statuses(self):
        """Return the allowed statuses of mpirun."""
        allowed = KINDS[self.kind][1]
        if self.kind == "told to leave":
            return allowed | {128 + self.signal, -self.signal}
        # Are enough devices left for every round with its planned dropouts? That is unknown for the
        # ring of `cohort`, where the loss of a few neighbours can be too much.
        left = self.devices - len(self.lost()) - self.devices * 2 // 10
        enough = self.kind in SURVIVED and left >= self.devices // 2 + 1
        return {0} if enough and self.protocol != "cohort" else allowed


def draw(seed, number):
    """Return a run's plan; equal numbers give equal plans."""
    chance = random.Random(f"{seed} {number}")
    kind = chance.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
    protocol, ranks = chance.choice(PROTOCOLS), chance.randint(5, 17)
    plan = Plan(
        number,
        kind,
        protocol,
        ranks,
        devices=(ranks - 1) * chance.choice((1, 1, 2)),
        dim=chance.choice((1_000, 20_000, 100_000)),
        rounds=chance.randint(15, 50),
        moment_seconds=chance.choice((0.0, chance.uniform(0, 1), chance.expovariate(0.5))),
    )
    plan.victims = chance.sample(range(1, ranks), chance.choice((1, 1, 1, 2, 3)))
    if kind == "killed by option":
        for rank in plan.victims:
            phase = chance.choice(find(protocol).phases()[:-1])
            moment = chance.choice(("before", "during", "after"))
            plan.kill += kill(rank, phase, chance.randrange(plan.rounds), moment)
    elif kind == "stopped for a while":
        plan.victims, plan.signal = [chance.randrange(ranks)], signal.SIGSTOP
        plan.stop_seconds = chance.uniform(0.5, 4)
    elif "told to leave" in kind:
        plan.victims = [chance.randrange(ranks)] if kind.startswith("one") else []
        plan.signal = chance.choice((signal.SIGTERM, signal.SIGUSR1))
    else:
        plan.signal = signal.SIGKILL
        plan.victims = {"server killed": [0], "launcher killed": []}.get(kind, plan.victims)
    return plan


@dataclass
class Outcome:
    """The result of a run."""

    status: int  # mpirun's; -1 if it had to be killed
    text: str  # stderr
    left: list[str]  # the ranks of processes that outlived mpirun


def play(plan, folder):
    """Start the run in an empty folder and disturb it as planned; return the complaints."""
    file = folder / "run.h5"
    outcome = run(plan, ["--output", file], folder)
    wrong = complaints(outcome, plan.statuses())
    if not file.exists():
        early = outcome.status and plan.kind in EARLY
        return wrong if early else [*wrong, "there are no results"]
    try:
        found = load(file)
        wrong += examine(plan, outcome.status, found) + examine_losses(plan, outcome.status, found)
        if not wrong and found.status != "complete":
            again = run(plan, ["--resume", file], folder, disturbed=False)
            wrong += complaints(again, {0}) + examine(plan, again.status, load(file))
    except HpcflError as error:
        wrong.append(f"the results cannot be read: {error}")
    return wrong


def run(plan, where, folder, disturbed=True):
    """Run the job to its end, with or without its faults."""
    # A killed launcher leaves its folder, which is named after its process ID: a later launcher
    # with the same ID would not start.
    mark = f"{os.getpid()}-{plan.number}-{time.monotonic_ns()}"
    variables = environment() | {MARK: mark, "TMPDIR": str(folder)}
    tolerant = disturbed and plan.kind not in ("killed without ULFM", "launcher killed")
    size = ["--devices", plan.devices, "--dim", plan.dim, "--dropout", 0.2]
    size += ["--alpha", 0.5] if find(plan.protocol).sparse_upload else []
    options = ["--rounds", plan.rounds, "--warmup", 0, "--seed", plan.number, *where]
    options += plan.kill if disturbed else []
    with (folder / "stderr").open("wb") as errors:
        job = start(
            *((*ULFM, "-n") if tolerant else MPIRUN),
            *(plan.ranks, *HPCFL, "bench", plan.protocol, *size, *options),
            env=variables,
            stderr=errors,
        )
    if disturbed and plan.signal:
        disturb(plan, job, where[-1], mark)
    status = -1
    with suppress(subprocess.TimeoutExpired):
        status = job.wait(LIMIT_SECONDS)
    return Outcome(status, (folder / "stderr").read_text(errors="replace"), left_behind(mark))


def disturb(plan, job, file, mark):
    """Send the planned signal from outside, at the planned moment."""
    end = time.monotonic() + LIMIT_SECONDS
    while not file.exists() and job.poll() is None and time.monotonic() < end:
        time.sleep(0.005)
    time.sleep(plan.moment_seconds)
    ranks = {int(one[RANK]): pid for pid, one in processes_of(mark).items() if RANK in one}
    hit = [ranks[rank] for rank in plan.victims if rank in ranks] if plan.victims else [job.pid]
    send(hit, plan.signal)
    if plan.stop_seconds:
        time.sleep(plan.stop_seconds)
        send(hit, signal.SIGCONT)


def complaints(outcome, statuses):
    """Return the complaints about a run's status, messages and remaining processes."""
    wrong = []
    if outcome.status not in statuses:
        wrong.append(f"status {outcome.status}, not in {statuses}: {outcome.text[-800:]}")
    if "Traceback" in outcome.text:
        wrong.append(f"a traceback: {outcome.text[-1500:]}")
    if outcome.left:
        wrong.append(f"processes were left: ranks {', '.join(outcome.left)}")
    return wrong


def examine(plan, status, run):
    """Return the complaints about the rounds in the results."""
    wrong = []
    if not run.validated.all():
        wrong.append(f"rounds {(~run.validated).nonzero()[0].tolist()} are not validated")
    if (status == 0 or run.status == "complete") and run.rounds != plan.rounds:
        wrong.append(f"{run.status} with {run.rounds} of {plan.rounds} rounds")
    if status == 0 and run.status != "complete":
        wrong.append(f"status 0, but the file is {run.status}")
    return wrong


def examine_losses(plan, status, run):
    """Return the complaints about the devices recorded as lost."""
    if run.lost_phase is None:
        return []
    gone, killed = run.lost_phase >= 0, plan.lost()
    lost = {int(id) for id in gone.any(axis=0).nonzero()[0]}
    if not lost <= killed or (plan.kill and status == 0 and lost != killed):
        return [f"lost are {sorted(lost)}, and killed {sorted(killed)}"]
    return [
        f"device {id} is lost, and in a later sum"
        for id in lost
        if run.survived[int(gone[:, id].argmax()) + 1 :, id].any()
    ]


def processes_of(mark):
    """Return the environment of every living process of a run, by process ID."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            variables = process.environ()
            if variables.get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = variables
    return found


def left_behind(mark):
    """Kill the processes that outlive a run; return their ranks."""
    end = time.monotonic() + LEFT_BEHIND_SECONDS
    while (found := processes_of(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    send(found, signal.SIGKILL)
    return sorted(one.get(RANK, "mpirun") for one in found.values())


def send(pids, number):
    """Send a signal to those of some processes that still exist."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    asked = parser.parse_args()
    passed, played = Counter(), Counter()
    for number in range(asked.first, asked.first + asked.count):
        plan = draw(asked.seed, number)
        with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
            wrong = play(plan, Path(folder))
        played[plan.kind] += 1
        passed[plan.kind] += not wrong
        about = f"{plan.number:4} {plan.kind:24} {plan.protocol:7} {plan.ranks:3} ranks"
        print(about, "; ".join(wrong) or "ok", flush=True)
    for kind in played:
        print(f"{kind}: {played[kind]} runs, {passed[kind]} passed")
    sys.exit(passed != played)


if __name__ == "__main__":
    main()
