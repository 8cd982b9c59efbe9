"""A client that comes back from its bytes: how large they are, and that no state is used twice."""

from contextlib import suppress

import msgpack
import numpy as np
import pytest
from exchanging import (
    ANY,
    DEVICES,
    DIM,
    KEY,
    VECTORS,
    Clients,
    Stored,
    begun,
    changed,
    drive,
    session_of,
)

from hpcfl.comm import envelope
from hpcfl.errors import BelowThresholdError, MessageError, UsageError
from hpcfl.exchange.client import Client
from hpcfl.exchange.journal import FileJournal
from hpcfl.exchange.policy import Policy
from hpcfl.exchange.request import Request

LIMITS = {"secagg": 52_000, "secagg-graph": 10_000, "assisted": 1_000, "pine": 1_000}


class Forgetful:
    """A journal that remembers nothing: as if there were none."""

    def claim(self, run, round_index, step):
        return True


def refusal(reply):
    """Return the reason that a client gave instead of its last message, or None."""
    messages = msgpack.unpackb(reply)
    if not messages:
        return None
    raw = np.frombuffer(messages[-1], np.uint8)
    header = envelope.read_headers(raw[None, : envelope.BYTES])
    return envelope.refusal_in(raw, int(header["round"][0]), int(header["sender"][0]))


@pytest.mark.parametrize("name", LIMITS)
def test_states_are_small(name, tmp_path):
    devices, dim, largest = 500, 10, 0
    session = session_of(name, dim, dropout=0.1)
    clients, journal = {}, FileJournal(tmp_path)
    vector = np.zeros(dim, np.float32)

    def reply(exchange, id, asked):
        nonlocal largest
        if id:
            client = clients.setdefault(id, Client(ANY))
            return client.handle(asked, lambda parameters: vector)
        client = clients[0] if 0 in clients else Client(ANY, journal)
        found = client.handle(asked, lambda parameters: vector)
        state = client.save(KEY)
        largest = max(largest, len(state))
        clients[0] = Client.restore(state, KEY, ANY, journal)
        return found

    enrolment = session.enrol(devices)
    if enrolment is not None:
        drive(enrolment, reply)
    played = session.round(0, range(devices))
    drive(played, reply)
    assert played.server.survivors == [*range(devices)]
    assert 200 < largest <= LIMITS[name]


def uploading(name, folder, journal=FileJournal):
    """Return device 2's state before its upload, and the request to upload."""
    clients, found = Stored(folder), []

    def reply(exchange, id, asked):
        if exchange.upload and id == 2:
            found.append((clients.states.get(2), asked))
        return clients(exchange, id, asked)

    session, _ = begun(name, clients)
    drive(session.round(0, range(DEVICES)), reply)
    return found[0]


@pytest.mark.parametrize("name", ["secagg", "secagg-graph", "sparse", "assisted", "common", "pine"])
@pytest.mark.parametrize("at_once", [False, True])
def test_a_state_that_comes_back_uploads_no_second_vector(name, at_once, tmp_path):
    """Two uploads from one state reveal the difference of the vectors, which a journal prevents.

    The state comes back because the client was killed between the reply and the saving of the new
    state, or because the host plays two messages at once.
    """
    state, asked = uploading(name, tmp_path / "others")
    other = VECTORS[2] + 0.25
    for journal in (Forgetful(), FileJournal(tmp_path / "mine")):
        clients = []
        uploads = []
        for vector in (VECTORS[2], other):
            if not at_once or not clients:
                clients = [Client.restore(state, KEY, ANY, journal) for _ in range(1 + at_once)]
            uploads.append(clients.pop().handle(asked, lambda parameters, v=vector: v))
        if isinstance(journal, FileJournal):
            assert refusal(uploads[0]) is None
            assert "has answered step" in refusal(uploads[1])
        elif name not in ("sparse", "pine"):  # shares of pine are drawn anew
            first, second = (
                np.frombuffer(msgpack.unpackb(one)[-1], "<u4")[4:].astype(np.int64)
                for one in uploads
            )
            differences = (second - first) % (2**32 - 5)
            # All coordinates differ by the same number of steps, 45 million, up to the rounding.
            assert np.ptp(differences) < 100


def test_claims_succeed_once_and_not_before_a_later_round(tmp_path):
    journal = FileJournal(tmp_path)
    assert [journal.claim("r", -1, 1), journal.claim("r", -1, 1)] == [True, False]
    assert [journal.claim("r", 0, 1), journal.claim("r", 0, 2)] == [True, True]
    assert journal.claim("other", 0, 1)
    assert journal.claim("r", 4, 1)
    assert not journal.claim("r", 0, 7)
    assert not journal.claim("r", -1, 7)
    assert {path.name for path in (tmp_path / b"r".hex()).iterdir()} >= {"5-1"}
    assert not FileJournal(tmp_path).claim("r", 4, 1)


def test_a_journal_that_cannot_be_written_to_refuses(tmp_path):
    (tmp_path / "journal").write_text("a file")
    state, asked = uploading("secagg", tmp_path / "others")
    client = Client.restore(state, KEY, ANY, FileJournal(tmp_path / "journal"))
    assert "cannot write the journal" in refusal(client.handle(asked, lambda p: VECTORS[2]))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"run": "another"}, "another run"),
        ({"round": 1}, "leave out step"),
        ({"name": "secagg-graph"}, "refuses round 0"),
    ],
)
def test_a_state_of_one_round_serves_no_other(values, reason, tmp_path):
    state, asked = uploading("secagg", tmp_path / "others")
    client = Client.restore(state, KEY, ANY, FileJournal(tmp_path / "mine"))
    assert reason in refusal(client.handle(changed(asked, **values), lambda p: VECTORS[2]))


def test_a_client_refuses_steps_behind_it_and_goes_on(tmp_path):
    session, clients = begun("secagg")
    played, earlier = session.round(0, range(DEVICES)), {}

    def reply(exchange, id, asked):
        if id == 2:
            for old in earlier.values():
                assert "is past step" in refusal(clients[2].handle(old, lambda p: VECTORS[2]))
            earlier[exchange.name] = asked
        return clients(exchange, id, asked)

    drive(played, reply)
    assert 2 in played.server.survivors
    assert len(earlier) == 4


def test_a_client_leaves_out_no_step():
    """A device that has dealt no shares would upload under a mask that anybody can compute."""
    session, clients = begun("secagg")
    exchanges = session.round(0, range(DEVICES)).exchanges()
    first = next(exchanges)
    for id, asked in first.requests.items():
        clients(first, id, asked)
    request = Request.read(first.requests[3])
    upload = next(k for k, step in enumerate(clients[3]._round._steps) if step.upload)
    skipping = Request(request.offer, 3, [upload], []).packed()
    assert "leave out step" in refusal(clients[3].handle(skipping, lambda p: VECTORS[3]))
    exchanges.close()


def test_a_state_opens_under_its_key_alone(tmp_path):
    state, _ = uploading("secagg", tmp_path)
    journal = FileJournal(tmp_path)
    for sealed, key in [
        (state, bytes(32)),
        (state[:-1], KEY),
        (state[:40] + bytes([state[40] ^ 1]) + state[41:], KEY),
        (b"hpcfl client 2\n" + state[15:], KEY),
        (b"", KEY),
    ]:
        with pytest.raises(UsageError, match="does not open"):
            Client.restore(sealed, key, ANY, journal)


def test_a_client_without_a_journal_is_not_saved():
    with pytest.raises(UsageError, match="needs a journal"):
        Client(ANY).save(KEY)


def test_a_saved_state_holds_no_secret_that_no_later_step_needs(tmp_path):
    """After the upload, nothing can give the private mask, and after all steps no share."""
    clients = Stored(tmp_path)
    session, _ = begun("secagg", clients)
    drive(session.round(0, range(DEVICES)), clients)
    client = Client.restore(clients.states[2], KEY, ANY, FileJournal(tmp_path))
    kept = client._saved["round"]["party"]["state"]
    assert {"seed", "shares", "transport", "challenge", "masking"}.isdisjoint(kept)
    assert kept["transport_keys"] == b""
    assert kept["links"].advertised.shape == (DEVICES, 1, 32)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (Policy(), None),
        (Policy(protocols=("assisted",)), "accepts assisted"),
        (Policy(devices=13), "12 devices, and this client accepts at least 13"),
        (Policy(threshold=8), "7 devices in a sum, and this client accepts at least 8"),
        (Policy(gamma=0.2), "0.1 as gamma, and this client accepts at least 0.2"),
        (Policy(clip=0.5), "1 as clip, and this client accepts at most 0.5"),
        (Policy(threshold=13), "7 devices in a sum"),
        (Policy(bits=16), "32 bits, and this client accepts at most 16"),
    ],
)
def test_a_client_refuses_what_its_policy_does_not_allow(policy, reason):
    session = session_of("secagg")
    first = next(session.round(0, range(DEVICES)).exchanges())
    found = refusal(Client(policy).handle(first.requests[0], lambda p: VECTORS[0]))
    assert found is None if reason is None else reason in found


def test_a_policy_names_protocols_one_by_one():
    with pytest.raises(UsageError, match="protocols is 'secagg-graph'; it must be a tuple"):
        Policy(protocols="secagg-graph")


def test_a_client_refuses_a_ring_that_hides_too_little():
    session = session_of("secagg-graph", degree=2)
    first = next(session.round(0, range(DEVICES)).exchanges())
    found = refusal(Client(Policy()).handle(first.requests[0], lambda p: VECTORS[0]))
    assert "1 as the probability of a failure, and this client accepts at most" in found


def test_a_request_makes_a_client_do_nothing_twice():
    session, clients = begun("assisted")
    (first,) = [next(session.round(0, range(DEVICES)).exchanges())]
    request = Request.read(first.requests[3])
    twice = Request(request.offer, 3, [*request.asked, *request.asked], request.messages)
    replies = clients[3].handle(twice.packed(), lambda p: VECTORS[3])
    assert len(msgpack.unpackb(replies)) == 2
    assert "is past step" in refusal(replies)


def test_a_server_does_not_choose_the_code_that_a_client_loads():
    session = session_of("secagg")
    first = next(session.round(0, range(DEVICES)).exchanges())
    asked = changed(first.requests[0], name="os:PathLike")
    assert "accepts secagg" in refusal(Client(Policy()).handle(asked, lambda p: VECTORS[0]))
    assert "accepts" in refusal(
        Client(Policy()).handle(changed(asked, name="fedavg"), lambda p: VECTORS[0])
    )


def test_a_cheating_server_is_not_covered_by_exchanges():
    session = session_of("secagg", security="active")
    with pytest.raises(UsageError, match="do not come from the server"):
        session.round(0, range(DEVICES))


def test_keys_are_those_of_the_run_and_its_parameters():
    """A share that was sealed in another run, or for other parameters, does not open."""
    offers = []
    for run, options in [("a", {}), ("b", {}), ("a", {"clip": 2.0}), ("a", {"about": {"x": 1}})]:
        offers.append(session_of("secagg", run=run, **options).round(0, range(DEVICES)).offer)
    contexts = {offer.protocol.context(0) for offer in offers}
    assert len(contexts) == 4


# What a server may try


@pytest.mark.parametrize(
    ("enrolled", "name", "values"),
    [
        ("prf", "prf", {"population": 15, "members": [5, 12, 13, 14]}),
        ("assisted", "prf", {"members": [2, 3, 4, 5]}),
        ("ckks", "prf", {"members": [2, 3, 4, 5]}),
        ("assisted", "assisted", {"helpers": 1}),
    ],
)
@pytest.mark.parametrize("restored", [False, True])
def test_secrets_of_an_enrolment_serve_no_other_protocol(
    enrolled, name, values, restored, tmp_path
):
    """Where none were agreed on, keys would follow from nothing, and the server knows them."""
    clients = Stored(tmp_path)
    session, _ = begun(enrolled, clients)
    members = values.get("members", range(DEVICES))
    other = session_of(name, run=session.run, helpers=values.get("helpers"))
    other._population = values.get("population", DEVICES)
    first = next(other.round(0, members).exchanges())
    place = [*members].index(5)
    asked = first.requests[place]
    client = clients.client(5) if restored else clients.clients[5]
    reply = client.handle(asked, lambda offer: VECTORS[5])
    assert "the client enrolled for another protocol, or among others" in refusal(reply)


@pytest.mark.parametrize(
    "parameters", [{"weights": [1.0] + [0.0] * 11}, {"population": "x"}, {"correctness_bits": 1}]
)
def test_a_server_offers_only_options(parameters):
    """With weights of its own, it would leave one vector alone in the sum."""
    first = next(session_of("secagg").round(0, range(DEVICES)).exchanges())
    given = Request.read(first.requests[0]).offer.parameters
    asked = changed(first.requests[0], parameters=given | parameters)
    reply = Client(ANY).handle(asked, lambda offer: VECTORS[0])
    assert "a server offers options of the protocol" in refusal(reply)


def test_a_device_masks_among_those_of_the_offer():
    session, clients = begun("prf")
    first = next(session.round(0, range(DEVICES)).exchanges())
    request = Request.read(first.requests[3])
    step, model = request.messages[0]
    few = Request(request.offer, 3, request.asked, [(step, model[:-2] + bytes([0b11000, 0]))])
    reply = clients[3].handle(few.packed(), lambda offer: VECTORS[3])
    assert "a round of others than it was offered" in refusal(reply)


@pytest.mark.parametrize(
    "values",
    [{"run": ""}, {"run": 5}, {"run": "x" * 101}, {"round": 2**32}, {"members": [3, 3]},
     {"members": [7]}, {"parameters": {}}],
)  # fmt: skip
def test_malformed_offers_are_no_requests(values):
    first = next(session_of("secagg").round(0, range(DEVICES)).exchanges())
    with pytest.raises(MessageError, match="it is malformed"):
        Client(ANY).handle(changed(first.requests[0], **values), lambda offer: VECTORS[0])


class Faulty(Clients):
    """Clients of which some are late, dead, repeated, rolled back, or lie."""

    def __init__(self, folder, generator):
        self.folder, self.random, self.states, self.handled = folder, generator, {}, []
        kinds = ["good"] * 8 + ["late", "dead", "repeating", "rolled back", "lying"]
        self.kinds = dict(enumerate(generator.choice(kinds, DEVICES + 2).tolist()))
        self.dead = set()

    def restored(self, id):
        journal = FileJournal(self.folder / str(id))
        states = self.states.setdefault(id, [])
        if not states:
            return Client(ANY, journal)
        back = self.kinds[id] == "rolled back" and self.random.random() < 0.3
        return Client.restore(states[-2 if back and len(states) > 1 else -1], KEY, ANY, journal)

    def handled_by(self, id, asked):
        client = self.restored(id)
        reply = client.handle(asked, lambda parameters: VECTORS[id])
        self.states[id].append(client.save(KEY))
        self[id] = client
        if refusal(reply) is None:
            request = Request.read(asked)
            self.handled.append((id, request.offer.round, *request.asked))
        return reply

    def __call__(self, exchange, id, asked):
        kind, fails = self.kinds[id], self.random.random() < 0.3
        if id in self.dead or (kind == "dead" and fails):
            self.dead.add(id)
            return None
        reply = self.handled_by(id, asked)
        if kind == "repeating" and fails:
            # The host repeats a request, and the server gets the second answer.
            return self.handled_by(id, asked)
        if kind == "late" and fails:
            return None
        # What a client uploads is its own choice, and a helper's answer is not verified.
        if kind == "lying" and fails and not exchange.upload and id < DEVICES:
            wrong = bytearray(reply)
            for place in self.random.integers(0, len(wrong), 3).tolist():
                wrong[place] ^= int(self.random.integers(1, 256))
            return bytes(wrong)
        return reply


@pytest.mark.parametrize("seed", range(200 // 10))
def test_rounds_with_faulty_clients_end_right_or_with_a_sentence(seed, tmp_path):
    """Ten rounds for each seed: every sum is right, and no state is used twice."""
    generator = np.random.default_rng(seed)
    name = ["secagg", "secagg-graph", "assisted", "common"][seed % 4]
    clients = Faulty(tmp_path, generator)
    ended = 0
    session = session_of(name, dropout=0.3)
    enrolment = session.enrol(DEVICES)
    if enrolment is not None:
        kinds, clients.kinds = clients.kinds, dict.fromkeys(clients.kinds, "good")
        drive(enrolment, clients)
        clients.kinds = kinds
    for index in range(10):
        clients.dead.clear()
        played = session.round(index, range(DEVICES))
        with suppress(BelowThresholdError):
            drive(played, clients)
        if not played.server.total.size:
            continue
        ended += 1
        total = np.zeros(DIM, np.int64)
        for id in played.server.survivors:
            where, values = clients[id]._round.party.contribution(VECTORS[id])
            total[where] += values
        np.testing.assert_array_equal(played.server.total, total)
    assert len({*clients.handled}) == len(clients.handled)
    assert ended


def test_a_member_keeps_no_key_after_an_upload_that_came_before_steps_of_the_committee(tmp_path):
    session, clients = begun("opa", Stored(tmp_path))
    seen = []

    def reply(exchange, id, asked):
        told = clients(exchange, id, asked)
        if exchange.upload:
            seen.append(clients.clients[id]._round.state()["party"]["state"])
        return told

    drive(session.round(0, range(DEVICES)), reply)
    assert DEVICES == len(seen)
    assert not any("key_seed" in state for state in seen)
