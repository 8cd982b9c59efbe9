"""What freed memory becomes: of a process of its own, as the C library's settings stay."""

import os
import subprocess
import sys

import pytest

from hpcfl.system.allocator import SETTINGS

# Pages taken from the system anew while a round's temporaries come and go.
FAULTS = """
import resource, numpy as np
{before}
def round():
    made = [np.ones(size, np.uint8) for size in (1 << 18, 1 << 20, 1 << 22) * 2]
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
round()
round()
start = faults()
for _ in range(10):
    round()
print(faults() - start)
"""
KEPT = "from hpcfl.system.allocator import keep_freed; print(int(keep_freed()))"
CONNECTED = "from hpcfl.comm.world import connect; connect(); print(1)"


def python(code, **environment):
    bare = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=bare | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(line) for line in found.stdout.split()]


@pytest.mark.parametrize("before", [KEPT, CONNECTED])
def test_what_is_freed_is_not_fetched_anew(before):
    if python(KEPT) == [0]:
        pytest.skip("the C library is not glibc")
    (usual,) = python(FAULTS.format(before=""))
    _, kept = python(FAULTS.format(before=before))

    assert 10 * kept < usual


@pytest.mark.parametrize(
    "given",
    [
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"MALLOC_MMAP_THRESHOLD_": "131072"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"},
    ],
)
def test_what_users_say_of_it_stays(given):
    kept, faults = python(FAULTS.format(before=KEPT), **given)
    assert kept == 0
    assert faults > 100
