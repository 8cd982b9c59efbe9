"""The command line in this process, for tests that need no separate process."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys

from click.testing import CliRunner

from hpcfl.cli import group, main


def hpcfl(*arguments):
    """Run a command line; return its exit status and its output."""
    return captured(main, [str(argument) for argument in arguments])


def captured(program, words):
    """Run a program, given as a function, with the words of a command line."""
    before, sys.argv = sys.argv, [sys.argv[0], *words]
    out, err = io.StringIO(), io.StringIO()
    status: object = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            program()
    except SystemExit as end:
        status = end.code
    finally:
        sys.argv = before
    code = status if isinstance(status, int) else int(status is not None)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def told(*arguments):
    """Return what a command line prints that succeeds."""
    done = hpcfl(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def invoke(*arguments, **more):
    """Run a command line; return click's result, which holds the command's exception."""
    return CliRunner().invoke(group, [str(argument) for argument in arguments], **more)


def refusal(*arguments):
    """Run a command line with a usage error; return the sentence that it prints, and only that."""
    done = hpcfl(*arguments)
    said = [line for line in done.stderr.splitlines() if not line.startswith("warning: ")]

    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert len(said) == 1, done.stderr
    assert said[0].startswith("Error: ")
    return said[0]
