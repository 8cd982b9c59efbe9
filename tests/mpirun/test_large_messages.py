import sys
from pathlib import Path

import pytest
from launcher import mpirun, needs_mpirun

from hpcfl.system.machine import memory_available

pytestmark = [
    needs_mpirun,
    pytest.mark.full,
    pytest.mark.skipif(memory_available() < 16 * 10**9, reason="needs 16 GB of free memory"),
]


def test_a_message_of_more_than_2_to_the_31_bytes_arrives_as_it_was_sent():
    program = Path(__file__).parent / "large_messages.py"
    done = mpirun(2, sys.executable, program, limit_seconds=300)
    told = {}
    for line in done.stdout.splitlines():
        *name, size, checksum = line.split()
        assert int(size) == 2**31 + 17
        told[" ".join(name)] = checksum

    assert done.returncode == 0, done.stderr
    assert told["broadcast sent"] == told["broadcast received"] == told["scatter received"]
    assert told["gather sent"] == told["gather received"] != told["broadcast sent"]
