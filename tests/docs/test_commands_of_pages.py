"""Every command of a page is run, and prints what stands there, but for the numbers.

Of the pages that show commands with their output: in blocks that begin with ``console``.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from environments import run

ROOT = Path(__file__).parents[2]
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
TUTORIAL = PAGES["tutorial"]
LEFT_OUT = "..."
# Of the output that is compared: numbers, with what may stand before and behind them, and units.
NUMBER = re.compile(r"(?<![\w.])[*+-]?\d[\d.,]*(?:e[+-]?\d+)?[x%]?(?![\w.])")
RUN_ID = re.compile(r"[0-9a-f]{16}(?=\.h5)")
UNITS = {"µs", "ms", "s", "min", "h", "B", "kB", "MB", "GB"}

needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun")


def blocks(text):
    """Return the language, the title and the lines of every block of code."""
    found = re.findall(r'^```(\w+)(?: title="(\S+)")?\n(.*?)^```$', text, re.MULTILINE | re.DOTALL)
    return [(language, title, body.splitlines()) for language, title, body in found]


def commands(text):
    """Return the commands, each with the lines that it prints."""
    found = []
    for language, _, lines in blocks(text):
        for line in lines if language == "console" else []:
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def play(text, folder, **variables):
    """Run the commands in one shell, in a folder with the files of the text; return the outputs."""
    for _, title, lines in blocks(text):
        if title:
            (folder / title).write_text("\n".join([*lines, ""]))
    mark = "@@@ command ends with "
    script = "".join(f"{command}\necho {shlex.quote(mark)}$?\n" for command, _ in commands(text))
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=800,
    )
    *outputs, _ = re.split(rf"^{mark}(\d+)\n", done.stdout, flags=re.MULTILINE)
    statuses = outputs[1::2]
    assert statuses == ["0"] * len(commands(text)), (statuses, done.stdout, done.stderr)
    return outputs[::2]


def expected(written):
    """Return what matches output like that which is written: its words, whatever its numbers.

    A line may have more words, and any lines may stand for those that are left out.
    """
    lines = []
    for line in written:
        if line == LEFT_OUT:
            lines.append(r"(?:.*\n)*?")
            continue
        words = NUMBER.sub(" ", RUN_ID.sub(" ", line)).split()
        told = [re.escape(word) for word in words if word not in UNITS and word.strip("-")]
        lines.append(".*?".join(["", *told, ""]) + r".*\n")
    return "".join(lines)


def is_printed(printed, written):
    """Return whether output is as it is written."""
    # The footer is for programs: a terminal does not show it.
    lines = [line for line in printed.splitlines() if not line.startswith("HPCFL ")]
    shown = "\n".join(lines).rstrip() + "\n" if lines else ""
    return re.fullmatch(expected(written), shown) is not None


def assert_printed(text, outputs):
    for (command, written), printed in zip(commands(text), outputs, strict=True):
        told = "\n".join([f"$ {command} printed", printed, "and not", *written])
        assert is_printed(printed, written), told


WITH_COMMANDS = sorted(name for name, text in PAGES.items() if commands(text))


@needs_mpirun
@pytest.mark.parametrize("page", [page for page in WITH_COMMANDS if page != "tutorial"])
def test_every_command_prints_what_is_written(page, tmp_path):
    text = PAGES[page]
    # The hpcfl of this checkout, whichever is installed.
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, starts in {"hpcfl": "-m hpcfl", "python": ""}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {starts} "$@"\n')
        (programs / name).chmod(0o755)
    path = os.pathsep.join(map(str, (programs, Path(sys.executable).parent, os.environ["PATH"])))
    outputs = play(text, tmp_path, PATH=path, PYTHONPATH=str(ROOT))

    assert_printed(text, outputs)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="a clone is made of git"
)
def test_every_command_in_a_fresh_clone(tmp_path):
    """The tutorial, from `make setup` on: what git tracks, and no environment but what it makes."""
    for name in run("git", "-C", ROOT, "ls-files", "-z", folder=ROOT).split("\0"):
        if name and (ROOT / name).exists():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    # What the pages need, compiled when it is imported.
    few = {"EXTRAS": "mpi,plot,table", "PIP_NO_COMPILE": "1", "PYTHONDONTWRITEBYTECODE": ""}
    outputs = play(TUTORIAL, tmp_path, PYTHON=sys.executable, PYTHONPATH="", **few)

    assert_printed(TUTORIAL, outputs)
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_other_words_and_lost_lines_are_noticed():
    written = ["...", "cost  device ms", "a     12.5", "...", "Results: x.h5"]

    assert is_printed("noise\ncost device rank s\na 7,000 *1.5\nmore\nResults: x.h5\n", written)
    for other in ("b 7\nmore\nResults: x.h5", "a 7\nmore\nResults: y.h5", "a 7\nmore"):
        assert not is_printed(f"noise\ncost device ms\n{other}\n", written)
    assert not is_printed("noise\ncost device ms\na 7\nmore\nResults: x.h5\nerror\n", written)
