"""The plans that come with hpcfl: the files in ``plans/`` beside this module, by name."""

from __future__ import annotations

from pathlib import Path

from hpcfl.errors import no_such

FOLDER = Path(__file__).with_name("plans")


def titles() -> dict[str, str]:
    """Return each plan's title by name: the comment in the first line of its file."""
    return {
        path.stem: path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        for path in sorted(FOLDER.glob("*.toml"))
    }


def locate(plan: str) -> Path:
    """Return the file of a plan, given its name or its path.

    A name of a plan that comes with hpcfl has precedence over a file in the current folder;
    ``./NAME`` means the file. Raise UsageError if there is neither.
    """
    names = titles()
    if plan in names:
        return FOLDER / f"{plan}.toml"
    path = Path(plan)
    if not path.exists():
        also = "hpcfl sweep shows those that have a name, and there is no such file"
        raise no_such("plan", plan, names, also=also, listed=False)
    return path
