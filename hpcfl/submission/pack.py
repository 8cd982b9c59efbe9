"""Packs results into a submission."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcfl.errors import UsageError
from hpcfl.results.reader import find, load
from hpcfl.submission import archive, manifest
from hpcfl.submission.archive import digest, result_name
from hpcfl.submission.checks import Check, Label, check, labels
from hpcfl.submission.classes import SubmissionClass
from hpcfl.system import files


@dataclass(frozen=True)
class Packed:
    """What was made of results."""

    checks: list[Check]
    labels: list[Label]
    digest: str | None  # SHA-256 of the manifest; None if nothing was written

    @property
    def accepted(self) -> bool:
        """Whether the results are what the class asks for."""
        return all(one.passed for one in self.checks)


def pack(paths: Sequence[Path], asked: SubmissionClass, job: Path, output: Path) -> Packed:
    """Check results, and write a submission of them unless one of the checks fails.

    `paths` are results files and folders of them, `job` is the script that made them. Raises an
    HpcflError if one of these cannot be read, or the submission cannot be written.
    """
    try:
        script = job.read_bytes()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{job} cannot be read as a job script ({files.brief(error)}): give the text file "
            "that made the results"
        ) from None
    runs = sorted((load(path) for path in find(paths)), key=lambda run: run.run_id)
    checks, said = check(runs, asked), labels(runs)
    if not all(one.passed for one in checks):
        return Packed(checks, said, None)
    sources: dict[str, Path | bytes] = {archive.JOB: script}
    sources |= {result_name(run.run_id): run.path for run in runs}
    members = {name: digest(source) for name, source in sources.items()}
    content = manifest.dumps(manifest.make(runs, asked, members))
    archive.write(output, sources | {archive.MANIFEST: content})
    return Packed(checks, said, digest(content).sha256)
