"""Submissions of a tiny class, and archives that differ from them in one way."""

import json
import shutil
import zipfile
from pathlib import Path

import h5py

import hpcfl as api
from hpcfl.results import load
from hpcfl.submission import archive, manifest
from hpcfl.submission.classes import SubmissionClass

# In the place of the real class of this name.
TINY = SubmissionClass("small", devices=6, dim=40, rounds=2, launches=2, warmup=1)
SIZE = {"devices": 6, "dim": 40, "rounds": 3, "warmup": 1}
JOB = b"#!/bin/sh\nhpcfl bench secagg\n"


def measure(folder, protocol="secagg", launches=2, **changes):
    """Make launches of the tiny class in a folder; return it."""
    for launch in range(launches):
        api.bench(protocol, **(SIZE | changes), seed=launch, output=str(folder / f"{launch}.h5"))
    return folder


def edited(path, group, /, **values):
    """Change attributes of a group of a results file."""
    with h5py.File(path, "r+") as file:
        for name, value in values.items():
            file[group].attrs[name] = value
    return path


def sources(folder):
    """Return what goes into the archive of a folder of results, but for the manifest."""
    runs = sorted((load(path) for path in folder.glob("*.h5")), key=lambda run: run.run_id)
    return runs, {archive.JOB: JOB} | {archive.result_name(run.run_id): run.path for run in runs}


def packed(folder, path, **changes):
    """Write an archive of results whatever they are; `changes` are those of its manifest."""
    runs, files = sources(folder)
    members = {name: archive.digest(source) for name, source in files.items()}
    document = manifest.make(runs, TINY, members) | changes
    archive.write(path, files | {archive.MANIFEST: manifest.dumps(document)})
    return path


def contents(path):
    """Return what an archive holds, by name."""
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def rezipped(path, members, *, change=None, compression=zipfile.ZIP_STORED):
    """Write an archive of any members, after `change` of each one's description."""
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members if isinstance(members, list) else sorted(members.items()):
            member = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            member.external_attr, member.create_system = 0o100644 << 16, 3
            member.compress_type = compression
            if change is not None:
                change(member)
            file.writestr(member, content, compression)
    return path


def with_manifest(members, **changes):
    """Return the members of an archive with a manifest that says something else."""
    document = json.loads(members[archive.MANIFEST]) | changes
    return members | {archive.MANIFEST: manifest.dumps(document)}


def copy(folder, to):
    """Return a copy of a folder."""
    return Path(shutil.copytree(folder, to))
