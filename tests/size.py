"""The current and the largest allowed number of Python lines of each part, all lines counted."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_OPTIONS = 250
# The folder of each part, and its largest allowed number of lines.
BUDGETS = {
    "hpcfl/algorithms": 7500,
    "hpcfl/comm": 2000,
    "hpcfl/crypto": 1700,
    "hpcfl/privacy": 2600,
    "hpcfl/rounds hpcfl/benchmark hpcfl/training": 3000,
    "hpcfl/learning": 1700,
    "hpcfl/results hpcfl/report": 3000,
    "hpcfl/plots": 1200,
    "hpcfl/cli hpcfl/options hpcfl/api.py hpcfl/errors.py": 2800,
    "hpcfl/costmodel hpcfl/advice": 1100,
    "hpcfl/system hpcfl/doctor": 1400,
    "hpcfl/sweeping": 900,
    "hpcfl/slurm": 400,
    "hpcfl/exchange hpcfl/integrations": 1500,
    "hpcfl/netlab hpcfl/attack hpcfl/audit": 1700,
    "hpcfl": 31000,
    "tests": 24000,
    "papers": 3500,
    "benchmarks": 2500,
}


def lines(*places):
    """Return the number of lines of the tracked Python files in some places."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *places], cwd=ROOT, capture_output=True, check=True
    )
    names = [name for name in listed.stdout.decode().split("\0") if name.endswith(".py")]
    files = [ROOT / name for name in names if (ROOT / name).exists()]
    return sum(len(path.read_bytes().splitlines()) for path in files)


def leaves(command, name=""):
    """Yield the name of each command that is not a group, and the command."""
    import click

    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for sub in command.list_commands(context):
        yield from leaves(command.get_command(context, sub), f"{name} {sub}".strip())


def options():
    """Return the options of all commands, each with the name of its command.

    An option shared by several algorithms of `hpcfl privacy epsilon` counts once.
    """
    import click

    from hpcfl.cli import group

    found = {
        (name, one.name)
        for name, command in leaves(group)
        for one in command.params
        if isinstance(one, click.Option)
    }
    return {(name if len(name.split()) < 3 else "privacy epsilon", one) for name, one in found}


if __name__ == "__main__":
    print(f"{'part':<52} {'now':>7} {'at most':>8}")
    for places, most in BUDGETS.items():
        now = lines(*places.split())
        print(f"{places:<52} {now:>7,} {most:>8,}{' !' if now > most else ''}")
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"]
    kilobytes = sum(page.stat().st_size for page in pages) // 1000
    print(f"{'pages, kB':<52} {kilobytes:>7,} {200:>8,}{' !' if kilobytes > 200 else ''}")
    try:
        number = len(options())
    except ImportError:  # outside the environment that make sets up
        sys.exit()
    print(f"{'options of all commands':<52} {number:>7,} {MOST_OPTIONS:>8,}")
