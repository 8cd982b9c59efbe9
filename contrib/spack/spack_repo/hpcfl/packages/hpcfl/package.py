"""hpcfl as a package of Spack."""

import os

from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class Hpcfl(PythonPackage):
    """MPI benchmark suite for private federated learning.

    SecAgg, SparseSecAgg and others on real communication, with validated rounds and results in
    HDF5.
    """

    # The source archive is on no index yet: contrib/README.md says how it is made. Before a release
    # it has no checksum either: spack install --no-checksum.
    manual_download = True
    url = f"file://{os.getcwd()}/dist/hpcfl-0.1.0.tar.gz"

    license("Apache-2.0")

    version("0.1.0")

    variant("plot", default=False, description="Figures: hpcfl plot")
    variant("table", default=False, description="Tables for pandas: load_many")
    variant("train", default=False, description="Training: hpcfl train")

    depends_on("python@3.11.4:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")

    # As in pyproject.toml.
    with default_args(type=("build", "run")):
        depends_on("py-click@8.1.7:")
        depends_on("py-cryptography@47:")
        depends_on("py-h5py@3.11:")
        depends_on("py-mpi4py@3.1:")
        depends_on("py-numpy@2.0:")
        depends_on("py-tabulate@0.9:")
        depends_on("py-psutil@5.9:")
        depends_on("py-threadpoolctl@3.5:")
        with when("+plot"):
            depends_on("py-matplotlib@3.9:")
        with when("+table"):
            depends_on("py-pandas@2.2:")
        with when("+train"):
            depends_on("py-pooch@1.8:")
            depends_on("py-scikit-learn@1.5:")
            depends_on("py-scipy@1.13:")
            depends_on("py-torch@2.6:2")
            depends_on("py-tqdm@4.66:")

    # The launcher that jobs are started with.
    depends_on("mpi", type="run")

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def measure(self):
        """Play one round in one process."""
        with working_dir("measured", create=True):
            hpcfl = Executable(join_path(self.prefix.bin, "hpcfl"))
            told = hpcfl(
                *("bench", "secagg", "--devices", "3", "--dim", "10", "--rounds", "1"),
                output=str,
            )
            if "HPCFL valid: true\n" not in told:
                raise InstallError("a round of secagg was not valid")
