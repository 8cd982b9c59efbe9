import pytest
from run_files import write_run


@pytest.fixture
def make_run(tmp_path):
    """Return :func:`run_files.write_run` for file names in a temporary folder."""
    return lambda name="run.h5", *rounds, **options: write_run(tmp_path / name, *rounds, **options)
