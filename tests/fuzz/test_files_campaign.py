"""A short, seeded part of `benchmarks/fuzz_files.py`, and whether it could fail at all."""

import subprocess
import sys
from pathlib import Path

import pytest
from tiers import examples

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "fuzz_files.py"
READERS = 15
COUNT = examples(150)

# A reader for each kind of finding: it does what none may do, for some of the files.
BROKEN = """
import os, signal, sys, time
from pathlib import Path
import fuzz_files
from fuzz_files import Target
from hpcfl.errors import HpcflError

def read(path):
    kind = path.read_bytes()
    if kind == b"traceback":
        raise KeyError("x")
    if kind == b"died":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == b"hung":
        time.sleep(60)
    if kind == b"memory":
        bytearray(b"x") * 2**28
    if kind == b"words":
        raise HpcflError("something is wrong somewhere")
    if kind == b"refused":
        raise HpcflError(f"{path} is no good: make another")

fuzz_files.HANG_SECONDS = 3.0
fuzz_files.make = lambda target, seed, number: fuzz_files.OUTCOMES[number].encode()
target = Target("bad", "bad.txt", [b"read"], None, read)
print(sorted(fuzz_files.campaign(target, 0, 7, Path(sys.argv[1])).items()))
"""
MADE_TWICE = """
import fuzz_files
target = fuzz_files._manifest()
one, other = ([fuzz_files.make(target, 1, number) for number in range(40)] for _ in range(2))
print(one == other, len({*one}) > 30)
"""


def run(*command):
    return subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=SCRIPT.parent,
    )


@pytest.mark.tiered
def test_every_damaged_file_is_read_or_refused_in_a_sentence():
    done = run(SCRIPT, "--count", COUNT, "--seed", 7)

    said = done.stdout.splitlines()[-1:]
    assert said == [f"{READERS * COUNT} files, 0 findings"], done.stdout + done.stderr
    assert done.returncode == 0


def test_the_campaign_finds_each_kind_of_failure(tmp_path):
    done = run("-c", BROKEN, tmp_path)

    kinds = ("died", "hung", "memory", "read", "refused", "traceback", "words")
    assert done.stdout.strip() == str([(kind, 1) for kind in kinds]), done.stderr
    kept = {folder.name: folder for folder in (tmp_path / "findings").iterdir()}
    assert len(kept) == 5
    assert (kept["bad-3-died"] / "bad.txt").read_bytes() == b"died"


def test_a_campaign_can_be_repeated():
    assert run("-c", MADE_TWICE).stdout == "True True\n"
