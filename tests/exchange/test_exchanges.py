"""A round as exchanges has the sum of the same round over a transport, and as few of them."""

import numpy as np
import pytest

from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.comm import envelope
from hpcfl.comm.loopback import Loopback
from hpcfl.crypto.keys import helper_secrets, secrets_of
from hpcfl.errors import BelowThresholdError
from hpcfl.exchange.client import ClientRound
from hpcfl.exchange.server import ServerRound
from hpcfl.options.bench import BenchOptions
from hpcfl.rounds.build import build, without_dropouts
from hpcfl.rounds.driver import RoundConfig
from hpcfl.rounds.enrolment import NO_ROUND, enrol
from hpcfl.rounds.timed import SERVER, play

DEVICES, DIM, SEED = 12, 40, 5
# The exchanges of a round.
EXCHANGES = {"fedavg": 1, "prf": 1, "assisted": 2, "ckks": 2, "committee": 4}
VECTORS = np.random.default_rng(3).uniform(-0.1, 0.1, (DEVICES, DIM)).astype(np.float32)


def inputs(id):
    return VECTORS[id]


def drive(played, clients, absent=lambda name, id: False):
    """Let clients answer all exchanges; return how many there were."""
    exchanges, count = played.exchanges(), 0
    try:
        exchange = next(exchanges)
        while True:
            count += 1
            replies = {
                id: clients[id].handle(asked, lambda id=id: inputs(id))
                for id, asked in exchange.requests.items()
                if not absent(exchange.name, id)
            }
            exchange = exchanges.send(replies)
    except StopIteration:
        return count


def enrolled(protocol):
    """Enrol all parties by exchanges, with the secrets of `rounds.enrolment`."""
    helpers = protocol.helpers
    enrolment = protocol.enrolment(DEVICES, helpers)
    if enrolment is None:
        return
    parties = {id: enrolment.device(id, secrets_of(SEED, NO_ROUND, id)) for id in range(DEVICES)}
    for k in range(helpers):
        parties[DEVICES + k] = enrolment.helper(k, helper_secrets(SEED, NO_ROUND, k))
    config = RoundConfig(index=NO_ROUND, dim=0, largest_message=enrolment.largest_message)
    played = ServerRound(enrolment.steps, enrolment.server(), config, DEVICES, helpers)
    drive(
        played,
        {id: ClientRound(enrolment.steps, p, id, NO_ROUND, DEVICES) for id, p in parties.items()},
    )
    protocol.join(parties, range(DEVICES), DEVICES)


def round_of(protocol, index=0):
    """Return the server, its round, and the clients."""
    model = np.zeros(DIM, np.float32)
    server = protocol.server(index, model, secrets_of(SEED, index, SERVER))
    parties = {id: protocol.device(id, index, secrets_of(SEED, index, id)) for id in range(DEVICES)}
    for k in range(protocol.helpers):
        parties[DEVICES + k] = protocol.helper(k, index, helper_secrets(SEED, index, k))
    config = RoundConfig(index=index, dim=DIM, largest_message=protocol.largest_message)
    played = ServerRound(protocol.steps, server, config, DEVICES, protocol.helpers)
    clients = {id: ClientRound(protocol.steps, p, id, index, DEVICES) for id, p in parties.items()}
    return server, played, clients


def protocol_of(name):
    given = without_dropouts(name, {}) | ({"dropout": 0.2} if find(name).tolerates_dropouts else {})
    return build(name, BenchOptions(name, alpha=0.5, **given), DEVICES, DIM)[0]


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("gone", [(), (2, 7)])
def test_a_round_of_exchanges_has_the_sum_of_the_same_round_over_a_transport(name, gone):
    protocol, other = protocol_of(name), protocol_of(name)
    gone = gone if protocol.tolerates_dropouts else ()
    upload = next(step for step in protocol.steps if step.upload)
    enrolled(protocol)
    server, played, clients = round_of(protocol)
    left = set()

    def absent(what, id):
        left.update(gone if what == upload.name else ())
        return id in left

    count = drive(played, clients, absent)
    assert count == protocol.exchanges() == EXCHANGES.get(name, 5)
    assert not played.refused

    transport = Loopback(DEVICES, other.helpers)
    expected = play(
        other,
        transport,
        index=0,
        model=np.zeros(DIM, np.float32),
        inputs=inputs,
        dropouts=dict.fromkeys(gone, upload.phase),
        insecure_seed=SEED,
        enrolled=enrol(type(other), transport, first_round=0, insecure_seed=SEED),
    )
    assert server.survivors == np.flatnonzero(expected.record.survived).tolist()
    np.testing.assert_array_equal(protocol.aggregate(server).mean, expected.aggregate.mean)


def test_a_client_that_refuses_says_why_and_is_asked_no_more():
    protocol = protocol_of("secagg")
    server, played, clients = round_of(protocol)
    asked = []
    handle = clients[4].handle

    def once(request, vector):
        asked.append(request)
        return handle(request[:-1], vector)

    clients[4].handle = once
    drive(played, clients)
    assert len(asked) == 1
    assert "it ends within a message" in str(played.refused[4])
    assert 4 not in server.survivors
    assert len(server.survivors) == DEVICES - 1


def test_a_round_with_too_few_replies_ends_with_the_servers_error():
    _, played, clients = round_of(protocol_of("secagg"))
    with pytest.raises(BelowThresholdError, match="2 of 12 devices"):
        drive(played, clients, absent=lambda name, id: id > 1)


def test_a_round_that_is_given_up_ends_its_thread():
    _, played, _ = round_of(protocol_of("secagg"))
    exchanges = played.exchanges()
    assert next(exchanges).name == "advertise_keys"
    exchanges.close()
    assert not played.refused


def test_replies_without_envelopes_cost_their_senders():
    server, played, clients = round_of(protocol_of("secagg"))
    clients[1].handle = lambda request, vector: b""
    clients[3].handle = lambda request, vector: bytes(envelope.BYTES + 3)
    drive(played, clients)
    assert {1, 3}.isdisjoint(server.survivors)
