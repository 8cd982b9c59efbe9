import json
import sys

import pytest
from ulfm import HERE, finish, job, needs_ulfm, start

OPERATIONS = 10
GATHER, SCATTER, ROUTE, REDUCE = 4, 5, 6, 7


def test_the_retry_logic_of_one_rank():
    done = finish(
        start(
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            HERE / "retry_logic.py",
        )
    )

    assert done.returncode == 0, done.stdout[-5000:]
    assert "skipped" not in done.stdout


@needs_ulfm
@pytest.mark.parametrize(
    ("ranks", "deaths", "lost"),
    [
        # 9 devices on ranks 1 to 5, in turns: 0 and 5 on rank 1, only 4 on rank 5.
        (6, [[2, GATHER, "inside"], [5, ROUTE, "inside"]], [1, 4, 6]),
        (
            6,
            [[1, SCATTER, "before"], [3, REDUCE, "inside"], [5, OPERATIONS - 1, "unsaid"]],
            [0, 2, 4, 5, 7],
        ),
        *(
            pytest.param(*case, marks=pytest.mark.full)
            for case in (
                (6, [[1, 0, "before"], [3, ROUTE, "before"]], [0, 2, 5, 7]),
                (6, [[2, GATHER, "unsaid"], [4, ROUTE, "unsaid"]], [1, 3, 6, 8]),
                (6, [[1, SCATTER, "inside"], [3, REDUCE, "inside"]], [0, 2, 5, 7]),
                (10, [[rank, ROUTE, "inside"] for rank in (1, 4, 9)], [0, 3, 8]),
                (10, [[rank, rank, "unsaid"] for rank in range(1, 9)], list(range(8))),
            )
        ),
    ],
    ids=["inside", "mixed", "before", "unsaid", "inside-2", "together", "one-by-one"],
)
def test_every_operation_ends_the_same_on_all_that_are_left(ranks, deaths, lost):
    done = job(ranks, sys.executable, HERE / "dying_ranks.py", json.dumps(deaths))
    told = [line for line in done.stdout.splitlines() if line.startswith("{")]

    assert "Error" not in done.stderr, done.stderr
    assert len(told) == 1, done.stderr
    assert json.loads(told[0])["lost"] == lost
