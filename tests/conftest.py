"""What all tests share: the tiers, their numbers of examples, and which tests run one at a time."""

import os
import shutil
import tempfile

import pytest
from hypothesis import settings

# `make test` runs the developer's tier; `make test-full` adds the tests marked `full` and says
# --hypothesis-profile=full. Examples take as long as they need: the machine may be busy.
settings.register_profile("developer", max_examples=25, deadline=None)
settings.register_profile("full", max_examples=100, deadline=None)
settings.load_profile("developer")

# As if no launcher had started us.
for name in list(os.environ):
    if name.startswith(("OMPI_", "PMIX_", "PMI_", "MV2_", "SLURM_")) and "ALLOW" not in name:
        del os.environ[name]
# As if there were no terminal: pytest-xdist says that there is one of 80 letters.
os.environ.pop("COLUMNS", None)

# Their tests start jobs of several processes, at most one at a time.
JOB_FOLDERS = {"chaos", "faults", "mpirun", "netlab", "packaging", "slurm"}
JOB_FILES = {
    *("test_doctor.py", "test_launch.py", "test_mpiconfig.py", "test_reframe.py"),
    "test_commands_of_pages.py",
}


def pytest_configure(config):
    # mpirun names its session folder after its process ID alone: what a killed one left behind
    # stops a later one that gets the same number.
    folder = tempfile.mkdtemp(prefix="hpcfl-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["TMPDIR"] = folder


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent.name in JOB_FOLDERS or item.path.name in JOB_FILES:
            item.add_marker(pytest.mark.xdist_group("jobs"))
