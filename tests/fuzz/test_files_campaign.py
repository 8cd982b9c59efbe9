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

fuzz_files.HANG_SECONDS = 2.0
fuzz_files.make = lambda target, seed, number: fuzz_files.OUTCOMES[number % 7].encode()
target = Target("bad", "bad.txt", [b"read"], None, read)
print(sorted(fuzz_files.campaign(target, 0, 14, Path(sys.argv[1])).items()))
"""


def test_every_damaged_file_is_read_or_refused_in_a_sentence():
    done = subprocess.run(
        [sys.executable, SCRIPT, "--count", str(COUNT), "--seed", "7"],
        capture_output=True,
        text=True,
        timeout=280,
    )

    assert done.stdout.splitlines()[-1:] == [f"{READERS * COUNT} files, 0 findings"], (
        done.stdout + done.stderr
    )
    assert done.returncode == 0


def test_the_campaign_finds_each_kind_of_failure(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=SCRIPT.parent,
    )

    kinds = ("died", "hung", "memory", "read", "refused", "traceback", "words")
    assert done.stdout.strip() == str([(kind, 2) for kind in kinds]), done.stderr
    kept = sorted(folder.name for folder in (tmp_path / "findings").iterdir())
    assert len(kept) == 10
    assert "bad-3-died" in kept
    assert (tmp_path / "findings" / "bad-3-died" / "bad.txt").read_bytes() == b"died"


@pytest.mark.parametrize("seed", [1, 2])
def test_a_campaign_can_be_repeated(seed):
    program = (
        "import sys, tempfile, hashlib, fuzz_files; from pathlib import Path\n"
        "target = fuzz_files._manifest()\n"
        f"made = [fuzz_files.make(target, {seed}, number) for number in range(40)]\n"
        "print(hashlib.sha256(b'|'.join(made)).hexdigest())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=SCRIPT.parent,
            check=True,
        ).stdout
        for _ in range(2)
    }

    assert len(outputs) == 1
