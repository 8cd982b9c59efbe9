import pytest
import tampered

from hpcfl.submission.classes import CLASSES
from hpcfl.system import revision

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def patched():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module", autouse=True)
def _tiny(patched):
    """Let the class small be tiny, and results be those of a clean commit."""
    patched.setitem(CLASSES, "small", tampered.TINY)
    patched.setattr(revision, "current", lambda: revision.Revision(COMMIT, False))


@pytest.fixture(scope="module")
def results(_tiny, tmp_path_factory):
    """Return a folder with results of the class."""
    return tampered.measure(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def good(results, tmp_path_factory):
    """Return a submission that is accepted."""
    return tampered.packed(results, tmp_path_factory.mktemp("good") / "good.zip")


@pytest.fixture
def own(results, tmp_path):
    """Return results of the class that a test may change."""
    return tampered.copy(results, tmp_path / "own")
