"""The manifest of a submission: what is in it, and where its results were measured.

Nothing in it is believed: it is made again from the results, and must come out the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hpcfl.report import jsontext
from hpcfl.results import pooling
from hpcfl.results.reader import Run
from hpcfl.results.schema import SCHEMA
from hpcfl.submission.archive import Member
from hpcfl.submission.classes import SubmissionClass, fingerprint

FORMAT = "hpcfl-submission/1"
FILES = "files"
# What the manifest says of every launch, from its results file.
_FACTS = (
    *("hpcfl_version", "git_commit", "git_dirty", "git_changes", "python_version"),
    *("numpy_version", "mpi4py_version", "h5py_version", "cryptography_version"),
    *("openssl_version", "transport", "mpi_library", "mpi_library_text", "mpi_device", "ranks"),
    *("hosts", "host_ranks", "mapping", "binding", "oversubscription_ratio", "networks"),
    *("cpu_model", "cores_physical", "cores_logical", "cores_usable", "kernel"),
)


def make(
    runs: Sequence[Run], asked: SubmissionClass, members: Mapping[str, Member]
) -> dict[str, Any]:
    """Return the manifest of results in a class; `members` are all files but the manifest."""
    first = runs[0]
    environment = {
        run.run_id: [
            {"first_round": number, **{name: launch.get(name) for name in _FACTS}}
            for number, launch in run.launches.items()
        ]
        for run in runs
    }
    document = {
        "format": FORMAT,
        "schema": SCHEMA,
        "class": asked.name,
        "class_hash": asked.fingerprint,
        "protocol": first.protocol,
        "configuration_hash": fingerprint(jsontext.finite(pooling.configuration(first))),
        "environment": environment,
        FILES: {name: vars(member) for name, member in members.items()},
    }
    return dict(jsontext.finite(document))


def dumps(document: Mapping[str, Any]) -> bytes:
    """Return a manifest as it is written: the same bytes for the same content."""
    text = json.dumps(document, indent=1, sort_keys=True, allow_nan=False)
    return f"{text}\n".encode()


def read(content: bytes) -> dict[str, Any]:
    """Return a manifest, of which format, class and files are of the right types.

    Raises ValueError if it is none, or is of another version.
    """
    document = json.loads(content)
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")
    named = document.get("format")
    if not isinstance(named, str) or not named.startswith("hpcfl-submission/"):
        raise ValueError("it is not of a submission of hpcfl")
    if named != FORMAT:
        raise ValueError(
            f"its format is {named!r}, and this version of hpcfl reads {FORMAT}: use "
            "the version of hpcfl that made it"
        )
    if not isinstance(document.get("class"), str) or not _are_members(document.get(FILES)):
        raise ValueError("it does not name a class and files with their size_bytes and sha256")
    return document


def _are_members(listed: Any) -> bool:
    return isinstance(listed, dict) and all(
        isinstance(one, dict)
        and type(one.get("size_bytes")) is int
        and isinstance(one.get("sha256"), str)
        for one in listed.values()
    )


def file_problems(document: Mapping[str, Any], members: Mapping[str, Member]) -> list[str]:
    """Return what is wrong with the files of an archive, by its manifest."""
    listed = document[FILES]
    found = [f"{name} is missing" for name in listed if name not in members]
    found += [f"{name} is not in the manifest" for name in members if name not in listed]
    return found + [
        f"{name} was altered: its SHA-256 is {member.sha256}, not that of the manifest"
        for name, member in members.items()
        if name in listed and listed[name] != vars(member)
    ]


def other_problems(document: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Return in what else a manifest differs from the one that the results give."""
    return [
        f"its {name!r} is not what the results say"
        for name in {**expected, **document}
        if document.get(name) != expected.get(name)
    ]
