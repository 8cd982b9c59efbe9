"""Keys and seeds go nowhere: not into results, output, errors, checkpoints or objects that stay.

Every secret that a run draws, derives or agrees on is a marker (see `planted`), and no eight bytes
of any may be found. Python can promise nothing about memory that it has freed; what these tests
forbid is a reference that stays.
"""

import base64
import gc
import itertools
import json
import os
import traceback
import zipfile
from dataclasses import is_dataclass
from importlib.util import find_spec
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from planted import CHUNK, Planted, Search, left_behind, modules
from player import Changing

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.noise import IntegerNoise
from hpcfl.benchmark import session
from hpcfl.benchmark.experiment import Experiment
from hpcfl.cli import group
from hpcfl.cli.watching import Spoken
from hpcfl.comm import envelope
from hpcfl.comm.loopback import Loopback
from hpcfl.comm.phases import Role
from hpcfl.comm.world import World
from hpcfl.crypto import ckks, keys, shamir
from hpcfl.errors import BelowThresholdError, HpcflError
from hpcfl.options.bench import BenchOptions
from hpcfl.results import load
from hpcfl.rounds import enrolment
from hpcfl.rounds import timed as rounds
from hpcfl.rounds.build import build
from hpcfl.rounds.observer import Results, Together

DEVICES, DIM, Q = 6, 120, 2**32 - 5
RINGS = ("secagg", "secagg-graph", "sparse", "cohort")
PROTOCOLS = (
    *RINGS,
    "common",
    "lightsecagg",
    "committee",
    "opa",
    "assisted",
    "pine",
    "prf",
    "secagg active",
    "sparse active",
    *(["ckks"] if find_spec("tenseal") else []),
    *(["flamingo"] if find_spec("nacl") else []),
)
OPTIONS = {
    "secagg-graph": {"degree": 4},
    "cohort": {"alpha": 0.5, "degree": 6},
    "sparse": {"alpha": 0.5},
    "common": {"alpha": 0.5},
    "prf": {"dropout": 0.0},
    "secagg active": {"security": "active"},
    "sparse active": {"security": "active", "alpha": 0.5},
}
PHASES = (
    *("advertise_keys", "share_keys", "share_masks", "masked_input", "unmask"),
    *("share_input", "share_key", "sum_shares", "encrypted_input", "decrypt"),
)
# Between them these run the code of all: two topologies, three kinds of masks, both variants.
QUICK = (
    "sparse",
    "cohort",
    "lightsecagg",
    "committee",
    "opa",
    "assisted",
    "pine",
    "prf",
    "ckks",
    "flamingo",
    "secagg active",
    "dp-fedavg",
)
# Where every object that is alive is searched, which takes long, the quick tier has three of them.
SLOW = {*QUICK} - {"cohort", "lightsecagg", "assisted"}


def each(*names, slow=()):
    """Return protocols to look at, those that add no code of their own for the full tier."""
    quick = {*QUICK} - {*slow}
    return [pytest.param(n, marks=() if n in quick else pytest.mark.full) for n in names]


@pytest.fixture(autouse=True)
def small_caches():
    """Forget the tables that other tests have left: it takes long to search them."""
    for _, module in modules():
        for value in vars(module).values():
            getattr(value, "cache_clear", lambda: None)()


@pytest.fixture
def planted(monkeypatch):
    for name in PROTOCOLS:
        kind(name)
    return Planted().plant(monkeypatch)


def kind(name):
    protocol, _, security = name.partition(" ")
    return find(protocol, security or "passive")


def helpers(name):
    return kind(name).default_helpers if name != "dp-fedavg" else 0


def loopback(name):
    return Loopback(DEVICES, helpers(name))


def options(name, **others):
    few = {"dim": DIM, "rounds": 2, "warmup": 0, "levels": 2**16}
    return BenchOptions(name.partition(" ")[0], **few | OPTIONS.get(name, {}) | others)


def played(name, transport, dropouts=None, protocol=None, prepare=None, vectors=None):
    """Play a round with `timed.play`; return its result."""
    protocol = protocol or build(name.partition(" ")[0], options(name), DEVICES, DIM)[0]
    return rounds.play(
        protocol,
        transport,
        index=0,
        model=np.zeros(DIM, np.float32),
        inputs=lambda id: np.full(DIM, 0.5) if vectors is None else vectors[id],
        prepare=prepare,
        dropouts=dropouts or {},
        enrolled=enrolment.enrol(protocol, transport),
    )


def everything_in(folder):
    """Yield the names and contents of all files, those that are compressed too."""
    for path in sorted(folder.rglob("*")):
        yield str(path).encode()
        if path.is_file():
            yield path.read_bytes()
        if path.suffix == ".h5":
            yield from inside(path)
        if path.is_file() and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                yield from map(archive.read, archive.namelist())


def inside(path):
    """Yield the values and attributes of a results file, decompressed."""
    found = []

    def keep(name, node):
        found.extend([name, *node.attrs, *node.attrs.values()])
        if isinstance(node, h5py.Dataset):
            found.append(node[()])

    with h5py.File(path) as file:
        keep("/", file)
        file.visititems(keep)
    for value in found:
        plain = np.asarray(value)
        yield plain.tobytes() if plain.dtype != object else repr(plain.tolist()).encode()
        yield str(value).encode()


# The search itself


FORMS = {
    "raw": lambda key: b"xy" + key,
    "half": lambda key: key[len(key) // 2 :],
    "reversed": lambda key: key[::-1],
    "hexadecimal": lambda key: f"key {key.hex()}",
    "upper case": lambda key: key.hex().upper(),
    "repr": repr,
    "list": lambda key: str(list(key)),
    "array": lambda key: str(np.frombuffer(key, np.uint8)),
    "little-endian": lambda key: str(int.from_bytes(key, "little")),
    "big-endian": lambda key: f"n={int.from_bytes(key, 'big')};",
    "words": lambda key: str(np.frombuffer(key, "<u8")),
    "base64": base64.b64encode,
    "base64 of more": lambda key: base64.urlsafe_b64encode(b"k" + key + b"z"),
    "limbs": lambda key: shamir.to_limbs(key).astype("<u4").tobytes(),
    "signed limbs": lambda key: shamir.to_limbs(key).astype("<i8").tobytes(),
    "limbs in a list": lambda key: str(shamir.to_limbs(key).tolist()),
    "JSON": lambda key: json.dumps({"key": list(key)}, indent=2),
}


def test_the_search_finds_a_secret_in_every_form():
    for length, form in itertools.product((16, 32), FORMS):
        secrets, around = [os.urandom(length) for _ in range(50)], os.urandom(999)
        search = Search(dict.fromkeys(secrets, "drawn"))
        written = FORMS[form](secrets[7])
        raw = written.encode() if isinstance(written, str) else written

        assert set() == search(around, around.hex(), repr(around))
        assert search(around + raw + around)


# Results, output and checkpoints


def command(*arguments):
    """Run a command in this process; return all that it printed."""
    done = CliRunner().invoke(group, [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("name", each(*PROTOCOLS, "dp-fedavg"))
def test_results_and_output_of_a_run_hold_no_secret(name, planted, tmp_path):
    more = [f"--{key}={value}" for key, value in OPTIONS.get(name, {}).items()]
    more += [] if name in ("ckks", "pine") else [f"--levels={2**16}"]
    shown = command(
        *("bench", name.partition(" ")[0], "--devices", DEVICES, "--dim", DIM),
        *("--rounds", 2, "--warmup", 0, *more, "--output", tmp_path),
    )
    (path,) = tmp_path.glob("*.h5")
    told = [command("report", path, "--format", kind) for kind in ("json", "csv")]

    search = planted.search()
    assert len(planted.secrets) > DEVICES
    assert set() == search(shown, *told, *everything_in(tmp_path))


def test_checkpoints_of_a_training_hold_no_secret(planted, tmp_path):
    pytest.importorskip("torch")
    shown = command(
        *("train", "fedavg", "--aggregate", "secagg", "--devices", 4, "--rounds", 2),
        *("--dataset", "synthetic", "--checkpoint-every", 1, "--output", tmp_path),
    )
    assert len([*tmp_path.glob("*.npz")]) == 1

    assert set() == planted.search()(shown, *everything_in(tmp_path))


# Messages


class Heard(Changing):
    """Keeps every message, those of the server apart."""

    def __init__(self, name):
        super().__init__(DEVICES, helpers(name))
        self.told, self.sent = [], []

    def passed(self, message):
        (sender,) = message[8:12].view("<u4")
        (self.told if sender == envelope.SERVER else self.sent).append(message.tobytes())
        return message


def forms_of(vector, device):
    """Return the first values of a device's vector, and of what it adds to the sum, as bytes."""
    _, added = device.contribution(vector)
    whole = added if added.dtype.kind == "i" else np.ldexp(added, ckks.STEP_BITS).astype("<i8")
    forms = [*(form for one in (vector, added) for form in (one, one.astype("<f4"))), whole]
    return [one[:16].tobytes() for one in (*forms, (whole % Q).astype("<u4"))]


def heard(name):
    """Play a round; return what was heard, and which devices' values are in it."""
    # None that is small: as an integer of eight bytes it could be in any envelope.
    generator = np.random.default_rng(5)
    vectors = generator.uniform(0.3, 1, (DEVICES, DIM)) * generator.choice([-1, 1], DIM)
    transport, devices = Heard(name), {}
    played(name, transport, prepare=devices.update, vectors=vectors)
    assert len(devices) == DEVICES
    joined = b"".join([*transport.sent, *transport.told])
    shown = {
        id
        for id, device in devices.items()
        for form in forms_of(vectors[id], device)
        if any(form[k : k + CHUNK] in joined for k in range(0, len(form), CHUNK))
    }
    return transport, shown


@pytest.mark.parametrize("name", each(*PROTOCOLS))
def test_no_message_holds_a_secret_or_a_vector(name, planted):
    transport, shown = heard(name)
    for drawn in [one for one in planted.secrets if len(one) == 7 * 32 and name == "pine"]:
        # The server is to know two of the seeds that a device draws: blinds of its own share.
        what = planted.secrets.pop(drawn)
        planted.secrets |= {drawn[: 4 * 32]: what, drawn[6 * 32 :]: what}

    assert set() == shown
    assert set() == planted.search()(*transport.sent)
    # The server tells what it has drawn itself: who is whose neighbour follows from it.
    others = {key: what for key, what in planted.secrets.items() if what != "drawn"}
    assert set() == Search(others)(*transport.told)


# Errors


class Spoiled(Changing):
    """Hands messages over, those of one step changed, and keeps the reasons of refusals."""

    def __init__(self, name, step, change):
        super().__init__(DEVICES, helpers(name))
        self._step = step
        self._change = change
        self.said = []

    def passed(self, message):
        version, step, *reserved = message[:4].tolist()
        # The registry of public keys is random from its first byte on: it has no envelope.
        if version != envelope.VERSION or any(reserved):
            return message
        if step == envelope.REFUSAL:
            self.said.append(message.tobytes())
        if message.size > envelope.BYTES and step == self._step:
            return self._change(message)
        return message


def changed(message, where, by):
    message = message.copy()
    message[where] ^= by
    return message


# Cut short, garbled, with a wrong last byte, of another round.
CHANGES = (
    lambda message: message[:-1],
    lambda message: changed(message, slice(envelope.BYTES, None), 0xFF),
    lambda message: changed(message, -1, 0x10),
    lambda message: changed(message, 4, 1),
)


def failed_round(name, transport, dropouts=None, ended=None):
    """Play a round; return its error and all parties, and put what is left of it in `ended`."""
    protocol = build(name.partition(" ")[0], options(name), DEVICES, DIM)[0]
    parties = []
    try:
        result = played(
            *(name, transport, dropouts, protocol), lambda made: parties.extend(made.values())
        )
    except HpcflError as error:
        return error, parties
    if ended is not None:
        ended += [result, protocol, transport]
    return None, parties


def told(error):
    """Return what is printed of an error, of those before it too, traceback and all."""
    return "".join([str(error), repr(error), repr(vars(error)), *traceback.format_exception(error)])


@pytest.mark.parametrize("name", each(*PROTOCOLS, slow=SLOW))
def test_no_error_of_a_round_that_fails_holds_a_secret(name, planted):
    steps = kind(name).steps
    kinds, texts, ended = set(), [], []
    for number, change in itertools.product(range(len(steps)), CHANGES):
        transport = Spoiled(name, number, change)
        error, parties = failed_round(name, transport, ended=ended)
        texts += [repr(party) + str(party) for party in parties]
        texts += [told(one) for party in parties for one in getattr(party, "ignored", [])]
        texts += [said.decode(errors="replace") for said in transport.said]
        if error is not None:
            kinds.add(type(error))
            texts.append(told(error))
    for phase in PHASES:
        if phase in [step.phase for step in steps if step.role is Role.DEVICE]:
            error, _ = failed_round(name, loopback(name), dict.fromkeys(range(4), phase))
            assert error is not None
            kinds.add(type(error))
            texts.append(told(error))

    assert BelowThresholdError in kinds
    search = planted.search()
    assert set() == search(*texts)
    # Of a round that went on without the sender, its error may stay, and must lead to no party.
    del error, parties
    assert set() == left_behind(search, ("ended", ended))


@pytest.mark.parametrize("name", each(*PROTOCOLS, slow=SLOW))
def test_no_object_shows_a_secret_when_it_is_printed(name, planted):
    """Every object of the package that is alive within a round, while there are secrets."""
    shown = []
    kinds = set()

    def look(live):
        gc.collect()
        for thing in gc.get_objects():
            if str(type(thing).__module__).startswith("hpcfl."):
                kinds.add(type(thing).__name__)
                shown.extend((repr(thing), str(thing)))

    experiment = Experiment.prepare(options(name, rounds=1), DEVICES)
    played(name, loopback(name), protocol=experiment.protocol, prepare=look)

    assert {type(experiment.protocol).__name__, "Round", "KeyPair"} <= kinds
    assert set() == planted.search()(*shown)


def test_no_dataclass_shows_what_looks_like_a_secret():
    """A field of bytes, or of objects that hold keys, is left out of what is printed."""
    secret = os.urandom(16)
    things = [
        IntegerNoise(3, secret),
        keys.KeyPair.from_private(secret * 2),
        enrolment.Enrolled({0: secret}, 1, None),  # type: ignore[arg-type]
    ]
    assert all(is_dataclass(thing) for thing in things)

    assert set() == Search({secret: "drawn"})(*map(repr, things), *map(str, things))


# What stays


def alive():
    """Return the classes of living parties of a round or an enrolment, and of key pairs."""
    parties = ("Device", "Server", "KeyPair", "Round", "Member", "Identity", "Directory")
    found = [type(thing) for thing in gc.get_objects() if not isinstance(thing, type)]
    return sorted(
        one.__name__
        for one in found
        if str(one.__module__).startswith("hpcfl.") and one.__name__.endswith(parties)
    )


@pytest.mark.parametrize("name", each(*PROTOCOLS, slow=SLOW))
def test_nothing_that_stays_holds_a_secret_of_a_round(name, planted):
    """Parties die with their round, at once; what is left between rounds leads to no secret."""
    experiment = Experiment.prepare(options(name), DEVICES)
    transport = loopback(name)
    stored = Results[rounds.Played]()
    between = []
    gc.collect()
    before = alive()
    gc.disable()
    try:

        def look():
            roots = (
                ("experiment", experiment),
                ("transport", transport),
                ("stored", stored.results),
            )
            between.append(left_behind(planted.search(), *roots))

        experiment.run(transport, Together(stored, Spoken(look)))
        after = alive()
    finally:
        gc.enable()
    look()

    assert before == after
    assert [set()] * 3 == between


def test_distributed_noise_keeps_one_secret_for_all_rounds_and_no_other(planted):
    """It must be the same when a round is validated; the next rounds' noise follows from it."""
    experiment = Experiment.prepare(options("dp-fedavg"), DEVICES)
    experiment.run(Loopback(DEVICES))
    protocol = experiment.protocol
    found = left_behind(planted.search(), ("experiment", experiment))

    assert found
    assert protocol.noise.secret in planted.secrets
    del planted.secrets[protocol.noise.secret]
    assert set() == left_behind(planted.search(), ("experiment", experiment))


def test_the_secret_of_noise_dies_with_its_run(tmp_path):
    alive_then = []

    def look():
        gc.collect()
        experiments = [one for one in gc.get_objects() if type(one) is Experiment]
        alive_then.append(sorted(one.devices for one in experiments))

    asked = options("dp-fedavg", rounds=1, devices=(4, 5), output=tmp_path)
    session.run(World(None), asked, lambda path: None, Spoken(look))

    assert [[4, 5], [5]] == alive_then


# Where secrets come from

PLAN = ["[grid]", "protocol = ['secagg']", "[fixed]", "devices = 4", "dim = 20", "rounds = 1"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "secagg"],
        ["bench", "prf", "--dropout", "0"],
        ["bench", "dp-fedavg"],
        ["bench", "secagg", "--security", "active"],
        ["train", "fedavg", "--aggregate", "secagg", "--dataset", "synthetic"],
        ["sweep", "plan.toml"],
        pytest.param(
            ["train", "dp-fedavg", "--noise-multiplier", "1", "--dataset", "synthetic"],
            marks=pytest.mark.full,
        ),
    ],
)
def test_an_insecure_seed_is_announced_and_recorded_and_nothing_else_is_insecure(
    arguments, planted, tmp_path, monkeypatch
):
    if arguments[0] == "train":
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    sizes = ["--devices", 4, "--rounds", 1] if arguments[0] != "sweep" else []
    sizes += ["--dim", DIM] if arguments[0] == "bench" else []
    for folder, seed in (("secret", []), ("seeded", ["--insecure-seed", 7])):
        if arguments[0] == "sweep":
            seed = [f"{seed[0][2:]} = {seed[1]}"] if seed else []
            Path("plan.toml").write_text("\n".join([*PLAN, *seed]))
            shown = command(*arguments, "--output", folder)
        else:
            shown = command(*arguments, *sizes, *seed, "--output", folder)
        (path,) = Path(folder).glob("*.h5")
        recorded_seed = load(path).config["insecure_seed"]
        drawn = [what for what in planted.secrets.values() if what == "drawn"]
        if seed:
            assert "insecure-seed is given: neither keys nor noise are secret" in shown
            assert recorded_seed == 7
            assert [] == drawn
        else:
            assert "not secret" not in shown
            assert recorded_seed is None
            assert drawn
        planted.secrets.clear()
