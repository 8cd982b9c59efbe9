"""A file that is replaced is whole at any moment, and nothing is left beside it."""

import os

import pytest

from hpcfl.system.outputs import replacing


def test_a_file_appears_with_its_folder_and_nothing_beside_it(tmp_path):
    path = tmp_path / "new" / "file"
    with replacing(path) as draft:
        draft.write_text("whole")
        assert not path.exists()

    assert path.read_text() == "whole"
    assert os.listdir(path.parent) == ["file"]


def test_a_file_stays_as_it_was_if_writing_fails(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def interrupted():
        with replacing(path) as draft:
            draft.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_that_is_to_be_kept_is_not_replaced(tmp_path):
    path = tmp_path / "file"
    with replacing(path, keep=True) as draft:
        draft.write_text("first")
    with pytest.raises(FileExistsError), replacing(path, keep=True) as draft:
        draft.write_text("second")

    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["file"]
