"""Runs `hpcfl bench` while things go wrong, again and again, and checks what is left.

    python tests/campaigns/chaos.py --count 200 --seed 1 [--first 0]

Run number k of a seed is always the same plan; only what a signal finds when it arrives differs. A
run's ranks die (in a phase, by `killed.py`, or by SIGKILL from outside at any moment), stand
still for a while, or are told to leave. After each run, whatever happened:

- it ended within the limit, with a status that says what happened, and no process is left;
- what is in the results file is readable, and every round there is validated;
- a run that did not come to its end is not called complete, and one that did has all its rounds;
- what was lost is what was killed, and an error is one sentence, no traceback;
- what can go on with `--resume` does, to the end.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from hpcfl.algorithms.aggregation import find
from hpcfl.errors import HpcflError
from hpcfl.results import load
from hpcfl.system.interruption import LEFT_STATUS

LIMIT_SECONDS = 90.0
# What is still ending when mpirun has ended may take this long.
LEFT_BEHIND_SECONDS = 15.0
MARK = "HPCFL_CHAOS"
BIN = Path(sys.executable).parent
KILLED = Path(__file__).parents[1] / "faults" / "killed.py"
# Open MPI refuses root otherwise.
AS_ROOT = {f"OMPI_ALLOW_RUN_AS_ROOT{suffix}": "1" for suffix in ("", "_CONFIRM")}
PROTOCOLS = ("fedavg", "secagg", "sparse", "cohort")

# What happens: how often, and the statuses with which mpirun may end. Without a way to go on, a
# death may be too late to matter; one that a run survives is checked apart.
KINDS = {
    "nothing": (1, {0}),
    "killed by option": (5, {0, 1}),
    "killed from outside": (5, {0, 1}),
    "killed without ULFM": (2, {0, 1, 128 + signal.SIGKILL}),
    "server killed": (3, {0, 1, 128 + signal.SIGKILL}),
    "launcher killed": (1, {-signal.SIGKILL}),
    "stopped for a while": (3, {0}),
    "killed while another is stopped": (2, {0, 1}),
    "told to leave": (4, {0, 1, LEFT_STATUS}),
    "one rank told to leave": (2, {0, 1, LEFT_STATUS}),
}
SURVIVED = ("killed by option", "killed from outside", "killed while another is stopped")
# These may end before there is a file.
EARLY = ("killed without ULFM", "server killed", "launcher killed", "told to leave")


@dataclass
class Plan:
    """One run: what is started, and what happens to it."""

    number: int  # in the campaign
    kind: str  # one of KINDS
    protocol: str
    ranks: int
    devices: int
    dim: int
    rounds: int
    tolerant: bool = True  # whether mpirun is started with ULFM
    kill: list[str] = field(default_factory=list)  # as tests/faults/killed.py takes them
    victims: list[int] = field(default_factory=list)  # ranks that die or get the signal
    signal: int = 0  # 0 for none
    moment_seconds: float = 0.0  # when, after the results file is there
    stop_seconds: float = 0.0  # for how long a rank stands still
    resumed: bool = False  # whether an unfinished run is gone on with

    def devices_on(self, rank):
        """Return the devices that a rank holds, none on the server's."""
        return range(rank - 1, self.devices, self.ranks - 1) if rank else range(0)

    def statuses(self):
        """Return the statuses with which mpirun may end."""
        allowed = KINDS[self.kind][1]
        if self.kind == "told to leave":
            return allowed | {128 + self.signal, -self.signal}
        # Enough devices are left for every round, dropouts that are planned included? On a ring, as
        # with `cohort`, a few that are neighbours can be too many, so nobody knows.
        lost = sum(len(self.devices_on(rank)) for rank in self.victims)
        enough = self.devices - lost - self.devices * 2 // 10 >= self.devices // 2 + 1
        return {0} if self.kind in SURVIVED and enough and self.protocol != "cohort" else allowed


def draw(seed, number):
    """Return a run's plan; the same for the same numbers."""
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
        tolerant=kind not in ("killed without ULFM", "launcher killed") and chance.random() < 0.8,
        moment_seconds=chance.choice((0.0, chance.uniform(0, 1), chance.expovariate(0.5))),
        resumed=chance.random() < 0.7,
    )
    some = chance.sample(range(1, ranks), chance.choice((1, 1, 1, 2, 3)))
    plan.tolerant |= kind in SURVIVED
    match kind:
        case "killed by option":
            plan.victims = some
            for rank in some:
                phase = chance.choice(find(protocol).phases()[:-1])
                moment = chance.choice(("before", "during", "after"))
                index = chance.randrange(plan.rounds)
                plan.kill.append(f"rank={rank},phase={phase},round={index},moment={moment}")
        case "killed from outside":
            plan.victims, plan.signal = some, signal.SIGKILL
        case "killed while another is stopped":
            plan.victims, plan.signal = some, signal.SIGKILL
            plan.stop_seconds = chance.uniform(0.5, 3)
        case "killed without ULFM":
            plan.victims, plan.signal = some, signal.SIGKILL
        case "server killed":
            plan.victims, plan.signal = [0], signal.SIGKILL
        case "launcher killed":
            plan.signal = signal.SIGKILL
        case "stopped for a while":
            plan.victims, plan.signal = [chance.randrange(ranks)], signal.SIGSTOP
            plan.stop_seconds = chance.uniform(0.5, 4)
        case "told to leave":
            plan.signal = chance.choice((signal.SIGINT, signal.SIGTERM, signal.SIGUSR1))
        case "one rank told to leave":
            plan.victims = [chance.randrange(ranks)]
            plan.signal = chance.choice((signal.SIGTERM, signal.SIGUSR1))
    return plan


@dataclass
class Outcome:
    """The result of a run."""

    plan: Plan
    status: int  # mpirun's
    seconds: float
    rounds: int = 0  # in the file
    file_status: str = ""  # what the file says of the run; "" without a file
    resumed: bool = False
    struck: bool = False  # whether it was running when something was to happen to it
    wrong: list[str] = field(default_factory=list)


def play(plan, folder):
    """Start the run in an empty folder, do to it what is planned, and check what is left."""
    mark = f"{os.getpid()}-{plan.number}-{time.monotonic_ns()}"
    # A launcher that is killed leaves its folder behind, which is named after its process: another
    # one that has the same number later would not start.
    session = folder / "session"
    session.mkdir()
    environment = os.environ | AS_ROOT | {MARK: mark, "TMPDIR": str(session)}
    file = folder / "run.h5"
    start = time.monotonic()
    job = launch(plan, ["--output", file], folder, environment, plan.tolerant)
    struck = disturb(plan, job, file, mark)
    status, text = finish(job, folder, mark)
    outcome = Outcome(plan, status, time.monotonic() - start, struck=struck)
    outcome.wrong += left_behind(mark)
    outcome.wrong += complaints(plan, status, text)
    outcome.wrong += examine(plan, outcome, file)
    if plan.resumed and outcome.file_status not in ("", "complete") and not outcome.wrong:
        job = launch(plan, ["--resume", file], folder, environment, tolerant=False)
        status, text = finish(job, folder, mark)
        outcome.resumed = True
        outcome.wrong += left_behind(mark)
        if status:
            outcome.wrong.append(f"--resume ended with status {status}: {text[-500:]}")
        outcome.wrong += examine(plan, Outcome(plan, status, 0.0), file, went_on=True)
    return outcome


def mpirun():
    """Return the launcher: that of this environment, or else the machine's."""
    return shutil.which("mpirun", path=f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}")


def launch(plan, where, folder, environment, tolerant):
    """Start the job, in a session of its own."""
    faults = ["--with-ft", "ulfm"] if tolerant else []
    kill = [part for value in plan.kill if tolerant for part in ("--kill", value)]
    size = ["--devices", plan.devices, "--dim", plan.dim, "--dropout", 0.2]
    if find(plan.protocol).sparse_upload:
        size += ["--alpha", 0.5]
    command = [
        *(mpirun(), "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", *faults),
        *("-n", plan.ranks, sys.executable, KILLED, "bench"),
        *(plan.protocol, *size, "--rounds", plan.rounds, "--warmup", 0),
        *("--seed", plan.number, *kill, *where),
    ]
    with (folder / "stderr").open("wb") as errors:
        return subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=environment,
            start_new_session=True,
        )


def disturb(plan, job, file, mark):
    """Let happen what comes from outside, when it is time; return whether the job still ran."""
    if not plan.signal:
        return True
    end = time.monotonic() + LIMIT_SECONDS
    while not file.exists() and job.poll() is None and time.monotonic() < end:
        time.sleep(0.005)
    time.sleep(plan.moment_seconds)
    ranks = {int(one[RANK]): pid for pid, one in processes_of(mark).items() if RANK in one}
    hit = [ranks[rank] for rank in plan.victims if rank in ranks] if plan.victims else [job.pid]
    still = []
    if plan.kind == "killed while another is stopped":
        still = [pid for rank, pid in ranks.items() if rank not in plan.victims][:1]
    struck = job.poll() is None and bool(hit)
    send(still, signal.SIGSTOP)
    send(hit, plan.signal)
    if plan.stop_seconds:
        time.sleep(plan.stop_seconds)
        send([*hit, *still], signal.SIGCONT)
    return struck


def finish(job, folder, mark):
    """Return the job's status, -1 if it had to be killed, and what it said on stderr."""
    try:
        status = job.wait(LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        send(processes_of(mark), signal.SIGKILL)
        job.wait()
        status = -1
    return status, (folder / "stderr").read_text(errors="replace")


def complaints(plan, status, text):
    """Return what is wrong with a status, and with what was said about it."""
    wrong = []
    if status == -1:
        wrong.append(f"still running after {LIMIT_SECONDS:g} s")
    elif status not in plan.statuses():
        wrong.append(f"status {status}, not one of {sorted(plan.statuses())}: {text[-800:]}")
    if "Traceback" in text:
        wrong.append(f"a traceback: {text[-1500:]}")
    return wrong


def examine(plan, outcome, file, *, went_on=False):
    """Return what is wrong with the results; enter what is there."""
    if not file.exists():
        return [] if outcome.status and plan.kind in EARLY else ["there is no results file"]
    try:
        run = load(file)
    except HpcflError as error:
        return [f"the results cannot be read: {error}"]
    outcome.rounds, outcome.file_status = run.rounds, run.status
    wrong = []
    if not run.validated.all():
        wrong.append(f"rounds {(~run.validated).nonzero()[0].tolist()} are not validated")
    if run.rounds > plan.rounds:
        wrong.append(f"{run.rounds} rounds instead of {plan.rounds}")
    complete = outcome.status == 0 or went_on
    if complete and (run.status != "complete" or run.rounds != plan.rounds):
        wrong.append(f"status 0, but the file is {run.status} with {run.rounds} rounds")
    if not complete and run.status == "complete" and run.rounds != plan.rounds:
        wrong.append(f"called complete with {run.rounds} of {plan.rounds} rounds")
    if run.environment.get("fault_tolerance") and not went_on:
        wrong += examine_failures(plan, outcome, run)
    shown = subprocess.run([BIN / "hpcfl", "report", file], capture_output=True, text=True)
    if shown.returncode or "Traceback" in shown.stderr:
        wrong.append(f"hpcfl report ended with status {shown.returncode}: {shown.stderr[-500:]}")
    return wrong


def examine_failures(plan, outcome, run):
    """Return what is wrong with who is said to be lost."""
    lost = {int(id) for id in (run.lost_phase >= 0).any(axis=0).nonzero()[0]}
    victims = plan.victims if plan.signal in (0, signal.SIGKILL) else []
    killed = {id for rank in victims for id in plan.devices_on(rank)}
    if not lost <= killed:
        return [f"devices {sorted(lost - killed)} are called lost, and were not killed"]
    if plan.kill and outcome.status == 0 and lost != killed:
        return [f"devices {sorted(killed - lost)} were killed, and are not called lost"]
    after = [
        (index, id)
        for id in lost
        for index in range(int((run.lost_phase[:, id] >= 0).argmax()) + 1, run.rounds)
        if run.survived[index, id]
    ]
    return [f"device {id} is lost, and in the sum of round {index}" for index, id in after[:1]]


# Processes

RANK = "OMPI_COMM_WORLD_RANK"


def processes_of(mark):
    """Return the environment of every living process of a run, by its number."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            variables = process.environ()
            if variables.get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = variables
    return found


def left_behind(mark):
    """Return the processes that outlive a run; they are killed."""
    end = time.monotonic() + LEFT_BEHIND_SECONDS
    while (found := processes_of(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    send(found, signal.SIGKILL)
    ranks = sorted(one.get(RANK, "mpirun") for one in found.values())
    return [f"{len(found)} processes were left: ranks {', '.join(ranks)}"] if found else []


def send(pids, number):
    """Send a signal to processes, as far as they still are."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


# The campaign


def summary(outcomes):
    """Return a line for each kind: how many runs, and what became of them."""
    lines = []
    for kind in KINDS:
        some = [one for one in outcomes if one.plan.kind == kind]
        passed = sum(not one.wrong for one in some)
        struck = sum(one.struck for one in some)
        lines.append(f"{kind}: {len(some)} runs, {struck} struck, {passed} passed")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    asked = parser.parse_args()
    outcomes = []
    for number in range(asked.first, asked.first + asked.count):
        plan = draw(asked.seed, number)
        with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
            outcome = play(plan, Path(folder))
        outcomes.append(outcome)
        print(
            f"{plan.number:4} {plan.kind:32} {plan.protocol:7} {plan.ranks:3} ranks  status "
            f"{outcome.status:4}  {outcome.rounds:3}/{plan.rounds} rounds  {outcome.file_status:12}"
            f"{'resumed ' if outcome.resumed else ''}{outcome.seconds:6.1f} s  "
            f"{'; '.join(outcome.wrong) or 'ok'}",
            flush=True,
        )
    print(f"\n{summary(outcomes)}\n")
    sys.exit(any(one.wrong for one in outcomes))


if __name__ == "__main__":
    main()
