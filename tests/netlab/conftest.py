import pytest
from labs import why_no_lab


@pytest.fixture(scope="session")
def needs_lab():
    if reason := why_no_lab():
        pytest.skip(reason)
