"""Runs the same tests with every MPI library, each in an environment of its own.

    python tests/mpi-matrix [--only LIBRARY ...] [--cache FOLDER] [--write]

Status 0 if all tests of all libraries that could be installed passed, and each library of --only
was installed.
"""

import argparse
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

from features import FEATURES, check
from libraries import LIBRARIES, ROOT, CannotInstallError, install
from table import PAGE, insert, table


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
    features = asked.feature or list(FEATURES)
    if asked.write and (asked.only or asked.feature):
        parser.error("--write takes the whole table: leave out --only and --feature")
    rows, failed = [], False
    for library in LIBRARIES:
        if asked.only and library.name not in asked.only:
            continue
        try:
            environment = install(library, Path(asked.cache).absolute())
        except CannotInstallError as error:
            print(f"{library.name} cannot be installed: {error}", flush=True)
            rows.append((library.source, str(error)))
            failed = failed or bool(asked.only)
            continue
        title = f"{environment.version} ({library.source})"
        print(title, flush=True)
        outcomes = {}
        for feature in features:
            outcomes[feature] = one = check(environment, feature)
            word = "ok" if one.passed else "FAILS"
            print(f"  {feature}: {word}, {one.seconds:.0f} s  {one.reason}".rstrip(), flush=True)
        rows.append((title, outcomes))
        failed = failed or not all(one.passed for one in outcomes.values())
    made = table(rows, features)
    print(f"\n{made}")
    if asked.write:
        day = datetime.now(UTC).strftime("%Y-%m-%d")
        where = f"Python {platform.python_version()}, {os.cpu_count()} cores, {day}."
        PAGE.write_text(insert(PAGE.read_text(), f"{where}\n\n{made}"))
    sys.exit(failed)


if __name__ == "__main__":
    main()
