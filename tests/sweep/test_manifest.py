import os
from contextlib import closing
from pathlib import Path

import pytest

from hpcfl.errors import HpcflError
from hpcfl.sweeping.cells import Cell
from hpcfl.sweeping.manifest import NAME, arrange, freeze, load
from hpcfl.sweeping.states import Claims, look, make_room

PLAN = Path("plan.toml")


def some_cells(number):
    """Return cells that differ."""
    return [
        Cell(i, f"id{i}", f"id{i}.h5", ("secagg", f"--devices={i + 1}"), "secagg", i + 1, 9, 2, 0)
        for i in range(number)
    ]


def test_the_order_is_shuffled_by_the_seed_and_numbered():
    cells = some_cells(30)
    orders = [[cell.id for cell in arrange(PLAN, cells, seed).cells] for seed in (1, 1, 2, None)]

    assert orders[0] == orders[1] != orders[2]
    assert orders[3] == [cell.id for cell in cells] != orders[0]
    assert sorted(orders[0]) == sorted(orders[3])
    assert [cell.index for cell in arrange(PLAN, cells, 1).cells] == list(range(30))


def test_a_frozen_manifest_stays_as_it_is(tmp_path):
    folder = tmp_path / "new" / "sweep"
    first = freeze(folder, arrange(PLAN, some_cells(9), 1))
    content = (folder / NAME).read_bytes()
    again = freeze(folder, arrange(PLAN, some_cells(9), 5))

    assert again == first == load(folder)
    assert (again.seed, again.cell(3)) == (1, first.cells[3])
    assert (folder / NAME).read_bytes() == content
    assert os.listdir(folder) == [NAME]


def test_no_manifest_is_none_and_a_damaged_one_is_an_error(tmp_path):
    assert load(tmp_path) is None
    for text in ("{", "[]", '{"schema": "hpcfl-sweep/2"}', '{"schema": "hpcfl-sweep/1"}'):
        (tmp_path / NAME).write_text(text)
        with pytest.raises(HpcflError, match=NAME):
            load(tmp_path)


def test_what_is_left_of_an_attempt_is_kept_aside(tmp_path):
    (cell,) = some_cells(1)
    make_room(tmp_path, look(tmp_path, cell))
    assert [*tmp_path.iterdir()] == []
    for text in ("first", "second"):
        (tmp_path / cell.file).write_text(text)
        found = look(tmp_path, cell)
        assert (found.state, found.run, found.resume, found.rounds) == ("incomplete", None, None, 0)
        make_room(tmp_path, found)

    assert look(tmp_path, cell).state == "pending"
    assert [(tmp_path / "incomplete" / f"id0-{n}.h5").read_text() for n in (1, 2)] == [
        "first",
        "second",
    ]


def test_a_cell_is_claimed_by_one_process_until_it_ends(tmp_path):
    first, second = some_cells(2)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        Claims(tmp_path).take(first)
        os.write(writer, b"x")
        os.read(os.pipe()[0], 1)  # until it is killed
        os._exit(0)
    os.read(reader, 1)
    with closing(Claims(tmp_path)) as claims:
        taken = claims.take(first), claims.take(second)
        os.kill(child, 9)
        os.waitpid(child, 0)
        afterwards = claims.take(first)

    assert taken == (False, True)
    assert afterwards
