"""The set-up of all tests: tiers, numbers of examples, and groups that run one test at a time."""

import os
import shutil
import tempfile

import pytest
from hypothesis import settings

# `make test` runs the developer's tier. `make test-full` then runs those marked `full`, and with
# --hypothesis-profile=full those that try more examples: properties, and those marked `tiered`.
# Examples have no deadline, because the machine may be busy.
settings.register_profile("developer", max_examples=25, deadline=None)
settings.register_profile("full", max_examples=100, deadline=None)
settings.load_profile("developer")

# Behave as if no launcher had started this process.
for name in list(os.environ):
    if name.startswith(("OMPI_", "PMIX_", "PMI_", "MV2_", "SLURM_")) and "ALLOW" not in name:
        del os.environ[name]
# Behave as if there were no terminal: pytest-xdist claims one with 80 columns.
os.environ.pop("COLUMNS", None)

# Folders and files whose tests start jobs of several processes: each group runs one test at a time.
GROUPS = {
    "jobs": {
        *("faults", "mpirun", "netlab"),
        *("test_campaigns.py", "test_doctor.py", "test_launch.py", "test_slurm_cluster.py"),
    },
    # Their jobs are few and small; most of their time is installation.
    "packages": {"test_packages.py", "test_recipes.py", "test_commands_of_pages.py"},
}


def pytest_configure(config):
    # mpirun names its session folder only after its process ID. The folder of a killed mpirun would
    # stop a later one with the same ID.
    folder = tempfile.mkdtemp(prefix="hpcfl-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["TMPDIR"] = folder


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        for group, places in GROUPS.items():
            if places & {item.path.parent.name, item.path.name}:
                item.add_marker(pytest.mark.xdist_group(group))
