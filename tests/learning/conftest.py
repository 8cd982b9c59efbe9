import pytest


@pytest.fixture
def one_thread():
    """Let sums of floats be added up in one order."""
    torch = pytest.importorskip("torch")
    from hpcfl.learning.training import single_thread

    before = torch.get_num_threads()
    single_thread()
    yield
    torch.set_num_threads(before)
