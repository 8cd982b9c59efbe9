"""The retries of one rank among ranks that only a script makes up; test_ulfm runs it.

In a process of its own: MPI, once it is started in a process, changes what its children inherit.
"""

import pytest
from mpi4py import MPI

from hpcfl.comm import faults, mpi
from hpcfl.comm.placement import Placement
from hpcfl.errors import AgreedError, BelowThresholdError, HpcflError


class Comm:
    """A communicator with a script: what its agreements say, and which one follows it."""

    def __init__(self, ranks, says, then=None):
        self.size, self.rank = len(ranks), 0
        self._ranks, self._says, self._then = ranks, says, then
        self.revoked = False
        self.heard = []

    def Get_group(self):
        return self._ranks

    def Revoke(self):
        self.revoked = True

    def Agree(self, flag):
        self.heard.append(flag)
        answer = self._says.pop(0)
        if not isinstance(answer, bool):
            raise MPI.Exception(answer)
        return int(flag and answer)

    def Shrink(self):
        assert self._then is not None
        return self._then


@pytest.fixture(autouse=True)
def _scripted(monkeypatch):
    monkeypatch.setattr(faults, "_places", lambda some, everybody: tuple(some))
    monkeypatch.setattr(MPI, "Intracomm", lambda comm: comm)


def survivors(comm):
    noted = []
    return faults.Survivors(comm, lambda died, detect, recover: noted.append(died)), noted


@pytest.mark.parametrize("error", faults.DEATHS)
def test_a_failed_operation_is_revoked_and_done_again_by_those_left(error):
    left = Comm([0, 2], [True, True])
    comm = Comm([0, 1, 2], [True], left)
    group, noted = survivors(comm)

    def operation(now):
        if now is comm:
            raise MPI.Exception(error)
        return 5

    assert group.together(operation) == 5
    assert (comm.revoked, comm.heard, left.revoked) == (True, [0], False)
    assert (group.comm, group.ranks, noted) == (left, (0, 2), [frozenset({1})])
    # What all agree on is done once.
    assert (group.together(lambda now: 7), left.heard, noted) == (7, [1, 1], [frozenset({1})])


@pytest.mark.parametrize("answer", [False, *faults.DEATHS])
def test_what_succeeded_here_is_done_again_if_it_failed_elsewhere(answer):
    """Deaths while it recovers are the same loss; what all were told is raised in the end."""
    last = Comm([0, 3], [True])
    left = Comm([0, 2, 3], [answer], last)
    comm = Comm([0, 1, 2, 3], [answer], left)
    group, noted = survivors(comm)
    told = []

    def operation(now):
        told.append(now)
        raise AgreedError("too few")

    with pytest.raises(AgreedError, match="too few"):
        group.together(operation)
    assert told == [comm, left, last]
    assert (comm.heard, comm.revoked, noted) == ([1], False, [frozenset({1, 2})])


def test_the_loss_of_the_server_ends_it():
    group, _ = survivors(Comm([0, 1, 2], [False], Comm([1, 2], [])))
    with pytest.raises(faults.ServerLostError, match="server's rank died"):
        group.together(lambda now: None)


@pytest.mark.parametrize(
    "error", [MPI.Exception(MPI.ERR_TRUNCATE), BelowThresholdError("told to nobody")]
)
def test_other_errors_are_no_deaths(error):
    comm = Comm([0, 1], [True])
    group, _ = survivors(comm)

    def wrong(now):
        raise error

    with pytest.raises(type(error)):
        group.together(wrong)
    assert (comm.heard, comm.revoked) == ([], False)


def test_what_fails_again_and_again_without_a_death_is_given_up():
    comm = Comm([0, 1], [True])
    for _ in range(faults.MOST_TRIES):
        comm = Comm([0, 1], [True], comm)
    group, noted = survivors(comm)
    tries = []

    def broken(now):
        tries.append(now)
        raise MPI.Exception(MPI.ERR_OTHER)

    with pytest.raises(HpcflError, match="MPI fails, and no rank is dead"):
        group.together(broken)
    assert (len(tries), noted) == (faults.MOST_TRIES, [])


def test_rounds_of_some_devices_take_all_ranks():
    comm = Comm([0, 1, 2], [False], Comm([0, 2], [True]))
    transport = faults.TolerantTransport(comm, Placement.even(4, 3))

    chosen = transport.select([0, 3])
    assert type(chosen) is mpi.MpiTransport
    assert chosen.placement.homes.tolist() == [1, 2]
    assert transport._all_to_all(lambda: "done") == "done"
    assert transport.failed == {0, 2}
    with pytest.raises(HpcflError, match="2 devices are on ranks that died"):
        transport.select([2, 3])
