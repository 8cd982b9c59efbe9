"""hpcfl as a Ramble application: rounds of secure aggregation, and what they cost."""

from ramble.appkit import *


class Hpcfl(ExecutableApplication):
    """MPI benchmark suite for private federated learning."""

    name = "hpcfl"

    tags("mpi", "federated-learning", "secure-aggregation")

    software_spec("hpcfl", pkg_spec="hpcfl", package_manager="spack*")

    executable(
        "bench",
        "hpcfl bench {protocol} --devices {devices} --dim {dim} --rounds {rounds} {options} "
        "--output {experiment_run_dir}/run.h5",
        use_mpi=True,
    )

    workload("bench", executable="bench")

    workload_variable(
        "protocol",
        default="secagg",
        description="Aggregation protocol",
        workloads=["bench"],
    )
    workload_variable("devices", default="100", description="Devices", workloads=["bench"])
    workload_variable("dim", default="165000", description="Parameters", workloads=["bench"])
    workload_variable("rounds", default="10", description="Measured rounds", workloads=["bench"])
    workload_variable(
        "options", default="", description="Further options of hpcfl bench", workloads=["bench"]
    )

    # A run that was interrupted or failed is none.
    success_criteria("valid", mode="string", match=r"^HPCFL valid: true$", file="{log_file}")

    for key, units in (
        ("bytes_up_mean", "B"),
        ("bytes_down_mean", "B"),
        ("device_cpu_seconds_median", "s"),
        ("server_cpu_seconds_median", "s"),
        ("round_seconds_median", "s"),
        ("modelled_round_seconds_median", "s"),
        ("rounds_measured", ""),
        ("survivors_mean", ""),
    ):
        figure_of_merit(
            key,
            fom_regex=rf"HPCFL {key}: (?P<value>\S+)",
            group_name="value",
            units=units,
            log_file="{log_file}",
        )
