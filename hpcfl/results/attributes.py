"""What the attributes of a results file say, each in a clause, for the page that lists them.

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
    "devices": "number of devices N",
    "protocol": "aggregation protocol; that within which `dp-fedavg` adds its noise",
    "bits": "bits of the group that sums are computed in, or `auto`",
    "correctness_bits": "a sum wraps around with a probability below 2^-this",
    "locations": "how the coordinates that a device sends are coded",
    "aggregate": "aggregation protocol of a training",
    "schedule": "how the learning rate goes down over rounds: `decay` or `sqrt`",
    "data_fraction": "fraction of its data that every device uses",
    "device_loss": "whether the loss on every device's own data is recorded",
    "fast_noise": "whether noise was drawn from the recorded seed, and hides nothing",
    "torch_device": "device that models are trained on",
    "weight_decay": "weight decay of local training",
    "output": "the results file, or the folder for it",
    "promises": "what the protocol hides, and how surely: a list of sentences",
    "scaled_by": "what devices multiplied their weighted vectors by",
    "threshold": "devices that reconstruct a secret",
    "cohort_size": "devices in a cohort",
    "members_needed": "members of the committee whose sums of shares give the sum of the vectors",
    "packing": "pieces that a device cuts its vector into",
    "algorithm": "federated algorithm",
    "private": "not in use: always `none`",
    "epsilon_delta": "delta of the epsilons in `/training`",
    "epsilon_neighbours": "which data sets the epsilons do not tell apart",
    "noise_in_sum": "standard deviation of a sum's noise, over the norm of a clipped update",
    "rounds_repeated": "rounds of earlier launches that may have been run in vain",
    schema.INCOMPLETE: "what the training data lacked of what their publisher has",
}

ENVIRONMENT = {
    "transport": "what moved the messages: `mpi`, `loopback` (one process) or `netlab`",
    "ranks": "number of MPI ranks, 1 in one process",
    "mpi_library": "MPI library with its version",
    "mpi_library_text": "the same in the library's own words",
    "mpi_device": "MPICH's device",
    "mpi_standard": "version of the MPI standard",
    "thread_level": "level of thread support",
    "fault_tolerance": "`ulfm` where the run goes on when ranks die",
    "waits_asleep": "whether ranks sleep while they wait, because there are more than cores",
    "netlab_hosts": "network namespaces with devices",
    "netlab_uplink_mbps": "their uplinks, Mbit/s",
    "netlab_downlink_mbps": "their downlinks, Mbit/s",
    "netlab_latency_ms": "latency of their links, ms",
    "netlab_server_rate_mbps": "the server's link, Mbit/s",
    "netlab_mtu_bytes": "largest packet on a link",
    "netlab_burst_bytes": "what a link sends at once at most",
    "netlab_queue_bytes": "what waits in front of a link at most",
    "hosts": "names of the hosts, in the order of their first ranks",
    "host_ranks": "how many ranks each of them has",
    "host_facts": "the facts in which hosts differ, each with all hosts' values",
    "mapping": "how ranks follow each other on the hosts",
    "binding": "hardware threads that a rank may use, and ranks that share one",
    schema.PLACEMENT: "of each rank its host, the hardware threads it may use, and its devices",
    "oversubscription_ratio": "ranks for each core that they may use, on the fullest host",
    "wall_timer": "clock of elapsed seconds",
    "cpu_timer": "clock of CPU seconds",
    "host_name": "name of rank 0's host",
    "cpu_model": "its processor",
    "cores_physical": "its cores",
    "cores_logical": "its hardware threads",
    "cores_affinity": "hardware threads that rank 0 may use",
    "cores_usable": "cores that the ranks on the host may use together",
    "cpu_governor": "what chooses the processor's frequency",
    "cpu_turbo": "whether it may exceed its nominal frequency",
    "memory_bytes": "memory of the host",
    "memory_available_bytes": "how much of it was free",
    "swap_bytes": "swap space",
    "swap_used_bytes": "how much of it was in use",
    "load_1min": "mean number of runnable processes over the last minute",
    "kernel": "kernel of the operating system",
    "clock_source": "the kernel's source of time",
    "networks": "kind and rate of the network ports that are up",
    "python_version": "version of Python",
    "hpcfl_version": "build of hpcfl",
    "numpy_version": "version of NumPy",
    "mpi4py_version": "version of mpi4py",
    "h5py_version": "version of h5py",
    "cryptography_version": "version of cryptography",
    "openssl_version": "version of the OpenSSL in cryptography",
    "git_commit": "commit of the checkout that ran, or of the build",
    "git_dirty": "whether the package differed from it",
    "git_changes": "digest of the differences",
    "slurm_job_id": "Slurm's number of the job",
    "slurm_partition": "its partition",
    "slurm_nodes": "number of its nodes",
    "slurm_tasks": "number of its tasks",
    "slurm_cpus_per_task": "CPUs of a task",
    "slurm_node_list": "names of its nodes",
    "slurm_array_job_id": "number of the job array",
    "slurm_array_task_id": "number of the job in the array",
    "slurm_restart_count": "how often the job was requeued",
    "slurm_cluster": "name of the cluster",
    "environment_variables": "rank 0's variables that steer MPI, fabrics and threads",
    "mpi_parameters": "what steers of what files of MPI parameters set, by file",
    schema.LOCKED: "whether HDF5 could lock the results file while it was written",
    "stop_reason": "what ended the run: rounds, max_rounds, rel_ci, max_seconds, target_accuracy, "
    "epsilon or interrupted",
    **{name: f"{COUNTERS[of]}, before the run" for name, of in zip(BEFORE, COUNTERS, strict=True)},
    **{name: f"{COUNTERS[of]}, after the run" for name, of in zip(AFTER, COUNTERS, strict=True)},
}


def config() -> dict[str, str]:
    """Return what every attribute of `/config` says."""
    options = {
        name: option.help
        for group in (TrainOptions, BenchOptions)
        for name, option in options_of(group).items()
        if "unrecorded" not in option.marks
    }
    return options | _BESIDE_OPTIONS
