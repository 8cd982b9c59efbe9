"""What every library must do: tests of tests/mpirun, run in the library's environment."""

import os
import re
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

MPIRUN = Path(__file__).parents[1] / "mpirun"
LIMIT_SECONDS = 400

JOBS, LEFT, COMMANDS, TRAIN = (
    f"test_{name}.py" for name in ("jobs", "interrupted_jobs", "command_jobs", "train_jobs")
)
# The columns of the table.
FEATURES = {
    "transport": (f"{COMMANDS}::test_the_transport_tests_pass_under_mpirun[5]",),
    "protocols": (
        *(
            f"{JOBS}::test_every_protocol_is_validated_on_any_number_of_ranks[{protocol}-5]"
            for protocol in ("fedavg", "secagg", "sparse")
        ),
        f"{JOBS}::test_devices_that_share_ranks_send_and_sum_the_same[secagg]",
    ),
    "crowded": (f"{JOBS}::test_every_protocol_is_validated_on_any_number_of_ranks[sparse-17]",),
    "reduce": (
        f"{JOBS}::test_uploads_summed_within_reduce_give_the_same_sum[fq-secagg]",
        f"{JOBS}::test_uploads_summed_within_reduce_give_the_same_sum[ring32-prf]",
        f"{JOBS}::test_uploads_summed_within_reduce_give_the_same_sum[ring16-secagg]",
    ),
    "several device counts": (
        f"{JOBS}::test_several_device_counts_in_one_launch_give_a_file_each",
        f"{COMMANDS}::test_one_launch_does_all_numbers_of_devices",
    ),
    "rank fails": (
        f"{JOBS}::test_a_rank_that_crashes_ends_the_job_with_its_traceback",
        f"{JOBS}::test_a_device_that_refuses_costs_the_round_itself_and_is_reported",
        f"{JOBS}::test_a_missing_device_ends_the_job_once_with_a_sentence",
    ),
    "wrong options": (
        f"{JOBS}::test_wrong_use_is_refused_once_with_a_sentence",
        f"{JOBS}::test_refused_ranks_leave_in_order",
    ),
    "SIGKILL": (
        f"{LEFT}::test_the_death_of_a_device_rank_ends_the_job_and_costs_no_round",
        f"{LEFT}::test_the_servers_death_costs_no_round_and_resume_goes_on",
    ),
    "signals": (
        f"{LEFT}::test_mpirun_is_told_to_leave",
        f"{LEFT}::test_all_ranks_leave_together_whether_one_is_told_or_mpirun",
    ),
    "train": (
        f"{TRAIN}::test_the_model_does_not_depend_on_the_number_of_ranks"
        "[fedavg---aggregate-sparse]",
        f"{TRAIN}::test_the_model_does_not_depend_on_the_number_of_ranks[cdp---aggregate-secagg]",
        f"{TRAIN}::test_all_ranks_leave_together_when_mpirun_gets_the_signal",
    ),
    "calibrate": (f"{COMMANDS}::test_ranks_are_calibrated_and_predicted",),
}


@dataclass(frozen=True)
class Outcome:
    """What became of a feature's tests."""

    passed: bool
    reason: str  # what failed first or why tests were skipped; empty if all ran and passed
    seconds: float


def check(environment, feature, say=print):
    """Run the tests of a feature; `say` takes what pytest printed if some failed."""
    command = [environment.python, "-m", "pytest", "-q", "-rfEs", "-p", "no:cacheprovider"]
    tests = [str(MPIRUN / test) for test in FEATURES[feature]]
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hpcfl-") as folder:
        job = subprocess.Popen(
            [*map(str, command), "--rootdir", MPIRUN.parents[1], *tests],
            env={**environment.variables(), "COLUMNS": "300"},  # for whole reasons
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            text, _ = job.communicate(timeout=LIMIT_SECONDS)
            status = job.returncode
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            job.communicate()
            text, status = f"FAILED - not done after {LIMIT_SECONDS} s", 1
    if status:
        say(text)
    return Outcome(status == 0, reason(text, status), time.monotonic() - start)


def reason(text, status):
    """Return what failed first, or why something was skipped, as pytest's summary says it."""
    kind = r"(?:FAILED|ERROR)" if status else "SKIPPED"
    found = re.search(rf"^{kind}\b.*?(?:::(\w+\S*))?(?: - |: )(.*)$", text, re.MULTILINE)
    if found is None:
        return "" if status == 0 else f"pytest ended with status {status}"
    test, why = found.groups()
    return f"{test.replace('_', ' ')}: {why}" if test else why
