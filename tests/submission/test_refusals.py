"""Every refusal: an archive that differs from a good one in one way is refused for that alone."""

import json
import struct
import zipfile

import h5py
import numpy as np
import pytest
import tampered
from commandline import hpcfl, refusal

from hpcfl.errors import HpcflError
from hpcfl.results import load
from hpcfl.submission import archive, checks, classes
from hpcfl.submission import verify as verification


def refused(path):
    """Verify an archive; return the name and the problem of the only check that fails."""
    done = hpcfl("submit", "verify", path, "--json")
    found = json.loads(done.stdout)
    failed = [one for one in found["checks"] if not one["passed"]]

    assert done.returncode == 1, done.stdout
    assert done.stderr == ""
    assert found["accepted"] is False
    assert found["scores"] == []
    assert len(failed) == 1, failed
    shown = hpcfl("submit", "verify", path)
    assert (shown.returncode, shown.stdout.count("\nREFUSED: 1 check failed")) == (1, 1)
    assert shown.stdout.count("refused  ") == 1
    return failed[0]["name"], "; ".join(failed[0]["problems"])


# What is wrong with results: how a folder of good ones is changed, the check that finds it, and
# what it says.
def _config(**values):
    return lambda folder: [
        tampered.edited(path, "config", **values) for path in folder.glob("*.h5")
    ]


def _environment(**values):
    return lambda folder: [
        tampered.edited(path, "environment", **values) for path in folder.glob("*.h5")
    ]


def _in_the_rounds(name, change, which="0.h5"):
    def edit(folder):
        with h5py.File(folder / which, "r+") as file:
            change(file["rounds"][name])

    return edit


def _set(index, value):
    def change(dataset):
        dataset[index] = value

    return change


def _copied(folder):
    """Put a copy of a launch, with another number, in the place of the other."""
    (folder / "1.h5").write_bytes((folder / "0.h5").read_bytes())
    tampered.edited(folder / "1.h5", "/", run_id="f" * 32)


def _remeasured(**changes):
    def edit(folder):
        for path in folder.glob("*.h5"):
            path.unlink()
        tampered.measure(folder, **changes)

    return edit


def _one_more(**changes):
    def edit(folder):
        other = folder / "other"
        other.mkdir()
        tampered.measure(other, launches=1, **changes)
        (other / "0.h5").rename(folder / "2.h5")

    return edit


WRONG_RESULTS = {
    "interrupted": (
        lambda folder: tampered.edited(folder / "0.h5", "/", status=np.bytes_("interrupted")),
        ("complete", "was interrupted after 4 rounds"),
    ),
    "too few launches": (
        lambda folder: (folder / "0.h5").unlink(),
        ("launches", "results of 1, and the class asks for 2"),
    ),
    "a launch twice": (_copied, ("launches", "are of the same launch")),
    "too few rounds": (_remeasured(rounds=1), ("rounds", "has 1 measured round, not 2")),
    "a sum that was not right": (
        _in_the_rounds("validated", _set(3, False)),
        ("validated", "has 1 round whose sum was not right"),
    ),
    "a warm-up whose sum was not right": (
        _in_the_rounds("validated", _set(0, False)),
        ("validated", "has 1 round whose sum was not right"),
    ),
    "a device lost": (
        _in_the_rounds("survived", _set(2, False)),
        ("dropouts", "has 0 devices in the sum of round 2, not 5"),
    ),
    "a dirty commit": (
        _environment(git_dirty=True, git_changes="abc"),
        ("commit", "differs from its commit 0123456789ab"),
    ),
    "a commit that is not known": (
        _environment(git_commit="none"),
        ("commit", "does not record which commit was run"),
    ),
    "a state that is not known": (
        _environment(git_dirty="none"),
        ("commit", "does not record which commit was run"),
    ),
    "a state that is no state": (
        _environment(git_dirty="clean"),
        ("commit", "differs from its commit"),
    ),
    "two commits": (
        lambda folder: tampered.edited(folder / "0.h5", "environment", git_commit="f" * 40),
        ("alike", "differ in git_commit: "),
    ),
    "two machines": (
        lambda folder: tampered.edited(folder / "0.h5", "environment", cpu_model="abacus"),
        ("alike", "differ in cpu_model: "),
    ),
    "two protocols": (_one_more(protocol="fedavg"), ("alike", "differ in protocol: ")),
    "two degrees": (_one_more(degree=4), ("alike", "differ in degree: ")),
    "another number of devices": (_remeasured(devices=4), ("class", "devices is 4, and")),
    "another dim": (_remeasured(dim=41), ("class", "dim is 41, and the class has 40")),
    "other dropouts": (_config(dropout=0.2), ("class", "dropout is 0.2, and the class has 0.3")),
    "no warm-up": (_config(warmup=0), ("class", "warmup is 0, and the class has 1")),
    "known keys": (_remeasured(insecure_seed=1), ("class", "insecure_seed is 1, and")),
    "dropouts in another phase": (
        _remeasured(dropout_phase="share_keys"),
        (
            "class",
            "dropout_phase is share_keys, and the class has that of the upload, masked_input",
        ),
    ),
    "a denser vector": (_remeasured(protocol="sparse", alpha=0.2), ("class", "alpha is 0.2, and")),
    "a number for a flag": (_config(kill=0), ("class", "kill is 0, and the class has none")),
    "an option that is not free": (
        _remeasured(protocol="common", model_update="changed"),
        ("class", "model_update is changed, and the class has whole"),
    ),
    "less noise": (
        _remeasured(protocol="dp-fedavg", noise_multiplier=0.5),
        ("class", "noise_multiplier is 0.5, and the class has 1.0"),
    ),
}


@pytest.mark.parametrize("what", WRONG_RESULTS)
def test_results_that_are_not_the_classs_are_refused(what, own, tmp_path):
    change, (check, says) = WRONG_RESULTS[what]
    change(own)
    name, problem = refused(tampered.packed(own, tmp_path / "x.zip"))

    assert (name, says in problem) == (check, True), problem


def test_training_is_no_benchmark(own, tmp_path):
    for path in own.glob("*.h5"):
        with h5py.File(path, "r+") as file:
            file["training/loss"] = np.zeros(4)
    name, problem = refused(tampered.packed(own, tmp_path / "x.zip"))

    assert (name, "is of hpcfl train" in problem) == ("complete", True)


# The same for files: how the members of a good archive are changed.
def _renamed(to):
    def change(members):
        name = next(name for name in members if name.startswith("results/"))
        return {to if one == name else one: content for one, content in members.items()}

    return change


def _listed(change):
    """Change the manifest's list of files."""

    def edit(members):
        listed = json.loads(members[archive.MANIFEST])["files"]
        change(listed)
        return tampered.with_manifest(members, files=listed)

    return edit


def _result(members):
    return next(name for name in members if name.startswith("results/"))


def _altered(members):
    """Return an archive's members with one bit of a results file changed."""
    name = _result(members)
    content = bytearray(members[name])
    content[-1] ^= 1
    return members | {name: bytes(content)}


def _relabelled(members, content):
    """Put another file in the place of the first results, and let the manifest know it."""
    name = _result(members)
    listed = json.loads(members[archive.MANIFEST])["files"]
    member = archive.digest(content)
    return tampered.with_manifest(members | {name: content}, files=listed | {name: vars(member)})


def _of_a_later_schema(members, folder):
    path = folder / "later.h5"
    path.write_bytes(members[_result(members)])
    tampered.edited(path, "/", schema="hpcfl/2")
    return _relabelled(members, path.read_bytes())


WRONG_FILES = {
    "altered results": (_altered, ("files", "was altered")),
    "an altered job script": (
        lambda members: members | {archive.JOB: b"something else"},
        ("files", "job-script was altered"),
    ),
    "missing results": (
        lambda members: {n: c for n, c in members.items() if n != _result(members)},
        ("files", "is missing"),
    ),
    "a missing job script": (
        lambda members: {n: c for n, c in members.items() if n != archive.JOB},
        ("files", "job-script is missing"),
    ),
    "additional results": (
        lambda members: members | {archive.result_name("f" * 32): b"more"},
        ("files", "is not in the manifest"),
    ),
    "results under another name": (
        _renamed(archive.result_name("f" * 32)),
        ("files", "is missing; results/ffffffff"),
    ),
    "a manifest with another digest": (
        _listed(lambda files: files[archive.JOB].update(sha256="0" * 64)),
        ("files", "job-script was altered"),
    ),
    "a manifest with another size": (
        _listed(lambda files: files[archive.JOB].update(size_bytes=1)),
        ("files", "job-script was altered"),
    ),
    "a manifest with one more file": (
        _listed(lambda files: files.update({"../x": files[archive.JOB]})),
        ("files", "../x is missing"),
    ),
    "results that are none": (
        lambda members: _relabelled(members, b"no HDF5"),
        ("results", "is damaged or is not an HDF5 file"),
    ),
    "empty results": (
        lambda members: _relabelled(members, b""),
        ("results", "is damaged or is not an HDF5 file"),
    ),
    "results of another run": (
        lambda members: _relabelled(members, members[max(members)]),
        ("results", "is named after another run"),
    ),
    "another file": (
        lambda members: members | {"notes.txt": b"mine"},
        ("archive", "has 'notes.txt', which is no file of a submission"),
    ),
    "a name that leads elsewhere": (
        lambda members: members | {"results/../../x.h5": b"mine"},
        ("archive", "has 'results/../../x.h5', which is no file"),
    ),
    "an absolute name": (
        lambda members: members | {"/etc/x": b"mine"},
        ("archive", "has '/etc/x', which is no file"),
    ),
    "no manifest": (
        lambda members: {n: c for n, c in members.items() if n != archive.MANIFEST},
        ("archive", "it has no manifest.json"),
    ),
    "a manifest that is no JSON": (
        lambda members: members | {archive.MANIFEST: b"{"},
        ("manifest", "Expecting property name"),
    ),
    "a manifest that is no text": (
        lambda members: members | {archive.MANIFEST: b"\xff\xfe\x00"},
        ("manifest", "codec can't decode"),
    ),
    "a deep manifest": (
        lambda members: members | {archive.MANIFEST: b"[" * 10**6},
        ("manifest", "nested too deeply"),
    ),
    "a manifest that says two things": (
        lambda members: members | {archive.MANIFEST: b'{"class": "a", "class": "b"}'},
        ("manifest", "it has 'class' twice"),
    ),
    "a manifest that is a list": (
        lambda members: members | {archive.MANIFEST: b"[]"},
        ("manifest", "is not a JSON object"),
    ),
    "a manifest of something else": (
        lambda members: tampered.with_manifest(members, format="hpcfl-trace/1"),
        ("manifest", "is not of a submission of hpcfl"),
    ),
    "a manifest of a later version": (
        lambda members: tampered.with_manifest(members, format="hpcfl-submission/2"),
        ("manifest", "this version of hpcfl reads hpcfl-submission/1"),
    ),
    "a manifest without files": (
        lambda members: tampered.with_manifest(members, files={"x": 1}),
        ("manifest", "does not name a class and files"),
    ),
    "a large manifest": (
        lambda members: members | {archive.MANIFEST: b" " * (archive.LARGEST_MANIFEST + 1)},
        ("archive", "manifest.json exceeds the limit"),
    ),
    "a class that there is not": (
        lambda members: tampered.with_manifest(members, **{"class": "huge"}),
        ("manifest", "there is no class 'huge'"),
    ),
    "another class hash": (
        lambda members: tampered.with_manifest(members, class_hash="0" * 64),
        ("manifest", "its 'class_hash' is not what the results say"),
    ),
    "another configuration hash": (
        lambda members: tampered.with_manifest(members, configuration_hash="0" * 64),
        ("manifest", "its 'configuration_hash' is not what the results say"),
    ),
    "another protocol": (
        lambda members: tampered.with_manifest(members, protocol="cohort"),
        ("manifest", "its 'protocol' is not what the results say"),
    ),
    "another environment": (
        lambda members: tampered.with_manifest(members, environment={}),
        ("manifest", "its 'environment' is not what the results say"),
    ),
    "another schema": (
        lambda members: tampered.with_manifest(members, schema="hpcfl/9"),
        ("manifest", "its 'schema' is not what the results say"),
    ),
    "something more in the manifest": (
        lambda members: tampered.with_manifest(members, accepted=True),
        ("manifest", "its 'accepted' is not what the results say"),
    ),
}


@pytest.mark.parametrize("what", WRONG_FILES)
def test_files_that_are_not_those_of_the_manifest_are_refused(what, good, tmp_path):
    change, (check, says) = WRONG_FILES[what]
    path = tampered.rezipped(tmp_path / "x.zip", change(tampered.contents(good)))
    name, problem = refused(path)

    assert (name, says in problem) == (check, True), problem


def test_results_of_a_later_schema_are_refused(good, tmp_path):
    members = _of_a_later_schema(tampered.contents(good), tmp_path)
    name, problem = refused(tampered.rezipped(tmp_path / "x.zip", members))

    assert name == "results"
    assert "follows the schema hpcfl/2 and this version of hpcfl reads hpcfl/1" in problem


# The same for the archive itself, as bytes.
END = struct.Struct("<4s4H2LH")


def _end(content, **changes):
    """Return an archive with other values in its last 22 bytes."""
    names = ("signature", "disk", "start", "here", "count", "size", "at", "comment")
    values = dict(zip(names, END.unpack(content[-END.size :]), strict=True)) | changes
    return content[: -END.size] + END.pack(*values.values())


def _commented(content):
    return _end(content, comment=4) + b"mine"


def _flipped(content):
    """Return an archive with a damaged byte within a results file."""
    damaged = bytearray(content)
    damaged[content.index(b"\x89HDF") + 3000] ^= 0xFF
    return bytes(damaged)


def _listed(content, offset, value):
    """Return an archive with another number in the list's entry of its first member."""
    at = content.index(b"PK\x01\x02") + offset
    number = value.to_bytes(4 if offset > 6 else 2, "little")
    return content[:at] + number + content[at + len(number) :]


def _moved(content):
    """Return an archive with bytes before it, as programs that unpack themselves have them."""
    return b"#!/bin/sh\n" + content


def _between(content):
    """Return an archive with bytes between its files and their list."""
    listed = content.index(b"PK\x01\x02")
    return _end(content[:listed] + b"mine" + content[listed:], at=listed + 4)


def _overlapping(content):
    """Return an archive whose first two members are one and the same place."""
    listed = content.index(b"PK\x01\x02")
    second = content.index(b"PK\x01\x02", listed + 1)
    return content[: second + 42] + content[listed + 42 : listed + 46] + content[second + 46 :]


WRONG_BYTES = {
    "nothing": (lambda content: b"", "it is not a ZIP archive"),
    "no archive": (lambda content: b"x" * 1000, "it is not a ZIP archive as hpcfl submit pack"),
    "cut off": (lambda content: content[:-1], "or is cut off"),
    "its end alone": (lambda content: content[-22:], "or is cut off"),
    "more behind it": (lambda content: content + b"\0", "or is cut off"),
    "more before it": (_moved, "has bytes that belong to no file of it"),
    "more between": (_between, "has bytes that belong to no file of it"),
    "a comment": (_commented, "or is cut off"),
    "a damaged byte": (_flipped, "it is damaged (Bad CRC-32"),
    "a format of another time": (
        lambda content: _listed(content, 6, 99),
        "it is damaged (zip file version 9.9",
    ),
    "more bytes than it unpacks to": (
        lambda content: _listed(content, 20, 2**31),
        "is packed or encrypted, which hpcfl submit pack never does",
    ),
    "very many files": (
        lambda content: _end(content, count=65535, here=65535),
        "claims to have 65535 files",
    ),
    "a long list of files": (
        lambda content: _end(content, count=1, here=1),
        "claims to have 1 files, in a list of",
    ),
    "members in one place": (_overlapping, "has bytes that belong to no file of it"),
    "the end of a larger archive": (
        lambda content: content[:-22] + b"PK\x06\x07" + bytes(16) + content[-22:],
        "it is not a ZIP archive as hpcfl submit pack",
    ),
}


@pytest.mark.parametrize("what", WRONG_BYTES)
def test_an_archive_that_is_damaged_is_refused(what, good, tmp_path):
    change, says = WRONG_BYTES[what]
    path = tmp_path / "x.zip"
    path.write_bytes(change(good.read_bytes()))
    name, problem = refused(path)

    assert (name, says in problem) == ("archive", True), problem


def _link(member):
    member.external_attr = 0o120777 << 16


def _pipe(member):
    member.external_attr = 0o010644 << 16


def _padded(member):
    member.extra = b"\x99\x99\x04\x00mine"


def _remarked(member):
    member.comment = b"mine"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_link, "is a link, or otherwise not a plain file"),
        (_pipe, "is a link, or otherwise not a plain file"),
        (_padded, "has bytes that belong to no file of it"),
        (_remarked, "has bytes that belong to no file of it"),
    ],
)
def test_members_that_are_not_plain_files_are_refused(change, says, good, tmp_path):
    members = tampered.contents(good)
    name, problem = refused(tampered.rezipped(tmp_path / "x.zip", members, change=change))

    assert (name, says in problem) == ("archive", True), problem


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_twice_is_refused(good, tmp_path):
    members = [*tampered.contents(good).items()]
    name, problem = refused(tampered.rezipped(tmp_path / "x.zip", [*members, members[0]]))

    assert (name, problem) == ("archive", "it has 'job-script' twice")


def test_a_bomb_is_refused_before_it_is_unpacked(good, tmp_path):
    bomb = tampered.contents(good) | {archive.JOB: bytes(10**8)}
    path = tampered.rezipped(tmp_path / "x.zip", bomb, compression=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 10**6
    name, problem = refused(path)

    assert (name, "is packed or encrypted" in problem) == ("archive", True)


def test_nothing_that_is_refused_leaves_files_behind(good, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = tmp_path / "x.zip"
    path.write_bytes(_flipped(good.read_bytes()))
    refused(path)

    assert [one.name for one in tmp_path.iterdir()] == ["x.zip"]


def test_whatever_byte_is_damaged_ends_in_a_verdict_that_is_not_better(good, tmp_path):
    """A byte that says nothing of the files, such as a time, may be accepted as what it is."""
    whole, path = good.read_bytes(), tmp_path / "x.zip"
    right = verification.verify(good)
    random = np.random.default_rng(1)
    places = {*random.integers(0, len(whole), 40).tolist(), *range(len(whole) - 300, len(whole), 9)}
    for place in sorted(places):
        damaged = bytearray(whole)
        damaged[place] ^= int(random.integers(1, 256))
        path.write_bytes(damaged)
        found = verification.verify(path)

        assert not found.accepted or (found.digest, found.scores) == (right.digest, right.scores)


def test_results_that_are_damaged_end_in_a_verdict(results, tmp_path):
    """Even where the manifest knows the damaged file."""
    random = np.random.default_rng(2)
    whole = min(results.glob("*.h5")).read_bytes()
    members = tampered.contents(tampered.packed(results, tmp_path / "good.zip"))
    for _ in range(60):
        damaged = bytearray(whole)
        for place in random.integers(0, len(whole), int(random.integers(1, 30))):
            damaged[place] ^= int(random.integers(1, 256))
        changed = _relabelled(members, bytes(damaged))
        verification.verify(tampered.rezipped(tmp_path / "x.zip", changed))


STRANGE = ("[1]", '{"a": {}}', "none", "", -1, 0.5, np.nan, True, "\x1b[2J")


@pytest.mark.parametrize("group", ["config", "environment"])
def test_whatever_results_say_of_themselves_ends_in_a_verdict(group, own, tmp_path):
    paths = sorted(own.glob("*.h5"))
    with h5py.File(paths[0]) as file:
        stored = dict(file[group].attrs)
    for number, (name, value) in enumerate(stored.items()):
        strange = STRANGE[number % len(STRANGE)]
        for path in paths:
            tampered.edited(path, group, **{name: strange})
        try:
            archived = tampered.packed(own, tmp_path / f"{number}.zip")
        except HpcflError:
            continue  # no results file any more
        finally:
            for path in paths:
                tampered.edited(path, group, **{name: value})
        assert "\x1b" not in hpcfl("submit", "verify", archived).stdout, name


def test_a_file_that_there_is_not_is_wrong_use(tmp_path):
    assert "there is no file" in refusal("submit", "verify", tmp_path / "none.zip")
    assert "there is no file" in refusal("submit", "verify", tmp_path)


def test_every_check_has_a_refusal():
    """A check that is added needs a line in one of the tables here."""
    found = {check for _, (check, _) in (*WRONG_RESULTS.values(), *WRONG_FILES.values())}
    known = {name for name, *_ in checks._CHECKS}
    known |= {verification.ARCHIVE, verification.MANIFEST, verification.FILES, verification.RESULTS}

    assert found == known


def test_every_option_that_a_class_fixes_is_checked(results):
    """Each by itself, in a file that has everything else as the class has it."""
    (first, *_) = sorted(results.glob("*.h5"))
    config = load(first).config | {"devices": 6}
    assert tampered.TINY.differences(config) == {}
    for name, value in tampered.TINY.fixed.items():
        wrong = config | {name: "another" if value is None else [value]}
        assert {*tampered.TINY.differences(wrong)} == {name}


def test_options_are_fixed_or_free():
    fixed = {*tampered.TINY.fixed}
    assert fixed.isdisjoint(classes.FREE)
    assert {"dropout", "alpha", "gamma", "dim", "devices", "warmup", "insecure_seed"} <= fixed
    assert {"group", "degree", "rounds", "seed"} <= {*classes.FREE}
