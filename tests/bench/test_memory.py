import pytest
from commandline import refusal

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.parameters import Parameters
from hpcfl.errors import UsageError
from hpcfl.rounds import memory

ROW = 4 + 16 + 80  # label, envelope, sealed shares


def protocol(name="secagg", devices=1000, **options):
    return find(name)(Parameters(devices, 10, **options))


def test_rows_are_those_of_all_pairs_or_of_neighbours_on_a_ring():
    ring = protocol("secagg-graph")

    assert memory.row_bytes(protocol(), 1000) == 1000 * 999 * ROW
    assert memory.row_bytes(protocol(), 10) == 10 * 999 * ROW
    assert memory.row_bytes(ring, 1000) == 1000 * ring.topology.degree * ROW
    assert memory.row_bytes(protocol("fedavg"), 1000) == 0


@pytest.mark.parametrize("tolerant", [False, True])
def test_a_round_is_refused_where_its_rows_do_not_fit_a_host(monkeypatch, tolerant):
    at_peak = memory.ROWS_AT_PEAK + memory.TOLERANT * tolerant
    needed = int(at_peak * 500 * 999 * ROW)
    monkeypatch.setattr("hpcfl.system.machine.memory_available", lambda: needed * 1.001)
    memory.check(protocol(), 2, tolerant)

    for hosts, free in ((2, needed * 0.998), (1, needed * 1.001)):
        monkeypatch.setattr("hpcfl.system.machine.memory_available", lambda free=free: free)
        with pytest.raises(UsageError, match=r"devices on a host, with the rows .* about 0\.[123]"):
            memory.check(protocol(), hosts, tolerant)


def test_ranks_that_hold_long_vectors_count_up_to_one_a_device(monkeypatch):
    long = find("secagg")(Parameters(8, 10**9))
    for hosts, ranks, needed in ((1, 1, 24), (1, 9, 88), (1, 17, 88), (3, 9, 40)):
        monkeypatch.setattr(
            "hpcfl.system.machine.memory_available", lambda needed=needed: 1.001e9 * needed
        )
        memory.check(long, hosts, ranks=ranks)
        monkeypatch.setattr(
            "hpcfl.system.machine.memory_available", lambda needed=needed: 0.999e9 * needed
        )
        with pytest.raises(UsageError, match="smaller --dim"):
            memory.check(long, hosts, ranks=ranks)


def test_a_round_that_no_memory_holds_is_refused_at_once_with_its_size(tmp_path):
    said = refusal("bench", "secagg", "--devices", 60_000, "--dim", 10, "--output", tmp_path)

    assert "900.0 GB" in said
    assert not list(tmp_path.iterdir())
