"""Verifies a submission: whatever is said of it is worked out from its results files."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcfl.errors import HpcflError
from hpcfl.report import jsontext
from hpcfl.report.formats import counted
from hpcfl.results.reader import Run, load
from hpcfl.submission import archive, checks, manifest
from hpcfl.submission.archive import Unpacked, result_name
from hpcfl.submission.checks import Check, Label
from hpcfl.submission.classes import CLASSES, SubmissionClass
from hpcfl.submission.scores import PhaseScores, scores
from hpcfl.system import files


@dataclass(frozen=True)
class Verdict:
    """What was found out about a submission; the last fields are empty where it is refused."""

    path: Path
    checks: tuple[Check, ...]
    digest: str | None = None  # SHA-256 of the manifest, by which a submission is known
    class_name: str | None = None
    protocol: str | None = None
    launches: int = 0
    labels: tuple[Label, ...] = ()
    scores: tuple[PhaseScores, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether every check passed."""
        return all(one.passed for one in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        found = {
            "path": str(self.path),
            "accepted": self.accepted,
            "digest": self.digest,
            "class": self.class_name,
            "protocol": self.protocol,
            "launches": self.launches,
            "checks": [asdict(one) | {"passed": one.passed} for one in self.checks],
            "labels": [asdict(one) for one in self.labels],
            "scores": [one.as_dict() for one in self.scores],
        }
        return dict(jsontext.finite(found))


# What is asked of every archive before its results are looked at.
ARCHIVE, MANIFEST, FILES, RESULTS = "archive", "manifest", "files", "results"


def verify(path: Path) -> Verdict:
    """Verify a submission; UsageError if there is no such file.

    What cannot be relied on ends it: a damaged archive, a manifest that cannot be read, files that
    were altered, results that cannot be read. Of the rest all is reported.
    """
    with tempfile.TemporaryDirectory(prefix="hpcfl-submission-") as folder:
        return _verify(path, Path(folder))


def _verify(path: Path, folder: Path) -> Verdict:
    try:
        found = archive.unpack(path, folder)
    except (OSError, ValueError) as error:
        return Verdict(path, (_refused(ARCHIVE, error),))
    passed = [
        Check(ARCHIVE, f"{counted(len(found.members) + 1, 'file')}, {found.size_bytes} bytes")
    ]
    try:
        document = manifest.read(found.manifest)
        asked = _class_of(document)
    except ValueError as error:
        return Verdict(path, (*passed, _refused(MANIFEST, error)), found.digest)
    problems = manifest.file_problems(document, found.members)
    passed.append(Check(FILES, "each with the SHA-256 of the manifest, no other", tuple(problems)))
    if problems:
        return Verdict(path, tuple(passed), found.digest, asked.name)
    runs, problems = _load(found)
    passed.append(Check(RESULTS, "every file can be read", tuple(problems)))
    if problems:
        return Verdict(path, tuple(passed), found.digest, asked.name)
    return _judge(path, passed, found, document, runs, asked)


def _judge(
    path: Path,
    passed: Sequence[Check],
    found: Unpacked,
    document: dict[str, Any],
    runs: Sequence[Run],
    asked: SubmissionClass,
) -> Verdict:
    """Return the verdict on results that can be read."""
    differing = manifest.other_problems(document, manifest.make(runs, asked, found.members))
    last = Check(MANIFEST, "says what the results say", tuple(differing))
    made = (*passed, *checks.check(runs, asked), last)
    refused = not all(one.passed for one in made)
    return Verdict(
        path,
        made,
        found.digest,
        asked.name,
        runs[0].protocol,
        len(runs),
        tuple(checks.labels(runs)),
        () if refused else tuple(scores(runs)),
    )


def _class_of(document: dict[str, Any]) -> SubmissionClass:
    name = document["class"]
    if name not in CLASSES:
        raise ValueError(f"there is no class {name!r}")
    return CLASSES[name]


def _load(found: Unpacked) -> tuple[list[Run], list[str]]:
    """Return the results of an archive, and what is wrong with those that cannot be read."""
    runs, problems = [], []
    for path in found.results:
        try:
            run = load(path)
            # A file that does not tell the number of parameters is refused by asking for it.
            if not run.dim or result_name(run.run_id) != f"results/{path.name}":
                raise HpcflError(f"{path} is named after another run")
        except HpcflError as error:
            problems.append(str(error).replace(f"{path.parent}/", ""))
        else:
            runs.append(run)
    if not found.results:
        problems.append("it has none")
    return runs, problems


def _refused(name: str, error: Exception) -> Check:
    return Check(name, "", (files.brief(error),))
