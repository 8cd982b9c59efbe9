"""Runs the same tests with every MPI library, each in an environment of its own.

    python tests/mpi-matrix [--only LIBRARY ...] [--feature FEATURE ...] [--cache FOLDER] [--write]

A library's row is kept beside its environment when all features were tested, and changed by what is
tested again; --write puts the rows that are kept into docs/clusters.md. Status 0 if all tests
passed of all libraries that could be installed, and those of --only were.
"""

import argparse
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

from features import FEATURES, check
from libraries import LIBRARIES, ROOT, CannotInstallError, install
from table import PAGE, insert, keep, kept, table


def main():
    """Parse the command line, run the tests, and show the table."""
    names = [library.name for library in LIBRARIES]
    parser = argparse.ArgumentParser(prog="tests/mpi-matrix", description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=names, help="a library; repeatable")
    parser.add_argument("--feature", action="append", choices=FEATURES, help="one; repeatable")
    parser.add_argument(
        "--cache",
        type=Path,
        default=os.environ.get("HPCFL_MPI_CACHE") or ROOT / "build" / "mpi-matrix",
        help="where environments are kept  [default: $HPCFL_MPI_CACHE, or build/mpi-matrix]",
    )
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    asked = parser.parse_args()
    cache, features = Path(asked.cache).absolute(), asked.feature or list(FEATURES)
    cache.mkdir(parents=True, exist_ok=True)
    rows, failed = [], False
    for library in LIBRARIES:
        if asked.only and library.name not in asked.only:
            continue
        title, outcomes = test(library, cache, features)
        if isinstance(outcomes, str):
            failed = failed or bool(asked.only)
        else:
            failed = failed or not all(one.passed for one in outcomes.values())
        rows.append((title, outcomes))
        row = cache / f"{library.name}.json"
        if not asked.feature:
            keep(row, title, outcomes)
        elif (
            row.exists()
            and not isinstance(outcomes, str)
            and not isinstance(earlier := kept(row)[1], str)
        ):
            keep(row, title, {**earlier, **outcomes})
    print(f"\n{table(rows, features)}")
    if asked.write:
        paths = [cache / f"{name}.json" for name in names]
        made = table([kept(path) for path in paths if path.exists()], FEATURES)
        where = f"Python {platform.python_version()}, {os.cpu_count()} cores."
        PAGE.write_text(insert(PAGE.read_text(), f"{where}\n\n{made}"))
    sys.exit(failed)


def test(library, cache, features):
    """Return the row of a library: its title, and outcomes or why it is not installed."""
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    try:
        environment = install(library, cache)
    except CannotInstallError as error:
        print(f"{library.name} cannot be installed: {error}", flush=True)
        return f"{library.name} ({library.source}), {today}", str(error)
    title = f"{environment.version} ({library.source}), {today}"
    print(title, flush=True)
    outcomes = {}
    for feature in features:
        outcomes[feature] = one = check(environment, feature)
        word = "ok" if one.passed else "FAILS"
        print(f"  {feature}: {word}, {one.seconds:.0f} s  {one.reason}".rstrip(), flush=True)
    return title, outcomes


if __name__ == "__main__":
    main()
