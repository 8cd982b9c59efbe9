"""hpcfl as an experiment of Benchpark: strong and weak scaling of hpcfl bench."""

from benchpark.directives import variant
from benchpark.experiment import Experiment
from benchpark.programming_model import ProgrammingModel, ProgrammingModelType
from benchpark.scaling import Scaling, ScalingMode


class Hpcfl(
    Experiment,
    ProgrammingModel(ProgrammingModelType.Mpionly),
    Scaling(ScalingMode.Strong, ScalingMode.Weak),
):
    """MPI benchmark suite for private federated learning."""

    variant("workload", default="bench", description="of the Ramble application hpcfl")
    variant("version", default="0.1.0", values=("0.1.0",), description="of the Spack package hpcfl")
    variant("protocol", default="secagg", description="aggregation protocol")

    def compute_applications_section(self):
        """Strong scaling: the same devices on more ranks. Weak scaling: a device on every rank."""
        protocol = self.spec.variants["protocol"][0]
        sizes = {"n_ranks": 17, "devices": 16, "dim": 1_000_000}
        for name, value in sizes.items():
            self.add_experiment_variable(name, value, True)
        self.add_experiment_variable("protocol", protocol, True)
        self.add_experiment_variable("rounds", 10)
        # The server has a rank of its own.
        ranks = {"n_ranks": lambda var, itr, dim, factor: (var.val(dim) - 1) * factor + 1}
        devices = {"devices": lambda var, itr, dim, factor: var.val(dim) * factor}
        self.register_scaling_config({ScalingMode.Strong: ranks, ScalingMode.Weak: ranks | devices})
        self.set_required_variables(
            n_resources="{n_ranks}",
            process_problem_size="{dim}*{devices}/{n_ranks}",
            total_problem_size="{dim}*{devices}",
        )

    def compute_package_section(self):
        """Name the Spack package."""
        self.add_package_spec(self.name, [f"hpcfl{self.determine_version()}"])
