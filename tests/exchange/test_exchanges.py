"""A round as exchanges has the sum of the same round over a transport, and as few of them."""

import re
from pathlib import Path

import msgpack
import numpy as np
import pytest
from exchanging import (
    ANY,
    DEVICES,
    VECTORS,
    Stored,
    assert_right,
    begun,
    changed,
    drive,
    session_of,
)

from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.comm import envelope
from hpcfl.errors import BelowThresholdError, UsageError
from hpcfl.exchange.client import Client

# The exchanges of a round.
EXCHANGES = {"fedavg": 1, "prf": 1, "assisted": 2, "pine": 3, "ckks": 2, "lightsecagg": 5, "opa": 3}


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("gone", [(), (2, 7)])
def test_rounds_of_exchanges_have_the_right_sums(name, gone):
    session, clients = begun(name)
    gone = {*gone} if find(name).tolerates_dropouts else set()
    for index in (0, 3):
        played, left = session.round(index, range(DEVICES)), set()

        def reply(exchange, id, asked, left=left):
            left.update(gone if exchange.upload else ())
            return None if id in left else clients(exchange, id, asked)

        assert drive(played, reply) == find(name).exchanges() == EXCHANGES.get(name, 4)
        assert not played.refused
        assert played.server.survivors == [id for id in range(DEVICES) if id not in gone]
        assert_right(played, clients)


def test_a_mean_is_that_of_the_vectors():
    session, clients = begun("secagg")
    played = session.round(0, range(DEVICES))
    drive(played, clients)
    np.testing.assert_allclose(played.aggregate().mean, VECTORS.mean(axis=0), atol=1e-7)


@pytest.mark.parametrize("name", ["assisted", "prf", "secagg"])
def test_a_round_may_be_of_some_of_the_devices(name):
    session, clients = begun(name, transport_keys="run" if name == "secagg" else None)
    members = [1, 4, 5, 8, 11]
    played = session.round(7, members)

    def reply(exchange, id, asked):
        number = members[id] if id < len(members) else DEVICES + id - len(members)
        return clients(exchange, number, asked)

    drive(played, reply)
    assert not played.refused
    np.testing.assert_allclose(played.aggregate().mean, VECTORS[members].mean(axis=0), atol=1e-7)


class Kept(Stored):
    """The same clients in one process for the whole run."""

    def client(self, id):
        return self.clients[id] if id in self.clients else super().client(id)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_clients_restored_before_every_request_send_the_same_bytes(name, tmp_path):
    every = {}
    for kind in (Stored, Kept):
        session, server = session_of(name, run="a run"), np.random.default_rng(1)
        clients = kind(tmp_path / kind.__name__)
        enrolment = session.enrol(DEVICES)
        if enrolment is not None:
            drive(enrolment, clients)
        for index in (0, 1):
            played, left = session.round(index, range(DEVICES), server.bytes), set()
            gone = {3, 6} if find(name).tolerates_dropouts else set()

            def reply(exchange, id, asked, left=left, gone=gone, clients=clients):
                left.update(gone if exchange.upload else ())
                return None if id in left else clients(exchange, id, asked)

            drive(played, reply)
            assert len(played.server.survivors) == DEVICES - len(gone)
        every[kind] = clients.replies
    if name == "ckks":  # TenSEAL draws by itself
        every = {kind: [(id, len(reply)) for id, reply in found] for kind, found in every.items()}
        assert len(every[Stored]) == len(every[Kept])
        return
    assert every[Stored] == every[Kept]


def test_a_client_that_refuses_says_why_and_is_asked_no_more():
    session, clients = begun("secagg")
    played, asked_4 = session.round(0, range(DEVICES)), []

    def reply(exchange, id, asked):
        if id == 4:
            asked_4.append(asked)
            asked = changed(asked, name="nonsense")
        return clients(exchange, id, asked)

    drive(played, reply)
    assert len(asked_4) == 1
    assert "the server asks for nonsense" in str(played.refused[4])
    assert played.server.survivors == [id for id in range(DEVICES) if id != 4]


def test_a_round_with_too_few_replies_ends_with_the_servers_error():
    session, clients = begun("secagg")
    with pytest.raises(BelowThresholdError, match="2 of 12 devices"):
        drive(
            session.round(0, range(DEVICES)),
            lambda exchange, id, asked: clients(exchange, id, asked) if id < 2 else None,
        )


def test_a_round_that_is_given_up_ends_its_thread():
    session, _ = begun("secagg")
    played = session.round(0, range(DEVICES))
    exchanges = played.exchanges()
    assert next(exchanges).name == "advertise_keys"
    exchanges.close()
    assert not played.refused


def test_replies_without_envelopes_cost_their_senders():
    session, clients = begun("secagg")
    played = session.round(0, range(DEVICES))
    wrong = {1: b"", 3: bytes(envelope.BYTES + 3), 5: msgpack.packb([b"", 1])}
    drive(
        played,
        lambda exchange, id, asked: wrong[id] if id in wrong else clients(exchange, id, asked),
    )
    assert {1, 3, 5}.isdisjoint(played.server.survivors)


@pytest.mark.parametrize("name", ["secagg", "secagg-graph", "sparse", "cohort", "common"])
def test_a_dealer_of_wrong_shares_is_not_in_the_sum_although_others_masked_with_it(name):
    """It uploads with all others, before the server knows; its masks are removed by their pairs."""
    session, clients = begun(name)
    played = session.round(0, range(DEVICES))

    def reply(exchange, id, asked):
        if id == 5 and exchange.name == "share_keys":
            party = clients[5]._round.party
            deal = party.send_share_keys

            def wrong():
                ids, rows = deal()
                return ids, rows ^ 1

            party.send_share_keys = wrong
        return None if (exchange.upload, id) == (True, 8) else clients(exchange, id, asked)

    assert drive(played, reply) == 5
    assert "no right share of its secrets" in str(played.refused[5])
    assert played.server.outcome().expelled == 1
    assert played.server.survivors == [id for id in range(DEVICES) if id not in (5, 8)]
    assert_right(played, clients)


def test_the_script_of_the_page_runs(capsys):
    page = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (script,) = [block for block in blocks if "round_.play(send)" in block]
    exec(script, {})
    assert "[0.045 0.045 0.045] {}" in capsys.readouterr().out


@pytest.mark.parametrize("option", [{"alpha": 0.5}, {"upload": "reduce"}, {"helpers": 2}])
def test_options_without_an_effect_are_refused(option):
    (name,) = option
    with pytest.raises(UsageError, match=f"secagg does not use --{name}"):
        session_of("secagg", **option)


def test_a_device_that_refuses_its_upload_alone_says_why_where_both_come_together():
    """Its rows came before, in the same reply."""
    session, clients = begun("opa")
    played = session.round(0, range(DEVICES))

    def reply(exchange, id, asked):
        wrong = np.full(VECTORS.shape[1], np.nan, np.float32)
        return clients[id].handle(asked, lambda offer: wrong if id == 5 else VECTORS[id])

    drive(played, reply)
    assert [5] == [*played.refused]
    assert "not a finite number" in str(played.refused[5])
    assert played.server.survivors == [id for id in range(DEVICES) if id != 5]


def test_an_option_that_the_protocol_does_not_use_is_refused_by_the_client_too():
    session, _ = begun("opa")
    (request, *_) = next(session.round(0, range(DEVICES)).exchanges()).requests.values()
    parameters = msgpack.unpackb(request)[0][2] | {"transport_keys": "run"}
    reply = Client(ANY).handle(changed(request, parameters=parameters), lambda offer: VECTORS[0])
    assert "opa does not use --transport-keys" in str(msgpack.unpackb(reply))
