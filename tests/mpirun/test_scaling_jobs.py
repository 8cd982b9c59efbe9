"""Sweeps over numbers of ranks, from the plans that come with hpcfl to speed-up and efficiency."""

import json
import sys
from pathlib import Path

import pytest
from commandline import hpcfl as alone
from launcher import hpcfl, needs_mpirun

sys.path.append(str(Path(__file__).parents[1] / "scaling"))
from test_scaling_command import small

pytestmark = needs_mpirun


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return a folder with sweeps of two plans on two and four ranks."""
    folder = tmp_path_factory.mktemp("scaling")
    for study, devices in (("strong", {"devices": 12}), ("weak", {"devices-per-rank": 16})):
        plan = small(folder, f"scaling-{study}", **devices)
        for ranks in (2, 4):
            job = hpcfl(ranks, "sweep", plan, "--output", folder / study / str(ranks))
            assert job.returncode == 0, job.stderr
    return folder


def rows(paths, scale):
    shown = alone("report", paths, "--speed-up", scale, "--format", "json")
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)


def test_strong_scaling_has_the_same_devices_on_all_ranks(results):
    found = rows(results / "strong" / "*", "ranks")

    assert len(found) == 8
    assert {(row["x"], row["ranks"], row["devices"]) for row in found} == {(1, 2, 12), (3, 4, 12)}


def test_weak_scaling_has_so_many_devices_for_each_rank(results):
    found = rows(results / "weak" / "*", "ranks")

    assert {(row["x"], row["ranks"], row["devices"]) for row in found} == {(1, 2, 16), (3, 4, 48)}
    assert {row["line"] for row in found} == {"fedavg", "secagg-graph"}


def test_both_are_not_shown_together(results):
    done = alone("report", results / "strong" / "*", results / "weak" / "*", "--speed-up", "ranks")

    assert done.returncode == 2
    assert "--where" in done.stderr or "show them apart" in done.stderr


def test_ranks_of_the_server_are_a_sweep_of_one_launch(results):
    plan = small(results, "scaling-server", devices=8, dim=30_000)
    job = hpcfl(6, "sweep", plan, "--output", results / "server")
    assert job.returncode == 0, job.stderr
    found = rows(results / "server", "server-ranks")

    assert [(row["x"], row["ranks"]) for row in found] == [(1, 6), (2, 6), (4, 6)]
