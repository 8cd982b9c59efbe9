import pytest
from labs import why_no_lab, why_no_mpi

from hpcfl.netlab.links import Link


def _skip(reason):
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def needs_lab():
    _skip(why_no_lab())


@pytest.fixture(scope="session")
def needs_delay():
    _skip(why_no_lab(Link(1e8, 1e-3)))


@pytest.fixture(scope="session")
def needs_mpi():
    _skip(why_no_mpi())
