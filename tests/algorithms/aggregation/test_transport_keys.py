"""Keys that encrypt shares once a run: fewer agreements, and rows that are bound to their round."""

import numpy as np
import pytest

from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.algorithms.aggregation.enrolment import TransportKeys
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.loopback import Loopback
from hpcfl.crypto import keys
from hpcfl.crypto.keys import insecure_secrets
from hpcfl.errors import RefusedError, UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.options.protocols import TransportOptions
from hpcfl.rounds.observer import Results, RoundObserver

DEVICES = 12
SHARING = [name for name in PROTOCOLS if TransportOptions in find(name).options]


class Agreements(RoundObserver):
    """Counts the agreements of each round."""

    def __init__(self, monkeypatch):
        self.counts = [0]
        agree = keys.agree

        def counted(private, public):
            self.counts[-1] += len(public)
            return agree(private, public)

        monkeypatch.setattr(keys, "agree", counted)

    def ended(self, index):
        self.counts.append(0)


@pytest.mark.parametrize("name", SHARING)
def test_later_rounds_save_the_agreements_of_all_pairs_and_validated_sums_are_the_same(
    name, monkeypatch
):
    """An experiment validates every round; without dropouts, all pairs have met in the first."""
    found = {}
    for transport_keys in ("round", "run"):
        options = BenchOptions(
            name, dim=200, alpha=0.5, dropout=0.0, rounds=2, transport_keys=transport_keys
        )
        agreements = Agreements(monkeypatch)
        experiment = Experiment.prepare(options, DEVICES)
        experiment.run(Loopback(DEVICES), agreements)
        found[transport_keys] = agreements.counts
        monkeypatch.undo()
    first, *later = np.subtract(found["round"], found["run"]).tolist()[:3]
    assert first == 0
    # Where neighbours or members are drawn anew, some pairs meet for the first time.
    all_pairs = DEVICES * (DEVICES - 1)
    met = name in ("secagg", "sparse", "common", "lightsecagg")
    assert later == [all_pairs] * 2 if met else all(0 < saved < all_pairs for saved in later)


@pytest.mark.parametrize("name", SHARING)
def test_rounds_with_dropouts_are_right_when_devices_come_back(name):
    options = BenchOptions(name, dim=50, alpha=0.5, dropout=0.3, rounds=4, transport_keys="run")
    results = Results()
    Experiment.prepare(options, DEVICES).run(Loopback(DEVICES), results)
    absent = np.array([~record.survived for record in results.records])
    assert (absent.any(axis=0) & ~absent.all(axis=0)).any()
    assert all(record.validated for record in results.records)


def test_a_new_key_of_a_peer_costs_an_agreement_and_gives_another_secret():
    own = TransportKeys(0, 5, insecure_secrets(1, 0, 0))
    pairs = [keys.KeyPair.generate(insecure_secrets(1, 0, id)) for id in range(1, 5)]
    ids, public = [1, 2, 3, 4], [pair.public for pair in pairs]

    first = own.agree(ids, public)
    assert first == [keys.agree(pair.private, [own.pair.public])[0] for pair in pairs]
    assert own.agree(ids[::-1], public[::-1]) == first[::-1]

    other = keys.KeyPair.generate(insecure_secrets(2, 0, 3))
    public[2] = other.public
    expected = keys.agree(other.private, [own.pair.public])[0]
    assert own.agree(ids, public) == [*first[:2], expected, first[3]] != first


@pytest.mark.parametrize("name", ["secagg", "lightsecagg"])
def test_the_keys_of_shares_are_other_ones_in_every_round_so_an_old_row_is_no_share(name):
    """They are derived from the kept secret and the number of the round, which is played once."""
    options = BenchOptions(name, dim=50, dropout=0.0, transport_keys="run")
    protocol = Experiment.prepare(options, 3).protocol
    kept = {id: TransportKeys(id, 3, insecure_secrets(1, 0, id)) for id in range(3)}
    protocol.join(kept, range(3), 3)
    derived = []
    for index in (0, 1):
        devices = [protocol.device(id, index, insecure_secrets(1, index, id)) for id in range(3)]
        server = protocol.server(index, np.zeros(50, np.float32))
        for id, device in enumerate(devices):
            server.receive_advertise_keys(id, device.send_advertise_keys())
        server.finish_advertise_keys()
        devices[0].receive_advertise_keys(server.send_advertise_keys())
        found = devices[0].state.transport_keys
        derived.append({*found.values()} if isinstance(found, dict) else {found[16:32], found[32:]})
        with pytest.raises(
            RefusedError, match=f"round {index}: it has taken part in round {index}"
        ):
            protocol.device(0, index, insecure_secrets(2, index, 0)).send_advertise_keys()
    assert not derived[0] & derived[1]


def test_they_are_refused_against_a_server_that_cheats():
    with pytest.raises(UsageError, match="cannot be combined with --security active"):
        Experiment.prepare(BenchOptions("secagg", transport_keys="run", security="active"), 5)
