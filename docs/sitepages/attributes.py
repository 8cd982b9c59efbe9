"""What attributes of a results file say whose names do not tell, for the page that lists them.

Options are described where they are defined, in `hpcfl.options`; here is what else `/config` holds,
and what `/environment` does.
"""

from __future__ import annotations

from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import options_of
from hpcfl.options.training import TrainOptions
from hpcfl.results import schema
from hpcfl.system.disturbances import AFTER, BEFORE, COUNTERS

_BESIDE_OPTIONS = {
    "protocol": "aggregation protocol; that within which `dp-fedavg` adds its noise",
    "bits": "bits of the group that sums are computed in, or `auto`",
    "correctness_bits": "a sum wraps around with a probability below 2^-this",
    "locations": "how the coordinates that a device sends are coded",
    "schedule": "how the learning rate goes down over rounds: `decay` or `sqrt`",
    "fast_noise": "whether noise was drawn from the recorded seed, and hides nothing",
    "promises": "what the protocol hides, and how surely: a list of sentences",
    "scaled_by": "what devices multiplied their weighted vectors by",
    "threshold": "devices that reconstruct a secret",
    "members_needed": "members of the committee whose sums of shares give the sum of the vectors",
    "packing": "pieces that a device cuts its vector into",
    "epsilon_delta": "delta of the epsilons in `/training`",
    "epsilon_neighbours": "which data sets the epsilons do not tell apart",
    "noise_in_sum": "standard deviation of a sum's noise, over the norm of a clipped update",
    "population_table": "digest of the figures of a population's devices",
    "rounds_repeated": "rounds of earlier launches that may have been run in vain",
    schema.INCOMPLETE: "what the training data lacked of what their publisher has",
}

ENVIRONMENT = {
    "transport": "what moved the messages: `mpi`, `loopback` (one process) or `netlab`",
    "ranks": "number of MPI ranks, 1 in one process",
    "mpi_library_text": "the MPI library in its own words",
    "mpi_device": "MPICH's device",
    "fault_tolerance": "`ulfm` where the run goes on when ranks die",
    "waits_asleep": "whether ranks sleep while they wait, because there are more than cores",
    "hosts": "names of the hosts, in the order of their first ranks",
    "host_ranks": "how many ranks each of them has",
    "host_facts": "the facts in which hosts differ, each with all hosts' values",
    "mapping": "how ranks follow each other on the hosts",
    "binding": "hardware threads that a rank may use, and ranks that share one",
    schema.PLACEMENT: "of each rank its host, the hardware threads it may use, and its devices",
    "sooner": "the command that, with your other options, gives the same CPU time and bytes sooner",
    "oversubscription_ratio": "ranks for each core that they may use, on the fullest host",
    "cores_physical": "cores of the host",
    "cores_logical": "its hardware threads",
    "cores_affinity": "hardware threads that rank 0 may use",
    "cores_usable": "cores that the ranks on the host may use together",
    "cpu_turbo": "whether the processor may exceed its nominal frequency",
    "networks": "kind and rate of the network ports that are up",
    "git_dirty": "whether the package differed from the commit",
    "git_changes": "digest of the differences",
    "slurm_restart_count": "how often the job was requeued",
    "environment_variables": "rank 0's variables that steer MPI, fabrics and threads",
    "stop_reason": "what ended the run: rounds, max_rounds, rel_ci, max_seconds, target_accuracy, "
    "epsilon or interrupted",
    **{name: f"{COUNTERS[of]}, before the run" for name, of in zip(BEFORE, COUNTERS, strict=True)},
    **{name: f"{COUNTERS[of]}, after the run" for name, of in zip(AFTER, COUNTERS, strict=True)},
}


def config() -> dict[str, str]:
    """Return what attributes of `/config` say."""
    options = {
        name: option.help
        for group in (TrainOptions, BenchOptions)
        for name, option in options_of(group).items()
        if "unrecorded" not in option.marks
    }
    return options | _BESIDE_OPTIONS
