"""A protocol of one's own, a model's length, and short commands that resume, on several ranks."""

import json
import re
import shutil
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest
from launcher import MPIRUN, assert_refused, finish, hpcfl, mpirun, needs_mpirun, start

from hpcfl.results import load
from hpcfl.results.reader import find
from hpcfl.system.interruption import LEFT_STATUS

pytestmark = needs_mpirun
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def done(job):
    assert job.returncode == 0, job.stdout + job.stderr
    return job.stdout


def cut(path, rounds):
    """Leave of a complete file what a kill after some rounds leaves."""
    with h5py.File(path, "r+") as file:
        file.attrs.modify("status", np.array("running", file.attrs["status"].dtype))
        file["rounds/finished"][rounds:] = False


def test_the_protocol_of_the_examples_is_measured_and_trained_by_under_mpirun(folder):
    shutil.copy(ROOT / "examples/own_protocol.py", folder)
    small = ("--dim", 60, "--rounds", 2, "--warmup", 0)
    done(mpirun(4, "hpcfl", "bench", "own_protocol:SignSum", *small, "--output", "run.h5"))
    run = load("run.h5")

    assert (run.devices, bool(run.validated.all())) == (3, True)
    cut("run.h5", 1)
    done(mpirun(3, "hpcfl", "bench", "own_protocol:SignSum", "--resume", "run.h5"))
    assert load("run.h5").rounds == 2
    pytest.importorskip("torch")
    train = ("fedavg", "--aggregate", "own_protocol:SignSum", "--devices", 4, "--rounds", 1)
    done(mpirun(3, "hpcfl", "train", *train, "--output", "train.h5"))
    assert load("train.h5").validated.all()


def test_the_patterns_of_the_page_are_played_and_trained_by_under_mpirun(folder):
    page = (ROOT / "docs/own-protocol.md").read_text()
    code = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (folder / "patterns.py").write_text("\n\n".join(code))
    names = ("Attended", "Blocks", "Shared", "Dithered", "Approved", "Asking", "Summed", "Counted")
    protocols = ", ".join(f'"patterns:{name}"' for name in names)
    (folder / "plan.toml").write_text(
        "[fixed]\ndevices = 5\ndim = 40\nrounds = 2\nwarmup = 0\n"
        f"[grid]\nprotocol = [{protocols}]\n"
    )
    done(mpirun(4, "hpcfl", "sweep", "plan.toml", "--output", "swept"))
    swept = [load(path) for path in find(["swept"])]
    assert sorted(run.protocol for run in swept) == sorted(name.lower() for name in names)
    assert all(run.validated.all() for run in swept)

    pytest.importorskip("torch")
    (folder / "bare.py").write_text(
        "from patterns import *\n\n\nclass Bare(Dithered):\n    name = 'bare'\n"
        "    steps = Dithered.steps[1:]\n"
    )
    train = ("train", "fedavg", "--aggregate", "bare:Bare", "--devices", 5, "--rounds", 2)
    done(mpirun(4, "hpcfl", *train, "--output", "train.h5"))
    run = load("train.h5")
    assert run.validated.all()
    assert run.phases == ["model", "dither", "upload"]
    assert (run.bytes_down[:, 0] > 0).all()


def test_a_file_alone_is_gone_on_with_by_all_ranks(folder):
    done(hpcfl(4, "bench", "sparse", "--alpha", 0.4, "--dim", 50, "--rounds", 3,
               "--insecure-seed", 1, "--output", "run.h5"))  # fmt: skip
    whole = load("run.h5")
    cut("run.h5", 2)
    assert_refused(hpcfl(4, "bench", "--resume", "run.h5", "--alpha", 0.2), "alpha 0.4, not 0.2")
    # As many devices as there were, on however many ranks.
    done(mpirun(3, "hpcfl", "bench", "--resume", "run.h5"))
    run = load("run.h5")

    assert (run.status, run.devices) == ("complete", 3)
    np.testing.assert_array_equal(run.bytes_up, whole.bytes_up)


def test_the_command_that_an_interrupted_training_prints_goes_on_with_it(folder):
    pytest.importorskip("torch")
    words = ("train", "fedavg", "--aggregate", "secagg", "--devices", 4, "--epochs", 1)
    job = start(*MPIRUN, 3, "hpcfl", *words, "--rounds", 100_000, "--output", "a.h5")
    while not (folder / "a.h5").exists() or load("a.h5").rounds < 2:
        assert job.poll() is None, job.communicate()
    job.send_signal(signal.SIGUSR1)
    ended = finish(job, 60)
    assert ended.returncode == LEFT_STATUS, ended.stderr
    advice = ended.stderr.partition("continue with ")[2].splitlines()[0]
    assert advice == "mpirun -n 3 hpcfl train --resume a.checkpoint.npz"

    before = load("a.h5").rounds
    more = ("--rounds", before + 1, "--json")
    found = json.loads(done(hpcfl(3, *advice.split()[4:], *more)))
    assert load(found["path"]).rounds == 1
    assert load(found["path"]).protocol == "secagg"


def test_one_rank_alone_loads_what_says_the_length(folder):
    (folder / "length.py").write_text(
        "import os\n\ndef of():\n    open(f'loaded-{os.getpid()}', 'x')\n    return 30\n"
    )
    more = ("--rounds", 1, "--warmup", 0, "--output", "run.h5")
    done(mpirun(4, "hpcfl", "bench", "secagg", "--model", "length:of", *more))

    assert load("run.h5").dim == 30
    assert len(list(folder.glob("loaded-*"))) == 1
    assert_refused(hpcfl(4, "bench", "secagg", "--model", "resnet"), "there is no model 'resnet'")
